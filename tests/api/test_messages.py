"""`POST /v1/messages` over providers of all three protocols."""

from __future__ import annotations

import itertools
import json
from typing import Any

import orjson
import pytest

from app.dialects.item_decoding import decode_item
from app.dialects.message_rendering import render_messages_for_responses
from app.dialects.messages.message_rendering import render_messages_for_anthropic
from tests.live import Reply, ScriptedUpstream, chunk, completion, usage_chunk
from tests.support.gateway import user
from tests.support.messages_world import (
    SAID,
    USER,
    MessagesUpstream,
    MessagesWorld,
    join_message,
    messages_world,
    read_events,
    text,
    thinking,
    tool_result,
    tool_use,
)
from tests.support.raw_http import SUMMARY
from tests.support.responses_upstream import ResponsesUpstream, function_call_item, reasoning_item, respond

TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {"at": {}}}}
UPSTREAMS = {"anthropic": MessagesUpstream, "responses": ResponsesUpstream, "openai": ScriptedUpstream}


@pytest.mark.parametrize("provider", UPSTREAMS)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_anthropics_with_our_fields(provider: str, stream: bool) -> None:
    async with messages_world(UPSTREAMS[provider]()) as w:
        answer = await w.ask([USER], system="Be brief.", stream=stream)
        assert answer.status_code == 200, answer.text
        message = join_message(read_events(answer.content)) if stream else answer.json()
        assert message["content"] == [SAID]
        assert (message["type"], message["role"], message["stop_reason"]) == ("message", "assistant", "end_turn")
        assert message["id"].startswith("msg_")
        assert message["usage"]["output_tokens"] > 0
        assert message["context_status"] == "full"
        assert message["conversation_id"] == answer.headers["x-conversation-id"]
        assert message["context"]["warnings"] == []
        assert await w.log_roles() == ["user", "assistant"]


async def test_the_same_protocol_passes_byte_for_byte() -> None:
    body = b'{ "model":"m","max_tokens": 7,"messages":[{"role":"user","content":"Hi"}],"new_field": [1.0] }'
    headers = {"x-api-key": "sk-one", "anthropic-version": "2024-01-01", "anthropic-beta": "a,b"}
    async with messages_world(MessagesUpstream()) as w:
        answer = await w.client.post(f"{w.base_url}/messages", content=body, headers=headers)
        assert answer.json()["x_vendor"] == {"kept": True}
        assert w.upstream.bodies == [body]
        sent = w.upstream.headers[0]
        assert (sent["anthropic-version"], sent["anthropic-beta"]) == ("2024-01-01", "a,b")
        assert sent["x-api-key"] == "sk-upstream"
        assert "authorization" not in sent


@pytest.mark.parametrize(("provider", "query"), [("anthropic", "beta=true&x=a%20b"), ("openai", "")])
async def test_the_query_of_a_client_reaches_providers_of_its_protocol_only(provider: str, query: str) -> None:
    async with messages_world(UPSTREAMS[provider]()) as w:
        body = {"model": "m", "max_tokens": 7, "messages": [USER]}
        headers = {"x-api-key": "sk-one", "anthropic-version": "2024-01-01"}
        await w.client.post(f"{w.base_url}/messages?beta=true&x=a%20b", json=body, headers=headers)
        assert w.upstream.queries == [query]


def render(kind: str, members: bytes) -> bytes:
    return b'event: %b\ndata: {"type":"%b",%b}\n\n' % (kind.encode(), kind.encode(), members)


async def test_events_of_the_same_protocol_pass_byte_for_byte() -> None:
    odd = b'event: new_event\ndata: {"type": "new_event" , "x": 1}\n\n'
    frames = [
        render("message_start", b'"message":{"id":"msg_1","model":"m","usage":{"input_tokens":3}}'),
        b'event: ping\ndata: {"type": "ping"}\n\n',
        render("content_block_start", b'"index":0,"content_block":{"type":"x"}'),
        odd,
        render("content_block_stop", b'"index":0'),
        render("message_delta", b'"delta":{"stop_reason":"pause_turn"},"usage":{"output_tokens":2}'),
        b'event: message_stop\ndata: {"type":"message_stop" }\n\n',
    ]
    async with messages_world(MessagesUpstream(Reply(pieces=frames))) as w:
        received = (await w.ask([USER], stream=True)).content
        assert b"".join(frames[1:5]) in received
        assert received.endswith(frames[6])
        message = join_message(read_events(received))
        assert message["stop_reason"] == "pause_turn"
        assert message["context_status"] == "full"


@pytest.mark.parametrize("provider", UPSTREAMS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_loop(provider: str, stream: bool) -> None:
    call = {"id": "toolu_1", "type": "function", "function": {"name": "look", "arguments": '{"at":"x"}'}}
    if provider == "anthropic":
        upstream: ScriptedUpstream = MessagesUpstream([text("Let me look."), tool_use(at="x")])
    elif provider == "responses":
        upstream = ResponsesUpstream(respond("Let me look.", function_call_item("look", '{"at":"x"}', "toolu_1")))
    elif stream:
        pieces = [
            chunk({"role": "assistant", "content": "Let me look."}),
            chunk({"tool_calls": [{"index": 0, **call}]}),
        ]
        upstream = ScriptedUpstream(Reply(pieces=[*pieces, chunk({}, "tool_calls"), b"data: [DONE]\n\n"]))
    else:
        upstream = ScriptedUpstream(completion("Let me look.", tool_calls=[call]))
    async with messages_world(upstream) as w:
        first = await w.ask([USER], tools=[TOOL], stream=stream)
        message = join_message(read_events(first.content)) if stream else first.json()
        assert message["content"] == [text("Let me look."), tool_use(at="x")]
        assert message["stop_reason"] == "tool_use"
        history = [USER, {"role": "assistant", "content": message["content"]}, tool_result()]
        answer = await w.ask(history, tools=[TOOL], stream=stream)
        last = join_message(read_events(answer.content)) if stream else answer.json()
        assert last["content"] == [SAID]
        assert last["conversation_id"] == message["conversation_id"]
        assert last["context"]["warnings"] == []
        assert await w.log_roles() == ["user", "assistant", "tool", "assistant"]


async def test_an_agent_whose_window_slides_keeps_its_conversation() -> None:
    """Its clients write the arguments of calls anew: a block has an object in the place of the provider's text."""

    def reply(body: dict[str, Any]) -> Reply:
        question = body["messages"][-1]
        if question["role"] == "tool":
            return completion("Done.")
        number = question["content"]
        function = {"name": "look", "arguments": f'{{"at": "{number}"}}'}
        return completion(None, tool_calls=[{"id": f"call_{number}", "type": "function", "function": function}])

    async with messages_world(ScriptedUpstream(default=reply)) as w:
        history: list[dict[str, Any]] = []
        seen = set()
        for turn in range(8):
            history.append({"role": "user", "content": str(turn)})
            for _ in range(2):
                window = history[4 * max(0, turn - 2) :]
                message = await w.create(window, tools=[TOOL])
                seen.add(message["conversation_id"])
                history.append({"role": "assistant", "content": message["content"]})
                if message["stop_reason"] == "tool_use":
                    history.append(tool_result(call_id=message["content"][0]["id"]))
        assert len(seen) == 1
        assert len(await w.raw_log()) == 32


@pytest.mark.parametrize("protocol", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_comes_back_in_a_tool_loop_of_another_protocol(protocol: str, stream: bool) -> None:
    upstream = MessagesUpstream([thinking(), tool_use(at="x")], [thinking("Ah."), SAID], [SAID])
    chat_tool = {"type": "function", "function": {"name": "look", "parameters": TOOL["input_schema"]}}
    async with messages_world(upstream) as w:
        if protocol == "chat":
            history: list[dict[str, Any]] = [user("Hi")]
            call = {"id": "toolu_1", "type": "function", "function": {"name": "look", "arguments": '{"at":"x"}'}}
            answer = await w.post(history, tools=[chat_tool], stream=stream)
            history += [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "toolu_1", "content": "42"},
            ]
            assert (await w.post(history, tools=[chat_tool], stream=stream)).status_code == 200
        else:
            url, tool = (
                f"{w.base_url}/responses",
                {"type": "function", "name": "look", "parameters": TOOL["input_schema"]},
            )
            body = {"model": "m", "input": "Hi", "tools": [tool], "stream": stream}
            answer = await w.client.post(url, json=body)
            response = find_last_response(answer.content) if stream else answer.json()
            given = [{"type": "function_call_output", "call_id": "toolu_1", "output": "42"}]
            body |= {"input": given, "previous_response_id": response["id"]}
            assert (await w.client.post(url, json=body)).status_code == 200
        assert answer.status_code == 200, answer.text
        assert upstream.refusals == []
        sent = upstream.requests[1]["messages"][1]["content"]
        assert [block["type"] for block in sent] == ["thinking", "tool_use"]


def find_last_response(content: bytes) -> dict[str, Any]:
    data = [line.removeprefix("data: ") for line in content.decode().splitlines() if line.startswith("data: ")]
    response: dict[str, Any] = json.loads(data[-1])["response"]
    return response


async def test_a_chat_client_over_an_anthropic_provider() -> None:
    upstream = MessagesUpstream([thinking("Hm, hm."), text("Yes.")])
    async with messages_world(upstream) as w:
        messages = [{"role": "system", "content": "Be brief."}, user("Hi")]
        answer = await w.say(messages, stop="x", temperature=1.5, seed=3, user="ann", reasoning_effort="low")
        assert answer["choices"][0]["message"]["content"] == "Yes."
        assert answer["choices"][0]["message"]["reasoning_content"] == "Hm, hm."
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 3
        assert "`seed`" in answer["context"]["warnings"][0]
        sent = upstream.requests[0]
        assert sent["system"] == "Be brief."
        assert sent["max_tokens"] > 1000
        assert (sent["stop_sequences"], sent["temperature"]) == (["x"], 1)
        assert (sent["metadata"], sent["output_config"]) == ({"user_id": "ann"}, {"effort": "low"})
        chunks = await w.stream(messages)
        assert "".join(one["choices"][0]["delta"].get("content") or "" for one in chunks if one["choices"]) == "Fine."


async def test_what_a_message_request_says_reaches_a_chat_provider() -> None:
    async with messages_world(ScriptedUpstream()) as w:
        message = await w.create(
            [
                {
                    "role": "user",
                    "content": [text("Look."), {"type": "image", "source": {"type": "url", "url": "https://a.test"}}],
                }
            ],
            system=[text("Be brief.")],
            tools=[TOOL, {"type": "web_search_20250305", "name": "web_search"}],
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
            stop_sequences=["x"],
            top_k=5,
            thinking={"type": "adaptive"},
            metadata={"user_id": "u"},
        )
        sent = w.upstream.requests[0]
        assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
        assert sent["messages"][1]["content"][1] == {"type": "image_url", "image_url": {"url": "https://a.test"}}
        assert sent["tools"][0]["function"]["parameters"] == TOOL["input_schema"]
        assert (sent["tool_choice"], sent["parallel_tool_calls"], sent["stop"]) == ("required", False, ["x"])
        assert sent["max_tokens"] == 1000
        (warning,) = message["context"]["warnings"]
        assert all(name in warning for name in ("top_k", "thinking", "web_search_20250305"))


@pytest.mark.parametrize(
    ("body", "status", "kind", "begin"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens: Field required"),
        ({"messages": [tool_result()]}, 400, "invalid_request_error", "messages.0.content.0: unexpected"),
        ({"model": "unknown"}, 404, "not_found_error", "The model"),
    ],
)
async def test_errors_are_anthropics(body: dict[str, Any], status: int, kind: str, begin: str) -> None:
    models = {"m": {"provider": "upstream"}}
    async with messages_world(MessagesUpstream(), models=models) as w:
        answer = await w.ask(**{"messages": [USER], **body})
        assert answer.status_code == status
        error = answer.json()
        assert (error["type"], error["error"]["type"]) == ("error", kind)
        assert error["error"]["message"].startswith(begin)
        assert error["request_id"] == answer.headers["x-request-id"] == answer.headers["request-id"]


async def test_a_providers_error_passes_in_the_form_of_the_client() -> None:
    own = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "req_up"}
    foreign = {"error": {"message": "No.", "type": "invalid_request_error", "param": None, "code": None}}
    async with messages_world(MessagesUpstream(Reply(own, 400), Reply(own, 400))) as w:
        answer = await w.ask([USER])
        assert (answer.status_code, answer.json()) == (400, own)
        chat = await w.post([user("Hi")])
        assert chat.json()["error"] == {
            "message": "Overloaded",
            "type": "overloaded_error",
            "param": None,
            "code": None,
        }
    async with messages_world(ScriptedUpstream(Reply(foreign, 422))) as w:
        answer = await w.ask([USER])
        assert answer.status_code == 422
        assert answer.json()["error"] == {"type": "invalid_request_error", "message": "No."}


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
async def test_a_stream_that_breaks_off_ends_in_an_error_event(provider: str) -> None:
    if provider == "anthropic":
        pieces = join_pieces([text("a b c")])[:-3]
        upstream: ScriptedUpstream = MessagesUpstream(Reply(pieces=pieces))
    else:
        upstream = ScriptedUpstream(Reply(pieces=[chunk({"role": "assistant", "content": "a"})]))
    async with messages_world(upstream) as w:
        events = await w.stream_events([USER])
        assert events[0]["type"] == "message_start"
        assert events[-1]["type"] == "error"
        assert events[-1]["error"]["type"] == "api_error"


def join_pieces(blocks: list[dict[str, Any]]) -> list[bytes]:
    reply = MessagesUpstream(blocks)
    reply.paths, reply.headers, reply.bodies = ["/v1/messages"], [{"anthropic-version": "x"}], [b"{}"]
    made = reply._reply({"model": "m", "max_tokens": 5, "messages": [USER], "stream": True})
    return list(made.pieces or ())


async def test_tokens_are_counted_and_the_gateway_is_found() -> None:
    async with messages_world(MessagesUpstream()) as w:
        counted = await w.client.post(
            f"{w.base_url}/messages/count_tokens", json={"model": "m", "messages": [USER], "system": "Be brief."}
        )
        assert counted.json()["input_tokens"] > 5
        refused = await w.client.post(f"{w.base_url}/messages/count_tokens", json={"model": "m"})
        assert refused.json()["error"] == {"type": "invalid_request_error", "message": "messages: Field required"}
        assert (await w.client.head(w.base_url.removesuffix("/v1") + "/")).status_code == 200
        models = await w.client.get(f"{w.base_url}/models", headers={"anthropic-version": "2023-06-01"})
        assert models.json()["data"][0] | {"created_at": ""} == {
            "type": "model",
            "id": "upstream-model",
            "display_name": "upstream-model",
            "created_at": "",
            "lifecycle": "active",
            "max_input_tokens": 8192,
        }
        assert models.json()["has_more"] is False


def long_history(count: int) -> list[dict[str, Any]]:
    return [
        {"role": "user" if number % 2 == 0 else "assistant", "content": f"Fact {number}: " + "word " * 200}
        for number in range(count)
    ]


async def test_a_long_conversation_is_shortened_by_anthropics_rules() -> None:
    def answer(body: dict[str, Any]) -> list[dict[str, Any]]:
        is_summary = "material to be summarized" in json.dumps(body["messages"][-1])
        return [text(SUMMARY)] if is_summary else [thinking(), SAID]

    upstream = MessagesUpstream(window=8192, default=answer)
    async with messages_world(upstream) as w:
        history: list[dict[str, Any]] = []
        for number in range(24):
            history.append({"role": "user", "content": f"Fact {number}: " + "word " * 500})
            message = await w.create(history, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1500)
            history.append({"role": "assistant", "content": message["content"]})
        assert message["context_status"] == "summarized"
        assert upstream.refusals == []
        assert len(w.conversations()) == 1


@pytest.mark.parametrize("refuses_in_stream", [False, True], ids=["status 400", "first event"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_overflow_is_recovered_within_the_request(stream: bool, refuses_in_stream: bool) -> None:
    upstream = MessagesUpstream(window=3000, refuses_in_stream=refuses_in_stream)
    async with messages_world(upstream) as w:
        history = [*long_history(20), USER]
        answer = join_message(await w.stream_events(history)) if stream else await w.create(history)
        assert answer["context"]["recovered"] is True
        assert answer["content"] == [SAID]
        assert upstream.refusals != []
        assert len(await w.raw_log()) == len(history) + 1


@pytest.mark.parametrize("upstream_window", [None, 3000], ids=["by our count", "by the provider's"])
@pytest.mark.parametrize("refuses_in_stream", [False, True], ids=["status 400", "first event"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_overflow_of_the_newest_message_is_told_in_anthropics_words(
    stream: bool, refuses_in_stream: bool, upstream_window: int | None
) -> None:
    upstream = MessagesUpstream(window=upstream_window, refuses_in_stream=refuses_in_stream)
    async with messages_world(upstream) as w:
        newest = {"role": "user", "content": "word " * (30_000 if upstream_window is None else 5_000)}
        answer = await w.ask([*long_history(4), newest], stream=stream)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"].startswith("prompt is too long: ")


async def test_an_overflow_of_the_newest_message_is_told_in_anthropics_words_for_a_chat_provider() -> None:
    async with messages_world(ScriptedUpstream()) as w:
        answer = await w.ask([{"role": "user", "content": "word " * 30_000}])
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("prompt is too long: ")


async def test_a_moved_cache_mark_changes_no_content() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    async with messages_world(MessagesUpstream()) as w:
        first = await w.create([{"role": "user", "content": [{**text("Hi"), **mark}]}])
        second = await w.create(
            [
                {"role": "user", "content": [text("Hi")]},
                {"role": "assistant", "content": first["content"]},
                {"role": "user", "content": [{**text("And?"), **mark}]},
            ]
        )
        assert second["conversation_id"] == first["conversation_id"]
        assert [decode_item(raw).text for raw in await w.raw_log()] == ["Hi", "Fine.", "And?", "Fine."]


@pytest.mark.parametrize("order", list(itertools.permutations(("chat", "messages", "responses"))))
async def test_a_conversation_goes_on_in_every_protocol(order: tuple[str, ...]) -> None:
    """Each protocol sends one request, with the history as it has it. The log, the items and the export have each
    message once."""
    called = [{"id": "toolu_1", "type": "function", "function": {"name": "look", "arguments": '{"at":"x"}'}}]
    said: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": called},
        {"role": "assistant", "content": "Open."},
        {"role": "assistant", "content": "Yes."},
    ]
    asked = [user("Hi"), {"role": "tool", "tool_call_id": "toolu_1", "content": "42"}, user("Sure?")]
    upstream = MessagesUpstream([tool_use(at="x")], [text("Open.")], [text("Yes.")])
    async with messages_world(upstream) as w:
        history: list[dict[str, Any]] = []
        ids = set()
        for protocol, new, answer in zip(order, asked, said, strict=True):
            ids.add((await send_history(w, protocol, [*history, new]))["conversation_id"])
            history += [new, answer]
        assert upstream.refusals == []
        base, key = f"{w.base_url}/conversations", {"authorization": "Bearer sk-one"}
        url = f"{base}/{ids.pop()}"
        assert (ids, len(w.conversations())) == (set(), 1)
        assert await w.log_roles() == ["user", "assistant", "tool", "assistant", "user", "assistant"]
        items = (await w.client.get(f"{url}/items", params={"order": "asc"}, headers=key)).json()["data"]
        kinds = ["message", "function_call", "function_call_output", "message", "message", "message"]
        assert [item["type"] for item in items] == kinds
        exported = (await w.client.get(f"{url}/export", params={"format": "openai"}, headers=key)).json()["messages"]
        assert [(one["role"], one.get("content") or None) for one in exported] == [
            (one["role"], one["content"]) for one in history
        ]


async def send_history(w: MessagesWorld, protocol: str, history: list[dict[str, Any]]) -> dict[str, Any]:
    """Sends chat messages in a protocol; returns the body of the answer."""
    raws = [orjson.dumps(message) for message in history]
    if protocol == "messages":
        native = render_messages_for_anthropic(raws).raw_messages
        return await w.create([orjson.loads(raw) for raw in native], tools=[TOOL])
    function = {"name": TOOL["name"], "parameters": TOOL["input_schema"]}
    if protocol == "chat":
        return await w.say(history, tools=[{"type": "function", "function": function}])
    items = [orjson.loads(raw) for raw in render_messages_for_responses(raws).messages]
    body = {"model": "m", "input": items, "tools": [{"type": "function", **function}]}
    answer = await w.client.post(f"{w.base_url}/responses", json=body, headers={"authorization": "Bearer sk-one"})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_reasoning_of_other_providers_is_shown_as_thinking() -> None:
    async with messages_world(ResponsesUpstream(respond(reasoning_item("Hm."), "Yes."))) as w:
        message = await w.create([USER])
        assert message["content"] == [{"type": "thinking", "thinking": "Hm.", "signature": ""}, text("Yes.")]
        history = [USER, {"role": "assistant", "content": message["content"]}, USER]
        assert (await w.create(history))["conversation_id"] == message["conversation_id"]


async def test_a_conversation_is_listed_exported_and_shown_with_every_message_once() -> None:
    upstream = MessagesUpstream([thinking(), text("Let me look."), tool_use(at="x")], [text("Open.")])
    async with messages_world(upstream) as w:
        first = await w.create([USER], tools=[TOOL])
        history = [USER, {"role": "assistant", "content": first["content"]}, tool_result()]
        last = await w.create(history, tools=[TOOL])
        base, key = f"{w.base_url}/conversations", {"authorization": "Bearer sk-one"}
        url = f"{base}/{last['conversation_id']}"
        items = (await w.client.get(f"{url}/items", params={"order": "asc"}, headers=key)).json()["data"]
        kinds = ["message", "reasoning", "message", "function_call", "function_call_output", "message"]
        assert [item["type"] for item in items] == kinds
        view = (await w.client.get(f"{url}/items/{items[-1]['id']}/context", headers=key)).json()
        assert [one["role"] for one in view["messages"]["data"]] == ["tool", "assistant", "user"]
        assert "Let me look." in json.dumps(view)
        exported = (await w.client.get(f"{url}/export", headers=key)).content
        assert exported.splitlines() == await w.raw_log()
        imported = await w.client.post(f"{base}/import", content=exported, headers=key)
        assert imported.status_code == 200, imported.text
        chat = (await w.client.get(f"{url}/export", params={"format": "openai"}, headers=key)).json()["messages"]
        assert [one["role"] for one in chat] == ["user", "assistant", "tool", "assistant"]
        removed = await w.client.delete(f"{url}/items/{items[2]['id']}", headers=key)
        assert removed.status_code == 200, removed.text
        assert (await w.create([*history, {"role": "assistant", "content": "Open."}, USER]))["content"] == [SAID]
        assert upstream.refusals == []


async def test_results_alone_continue_a_named_conversation() -> None:
    upstream = MessagesUpstream([thinking(), tool_use(at="x")], [text("Open.")], [SAID])
    options: dict[str, Any] = {"tools": [TOOL], "thinking": {"type": "enabled", "budget_tokens": 1024}}
    async with messages_world(upstream) as w:
        named = {"x-conversation-id": "agent-1"}
        await w.create([USER], headers=named, **options)
        await w.create([tool_result()], headers=named, **options)
        await w.create([{"role": "user", "content": "And now?"}], headers=named, **options)
        assert upstream.refusals == []
        assert [one["role"] for one in upstream.requests[-1]["messages"]] == ["user", "assistant"] * 2 + ["user"]
        assert await w.log_roles() == ["user", "assistant", "tool", "assistant", "user", "assistant"]


async def test_the_search_tool_joins_its_rounds() -> None:
    search = tool_use("toolu_s", "recall_conversation", query="vault quokka")

    def answer(body: dict[str, Any]) -> list[dict[str, Any]]:
        if "material to be summarized" in json.dumps(body["messages"][-1]):
            return [text(SUMMARY)]
        has_tool = any(tool["name"] == "recall_conversation" for tool in body.get("tools", ()))
        has_searched = "tool_result" in json.dumps(body["messages"][-1])
        return [text("Let me see."), search] if has_tool and not has_searched else [SAID]

    upstream = MessagesUpstream(default=answer)
    history = [{"role": "user", "content": "The vault word is quokka. " + "word " * 900}]
    history += [one for n in range(8) for one in ({"role": "assistant", "content": f"Noted {n}."}, long_history(1)[0])]
    for stream in (False, True):
        async with messages_world(upstream) as w:
            answer_ = await w.ask(history, context={"recall": "tool"}, stream=stream)
            assert answer_.status_code == 200, answer_.text
            message = join_message(read_events(answer_.content)) if stream else answer_.json()
            assert upstream.refusals == []
            texts = "".join(block["text"] for block in message["content"] if block["type"] == "text")
            assert texts.endswith("Fine.")
            assert all(block["type"] == "text" for block in message["content"])
            assert message["stop_reason"] == "end_turn"


async def test_a_server_held_thread_is_refused_as_clients_expect_who_then_send_all() -> None:
    async with messages_world(MessagesUpstream()) as w:
        answer = await w.ask([USER], thread={"type": "create"})
        assert (w.rows(), w.upstream.bodies) == (0, [])
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["details"] == {"error_code": "thread_unsupported_request"}


async def test_a_chat_provider_is_asked_for_the_usage_that_a_stream_ends_with() -> None:
    pieces = [chunk({"role": "assistant", "content": "Fine."}), chunk({}, "stop"), usage_chunk(), b"data: [DONE]\n\n"]
    async with messages_world(ScriptedUpstream(Reply(pieces=pieces))) as w:
        events = read_events((await w.ask([USER], stream=True)).content)
        assert w.upstream.requests[-1]["stream_options"]["include_usage"] is True
    (last,) = (event for event in events if event["type"] == "message_delta")
    assert last["usage"]["input_tokens"] > 0
    assert last["context"]["cost"]["input"] == last["usage"]["input_tokens"]
