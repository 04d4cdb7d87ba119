"""A message on its way to a provider: members that can be changed one by one, each kept as the JSON text it came as.

Nothing is decoded and encoded again, so that what a change does not concern (signed reasoning, odd numbers, escapes)
leaves as the bytes it came as.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import orjson

NULL: Final = b"null"
_EMPTY: Final = frozenset({b"", NULL, b'""', b"[]"})
_ROLES: Final = {orjson.dumps(role): role for role in ("system", "developer", "user", "assistant", "tool", "function")}

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


def members_of(raw: bytes) -> dict[str, bytes] | None:
    """An object's members as JSON text; None for anything that is not a readable object."""
    try:
        return {name: bytes(value).strip() for name, value in _decode_object(raw).items()}
    except msgspec.MsgspecError:
        return None


def elements_of(raw: bytes) -> list[bytes]:
    """An array's elements as JSON text; none of what is not a readable array."""
    try:
        return [bytes(value).strip() for value in _decode_array(raw)] if raw.startswith(b"[") else []
    except msgspec.MsgspecError:
        return []


def object_of(members: Mapping[str, bytes]) -> bytes:
    return b"{" + b",".join([b"%b:%b" % (orjson.dumps(name), raw) for name, raw in members.items()]) + b"}"


def array_of(elements: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(elements) + b"]"


def is_empty(raw: bytes) -> bool:
    """Whether a value says nothing: missing, null, ``""`` or ``[]``."""
    return raw in _EMPTY or (raw.startswith(b"[") and not raw[1:-1].strip())


def is_text(raw: bytes) -> bool:
    return raw.startswith(b'"')


def joined_text(texts: Sequence[bytes], separator: str) -> bytes:
    """JSON strings as one."""
    between = orjson.dumps(separator)[1:-1]
    return b'"' + between.join([text[1:-1] for text in texts]) + b'"'


def joined_content(contents: Sequence[bytes]) -> bytes:
    """Texts joined by a blank line; once one of them is a list of parts, a list of all parts."""
    spoken = [content for content in contents if not is_empty(content)]
    if len(spoken) <= 1:
        return next(iter(spoken or contents), NULL)
    if all(map(is_text, spoken)):
        return joined_text(spoken, "\n\n")
    return array_of([part for content in spoken for part in _parts_of(content)])


def _parts_of(content: bytes) -> list[bytes]:
    return [object_of({"type": b'"text"', "text": content})] if is_text(content) else elements_of(content)


def text_of_parts(content: bytes) -> bytes | None:
    """A list that holds only text as one string, its parts on lines of their own; None for any other content."""
    texts: list[bytes] = []
    for element in elements_of(content):
        part = members_of(element) or {}
        text = part.get("text" if part.get("type") == b'"text"' else "refusal", NULL)
        if not is_text(text) or part.get("type") not in (b'"text"', b'"refusal"'):
            return None
        texts.append(text)
    return joined_text(texts, "\n") if texts else None


def decoded(raw: bytes) -> Any:
    """A small value; None for what cannot be read."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None


class Outgoing:
    """One message. Unreadable ones have no role and no members, and leave as they came."""

    __slots__ = ("_members", "_raw", "role")

    def __init__(self, raw: bytes) -> None:
        self._raw: bytes | None = raw
        self._members = members_of(raw) or {}
        self.role = self._read_role()

    @classmethod
    def saying(cls, role: str, text: str) -> Outgoing:
        return cls(orjson.dumps({"role": role, "content": text}))

    @property
    def raw(self) -> bytes:
        """Its JSON text: as it came, where nothing was changed."""
        if self._raw is None:
            self._raw = object_of(self._members)
        return self._raw

    @property
    def members(self) -> Mapping[str, bytes]:
        return self._members

    @property
    def content(self) -> bytes:
        return self["content"]

    @property
    def has_calls(self) -> bool:
        return not is_empty(self["tool_calls"]) or not is_empty(self["function_call"])

    @property
    def calls(self) -> list[dict[str, bytes]]:
        """The members of each tool call."""
        return [members_of(call) or {} for call in elements_of(self["tool_calls"])]

    def __getitem__(self, name: str) -> bytes:
        return self._members.get(name, NULL)

    def __setitem__(self, name: str, value: bytes) -> None:
        if self._members.get(name) != value:
            self._members[name] = value
            self._raw = None
            if name == "role":
                self.role = self._read_role()

    def replace(self, members: dict[str, bytes]) -> None:
        """Take these members for all that there were."""
        if members != self._members:
            self._members, self._raw = members, None
            self.role = self._read_role()

    def _read_role(self) -> str:
        raw = self["role"]
        role = _ROLES.get(raw) or decoded(raw)
        return role if isinstance(role, str) else ""


def name_of_call(call: Mapping[str, bytes]) -> bytes:
    """The JSON text of the name that a tool call calls; null where it has none."""
    called = members_of(call.get("function", call.get("custom", NULL))) or {}
    return called.get("name", NULL)
