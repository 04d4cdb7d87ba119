"""Tool calls put together from their stream fragments, whichever way a provider cuts them. Pure.

OpenAI sends id and name once and then argument fragments under the call's `index`. Others repeat id and name in each
fragment, leave `index` out, send each call whole, give several calls index 0, leave the id empty, or invent a new id
for each fragment. A fragment begins a new call only if it has a name and the call it would continue cannot take it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson


class ToolCalls:
    """The calls of one message, in order."""

    __slots__ = ("_calls", "_latest")

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._latest: dict[int, _Call] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, fragment: Mapping[str, Any]) -> int:
        """Merge one element of a delta's `tool_calls`; returns which call it belongs to, counted as they began."""
        index = _whole_number(fragment.get("index"))
        call = self._continued(index, fragment)
        if call is None:
            call = _Call(index)
            self._calls.append(call)
        if index is not None:
            self._latest[index] = call
        call.merge(fragment)
        return next(at for at in range(len(self._calls) - 1, -1, -1) if self._calls[at] is call)

    def name_of(self, number: int) -> str:
        """The function's name as far as it has come; empty where the call is of another kind."""
        return self._calls[number].name

    def call(self, number: int) -> dict[str, Any]:
        """One call, counted as they began, as far as it has come."""
        return self._calls[number].as_dict()

    def as_list(self) -> list[dict[str, Any]]:
        """The calls as a client would send them back, by index."""
        calls = self._calls
        if all(call.index is not None for call in calls):
            calls = sorted(calls, key=lambda call: call.index or 0)
        return [call.as_dict() for call in calls]

    def _continued(self, index: int | None, fragment: Mapping[str, Any]) -> _Call | None:
        """The call that a fragment continues; None where it begins one."""
        if index is not None:
            call = self._latest.get(index)
        else:
            call = self._with_id(fragment.get("id")) or (self._calls[-1] if self._calls else None)
        return call if call is not None and call.takes(fragment) else None

    def _with_id(self, call_id: object) -> _Call | None:
        if not call_id:
            return None
        return next((call for call in reversed(self._calls) if call.id == call_id), None)


class _Call:
    __slots__ = ("arguments", "body", "id", "index", "name")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id: str | None = None
        self.name = ""
        self.arguments: list[str] = []
        self.body: dict[str, Any] = {}
        """Whatever else came with it, such as `extra_content` with a thought signature, or `custom`."""

    def takes(self, fragment: Mapping[str, Any]) -> bool:
        function = fragment.get("function")
        if not isinstance(function, dict):
            return True
        name = function.get("name")
        if not name or not self.name:
            return True
        call_id = fragment.get("id")
        if call_id and self.id:
            return bool(call_id == self.id)
        return not (self._is_whole() and (name != self.name or _begins_object(function.get("arguments"))))

    def merge(self, fragment: Mapping[str, Any]) -> None:
        call_id = fragment.get("id")
        if isinstance(call_id, str) and not self.id:
            self.id = call_id
        function = fragment.get("function")
        if isinstance(function, dict):
            self._merge_function(function)
        for key, value in fragment.items():
            if key not in ("index", "id", "function", "custom") and value is not None:
                self.body[key] = overlaid(self.body.get(key), value)
        custom = fragment.get("custom")
        if isinstance(custom, dict):
            known = self.body.get("custom", {})
            self.body["custom"] = {**known, **custom, "input": known.get("input", "") + (custom.get("input") or "")}

    def as_dict(self) -> dict[str, Any]:
        call: dict[str, Any] = {"id": self.id if self.id is not None else "", "type": "function", **self.body}
        if call["type"] == "function":
            function = {**self.body.get("function", {}), "name": self.name, "arguments": "".join(self.arguments)}
            call["function"] = function
        return call

    def _merge_function(self, function: Mapping[str, Any]) -> None:
        name = function.get("name")
        if isinstance(name, str) and name != self.name:
            self.name += name
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            self.arguments.append(arguments)
        elif arguments is not None:
            self.arguments.append(orjson.dumps(arguments).decode())
        rest = {key: value for key, value in function.items() if key not in ("name", "arguments") and value is not None}
        if rest:
            self.body["function"] = overlaid(self.body.get("function"), rest)

    def _is_whole(self) -> bool:
        try:
            orjson.loads("".join(self.arguments))
        except orjson.JSONDecodeError:
            return False
        return True


def overlaid(old: Any, new: Any) -> Any:
    """A later value over an earlier one; objects keep what the later one leaves out."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{key: overlaid(old.get(key), value) for key, value in new.items() if value is not None}}


def _whole_number(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return int(value)
    except (ValueError, OverflowError):
        return None


def _begins_object(arguments: object) -> bool:
    return isinstance(arguments, dict) or (isinstance(arguments, str) and arguments.lstrip().startswith("{"))
