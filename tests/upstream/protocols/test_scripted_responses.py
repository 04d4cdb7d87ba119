"""The strict upstream of the tests: what it sends is what the `openai` package's types say, and it refuses what OpenAI
refuses."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.live import serving
from tests.support.responses_upstream import (
    ResponsesUpstream,
    ScriptedResponse,
    custom_call_item,
    function_call_item,
    reasoning_item,
    refusal_item,
    respond,
    text_item,
    web_search_item,
)

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
CITATION = {"type": "url_citation", "start_index": 0, "end_index": 2, "url": "https://a.test", "title": "A"}
ANSWERS = {
    "text": respond("Hello, world."),
    "citation": respond(text_item("It is so.", CITATION)),
    "reasoning": respond(reasoning_item("First this.", "Then that.", texts=["I think."]), "Done."),
    "calls": respond(
        reasoning_item(),
        function_call_item("a", '{"x": 1, "y": 2}', "call_a"),
        function_call_item("b", '{"z": 3}', "call_b"),
    ),
    "calls in turns": respond(
        function_call_item("a", '{"x": 1}', "call_a"), function_call_item("b", '{"z": 3}', "call_b"), interleaves=True
    ),
    "custom call": respond(custom_call_item("patch", "*** Begin Patch", "call_c")),
    "search": respond(web_search_item("weather"), "Rain."),
    "refusal": respond(refusal_item("I will not.")),
    "incomplete": respond("It was", incomplete="max_output_tokens"),
    "failed": ScriptedResponse(error={"code": "server_error", "message": "Broken."}),
}


async def post(upstream: ResponsesUpstream, **fields: Any) -> httpx.Response:
    body = {"model": "m", "store": False, "input": "Hi.", "include": ["reasoning.encrypted_content"], **fields}
    async with serving(upstream, lifespan="off") as address, httpx.AsyncClient() as client:
        return await client.post(f"{address}/v1/responses", json=body)


def read_events(text: str) -> list[dict[str, Any]]:
    frames = [frame.split("\n") for frame in text.strip().split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    assert [name for name, _ in frames] == [f"event: {event['type']}" for event in events]
    return events


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_whole_response_is_of_the_packages_type(name: str) -> None:
    body = (await post(ResponsesUpstream(ANSWERS[name]))).json()

    assert json.loads(Response.model_validate(body).model_dump_json(exclude_unset=True)) == body


@pytest.mark.parametrize("name", ANSWERS)
async def test_each_event_is_of_the_packages_types(name: str) -> None:
    events = read_events((await post(ResponsesUpstream(ANSWERS[name]), stream=True)).text)

    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        parsed = EVENT.validate_python(event)
        assert parsed.type == event["type"]
        assert json.loads(parsed.model_dump_json(exclude_unset=True, by_alias=True)) == event
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == f"response.{events[-1]['response']['status']}"


async def test_the_deltas_of_a_stream_are_the_items_of_its_last_response() -> None:
    events = read_events((await post(ResponsesUpstream(ANSWERS["calls in turns"]), stream=True)).text)

    arguments = {"call_a": "", "call_b": ""}
    calls = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    for event in events:
        if event["type"] == "response.function_call_arguments.delta":
            arguments[calls[event["output_index"]]["call_id"]] += event["delta"]
    ended = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert arguments == {call["call_id"]: call["arguments"] for call in events[-1]["response"]["output"]}
    assert ended == events[-1]["response"]["output"]


CALL = function_call_item("a", "{}", "call_a")
OUTPUT = {"type": "function_call_output", "call_id": "call_a", "output": "1"}
CUSTOM_OUTPUT = {"type": "custom_tool_call_output", "call_id": "call_a", "output": "1"}
USER = {"role": "user", "content": "Hi."}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "previous response": ({"previous_response_id": "resp_1"}, "Previous response with id 'resp_1' not found."),
    "conversation": ({"conversation": "conv_1"}, "Conversation with id 'conv_1' not found."),
    "item reference": ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "Item with id 'msg_1' not found."),
    "store": ({"store": True}, "must send 'store' as false"),
    "store by default": ({"store": None}, "must send 'store' as false"),
    "a field of ours": ({"context": {}}, "Unknown parameter: 'context'."),
    "a field of chat": ({"messages": []}, "Unknown parameter: 'messages'."),
    "no input": ({"input": []}, "must be provided"),
    "an output without its call": (
        {"input": [USER, OUTPUT]},
        "No tool call found for function call output with call_id",
    ),
    "an output before its call": (
        {"input": [OUTPUT, CALL]},
        "No tool call found for function call output with call_id",
    ),
    "an output twice": ({"input": [CALL, OUTPUT, OUTPUT]}, "No tool call found for function call output with call_id"),
    "an output of another kind": ({"input": [CALL, CUSTOM_OUTPUT]}, "No tool call found for custom tool call output"),
    "a call without its output": ({"input": [CALL, USER]}, "No tool output found for function call call_a."),
    "a custom call without its output": (
        {"input": [custom_call_item("a", "", "call_c")]},
        "No tool output found for custom tool call call_c.",
    ),
    "a bare reasoning": (
        {"input": [{"type": "reasoning", "id": "rs_1", "summary": []}]},
        "Item with id 'rs_1' not found.",
    ),
    "a foreign secret": (
        {"input": [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}, CALL, OUTPUT]},
        "could not be verified",
    ),
    "a user's part of an assistant": (
        {"input": [{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}]},
        "Invalid value: 'input_text'. Supported values are: 'output_text', 'refusal'.",
    ),
    "an assistant's part of a user": (
        {"input": [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}]},
        "Invalid value: 'output_text'.",
    ),
    "a part of chat": (
        {"input": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        "Invalid value: 'text'.",
    ),
    "a role of chat": ({"input": [{"role": "tool", "content": "x"}]}, "Invalid value: 'tool'."),
    "an unknown item": ({"input": [{"type": "thought"}]}, "Invalid value: 'thought'."),
    "an id of another kind": ({"input": [{**CALL, "id": "msg_1"}, OUTPUT]}, "Expected an ID that begins with 'fc'."),
    "an id of a chat completion": (
        {"input": [{**text_item("x"), "id": "chatcmpl-1"}, USER]},
        "Expected an ID that begins with 'msg'.",
    ),
    "arguments that are no text": ({"input": [{**CALL, "arguments": {}}, OUTPUT]}, "expected a string"),
    "a tool of chat": (
        {"tools": [{"type": "function", "function": {"name": "a"}}]},
        "Missing required parameter: 'tools[0].name'.",
    ),
    "a short answer": ({"max_output_tokens": 15}, "Expected a value >= 16, but got 15 instead."),
    "instructions of items": ({"instructions": [USER]}, "Invalid type for 'instructions'"),
    "no model": ({"model": ""}, "Missing required parameter: 'model'."),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_it_refuses(name: str) -> None:
    fields, message = REFUSED[name]
    upstream = ResponsesUpstream(respond("Not said."))
    answer = await post(upstream, **fields)

    assert answer.status_code in (400, 404)
    error = answer.json()["error"]
    assert message in error["message"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert upstream.refusals == [error]
    assert len(upstream.answers) == 1


async def test_encrypted_reasoning_may_come_back_with_what_follows_it() -> None:
    upstream = ResponsesUpstream(ANSWERS["calls"])
    output = (await post(upstream)).json()["output"]
    results = [{**OUTPUT, "call_id": item["call_id"]} for item in output[1:]]

    assert (await post(upstream, input=[USER, *output, *results])).status_code == 200
    refused = await post(upstream, input=[USER, output[0], USER])
    assert "without its required following item" in refused.json()["error"]["message"]


async def test_reasoning_is_encrypted_only_if_the_request_asks_for_it() -> None:
    upstream = ResponsesUpstream(ANSWERS["calls"])

    assert "encrypted_content" not in (await post(upstream, include=[])).json()["output"][0]
    assert upstream.issued_secrets == set()


async def test_a_prompt_over_the_window_is_refused() -> None:
    answer = await post(ResponsesUpstream(window=100), input="word " * 100)

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert (await post(ResponsesUpstream(window=1000), input="word " * 100)).status_code == 200


async def test_a_prompt_over_the_window_may_fail_in_the_stream() -> None:
    answer = await post(ResponsesUpstream(window=100, fails_in_stream=True), input="word " * 100, stream=True)

    events = read_events(answer.text)
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.failed"]
    assert events[-1]["response"]["error"]["code"] == "context_length_exceeded"


async def test_a_call_of_another_path_is_refused() -> None:
    upstream = ResponsesUpstream()
    async with serving(upstream, lifespan="off") as address, httpx.AsyncClient() as client:
        answer = await client.post(f"{address}/v1/chat/completions", json={"model": "m", "messages": []})

    assert answer.status_code == 404
