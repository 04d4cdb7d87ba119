"""Model calls that have ended: the same in every store, and the same as the filter in memory selects."""

from __future__ import annotations

from typing import Any

import pytest

from app.store.contract.requests import MAX_REQUEST_BATCH, RequestQuery, StoredRequest
from app.store.contract.store import Store
from app.store.sql import request_table
from tests.store.example_logs import begin, fresh_tenant

LONG_AGO = -4e9
"""No other test of a shared database has requests of that century."""


def request(tenant: str, number: int, **fields: Any) -> StoredRequest:
    values: dict[str, Any] = {
        "id": f"req_{tenant}_{number:04}",
        "started_at": 1_700_000_000.25 + number,
        "duration_ms": 100.5 * (number + 1),
        "status": 200,
        "error": None,
        "tenant": tenant,
        "key_id": "key_1",
        "model": "small",
        "answered_by": "small-2026",
        "provider": "one",
        "context_status": "full",
        "conversation_id": None,
        "record": '{"name":"\\u0000"}',
    }
    return StoredRequest(**(values | fields))


async def numbers(store: Store, tenant: str, **filters: Any) -> list[int]:
    values: dict[str, Any] = {"limit": 50, "tenant": tenant, **filters}
    query = RequestQuery(**values)
    return [int(one.id.rpartition("_")[2]) for one in await store.list_requests(query)]


async def test_a_request_is_read_as_it_was_added(store: Store) -> None:
    tenant = fresh_tenant()
    await store.add_requests([])
    empty = dict.fromkeys(("key_id", "model", "answered_by", "provider", "context_status"))
    rows = [request(tenant, 0, conversation_id="conv_1"), request(tenant, 1, **empty, error="internal_error")]
    await store.add_requests(rows)
    assert [await store.find_request(row.id) for row in rows] == rows
    assert await store.find_request(f"req_{fresh_tenant()}") is None


async def test_adding_again_changes_nothing(store: Store) -> None:
    tenant = fresh_tenant()
    await store.add_requests([request(tenant, number) for number in range(MAX_REQUEST_BATCH)])
    await store.add_requests([request(tenant, 0, status=500), request(tenant, MAX_REQUEST_BATCH)])
    assert len(await numbers(store, tenant, limit=1000)) == MAX_REQUEST_BATCH + 1
    assert await numbers(store, tenant, status=500) == []


async def test_pages_follow_each_other_newest_first(store: Store) -> None:
    tenant = fresh_tenant()
    # Two began in the same moment: the id decides.
    rows = [request(tenant, number, started_at=1_700_000_000.1 + number // 2) for number in range(5)]
    await store.add_requests(rows)
    assert await numbers(store, tenant, limit=2) == [4, 3]
    assert await numbers(store, tenant, limit=2, after=(rows[3].started_at, rows[3].id)) == [2, 1]
    assert await numbers(store, tenant, limit=2, after=(rows[1].started_at, rows[1].id)) == [0]


FILTERS: list[tuple[dict[str, Any], list[int]]] = [
    ({"started_after": 1_700_000_002.25}, [4, 3, 2]),
    ({"started_before": 1_700_000_002.25}, [1, 0]),
    ({"is_failed": True}, [3, 2]),
    ({"is_failed": False}, [4, 1, 0]),
    ({"min_duration_ms": 402}, [4, 3]),
    ({"status": 502}, [2]),
    ({"model": "small"}, [3, 2, 0]),
    ({"model": "large-2026"}, [4, 1]),
    ({"provider": "two"}, [1]),
    ({"key_id": "key_2"}, [4]),
    ({"context_status": "trimmed"}, [3]),
    ({"conversation_id": "conv_2"}, [4]),
    ({"record_part": '"],"chatcmpl-4_%'}, [4]),
    ({"record_part": "chatcmpl-4%"}, []),
    ({"record_part": "chatcmpl_4"}, []),
    ({"record_part": "CHATCMPL-4"}, []),
    ({"is_failed": True, "status": 200, "started_after": 1_700_000_000}, [3]),
    ({"model": "small", "provider": "two"}, []),
]


@pytest.mark.parametrize(("filters", "expected"), FILTERS)
async def test_filters_select_the_same_in_the_database_and_in_memory(
    store: Store, filters: dict[str, Any], expected: list[int]
) -> None:
    tenant = fresh_tenant()
    rows = [
        request(tenant, 0),
        request(tenant, 1, model="large", answered_by="large-2026", provider="two"),
        request(tenant, 2, status=502, error="upstream_unavailable", answered_by=None),
        request(tenant, 3, error="client_disconnected", context_status="trimmed"),
        request(
            tenant,
            4,
            model="large",
            answered_by="large-2026",
            key_id="key_2",
            conversation_id="conv_2",
            record='[[3,"0a"],"chatcmpl-4_%"]',
        ),
    ]
    await store.add_requests(rows)
    assert await numbers(store, tenant, **filters) == expected
    query = RequestQuery(limit=50, tenant=tenant, **filters)
    assert [n for n in reversed(range(5)) if query.selects(rows[n])] == expected


async def test_a_place_is_found_in_memory_as_in_the_database() -> None:
    rows = [request("tenant", number, started_at=1.5) for number in range(3)]
    query = RequestQuery(limit=50, after=(1.5, rows[2].id))
    assert [query.selects(row) for row in rows] == [True, True, False]


async def test_old_requests_are_deleted_for_one_tenant_or_for_all(store: Store) -> None:
    tenant, other = fresh_tenant(), fresh_tenant()
    await store.purge_requests(before=LONG_AGO)
    names = (tenant, f"{tenant}/{'0' * 32}", f"{tenant}-like", other)
    rows = [request(name, n, started_at=LONG_AGO - 10 * n) for name in names for n in (1, 2)]
    await store.add_requests(rows)
    assert await store.purge_requests(before=LONG_AGO - 10, tenant=tenant) == 2
    assert [await numbers(store, name) for name in names] == [[1], [1], [1, 2], [1, 2]]
    assert await store.purge_requests(before=LONG_AGO) == 6
    assert await numbers(store, other) == []


async def test_more_requests_than_one_statement_deletes_are_deleted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_table, "PURGE_BATCH", 2)
    await store.purge_requests(before=LONG_AGO - 1e6)
    await store.add_requests([request(fresh_tenant(), n, started_at=LONG_AGO - 2e6) for n in range(5)])
    assert await store.purge_requests(before=LONG_AGO - 1e6) == 5


async def test_the_requests_of_an_erased_conversation_are_erased(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, _ = await begin(store, tenant, ["user hi"])
    await store.add_requests([request(tenant, 0, conversation_id=conversation.id), request(tenant, 1)])
    assert await store.erase_conversation(tenant=tenant, conversation_id=conversation.id)
    assert await numbers(store, tenant) == [1]
