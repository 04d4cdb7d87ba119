"""Summaries of histories that were never stored are purged."""

from __future__ import annotations

from datetime import timedelta

import pytest

from app.store.contract.store import Store
from app.store.sql import summary_transactions
from tests.store.example_logs import (
    NOON,
    begin,
    chunk_over,
    conversation_of,
    fresh_tenant,
    lease_on,
    links,
    log_of,
    strays_of,
)

CHAT = ["user hi", "assistant hello", "user how?", "assistant so", "user why?", "assistant because"]


async def test_summaries_of_what_was_never_stored_are_purged_when_they_are_old(store: Store) -> None:
    tenant = fresh_tenant()
    unstored, log, chunks = await strays_of(store, tenant, CHAT)
    root = unstored.root

    await store.purge_stray_summaries(created_before=min(chunk.created_at for chunk in chunks))
    assert len(await store.find_summaries(tenant=tenant, root=root, links=links(log))) == 3
    assert (
        await store.purge_stray_summaries(
            created_before=max(chunk.created_at for chunk in chunks) + timedelta(seconds=1)
        )
        > 0
    )

    assert await store.find_summaries(tenant=tenant, root=root, links=links(log)) == []
    assert await store.read_summary_revisions(tenant=tenant, root=root, summary_id=chunks[0].id) == []


async def test_summaries_are_purged_over_any_number_of_others(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary_transactions, "STRAY_PAGE_SIZE", 2)
    strays = [await strays_of(store, fresh_tenant(), CHAT) for _ in range(3)]
    tenant = fresh_tenant()
    kept, kept_log = await begin(store, tenant, CHAT)
    fence = await lease_on(store, kept.root)
    await store.add_summary(tenant=tenant, root=kept.root, summary=chunk_over(kept, kept_log, 0, 4), fence=fence)

    await store.purge_stray_summaries(created_before=NOON + timedelta(days=1))

    for unstored, log, _ in strays:
        assert await store.find_summaries(tenant=unstored.tenant, root=unstored.root, links=links(log)) == []
    assert len(await store.find_summaries(tenant=tenant, root=kept.root, links=links(kept_log))) == 1


async def test_a_summary_stays_that_has_a_conversation_or_whose_end_is_stored(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT[:4])
    ahead = log_of(tenant, CHAT[4:], after=log[-1])
    fence = await lease_on(store, conversation.root)
    unknown = conversation_of(tenant, log)
    of_its_own = chunk_over(conversation, [*log, *ahead], 4, 6)
    of_another = chunk_over(unknown, log, 0, 2)
    for chunk in (of_its_own, of_another):
        await store.add_summary(tenant=tenant, root=conversation.root, summary=chunk, fence=fence)

    await store.purge_stray_summaries(created_before=NOON + timedelta(days=1))

    found = await store.find_summaries(tenant=tenant, root=conversation.root, links=links([*log, *ahead]))
    assert {chunk.id for chunk in found} == {of_its_own.id, of_another.id}
