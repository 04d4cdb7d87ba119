"""A message on its way to a provider. Its members can be changed one by one; each is kept as the JSON text that came.

Nothing is decoded and encoded again, so what a change does not concern (signed reasoning, unusual numbers, escapes)
keeps its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import orjson

from app.conversation.json_text import decode_json_or, keep_text
from app.dialects.request_body import encode_fields

NULL: Final = b"null"
_EMPTY_VALUES: Final = frozenset({b"", NULL, b'""', b"[]"})
_ROLES_BY_JSON: Final = {
    orjson.dumps(role): role for role in ("system", "developer", "user", "assistant", "tool", "function")
}

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


def parse_object_members(raw: bytes) -> dict[str, bytes] | None:
    """Returns an object's members as JSON text; None for anything that is not a readable object."""
    try:
        return {name: bytes(value).strip() for name, value in _decode_object(raw).items()}
    except msgspec.MsgspecError:
        return None


def parse_array_elements(raw: bytes) -> list[bytes]:
    """Returns an array's elements as JSON text; empty for anything that is not a readable array."""
    try:
        return [bytes(value).strip() for value in _decode_array(raw)] if raw.startswith(b"[") else []
    except msgspec.MsgspecError:
        return []


def render_array(elements: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(elements) + b"]"


def is_empty_value(raw: bytes) -> bool:
    """Says whether a value is empty: missing, null, ``""`` or ``[]``."""
    return raw in _EMPTY_VALUES or (raw.startswith(b"[") and not raw[1:-1].strip())


def join_json_strings(texts: Sequence[bytes], separator: str) -> bytes:
    """Joins JSON strings into one JSON string."""
    between = orjson.dumps(separator)[1:-1]
    return b'"' + between.join([text[1:-1] for text in texts]) + b'"'


def join_contents(contents: Sequence[bytes]) -> bytes:
    """Joins texts by a blank line; if one of them is a list of parts, returns a list of all parts."""
    nonempty = [content for content in contents if not is_empty_value(content)]
    if len(nonempty) <= 1:
        return next(iter(nonempty or contents), NULL)
    if all(one[:1] == b'"' for one in nonempty):
        return join_json_strings(nonempty, "\n\n")
    return render_array([part for content in nonempty for part in _content_parts(content)])


def _content_parts(content: bytes) -> list[bytes]:
    return (
        [encode_fields({"type": b'"text"', "text": content})] if content[:1] == b'"' else parse_array_elements(content)
    )


def join_text_parts(content: bytes) -> bytes | None:
    """Joins a list of text parts into one string, each part on its own line; None for any other content."""
    texts: list[bytes] = []
    for element in parse_array_elements(content):
        part = parse_object_members(element) or {}
        text = part.get("text" if part.get("type") == b'"text"' else "refusal", NULL)
        if text[:1] != b'"' or part.get("type") not in (b'"text"', b'"refusal"'):
            return None
        texts.append(text)
    return join_json_strings(texts, "\n") if texts else None


class OutgoingMessage:
    """One message. An unreadable one has no role and no members, and is sent as it came."""

    __slots__ = ("_members", "_raw", "role")

    def __init__(self, raw: bytes) -> None:
        self._raw: bytes | None = raw
        self._members = parse_object_members(raw) or {}
        self.role = self._read_role()

    @classmethod
    def from_text(cls, role: str, text: str) -> OutgoingMessage:
        return cls(orjson.dumps({"role": role, "content": text}))

    @property
    def raw(self) -> bytes:
        """Returns its JSON text: the bytes that came, if nothing was changed."""
        if self._raw is None:
            self._raw = encode_fields(self._members)
        return self._raw

    @property
    def members(self) -> Mapping[str, bytes]:
        return self._members

    @property
    def content(self) -> bytes:
        return self["content"]

    @property
    def calls_tools(self) -> bool:
        return not is_empty_value(self["tool_calls"]) or not is_empty_value(self["function_call"])

    @property
    def tool_calls(self) -> list[dict[str, bytes]]:
        """Returns the members of each tool call."""
        return [parse_object_members(call) or {} for call in parse_array_elements(self["tool_calls"])]

    def __getitem__(self, name: str) -> bytes:
        return self._members.get(name, NULL)

    def __setitem__(self, name: str, value: bytes) -> None:
        if self._members.get(name) != value:
            self._members[name] = value
            self._raw = None
            if name == "role":
                self.role = self._read_role()

    def replace_members(self, members: dict[str, bytes]) -> None:
        """Replaces all members."""
        if members != self._members:
            self._members, self._raw = members, None
            self.role = self._read_role()

    def _read_role(self) -> str:
        raw = self["role"]
        return keep_text(_ROLES_BY_JSON.get(raw) or decode_json_or(raw, None))
