"""Between a client and a provider of one protocol, only the fields that the protocol's table lists change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from app.dialects.chat.stream_splicer import SPLICED_FIELDS as CHAT_FIELDS
from app.dialects.chat.stream_splicer import ChatStreamSplicer
from app.dialects.responses.stream_splicer import SPLICED_FIELDS as RESPONSES_FIELDS
from app.dialects.sse import DONE_DATA, SseDecoder, SseEvent
from app.dialects.stream_relay import RelayOptions
from tests.dialects.answer_corpus import CHAT_STREAMS, RESPONSES_STREAMS
from tests.dialects.responses.streams import RelayedStream

FIELDS = b'"context_status":"full","conversation_id":"conv_1"'
LAST_FIELDS = FIELDS + b',"context":{}'
Path = tuple[str, ...]


def find_changes(before: Any, after: Any, path: Path = ()) -> Iterator[Path]:
    """The places at which two JSON values differ. The elements of a list have no place of their own."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before.keys() | after.keys():
            if name not in before or name not in after:
                yield (*path, name)
            else:
                yield from find_changes(before[name], after[name], (*path, name))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for one, other in zip(before, after, strict=True):
            yield from find_changes(one, other, path)
    elif before != after:
        yield path


def list_bodies(events: Sequence[SseEvent]) -> list[dict[str, Any]]:
    bodies = [json.loads(event.data) for event in events if event.data and event.data.strip() != DONE_DATA]
    return [body[0] if isinstance(body, list) else body for body in bodies]


def cut(pieces: Sequence[Any]) -> list[SseEvent]:
    return SseDecoder().feed(b"".join(piece for piece in pieces if isinstance(piece, bytes)))


def is_whole(pieces: Sequence[Any]) -> bool:
    """Whether every event is JSON, none is an error, and nothing breaks off."""
    text = b"".join(piece for piece in pieces if isinstance(piece, bytes))
    return not any(word in text for word in (b'"error":{', b"event: error", b"<html>", b'"output_index":"x"'))


@pytest.mark.parametrize("name", [name for name, pieces in CHAT_STREAMS.items() if is_whole(pieces)])
def test_chunks_of_chat_providers_change_where_the_table_says(name: str) -> None:
    splicer = ChatStreamSplicer(RelayOptions(FIELDS, lambda _: LAST_FIELDS, "m", True))
    events = cut(CHAT_STREAMS[name])
    frames = splicer.relay_events(events)
    splicer.record_stream_end()
    after = list_bodies(SseDecoder().feed(frames + splicer.render_end()))
    changes = {path for one, other in zip(list_bodies(events), after, strict=True) for path in find_changes(one, other)}
    assert changes <= CHAT_FIELDS
    assert after == [] or ("context_status",) in changes


@pytest.mark.parametrize(
    "name", [name for name, pieces in RESPONSES_STREAMS.items() if is_whole(pieces) and name != "half surrogates"]
)
def test_events_of_responses_providers_change_where_the_table_says(name: str) -> None:
    pieces = [piece for piece in RESPONSES_STREAMS[name] if isinstance(piece, bytes)]
    before = [body for body in list_bodies(cut(pieces)) if body.get("type")]
    relayed = RelayedStream(pieces, protocol="responses")
    after = list_bodies(SseDecoder().feed(relayed.frames))
    changes: set[Path] = set()
    # A stream that breaks off gets ends of our own.
    for one, other in zip(before, after, strict=False):
        if one["type"] == other["type"]:
            changes |= set(find_changes(one, other))
    assert changes <= RESPONSES_FIELDS
