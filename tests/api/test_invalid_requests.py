"""Input that cannot be used: a 400 in OpenAI's shape that names the place, nothing asked, nothing stored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.api.edge.request_reader import BodyBudget, BodyLimitMiddleware, read_body
from app.errors import RequestTooLarge
from tests.live import ScriptedUpstream
from tests.support.gateway import World, user, world
from tests.support.raw_http import raw

USER = b'{"role":"user","content":"x"}'
FUNCTION = b'{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}'
CALL = b'{"role":"assistant","content":null,"tool_calls":[%b]}' % FUNCTION


def with_fields(fields: bytes) -> bytes:
    return b'{"model":"m","messages":[%b],%b}' % (USER, fields)


def with_messages(*messages: bytes) -> bytes:
    return b'{"model":"m","messages":[%b]}' % b",".join(messages)


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


BODIES: dict[str, tuple[bytes, str | None]] = {
    "empty body": (b"", None),
    "malformed": (b'{"model": "m", messages: []}', None),
    "truncated": (b'{"model":"m","messages":[{"role":"user","content":"x', None),
    "text after the end": (with_fields(b'"n":1') + b" x", None),
    "byte order mark": (b"\xef\xbb\xbf" + with_messages(USER), None),
    "array": (b"[1]", None),
    "null": (b"null", None),
    "NaN": (with_fields(b'"temperature":NaN'), None),
    "NaN in a message": (with_messages(b'{"role":"user","content":"x","y":NaN}'), None),
    "infinite number in a message": (with_messages(b'{"role":"user","content":"x","y":1e999}'), "messages"),
    "nested deeply": (with_fields(b'"x":' + nested(100_000)), None),
    "message nested deeply": (with_messages(b'{"role":"user","content":' + nested(100_000) + b"}"), None),
    "message nested too deep to be written": (
        with_messages(b'{"role":"user","content":"x","y":' + nested(300) + b"}"),
        "messages[0]",
    ),
    "message nested too deep to decode": (with_messages(b'{"role":"user","content":' + nested(1500) + b"}"), None),
    "invalid UTF-8 in a message": (with_messages(b'{"role":"user","content":"\xff"}'), "messages"),
    "invalid UTF-8 in a field": (with_fields(b'"user":"\xff"'), None),
    "invalid UTF-8 in a name": (with_fields(b'"\xff":1'), None),
    "overlong UTF-8": (with_fields(b'"user":"\xc0\xaf"'), None),
    "surrogate in UTF-8": (with_fields(b'"user":"\xed\xa0\x80"'), None),
    "lone surrogate": (with_messages(b'{"role":"user","content":"a\\ud83d b"}'), None),
    "lone low surrogate": (with_messages(b'{"role":"user","content":"a\\ude00"}'), None),
    "lone surrogate in the model": (b'{"model":"\\ud83d","messages":[%b]}' % USER, None),
    "no model": (b'{"messages":[%b]}' % USER, "model"),
    "model null": (b'{"model":null,"messages":[%b]}' % USER, "model"),
    "model empty": (b'{"model":"","messages":[%b]}' % USER, "model"),
    "model a number": (b'{"model":5,"messages":[%b]}' % USER, "model"),
    "no messages": (b'{"model":"m"}', "messages"),
    "messages null": (b'{"model":"m","messages":null}', "messages"),
    "messages empty": (b'{"model":"m","messages":[]}', "messages"),
    "messages a text": (b'{"model":"m","messages":"x"}', "messages"),
    "messages an object": (b'{"model":"m","messages":{}}', "messages"),
    "message a text": (with_messages(b'"x"'), "messages"),
    "message null": (with_messages(b"null"), "messages"),
    "message a list": (with_messages(b"[]"), "messages"),
    "later message a number": (with_messages(USER, b"5"), "messages"),
    "no role": (with_messages(b'{"content":"x"}'), "messages[0].role"),
    "unknown role": (with_messages(USER, b'{"role":"narrator","content":"x"}'), "messages[1].role"),
    "role a list": (with_messages(b'{"role":["user"],"content":"x"}'), "messages[0].role"),
    "content a number": (with_messages(b'{"role":"user","content":5}'), "messages[0].content"),
    "content an object": (with_messages(b'{"role":"user","content":{}}'), "messages[0].content"),
    "part a text": (with_messages(b'{"role":"user","content":["x"]}'), "messages[0].content[0]"),
    "part without type": (with_messages(b'{"role":"user","content":[{"text":"x"}]}'), "messages[0].content[0]"),
    "tool_calls an object": (with_messages(b'{"role":"assistant","tool_calls":{}}'), "messages[0].tool_calls"),
    "tool result without a call": (
        with_messages(USER, b'{"role":"tool","tool_call_id":"c","content":"1"}'),
        "messages[1].role",
    ),
    "tool result at the start": (
        with_messages(b'{"role":"tool","tool_call_id":"c","content":"1"}'),
        "messages[0].role",
    ),
    "tool result without an id": (
        with_messages(USER, CALL, b'{"role":"tool","content":"1"}'),
        "messages[2].tool_call_id",
    ),
    "stream a text": (with_fields(b'"stream":"yes"'), "stream"),
    "stream a number": (with_fields(b'"stream":1'), "stream"),
    "store a text": (with_fields(b'"store":"no"'), "store"),
    "n a text": (with_fields(b'"n":"2"'), "n"),
    "n a float": (with_fields(b'"n":1.5'), "n"),
    "max_tokens a text": (with_fields(b'"max_tokens":"5"'), "max_tokens"),
    "max_tokens a boolean": (with_fields(b'"max_completion_tokens":true'), "max_completion_tokens"),
    "stream_options a list": (with_fields(b'"stream":true,"stream_options":[]'), "stream_options"),
    "context a text": (with_fields(b'"context":"x"'), "context"),
    "context unknown field": (with_fields(b'"context":{"polcy":"x"}'), "context.polcy"),
    "context policy a number": (with_fields(b'"context":{"policy":5}'), "context.policy"),
    "context policy unknown": (with_fields(b'"context":{"policy":"none"}'), "context.policy"),
    "context summarize unknown": (with_fields(b'"context":{"summarize":"soon"}'), "context.summarize"),
    "conversation_id empty": (with_fields(b'"conversation_id":""'), "conversation_id"),
    "conversation_id a number": (with_fields(b'"conversation_id":5'), "conversation_id"),
    "conversation_id with a blank": (with_fields(b'"conversation_id":"a b"'), "conversation_id"),
    "conversation_id with a line feed": (with_fields(b'"conversation_id":"a\\n"'), "conversation_id"),
    "conversation_id too long": (with_fields(b'"conversation_id":"%b"' % (b"a" * 129)), "conversation_id"),
    "conversation without id": (with_fields(b'"conversation":{}'), "conversation.id"),
    "conversation a list": (with_fields(b'"conversation":[]'), "conversation"),
    "metadata id a number": (with_fields(b'"metadata":{"conversation_id":5}'), "metadata.conversation_id"),
}

HEADERS: dict[str, tuple[dict[str, bytes], str]] = {
    "conversation id with a blank": ({"x-conversation-id": b"a b"}, "X-Conversation-Id"),
    "conversation id empty": ({"x-conversation-id": b""}, "X-Conversation-Id"),
    "conversation id not ASCII": ({"x-conversation-id": "ü".encode()}, "X-Conversation-Id"),
    "conversation id with a path": ({"x-conversation-id": b"../x"}, "X-Conversation-Id"),
    "chat UI id": ({"x-openwebui-chat-id": b"a/b"}, "X-OpenWebUI-Chat-Id"),
    "mode": ({"x-context-mode": b"sometimes"}, "x-context-mode"),
    "mode not ASCII": ({"x-context-mode": b"\xff\xfe"}, "x-context-mode"),
    "events": ({"x-context-events": b"loud"}, "x-context-events"),
    "policy": ({"x-context-policy": b"none"}, "context.policy"),
    "policy not ASCII": ({"x-context-policy": b"\xff"}, "context.policy"),
    "compressed body": ({"content-encoding": b"gzip"}, ""),
    "unknown compression": ({"content-encoding": b"snappy"}, ""),
}


async def check_refused(w: World, answer: Any, param: str | None) -> None:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert (error["param"] or "").lower() == (param or "").lower()
    assert answer.headers["x-should-retry"] == "false"
    assert answer.headers["x-request-id"]
    assert answer.headers["content-type"] == "application/json"
    assert w.upstream.bodies == []
    assert (w.conversations(), w.rows()) == ([], 0)


async def test_a_body_that_cannot_be_used_is_refused_and_leaves_no_trace() -> None:
    async with world(ScriptedUpstream()) as w:
        for name, (body, param) in BODIES.items():
            try:
                await check_refused(w, await raw(w, body), param)
            except AssertionError as error:
                raise AssertionError(name) from error


async def test_a_body_that_cannot_be_used_is_refused_in_a_stream_too() -> None:
    async with world(ScriptedUpstream()) as w:
        for name in ("unknown role", "tool result without a call", "context policy unknown"):
            body, param = BODIES[name]
            await check_refused(w, await raw(w, b'{"stream":true,' + body[1:]), param)


@pytest.mark.parametrize("name", HEADERS)
async def test_a_header_that_cannot_be_used_is_refused_and_leaves_no_trace(name: str) -> None:
    headers, param = HEADERS[name]
    async with world(ScriptedUpstream()) as w:
        answer = await w.client.post(
            f"{w.base_url}/chat/completions",
            json={"model": "m", "messages": [user("x")]},
            headers={name.encode(): value for name, value in headers.items()},
        )
        await check_refused(w, answer, param or None)


async def test_what_is_malformed_in_a_resent_history_is_refused_like_in_a_first() -> None:
    async with world(ScriptedUpstream()) as w:
        body = await w.say([user("one")])
        said = [user("one"), body["choices"][0]["message"]]
        rows = w.rows()
        cases: list[tuple[dict[str, Any], str]] = [
            ({"role": "narrator", "content": "x"}, "messages[2].role"),
            ({"role": "tool", "tool_call_id": "c", "content": "x"}, "messages[2].role"),
            ({"role": "user", "content": 5}, "messages[2].content"),
        ]
        for bad, param in cases:
            answer = await w.post([*said, bad])
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert w.rows() == rows


async def test_a_model_that_is_not_there_is_named() -> None:
    models = {"known": {"provider": "upstream", "context_window": 8192}}
    async with world(ScriptedUpstream(), models=models) as w:
        answer = await raw(w, {"model": "knwon", "messages": [user("x")]})
        assert w.rows() == 0
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "'known'" in error["message"]
    assert answer.headers["x-should-retry"] == "false"


async def test_a_conversation_of_ours_that_is_not_there_is_not_found() -> None:
    async with world(ScriptedUpstream()) as w:
        answer = await w.post([user("x")], headers={"x-conversation-id": "conv_" + "0" * 48})
        assert (w.rows(), w.upstream.bodies) == (0, [])
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "conversation_not_found")
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", "embeddings", "context/count"])
async def test_a_body_over_the_limit_is_refused_however_it_is_sent(chunked: bool, path: str) -> None:
    body = json.dumps({"model": "m", "messages": [user("x" * 3000)]}).encode()

    async def pieces() -> Any:
        for at in range(0, len(body), 500):
            yield body[at : at + 500]

    async with world(ScriptedUpstream(), server={"body_limit_bytes": 2000}) as w:
        answer = await w.client.post(f"{w.base_url}/{path}", content=pieces() if chunked else body)
        assert (w.rows(), w.upstream.bodies) == (0, [])
        assert (await w.post([user("x")])).status_code == 200
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (413, "request_too_large")
    assert error.keys() == {"message", "type", "param", "code"}
    assert answer.headers["x-should-retry"] == "false"


async def test_a_body_that_is_announced_as_too_long_is_not_read() -> None:
    async def receive() -> Any:
        raise AssertionError("it was read")

    async def send(message: Any) -> None:
        raise AssertionError("it was answered")

    async def read(scope: Any, receive: Any, send: Any) -> None:
        await read_body(scope, receive, "a")

    application = BodyLimitMiddleware(read, 2000, BodyBudget(0, 2000))
    with pytest.raises(RequestTooLarge):
        await application({"type": "http", "headers": [(b"content-length", b"2001")]}, receive, send)


async def test_odd_values_that_are_the_providers_to_judge_are_passed_on() -> None:
    odd = [
        with_fields(b'"tools":5,"functions":"x","response_format":[1],"metadata":[]'),
        with_fields(b'"tools":[5,{"function":5},{"type":"function","function":{"name":1,"parameters":[1]}}]'),
        with_fields(b'"n":0,"max_tokens":-1,"stream_options":null,"conversation_id":null,"context":null'),
        with_messages(b'{"role":"user","content":[{"type":"image_url","image_url":5},{"type":"text","text":5}]}'),
        with_messages(b'{"role":"user","content":[{"type":"file"},{"type":"input_audio","input_audio":[]}]}'),
        with_messages(USER, b'{"role":"assistant","tool_calls":[{"function":{"name":5,"arguments":{"a":1}}}]}', USER),
        with_messages(USER, b'{"role":"assistant","function_call":[],"refusal":5,"content":""}', USER),
        with_messages(b'{"role":"user","content":"x","name":{"a":1}}'),
        with_messages(b'{"role":"user","content":""}'),
        with_messages(b'{"role":"system","content":"only"}'),
        with_messages(b'{"role":"user","content":"\\u0000<|endoftext|>"}'),
    ]
    async with world(ScriptedUpstream()) as w:
        for body in odd:
            answer = await raw(w, body)
            assert answer.status_code == 200, (body, answer.text)
        assert len(w.upstream.bodies) == len(odd)
