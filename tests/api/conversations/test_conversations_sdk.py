"""Conversations and their items through OpenAI's own client, unchanged."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai.types.conversations import Conversation, ConversationDeletedResource, ConversationItemList, Message
from openai.types.responses import ResponseFunctionToolCallItem

from tests.live import ScriptedUpstream, completion
from tests.support.gateway import World, answering, summaries_asked, user, world

HELLO: Any = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello, how can I help you?"}]


def client_of(w: World, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=w.base_url, api_key="sk-one", max_retries=0, **options)


def text_of(item: Any) -> str:
    return str(item.content[0].text)


def asked(text: str) -> Any:
    return [user(text)]


async def test_a_conversation_lives_from_its_creation_to_its_deletion() -> None:
    async with world(ScriptedUpstream(default=answering)) as w, client_of(w) as client:
        begun = await client.conversations.create(metadata={"topic": "demo"}, items=HELLO)
        assert isinstance(begun, Conversation)
        assert (begun.object, begun.metadata) == ("conversation", {"topic": "demo"})
        assert (await client.conversations.retrieve(begun.id)) == begun
        changed = await client.conversations.update(begun.id, metadata={"topic": "other"})
        assert changed.metadata == {"topic": "other"}
        cleared = await client.conversations.update(begun.id, metadata=None)
        assert cleared.metadata == {}
        gone = await client.conversations.delete(begun.id)
        assert gone == ConversationDeletedResource(id=begun.id, deleted=True, object="conversation.deleted")
        for ask in (client.conversations.retrieve, client.conversations.delete):
            with pytest.raises(openai.NotFoundError) as missing:
                await ask(begun.id)
            assert missing.value.code == "conversation_not_found"


async def test_items_are_added_listed_read_and_deleted() -> None:
    async with world(ScriptedUpstream(default=answering)) as w, client_of(w) as client:
        begun = await client.conversations.create()
        added = await client.conversations.items.create(
            begun.id,
            items=[
                *HELLO,
                {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "42"},
            ],
            include=["reasoning.encrypted_content"],
        )
        assert isinstance(added, ConversationItemList)
        assert [type(item).__name__ for item in added.data] == [
            "Message",
            "Message",
            "ResponseFunctionToolCallItem",
            "ResponseFunctionToolCallOutputItem",
        ]
        assert (added.first_id, added.last_id, added.has_more) == (added.data[0].id, added.data[-1].id, False)
        found = await client.conversations.items.retrieve(
            added.data[2].id or "", conversation_id=begun.id, include=["message.output_text.logprobs"]
        )
        assert isinstance(found, ResponseFunctionToolCallItem)
        assert found == added.data[2]
        left = await client.conversations.items.delete(added.data[0].id or "", conversation_id=begun.id)
        assert isinstance(left, Conversation)
        assert left.id == begun.id
        page = await client.conversations.items.list(begun.id, order="asc")
        assert [item.id for item in page.data] == [item.id for item in added.data[1:]]


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_the_client_turns_the_pages_by_itself(order: Any) -> None:
    async with world(ScriptedUpstream(default=answering)) as w, client_of(w) as client:
        begun = await client.conversations.create(items=[{"role": "user", "content": str(at)} for at in range(20)])
        await client.conversations.items.create(begun.id, items=[{"role": "user", "content": "last"}])
        pages = client.conversations.items.list(begun.id, limit=4, order=order)
        told = [text_of(item) async for item in pages if isinstance(item, Message)]
    assert told == [*map(str, range(20)), "last"][:: 1 if order == "asc" else -1]


async def test_a_page_is_the_newest_twenty_unless_it_is_asked_otherwise() -> None:
    async with world(ScriptedUpstream(default=answering)) as w, client_of(w) as client:
        begun = await client.conversations.create(items=[{"role": "user", "content": str(at)} for at in range(20)])
        await client.conversations.items.create(begun.id, items=[{"role": "user", "content": "last"}])
        page = await client.conversations.items.list(begun.id)
        assert (len(page.data), page.has_more) == (20, True)
        assert text_of(page.data[0]) == "last"
        for limit in (0, 101):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.conversations.items.list(begun.id, limit=limit)
            assert refused.value.param == "limit"


async def test_raw_and_streaming_answers_carry_the_ids() -> None:
    async with world(ScriptedUpstream(default=answering)) as w, client_of(w) as client:
        raw = await client.conversations.with_raw_response.create(items=HELLO)
        begun = raw.parse()
        assert raw.headers["x-conversation-id"] == begun.id
        assert raw.headers["x-request-id"]
        async with client.conversations.items.with_streaming_response.list(begun.id) as response:
            page = await response.parse()
            assert len(page.data) == 2
            assert response.headers["x-conversation-id"] == begun.id


async def test_the_synchronous_client_works() -> None:
    def play(base_url: str) -> list[str]:
        with openai.OpenAI(base_url=base_url, api_key="sk-one", max_retries=0) as client:
            begun = client.conversations.create(items=HELLO)
            with client.conversations.with_streaming_response.retrieve(begun.id) as response:
                assert response.parse() == begun
            ids = [item.id or "" for item in client.conversations.items.list(begun.id, limit=1, order="asc")]
            raw = client.conversations.items.with_raw_response.retrieve(ids[0], conversation_id=begun.id)
            assert raw.parse().id == ids[0]
            client.conversations.delete(begun.id)
            return [one.split("_")[0] for one in ids]

    async with world(ScriptedUpstream()) as w:
        assert await asyncio.to_thread(play, w.base_url) == ["msg", "msg"]


@pytest.mark.parametrize("naming", ["header", "field", "object"])
async def test_a_chat_completion_goes_on_where_the_items_end(naming: str) -> None:
    upstream = ScriptedUpstream(default=answering)
    async with world(upstream) as w, client_of(w) as client:
        begun = await client.conversations.create(items=[{"role": "system", "content": "Be kind."}, *HELLO])
        named: Any = {
            "header": {"extra_headers": {"x-conversation-id": begun.id}},
            "field": {"extra_body": {"conversation": begun.id}},
            "object": {"extra_body": {"conversation": {"id": begun.id}}},
        }[naming]
        for _ in range(2):
            answer = await client.chat.completions.create(model="m", messages=asked("Go on."), **named)
            assert (answer.model_extra or {})["conversation_id"] == begun.id
        assert [one["content"] for one in upstream.requests[-1]["messages"]] == [
            "Be kind.",
            "Hi",
            "Hello, how can I help you?",
            "Go on.",
            "You said: Go on.",
            "Go on.",
        ]
        found = await client.conversations.retrieve(begun.id)
        assert found.model_extra is not None
        assert (found.model_extra["messages"], found.model_extra["mode"]) == (6, "append")


async def test_an_empty_conversation_grows_until_it_is_summarized() -> None:
    upstream = ScriptedUpstream(default=answering)
    async with world(upstream, window=2000) as w, client_of(w) as client:
        begun = await client.conversations.create()
        for turn in range(16):
            answer = await client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": f"Question {turn}: " + "word " * 120}],
                extra_body={"conversation": {"id": begun.id}},
            )
            assert (answer.model_extra or {})["conversation_id"] == begun.id
        assert len(summaries_asked(upstream)) >= 1
        items = [item async for item in client.conversations.items.list(begun.id, order="asc", limit=7)]
        summaries = [item for item in items if item.type == "compaction"]
        assert summaries
        assert (summaries[0].encrypted_content or "").startswith("They spoke about many things")
        assert sum(item.type == "message" for item in items) == 32
        again = await client.conversations.items.list(begun.id, after=summaries[0].id or "", order="asc", limit=1)
        assert again.data[0] == items[items.index(summaries[0]) + 1]


async def test_a_conversation_with_items_that_were_put_in_is_used_by_naming_it() -> None:
    async with world(ScriptedUpstream(default=answering)) as w, client_of(w) as client:
        begun = await client.conversations.create(items=HELLO)
        answer = await client.chat.completions.create(
            model="m",
            messages=[{"role": "system", "content": "Today."}, *HELLO, *asked("Go on.")],
            extra_body={"conversation": {"id": begun.id}},
        )
        assert (answer.model_extra or {})["conversation_id"] == begun.id
        # Answers that were put in prove nothing: somebody else may have got the same ones.
        unnamed = await client.chat.completions.create(model="m", messages=[*HELLO, *asked("Go on.")])
        assert (unnamed.model_extra or {})["conversation_id"] != begun.id


async def test_a_resent_history_is_recognised_in_a_conversation_that_was_begun_empty() -> None:
    async with world(ScriptedUpstream(default=answering)) as w, client_of(w) as client:
        begun = await client.conversations.create()
        history: Any = [user("What is a concertina?")]
        for _ in range(3):
            answer = await client.chat.completions.create(
                model="m", messages=history, extra_headers={"x-conversation-id": begun.id}
            )
            assert (answer.model_extra or {})["conversation_id"] == begun.id
            assert (answer.model_extra or {})["context_status"] == "full"
            history += [{"role": "assistant", "content": answer.choices[0].message.content}, user("And then?")]
        assert len(w.conversations()) == 1
        assert await w.log(begun.id) == [one for one in await w.log(begun.id) if one["role"] in ("user", "assistant")]
        assert len(await w.log(begun.id)) == 6


async def test_items_that_follow_a_question_without_an_answer_are_no_question() -> None:
    failing = completion()
    failing.status, failing.body = 400, {"error": {"message": "no", "type": "x", "param": None, "code": None}}
    upstream = ScriptedUpstream(failing, default=answering)
    async with world(upstream) as w, client_of(w) as client:
        begun = await client.conversations.create()
        named: Any = {"extra_body": {"conversation": begun.id}}
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="m", messages=asked("Ask."), **named)
        await client.conversations.items.create(begun.id, items=[{"role": "user", "content": "By hand."}])
        await client.chat.completions.create(model="m", messages=asked("By hand."), **named)
        told = [one["content"] for one in await w.log(begun.id)]
    assert told == ["Ask.", "By hand.", "By hand.", "You said: By hand."]


async def test_an_answer_that_was_put_in_by_hand_is_not_replayed() -> None:
    async with world(ScriptedUpstream(default=answering)) as w, client_of(w) as client:
        begun = await client.conversations.create(
            items=[*asked("Hi"), {"role": "assistant", "content": "Hello", "phase": "final_answer"}]
        )
        answer = await client.chat.completions.create(
            model="m",
            messages=asked("Hi"),
            extra_body={"conversation": begun.id},
            extra_headers={"x-stainless-retry-count": "1"},
        )
        assert answer.choices[0].message.content == "You said: Hi"


async def test_a_clients_own_id_names_its_conversation() -> None:
    async with world(ScriptedUpstream(default=answering)) as w, client_of(w) as client:
        await client.chat.completions.create(
            model="m",
            messages=asked("Hi"),
            extra_headers={"x-conversation-id": "chat-7"},
        )
        found = await client.conversations.retrieve("chat-7")
        assert found.id.startswith("conv_")
        assert (found.model_extra or {})["external_id"] == "chat-7"
        assert len((await client.conversations.items.list("chat-7")).data) == 2


async def test_nothing_is_kept_of_a_request_that_is_refused() -> None:
    async with world(ScriptedUpstream(default=answering)) as w, client_of(w) as client:
        begun = await client.conversations.create()
        bad: Any = [*HELLO, {"type": "web_search_call", "id": "ws_1", "status": "completed"}]
        for ask in (
            lambda: client.conversations.create(items=bad),
            lambda: client.conversations.items.create(begun.id, items=bad),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                await ask()
            assert refused.value.param == "items[2].type"
        assert w.rows() == 0
        assert [one.id for one in w.conversations()] == [begun.id]
