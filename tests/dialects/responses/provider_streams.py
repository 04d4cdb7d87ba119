"""The stream of a Responses provider, event by event."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from app.dialects.responses.response_object import ResponseObject
from app.dialects.responses.stream_events import EventWriter, write_whole_item
from tests.support.response_events import read_events

Item = dict[str, Any]
PROVIDER_ID: Final = "resp_" + "f" * 48


def text_item(text: str) -> Item:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "role": "assistant", "content": [part], "status": "completed"}


def build_provider_events(
    items: Sequence[Item], *, interleaves: bool = False, **fields: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the provider's whole response object, and the events of its stream.

    Args:
        interleaves: whether the events of the items come in turns, as those of parallel calls may.
        fields: other values of the response object.
    """
    output = [{"id": f"item_{at}", **item} for at, item in enumerate(items)]
    begun = orjson.loads(
        ResponseObject(PROVIDER_ID, 1, {"model": b'"provider-model"'}).render(b"", status="in_progress")
    )
    usage: dict[str, Any] = {"input_tokens": 20, "output_tokens": 5, "total_tokens": 25}
    usage |= {"input_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 0}}
    usage |= {"output_tokens_details": {"reasoning_tokens": 3}}
    whole = {**begun, "status": "completed", "output": output, "usage": usage, "store": False, **fields}
    runs = [read_events(write_whole_item(item, at, EventWriter())) for at, item in enumerate(output)]
    of_items = list(_take_turns(runs)) if interleaves else list(itertools.chain(*runs))
    lifecycle = [
        {
            "type": f"response.{name}",
            "response": {**begun, **fields, "error": None, "incomplete_details": None, "status": "in_progress"},
        }
        for name in ("created", "in_progress")
    ]
    events = [*lifecycle, *of_items, {"type": f"response.{whole['status']}", "response": whole}]
    return whole, [{**event, "sequence_number": number} for number, event in enumerate(events)]


def render_event(event: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))


def _take_turns(runs: Sequence[list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    # An item begins after the one before it, as its index says.
    while any(runs):
        yield from [run.pop(0) for run in runs if run]
