"""Anthropic's own client, unchanged, with providers of all three protocols."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pytest
from anthropic import beta_async_tool
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from tests.live import Reply, ScriptedUpstream, chunk, completion, usage_chunk
from tests.support.messages_world import (
    USER,
    MessagesUpstream,
    MessagesWorld,
    messages_world,
    read_events,
    text,
    thinking,
    tool_use,
)
from tests.support.responses_upstream import ResponsesUpstream, function_call_item, respond

UPSTREAMS: dict[str, Any] = {"anthropic": MessagesUpstream, "responses": ResponsesUpstream, "openai": ScriptedUpstream}
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
TOOL: Any = {"name": "look", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}


ASKED: Any = [USER]
INVALID: Any = [{"role": "user", "content": 7}]


def read_text(message: Any) -> str:
    return str(message.content[-1].text)


def client_of(w: MessagesWorld) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=w.base_url.removesuffix("/v1"), api_key="sk-one", max_retries=0)


@pytest.mark.parametrize("provider", UPSTREAMS)
async def test_a_message_is_what_the_client_expects(provider: str) -> None:
    async with messages_world(UPSTREAMS[provider]()) as w, client_of(w) as client:
        message = await client.messages.create(model="m", max_tokens=9, system="Be brief.", messages=ASKED)
        assert isinstance(message, Message)
        Message.model_validate(message.model_dump(), strict=False)
        assert read_text(message) == "Fine."
        assert message.stop_reason == "end_turn"
        assert message.usage.input_tokens > 0
        assert (message.model_extra or {})["context_status"] == "full"


@pytest.mark.parametrize("provider", UPSTREAMS)
async def test_the_streaming_helper_builds_the_message(provider: str) -> None:
    async with messages_world(UPSTREAMS[provider]()) as w, client_of(w) as client:
        async with client.messages.stream(model="m", max_tokens=9, messages=ASKED) as stream:
            words = [piece async for piece in stream.text_stream]
            message = await stream.get_final_message()
        assert "".join(words) == read_text(message) == "Fine."
        assert message.usage.output_tokens > 0
        for event in read_events((await w.ask([USER], stream=True)).content):
            if event["type"] != "ping":
                EVENT.validate_python(event)


@pytest.mark.parametrize("provider", UPSTREAMS)
async def test_the_tool_runner_runs_to_the_end(provider: str) -> None:
    if provider == "anthropic":
        upstream: ScriptedUpstream = MessagesUpstream([thinking(), tool_use(at="gate")], [text("It is open.")])
    elif provider == "responses":
        call = function_call_item("look", '{"at":"gate"}', "toolu_1")
        upstream = ResponsesUpstream(respond(call), respond("It is open."))
    else:
        called = {"id": "toolu_1", "type": "function", "function": {"name": "look", "arguments": '{"at":"gate"}'}}
        upstream = ScriptedUpstream(completion(None, tool_calls=[called]), completion("It is open."))
    looked: list[str] = []

    @beta_async_tool
    async def look(at: str) -> str:
        """Looks at a place.

        Args:
            at: the place.
        """
        looked.append(at)
        return "open"

    async with messages_world(upstream) as w, client_of(w) as client:
        runner = client.beta.messages.tool_runner(model="m", max_tokens=99, tools=[look], messages=ASKED)
        message = await runner.until_done()
        assert looked == ["gate"]
        assert read_text(message) == "It is open."
        assert len(w.conversations()) == 1


async def test_errors_have_the_clients_classes() -> None:
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    async with messages_world(MessagesUpstream(Reply(overloaded, 400))) as w, client_of(w) as client:
        with pytest.raises(anthropic.BadRequestError) as refused:
            await client.messages.create(model="m", max_tokens=9, messages=ASKED)
        assert refused.value.body == overloaded
        with pytest.raises(anthropic.BadRequestError) as refused:
            await client.messages.create(model="m", max_tokens=9, messages=INVALID)
        assert "messages.0.content" in refused.value.message
        assert refused.value.request_id


async def test_a_stream_that_fails_raises() -> None:
    pieces = [chunk({"role": "assistant", "content": "a"}), usage_chunk()]
    async with messages_world(ScriptedUpstream(Reply(pieces=pieces))) as w, client_of(w) as client:
        with pytest.raises(anthropic.APIStatusError):
            async with client.messages.stream(model="m", max_tokens=9, messages=ASKED) as stream:
                await stream.get_final_message()


async def test_tokens_and_models() -> None:
    async with messages_world(MessagesUpstream()) as w, client_of(w) as client:
        count = await client.messages.count_tokens(model="m", messages=ASKED, tools=[TOOL])
        assert count.input_tokens > 0
        models = [model async for model in client.models.list()]
        assert [(model.id, model.type) for model in models] == [("upstream-model", "model")]
        assert (await client.models.retrieve("upstream-model")).display_name == "upstream-model"


async def test_the_synchronous_client_works() -> None:
    def ask(base_url: str) -> str:
        with anthropic.Anthropic(base_url=base_url, auth_token="sk-one", max_retries=0) as client:
            message = client.messages.create(model="m", max_tokens=9, messages=ASKED)
            return read_text(message)

    async with messages_world(MessagesUpstream()) as w:
        assert await asyncio.to_thread(ask, w.base_url.removesuffix("/v1")) == "Fine."
