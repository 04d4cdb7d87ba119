"""OpenAI's own client, unchanged, with and without a compaction in the stream."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from tests.live import DONE, Reply, ScriptedUpstream, chunk, completion, stream
from tests.support.gateway import World, user, world
from tests.support.raw_http import long_talk, summarizing

TALKS: dict[str, Any] = {"short": [user("x")], "compacted": long_talk()}
TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def client_of(w: World, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=w.base_url, api_key="sk-one", max_retries=0, **options)


@pytest.mark.parametrize("talk", TALKS)
async def test_an_answer_is_what_the_client_expects_and_ours_are_extra(talk: str) -> None:
    async with world(summarizing()) as w, client_of(w) as client:
        answer = await client.chat.completions.with_raw_response.create(model="m", messages=TALKS[talk])
        body = answer.parse()
    assert body.choices[0].message.content == "Fine."
    assert body.usage is not None
    assert body.usage.prompt_tokens == 10
    extra = body.model_extra or {}
    assert extra["context_status"] == ("full" if talk == "short" else "summarized")
    assert extra["conversation_id"] == answer.headers["x-conversation-id"]
    assert body._request_id == answer.headers["x-request-id"]


@pytest.mark.parametrize("style", ["chunk", "comment", "off"])
@pytest.mark.parametrize("talk", TALKS)
async def test_a_naive_loop_over_chunks_works(talk: str, style: str) -> None:
    async with world(summarizing()) as w, client_of(w) as client:
        text, events = "", []
        headers = {"x-context-events": style}
        parts: Any = await client.chat.completions.create(
            model="m", messages=TALKS[talk], stream=True, extra_headers=headers
        )
        async for part in parts:
            text += part.choices[0].delta.content or ""
            events.append((part.model_extra or {}).get("context_event"))
    assert text == "Fine."
    told = [event["type"] for event in events if event]
    assert told == (["compaction_started", "compaction_completed"] if (talk, style) == ("compacted", "chunk") else [])


@pytest.mark.parametrize("talk", TALKS)
async def test_the_synchronous_client_works(talk: str) -> None:
    def ask(base_url: str) -> tuple[str, str | None]:
        with openai.OpenAI(base_url=base_url, api_key="sk-one", max_retries=0) as client:
            parts: Any = client.chat.completions.create(model="m", messages=TALKS[talk], stream=True)
            streamed = "".join(part.choices[0].delta.content or "" for part in parts)
            whole = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "y"}])
            return streamed, whole.choices[0].message.content

    async with world(summarizing()) as w:
        assert await asyncio.to_thread(ask, w.base_url) == ("Fine.", "Fine.")


@pytest.mark.parametrize("talk", TALKS)
async def test_the_stream_helper_gathers_the_answer(talk: str) -> None:
    async with (
        world(summarizing()) as w,
        client_of(w) as client,
        client.chat.completions.stream(
            model="m",
            messages=TALKS[talk],
            stream_options={"include_usage": True},
        ) as events,
    ):
        told = [event async for event in events]
        final = await events.get_final_completion()
    assert final.choices[0].message.content == "Fine."
    assert final.choices[0].finish_reason == "stop"
    assert final.usage is not None
    assert final.usage.prompt_tokens == 10
    assert "content.done" in [event.type for event in told]
    statuses = [(event.chunk.model_extra or {})["context_status"] for event in told if event.type == "chunk"]
    assert statuses[-1] == ("full" if talk == "short" else "summarized")
    assert (final.model_extra or {})["context_status"] == statuses[0]


@pytest.mark.parametrize("talk", TALKS)
async def test_the_stream_helper_gathers_tool_calls(talk: str) -> None:
    begin = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    pieces = [
        chunk({"role": "assistant", "content": None, "tool_calls": [begin]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]}),
        chunk({}, "tool_calls"),
        DONE,
    ]
    async with (
        world(summarizing(lambda _: Reply(pieces=pieces))) as w,
        client_of(w) as client,
        client.chat.completions.stream(model="m", messages=TALKS[talk], tools=[TOOL]) as events,
    ):
        final = await events.get_final_completion()
    assert final.choices[0].message.tool_calls
    (call,) = final.choices[0].message.tool_calls
    assert (call.id, call.function.name, call.function.arguments) == ("c1", "f", '{"a": 1}')


async def test_an_error_in_the_stream_is_raised() -> None:
    for talk in TALKS.values():
        broken = Reply(pieces=[chunk({"role": "assistant", "content": "Half an"}), DONE])
        async with world(summarizing(lambda _: broken)) as w, client_of(w) as client:  # noqa: B023
            parts: Any = await client.chat.completions.create(model="m", messages=talk, stream=True)
            text = ""
            with pytest.raises(openai.APIError) as raised:  # noqa: PT012 - it is the loop that raises
                async for part in parts:
                    text += part.choices[0].delta.content or ""
    assert (text, raised.value.code) == ("Half an", "upstream_unavailable")


async def test_errors_become_the_clients_own_classes() -> None:
    cases: list[tuple[int, type[openai.APIStatusError]]] = [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (422, openai.UnprocessableEntityError),
    ]
    for status, kind in cases:
        refusal = Reply({"error": {"message": "no", "type": "t", "param": "p", "code": "c"}}, status=status)
        async with world(ScriptedUpstream(refusal)) as w, client_of(w) as client:
            with pytest.raises(kind) as raised:
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        assert (raised.value.code, raised.value.param, raised.value.request_id is not None) == ("c", "p", True)


async def test_the_client_does_not_retry_what_a_retry_cannot_mend() -> None:
    said: Any = [user("far " * 20_000)]
    async with (
        world(ScriptedUpstream()) as w,
        openai.AsyncOpenAI(base_url=w.base_url, api_key="sk-one", max_retries=2) as client,
    ):
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(model="m", messages=said)
    assert raised.value.code == "context_length_exceeded"
    assert w.upstream.bodies == []


async def test_models_and_embeddings_are_there_for_the_client() -> None:
    embedded = {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
        "model": "e",
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    }
    async with world(ScriptedUpstream(default=lambda _: Reply(embedded))) as w, client_of(w) as client:
        models = [model async for model in client.models.list()]
        answer = await client.embeddings.create(model="e", input="x", encoding_format="float")
    assert [(model.id, (model.model_extra or {})["context_window"]) for model in models] == [("upstream-model", 8192)]
    assert answer.data[0].embedding == [0.5]


async def test_turns_of_one_client_are_one_conversation() -> None:
    upstream = ScriptedUpstream(default=lambda body: stream("Fi", "ne.") if body.get("stream") else completion())
    async with world(upstream) as w, client_of(w) as client:
        said: list[Any] = [user("one")]
        ids = set()
        for streamed in (False, True, False):
            if streamed:
                async with client.chat.completions.stream(model="m", messages=said) as events:
                    final: Any = await events.get_final_completion()
            else:
                final = await client.chat.completions.create(model="m", messages=said)
            ids.add(final.conversation_id)
            said += [final.choices[0].message.model_dump(), user("more")]
        assert w.rows() == 6
    assert len(ids) == 1
