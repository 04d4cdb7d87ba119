"""All summaries of a database are read in one pass: of every tenant, as they are stored."""

from __future__ import annotations

import pytest

from app.errors import StoreUnavailable
from app.store.contract.store import Store
from app.store.summary_rows import BATCH_ROWS, SummaryRow, open_summary_rows
from tests.store.example_logs import begin, chunk_over, fresh_tenant, lease_on


@pytest.fixture(params=["sqlite_url", "postgres_url"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


async def test_summaries_of_all_tenants_are_read_while_others_are_written(store: Store, url: str) -> None:
    tenants = {fresh_tenant() for _ in range(2)}
    made = []
    for tenant in tenants:
        conversation, log = await begin(store, tenant, [f"user {number}" for number in range(BATCH_ROWS)])
        fence = await lease_on(store, conversation.root)
        for to_seq in range(1, BATCH_ROWS):
            summary = chunk_over(conversation, log, 0, to_seq)
            await store.add_summary(tenant=tenant, root=conversation.root, summary=summary, fence=fence)
            made.append(SummaryRow(tenant, conversation.root, summary))
    found = []
    async with open_summary_rows(url) as rows:
        async for row in rows:
            if row.tenant in tenants:
                found.append(row)
                await store.delete_summary(tenant=row.tenant, root=row.root, summary_id=row.summary.id)
    assert sorted(found, key=lambda row: row.summary.id) == sorted(made, key=lambda row: row.summary.id)


@pytest.mark.parametrize("url", ["sqlite:////nowhere/at/all.db", "postgresql://x@127.0.0.1:1/x"])
async def test_a_database_that_cannot_be_read_is_unavailable(url: str) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        async with open_summary_rows(url) as rows:
            assert [row async for row in rows] == []
