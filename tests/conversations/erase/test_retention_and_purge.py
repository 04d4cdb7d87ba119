"""Old conversations are erased by the running gateway, and at once by a command."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.__main__ import main
from app.conversation.api_keys import SCOPES, ApiKey, derive_context_tenant
from app.store.contract.conversations import ConversationQuery
from app.store.contract.requests import RequestQuery
from app.store.store_factory import create_store
from tests.live import TEST_DEPENDENCIES, ScriptedUpstream
from tests.store.contract.requests.test_requests import request
from tests.store.example_logs import begin, fresh_tenant
from tests.support.gateway import answered, answering, until, user, world
from tests.support.memory_store import MemoryStore
from tests.support.sqlite_gateway import at_rest, config_in, url_in, words_in

LONG_AGO = timedelta(days=40)
SWEEPING: dict[str, Any] = {"sweep_seconds": 0.05}


def long_ago() -> datetime:
    return datetime.now(UTC) - LONG_AGO


async def test_what_rested_for_longer_than_allowed_is_gone_and_its_id_unknown() -> None:
    upstream, store = ScriptedUpstream(default=answering), MemoryStore(clock=long_ago)
    async with world(upstream, store=store, retention={"days": 30, **SWEEPING}) as gateway:
        said = await gateway.say([user("Hello")])
        await until(lambda: not gateway.conversations())
        answer = await gateway.post([user("Hello again")], conversation_id=said["conversation_id"])
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "conversation_not_found")
        assert gateway.rows() == 0


async def test_what_rested_for_less_stays() -> None:
    sweeps = []

    class Counted(MemoryStore):
        async def purge_idempotency_keys(self) -> int:
            sweeps.append(1)
            return await super().purge_idempotency_keys()

    upstream, store = ScriptedUpstream(default=answering), Counted(clock=long_ago)
    async with world(upstream, store=store, retention={"days": 50, **SWEEPING}) as gateway:
        await gateway.say([user("Hello")])
        seen = len(sweeps)
        await until(lambda: len(sweeps) > seen + 2)
        assert len(gateway.conversations()) == 1


@pytest.fixture
async def old(tmp_path: Path) -> Path:
    """A folder whose database holds an old conversation of each of two tenants, and a young one with a branch off."""
    upstream = ScriptedUpstream(default=answering)
    earlier = dataclasses.replace(TEST_DEPENDENCIES, create_store=partial(create_store, clock=long_ago))
    async with at_rest(tmp_path, upstream, dependencies=earlier) as world:
        await world.say([user("Speak of marmalade.")])
        await world.say([user("Speak of quinine.")], key="sk-two")
    async with at_rest(tmp_path, upstream) as world:
        await world.say([user("Speak of zanzibar.")])
        await world.say([user("Speak of zanzibar."), answered("Speak of zanzibar."), user("Go on.")])
    return tmp_path


async def purge(folder: Path, *arguments: str, days: int | None = None) -> int:
    retention = {"retention": {"days": days}} if days else {}
    return await asyncio.to_thread(main, ["purge", "--config", config_in(folder, **retention), *arguments])


WORDS = ["marmalade", "quinine", "zanzibar"]


async def test_purging_erases_by_age_and_leaves_no_word(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await purge(old, "--older-than", "30d", "--dry-run") == 0
    assert "2 conversations would be erased" in capsys.readouterr().out
    assert words_in(old, WORDS) == WORDS
    assert await purge(old, "--older-than", "30d") == 0
    assert "2 conversations erased, 0 in use" in capsys.readouterr().out
    assert words_in(old, WORDS) == ["zanzibar"]


async def test_purging_of_one_tenant_leaves_the_others(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = create_store(url_in(old))
    await store.open()
    every = await store.list_conversations(tenant=None, query=ConversationQuery(limit=99))
    (found,) = [one for one in every if "quinine" in (await store.read_log(one, 0, 1))[0].message.text]
    await store.close()
    assert await purge(old, "--older-than", "4w", "--tenant", found.tenant) == 0
    assert words_in(old, WORDS) == ["marmalade", "zanzibar"]


async def test_what_is_kept_for_continuing_goes_with_its_tenant_and_is_not_exported(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tenant, store = fresh_tenant(), create_store(url_in(old), clock=long_ago)
    await store.open()
    visible, _ = await begin(store, tenant, ["user tourmaline", "assistant yes"])
    hidden, _ = await begin(store, derive_context_tenant(tenant), ["user tourmaline", "assistant yes"])
    await store.close()

    async def export(*arguments: str) -> str:
        assert await asyncio.to_thread(main, ["export", "--config", config_in(old), *arguments]) == 0
        return capsys.readouterr().out

    assert hidden.id not in await export()
    assert visible.id in await export("--tenant", tenant)
    assert await export("--tenant", derive_context_tenant(tenant)) == ""
    assert await asyncio.to_thread(main, ["export", "--config", config_in(old), hidden.id]) == 1
    capsys.readouterr()
    retention = ["--config", config_in(old, retention={"days": 30}), "--tenant", tenant]
    assert await asyncio.to_thread(main, ["purge", *retention, "--dry-run"]) == 0
    assert "2 conversations would be erased" in capsys.readouterr().out
    assert await purge(old, "--older-than", "4w", "--tenant", tenant) == 0
    assert words_in(old, ["tourmaline", *WORDS]) == WORDS


async def test_purging_erases_one_end_user_or_all_of_an_application(old: Path) -> None:
    tenant, store = fresh_tenant(), create_store(url_in(old), clock=long_ago)
    await store.open()
    for owner, word in ((tenant, "own"), (f"{tenant}/anna", "anna"), (f"{tenant}/anna/context-only", "anna")):
        await begin(store, owner, [f"user of-{word}-tourmaline", "assistant yes"])
    await begin(store, f"{tenant}/bert", ["user of-bert-tourmaline", "assistant yes"])
    await store.close()
    words = [f"of-{name}-tourmaline" for name in ("own", "anna", "bert")]

    assert await purge(old, "--older-than", "4w", "--tenant", f"{tenant}/anna") == 0
    assert words_in(old, [*words, *WORDS]) == [words[0], words[2], *WORDS]
    assert await purge(old, "--tenant", tenant, days=30) == 0
    assert words_in(old, [*words, *WORDS]) == WORDS


async def test_purging_a_tenant_erases_its_requests(old: Path) -> None:
    tenant, other, store = fresh_tenant(), fresh_tenant(), create_store(url_in(old))
    await store.open()
    now = datetime.now(UTC).timestamp()
    names = (tenant, f"{tenant}/anna", other)
    await store.add_requests([request(name, n, started_at=now - n * 3600) for name in names for n in (1, 5)])

    async def left() -> list[int]:
        return [len(await store.list_requests(RequestQuery(limit=9, tenant=name))) for name in names]

    assert await purge(old, "--older-than", "3h", "--tenant", tenant) == 0
    assert await left() == [1, 1, 2]
    assert await purge(old, "--older-than", "0m", "--tenant", tenant) == 0
    assert await left() == [0, 0, 2]
    await store.close()


async def test_purging_of_a_tenant_that_nobody_has_is_an_error(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tenant, store = fresh_tenant(), create_store(url_in(old))
    await store.open()
    await begin(store, tenant, ["user hello", "assistant yes"])
    key = ApiKey("key_1", "d", "abcd", "k", "marmalade-shop", SCOPES, datetime.now(UTC))
    await store.add_api_key(key)
    await store.close()

    for misspelt in (f"{tenant}x", f"{tenant}/anna", "marmalade-ship"):
        assert await purge(old, "--older-than", "0m", "--tenant", misspelt) == 1
        assert f"nothing is stored of a tenant {misspelt!r}" in (told := capsys.readouterr().err)
    assert "Did you mean 'marmalade-shop'?" in told
    assert await purge(old, "--older-than", "0m", "--tenant", "marmalade-shop") == 0
    assert words_in(old, WORDS) == WORDS


async def test_purging_without_an_age_follows_the_configured_rule(old: Path) -> None:
    assert await purge(old, days=60) == 0
    assert words_in(old, WORDS) == WORDS
    assert await purge(old, days=30) == 0
    assert words_in(old, WORDS) == ["zanzibar"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "no retention time is configured"),
        (["--older-than", "soon"], r"expected a number and one of m, h, d, w"),
    ],
)
async def test_purging_without_a_usable_age_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    async with at_rest(tmp_path, ScriptedUpstream()):
        assert await purge(tmp_path, *arguments) == 1
    assert re.search(told, capsys.readouterr().err)
