"""The search tool for clients of the Responses API: its calls are hidden, and several rounds are one answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.dialects.search_tool import TOOL_NAME
from tests.live import DONE, Reply, ScriptedUpstream, chunk, completion, stream, usage_chunk
from tests.support.gateway import call
from tests.support.raw_http import long_talk
from tests.support.responses_upstream import (
    ResponsesUpstream,
    custom_call_item,
    function_call_item,
    reasoning_item,
    respond,
    text_item,
)
from tests.support.responses_world import message, responses_world

SECRET = "The vault opens with quokka-7731 after sunset."
TOOL: dict[str, Any] = {"context": {"recall": "tool", "summarize": "never"}}
EITHER = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
ARGUMENTS = json.dumps({"query": "vault quokka"})


def talk() -> list[dict[str, Any]]:
    """A history of which an 8k window shows the end; the secret stands at its beginning."""
    first = [message(SECRET), message("Noted.", "assistant")]
    return [*first, *(message(one["content"], one["role"]) for one in long_talk(40))]


def search_item(call_id: str) -> dict[str, Any]:
    return function_call_item(TOOL_NAME, ARGUMENTS, call_id)


def chat_reply(streamed: bool, text: str, *calls: dict[str, Any]) -> Reply:
    if not streamed:
        return completion(text or None, tool_calls=list(calls)) if calls else completion(text)
    if not calls:
        return stream(text)
    pieces = [chunk({"tool_calls": [{**one, "index": index}]}) for index, one in enumerate(calls)]
    said = [chunk({"role": "assistant", "content": ""}), chunk({"content": text})]
    return Reply(pieces=[*said, *pieces, chunk({}, "tool_calls"), usage_chunk(10), DONE])


def texts(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


@EITHER
async def test_searches_of_a_responses_provider_are_hidden(streamed: bool) -> None:
    upstream = ResponsesUpstream(
        respond(reasoning_item("I must search."), text_item("Let me see. "), search_item("call_1")),
        respond(reasoning_item("Once more."), search_item("call_2")),
        respond("It is quokka-7731."),
    )
    # What the user said long ago is not shown.
    async with responses_world(upstream, policies={"additive": {"user_text_ratio": 0}}) as w:
        got = await w.respond_either(talk(), stream=streamed, instructions="Be brief.", tools=[LOOK], **TOOL)
        stored = await w.read_response(got["id"])
        again = await w.respond_either("Thanks.", stream=streamed, previous_response_id=got["id"], tools=[LOOK], **TOOL)
    assert upstream.refusals == []
    assert got["status"] == "completed"
    # The first text stands before the reasoning of the next round.
    assert [item["type"] for item in got["output"]] == ["reasoning", "message", "reasoning", "message"]
    assert texts(got).endswith("It is quokka-7731.")
    assert TOOL_NAME not in [tool["name"] for tool in got["tools"]]
    assert [item for item in stored["output"] if item["type"] == "message"] == [
        item for item in got["output"] if item["type"] == "message"
    ]
    assert [one["query"] for one in got["context"]["recalls"]] == ["vault quokka"] * 2
    first, second, third, last = upstream.requests
    assert [tool["name"] for tool in first["tools"]] == ["look", TOOL_NAME]
    assert SECRET not in json.dumps(first["input"])
    assert second["input"][: len(first["input"])] == first["input"]
    for body, call_id in ((second, "call_1"), (third, "call_2")):
        made, found = body["input"][-2:]
        assert (made["type"], made["name"], made["call_id"]) == ("function_call", TOOL_NAME, call_id)
        assert (found["type"], found["call_id"]) == ("function_call_output", call_id)
    assert SECRET in second["input"][-1]["output"]
    assert [body["instructions"] for body in (first, second, third)] == ["Be brief."] * 3
    assert "call_1" not in json.dumps(last["input"])
    assert got["usage"]["input_tokens"] > 3 * 4000
    assert again["status"] == "completed"


async def test_calls_that_come_in_turns_with_a_search_reach_the_client_whole() -> None:
    look = function_call_item("look", json.dumps({"place": "the vault"}), "call_a")
    upstream = ResponsesUpstream(respond("I look.", look, search_item("call_s"), interleaves=True))
    async with responses_world(upstream) as w:
        events = await w.respond_streamed(talk(), tools=[LOOK], **TOOL)
    (call_item,) = [item for item in events[-1]["response"]["output"] if item["type"] == "function_call"]
    assert (call_item["call_id"], call_item["arguments"]) == ("call_a", look["arguments"])
    assert call_item["status"] == "completed"
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert call_item in done


@EITHER
async def test_sealed_reasoning_before_a_search_goes_back_with_its_call(streamed: bool) -> None:
    sealed = {**reasoning_item(), "id": "rs_1", "encrypted_content": "gAAAA"}
    upstream = ResponsesUpstream(respond(sealed, search_item("call_1")), respond("It is quokka-7731."))
    upstream.issued_secrets.add("gAAAA")
    async with responses_world(upstream) as w:
        got = await w.respond_either(talk(), stream=streamed, tools=[LOOK], **TOOL)
    reasoning, made, found = upstream.requests[1]["input"][-3:]
    assert (reasoning["encrypted_content"], made["call_id"], found["call_id"]) == ("gAAAA", "call_1", "call_1")
    assert "gAAAA" not in json.dumps(got)


@EITHER
async def test_searches_of_a_chat_provider_are_hidden(streamed: bool) -> None:
    searches = [call(TOOL_NAME, ARGUMENTS, f"call_{number}") for number in (1, 2)]
    upstream = ScriptedUpstream(
        chat_reply(streamed, "Let me see. ", searches[0]),
        chat_reply(streamed, "", searches[1]),
        chat_reply(streamed, "It is quokka-7731."),
    )
    async with responses_world(upstream) as w:
        got = await w.respond_either(talk(), stream=streamed, tools=[LOOK], **TOOL)
        stored = await w.read_response(got["id"])
    assert [item["type"] for item in got["output"]] == ["message"]
    assert texts(got).endswith("It is quokka-7731.")
    assert stored["output"] == got["output"]
    first, second, third = upstream.requests
    assert [tool["function"]["name"] for tool in first["tools"]] == ["look", TOOL_NAME]
    assert SECRET in second["messages"][-1]["content"]
    assert [one["role"] for one in third["messages"][-4:]] == ["assistant", "tool", "assistant", "tool"]
    assert len(got["context"]["recalls"]) == 2


@EITHER
async def test_a_call_of_the_client_s_own_stays_beside_a_search(streamed: bool) -> None:
    upstream = ResponsesUpstream(
        respond(search_item("call_1"), function_call_item("look", "{}", "call_2")),
        default=lambda body: respond("Done."),
    )
    async with responses_world(upstream) as w:
        got = await w.respond_either(talk(), stream=streamed, tools=[LOOK], **TOOL)
        output = {"type": "function_call_output", "call_id": "call_2", "output": "42"}
        more = await w.respond_either([output], stream=streamed, previous_response_id=got["id"], tools=[LOOK], **TOOL)
    assert upstream.refusals == []
    assert [(item["type"], item["name"], item["call_id"]) for item in got["output"]] == [
        ("function_call", "look", "call_2")
    ]
    assert texts(more) == "Done."
    assert "call_1" not in json.dumps(upstream.requests[-1]["input"])


@EITHER
async def test_an_answer_without_a_search_keeps_its_items(streamed: bool) -> None:
    """The tool was offered and not used: hosted calls and encrypted reasoning are stored as they came."""
    upstream = ResponsesUpstream(respond(reasoning_item("Hm."), custom_call_item("patch", "x", "c1")), respond("Done."))
    tools = [LOOK, {"type": "custom", "name": "patch"}]
    async with responses_world(upstream) as w:
        got = await w.respond_either(talk(), stream=streamed, tools=tools, **TOOL)
        outputs = [{"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}]
        await w.respond_either(outputs, stream=streamed, previous_response_id=got["id"], tools=tools)
    assert upstream.refusals == []
    assert [item["type"] for item in got["output"]] == ["reasoning", "custom_tool_call"]
    kinds = [item["type"] for item in upstream.requests[-1]["input"][-3:]]
    assert kinds == ["reasoning", "custom_tool_call", "custom_tool_call_output"]
