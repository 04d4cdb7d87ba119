"""Rounds told as one answer: what is hidden, what is not, and what a client's decoder makes of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.answer_events import AnswerValue, CallBegin, CallText, Finish, Text, Usage
from app.dialects.chat.stream_decoder import ChatStreamDecoder
from app.dialects.chat.stream_encoder import ChatStreamEncoder, encode_completion
from app.dialects.search_rounds import JoinedEvents, RoundJoiner, assign_call_ids
from app.dialects.search_tool import TOOL_NAME
from app.dialects.sse import DONE_DATA, SseEvent
from app.errors import UpstreamUnavailable

SEARCH = {"id": "c", "type": "function", "function": {"name": TOOL_NAME, "arguments": '{"query": "x"}'}}
WEATHER = {"id": "w", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
TEXTS = st.lists(st.text(max_size=8), max_size=4)
NAMES = st.sampled_from([TOOL_NAME, TOOL_NAME, "r", "recall", "recall_conversation_v2", "recall_", "weather", "recap"])
ARGUMENTS = st.dictionaries(st.sampled_from(["query", "a"]), st.text(max_size=9), min_size=1).map(json.dumps)
CALLS = st.lists(st.tuples(NAMES, ARGUMENTS), max_size=5)


def event(delta: dict[str, Any], reason: str | None = None, **fields: Any) -> SseEvent:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return SseEvent(
        b"", json.dumps({"id": "first", "created": 7, "model": "m", "choices": [choice], **fields}).encode()
    )


def calls_event(*fragments: dict[str, Any]) -> SseEvent:
    return event({"tool_calls": list(fragments)})


def usage(prompt_tokens: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt_tokens, "prompt_tokens_details": {"cached_tokens": 1}}


def round_of(texts: Sequence[str], call: dict[str, Any] | None, *, ends_with_text: bool = False) -> list[SseEvent]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": text} for text in texts)]
    if call is not None:
        deltas.append({"tool_calls": [{**call, "index": 0}]})
    if ends_with_text and texts:
        deltas.append({"content": "."})
        return [*map(event, deltas[:-1]), event(deltas[-1], "tool_calls" if call else "stop")]
    return [*map(event, deltas), event({}, "tool_calls" if call else "stop")]


class Client:
    """What a client of Chat Completions gets of joined rounds."""

    def __init__(self, joiner: RoundJoiner) -> None:
        self.joiner = joiner
        self.encoder, self.seen = ChatStreamEncoder(), ChatStreamDecoder()

    def take(self, joined: JoinedEvents | Sequence[AnswerValue]) -> None:
        passed, values = (joined, joined.values) if isinstance(joined, JoinedEvents) else ((), joined)
        for chunk in [*(one.data or b"" for one in passed), *map(self.encoder.encode, values)]:
            if chunk and chunk != DONE_DATA:
                self.seen.add_chunk(chunk)

    def read(self, events: Sequence[SseEvent]) -> None:
        for one in events:
            self.take(self.joiner.join_events([one]))


def joiner(*, may_pass: bool = False, is_last_round: bool = False) -> RoundJoiner:
    return RoundJoiner(ChatStreamDecoder(), is_same_protocol=may_pass, is_last_round=is_last_round)


@given(st.lists(TEXTS, min_size=1, max_size=4), st.booleans(), st.booleans())
def test_the_clients_answer_is_the_texts_of_all_rounds(
    rounds: list[list[str]], ends_with_text: bool, may_pass: bool
) -> None:
    client, spoken = Client(joiner(may_pass=may_pass)), ""
    for number, texts in enumerate(rounds):
        last = number == len(rounds) - 1
        client.read(round_of(texts, None if last else SEARCH, ends_with_text=ends_with_text))
        spoken += "".join(texts) + ("." if ends_with_text and texts else "")
        assert bool(client.joiner.search_calls) != last
        assert client.seen.is_complete == last
        if not last:
            client.joiner.begin_round(ChatStreamDecoder(), is_last_round=False)
    assert (client.seen.build_message()["content"] or "") == spoken
    assert "tool_calls" not in client.seen.build_message()


@given(TEXTS)
def test_an_answer_without_our_calls_is_the_events_that_came(texts: list[str]) -> None:
    events = [*round_of(texts, WEATHER), event({}, usage=usage(3), choices=[]), SseEvent(b"", DONE_DATA)]
    joined = joiner(may_pass=True).join_events(events)
    assert list(joined) == events
    assert not joined.values


@given(TEXTS)
def test_events_pass_up_to_the_first_piece_of_our_call(texts: list[str]) -> None:
    *before, call, _ = round_of(texts, SEARCH)
    joined = joiner(may_pass=True).join_events([*before, call])
    assert list(joined) == before
    assert not any(isinstance(value, CallBegin | CallText | Text) for value in joined.values)


def test_what_a_round_says_after_its_end_is_not_told_but_its_usage_counts() -> None:
    client = Client(joiner())
    client.read([*round_of([], SEARCH), event({}, choices=[], usage=usage(5))])
    assert client.seen.usage is None
    assert client.joiner.reported_usages == [usage(5)]
    client.joiner.begin_round(ChatStreamDecoder(), is_last_round=False)
    client.read([*round_of(["a"], None), event({}, choices=[], usage=usage(6), id="other")])
    assert client.seen.usage == {"prompt_tokens": 11, "prompt_tokens_details": {"cached_tokens": 2}}
    assert client.seen.id == "first"
    assert b'"created":7' in client.encoder.encode(Text("a"))


def test_usage_is_told_once_however_it_comes() -> None:
    told = joiner()
    events = [event({"content": "a"}, usage=usage(5)), event({}, "stop", usage=usage(6))]
    values = told.join_events(events).values
    assert [value.counts for value in values if isinstance(value, Usage)] == [usage(6)]


def test_groqs_usage_is_summed_too() -> None:
    client = Client(joiner())
    client.read([event({"tool_calls": [{**SEARCH, "index": 0}]}, "tool_calls", x_groq={"usage": usage(5)})])
    client.joiner.begin_round(ChatStreamDecoder(), is_last_round=False)
    client.read([event({"content": "a"}, "stop", x_groq={"usage": usage(6)})])
    assert (client.seen.usage or {})["prompt_tokens"] == 11


def test_an_answer_that_cannot_be_gone_on_with_is_ended() -> None:
    client = Client(joiner())
    client.read([calls_event({**SEARCH, "index": 0}), event({}, "tool_calls"), event({}, choices=[], usage=usage(5))])
    client.take(client.joiner.cut_off())
    assert (client.seen.finish, client.seen.usage, client.seen.id) == ("length", usage(5), "first")


def whole(content: str | None, *calls: dict[str, Any], reason: str = "tool_calls", **fields: Any) -> bytes:
    message = {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {})}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return json.dumps({"id": "x", "choices": [choice], "usage": usage(4), **fields}).encode()


def read_whole(told: RoundJoiner | None, body: bytes, *, last: bool = False) -> tuple[RoundJoiner, list[AnswerValue]]:
    decoder = ChatStreamDecoder()
    decoder.add_whole(body)
    if told is None:
        told = RoundJoiner(decoder, is_same_protocol=True, may_pass=False, is_last_round=last)
    else:
        told.begin_round(decoder, is_last_round=last)
    return told, told.join_values(decoder.decode_whole(body))


def test_a_whole_answer_without_our_calls_hides_nothing() -> None:
    told, _ = read_whole(None, whole(" a ", WEATHER))
    assert not told.has_hidden
    assert told.search_calls == []


def test_whole_rounds_are_joined() -> None:
    told, first = read_whole(None, whole("One. ", SEARCH))
    assert told.search_calls == [SEARCH]
    _, second = read_whole(told, whole("Two.", SEARCH, WEATHER, id="y"))
    body = json.loads(encode_completion([*first, *second]))
    message = {"role": "assistant", "content": "One. Two.", "refusal": None, "tool_calls": [WEATHER]}
    assert body["choices"][0]["message"] == message
    assert (body["id"], body["usage"]["prompt_tokens"]) == ("x", 8)


def test_a_call_in_the_last_round_is_taken_out() -> None:
    told, values = read_whole(None, whole("One.", SEARCH), last=True)
    assert told.search_calls == []
    assert [value for value in values if isinstance(value, CallBegin | Finish)] == [Finish("stop")]


def test_calls_without_ids_get_one_each() -> None:
    calls = assign_call_ids([{**SEARCH, "id": ""}, {**SEARCH, "id": "c"}, {**SEARCH, "id": "c"}])
    assert len({call["id"] for call in calls}) == 3
    assert all(call["id"] for call in calls)


def test_a_call_of_the_clients_that_stays_without_arguments_is_told_at_the_end() -> None:
    client = Client(joiner(may_pass=True))
    theirs = {"id": "t", "type": "function", "function": {"name": "recall", "arguments": ""}}
    client.read([calls_event({**theirs, "index": 0})])
    assert client.seen.chunk_count == 0
    client.read([event({}, "tool_calls")])
    assert client.seen.build_message()["tool_calls"] == [theirs]
    assert client.joiner.search_calls == []


def test_the_error_names_whose_round_is_broken() -> None:
    told = joiner()
    told.begin_round(ChatStreamDecoder("provider/model"), is_last_round=True)
    with pytest.raises(UpstreamUnavailable, match="'provider/model'"):
        told.join_events([SseEvent(b"", b"{")])


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


@given(streams(), st.booleans())
def test_every_call_goes_to_its_owner_whole(
    found: tuple[list[dict[str, Any]], list[list[dict[str, Any]]]], may_pass: bool
) -> None:
    calls, deltas = found
    client = Client(joiner(may_pass=may_pass))
    client.read([*(calls_event(*delta) for delta in deltas), event({}, "tool_calls")])
    own = [call for call in calls if call["function"]["name"] == TOOL_NAME]
    others = [call for call in calls if call["function"]["name"] != TOOL_NAME]
    shown = client.seen.build_message().get("tool_calls", [])
    assert sorted(shown, key=lambda call: str(call["id"])) == others
    assert client.joiner.search_calls == ([] if others else own)


@given(streams())
def test_what_the_client_sees_is_numbered_without_gaps(
    found: tuple[list[dict[str, Any]], list[list[dict[str, Any]]]],
) -> None:
    calls, deltas = found
    told = joiner()
    values = told.join_events([*(calls_event(*delta) for delta in deltas), event({}, "tool_calls")]).values
    others = [call for call in calls if call["function"]["name"] != TOOL_NAME]
    assert [value.call for value in values if isinstance(value, CallBegin)] == list(range(len(others)))


def test_a_custom_tool_of_our_name_is_the_clients() -> None:
    custom = {"index": 0, "id": "d", "type": "custom", "custom": {"name": TOOL_NAME, "input": "x"}}
    told = joiner(may_pass=True)
    assert list(told.join_events([calls_event(custom)])) != []
    assert not told.has_hidden


def test_several_calls_under_one_number_stay_apart() -> None:
    def make(name: str, call_id: str) -> dict[str, Any]:
        return {**SEARCH, "index": 0, "id": call_id, "function": {"name": name, "arguments": '{"query": "x"}'}}

    told = joiner(may_pass=True)
    joined = told.join_events([calls_event(make(*one)) for one in (("a", "1"), (TOOL_NAME, "2"), ("b", "3"))])
    begun = [(value.call, value.id) for value in joined.values if isinstance(value, CallBegin)]
    assert len(joined) == 1
    assert begun == [(1, "3")]
