"""Stored completions through OpenAI's own client: kept when it asks for that, listed, read, described, forgotten."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from tests.live import DROP, Reply, ScriptedUpstream, chunk, completion, stream
from tests.support.gateway import World, answering, assistant, call, result, system, user, world

TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def client_of(w: World, key: str = "sk-one") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=w.base_url, api_key=key, max_retries=0)


def numbered() -> ScriptedUpstream:
    """An upstream whose answers have ids of their own."""
    count = iter(range(1, 10_000))

    def reply(body: dict[str, Any]) -> Reply:
        answer = answering(body)
        if answer.body is not None:
            answer.body["id"] = f"chatcmpl-{next(count)}"
        return answer

    return ScriptedUpstream(default=reply)


async def kept(w: World, count: int, **fields: Any) -> list[str]:
    """Ids of completions that were stored, oldest first."""
    return [(await w.say([user(f"Question {number}")], store=True, **fields))["id"] for number in range(count)]


async def test_a_stored_completion_is_what_was_answered() -> None:
    said: list[Any] = [system("Be brief."), user("Hello")]
    async with world(numbered()) as w, client_of(w) as client:
        answer = await client.chat.completions.create(
            model="m", messages=said, store=True, temperature=0.5, seed=7, tools=[TOOL], metadata={"topic": "demo"}
        )
        found = await client.chat.completions.retrieve(answer.id)
    extra = found.model_extra or {}
    assert found.id == answer.id
    assert found.choices == answer.choices
    assert found.usage == answer.usage
    assert found.model == answer.model
    assert found.metadata == {"topic": "demo"}
    assert (extra["temperature"], extra["seed"], extra["tools"], extra["top_p"]) == (0.5, 7, [TOOL], None)
    assert extra["conversation_id"] == (answer.model_extra or {})["conversation_id"]
    (sent,) = w.upstream.requests
    assert sent.keys().isdisjoint({"store", "metadata"})


@pytest.mark.parametrize("store", [None, False])
async def test_only_what_is_asked_for_is_kept(store: bool | None) -> None:
    async with world(numbered()) as w, client_of(w) as client:
        await w.say([user("Hello")], store=store)
        listed = [one async for one in client.chat.completions.list()]
        with pytest.raises(openai.NotFoundError) as raised:
            await client.chat.completions.retrieve("chatcmpl-1")
    assert listed == []
    assert "chatcmpl-1" in raised.value.message


async def test_a_stream_is_kept_as_soon_as_it_ends() -> None:
    async with world(ScriptedUpstream(stream("Fi", "ne."))) as w, client_of(w) as client:
        parts: Any = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Hello"}], store=True, stream=True
        )
        ids = {part.id async for part in parts}
        (completion_id,) = ids
        found = await client.chat.completions.retrieve(completion_id)
    assert found.choices[0].message.content == "Fine."
    assert found.object == "chat.completion"


async def test_a_stream_that_broke_off_is_no_completion() -> None:
    broken = Reply(pieces=[chunk({"role": "assistant", "content": "Half an"}), DROP])
    async with world(ScriptedUpstream(broken)) as w, client_of(w) as client:
        await w.post([user("Hello")], stream=True, store=True)
        assert w.rows() == 2
        assert [one async for one in client.chat.completions.list()] == []


@pytest.mark.parametrize("given", [None, "", "\0", "x" * 5000])
async def test_an_answer_without_an_id_is_listed_under_one_of_ours(given: str | None) -> None:
    nameless = completion("Fine.")
    nameless.body["id"] = given
    async with world(ScriptedUpstream(nameless)) as w, client_of(w) as client:
        await w.say([user("Hello")], store=True)
        (listed,) = [one async for one in client.chat.completions.list()]
        assert (await client.chat.completions.retrieve(listed.id)).choices[0].message.content == "Fine."


async def test_pages_follow_each_other_in_both_orders() -> None:
    async with world(numbered()) as w, client_of(w) as client:
        ids = await kept(w, 7)
        forward = [one.id async for one in client.chat.completions.list(limit=3)]
        backward = [one.id async for one in client.chat.completions.list(limit=3, order="desc")]
        page = await client.chat.completions.list(limit=3, after=ids[3])
    assert forward == ids
    assert backward == ids[::-1]
    assert [one.id for one in page.data] == ids[4:]
    assert page.has_more is False


async def test_lists_are_narrowed_by_model_and_metadata() -> None:
    async with world(numbered()) as w, client_of(w) as client:
        first = await kept(w, 2, metadata={"topic": "demo", "n": "1"})
        await kept(w, 1, metadata={"topic": "other"})
        await w.say([user("Hello")], store=True, model="another")
        narrowed = [one.id async for one in client.chat.completions.list(metadata={"topic": "demo", "n": "1"})]
        by_model = [one async for one in client.chat.completions.list(model="another")]
    assert narrowed == first
    assert len(by_model) == 1


async def test_metadata_is_replaced_and_a_completion_forgotten() -> None:
    async with world(numbered()) as w, client_of(w) as client:
        (completion_id,) = await kept(w, 1, metadata={"topic": "demo"})
        changed = await client.chat.completions.update(completion_id, metadata={"state": "done"})
        assert changed.metadata == {"state": "done"}
        emptied = await client.chat.completions.update(completion_id, metadata=None)
        assert emptied.metadata == {}
        deleted = await client.chat.completions.delete(completion_id)
        assert (deleted.id, deleted.deleted, deleted.object) == (completion_id, True, "chat.completion.deleted")
        for again in (client.chat.completions.delete, client.chat.completions.retrieve):
            with pytest.raises(openai.NotFoundError):
                await again(completion_id)
        assert len(w.conversations()) == 1


async def test_the_messages_are_what_was_asked() -> None:
    parts = [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]
    said: list[Any] = [
        system("Be brief."),
        {**user("Hello"), "name": "ann"},
        assistant(None, tool_calls=[call("f")]),
        result("42"),
        user(parts),
    ]
    async with world(numbered()) as w, client_of(w) as client:
        answer = await client.chat.completions.create(model="m", messages=said, store=True)
        found = [one async for one in client.chat.completions.messages.list(answer.id, limit=2)]
        backward = [one.id async for one in client.chat.completions.messages.list(answer.id, limit=2, order="desc")]
    assert [one.id for one in found] == [f"{answer.id}-{number}" for number in range(5)] == backward[::-1]
    assert [str(one.role) for one in found] == [one["role"] for one in said]
    assert [one.content for one in found] == ["Be brief.", "Hello", None, "42", "See"]
    assert (found[1].model_extra or {})["name"] == "ann"
    assert found[2].tool_calls == [
        openai.types.chat.ChatCompletionMessageFunctionToolCall.model_validate(said[2]["tool_calls"][0])
    ]
    assert found[3].content_parts is None
    assert [part.model_dump(exclude_unset=True) for part in found[4].content_parts or ()] == parts


async def test_an_appending_client_gets_the_whole_log_as_messages() -> None:
    async with world(numbered()) as w, client_of(w) as client:
        append = {"conversation": "c", "headers": {"x-context-mode": "append"}}
        await w.say([system("Be brief."), user("One")], **append)
        second = await w.say([user("Two")], store=True, **append)
        found = [one.content async for one in client.chat.completions.messages.list(second["id"])]
    assert found == ["Be brief.", "One", "You said: One", "Two"]


async def test_another_tenant_finds_nothing() -> None:
    async with world(numbered()) as w, client_of(w, "sk-two") as stranger:
        (completion_id,) = await kept(w, 1)
        completions = stranger.chat.completions
        assert [one async for one in completions.list()] == []
        for attempt in (
            completions.retrieve(completion_id),
            completions.update(completion_id, metadata={"a": "b"}),
            completions.delete(completion_id),
            completions.messages.list(completion_id),
            completions.list(after=completion_id),
        ):
            with pytest.raises(openai.NotFoundError):
                await attempt
        async with client_of(w) as owner:
            assert (await owner.chat.completions.retrieve(completion_id)).id == completion_id


async def test_a_deleted_conversation_takes_its_completions_along() -> None:
    async with world(numbered()) as w, client_of(w) as client:
        answer = await w.say([user("Hello")], store=True)
        (conversation,) = w.conversations()
        await w.store.erase_conversation(tenant=conversation.tenant, conversation_id=conversation.id)
        assert [one async for one in client.chat.completions.list()] == []
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.retrieve(answer["id"])


@pytest.mark.parametrize(("erase", "mark"), [("false", "[deleted]"), ("true", "[erased]")])
async def test_an_answer_that_was_deleted_shows_its_mark_and_none_of_its_alternatives(erase: str, mark: str) -> None:
    two = completion("Swordfish.")
    two.body["choices"].append({**two.body["choices"][0], "index": 1, "message": assistant("It is swordfish.")})
    async with world(ScriptedUpstream(two)) as w, client_of(w) as client:
        answer = await w.say([user("The password?")], store=True, n=2)
        whole = await client.chat.completions.retrieve(answer["id"])
        place = f"{w.base_url}/conversations/{answer['conversation_id']}/items"
        headers = {"authorization": "Bearer sk-one"}
        (newest, *_) = (await w.client.get(place, headers=headers)).json()["data"]
        gone = await w.client.delete(f"{place}/{newest['id']}", params={"erase": erase}, headers=headers)
        assert gone.status_code == 200
        marked = await client.chat.completions.retrieve(answer["id"])
    assert [choice.message.content for choice in whole.choices] == ["Swordfish.", "It is swordfish."]
    assert [choice.message.content for choice in marked.choices] == [mark]


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("?limit=0", "limit"),
        ("?limit=101", "limit"),
        ("?order=up", "order"),
        ("/chatcmpl-1/messages?limit=x", "limit"),
        ("/chatcmpl-1/messages?order=up", "order"),
    ],
)
async def test_what_cannot_be_asked_is_refused_by_its_name(path: str, param: str) -> None:
    async with world(numbered()) as w:
        await kept(w, 1)
        answer = await w.client.get(f"{w.base_url}/chat/completions{path}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("after", ["chatcmpl-1-9", "chatcmpl-1-x", "chatcmpl-2-0", "-0", "chatcmpl-1-" + "9" * 5000])
async def test_an_unknown_message_to_go_on_from_is_not_found(after: str) -> None:
    async with world(numbered()) as w:
        await kept(w, 1)
        answer = await w.client.get(
            f"{w.base_url}/chat/completions/chatcmpl-1/messages",
            params={"after": after},
            headers={"authorization": "Bearer sk-one"},
        )
    assert answer.status_code == 404


@pytest.mark.parametrize("body", [{}, {"metadata": {"a": 1}}, {"metadata": {"a": "x" * 513}}, {"metadata": [1]}])
async def test_bad_metadata_is_refused(body: dict[str, Any]) -> None:
    async with world(numbered()) as w:
        answer = await w.client.post(
            f"{w.base_url}/chat/completions/chatcmpl-1",
            content=json.dumps(body),
            headers={"content-type": "application/json"},
        )
    assert answer.status_code == 400


async def test_the_synchronous_client_works() -> None:
    def use(base_url: str) -> tuple[list[str], str | None, list[str | None], bool]:
        with openai.OpenAI(base_url=base_url, api_key="sk-one", max_retries=0) as client:
            completions = client.chat.completions
            ids = [one.id for one in completions.list(limit=1)]
            text = completions.retrieve(ids[0]).choices[0].message.content
            completions.update(ids[0], metadata={"seen": "yes"})
            asked = [one.content for one in completions.messages.list(ids[0])]
            return ids, text, asked, completions.delete(ids[0]).deleted

    async with world(numbered()) as w:
        ids = await kept(w, 2)
        assert await asyncio.to_thread(use, w.base_url) == (ids, "You said: Question 0", ["Question 0"], True)
