"""Whose call is it? Told while the calls come in fragments, however they are cut."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.dialects.chat.round_merging import ToolCallSplitter
from app.dialects.chat.tool_call_collector import ToolCallCollector
from app.dialects.search_tool import TOOL_NAME

NAMES = st.sampled_from([TOOL_NAME, TOOL_NAME, "r", "recall", "recall_conversation_v2", "recall_", "weather", "recap"])
ARGUMENTS = st.dictionaries(st.sampled_from(["query", "a"]), st.text(max_size=9), min_size=1).map(json.dumps)
CALLS = st.lists(st.tuples(NAMES, ARGUMENTS), max_size=5)


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    """A text in pieces."""
    places = sorted(draw(st.sets(st.integers(1, len(text) - 1), max_size=4))) if len(text) > 1 else []
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """Calls, and the deltas that they come in: fragments of a call in order, calls interleaved or not."""
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(draw(CALLS))
    ]
    queues = []
    for index, call in enumerate(calls):
        function: Any = call["function"]
        queue: list[dict[str, Any]] = [{"index": index, "id": call["id"], "type": "function"}]
        queue += [{"index": index, "function": {"name": piece}} for piece in draw(cut(function["name"]))]
        queue += [{"index": index, "function": {"arguments": piece}} for piece in draw(cut(function["arguments"]))]
        queues.append(queue)
    in_turn = draw(st.booleans())
    begun = 0
    deltas: list[list[dict[str, Any]]] = []
    while any(queues):
        waiting = [at for at, queue in enumerate(queues) if queue and at <= begun]
        at = waiting[0] if in_turn else draw(st.sampled_from(waiting))
        begun = max(begun, at + 1)
        fragment = queues[at].pop(0)
        joins: bool = draw(st.booleans())
        if deltas and joins:
            deltas[-1].append(fragment)
        else:
            deltas.append([fragment])
    return calls, deltas


def merged(deltas: list[list[Any]]) -> list[dict[str, Any]]:
    calls = ToolCallCollector()
    for delta in deltas:
        for fragment in delta:
            calls.add_fragment(fragment)
    return calls.build_calls()


@given(streams())
def test_every_call_goes_to_its_owner_whole(found: tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]) -> None:
    calls, deltas = found
    splitter = ToolCallSplitter()
    shown = [*(splitter.select_visible_fragments(delta) for delta in deltas), splitter.release_pending_calls()]
    own = [call for call in calls if call["function"]["name"] == TOOL_NAME]
    others = [call for call in calls if call["function"]["name"] != TOOL_NAME]
    assert sorted(merged(shown), key=lambda call: str(call["id"])) == others
    assert splitter.search_calls == own
    assert splitter.has_client_calls == bool(others)


@given(streams())
def test_what_the_client_sees_is_numbered_without_gaps(
    found: tuple[list[dict[str, Any]], list[list[dict[str, Any]]]],
) -> None:
    calls, deltas = found
    splitter = ToolCallSplitter()
    shown = [
        fragment for delta in deltas for fragment in splitter.select_visible_fragments(delta)
    ] + splitter.release_pending_calls()
    others = [call for call in calls if call["function"]["name"] != TOOL_NAME]
    assert {fragment["index"] for fragment in shown} == set(range(len(others)))


def test_fragments_of_another_tool_are_passed_on_as_they_are() -> None:
    splitter = ToolCallSplitter()
    head = {"index": 0, "id": "c", "type": "function", "function": {"name": "weather", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": "{}"}}
    custom = {"index": 1, "id": "d", "type": "custom", "custom": {"name": "recall_conversation", "input": "x"}}
    (first,), (second,), (third,) = (splitter.select_visible_fragments([fragment]) for fragment in (head, more, custom))
    assert first is head
    assert second is more
    assert third is custom
    assert splitter.search_calls == []


def test_several_calls_under_one_number_stay_apart() -> None:
    def whole(name: str, call_id: str) -> dict[str, Any]:
        return {
            "index": 0,
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": '{"query": "x"}'},
        }

    splitter = ToolCallSplitter()
    shown = [
        splitter.select_visible_fragments([whole(name, call_id)])
        for name, call_id in (("a", "1"), (TOOL_NAME, "2"), ("b", "3"))
    ]
    assert [[(part["index"], part["id"]) for part in parts] for parts in shown] == [[(0, "1")], [], [(1, "3")]]
    assert [call["id"] for call in splitter.search_calls] == ["2"]
