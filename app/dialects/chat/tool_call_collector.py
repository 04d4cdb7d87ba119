"""Joins the stream fragments of tool calls, however a provider cuts them. Pure.

OpenAI sends id and name once, then argument fragments under the call's `index`. Others repeat id and name in each
fragment, leave `index` out, send each call whole, give several calls index 0 or one id, leave the id empty, or invent a
new id for each fragment. A fragment begins a new call only if it has a name and the call that it would continue cannot
take it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from app.dialects.provider_json import encode_json

TEXT_FIELDS: Final = {"function": "arguments", "custom": "input"}
"""The field of a call with what the tool is called with, by the kind of the call."""


class ToolCallCollector:
    """Collects the calls of one message.

    Attributes:
        calls: as far as they have come, in order of their beginnings.
    """

    def __init__(self) -> None:
        self.calls: list[PartialToolCall] = []
        self._latest_by_index: dict[int, PartialToolCall] = {}

    def add_fragment(self, fragment: Mapping[str, Any]) -> None:
        """Adds one element of a delta's `tool_calls`."""
        index = _parse_call_index(fragment.get("index"))
        call = self._find_continued_call(index, fragment)
        if call is None:
            call = PartialToolCall(index)
            self.calls.append(call)
        if index is not None:
            self._latest_by_index[index] = call
        call.merge_fragment(fragment)

    def build_calls(self) -> list[dict[str, Any]]:
        """Returns the calls as a client would send them back, by index."""
        calls = self.calls
        # Without an index for each, the order of beginnings is all there is.
        if all(call.index is not None for call in calls):
            calls = sorted(calls, key=lambda call: call.index or 0)
        return [call.to_json() for call in calls]

    def _find_continued_call(self, index: int | None, fragment: Mapping[str, Any]) -> PartialToolCall | None:
        """Returns the call that a fragment continues; None if it begins one."""
        if index is not None:
            call = self._latest_by_index.get(index)
        else:
            named = [call for call in self.calls if call.id and call.id == fragment.get("id")]
            call = next(reversed(named or self.calls), None)
        return call if call is not None and call.can_take(fragment) else None


class PartialToolCall:
    """A call as far as it has come.

    Attributes:
        text_pieces: of the arguments, or of the input of a custom tool.
        other_fields: other fields of the call, such as `extra_content` with a thought signature.
    """

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id: str | None = None
        self.name = ""
        self.text_pieces: list[str] = []
        self.other_fields: dict[str, Any] = {}
        self._has_custom = False

    @property
    def is_custom(self) -> bool:
        return self._has_custom or self.other_fields.get("type") == "custom"

    def can_take(self, fragment: Mapping[str, Any]) -> bool:
        called = fragment.get("function") or fragment.get("custom")
        if not isinstance(called, dict):
            return True
        name = called.get("name")
        # Only a fragment with a name can begin a call.
        if not name or not self.name:
            return True
        call_id = fragment.get("id")
        if call_id and self.id and call_id != self.id:
            return False
        # An id is missing, or both are equal, as of a provider that gives several calls one id. It is a new call if the
        # arguments so far are complete and the fragment has another name, or begins arguments anew. The input of a
        # custom tool does not tell when it is complete.
        return (
            self.is_custom
            or not self._has_complete_arguments()
            or (name == self.name and not _starts_json_object(called.get("arguments")))
        )

    def merge_fragment(self, fragment: Mapping[str, Any]) -> None:
        call_id = fragment.get("id")
        if isinstance(call_id, str) and not self.id:
            self.id = call_id
        for key, value in fragment.items():
            if key in TEXT_FIELDS and isinstance(value, dict):
                self._has_custom = self._has_custom or key == "custom"
                self._merge_called(key, value)
            elif key not in ("index", "id", *TEXT_FIELDS) and value is not None:
                self.other_fields[key] = merge_json(self.other_fields.get(key), value)

    def to_json(self) -> dict[str, Any]:
        kind = "custom" if self.is_custom else "function"
        call: dict[str, Any] = {"id": self.id if self.id is not None else "", "type": kind, **self.other_fields}
        if call["type"] == kind:
            named = {"name": self.name, TEXT_FIELDS[kind]: "".join(self.text_pieces)}
            call[kind] = {**self.other_fields.get(kind, {}), **named}
        return call

    def _merge_called(self, kind: str, called: Mapping[str, Any]) -> None:
        name, text_field = called.get("name"), TEXT_FIELDS[kind]
        # A name may come in pieces, or be repeated with each fragment.
        if isinstance(name, str) and name != self.name:
            self.name += name
        text = called.get(text_field)
        if text is not None:
            self.text_pieces.append(text if isinstance(text, str) else encode_json(text).decode())
        rest = {key: value for key, value in called.items() if key not in ("name", text_field) and value is not None}
        if rest:
            self.other_fields[kind] = merge_json(self.other_fields.get(kind), rest)

    def _has_complete_arguments(self) -> bool:
        try:
            orjson.loads("".join(self.text_pieces))
        except orjson.JSONDecodeError:
            return False
        return True


def merge_json(earlier: Any, later: Any) -> Any:
    """Merges a later value over an earlier one; objects keep members that the later one lacks."""
    if not isinstance(earlier, dict) or not isinstance(later, dict):
        return later
    return {
        **earlier,
        **{key: merge_json(earlier.get(key), value) for key, value in later.items() if value is not None},
    }


def _parse_call_index(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return int(value)
    except (ValueError, OverflowError):
        return None


def _starts_json_object(arguments: object) -> bool:
    return isinstance(arguments, dict) or (isinstance(arguments, str) and arguments.lstrip().startswith("{"))
