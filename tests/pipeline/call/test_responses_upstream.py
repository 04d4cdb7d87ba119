"""A client of the Responses API in front of a provider that speaks it, too: items keep their bytes, the state is the
gateway's, encrypted reasoning stays between the gateway and the provider unless the client asks for it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from app.api.responses_request_parser import ResponsesRequestParser
from app.pipeline.call.upstream_request_body import build_upstream_body
from app.pipeline.turn.chat_request import Caller
from app.upstream.protocols.responses_provider import ResponsesProvider
from app.upstream.provider_contract import ModelDeployment
from tests.live import Reply
from tests.support.response_events import read_events
from tests.support.responses_upstream import (
    ENCRYPTED_INCLUDE,
    ResponsesUpstream,
    ScriptedResponse,
    build_events,
    build_response,
    function_call_item,
    number_events,
    reasoning_item,
    render_event,
    respond,
    text_item,
    web_search_item,
)
from tests.support.responses_world import call_output, message, responses_world, sent_items

FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
EITHER = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ODD_ITEMS = [
    b'{ "type" : "message","role":"user" ,"content" : [ {"type":"input_text", "text":"K\\u00f6ln"} ], "x_n":1.50 }',
    b'{"id":"rs_a","type":"reasoning",  "summary":[], "encrypted_content":"sealed" }',
    b'{"type":"function_call","id":"fc_a","call_id":"c1","name":"look","arguments":"{ \\"a\\" :1}","x_later":null}',
    b'{"type":"x_future_call","id":"xf_a","payload":{"b":[1,2 ,3]}}',
    b'{"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"42"}]}',
    b'{"role":"user","content":"And now?"}',
]


def read_raw(body: bytes, name: str) -> bytes:
    """The JSON text of a member of an object."""
    return bytes(msgspec.json.decode(body, type=dict[str, msgspec.Raw])[name])


def read_raw_items(body: bytes, name: str = "input") -> list[bytes]:
    return [bytes(raw) for raw in msgspec.json.decode(read_raw(body, name), type=list[msgspec.Raw])]


@EITHER
async def test_items_reach_the_provider_with_their_bytes(stream: bool) -> None:
    upstream = ResponsesUpstream()
    built = build_response(respond("Fine."), {"model": "m"}, "resp_1", [{"id": "msg_1", **text_item("Fine.")}], 5)
    events = [render_event(event) for event in number_events(build_events(built, respond("Fine.")))]
    upstream.replies = [Reply(pieces=events) if stream else Reply(built)]  # the scripted checks know no x_future_call
    async with responses_world(upstream) as w:
        await w.respond_either(
            b"[ " + b" ,\n".join(ODD_ITEMS) + b"]",
            stream=stream,
            instructions="Be brief.",
            metadata={"topic": "demo"},
            tools=[FUNCTION],
        )
    body = upstream.bodies[0]
    assert read_raw_items(body) == ODD_ITEMS
    assert read_raw(body, "instructions") == b'"Be brief."'
    sent = json.loads(body)
    assert (sent["store"], sent["include"], sent["tools"]) == (False, [ENCRYPTED_INCLUDE], [FUNCTION])
    assert not {"previous_response_id", "conversation", "context", "conversation_id", "truncation"} & sent.keys()


@EITHER
@pytest.mark.parametrize("way", ["previous_response_id", "conversation", "item_reference"])
async def test_our_state_is_expanded_for_the_provider(stream: bool, way: str) -> None:
    upstream = ResponsesUpstream(
        respond(reasoning_item("I must look."), function_call_item("look", "{}", "c1")), respond("It is 42.")
    )
    async with responses_world(upstream) as w:
        first = await w.respond_either("What is it?", stream=stream, instructions="Be brief.", tools=[FUNCTION])
        given: list[dict[str, Any]] = [call_output("c1")]
        fields: dict[str, Any] = {"instructions": "Be very brief.", "tools": [FUNCTION]}
        if way == "previous_response_id":
            fields[way] = first["id"]
        elif way == "conversation":
            fields[way] = first["conversation_id"]
        else:
            references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
            given = [message("What is it?"), *references, call_output("c1")]
        second = await w.respond_either(given, stream=stream, **fields)
        assert len(w.conversations()) == 1
    assert upstream.refusals == []
    assert second["output"][0]["content"][0]["text"] == "It is 42."
    assert [item["type"] for item in sent_items(upstream)] == [
        *("message", "reasoning", "function_call", "function_call_output")
    ]
    reasoning = sent_items(upstream)[1]
    assert reasoning["encrypted_content"] in upstream.issued_secrets
    assert upstream.requests[-1]["instructions"] == "Be very brief."
    assert not {"previous_response_id", "conversation"} & upstream.requests[-1].keys()


@EITHER
async def test_a_later_turn_repeats_the_answer_with_the_provider_s_bytes(stream: bool) -> None:
    upstream = ResponsesUpstream(
        respond(reasoning_item("Hm."), web_search_item("q"), text_item("Here.", x_later=[1, 2]))
    )
    async with responses_world(upstream) as w:
        first = await w.respond_either("Find it.", stream=stream, tools=[{"type": "web_search"}])
        (_, answer) = await w.raw_log()
        await w.respond_either("Go on.", stream=stream, previous_response_id=first["id"])
    assert upstream.refusals == []
    assert read_raw_items(upstream.bodies[1])[1:4] == read_raw_items(b'{"input":' + answer + b"}")
    assert sent_items(upstream)[3]["x_later"] == [1, 2]


@EITHER
@pytest.mark.parametrize("asks", [False, True], ids=["hidden", "asked for"])
async def test_encrypted_reasoning_is_hidden_unless_asked_for_and_sent_again(stream: bool, asks: bool) -> None:
    upstream = ResponsesUpstream(respond(reasoning_item("Hm."), "First."), respond("Second."))
    include: dict[str, Any] = {"include": [ENCRYPTED_INCLUDE]} if asks else {}
    async with responses_world(upstream) as w:
        answer = await w.ask("One", stream=stream, **include)
        (secret,) = upstream.issued_secrets
        shown = read_events(answer.content) if stream else [{"response": answer.json()}]
        holding = [event for event in shown if secret in json.dumps(event)]
        assert len(holding) == ((2 if stream else 1) if asks else 0)
        first = shown[-1]["response"]
        assert [item["type"] for item in first["output"]] == ["reasoning", "message"]
        assert secret not in json.dumps(await w.read_response(first["id"]))
        assert secret in json.dumps(await w.read_response(first["id"], **{"include[]": ENCRYPTED_INCLUDE}))
        await w.respond_either("Two", stream=stream, previous_response_id=first["id"])
        assert upstream.refusals == []
        # A client that resends what it has got sends a reasoning without its content. The log's own is sent.
        third = [message("One"), *first["output"], message("Two"), message("Second.", "assistant"), message("Three")]
        await w.respond_either(third, stream=stream)
        assert len(w.conversations()) == 1
    assert upstream.refusals == []
    for number in (1, 2):
        assert sent_items(upstream, number)[1]["encrypted_content"] == secret


async def test_a_bare_id_of_a_stranger_is_not_sent() -> None:
    upstream = ResponsesUpstream()
    given = [
        message("One"),
        {"type": "reasoning", "id": "rs_of_another", "summary": []},
        {"type": "message", "role": "assistant", "id": "msg_x", "content": [{"type": "output_text", "text": "First."}]},
        message("Two"),
    ]
    async with responses_world(upstream) as w:
        await w.respond(given)
    assert upstream.refusals == []
    assert "rs_of_another" not in upstream.bodies[0].decode()


async def test_events_are_relayed_byte_for_byte() -> None:
    upstream = ResponsesUpstream()
    answer = respond(
        text_item(
            "Two words here", {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 3}
        ),
        function_call_item("look", '{"a": 1}', "c1"),
    )
    items = [{"id": f"msg_{index}", **item} for index, item in enumerate(answer.items)]
    built = build_response(answer, {"model": "m"}, "resp_1", items, 5)
    pieces = [
        # No spaces after the colons in some, and a member that nobody knows.
        b"event: %b\ndata: %b\n\n"
        % (event["type"].encode(), json.dumps({**event, "x_later": 1.5}, separators=(", ", " : ")).encode())
        for event in number_events(build_events(built, answer))
    ]
    upstream.replies = [Reply(pieces=pieces)]
    async with responses_world(upstream) as w:
        got = await w.ask("Hi", stream=True, tools=[FUNCTION])
    frames = got.content.split(b"\n\n")[:-1]
    assert [frame + b"\n\n" for frame in frames[2:-1]] == pieces[2:-1]


@EITHER
async def test_what_the_client_gets_is_named_by_the_gateway(stream: bool) -> None:
    upstream = ResponsesUpstream(respond(reasoning_item("Hm."), "Fine.", fields={"x_vendor": {"kept": True}}))
    async with responses_world(upstream) as w:
        got = await w.respond_either(
            "Hi there, friend", stream=stream, store=True, metadata={"a": "b"}, truncation="auto"
        )
        stored = await w.read_response(got["id"])
    assert got["id"].startswith("resp_")
    assert got["id"] != f"resp_{1:048x}"
    assert (got["store"], got["metadata"], got["truncation"]) == (True, {"a": "b"}, "auto")
    assert got["x_vendor"] == {"kept": True}
    assert (got["context_status"], got["context"]["warnings"]) == ("full", [])
    assert stored["output"] == got["output"]
    assert stored["usage"] == got["usage"]
    assert got["usage"]["output_tokens_details"]["reasoning_tokens"] == 3
    assert got["usage"]["input_tokens_details"]["cached_tokens"] > 0


SUMMARIZER_WORDS = "All of it is material to be summarized."


def summarize_or_answer(body: dict[str, Any]) -> ScriptedResponse:
    if SUMMARIZER_WORDS in json.dumps(body["input"]):
        return respond("They spoke about item0n0 and value1.")
    return respond(reasoning_item("Think about it."), "Fine.")


def long_items(turns: int, words: int = 60) -> list[dict[str, Any]]:
    return [
        item
        for turn in range(turns)
        for item in (
            message(f"Question {turn}: " + " ".join(f"item{turn}n{word}" for word in range(words))),
            message(f"Answer {turn}.", "assistant"),
        )
    ]


@EITHER
async def test_a_compacted_view_has_its_summary_in_front_and_keeps_reasoning_with_its_call(stream: bool) -> None:
    upstream = ResponsesUpstream(
        respond(reasoning_item("I look."), function_call_item("look", "{}", "c1")), default=summarize_or_answer
    )
    async with responses_world(upstream, window=4096) as w:
        fields: dict[str, Any] = {"stream": stream, "tools": [FUNCTION], "instructions": "Be brief."}
        first = await w.respond_either([*long_items(9, 80), message("What is it?")], **fields)
        given = [call_output("c1", " ".join(f"value{number}" for number in range(900)))]
        second = await w.respond_either(given, previous_response_id=first["id"], **fields)
        third = await w.respond_either(long_items(4)[:-1], previous_response_id=second["id"], **fields)
    assert upstream.refusals == []
    assert [one["context_status"] for one in (first, second, third)] == ["full", "summarized", "summarized"]
    views = [body for body in upstream.requests if SUMMARIZER_WORDS not in json.dumps(body["input"])]
    for view in views[1:]:
        assert view["instructions"] == "Be brief."
        assert "They spoke about item0n0 and value1." in json.dumps(view["input"][0])
        kinds = [item["type"] for item in view["input"]]
        for index, kind in enumerate(kinds):
            if kind == "reasoning":
                assert kinds[index + 1] in ("function_call", "message")
    assert [item["type"] for item in views[1]["input"][-3:]] == ["reasoning", "function_call", "function_call_output"]


async def test_the_answer_s_limit_is_lowered_when_it_would_not_fit() -> None:
    upstream = ResponsesUpstream(default=summarize_or_answer)
    async with responses_world(upstream, window=4096) as w:
        got = await w.respond([*long_items(9), message("Now?")], max_output_tokens=3500)
    sent = upstream.requests[-1]["max_output_tokens"]
    assert 16 <= sent < 3500
    assert got["max_output_tokens"] == 3500
    assert f"to {sent} tokens" in " ".join(got["context"]["warnings"])


@pytest.mark.parametrize(("asked", "lowered", "sent"), [(None, 3, 16), (400, 3, 16), (400, 90, 90), (9, 3, 9)])
def test_a_lowered_limit_is_not_below_what_the_provider_accepts(asked: int | None, lowered: int, sent: int) -> None:
    parser = ResponsesRequestParser(keeps_context=True, now=lambda: datetime.now(UTC), random_bytes=bytes)
    fields = {"model": "m", "input": "Hi"} | ({} if asked is None else {"max_output_tokens": asked})
    request = parser.parse(json.dumps(fields).encode(), {}, Caller(tenant="t"), "req_1")
    deployment = ModelDeployment(ResponsesProvider("p", "http://provider.test/v1"), "m")
    assert json.loads(build_upstream_body(request, None, deployment, lowered).body)["max_output_tokens"] == sent
