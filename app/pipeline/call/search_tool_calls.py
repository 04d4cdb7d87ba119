"""Tells the gateway's own tool calls from the client's while they come in fragments. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from app.pipeline.call.search_tool import RECALL
from app.upstream.protocols.tool_call_deltas import ToolCalls


class CallSplitter:
    """The tool calls of one streamed message. A call is held back until its name tells whose it is.

    The client's calls get numbers without gaps as soon as one is held back before them; until then their fragments are
    the objects that came.
    """

    __slots__ = ("_calls", "_merged")

    def __init__(self) -> None:
        self._merged = ToolCalls()
        self._calls: list[_Call] = []

    @property
    def own(self) -> list[dict[str, Any]]:
        """The gateway's, in order, as far as they have come."""
        calls = enumerate(self._calls)
        return [self._merged.call(number) for number, call in calls if self._owner(number, call) == "own"]

    @property
    def has_others(self) -> bool:
        """Whether the client has been given a call."""
        return any(call.released for call in self._calls)

    def visible(self, fragments: list[Any]) -> list[Any]:
        """What the client is to see of a delta's `tool_calls`."""
        shown: list[Any] = []
        for fragment in fragments:
            if not isinstance(fragment, dict):
                shown.append(fragment)
                continue
            number = self._merged.add(fragment)
            if number == len(self._calls):
                self._calls.append(_Call())
            shown += self._taken(number, fragment)
        return shown

    def settled(self) -> list[Any]:
        """At the end of the message: the client's calls whose names could still have become ours."""
        held = [number for number, call in enumerate(self._calls) if not call.released]
        return [self._release(number) for number in held if self._merged.name_of(number) != RECALL]

    def _taken(self, number: int, fragment: dict[str, Any]) -> list[Any]:
        call = self._calls[number]
        if call.released:
            return [_numbered(fragment, call.index)]
        call.held.append(fragment)
        call.has_arguments = call.has_arguments or _has_arguments(fragment)
        call.is_function = call.is_function and "custom" not in fragment
        return [self._release(number)] if self._owner(number, call) == "client" else []

    def _owner(self, number: int, call: _Call) -> Literal["own", "client", "open"]:
        name = self._merged.name_of(number)
        if name == RECALL:
            return "own"
        may_become_ours = RECALL.startswith(name) and not (name and call.has_arguments)
        return "open" if may_become_ours and call.is_function and not call.released else "client"

    def _release(self, number: int) -> dict[str, Any]:
        """The beginning of a client's call."""
        call = self._calls[number]
        if any(not earlier.released for earlier in self._calls[:number]) or self._is_renumbered:
            call.index = sum(one.released for one in self._calls)
        call.released = True
        begun = call.held[0] if len(call.held) == 1 else {**_index_of(call.held[0]), **self._merged.call(number)}
        call.held.clear()
        return _numbered(begun, call.index)

    @property
    def _is_renumbered(self) -> bool:
        return any(call.index is not None for call in self._calls)


class _Call:
    __slots__ = ("has_arguments", "held", "index", "is_function", "released")

    def __init__(self) -> None:
        self.held: list[dict[str, Any]] = []
        self.has_arguments = False
        self.is_function = True
        self.released = False
        self.index: int | None = None
        """Its new `index`; None where it keeps the one that it has."""


def _numbered(fragment: dict[str, Any], index: int | None) -> dict[str, Any]:
    return fragment if index is None or fragment.get("index") == index else {**fragment, "index": index}


def _index_of(fragment: Mapping[str, Any]) -> dict[str, Any]:
    return {"index": fragment["index"]} if "index" in fragment else {}


def _has_arguments(fragment: Mapping[str, Any]) -> bool:
    function = fragment.get("function")
    return isinstance(function, dict) and bool(function.get("arguments"))
