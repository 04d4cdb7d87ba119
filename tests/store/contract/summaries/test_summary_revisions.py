"""Summaries have revisions, and are deleted with what folds them: the same in every store."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from app.conversation.conversation_types import Conversation, LogMessage, Summary
from app.store.contract.conversations import WriteConflict
from app.store.contract.store import Store
from tests.store.example_logs import NOON, begin, branch_off, chunk_over, fresh_tenant, lease_on, links

LINES = [f"{role} {number}" for number in range(6) for role in ("user", "assistant")]


async def kept(store: Store, conversation: Conversation, chunk: Summary) -> Summary:
    fence = await lease_on(store, conversation.root)
    await store.add_summary(tenant=conversation.tenant, root=conversation.root, summary=chunk, fence=fence)
    return chunk


async def begun(store: Store) -> tuple[Conversation, list[LogMessage], Summary]:
    conversation, log = await begin(store, fresh_tenant(), LINES)
    return conversation, log, await kept(store, conversation, chunk_over(conversation, log, 0, 4, text="one"))


async def texts(store: Store, conversation: Conversation, chunk_id: str) -> list[tuple[int, str]]:
    found = await store.read_summary_revisions(tenant=conversation.tenant, root=conversation.root, summary_id=chunk_id)
    return [(chunk.revision, chunk.text) for chunk in found]


async def test_a_chunk_gets_another_text_and_keeps_its_old_ones(store: Store) -> None:
    conversation, _, chunk = await begun(store)
    tenant, root = conversation.tenant, conversation.root
    second = replace(
        chunk, text="two", kind="edited", revision=2, tokens=3, model="", duration_ms=5, usage={"n": 1}, created_at=NOON
    )
    await store.revise_summary(tenant=tenant, root=root, summary=second)
    third = replace(second, text="three", revision=3, usage=None)
    await store.revise_summary(tenant=tenant, root=root, summary=third)
    assert await store.read_summary_revisions(tenant=tenant, root=root, summary_id=chunk.id) == [chunk, second, third]
    assert await store.find_summaries(tenant=tenant, root=root, path=conversation.lineage_with_self) == [third]


async def test_of_many_revisions_at_once_one_wins(store: Store) -> None:
    conversation, _, chunk = await begun(store)
    rivals = [
        store.revise_summary(
            tenant=conversation.tenant, root=conversation.root, summary=replace(chunk, text=str(number), revision=2)
        )
        for number in range(10)
    ]
    outcomes = await asyncio.gather(*rivals, return_exceptions=True)
    assert sum(outcome is None for outcome in outcomes) == 1
    assert sum(isinstance(outcome, WriteConflict) for outcome in outcomes) == 9
    assert [number for number, _ in await texts(store, conversation, chunk.id)] == [1, 2]


async def test_only_the_next_revision_of_a_chunk_that_exists_is_taken(store: Store) -> None:
    conversation, _, chunk = await begun(store)
    tenant, root = conversation.tenant, conversation.root
    for wrong in (replace(chunk, revision=1), replace(chunk, revision=3), replace(chunk, id="sum_none", revision=2)):
        with pytest.raises(WriteConflict):
            await store.revise_summary(tenant=tenant, root=root, summary=wrong)
    with pytest.raises(WriteConflict):
        await store.revise_summary(tenant=fresh_tenant(), root=root, summary=replace(chunk, revision=2))
    assert await texts(store, conversation, chunk.id) == [(1, "one")]
    assert await texts(store, conversation, "sum_none") == []
    assert await store.read_summary_revisions(tenant=fresh_tenant(), root=root, summary_id=chunk.id) == []


async def test_a_summary_that_replaces_a_mechanical_one_of_another_id_begins_anew(store: Store) -> None:
    conversation, log = await begin(store, fresh_tenant(), LINES)
    plain = await kept(store, conversation, chunk_over(conversation, log, 0, 4, kind="mechanical"))
    again = replace(plain, text="plain again", revision=2)
    await store.revise_summary(tenant=conversation.tenant, root=conversation.root, summary=again)
    edited = await kept(store, conversation, chunk_over(conversation, log, 0, 4, text="mine", kind="edited"))
    await kept(store, conversation, chunk_over(conversation, log, 0, 4, kind="model"))
    assert await texts(store, conversation, edited.id) == [(1, "mine")]
    assert await texts(store, conversation, plain.id) == []


async def test_a_chunk_is_deleted_with_all_that_folds_it(store: Store) -> None:
    conversation, log, first = await begun(store)
    tenant, root = conversation.tenant, conversation.root
    second = await kept(store, conversation, chunk_over(conversation, log, 4, 8))
    fold = await kept(store, conversation, chunk_over(conversation, log, 0, 8, folds=(first.id, second.id)))
    await kept(store, conversation, chunk_over(conversation, log, 0, 10, folds=(fold.id,)))
    await store.revise_summary(tenant=tenant, root=root, summary=replace(first, revision=2))
    assert not await store.delete_summary(tenant=fresh_tenant(), root=root, summary_id=first.id)
    assert await store.delete_summary(tenant=tenant, root=root, summary_id=first.id)
    assert not await store.delete_summary(tenant=tenant, root=root, summary_id=first.id)
    assert await store.find_summaries(tenant=tenant, root=root, path=conversation.lineage_with_self) == [second]
    assert await texts(store, conversation, first.id) == []


async def test_revisions_go_with_the_last_conversation_that_reads_the_chunk(store: Store) -> None:
    conversation, log, chunk = await begun(store)
    tenant, root = conversation.tenant, conversation.root
    await store.revise_summary(tenant=tenant, root=root, summary=replace(chunk, text="two", revision=2))
    branch, _ = await branch_off(store, conversation, log, 5, ["user x"])
    await store.erase_conversation(tenant=tenant, conversation_id=conversation.id)
    assert await texts(store, branch, chunk.id) == [(1, "one"), (2, "two")]
    await store.erase_conversation(tenant=tenant, conversation_id=branch.id)
    assert await texts(store, branch, chunk.id) == []


async def test_chunks_are_their_tenants(store: Store) -> None:
    conversation, log, _ = await begun(store)
    other = fresh_tenant()
    assert (
        await store.find_summaries(
            tenant=other, root=conversation.root, path=conversation.lineage_with_self, links=links(log)
        )
        == []
    )
