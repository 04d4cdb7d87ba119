"""Chunks: found by the links at their ends, made once, written only by whoever holds the lease."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from app.conversation.conversation_types import SummaryKind
from app.store.contract.leases import LeaseLost
from app.store.contract.store import Store
from tests.store.example_logs import (
    begin,
    branch_off,
    chunk_over,
    fresh_tenant,
    lease_on,
    links,
    log_of,
)

LINES = [f"{role} {number}" for number in range(6) for role in ("user", "assistant")]


async def test_a_chunk_comes_back_as_it_was_written(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, LINES)
    fence = await lease_on(store, conversation.root)
    chunk = chunk_over(conversation, log, 0, 4, duration_ms=1234, usage={"prompt_tokens": 99})
    later = replace(chunk_over(conversation, log, 4, 8), anchor_seq=6, anchor_tokens=5, kind="mechanical")
    fold = chunk_over(conversation, log, 0, 8, folds=(chunk.id, later.id))
    for one in (fold, later, chunk):
        await store.add_summary(tenant=tenant, root=conversation.root, summary=one, fence=fence)
    assert await store.find_summaries(tenant=tenant, root=conversation.root, path=conversation.lineage_with_self) == [
        chunk,
        later,
        fold,
    ]


async def test_chunks_are_found_by_path_as_far_as_it_reaches(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, LINES)
    fence = await lease_on(store, conversation.root)
    short, long = chunk_over(conversation, log, 0, 4), chunk_over(conversation, log, 4, 8)
    for chunk in (short, long):
        await store.add_summary(tenant=tenant, root=conversation.root, summary=chunk, fence=fence)
    branch, _ = await branch_off(store, conversation, log, 4, ["user other"])
    assert await store.find_summaries(tenant=tenant, root=branch.root, path=branch.lineage_with_self) == [short]
    assert await store.find_summaries(tenant=tenant, root=branch.root, path=[(conversation.id, 6)]) == [short]
    assert await store.find_summaries(tenant=tenant, root=branch.root, path=[(conversation.id, 7)]) == [short, long]
    assert await store.find_summaries(tenant=tenant, root=branch.root) == []


async def test_chunks_are_told_of_without_their_texts(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, LINES)
    fence = await lease_on(store, conversation.root)
    chunk = chunk_over(conversation, log, 0, 4)
    await store.add_summary(tenant=tenant, root=conversation.root, summary=chunk, fence=fence)
    textless = [replace(chunk, text="")]
    assert (
        await store.find_summaries(
            tenant=tenant, root=conversation.root, path=conversation.lineage_with_self, with_texts=False
        )
        == textless
    )
    assert (
        await store.find_summaries(tenant=tenant, root=conversation.root, links=links(log), with_texts=False)
        == textless
    )
    assert await store.find_summaries(tenant=tenant, root=conversation.root, path=conversation.lineage_with_self) == [
        chunk
    ]


async def test_chunks_are_found_by_link_from_another_conversation_that_says_the_same(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, LINES)
    replica, _ = await begin(store, tenant, LINES)
    fence = await lease_on(store, conversation.root)
    chunk = chunk_over(conversation, log, 0, 4)
    await store.add_summary(tenant=tenant, root=conversation.root, summary=chunk, fence=fence)
    assert await store.find_summaries(tenant=tenant, root=replica.root, path=replica.lineage_with_self) == [chunk]
    assert await store.find_summaries(tenant=tenant, root=replica.root, links=links(log)) == [chunk]
    assert await store.find_summaries(
        tenant=tenant, root=replica.root, path=replica.lineage_with_self, links=links(log)
    ) == [chunk]
    assert await store.find_summaries(tenant=tenant, root=replica.root, links=links(log)[:3]) == []
    assert await store.find_summaries(tenant=tenant, root="0" * 16, links=links(log)) == []


async def test_chunks_on_a_path_are_found_that_begin_behind_a_message(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, LINES)
    branch, _ = await branch_off(store, conversation, log, 7, ["user other", "assistant other"])
    fence = await lease_on(store, conversation.root)
    first, second, third = (chunk_over(conversation, log, start, start + 4) for start in (0, 4, 8))
    fold = chunk_over(conversation, log, 0, 8, folds=(first.id, second.id))
    for one in (first, second, third, fold):
        await store.add_summary(tenant=tenant, root=conversation.root, summary=one, fence=fence)
    where: dict[str, Any] = {"tenant": tenant, "root": conversation.root, "path": conversation.lineage_with_self}
    assert await store.find_summaries(**where, from_link=first.to_link) == [second]
    assert await store.find_summaries(**where, from_link=third.to_link) == []
    assert await store.find_summaries(**where, from_link=second.to_link, links=[second.to_link]) == [
        second,
        fold,
        third,
    ]
    assert await store.find_summaries(**where, from_link=second.to_link, links=[third.to_link]) == [third]
    assert (
        await store.find_summaries(
            tenant=tenant, root=branch.root, path=branch.lineage_with_self, from_link=second.to_link
        )
        == []
    )


async def test_chunks_are_found_among_thousands_of_links(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, LINES)
    fence = await lease_on(store, conversation.root)
    chunk = chunk_over(conversation, log, 0, 4)
    await store.add_summary(tenant=tenant, root=conversation.root, summary=chunk, fence=fence)
    long = [*log, *log_of(tenant, [f"user {number}" for number in range(3000)], after=log[-1])]
    assert await store.find_summaries(tenant=tenant, root=conversation.root, links=links(long)) == [chunk]


async def test_chunks_over_imported_messages_are_found_by_path(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, LINES, imported=True)
    fence = await lease_on(store, conversation.root)
    chunk = chunk_over(conversation, log, 0, 4)
    await store.add_summary(tenant=tenant, root=conversation.root, summary=chunk, fence=fence)
    assert await store.find_summaries(tenant=tenant, root=conversation.root, path=conversation.lineage_with_self) == [
        chunk
    ]


async def test_of_one_range_there_is_one_chunk_and_one_fold(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, LINES)
    fence = await lease_on(store, conversation.root)
    first, second = chunk_over(conversation, log, 0, 4), chunk_over(conversation, log, 0, 4)
    fold = chunk_over(conversation, log, 0, 4, folds=("a", "b"))
    for chunk in (first, second, fold):
        await store.add_summary(tenant=tenant, root=conversation.root, summary=chunk, fence=fence)
    assert await store.find_summaries(tenant=tenant, root=conversation.root, path=conversation.lineage_with_self) == [
        first,
        fold,
    ]


async def test_summaries_of_originals_and_of_changed_messages_stand_side_by_side(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, LINES)
    fence = await lease_on(store, conversation.root)
    original = chunk_over(conversation, log, 0, 4)
    changed = replace(chunk_over(conversation, log, 0, 4), versions_digest=b"d" * 16)
    for summary in (original, changed, replace(changed, id="sum_second")):
        await store.add_summary(tenant=tenant, root=conversation.root, summary=summary, fence=fence)

    found = await store.find_summaries(tenant=tenant, root=conversation.root, path=conversation.lineage_with_self)
    assert {(one.id, one.versions_digest) for one in found} == {(original.id, b""), (changed.id, b"d" * 16)}


@pytest.mark.parametrize("kind", ["mechanical", "part"])
async def test_only_a_models_summary_replaces_a_mechanical_one_or_a_part(store: Store, kind: SummaryKind) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, LINES)
    fence = await lease_on(store, conversation.root)
    mechanical = chunk_over(conversation, log, 0, 4, kind=kind)
    another = chunk_over(conversation, log, 0, 4, kind=kind)
    written = chunk_over(conversation, log, 0, 4, kind="model")
    expected = [mechanical, mechanical, written, written]
    for chunk, kept in zip((mechanical, another, written, another), expected, strict=True):
        await store.add_summary(tenant=tenant, root=conversation.root, summary=chunk, fence=fence)
        assert await store.find_summaries(
            tenant=tenant, root=conversation.root, path=conversation.lineage_with_self
        ) == [kept]


async def test_a_chunk_is_not_kept_under_a_lease_that_has_ended(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, LINES)
    ended = await lease_on(store, conversation.root, holder="first", seconds=0)
    await lease_on(store, conversation.root, holder="second")
    for fence in (ended, await lease_on(store, conversation.root, "another", seconds=0)):
        with pytest.raises(LeaseLost):
            await store.add_summary(
                tenant=tenant, root=conversation.root, summary=chunk_over(conversation, log, 0, 4), fence=fence
            )
    assert await store.find_summaries(tenant=tenant, root=conversation.root, path=conversation.lineage_with_self) == []
