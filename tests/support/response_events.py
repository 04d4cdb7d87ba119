"""Checks the events of a Responses stream against one another: order, numbers, indexes, and texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

TERMINAL_TYPES: Final = {"response.completed", "response.incomplete", "response.failed"}
LIFECYCLE_TYPES: Final = {"response.created", "response.queued", "response.in_progress", *TERMINAL_TYPES}
TEXT_KEYS: Final = {
    "response.output_text": "text",
    "response.refusal": "refusal",
    "response.reasoning_text": "text",
    "response.reasoning_summary_text": "text",
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
    "response.mcp_call_arguments": "arguments",
    "response.code_interpreter_call_code": "code",
}
"""Events of texts that grow, without `.delta` and `.done`, and the field of the done event that has the whole text."""
IDENTITY_FIELDS: Final = ("type", "id", "call_id")
CALL_FIELDS: Final = ("arguments", "input", "code")
PART_LISTS: Final = (
    ("response.content_part.", "content_index", "content"),
    ("response.reasoning_summary_part.", "summary_index", "summary"),
)


def read_events(frames: bytes) -> list[dict[str, Any]]:
    """Reads the frames of a stream. Each has an `event:` line that names the type of its data; comments and events of
    other names are left out."""
    assert frames.endswith(b"\n\n") or not frames
    events = []
    for frame in frames.split(b"\n\n")[:-1]:
        if frame.startswith(b":"):
            continue
        name_line, data_line = frame.split(b"\n")
        assert (name_line[:7], data_line[:6]) == (b"event: ", b"data: "), frame
        data = orjson.loads(data_line[6:])
        assert data["type"] == name_line[7:].decode()
        if data["type"].startswith("response.") or data["type"] == "error":
            events.append(data)
    return events


def check_event_order(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Checks the events of one response, from `response.created` to its end, and returns its items.

    A failed response may have items that were not done. An item that broke off must not be done: a client would run
    its call, and then run it again after the retry.

    Raises:
        AssertionError: an event stands in the wrong place, or says something else than those before it.
    """
    assert events, "no events"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created"
    assert sum(event["type"] == "response.created" for event in events) == 1
    assert events[-1]["type"] in TERMINAL_TYPES
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    statuses = {event["response"]["status"] for event in events[:-1] if "response" in event}
    assert statuses <= {"in_progress", "queued"}
    terminal = events[-1]["response"]
    assert events[-1]["type"] == f"response.{terminal['status']}"
    items = _ItemChecker()
    for event in events[1:-1]:
        if event["type"] in LIFECYCLE_TYPES:
            assert event["type"] not in TERMINAL_TYPES, "an event follows the end"
            assert not items.added, "a lifecycle event stands between items"
        else:
            items.check_event(event)
    output: list[dict[str, Any]] = terminal["output"]
    assert {index: item for index, item in enumerate(output) if index in items.done} == items.done
    if terminal["status"] == "failed":
        assert all(item.get("status", "completed") == "completed" for item in items.done.values()), "it broke off"
    else:
        assert sorted(items.done) == list(range(len(output))), "an item was not done"
    return output


class _ItemChecker:
    """Follows the items of a stream."""

    def __init__(self) -> None:
        self.added: list[Mapping[str, Any]] = []
        self.done: dict[int, dict[str, Any]] = {}
        self._parts: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
        self._done_parts: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
        self._texts: dict[tuple[int, str, int], str] = {}
        self._done_texts: dict[tuple[int, str, int], str] = {}

    def check_event(self, event: Mapping[str, Any]) -> None:
        kind, index = event["type"], event["output_index"]
        if kind == "response.output_item.added":
            assert index == len(self.added), "items begin in the order of their indexes"
            self.added.append(event["item"])
            return
        assert index in set(range(len(self.added))) - set(self.done), f"{kind} outside of its item"
        if kind == "response.output_item.done":
            self._check_done_item(index, event["item"])
            return
        assert event["item_id"] == self.added[index]["id"]
        for prefix, index_name, _ in PART_LISTS:
            if kind.startswith(prefix):
                self._check_part(index, event[index_name], prefix, kind.removeprefix(prefix), event["part"])
                return
        name, _, step = kind.rpartition(".")
        if name in TEXT_KEYS:
            self._check_text(index, event, name, step)

    def _check_part(self, index: int, part_index: int, prefix: str, step: str, part: Mapping[str, Any]) -> None:
        begun, done = self._parts.setdefault((index, prefix), []), self._done_parts.setdefault((index, prefix), [])
        if step == "added":
            assert part_index == len(begun) == len(done), "a part begins before the one before it is done"
            assert not part.get("text", part.get("refusal"))
            begun.append(part)
            return
        assert part_index == len(begun) - 1 == len(done), "a part is done that was not added"
        assert part["type"] == begun[-1]["type"]
        text = part.get("text", part.get("refusal"))
        names = [name for at, name, number in self._done_texts if at == index and number == part_index]
        assert text in [self._done_texts[index, name, part_index] for name in names]
        done.append(part)

    def _check_text(self, index: int, event: Mapping[str, Any], name: str, step: str) -> None:
        part_index = event.get("content_index", event.get("summary_index", 0))
        for prefix, index_name, _ in PART_LISTS:
            if index_name in event:
                begun, done = self._parts.get((index, prefix), []), self._done_parts.get((index, prefix), [])
                assert part_index == len(begun) - 1 == len(done), "a text outside of its part"
        key = (index, name, part_index)
        assert key not in self._done_texts, "a text goes on after it was done"
        if step == "delta":
            assert event["delta"], "an empty delta"
            self._texts[key] = self._texts.get(key, "") + event["delta"]
        elif step == "done":
            text = event[TEXT_KEYS[name]]
            assert text == self._texts.get(key, ""), "a text differs from its deltas"
            self._done_texts[key] = text
        if name == "response.output_text" and step in ("delta", "done"):
            assert isinstance(event["logprobs"], list)

    def _check_done_item(self, index: int, item: dict[str, Any]) -> None:
        added = self.added[index]
        assert [item.get(name) for name in IDENTITY_FIELDS] == [added.get(name) for name in IDENTITY_FIELDS]
        for prefix, _, list_name in PART_LISTS:
            if (index, prefix) in self._parts:
                assert item[list_name] == self._done_parts[index, prefix], "the item differs from its parts"
        if item["type"] == "function_call":
            assert (index, "response.function_call_arguments", 0) in self._done_texts
        for text in self._list_call_texts(index):
            assert text in [item.get(name) for name in CALL_FIELDS], "the call differs from its text"
        assert set(self._texts) - set(self._done_texts) == {key for key in self._texts if key[0] != index} - set(
            self._done_texts
        ), "a text was not done before its item"
        self.done[index] = item

    def _list_call_texts(self, index: int) -> Iterator[str]:
        for (at, name, _), text in self._done_texts.items():
            if at == index and TEXT_KEYS[name] in CALL_FIELDS:
                yield text
