"""The check of a stream's events notices each kind of disorder."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.dialects.responses.provider_streams import build_provider_events, text_item
from tests.support.response_events import check_event_order

Events = list[dict[str, Any]]
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": "completed"}


def find(events: Events, kind: str) -> dict[str, Any]:
    return next(event for event in events if event["type"] == f"response.{kind}")


def without(kind: str) -> Callable[[Events], object]:
    return lambda events: events.remove(find(events, kind))


def changed(kind: str, **fields: Any) -> Callable[[Events], object]:
    return lambda events: find(events, kind).update(fields)


def fail(events: Events, *, call_status: str) -> None:
    """Makes the end a failure that comes when the call has a status."""
    events[-1]["type"] = "response.failed"
    events[-1]["response"]["status"] = "failed"
    for item in (events[-2]["item"], events[-1]["response"]["output"][-1]):
        item["status"] = call_status


DISORDERS: dict[str, Callable[[Events], object]] = {
    "no beginning": without("created"),
    "two beginnings": lambda events: events.insert(1, events[0]),
    "no end": without("completed"),
    "an end in the middle": lambda events: events.insert(4, events[-1]),
    "progress between items": lambda events: events.insert(4, events[1]),
    "another id": changed("completed", response={"id": "resp_x", "status": "completed", "output": []}),
    "an item left out at the end": lambda events: events[-1]["response"]["output"].pop(),
    "an item not added": without("output_item.added"),
    "an item not done": without("output_item.done"),
    "a part not added": without("content_part.added"),
    "a part not done": without("content_part.done"),
    "a text not done": without("output_text.done"),
    "arguments not done": without("function_call_arguments.done"),
    "a delta left out": without("output_text.delta"),
    "an empty delta": changed("output_text.delta", delta=""),
    "another text": changed("output_text.done", text="other"),
    "another item": changed("output_text.delta", output_index=1),
    "another item id": changed("output_text.delta", item_id="other"),
    "another part": changed("output_text.delta", content_index=1),
    "no logprobs": changed("output_text.delta", logprobs=None),
    "a skipped index": changed("output_item.added", output_index=1),
    "an item done that broke off": lambda events: fail(events, call_status="incomplete"),
    "another status": changed("completed", type="response.failed"),
}


@pytest.mark.parametrize("renumbers", [True, False])
def test_events_in_order_pass_and_a_gap_in_the_numbers_does_not(renumbers: bool) -> None:
    _, events = build_provider_events([text_item("Hi"), CALL])
    if renumbers:
        assert [item["type"] for item in check_event_order(events)] == ["message", "function_call"]
        return
    events[3]["sequence_number"] = 7
    with pytest.raises(AssertionError):
        check_event_order(events)


@pytest.mark.parametrize("leaves_open", [True, False])
def test_a_failed_response_may_leave_an_item_open(leaves_open: bool) -> None:
    _, provided = build_provider_events([text_item("Hi"), CALL])
    events = copy.deepcopy(provided)
    fail(events, call_status="incomplete" if leaves_open else "completed")
    if leaves_open:
        del events[-2]
    check_event_order([dict(event, sequence_number=number) for number, event in enumerate(events)])


@pytest.mark.parametrize("name", DISORDERS)
def test_a_disorder_is_noticed(name: str) -> None:
    _, provided = build_provider_events([text_item("Hi"), CALL])
    events = copy.deepcopy(provided)
    DISORDERS[name](events)
    with pytest.raises((AssertionError, KeyError)):
        check_event_order([dict(event, sequence_number=number) for number, event in enumerate(events)])
