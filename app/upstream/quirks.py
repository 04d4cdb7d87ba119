"""What a provider cannot take, taken out of a request. Pure; what no quirk touches stays the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import orjson

from app.upstream.base import Quirks

_OUTPUT_FIELDS = ("max_tokens", "max_completion_tokens")
_MERGEABLE = frozenset({"system", "user", "assistant"})


class _Head(msgspec.Struct, gc=False):
    """As much of a message as says whether it may be merged."""

    role: str = ""
    tool_calls: msgspec.Raw = msgspec.Raw(b"null")
    function_call: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def merges_as(self) -> str | None:
        """The role under which neighbours are joined; None for what must stand alone: results, and calls."""
        calls = bytes(self.tool_calls) not in (b"null", b"[]") or bytes(self.function_call) != b"null"
        return self.role if self.role in _MERGEABLE and not calls else None


_decode = msgspec.json.Decoder(_Head).decode


def _head(raw: bytes) -> _Head:
    """The head of a message; an empty one for what cannot be read, which is the provider's to refuse."""
    try:
        return _decode(raw)
    except msgspec.MsgspecError:
        return _Head()


def apply_quirks(
    quirks: Quirks, messages: Sequence[bytes], fields: Mapping[str, bytes]
) -> tuple[Sequence[bytes], dict[str, bytes]]:
    """The messages and top-level fields (name → JSON text) that a provider with these quirks understands.

    Objects to which nothing applies are given back as they came.
    """
    if quirks.developer_to_system:
        messages = _developer_to_system(messages)
    if quirks.merge_same_role:
        messages = _merge_same_role(messages)
    return messages, _fitting_fields(quirks, fields if isinstance(fields, dict) else dict(fields))


def _fitting_fields(quirks: Quirks, fields: dict[str, bytes]) -> dict[str, bytes]:
    unwanted = {name for name in quirks.strip_fields if name in fields}
    if not quirks.stream_usage and "stream_options" in fields:
        unwanted.add("stream_options")
    renamed: dict[str, str] = {}
    if (known := quirks.max_tokens_field) is not None:
        for other in (name for name in _OUTPUT_FIELDS if name != known and name in fields):
            if known in fields:
                unwanted.add(other)
            else:
                renamed[other] = known
    if not unwanted and not renamed:
        return fields
    return {renamed.get(name, name): raw for name, raw in fields.items() if name not in unwanted}


def _developer_to_system(messages: Sequence[bytes]) -> Sequence[bytes]:
    roles = [_head(raw).role for raw in messages]
    if "developer" not in roles:
        return messages
    return [
        orjson.dumps({**orjson.loads(raw), "role": "system"}) if role == "developer" else raw
        for raw, role in zip(messages, roles, strict=True)
    ]


def _merge_same_role(messages: Sequence[bytes]) -> Sequence[bytes]:
    merged = [group[0] if len(group) == 1 else _merged(group) for group in _neighbours(messages)]
    return messages if len(merged) == len(messages) else merged


def _neighbours(messages: Sequence[bytes]) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    joined_as: str | None = None
    for raw in messages:
        role = _head(raw).merges_as
        if group and (role is None or role != joined_as):
            yield group
            group = []
        group.append(raw)
        joined_as = role
    if group:
        yield group


def _merged(group: Sequence[bytes]) -> bytes:
    """Neighbours as one message: the fields of all, the first one's where they differ, except for a `name` that not
    all bear."""
    bodies = [orjson.loads(raw) for raw in group]
    message: dict[str, Any] = {}
    for body in reversed(bodies):
        message.update(body)
    message["content"] = _joined_content([body.get("content") for body in bodies])
    if len({body.get("name") for body in bodies}) > 1:
        message.pop("name", None)
    return orjson.dumps(message)


def _joined_content(contents: Sequence[Any]) -> Any:
    """Texts joined by a blank line; once one of them is a list of parts, a list of all parts."""
    spoken = [content for content in contents if content]
    if all(isinstance(content, str) for content in spoken):
        return "\n\n".join(spoken)
    parts: list[Any] = []
    for content in spoken:
        parts.extend(content if isinstance(content, list) else [{"type": "text", "text": content}])
    return parts
