"""Rounds told as one answer: what is hidden, what is not, and what a client's collector makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.chat.round_merging import StreamRoundMerger, WholeRoundMerger, assign_call_ids
from app.dialects.chat.stream_decoder import ChatStreamDecoder
from app.dialects.search_tool import TOOL_NAME
from app.errors import UpstreamUnavailable

SEARCH = {"id": "c", "type": "function", "function": {"name": TOOL_NAME, "arguments": '{"query": "x"}'}}
WEATHER = {"id": "w", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
TEXTS = st.lists(st.text(max_size=8), max_size=4)


def event(delta: dict[str, Any], reason: str | None = None, **fields: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return json.dumps({"id": "first", "created": 7, "model": "m", "choices": [choice], **fields}).encode()


def usage(prompt_tokens: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt_tokens, "prompt_tokens_details": {"cached_tokens": 1}}


def round_of(texts: list[str], call: dict[str, Any] | None, *, ends_with_text: bool) -> list[bytes]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": text} for text in texts)]
    if call is not None:
        deltas.append({"tool_calls": [{**call, "index": 0}]})
    if ends_with_text and texts:
        deltas.append({"content": "."})
        return [*(event(delta) for delta in deltas[:-1]), event(deltas[-1], "tool_calls" if call else "stop")]
    return [*(event(delta) for delta in deltas), event({}, "tool_calls" if call else "stop")]


@given(st.lists(TEXTS, min_size=1, max_size=4), st.booleans())
def test_the_clients_answer_is_the_texts_of_all_rounds(rounds: list[list[str]], ends_with_text: bool) -> None:
    told, seen, spoken = StreamRoundMerger(), ChatStreamDecoder(), ""
    for number, texts in enumerate(rounds):
        last = number == len(rounds) - 1
        for data in round_of(texts, None if last else SEARCH, ends_with_text=ends_with_text):
            shown = told.rewrite_chunk(data)
            if shown is not None:
                seen.add_chunk(shown)
        spoken += "".join(texts) + ("." if ends_with_text and texts else "")
        assert bool(told.search_calls) != last
        assert seen.is_complete == last
        if not last:
            told.begin_round(is_last_round=False)
    assert (seen.build_message()["content"] or "") == spoken
    assert "tool_calls" not in seen.build_message()


@given(TEXTS)
def test_an_answer_without_our_calls_is_the_objects_that_came(texts: list[str]) -> None:
    told = StreamRoundMerger()
    events = [*round_of(texts, WEATHER, ends_with_text=False), event({}, usage=usage(3), choices=[])]
    assert all(told.rewrite_chunk(data) is data for data in events)


def test_what_a_round_says_after_its_end_is_not_told_but_its_usage_counts() -> None:
    told = StreamRoundMerger()
    for data in round_of([], SEARCH, ends_with_text=False):
        told.rewrite_chunk(data)
    assert told.rewrite_chunk(event({}, choices=[], usage=usage(5))) is None
    assert told.reported_usages == [usage(5)]
    told.begin_round(is_last_round=False)
    seen = ChatStreamDecoder()
    for data in [*round_of(["a"], None, ends_with_text=False), event({}, choices=[], usage=usage(6), id="other")]:
        shown = told.rewrite_chunk(data)
        assert shown is not None
        seen.add_chunk(shown)
    assert seen.usage == {"prompt_tokens": 11, "prompt_tokens_details": {"cached_tokens": 2}}
    assert seen.id == "first"


def test_groqs_usage_is_summed_too() -> None:
    told = StreamRoundMerger()
    told.rewrite_chunk(event({"tool_calls": [{**SEARCH, "index": 0}]}, "tool_calls", x_groq={"usage": usage(5)}))
    told.begin_round(is_last_round=False)
    shown = told.rewrite_chunk(event({"content": "a"}, "stop", x_groq={"usage": usage(6)}))
    assert json.loads(shown or b"")["x_groq"]["usage"]["prompt_tokens"] == 11


def test_a_role_that_came_with_a_hidden_call_is_told_with_what_follows() -> None:
    told = StreamRoundMerger()
    assert (
        told.rewrite_chunk(event({"role": "assistant", "content": None, "tool_calls": [{**SEARCH, "index": 0}]}))
        is None
    )
    shown = told.rewrite_chunk(event({"tool_calls": [{**WEATHER, "index": 1}]}))
    assert json.loads(shown or b"")["choices"][0]["delta"] == {
        "role": "assistant",
        "tool_calls": [{**WEATHER, "index": 0}],
    }


def test_an_answer_that_cannot_be_gone_on_with_is_ended() -> None:
    told = StreamRoundMerger()
    told.rewrite_chunk(event({"tool_calls": [{**SEARCH, "index": 0}]}, "tool_calls"))
    told.rewrite_chunk(event({}, choices=[], usage=usage(5)))
    seen = ChatStreamDecoder()
    for frame in told.render_cut_off_end():
        seen.add_chunk(frame.removeprefix(b"data: "))
    assert (seen.finish, seen.usage, seen.id) == ("length", usage(5), "first")


def whole(content: str | None, *calls: dict[str, Any], reason: str = "stop", **fields: Any) -> bytes:
    message = {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {})}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return json.dumps({"id": "x", "choices": [choice], "usage": usage(4), **fields}).encode()


def added(told: WholeRoundMerger, body: bytes, *, last: bool = False) -> None:
    collector = ChatStreamDecoder()
    collector.add_whole(body)
    told.add_round(body, collector, is_last_round=last)


def test_a_whole_answer_without_our_calls_is_the_bytes_that_came() -> None:
    told = WholeRoundMerger()
    body = whole(" a ", WEATHER, reason="tool_calls")
    added(told, body)
    assert told.search_calls == []
    assert told.render_body() is body


def test_whole_rounds_are_joined() -> None:
    told = WholeRoundMerger()
    added(told, whole("One. ", SEARCH, reason="tool_calls"))
    assert told.search_calls == [SEARCH]
    added(told, whole("Two.", SEARCH, WEATHER, reason="tool_calls", id="y", vendor=1))
    body = json.loads(told.render_body())
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "One. Two.", "tool_calls": [WEATHER]}
    assert (body["id"], body["vendor"], body["usage"]["prompt_tokens"]) == ("x", 1, 8)


def test_a_call_in_the_last_round_is_taken_out_of_a_whole_answer() -> None:
    told = WholeRoundMerger()
    added(told, whole("One.", SEARCH, reason="tool_calls"), last=True)
    assert told.search_calls == []
    (choice,) = json.loads(told.render_body())["choices"]
    assert choice == {"index": 0, "message": {"role": "assistant", "content": "One."}, "finish_reason": "stop"}


def test_calls_without_ids_get_one_each() -> None:
    calls = assign_call_ids([{**SEARCH, "id": ""}, {**SEARCH, "id": "c"}, {**SEARCH, "id": "c"}])
    assert len({call["id"] for call in calls}) == 3
    assert all(call["id"] for call in calls)


def test_a_call_of_the_clients_that_stays_without_arguments_is_told_at_the_end() -> None:
    told = StreamRoundMerger()
    theirs = {"id": "t", "type": "function", "function": {"name": "recall", "arguments": ""}}
    assert told.rewrite_chunk(event({"tool_calls": [{**theirs, "index": 0}]})) is None
    shown = json.loads(told.rewrite_chunk(event({}, "tool_calls")) or b"")
    assert shown["choices"][0] == {
        "index": 0,
        "delta": {"tool_calls": [{**theirs, "index": 0}]},
        "finish_reason": "tool_calls",
    }
    assert told.search_calls == []


def test_usage_beside_the_end_of_a_round_in_between_is_kept_back() -> None:
    told = StreamRoundMerger()
    last_words = event({"content": "a", "tool_calls": [{**SEARCH, "index": 0}]}, "tool_calls", usage=usage(5))
    shown = json.loads(told.rewrite_chunk(last_words) or b"")
    assert "usage" not in shown
    assert shown["choices"] == [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]
    assert told.reported_usages == [usage(5)]


def test_the_error_names_whose_round_is_broken() -> None:
    told = StreamRoundMerger("provider/model")
    told.begin_round(is_last_round=True)
    with pytest.raises(UpstreamUnavailable, match="'provider/model'"):
        told.rewrite_chunk(b"{")
