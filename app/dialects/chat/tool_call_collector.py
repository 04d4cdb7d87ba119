"""Joins the stream fragments of tool calls, however a provider cuts them. Pure.

OpenAI sends id and name once, then argument fragments under the call's `index`. Others repeat id and name in each
fragment, leave `index` out, send each call whole, give several calls index 0, leave the id empty, or invent a new id
for each fragment. A fragment begins a new call only if it has a name and the call that it would continue cannot take
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from app.dialects.chat.stream_frames import encode_chunk


class ToolCallCollector:
    """Collects the calls of one message, in order."""

    __slots__ = ("_calls", "_latest_by_index")

    def __init__(self) -> None:
        self._calls: list[PartialToolCall] = []
        self._latest_by_index: dict[int, PartialToolCall] = {}

    def add_fragment(self, fragment: Mapping[str, Any]) -> None:
        """Adds one element of a delta's `tool_calls`."""
        index = _parse_call_index(fragment.get("index"))
        call = self._find_continued_call(index, fragment)
        if call is None:
            call = PartialToolCall(index)
            self._calls.append(call)
        if index is not None:
            self._latest_by_index[index] = call
        call.merge_fragment(fragment)

    @property
    def partial_calls(self) -> Sequence[PartialToolCall]:
        """The calls as far as they have come, in order of their beginnings."""
        return self._calls

    def build_calls(self) -> list[dict[str, Any]]:
        """Returns the calls as a client would send them back, by index."""
        calls = self._calls
        # Without an index for each, the order of beginnings is all there is.
        if all(call.index is not None for call in calls):
            calls = sorted(calls, key=lambda call: call.index or 0)
        return [call.to_json() for call in calls]

    def _find_continued_call(self, index: int | None, fragment: Mapping[str, Any]) -> PartialToolCall | None:
        """Returns the call that a fragment continues; None if it begins one."""
        if index is not None:
            call = self._latest_by_index.get(index)
        else:
            call = self._find_call_by_id(fragment.get("id")) or (self._calls[-1] if self._calls else None)
        return call if call is not None and call.can_take(fragment) else None

    def _find_call_by_id(self, call_id: object) -> PartialToolCall | None:
        if not call_id:
            return None
        return next((call for call in reversed(self._calls) if call.id == call_id), None)


class PartialToolCall:
    """A call as far as it has come."""

    __slots__ = ("argument_pieces", "id", "index", "name", "other_fields")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id: str | None = None
        self.name = ""
        self.argument_pieces: list[str] = []
        self.other_fields: dict[str, Any] = {}
        """Other fields of the call, such as `extra_content` with a thought signature, or `custom`."""

    def can_take(self, fragment: Mapping[str, Any]) -> bool:
        function = fragment.get("function") or fragment.get("custom")
        if not isinstance(function, dict):
            return True
        name, own_name = function.get("name"), self.name or self.other_fields.get("custom", {}).get("name")
        # Only a fragment with a name can begin a call.
        if not name or not own_name:
            return True
        call_id = fragment.get("id")
        # Two ids decide, unless ids are missing.
        if call_id and self.id:
            return bool(call_id == self.id)
        # An id is missing. It is a new call if the arguments so far are complete and the fragment has another name, or
        # begins arguments anew.
        return not (
            self._has_complete_arguments() and (name != self.name or _starts_json_object(function.get("arguments")))
        )

    def merge_fragment(self, fragment: Mapping[str, Any]) -> None:
        call_id = fragment.get("id")
        if isinstance(call_id, str) and not self.id:
            self.id = call_id
        function = fragment.get("function")
        if isinstance(function, dict):
            self._merge_function(function)
        for key, value in fragment.items():
            if key not in ("index", "id", "function", "custom") and value is not None:
                self.other_fields[key] = merge_json(self.other_fields.get(key), value)
        custom = fragment.get("custom")
        if isinstance(custom, dict):
            known = self.other_fields.get("custom", {})
            self.other_fields["custom"] = {
                **known,
                **custom,
                "input": known.get("input", "") + (more if isinstance(more := custom.get("input"), str) else ""),
            }

    def to_json(self) -> dict[str, Any]:
        call: dict[str, Any] = {"id": self.id if self.id is not None else "", "type": "function", **self.other_fields}
        if call["type"] == "function":
            function = {
                **self.other_fields.get("function", {}),
                "name": self.name,
                "arguments": "".join(self.argument_pieces),
            }
            call["function"] = function
        return call

    def _merge_function(self, function: Mapping[str, Any]) -> None:
        name = function.get("name")
        # A name may come in pieces, or be repeated with each fragment.
        if isinstance(name, str) and name != self.name:
            self.name += name
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            self.argument_pieces.append(arguments)
        elif arguments is not None:
            self.argument_pieces.append(encode_chunk(arguments).decode())
        rest = {key: value for key, value in function.items() if key not in ("name", "arguments") and value is not None}
        if rest:
            self.other_fields["function"] = merge_json(self.other_fields.get("function"), rest)

    def _has_complete_arguments(self) -> bool:
        try:
            orjson.loads("".join(self.argument_pieces))
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
