"""What the compliance suite of github.com/openresponses/openresponses asks for, over HTTP alone: its nine
requests, and the fields that its schemas require of the answers. One case, `response-output-phase-schema`, sends
nothing. Its seven cases over WebSocket cannot pass: the gateway has no WebSocket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest

from tests.live import Reply, ScriptedUpstream, completion
from tests.support.gateway import answering
from tests.support.response_types import accumulate_events
from tests.support.responses_world import ResponsesWorld, message, responses_world

RESPONSE_FIELDS: Final = (
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "previous_response_id"),
    *("instructions", "output", "error", "tools", "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p"),
    *("presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "reasoning", "user", "usage"),
    *("max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata", "safety_identifier"),
    "prompt_cache_key",
)
ITEM_FIELDS: Final = {
    "message": ("id", "status", "role", "content"),
    "function_call": ("id", "call_id", "name", "arguments", "status"),
    "compaction": ("id", "encrypted_content"),
}
PART_FIELDS: Final = {"output_text": ("text", "annotations", "logprobs"), "input_text": ("text",)}
USAGE_FIELDS: Final = {
    "input_tokens_details": ("cached_tokens",),
    "output_tokens_details": ("reasoning_tokens",),
}
WEATHER: Final = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
PIXEL: Final = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg"
    "=="
)
REQUESTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "basic-response": {"input": [message("Say hello in exactly 3 words.")]},
    "assistant-phase": {
        "input": [
            {**message("I should answer with the saved number.", "assistant"), "phase": "commentary"},
            {**message("The number is four.", "assistant"), "phase": "final_answer"},
            message("Repeat only the number."),
        ]
    },
    "streaming-response": {"input": [message("Count from 1 to 5.")], "stream": True},
    "system-prompt": {"input": [message("You are a pirate.", "system"), message("Say hello.")]},
    "tool-calling": {"input": [message("What's the weather like in San Francisco?")], "tools": [WEATHER]},
    "image-input": {
        "input": [
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What do you see in this image?"},
                    {"type": "input_image", "image_url": PIXEL},
                ],
            }
        ]
    },
    "multi-turn": {
        "input": [
            message("My name is Alice."),
            message("Hello Alice! How can I help you today?", "assistant"),
            message("What is my name?"),
        ]
    },
}
TO_COMPACT: Final = [
    message("We agreed to launch on Tuesday and notify support first."),
    message("Understood. The launch is Tuesday, with support notified beforehand.", "assistant"),
]


def answer(body: dict[str, Any]) -> Reply:
    if not body.get("tools"):
        return answering(body)
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"location":"SF"}'}}
    return completion(None, tool_calls=[call])


def list_missing(value: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [name for name in names if name not in value]


def check_items(items: Sequence[Mapping[str, Any]]) -> None:
    for item in items:
        assert list_missing(item, ITEM_FIELDS[item["type"]]) == []
        for part in item.get("content", ()):
            assert list_missing(part, PART_FIELDS[part["type"]]) == []


def check_response(response: Mapping[str, Any]) -> None:
    assert list_missing(response, RESPONSE_FIELDS) == []
    assert response["object"] == "response"
    assert isinstance(response["completed_at"], int)
    assert response["completed_at"] >= response["created_at"]
    assert response["output"]
    check_items(response["output"])
    for name, details in USAGE_FIELDS.items():
        assert list_missing(response["usage"][name], details) == []


async def send(w: ResponsesWorld, fields: Mapping[str, Any]) -> dict[str, Any]:
    if not fields.get("stream"):
        return await w.respond(fields["input"], **{name: fields[name] for name in fields if name != "input"})
    events = await w.respond_streamed(fields["input"])
    accumulate_events(events)
    for event in events:
        if "response" in event:
            assert list_missing(event["response"], RESPONSE_FIELDS) == []
    begun: dict[str, Any] = events[0]["response"]
    assert begun["completed_at"] is None
    ended: dict[str, Any] = events[-1]["response"]
    return ended


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_response_has_what_the_suite_requires(name: str) -> None:
    async with responses_world(ScriptedUpstream(default=answer)) as w:
        response = await send(w, REQUESTS[name])
        check_response(response)
        assert response["status"] == "completed"
        if name == "tool-calling":
            assert [item["type"] for item in response["output"]] == ["function_call"]
        stored = await w.read_response(response["id"])
        assert list_missing(stored, RESPONSE_FIELDS) == []
        assert stored["completed_at"] == response["completed_at"]


async def test_a_compaction_has_what_the_suite_requires() -> None:
    async with responses_world(ScriptedUpstream(default=answer)) as w:
        answered = await w.client.post(
            f"{w.base_url}/responses/compact",
            json={"model": "m", "prompt_cache_key": "openresponses-compact-test", "input": TO_COMPACT},
            headers={"authorization": "Bearer sk-one"},
        )
        assert answered.status_code == 200
        body = answered.json()
        assert (body["object"], type(body["created_at"])) == ("response.compaction", int)
        assert body["output"][-1]["type"] == "compaction"
        check_items(body["output"])
        for name, details in USAGE_FIELDS.items():
            assert list_missing(body["usage"][name], details) == []


async def test_a_compaction_without_a_model_is_refused() -> None:
    async with responses_world(ScriptedUpstream(default=answer)) as w:
        answered = await w.client.post(
            f"{w.base_url}/responses/compact",
            json={"input": [message("Compact this conversation.")]},
            headers={"authorization": "Bearer sk-one"},
        )
        assert answered.status_code == 400
        assert answered.json()["error"]["param"] == "model"
