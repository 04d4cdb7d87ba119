"""Finding conversations among all of a tenant's by their words, the same in every store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.search_terms import extract_terms
from app.dialects.body.message import decode_body
from app.store.contract.store import Store
from app.store.store_factory import create_store
from migrations.run import prepare_database
from tests.store.example_logs import Clock, begin, branch_off, conversation_of, fresh_tenant, go_on, log_of


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """Not the encrypted: they search their newest messages only."""
    if request.param == "memory":
        return "memory://"
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


async def said(store: Store, tenant: str, lines: Sequence[str]) -> tuple[Conversation, list[LogMessage]]:
    conversation, log = await begin(store, tenant, lines)
    await store.index_messages(conversation, log)
    return conversation, log


async def hits(store: Store, tenant: str, text: str, limit: int = 9) -> list[tuple[str, int]]:
    found = await store.search_tenant(tenant=tenant, terms=extract_terms(text), limit=limit)
    return [(hit.conversation.id, hit.message.seq) for hit in found]


async def test_conversations_are_found_best_first_each_with_its_best_message(store: Store, clock: Clock) -> None:
    tenant = fresh_tenant()
    first, _ = await said(store, tenant, ["user espresso", "assistant espresso machine", "user machine oil"])
    clock.forward(1)
    second, log = await said(store, tenant, ["user machine", "assistant drill"])
    clock.forward(1)
    third, _ = await said(store, tenant, ["user machine", "assistant lathe"])
    await said(store, tenant, ["user nothing of that"])
    assert await hits(store, tenant, "espresso machine") == [(first.id, 1), (third.id, 0), (second.id, 0)]
    assert await hits(store, tenant, "machine", limit=2) == [(third.id, 0), (second.id, 0)]
    clock.forward(1)
    later, _ = await go_on(store, second, log, ["user more"])
    found = await store.search_tenant(tenant=tenant, terms=["machin"], limit=1)
    assert found[0].conversation == await store.find_conversation(tenant=tenant, conversation_id=later.id)
    assert decode_body(found[0].message.message) == {"role": "user", "content": "machine"}
    assert found[0].score == pytest.approx(0.357)
    assert await hits(store, tenant, "unheard") == []


async def test_what_branches_share_is_found_once(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, log = await said(store, tenant, ["user hi", "assistant hello", "user espresso", "assistant one"])
    limb, limb_log = await branch_off(store, trunk, log, 2, ["assistant two"])
    await store.index_messages(limb, limb_log)
    assert await hits(store, tenant, "espresso") == [(trunk.id, 2)]
    assert await hits(store, tenant, "two") == [(limb.id, 3)]
    await store.erase_conversation(tenant=tenant, conversation_id=trunk.id)
    assert await hits(store, tenant, "espresso") == [(limb.id, 2)]
    assert await hits(store, tenant, "one") == []
    assert await hits(store, tenant, "two espresso") == [(limb.id, 3)]
    await store.erase_conversation(tenant=tenant, conversation_id=limb.id)
    assert await hits(store, tenant, "espresso two") == []


async def test_an_heir_that_was_never_indexed_is_found_by_what_it_takes_over(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, log = await said(store, tenant, ["user espresso", "assistant hello"])
    limb, _ = await branch_off(store, trunk, log, 1, ["user more"])
    await store.erase_conversation(tenant=tenant, conversation_id=trunk.id)
    assert await hits(store, tenant, "espresso") == [(limb.id, 0)]


async def test_tenants_never_meet(store: Store) -> None:
    mine, theirs = fresh_tenant(), fresh_tenant()
    conversation, _ = await said(store, mine, ["user espresso", "assistant hello"])
    assert await hits(store, theirs, "espresso") == []
    other, _ = await said(store, theirs, ["user espresso", "assistant hello"])
    assert await hits(store, mine, "espresso") == [(conversation.id, 0)]
    assert await hits(store, theirs, "espresso") == [(other.id, 0)]


async def test_how_far_a_conversation_is_indexed_is_kept(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, log = await begin(store, tenant, [f"user {number}" for number in range(8)])

    async def indexed_before(conversation: Conversation = trunk) -> int:
        found = await store.find_conversation(tenant=tenant, conversation_id=conversation.id)
        assert found is not None
        return found.indexed_before

    await store.index_messages(trunk, log[:3])
    assert await indexed_before() == 3
    await store.index_messages(trunk, log[5:7])
    assert await indexed_before() == 3, "a gap"
    await store.index_messages(trunk, [log[3], log[5]])
    assert await indexed_before() == 4
    await store.index_messages(trunk, log[:2])
    await store.index_messages(trunk, [])
    assert await indexed_before() == 4
    limb, limb_log = await branch_off(store, trunk, log, 5, ["user x"])
    await store.index_messages(limb, limb_log)
    assert (await indexed_before(limb), await indexed_before()) == (7, 4)
    _, other_log = await branch_off(store, trunk, log, 3, ["user y", "user z", "user a", "user b"])
    await store.index_messages(trunk, other_log[4:])
    assert await indexed_before() == 4, "messages of another log"


_words = st.lists(st.sampled_from(["ant", "bee", "cat", "dog", "eel", "fox"]), min_size=1, max_size=4)
_logs = st.lists(st.lists(_words, min_size=1, max_size=4), min_size=1, max_size=6)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(logs=_logs, asked=_words, limit=st.integers(1, 4), erased=st.integers(0, 6))
def test_sqlite_finds_what_memory_finds(
    tmp_path_factory: pytest.TempPathFactory, logs: list[list[list[str]]], asked: list[str], limit: int, erased: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "search_all.db"
    asyncio.run(_compare(path, logs, asked, limit, erased))


async def _compare(path: Path, logs: list[list[list[str]]], asked: list[str], limit: int, erased: int) -> None:
    tenant, answers = fresh_tenant(), []
    url = f"sqlite:///{path}"
    prepare_database(url, auto_migrate=True)
    for store in (create_store("memory://", clock=Clock()), create_store(url, clock=Clock())):
        await store.open()
        made = []
        for number, messages in enumerate(logs):
            lines = [f"user {' '.join(words)}" for words in messages]
            conversation, log = await begin(store, tenant, lines, id=_id(number, tenant, lines))
            await store.index_messages(conversation, log)
            made.append(conversation)
        if erased < len(made):
            await store.erase_conversation(tenant=tenant, conversation_id=made[erased].id)
        found = await store.search_tenant(tenant=tenant, terms=asked, limit=limit)
        answers.append([(hit.conversation.id, hit.message.seq, hit.score) for hit in found])
        await store.close()
    assert answers[0] == answers[1]


def _id(number: int, tenant: str, lines: Sequence[str]) -> str:
    """The same in both stores."""
    root = conversation_of(tenant, log_of(tenant, lines)).root
    return f"conv_{root}{number:032x}"
