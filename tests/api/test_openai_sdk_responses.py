"""OpenAI's own client, unchanged, over the Responses API. It checks each body and each event against its types."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import openai
import pydantic
import pytest
from openai.types.responses import Response

from tests.live import DONE, Reply, ScriptedUpstream, chunk, completion, stream
from tests.support.gateway import World, user, world
from tests.support.raw_http import long_talk, summarizing

TALKS: dict[str, Any] = {"short": [user("x")], "compacted": long_talk()}
TOOL: Any = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False}
CALL: Any = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TEXT_EVENTS = [
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
CALL_EVENTS = [
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
]


class Weather(pydantic.BaseModel):
    celsius: int


@asynccontextmanager
async def client_of(w: World, *, is_strict: bool = True) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client; a strict one raises `APIResponseValidationError` for a body or an event that does not fit its types."""
    async with openai.AsyncOpenAI(
        base_url=w.base_url, api_key="sk-one", max_retries=0, _strict_response_validation=is_strict
    ) as client:
        yield client


async def gather_events(client: openai.AsyncOpenAI, **fields: Any) -> list[Any]:
    """The events of a stream, whose numbers are checked."""
    parts: Any = await client.responses.create(model="m", stream=True, **fields)
    events = [event async for event in parts]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


def list_types(events: list[Any]) -> list[str]:
    """The types of events; equal neighbours count once."""
    return [kind for kind, _ in itertools.groupby(event.type for event in events)]


@pytest.mark.parametrize("talk", TALKS)
async def test_an_answer_is_what_the_client_expects_and_ours_are_extra(talk: str) -> None:
    async with world(summarizing()) as w, client_of(w) as client:
        answer = await client.responses.with_raw_response.create(model="m", input=TALKS[talk])
        body = answer.parse()
        found = await client.responses.retrieve(body.id)
    assert (body.object, body.status, body.output_text) == ("response", "completed", "Fine.")
    assert body.usage is not None
    assert (body.usage.input_tokens, body.usage.output_tokens, body.usage.total_tokens) == (10, 2, 12)
    extra = body.model_extra or {}
    assert extra["context_status"] == ("full" if talk == "short" else "summarized")
    assert extra["conversation_id"] == answer.headers["x-conversation-id"]
    assert body._request_id == answer.headers["x-request-id"]
    assert (found.id, found.output, found.status) == (body.id, body.output, "completed")


@pytest.mark.parametrize("talk", TALKS)
async def test_a_stream_has_all_events_in_order(talk: str) -> None:
    async with world(summarizing()) as w, client_of(w) as client:
        events = await gather_events(client, input=TALKS[talk])
        found = await client.responses.retrieve(events[-1].response.id)
    assert list_types(events) == ["response.created", "response.in_progress", *TEXT_EVENTS, "response.completed"]
    progress = [event.model_extra["context_event"]["type"] for event in events if "context_event" in event.model_extra]
    assert progress == ([] if talk == "short" else ["compaction_started", "compaction_completed"])
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Fine."
    first, last = events[0].response, events[-1].response
    assert (first.id, first.status, first.output, first.created_at) == (last.id, "in_progress", [], last.created_at)
    assert (last.status, last.output_text) == ("completed", "Fine.")
    assert {event.item_id for event in events if hasattr(event, "item_id")} == {last.output[0].id}
    assert last.model_extra["context_status"] == ("full" if talk == "short" else "summarized")
    assert found.output == last.output


async def test_calls_come_as_items_and_their_outputs_go_back() -> None:
    begin = {**CALL, "index": 0, "function": {"name": "f", "arguments": ""}}
    pieces = [
        chunk({"role": "assistant", "content": None, "tool_calls": [begin]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]}),
        chunk({}, "tool_calls"),
        DONE,
    ]
    upstream = ScriptedUpstream(Reply(pieces=pieces), stream("Done."), completion(None, tool_calls=[CALL]))
    async with world(upstream) as w, client_of(w) as client:
        events = await gather_events(client, input="x", tools=[TOOL])
        called = events[-1].response
        output: Any = [{"type": "function_call_output", "call_id": "c1", "output": "2"}]
        told = await gather_events(client, input=output, tools=[TOOL], previous_response_id=called.id)
        whole = await client.responses.create(model="m", input="y", tools=[TOOL])
    assert list_types(events) == ["response.created", "response.in_progress", *CALL_EVENTS, "response.completed"]
    for output_items in (called.output, whole.output):
        (call,) = cast(list[Any], output_items)
        assert (call.type, call.call_id, call.name, call.arguments) == ("function_call", "c1", "f", '{"a": 1}')
    assert told[-1].response.output_text == "Done."
    assert [message["role"] for message in upstream.requests[1]["messages"]] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("talk", TALKS)
async def test_the_stream_helper_gathers_the_answer(talk: str) -> None:
    async with (
        world(summarizing()) as w,
        client_of(w) as client,
        client.responses.stream(model="m", input=TALKS[talk]) as events,
    ):
        kinds = [event.type async for event in events]
        final = await events.get_final_response()
    assert final.output_text == "Fine."
    assert kinds[-1] == "response.completed"


async def test_a_typed_answer_is_parsed() -> None:
    upstream = ScriptedUpstream(default=lambda _: completion('{"celsius": -4}'))
    async with world(upstream) as w, client_of(w) as client:
        answer = await client.responses.parse(model="m", input="x", text_format=Weather)
    assert answer.output_parsed == Weather(celsius=-4)
    assert upstream.requests[0]["response_format"]["json_schema"]["name"] == "Weather"


async def test_an_answer_is_continued_by_id_and_in_a_conversation() -> None:
    upstream = ScriptedUpstream()
    async with world(upstream) as w, client_of(w) as client:
        first = await client.responses.create(model="m", input="one")
        second = await client.responses.create(model="m", input="two", previous_response_id=first.id)
        conversation = await client.conversations.create()
        for text in ("one", "two"):
            third: Response = await client.responses.create(model="m", input=text, conversation=conversation.id)
        pages = await client.responses.input_items.list(third.id, order="asc")
        counted = await client.responses.input_tokens.count(model="m", input="three", previous_response_id=second.id)
    contents = [[message["content"] for message in body["messages"]] for body in upstream.requests]
    assert contents == [["one"], ["one", "Fine.", "two"]] * 2
    assert second.previous_response_id == first.id
    assert third.conversation is not None
    assert third.conversation.id == conversation.id
    assert [item.type for item in pages.data] == ["message"] * 3
    assert counted.input_tokens > 3


async def test_the_synchronous_client_works() -> None:
    def ask(base_url: str) -> list[str]:
        with openai.OpenAI(
            base_url=base_url, api_key="sk-one", max_retries=0, _strict_response_validation=True
        ) as client:
            whole = client.responses.create(model="m", input="x")
            with client.responses.stream(model="m", input="y") as events:
                streamed = events.get_final_response()
            client.responses.delete(whole.id)
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(whole.id)
            return [whole.output_text, streamed.output_text]

    async with world(ScriptedUpstream()) as w:
        assert await asyncio.to_thread(ask, w.base_url) == ["Fine.", "Fine."]


async def test_what_fails_is_an_error_with_a_code() -> None:
    broken = Reply(pieces=[chunk({"role": "assistant", "content": "Half an"}), DONE])
    async with world(ScriptedUpstream(broken)) as w, client_of(w) as client:
        events = await gather_events(client, input="x")
        with pytest.raises(openai.BadRequestError) as raised:
            await client.responses.create(model="m", input="x", previous_response_id=f"resp_{'0' * 48}")
    assert events[-1].type == "response.failed"
    assert (events[-1].response.status, events[-1].response.error.code) == ("failed", "server_error")
    assert (raised.value.code, raised.value.param) == ("previous_response_not_found", "previous_response_id")
