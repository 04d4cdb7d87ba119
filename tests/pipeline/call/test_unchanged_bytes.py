"""What needs no change reaches the other side as the same bytes."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from tests.live import DONE, Reply, ScriptedUpstream, chunk, completion, stream
from tests.support.gateway import World, user, world
from tests.support.raw_http import chunks, frames, raw, without_ours

ODD_MESSAGES = rb"""[ {"content" : "h\u00e9\u0021 \ud83d\ude00 a\/b", "role":"user"  },
  {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"arguments":"{\"a\": 1.0}",
  "name":"f"}}],"x_vendor":{"deep":[1e300, 1.10, 123456789012345678901234567890, -0.0, 1E5]}},
  {"tool_call_id":"c1","role":"tool","content":"  {\"z\":1, \"a\":2}\n"},
	{"role":"user","name":"n","content":[{"type":"text","text":"x"},{"type":"x_unknown","y":[]}]} ]"""
ODD_REST = (
    b'"temperature":0.70, "top_p" : 1.0,"seed":18446744073709551617,"x_unknown":{"b":1,"a":[ ]},"logit_bias":{"5":-1}'
)


def body_of(*parts: bytes) -> bytes:
    return b"{ " + b",\n".join(parts) + b" }\n"


async def seen_upstream(body: bytes, headers: dict[str, str] | None = None) -> bytes:
    upstream = ScriptedUpstream()
    async with world(upstream) as w:
        answer = await raw(w, body, headers)
        assert answer.status_code == 200, answer.text
    return upstream.bodies[0]


async def test_a_body_with_nothing_of_ours_reaches_the_provider_as_the_same_bytes() -> None:
    body = body_of(b'"model" : "m"', b'"messages":' + ODD_MESSAGES, ODD_REST)
    assert await seen_upstream(body) == body


@pytest.mark.parametrize(
    "ours",
    [
        b'"conversation_id":"mine-1"',
        b'"conversation":{"id":"mine-1"}',
        b'"context":{"summarize":"auto"}',
        b'"metadata":{"conversation_id":"mine-1"}',
        b'"store":false',
        b'"stream":true',
        b'"stream":true,"stream_options":{"x_more":1}',
    ],
)
async def test_messages_and_unknown_fields_keep_their_bytes_when_our_fields_are_taken_out(ours: bytes) -> None:
    body = body_of(b'"model" : "m"', b'"messages":' + ODD_MESSAGES, ours, ODD_REST)
    sent = await seen_upstream(body, {"x-context-mode": "resend"})
    assert ODD_MESSAGES in sent
    for field in (b"18446744073709551617", b'{"b":1,"a":[ ]}', b"0.70"):
        assert field in sent
    kept = json.loads(sent)
    assert not kept.keys() & {"conversation_id", "conversation", "context", "metadata", "store"}
    if b"stream" in ours:
        assert kept["stream_options"]["include_usage"] is True
    if b"x_more" in ours:
        assert kept["stream_options"]["x_more"] == 1


async def test_metadata_of_the_clients_own_is_passed_on_without_our_id() -> None:
    body = body_of(
        b'"model":"m"', b'"messages":[{"role":"user","content":"x"}]', b'"metadata":{"a":"b","conversation_id":"c"}'
    )
    assert json.loads(await seen_upstream(body))["metadata"] == {"a": "b"}


async def test_a_stream_already_asked_for_with_usage_is_passed_on_as_it_came() -> None:
    fields = {"model": "m", "messages": [user("x")], "stream": True, "stream_options": {"include_usage": True}}
    sent = await seen_upstream(json.dumps(fields).encode())
    assert json.loads(sent) == fields


async def test_headers_for_the_provider_travel_on_and_those_for_us_do_not() -> None:
    upstream = ScriptedUpstream()
    sent = {"openai-organization": "org", "openai-beta": "b", "traceparent": "00-1", "x-context-mode": "stateless"}
    async with world(upstream) as w:
        await w.say([user("x")], headers={**sent, "x-conversation-id": "mine", "cookie": "a=b"})
    got = upstream.headers[0]
    assert (got["openai-organization"], got["openai-beta"], got["traceparent"]) == ("org", "b", "00-1")
    assert not {name for name in got if name.startswith("x-con")} | (got.keys() & {"cookie"})


async def test_a_whole_answer_differs_by_our_three_fields_only() -> None:
    body = rb"""{"id":"c-1" ,"object":"chat.completion","created":1,"model":"m","system_fingerprint":null,
"choices":[{"index":0,"message":{"content":"h\u00e9 1.0","role":"assistant","x":{"z":1,"a":12345678901234567890123}},
"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"total_tokens":2,"completion_tokens":1,"x_time":0.10}}
"""
    async with world(ScriptedUpstream(Reply(body))) as w:
        answer = await w.post([user("x")])
    assert answer.content.startswith(body.rstrip()[:-1])
    assert answer.json().keys() - json.loads(body).keys() == {"context_status", "conversation_id", "context"}


async def test_chunks_differ_by_our_fields_only() -> None:
    pieces = [
        chunk({"role": "assistant", "content": ""}, system_fingerprint=None),
        b'data: {"id":"c", "choices":[{"delta":{"content":"\\u00e9 "},"index":0,"x":1.0}],"x":1234567890123456789}\n\n',
        chunk({"content": "ok"}),
        chunk({}, "stop"),
    ]
    async with world(ScriptedUpstream(Reply(pieces=[*pieces, DONE]))) as w:
        answer = await w.post([user("x")], stream=True)
    for sent, frame in zip(pieces, frames(answer), strict=False):
        assert frame.startswith(sent.decode().strip()[:-1])
    got = [without_ours(event) for event in chunks(answer)]
    assert got == [json.loads(piece.removeprefix(b"data: ")) for piece in pieces]


async def test_a_same_named_field_of_a_gateway_behind_us_gives_way_to_ours() -> None:
    reply = completion()
    reply.body["context_status"] = "theirs"
    async with world(ScriptedUpstream(reply)) as w:
        answer = await w.post([user("x")])
    assert answer.json()["context_status"] == orjson.loads(answer.content)["context_status"] == "full"


async def test_headers_of_the_provider_reach_the_client_where_they_concern_it() -> None:
    told = {"openai-processing-ms": "7", "x-ratelimit-remaining-tokens": "5", "set-cookie": "a=b", "x-secret": "1"}
    whole, streamed = completion(), stream("Fine.")
    whole.headers.update(told)
    streamed.headers.update(told)
    async with world(ScriptedUpstream(whole, streamed)) as w:
        answers = [await w.post([user("x")]), await w.post([user("y")], stream=True)]
    for answer in answers:
        assert answer.headers["openai-processing-ms"] == "7"
        assert answer.headers["x-ratelimit-remaining-tokens"] == "5"
        assert not answer.headers.keys() & {"set-cookie", "x-secret"}


async def second_turn(w: World, said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    body = await w.say(said)
    return [*said, body["choices"][0]["message"], user("more")]


async def test_each_turn_begins_upstream_with_the_bytes_of_the_turn_before() -> None:
    upstream = ScriptedUpstream()
    async with world(upstream) as w:
        said = [user("one")]
        for _ in range(4):
            said = await second_turn(w, said)
    for earlier, later in zip(upstream.bodies, upstream.bodies[1:], strict=False):
        assert later.startswith(earlier[: earlier.rindex(b"]")])
