"""Stored responses through OpenAI's own client: read, their input listed, deleted, and kept apart from completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from app.dialects.body.message import ChatMessage
from tests.live import ScriptedUpstream
from tests.support.gateway import World, answering, user, world
from tests.support.responses_turns import ResponsesTurns, function_call, items, output, said, said_by

PARAMETERS: dict[str, Any] = {
    "instructions": "You are a pirate.",
    "metadata": {"topic": "demo"},
    "temperature": 0.5,
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}],
    "tool_choice": "auto",
    "max_output_tokens": 99,
}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"}
UNKNOWN = f"resp_{'0' * 48}"


class Stored:
    """A gateway with responses in its store, and clients of it."""

    def __init__(self, gateway: World, turns: ResponsesTurns) -> None:
        self.gateway = gateway
        self.turns = turns

    def client(self, key: str = "sk-one") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.gateway.base_url, api_key=key, max_retries=0)


@pytest.fixture
async def stored() -> AsyncIterator[Stored]:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        await gateway.say([user("who am I")])
        yield Stored(gateway, ResponsesTurns(gateway.store, tenant=gateway.conversations()[0].tenant))


async def test_a_stored_response_has_its_answer_and_what_was_asked_for(stored: Stored) -> None:
    turn = await stored.turns.ask("Hello", said("Ahoy."), **PARAMETERS)
    async with stored.client() as client:
        found = await client.responses.retrieve(turn.response_id)
    assert isinstance(found, Response)
    assert (found.id, found.status, found.output_text, found.model) == (turn.response_id, "completed", "Ahoy.", "m")
    assert found.instructions == "You are a pirate."
    assert found.metadata == {"topic": "demo"}
    assert (found.temperature, found.max_output_tokens) == (0.5, 99)
    assert [tool.name for tool in found.tools if tool.type == "function"] == ["f"]
    assert (found.model_extra or {})["conversation_id"] == turn.conversation.id


async def test_encrypted_reasoning_is_shown_to_whom_asks_for_it(stored: Stored) -> None:
    first = await stored.turns.ask("Hello", items(REASONING, function_call("c1", "fc_1")))
    second = await stored.turns.ask([output("c1")], previous_response_id=first.response_id)
    async with stored.client() as client:
        for include, expected in ((None, None), (["reasoning.encrypted_content"], "sealed")):
            options: Any = {} if include is None else {"include": include}
            found = await client.responses.retrieve(first.response_id, **options)
            listed = await client.responses.input_items.list(second.response_id, **options)
            for item in (found.output[0], listed.data[2]):
                assert item.type == "reasoning"
                assert getattr(item, "encrypted_content", None) == expected


async def test_input_items_are_all_that_was_asked_before_the_answer(stored: Stored) -> None:
    rules = said_by("developer", "Use metric units.")
    first = await stored.turns.ask([rules, said_by("user", "Look")], items(function_call("c1", "fc_1")), **PARAMETERS)
    second = await stored.turns.ask([output("c1")], said("42 m."), previous_response_id=first.response_id)
    third = await stored.turns.ask("Thanks", previous_response_id=second.response_id)
    async with stored.client() as client:
        whole = (await client.responses.input_items.list(third.response_id, order="asc")).data
        assert [item.type for item in whole] == [
            *("message", "message", "function_call", "function_call_output", "message", "message")
        ]
        assert [getattr(item, "role", None) for item in whole] == [
            *("developer", "user", None, None, "assistant", "user")
        ]
        assert len({item.id for item in whole}) == 6
        # The ids are those of the responses' own output.
        for response_id, item in ((first.response_id, whole[2]), (second.response_id, whole[4])):
            assert item.id == (await client.responses.retrieve(response_id)).output[0].id
        newest_first = [item.id async for item in client.responses.input_items.list(third.response_id, limit=4)]
        assert newest_first == [item.id for item in reversed(whole)]
        for order, expected in (("asc", whole), ("desc", whole[::-1])):
            for index, item in enumerate(expected):
                assert item.id is not None
                options: Any = {"after": item.id, "limit": 2, "order": order}
                page = await client.responses.input_items.list(third.response_id, **options)
                assert [one.id for one in page.data] == [one.id for one in expected[index + 1 : index + 3]]
                assert page.has_more == (len(expected) > index + 3)
        with pytest.raises(openai.NotFoundError) as caught:
            await client.responses.input_items.list(third.response_id, after="msg_unknown")
        assert caught.value.param == "after"
        asked_first = await client.responses.input_items.list(first.response_id)
        assert [getattr(item, "role", None) for item in asked_first.data] == ["user", "developer"]


async def test_items_of_a_chat_history_are_listed_too(stored: Stored) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = ChatMessage.from_body({"role": "assistant", "content": "I look.", "tool_calls": [call]})
    first = await stored.turns.ask("Look", answer)
    second = await stored.turns.ask([output("c1")], previous_response_id=first.response_id)
    async with stored.client() as client:
        listed = (await client.responses.input_items.list(second.response_id, order="asc")).data
    assert [item.type for item in listed] == ["message", "message", "function_call", "function_call_output"]


async def test_a_deleted_response_is_gone_and_its_conversation_stays(stored: Stored) -> None:
    turn = await stored.turns.ask("Hello")
    async with stored.client() as client:
        raw = await client.responses.with_raw_response.delete(turn.response_id)
        assert raw.http_response.json() == {"id": turn.response_id, "object": "response", "deleted": True}
        for again in (client.responses.retrieve, client.responses.delete):
            with pytest.raises(openai.NotFoundError) as caught:
                await again(turn.response_id)
            assert caught.value.code == "response_not_found"
    assert turn.conversation.id in [one.id for one in stored.gateway.conversations()]


async def test_what_was_erased_in_the_log_is_gone_in_the_response(stored: Stored) -> None:
    turn = await stored.turns.ask("The code is 7741.", said("I note 7741."))
    base = f"{stored.gateway.base_url}/conversations/{turn.conversation.id}/items"
    headers = {"authorization": "Bearer sk-one"}
    listed = (await stored.gateway.client.get(base, headers=headers)).json()["data"]
    for item in listed:
        answer = await stored.gateway.client.delete(f"{base}/{item['id']}?erase=true", headers=headers)
        assert answer.status_code == 200
    async with stored.client() as client:
        found = await client.responses.retrieve(turn.response_id)
        asked = await client.responses.input_items.list(turn.response_id)
        assert "7741" not in found.to_json() + str(asked.data)
        assert "[erased]" in found.output_text
        await stored.turns.store.erase_conversation(tenant=stored.turns.tenant, conversation_id=turn.conversation.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(turn.response_id)


@pytest.mark.parametrize("query", ["", "?erase=true"])
async def test_a_removed_instruction_is_not_handed_on(stored: Stored, query: str) -> None:
    rules, more = said_by("developer", "Use metric units."), said_by("developer", "Be brief.")
    first = await stored.turns.ask([rules, more, said_by("user", "Hi")])
    base = f"{stored.gateway.base_url}/conversations/{first.conversation.id}/items"
    headers = {"authorization": "Bearer sk-one"}
    listed = (await stored.gateway.client.get(f"{base}?order=asc", headers=headers)).json()["data"]
    assert listed[0]["content"][0]["text"] == "Use metric units."
    answer = await stored.gateway.client.delete(f"{base}/{listed[0]['id']}{query}", headers=headers)
    assert answer.status_code == 200
    second = await stored.turns.ask("And?", previous_response_id=first.response_id)
    assert [message.text for message in second.resolved_request.instructions] == ["Be brief."]
    async with stored.client() as client:
        asked = await client.responses.input_items.list(second.response_id)
    assert "metric" not in str(asked.data)


async def test_an_unknown_id_is_not_told_from_a_foreign_one(stored: Stored) -> None:
    turn = await stored.turns.ask("Hello")
    said_of = []
    async with stored.client("sk-other") as foreign, stored.client() as client:
        for reader, response_id in ((foreign, turn.response_id), (client, UNKNOWN)):
            for call in (
                reader.responses.retrieve,
                reader.responses.delete,
                reader.responses.cancel,
                reader.responses.input_items.list,
            ):
                with pytest.raises(openai.NotFoundError) as caught:
                    await call(response_id)
                said_of.append(caught.value.message.replace(response_id, "ID"))
    assert len(set(said_of)) == 1


async def test_responses_and_completions_are_kept_apart(stored: Stored) -> None:
    turn = await stored.turns.ask("Hello", metadata={"topic": "demo"})
    completion = await stored.gateway.say([user("Hi")], store=True, metadata={"topic": "demo"})
    async with stored.client() as client:
        listed = await client.chat.completions.list(metadata={"topic": "demo"})
        assert [one.id for one in listed.data] == [completion["id"]]
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.retrieve(turn.response_id)
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.delete(turn.response_id)
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.list(after=turn.response_id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(completion["id"])


async def test_what_comes_later_is_refused_in_words(stored: Stored) -> None:
    turn = await stored.turns.ask("Hello")
    async with stored.client() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.cancel(turn.response_id)
        assert "Cannot cancel a synchronous response." in caught.value.message
        for query, param in (("stream=true", "stream"), ("starting_after=3", "starting_after")):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.get(f"/responses/{turn.response_id}?{query}", cast_to=object)
            assert "not supported yet" in caught.value.message
            assert caught.value.param == param
