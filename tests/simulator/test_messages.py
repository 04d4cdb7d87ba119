"""The simulated model as a provider of the Messages API: as strict as Anthropic's, with signed thinking and a cache."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.simulator.options_and_faults import SimulatorOptions
from tests.simulator.counting import RoughCounter
from tests.support.messages_simulator import CachingSimulator
from tests.support.messages_world import join_message, read_events, text, tool_result

TOOL = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
ASKED = {"role": "user", "content": "The gate opens at 06:40. When does the gate open?"}
CALL = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
MARK = {"cache_control": {"type": "ephemeral"}}


def simulator() -> CachingSimulator:
    return CachingSimulator("none", SimulatorOptions(), lambda _: RoughCounter(), clock=lambda: 0.0, new_id=lambda: "1")


async def ask(server: CachingSimulator, *messages: dict[str, Any], **fields: Any) -> tuple[int, Any]:
    body = {"model": "sim-8k", "max_tokens": 200, "messages": list(messages), **fields}
    response = await server.handle("POST", "/messages", {}, orjson.dumps(body))
    content = b"".join([piece async for piece in response.pieces])
    is_stream = response.headers["content-type"].startswith("text/event-stream")
    return response.status, join_message(read_events(content)) if is_stream else orjson.loads(content)


@pytest.mark.parametrize("stream", [False, True])
async def test_it_answers_with_a_message(stream: bool) -> None:
    status, message = await ask(simulator(), ASKED, stream=stream)
    assert status == 200
    assert message["content"] == [text("The gate opens at 06:40.")]
    assert (message["type"], message["stop_reason"]) == ("message", "end_turn")
    assert message["usage"]["input_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_loop_with_thinking(stream: bool) -> None:
    server, enabled = simulator(), {"type": "enabled", "budget_tokens": 1024}
    options: dict[str, Any] = {"tools": [TOOL], "thinking": enabled}
    asked = {"role": "user", "content": "Call get_weather for 'Oslo'."}
    status, first = await ask(server, asked, stream=stream, **options)
    assert [block["type"] for block in first["content"]] == ["thinking", "tool_use"]
    assert (status, first["stop_reason"]) == (200, "tool_use")
    answer = {"role": "assistant", "content": first["content"]}
    result = tool_result("7 degrees", first["content"][1]["id"])
    status, second = await ask(server, asked, answer, result, stream=stream, **options)
    assert status == 200
    assert "7 degrees" in second["content"][-1]["text"]
    edited = {"role": "user", "content": "Call get_weather for 'Bergen'."}
    status, refused = await ask(server, edited, answer, result, **options)
    assert status == 400
    assert refused["error"]["message"].startswith("messages.1.content.0: Invalid `signature`")
    bound = {**enabled, "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    assert (await ask(server, edited, answer, result, tools=[TOOL], thinking=bound))[0] == 200
    bare = {"role": "assistant", "content": first["content"][1:]}
    status, refused = await ask(server, asked, bare, result, **options)
    assert "must start with a thinking block" in refused["error"]["message"]


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([{"role": "assistant", "content": "Yes."}], "first message"),
        ([{"role": "user", "content": [text(" ")]}], "non-whitespace"),
        ([ASKED, {"role": "assistant", "content": "Yes. "}], "trailing whitespace"),
        ([ASKED, {"role": "assistant", "content": [CALL]}, ASKED], "without `tool_result` blocks"),
        ([{"role": "user", "content": [{**text(str(n)), **MARK} for n in range(5)]}], "maximum of 4 blocks"),
    ],
)
async def test_it_refuses_what_anthropic_refuses(messages: list[dict[str, Any]], named: str) -> None:
    status, refused = await ask(simulator(), *messages)
    assert (status, refused["type"], refused["error"]["type"]) == (400, "error", "invalid_request_error")
    assert named in refused["error"]["message"]


async def test_a_prompt_that_is_too_long_is_refused_in_anthropics_words() -> None:
    status, refused = await ask(simulator(), {"role": "user", "content": "word " * 9000})
    assert status == 400
    assert refused["error"]["message"].startswith("prompt is too long: ")


async def test_the_cache_reads_what_was_marked() -> None:
    server = simulator()
    long = {"role": "user", "content": [{**text("word " * 2000), **MARK}]}
    _, first = await ask(server, long)
    usage = first["usage"]
    assert usage["cache_creation_input_tokens"] >= 1024
    assert usage["cache_read_input_tokens"] == 0
    answer = {"role": "assistant", "content": "Noted."}
    again = {"role": "user", "content": [text("word " * 2000)]}
    _, second = await ask(server, again, answer, {"role": "user", "content": [{**text("And?"), **MARK}]})
    assert second["usage"]["cache_read_input_tokens"] == usage["cache_creation_input_tokens"]
    assert 0 < second["usage"]["cache_creation_input_tokens"] < 100
    _, short = await ask(server, {"role": "user", "content": [{**text("Hi"), **MARK}]})
    assert short["usage"]["cache_creation_input_tokens"] == 0
