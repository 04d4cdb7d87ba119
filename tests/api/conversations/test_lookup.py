"""What an id names that somebody pastes: of a request, an answer, a conversation, or the client's own."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.api.admin.test_recent_requests import FAILED, Watched, watched
from tests.live import completion
from tests.support.gateway import user
from tests.support.memory_store import MemoryStore

EVERYBODY = {"x-concertina-tenant": "*"}


async def look_up(w: Watched, name: str, key: str, **headers: str) -> list[dict[str, Any]]:
    answer = await w.gateway.ask("GET", "/lookup", key, params={"id": name}, headers=headers)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


async def look_up_everywhere(w: Watched, name: str) -> list[dict[str, Any]]:
    return await look_up(w, name, w.operator, **EVERYBODY)


async def test_each_id_of_an_answer_leads_to_it_and_to_what_the_model_saw() -> None:
    async with watched() as w:
        first, second = completion(), completion()
        first.body["id"], second.body["id"] = "chatcmpl-9f_1", "chatcmpl-9f_2"
        w.play(first, second)
        chat = await w.post([user("Hi")], store=True)
        unstored = await w.post([user("Hello")])
        response = await w.gateway.ask("POST", "/responses", w.application, json={"model": "m", "input": "Hi you"})
        message = await w.gateway.ask(
            "POST", "/messages", w.application, json={"model": "m", "max_tokens": 9, "messages": [user("Hi there")]}
        )
        await w.rows(4)
        output = response.json()["output"][0]["id"]
        for answer, names in (
            (chat, [chat.json()["id"]]),
            (unstored, [unstored.json()["id"]]),
            (response, [response.json()["id"], output]),
            (message, [message.json()["id"]]),
        ):
            request_id = answer.headers["x-request-id"]
            conversation_id = answer.headers["x-conversation-id"]
            for name in [*names, request_id]:
                for found in (await look_up(w, name, w.application), await look_up_everywhere(w, name)):
                    assert {one["conversation_id"] for one in found} == {conversation_id}, (name, found)
                    assert {one["tenant"] for one in found} == {"shop"}
                    assert [one["id"] for one in found if one["kind"] == "request"] == [request_id]
                    (item_id,) = {one["item_id"] for one in found}
                    again = await look_up_everywhere(w, item_id)
                    assert [one["id"] for one in again] == [request_id]
                path = f"/conversations/{conversation_id}/items/{name}/context"
                seen = await w.gateway.ask("GET", path, w.operator, headers=EVERYBODY)
                assert (seen.status_code, seen.json()["item_id"]) == (200, item_id)


async def test_of_answers_with_one_id_the_newest_is_meant() -> None:
    """The provider of these tests gives all its answers one id."""
    async with watched() as w:
        for text in ("one", "two"):
            answer = await w.post([user(text)])
        await w.rows(2)
        (found,) = await look_up(w, answer.json()["id"], w.application)
        assert found["id"] == answer.headers["x-request-id"]


async def test_a_failed_request_is_found_without_an_answer() -> None:
    async with watched(retries={"attempts": 1}) as w:
        w.play(FAILED)
        failed = await w.post([user("Hi")])
        await w.rows(1)
        (found,) = await look_up_everywhere(w, failed.headers["x-request-id"])
    assert (found["kind"], found["item_id"]) == ("request", None)


async def test_a_conversation_is_found_by_its_id_and_by_the_clients_own() -> None:
    async with watched() as w:
        body = {"model": "m", "messages": [user("Hi")]}
        own = {"x-conversation-id": "harbour-7"}
        answer = await w.gateway.ask("POST", "/chat/completions", w.application, json=body, headers=own)
        conversation_id = answer.json()["conversation_id"]
        other, _ = await w.gateway.key(tenant="school")
        same = await w.gateway.ask("POST", "/chat/completions", other, json=body, headers=own)
        for name in (conversation_id, "harbour-7"):
            (found,) = await look_up(w, name, w.application)
            assert (found["kind"], found["id"], found["tenant"]) == ("conversation", conversation_id, "shop")
        everywhere = await look_up_everywhere(w, "harbour-7")
        assert {one["id"] for one in everywhere} == {conversation_id, same.json()["conversation_id"]}
        assert [one["id"] for one in await look_up_everywhere(w, conversation_id)] == [conversation_id]


async def test_nothing_of_another_tenant_is_found() -> None:
    async with watched() as w:
        answer = await w.post([user("Hi")], store=True)
        await w.rows(1)
        other, _ = await w.gateway.key(tenant="school")
        names = (answer.json()["id"], answer.json()["conversation_id"], answer.headers["x-request-id"])
        for name in names:
            assert await look_up(w, name, other) == []
            assert await look_up(w, name, w.application) != []


@pytest.mark.parametrize("name", ["req_none", "100%", "a b", "__________", "chatcmpl-%", "ü", "'", "conv_0"])
async def test_what_names_nothing_finds_nothing(name: str) -> None:
    async with watched() as w:
        await w.post([user("Hi")])
        await w.rows(1)
        assert await look_up_everywhere(w, name) == await look_up(w, name, w.application) == []


async def test_an_answer_is_found_after_a_restart() -> None:
    store = MemoryStore(clock=lambda: datetime.now(UTC))
    async with watched(store=store) as w:
        w.play(completion())
        answer = await w.post([user("Hi")])
    async with watched(store=store) as w:
        (found,) = await look_up_everywhere(w, answer.json()["id"])
        assert found["id"] == answer.headers["x-request-id"]


async def test_texts_of_several_tenants_are_ranked_on_one_scale() -> None:
    """In the small tenant `refund` is in one of two conversations, in the large one in all of nine."""
    async with watched() as w:
        small, _ = await w.gateway.key(tenant="small")
        for text in ("The refund is late.", "Nothing else."):
            await w.gateway.ask("POST", "/chat/completions", small, json={"model": "m", "messages": [user(text)]})
        for number in range(8):
            await w.post([user(f"Refund number {number} was paid.")])
        both = await w.post([user("The refund limit is forty.")])
        for query in ("refund limit", "limit refund"):
            found = await w.gateway.ask("GET", "/search", w.operator, params={"q": query}, headers=EVERYBODY)
            rows = found.json()["data"]
            assert rows[0]["conversation_id"] == both.json()["conversation_id"]
            assert len({row["score"] for row in rows[1:]}) == 1
