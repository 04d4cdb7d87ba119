"""Requests outlive the process: the database keeps them for `retention.request_hours`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from app.errors import StoreUnavailable
from app.store import request_history
from app.store.contract.requests import RequestQuery
from tests.api.admin.test_recent_requests import FAILED, Watched, watched
from tests.live import completion
from tests.support.gateway import user
from tests.support.memory_store import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=lambda: datetime.now(UTC))


async def ids(w: Watched, **query: Any) -> list[str]:
    return [row["id"] for row in await w.read_rows(**query)]


def request_id(answer: httpx.Response) -> str:
    return answer.headers["x-request-id"]


async def test_requests_outlive_a_restart(store: MemoryStore) -> None:
    async with watched(store=store, retries={"attempts": 1}) as w:
        w.play(completion(), FAILED)
        answered, failed = [await w.post([user(text)]) for text in ("one", "two")]
        before = await w.rows(2)
        opened = await w.open(request_id(answered))
    async with watched(store=store) as w:
        assert await w.read_rows() == before
        assert await w.open(request_id(answered)) == opened
        assert await ids(w, outcome="error") == await ids(w, status=500) == [request_id(failed)]
        path = f"/conversations/{opened['conversation_id']}/items/{opened['item_id']}/context"
        seen = await w.gateway.ask("GET", path, w.application)
    assert (seen.status_code, opened["timeline"][0]["name"]) == (200, "read")


async def test_nothing_is_stored_with_zero_hours(store: MemoryStore) -> None:
    async with watched(store=store, retention={"request_hours": 0}) as w:
        await w.post([user("Hi")])
        await w.rows(1)
    async with watched(store=store) as w:
        assert await w.read_rows() == []


async def test_filters_are_those_of_an_operators_questions(store: MemoryStore) -> None:
    async with watched(store=store) as w:
        other, key = await w.gateway.key(tenant="school")
        first = request_id(await w.post([user("one")]))
        body, stateless = {"model": "m", "messages": [user("two")]}, {"x-context-mode": "stateless"}
        answer = await w.gateway.ask("POST", "/chat/completions", w.application, json=body, headers=stateless)
        aside = request_id(answer)
        body = {"model": "n", "messages": [user("three")]}
        third = request_id(await w.gateway.ask("POST", "/chat/completions", other, json=body))
        rows = await w.rows(3)
        times = {row["id"]: row["started_at"] for row in rows}
    async with watched(store=store) as w:
        assert await ids(w, key_id=key.id) == await ids(w, tenant="school") == await ids(w, model="n") == [third]
        assert await ids(w, context_status="bypassed") == [aside]
        assert await ids(w, provider="upstream") == [third, aside, first]
        assert await ids(w, provider="other") == await ids(w, min_duration_ms=60_000) == []
        assert await ids(w, started_after=times[aside]) == [third, aside]
        assert await ids(w, started_before=times[aside]) == [first]
        page = (await w.look(limit=1, after=third)).json()
        assert ([row["id"] for row in page["data"]], page["has_more"]) == ([aside], True)


async def test_keys_and_tenants_have_names() -> None:
    async with watched() as w:
        generated, _ = await w.gateway.key(name="Night jobs")
        await w.gateway.ask("POST", "/chat/completions", generated, json={"model": "m", "messages": [user("one")]})
        await w.post([user("two")])
        named, unnamed = await w.rows(2)
    assert (named["tenant"], named["tenant_name"], named["key_name"]) == ("shop", None, "test")
    assert unnamed["tenant"].startswith("ten_")
    assert (unnamed["tenant_name"], unnamed["key_name"]) == ("Night jobs", "Night jobs")


async def test_erasing_a_conversation_erases_its_requests(store: MemoryStore) -> None:
    async with watched(store=store) as w:
        gone = (await w.post([user("one")])).json()["conversation_id"]
        kept = (await w.post([user("two")])).json()["conversation_id"]
        await w.rows(2)
    async with watched(store=store) as w:
        assert (await w.gateway.ask("DELETE", f"/conversations/{gone}", w.application)).status_code == 200
        assert [row["conversation_id"] for row in await w.read_rows()] == [kept]


class AwayStore(MemoryStore):
    async def add_requests(self, requests: Any) -> None:
        raise StoreUnavailable("The database is away.")

    async def list_requests(self, query: RequestQuery) -> Any:
        raise StoreUnavailable("The database is away.")


async def test_the_newest_are_listed_while_the_database_is_away() -> None:
    async with watched(store=AwayStore(clock=lambda: datetime.now(UTC))) as w:
        answer = await w.post([user("Hi")])
        (row,) = await w.rows(1)
        assert row["id"] == request_id(answer)
        assert (await w.look(tenant="school")).status_code == 503


async def test_a_request_waits_for_no_write(monkeypatch: pytest.MonkeyPatch, store: MemoryStore) -> None:
    monkeypatch.setattr(request_history, "FLUSH_SECONDS", 3600.0)
    async with watched(store=store) as w:
        await w.post([user("Hi")])
        await w.rows(1)
        assert await store.list_requests(RequestQuery(limit=10)) == []
    assert len(await store.list_requests(RequestQuery(limit=10))) == 1
