"""Clients of one protocol in front of providers of the other: what is translated, what is named in a warning, and what
is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import DONE, Reply, ScriptedUpstream, chunk, completion, stream, usage_chunk
from tests.support.gateway import assistant, call, result, user
from tests.support.responses_upstream import (
    ENCRYPTED_INCLUDE,
    ResponsesUpstream,
    function_call_item,
    reasoning_item,
    respond,
    web_search_item,
)
from tests.support.responses_world import call_output, message, responses_world, sent_items

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CHAT_TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": PARAMETERS}}
FLAT_TOOL = {"type": "function", "name": "look", "description": "Looks.", "parameters": PARAMETERS, "strict": False}
PICTURE = "data:image/png;base64,iVBORw0KGgo="
EITHER = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


def streamed_message(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What the chunks of a stream amount to."""
    content, finish = "", None
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event["choices"]:
            content += choice["delta"].get("content") or ""
            finish = choice["finish_reason"] or finish
            for piece in choice["delta"].get("tool_calls") or ():
                known = calls.setdefault(piece["index"], {"id": piece.get("id"), "name": "", "arguments": ""})
                known["name"] += piece.get("function", {}).get("name") or ""
                known["arguments"] += piece.get("function", {}).get("arguments") or ""
    return {"content": content or None, "calls": list(calls.values()), "finish": finish}


@EITHER
async def test_a_chat_client_calls_tools_of_a_responses_provider(streamed: bool) -> None:
    upstream = ResponsesUpstream(
        respond(
            reasoning_item("I look twice."),
            function_call_item("look", '{"a":1}', "c1"),
            function_call_item("look", '{"a":2}', "c2"),
            interleaves=streamed,
        ),
        respond("Both are fine."),
    )
    fields: dict[str, Any] = {
        "tools": [CHAT_TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": True,
        "max_tokens": 300,
        "response_format": {"type": "json_schema", "json_schema": {"name": "r", "schema": PARAMETERS, "strict": True}},
    }
    picture = user([{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": PICTURE}}])
    async with responses_world(upstream) as w:
        history = [{"role": "system", "content": "Be brief."}, picture]
        if streamed:
            events = await w.stream(history, stream_options={"include_usage": True}, **fields)
            assert events[-1]["choices"] == []
            usage = events[-1]["usage"]
            answer = streamed_message(events)
        else:
            body = await w.say(history, **fields)
            (choice,), usage = body["choices"], body["usage"]
            made = [{"id": one["id"], **one["function"]} for one in choice["message"]["tool_calls"]]
            answer = {"content": choice["message"]["content"], "calls": made, "finish": choice["finish_reason"]}
        calls = [{"id": f"c{a}", "name": "look", "arguments": f'{{"a":{a}}}'} for a in (1, 2)]
        assert answer == {"content": None, "calls": calls, "finish": "tool_calls"}
        assert usage["prompt_tokens"] > 20
        assert usage["completion_tokens_details"]["reasoning_tokens"] == 3
        assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] // 2
        said = {
            "role": "assistant",
            "content": None,
            "tool_calls": [call("look", '{"a":1}', "c1"), call("look", '{"a":2}', "c2")],
        }
        more = [*history, said, result("One.", "c1"), result("Two.", "c2")]
        last = (await w.say(more, **fields))["choices"][0]["message"]
        assert len(w.conversations()) == 1
    assert last["content"] == "Both are fine."
    assert upstream.refusals == []
    first, second = upstream.requests
    assert first["tools"] == [FLAT_TOOL]
    assert (first["tool_choice"], first["parallel_tool_calls"], first["max_output_tokens"]) == ("required", True, 300)
    assert first["text"]["format"] == {"type": "json_schema", "name": "r", "schema": PARAMETERS, "strict": True}
    assert {name: value for name, value in first["input"][1]["content"][1].items() if name != "detail"} == {
        "type": "input_image",
        "image_url": PICTURE,
    }
    assert not {"messages", "max_tokens", "response_format", "stream_options"} & first.keys()
    assert [item["type"] for item in second["input"] if item["type"] != "reasoning"] == [
        *("message", "message", "function_call", "function_call", "function_call_output", "function_call_output")
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"stop": ["END"]}, "stop"), ({"n": 2}, "n"), ({"logit_bias": {"1": 5}}, "logit_bias")],
)
@EITHER
async def test_what_a_responses_provider_cannot_do_is_refused_by_name(
    streamed: bool, fields: dict[str, Any], param: str
) -> None:
    upstream = ResponsesUpstream()
    async with responses_world(upstream) as w:
        answer = await w.post([user("Hi")], stream=streamed, **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert answer.json()["error"]["code"] == "unsupported_parameter"
        assert w.conversations() == []
    assert upstream.requests == []


async def test_a_chat_client_learns_what_was_left_out() -> None:
    upstream = ResponsesUpstream()
    async with responses_world(upstream) as w:
        body = await w.say([user("Hi")], seed=7, presence_penalty=0.5, x_unknown=1, reasoning_effort="low")
    (warning,) = body["context"]["warnings"]
    assert all(f"`{name}`" in warning for name in ("seed", "presence_penalty", "x_unknown"))
    assert upstream.requests[0]["reasoning"] == {"effort": "low"}


async def test_a_chat_client_gets_no_usage_chunk_that_it_did_not_ask_for() -> None:
    async with responses_world(ResponsesUpstream(respond("Fine."))) as w:
        events = await w.stream([user("Hi")])
    assert all("usage" not in event or event["usage"] is None for event in events)
    assert streamed_message(events) == {"content": "Fine.", "calls": [], "finish": "stop"}


@EITHER
async def test_a_chat_client_gets_an_answer_that_was_cut_off(streamed: bool) -> None:
    upstream = ResponsesUpstream(respond("So it be", incomplete="max_output_tokens"))
    async with responses_world(upstream) as w:
        if streamed:
            finish = streamed_message(await w.stream([user("Hi")]))["finish"]
        else:
            finish = (await w.say([user("Hi")]))["choices"][0]["finish_reason"]
    assert finish == "length"


def answer_with_calls(streamed: bool) -> Reply:
    calls = [call("look", '{"a":1}', "c1"), {"id": "c2", "type": "custom", "custom": {"name": "patch", "input": "x"}}]
    if not streamed:
        return completion(None, reasoning_content="Let me see.", tool_calls=calls)
    return Reply(
        pieces=[
            chunk({"role": "assistant", "content": ""}),
            chunk({"reasoning_content": "Let me see."}),
            *(chunk({"tool_calls": [{**one, "index": index}]}) for index, one in enumerate(calls)),
            chunk({}, "tool_calls"),
            usage_chunk(12),
            DONE,
        ]
    )


@EITHER
async def test_a_responses_client_calls_tools_of_a_chat_provider(streamed: bool) -> None:
    upstream = ScriptedUpstream(answer_with_calls(streamed), stream("Fine.") if streamed else completion())
    custom = {"type": "custom", "name": "patch", "description": "Patches.", "format": {"type": "text"}}
    fields: dict[str, Any] = {
        "tools": [FLAT_TOOL, custom, {"type": "web_search"}],
        "text": {"format": {"type": "json_schema", "name": "r", "schema": PARAMETERS, "strict": True}},
        "reasoning": {"effort": "low", "summary": "auto"},
        "instructions": "Be brief.",
        "max_output_tokens": 400,
        "include": [ENCRYPTED_INCLUDE],
        "x_unknown": 1,
    }
    picture = message(
        "", content=[{"type": "input_text", "text": "Look"}, {"type": "input_image", "image_url": PICTURE}]
    )
    async with responses_world(upstream) as w:
        first = await w.respond_either([picture], stream=streamed, **fields)
        outputs = [call_output("c1", "One."), {"type": "custom_tool_call_output", "call_id": "c2", "output": "Two."}]
        stored = await w.read_response(first["id"])
        second = await w.respond_either(outputs, stream=streamed, previous_response_id=first["id"], **fields)
        resent = [picture, *first["output"], *outputs, *second["output"], message("And?")]
        await w.respond_either(resent, stream=streamed, **fields)
        assert len(w.conversations()) == 1
    made = [(item["type"], item.get("call_id"), item.get("arguments", item.get("input"))) for item in first["output"]]
    assert made == [("reasoning", None, None), ("function_call", "c1", '{"a":1}'), ("custom_tool_call", "c2", "x")]
    assert stored["output"] == first["output"]
    warning = " ".join(first["context"]["warnings"])
    assert "web_search" in warning
    assert "x_unknown" in warning
    assert "reasoning.summary" in warning
    sent, again, last = upstream.requests
    assert [tool["type"] for tool in sent["tools"]] == ["function", "custom"]
    assert sent["tools"][0]["function"]["parameters"] == PARAMETERS
    assert sent["tools"][1]["custom"]["name"] == "patch"
    assert sent["reasoning_effort"] == "low"
    assert sent["response_format"]["json_schema"] == {"name": "r", "schema": PARAMETERS, "strict": True}
    assert sent["max_tokens"] == 400
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert sent["messages"][1]["content"][1]["image_url"]["url"] == PICTURE
    assert not {"input", "include", "instructions", "x_unknown", "store", "previous_response_id"} & sent.keys()
    assert [one["role"] for one in again["messages"]] == ["system", "user", "assistant", "tool", "tool"]
    assert [one["role"] for one in last["messages"]][-2:] == ["assistant", "user"]
    assert [one["id"] for one in again["messages"][2]["tool_calls"]] == ["c1", "c2"]


@EITHER
@pytest.mark.parametrize("choice", [{"type": "web_search"}, {"type": "file_search"}])
async def test_a_forced_hosted_tool_is_refused_for_a_chat_provider(streamed: bool, choice: dict[str, Any]) -> None:
    upstream = ScriptedUpstream()
    async with responses_world(upstream) as w:
        tools = [choice | ({"vector_store_ids": ["vs"]} if choice["type"] == "file_search" else {}), FLAT_TOOL]
        answer = await w.ask("Hi", stream=streamed, tools=tools, tool_choice=choice)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_choice")
        assert w.conversations() == []
    assert upstream.requests == []


MODELS = {
    "m": {"provider": "upstream", "context_window": 8192},
    "n": {"provider": "second", "context_window": 8192},
}


@EITHER
async def test_what_only_its_provider_understands_is_not_sent_to_another_and_named(streamed: bool) -> None:
    native = ResponsesUpstream(respond(reasoning_item(), web_search_item("q"), "Found it."))
    chat = ScriptedUpstream()
    async with responses_world(native, chat, models=MODELS) as w:
        first = await w.respond_either("Find it.", stream=streamed, tools=[{"type": "web_search"}])
        second = await w.respond_either("Go on.", stream=streamed, model="n", previous_response_id=first["id"])
    assert [one["content"] for one in chat.requests[0]["messages"]] == ["Find it.", "Found it.", "Go on."]
    warning = " ".join(second["context"]["warnings"])
    assert "web_search_call" in warning
    assert "encrypted reasoning" in warning


@EITHER
async def test_a_conversation_may_change_its_protocol(streamed: bool) -> None:
    native = ResponsesUpstream(respond(reasoning_item("Hm."), "Found it."), respond("Fine."), respond("Bye."))
    async with responses_world(native, ScriptedUpstream(), models=MODELS) as w:
        first = await w.respond_either("Find it.", stream=streamed)
        history = [user("Find it."), assistant("Found it."), user("Go on.")]
        await w.say(history, model="n")
        body = await w.say([*history, assistant("Fine."), user("And?")])
        assert body["conversation_id"] == first["conversation_id"]
        assert len(w.conversations()) == 1
    assert native.refusals == []
    assert [item["content"] for item in sent_items(native) if item["role"] == "user"] == ["Find it.", "Go on.", "And?"]


@EITHER
async def test_reasoning_of_a_chat_provider_is_sent_without_an_id_that_means_nothing(streamed: bool) -> None:
    chat = ScriptedUpstream(default=lambda body: answer_with_calls(streamed))
    native = ResponsesUpstream()
    async with responses_world(native, chat, models=MODELS) as w:
        first = await w.respond_either("Look.", stream=streamed, model="n", tools=[FLAT_TOOL])
        outputs = [call_output("c1", "One."), {"type": "custom_tool_call_output", "call_id": "c2", "output": "Two."}]
        await w.respond_either([message("Look."), *first["output"], *outputs], stream=streamed, tools=[FLAT_TOOL])
        await w.respond_either(outputs, stream=streamed, previous_response_id=first["id"], tools=[FLAT_TOOL])
    assert native.refusals == []
    for number in (0, 1):
        reasoning = sent_items(native, number)[1]
        assert (reasoning["type"], reasoning["content"][0]["text"], "id" in reasoning) == (
            *("reasoning", "Let me see."),
            False,
        )
