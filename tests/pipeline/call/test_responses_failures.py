"""Failures of providers of the Responses API, for clients of either protocol: overflows are recovered, and everything
else is told in the client's protocol."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.live import DONE, DROP, Reply, ScriptedUpstream
from tests.support.gateway import user
from tests.support.raw_http import long_talk
from tests.support.response_events import check_event_order, read_events
from tests.support.response_types import validate_event
from tests.support.responses_upstream import (
    ResponsesUpstream,
    ScriptedResponse,
    build_events,
    build_response,
    number_events,
    reasoning_item,
    render_event,
    respond,
    text_item,
)
from tests.support.responses_world import ResponsesWorld, message, responses_world

EITHER = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
IN_STREAM = pytest.mark.parametrize("fails_in_stream", [False, True], ids=["status 400", "in the stream"])
SUMMARIZER_WORDS = "All of it is material to be summarized."
OVERFLOW = "context_length_exceeded"


def summarize_or_answer(body: dict[str, Any]) -> ScriptedResponse:
    is_summary = SUMMARIZER_WORDS in json.dumps(body["input"])
    return respond("They spoke about lockers.") if is_summary else respond(reasoning_item("Hm."), "Fine.")


def talk_items(turns: int) -> list[dict[str, Any]]:
    return [message(one["content"], one["role"]) for one in long_talk(turns)]


def event_pieces(*items: dict[str, Any]) -> list[bytes]:
    """The events of a stream, one by one."""
    answer = respond(*items)
    output = [{"id": f"msg_{index}", **item} for index, item in enumerate(answer.items)]
    built = build_response(answer, {"model": "m"}, "resp_1", output, 50)
    return [render_event(event) for event in number_events(build_events(built, answer))]


async def read_failed_stream(w: ResponsesWorld, given: Any, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream that ends with `response.failed`."""
    answer = await w.ask(given, stream=True, **fields)
    assert answer.status_code == 200, answer.text
    events = read_events(answer.content)
    check_event_order(events)
    for event in events:
        validate_event(event)
    assert events[-1]["type"] == "response.failed"
    return events


@EITHER
@IN_STREAM
async def test_an_overflow_is_recovered_by_a_smaller_view(streamed: bool, fails_in_stream: bool) -> None:
    upstream = ResponsesUpstream(default=summarize_or_answer, window=6000, fails_in_stream=fails_in_stream)
    async with responses_world(upstream, window=32_768) as w:
        got = await w.respond_either(talk_items(40), stream=streamed)
    assert got["context"]["recovered"]
    assert [one["code"] for one in upstream.refusals][:1] == [OVERFLOW] * (not (streamed and fails_in_stream))
    sizes = [len(body) for body in upstream.bodies]
    assert sizes[-1] < sizes[0] / 2


@EITHER
@IN_STREAM
async def test_an_overflow_is_recovered_for_a_chat_client(streamed: bool, fails_in_stream: bool) -> None:
    upstream = ResponsesUpstream(default=summarize_or_answer, window=6000, fails_in_stream=fails_in_stream)
    async with responses_world(upstream, window=32_768) as w:
        answer = await w.post(long_talk(40), stream=streamed)
    assert answer.status_code == 200, answer.text
    assert "Fine." in answer.text
    assert [one["code"] for one in upstream.refusals][:1] == [OVERFLOW] * (not (streamed and fails_in_stream))


@EITHER
@IN_STREAM
async def test_an_overflow_that_cannot_be_recovered_is_told_by_its_code(streamed: bool, fails_in_stream: bool) -> None:
    upstream = ResponsesUpstream(window=10, fails_in_stream=fails_in_stream)
    async with responses_world(upstream) as w:
        answer = await w.ask("A question of more than ten tokens " * 5, stream=streamed)
        # Nothing was sent to the client, so the status can tell it.
        assert answer.status_code >= 400
        assert answer.json()["error"]["code"] == OVERFLOW
        chat = await w.post([user("A question of more than ten tokens " * 5)], stream=streamed)
        assert chat.status_code >= 400
        assert chat.json()["error"]["code"] == OVERFLOW
        assert w.conversations() == []


async def test_an_overflow_after_the_stream_has_begun_is_a_failed_response() -> None:
    """A compaction ran, so the client has events; the provider refuses every view."""
    upstream = ResponsesUpstream(default=summarize_or_answer)
    refusing = Reply(
        {"error": {"message": "Too long.", "type": "invalid_request_error", "param": "input", "code": OVERFLOW}}, 400
    )

    def answer_summaries_only(body: dict[str, Any]) -> Reply:
        return Reply(upstream._reply(body).body) if SUMMARIZER_WORDS in json.dumps(body["input"]) else refusing

    upstream.default = answer_summaries_only
    async with responses_world(upstream) as w:
        events = await read_failed_stream(w, talk_items(40))
    assert events[-1]["response"]["error"]["code"] == OVERFLOW
    assert any("context_event" in event for event in events)


@EITHER
async def test_the_gateway_s_own_refusal_has_the_same_code(streamed: bool) -> None:
    upstream = ResponsesUpstream()
    async with responses_world(upstream, window=1024) as w:
        answer = await w.ask("word " * 9000, stream=streamed)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == OVERFLOW
    assert upstream.requests == []


@EITHER
@pytest.mark.parametrize(
    ("status", "code"), [(429, "rate_limit_exceeded"), (500, "server_error"), (401, "invalid_api_key")]
)
async def test_an_error_of_the_provider_reaches_the_client(streamed: bool, status: int, code: str) -> None:
    error = {"error": {"message": "No.", "type": "some_error", "param": None, "code": code}}
    upstream = ResponsesUpstream()
    upstream.default = lambda body: Reply(error, status)
    async with responses_world(upstream, retries={"attempts": 1}) as w:
        answer = await w.ask("Hi", stream=streamed)
        assert w.conversations() == []
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@EITHER
async def test_a_busy_provider_is_asked_again(streamed: bool) -> None:
    busy = Reply({"error": {"message": "Slow down.", "type": "rate_limit", "code": "rate_limit_exceeded"}}, 429)
    upstream = ResponsesUpstream(busy, respond("Fine."))
    async with responses_world(upstream) as w:
        got = await w.respond_either("Hi", stream=streamed)
    assert got["output"][0]["content"][0]["text"] == "Fine."
    assert len(upstream.requests) == 2


CUTS: dict[str, Sequence[Any]] = {
    "without response.completed": event_pieces(text_item("Two words here"))[:-1],
    "in the middle of a text": event_pieces(text_item("Two words here"))[:6],
    "by the connection": [*event_pieces(text_item("Two words here"))[:6], DROP],
    "by garbage": [*event_pieces(text_item("Two words here"))[:6], b"data: {garbage\n\n"],
    "by [DONE] alone": [*event_pieces(text_item("Two words here"))[:6], DONE],
}


@pytest.mark.parametrize("pieces", CUTS.values(), ids=CUTS)
async def test_a_stream_without_its_end_is_a_failed_response(pieces: Sequence[Any]) -> None:
    upstream = ResponsesUpstream(respond("Again."))
    upstream.replies = [Reply(pieces=pieces)]
    async with responses_world(upstream) as w:
        events = await read_failed_stream(w, "Hi")
        failed = events[-1]["response"]
        assert failed["error"]["code"] == "server_error"
        assert failed["output"][0]["content"][0]["text"].startswith("Two")
        # What has come is stored as incomplete, and the client can go on.
        again = await w.respond_streamed("Hi")
        assert again[-1]["response"]["output"][0]["content"][0]["text"] == "Again."


@pytest.mark.parametrize("pieces", CUTS.values(), ids=CUTS)
async def test_a_chat_client_learns_of_a_stream_without_its_end(pieces: Sequence[Any]) -> None:
    upstream = ResponsesUpstream()
    upstream.replies = [Reply(pieces=pieces)]
    async with responses_world(upstream) as w:
        answer = await w.post([user("Hi")], stream=True)
    assert answer.status_code == 200
    assert '"error"' in answer.text
    assert '"finish_reason":"stop"' not in answer.text


EMPTY_STREAMS: dict[str, Reply] = {
    "a whole body": Reply(
        build_response(respond("Fine."), {"model": "m"}, "resp_1", [{"id": "msg_1", **text_item("Fine.")}], 5)
    ),
    "a chat completion": Reply(
        {
            "id": "c",
            "object": "chat.completion",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}}],
        }
    ),
    "a page": Reply(b"<html>Welcome</html>", headers={"content-type": "text/html"}),
    "an empty body": Reply(b""),
    "an empty stream": Reply(pieces=[]),
    "chat chunks": Reply(
        pieces=[b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"x"}}]}\n\n', DONE]
    ),
    "only the beginning": Reply(pieces=event_pieces(text_item("Two words here"))[:2]),
}


@pytest.mark.parametrize("reply", EMPTY_STREAMS.values(), ids=EMPTY_STREAMS)
@pytest.mark.parametrize("protocol", ["responses", "chat"])
async def test_what_is_no_stream_of_the_responses_api_is_an_http_error(protocol: str, reply: Reply) -> None:
    upstream = ResponsesUpstream()
    upstream.default = lambda body: reply
    async with responses_world(upstream) as w:
        asked = w.ask("Hi", stream=True) if protocol == "responses" else w.post([user("Hi")], stream=True)
        answer = await asked
        assert w.conversations() == []
    assert answer.status_code == 502, answer.text
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "reply",
    [Reply(b"<html>"), Reply(b""), Reply({"choices": []}), Reply({"object": "response", "output": None}), Reply([])],
    ids=["a page", "nothing", "a chat completion", "no output", "a list"],
)
async def test_a_whole_reply_that_is_no_response_is_an_http_error(reply: Reply) -> None:
    upstream = ResponsesUpstream()
    upstream.default = lambda body: reply
    async with responses_world(upstream) as w:
        answer = await w.ask("Hi")
        assert w.conversations() == []
    assert answer.status_code == 502, answer.text


async def test_a_response_that_failed_is_an_error_with_its_words() -> None:
    upstream = ResponsesUpstream(respond(error={"code": "server_error", "message": "It broke."}))
    async with responses_world(upstream) as w:
        answer = await w.ask("Hi")
    assert answer.status_code == 502
    assert answer.json()["error"]["message"] == "It broke."


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(pieces=[b"data: garbage\n\n"]), "not JSON"),
        (
            Reply(pieces=[b'event: error\ndata: {"type":"error","code":"server_error","message":"It broke."}\n\n']),
            "It broke.",
        ),
    ],
    ids=["garbage", "error"],
)
async def test_a_stream_that_begins_with_a_failure_is_a_failed_response(reply: Reply, words: str) -> None:
    upstream = ResponsesUpstream()
    upstream.default = lambda body: reply
    async with responses_world(upstream) as w:
        (*_, failed) = await read_failed_stream(w, "Hi")
        assert w.conversations() == []
    assert failed["response"]["error"]["code"] == "server_error"
    assert words in failed["response"]["error"]["message"]


async def test_a_response_that_fails_after_it_began_has_what_has_come() -> None:
    upstream = ResponsesUpstream(respond("Two words", error={"code": "rate_limit_exceeded", "message": "Slow down."}))
    async with responses_world(upstream) as w:
        events = await read_failed_stream(w, "Hi")
    assert events[-1]["response"]["error"] == {"code": "rate_limit_exceeded", "message": "Slow down."}
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Two words"


@EITHER
@pytest.mark.parametrize(
    "usage",
    [None, {}, {"input_tokens": -5, "output_tokens": 1}, {"input_tokens": "many"}, {"input_tokens": 3.5}, [], "x"],
    ids=str,
)
async def test_an_answer_with_unusable_usage_is_delivered(streamed: bool, usage: Any) -> None:
    upstream = ResponsesUpstream(respond("Fine.", fields={"usage": usage}))
    async with responses_world(upstream) as w:
        answer = await w.ask("Hi", stream=streamed)
        assert answer.status_code == 200
        got = read_events(answer.content)[-1]["response"] if streamed else answer.json()
        assert got["output"][0]["content"][0]["text"] == "Fine."
        assert len(await w.raw_log()) == 2


async def test_a_silent_provider_times_out() -> None:
    upstream = ResponsesUpstream()
    upstream.default = lambda body: Reply(pieces=[*event_pieces(text_item("Two words here"))[:6], 30])
    async with responses_world(upstream, provider_options={"timeouts": {"between_bytes_seconds": 0.2}}) as w:
        events = await read_failed_stream(w, "Hi")
    assert events[-1]["response"]["error"]["code"] == "server_error"


async def test_a_fallback_of_another_protocol_answers() -> None:
    native = ResponsesUpstream()
    native.default = lambda body: Reply({"error": {"message": "Down.", "code": "server_error"}}, 503)
    models = {"m": {"deployments": [{"provider": "upstream"}, {"provider": "second"}], "context_window": 8192}}
    async with responses_world(native, ScriptedUpstream(), models=models, retries={"attempts": 1}) as w:
        got = await w.respond("Hi", tools=[{"type": "web_search"}])
    assert got["output"][0]["content"][0]["text"] == "Fine."
    assert "web_search" in " ".join(got["context"]["warnings"])
