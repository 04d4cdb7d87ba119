"""Idempotency keys, API keys and secrets: the same in every store."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from app.conversation.api_keys import ApiKey
from app.store.contract.keys import IdempotencyKeyRecord
from app.store.contract.store import Store
from app.store.postgres.backend import PostgresStore
from tests.store.example_logs import NOON, Clock, fresh_tenant

_numbers = itertools.count(1)


async def claimed(store: Store, tenant: str, **fields: Any) -> IdempotencyKeyRecord:
    values: dict[str, Any] = {"key": "k", "digest": b"body", "holder": "me", "seconds": 60, "kept_seconds": 600}
    return await store.claim_idempotency_key(tenant=tenant, **values | fields)


async def settled(store: Store, tenant: str, holder: str = "me") -> None:
    await store.complete_idempotency_key(tenant=tenant, key="k", holder=holder, conversation_id="conv", seq=7)


async def pass_by(store: Store, clock: Clock, seconds: float) -> None:
    """Let time pass for claims; on PostgreSQL its own clock decides, so that their ends come nearer instead."""
    clock.forward(seconds)
    if isinstance(store, PostgresStore):
        sooner = "UPDATE request_keys SET expires_at = expires_at - make_interval(secs => $1::float8)"
        await store._connections.fetch(sooner, float(seconds))


async def test_a_request_key_is_claimed_once_and_then_says_what_became_of_it(store: Store) -> None:
    tenant = fresh_tenant()
    assert await claimed(store, tenant) == IdempotencyKeyRecord("claimed")
    assert await claimed(store, tenant, holder="you") == IdempotencyKeyRecord("running")
    assert await claimed(store, tenant, digest=b"other") == IdempotencyKeyRecord("differs")
    assert await claimed(store, tenant, key="k2") == IdempotencyKeyRecord("claimed")
    assert await claimed(store, fresh_tenant(), digest=b"other") == IdempotencyKeyRecord("claimed")
    await settled(store, tenant)
    assert await claimed(store, tenant, holder="you") == IdempotencyKeyRecord("done", "conv", 7)
    assert await claimed(store, tenant, digest=b"other") == IdempotencyKeyRecord("differs")


async def test_a_request_that_was_given_up_may_be_claimed_by_another(store: Store) -> None:
    tenant = fresh_tenant()
    await claimed(store, tenant)
    await store.release_idempotency_key(tenant=tenant, key="k", holder="you")
    assert await claimed(store, tenant, holder="you") == IdempotencyKeyRecord("running")
    await store.release_idempotency_key(tenant=tenant, key="k", holder="me")
    assert await claimed(store, tenant, holder="you", digest=b"other") == IdempotencyKeyRecord("claimed")
    await settled(store, tenant, "me")
    assert await claimed(store, tenant, digest=b"other") == IdempotencyKeyRecord("running")
    await settled(store, tenant, "you")
    await store.release_idempotency_key(tenant=tenant, key="k", holder="you")
    assert await claimed(store, tenant, digest=b"other") == IdempotencyKeyRecord("done", "conv", 7)


async def test_claims_end_and_answers_are_forgotten_in_their_time(store: Store, clock: Clock) -> None:
    tenant = fresh_tenant()
    await claimed(store, tenant)
    await pass_by(store, clock, 59)
    assert await claimed(store, tenant, holder="you") == IdempotencyKeyRecord("running")
    await pass_by(store, clock, 1)
    assert await claimed(store, tenant, holder="you") == IdempotencyKeyRecord("claimed")
    await pass_by(store, clock, 30)
    await settled(store, tenant, "you")
    await pass_by(store, clock, 599)
    assert await claimed(store, tenant) == IdempotencyKeyRecord("done", "conv", 7)
    await pass_by(store, clock, 1)
    assert await claimed(store, tenant) == IdempotencyKeyRecord("claimed")
    assert await claimed(store, tenant, holder="you") == IdempotencyKeyRecord("running")


async def test_a_claim_is_renewed_by_whoever_holds_it(store: Store, clock: Clock) -> None:
    tenant = fresh_tenant()
    for _ in range(3):
        assert await claimed(store, tenant) == IdempotencyKeyRecord("claimed")
        await pass_by(store, clock, 40)
        assert await claimed(store, tenant, holder="you") == IdempotencyKeyRecord("running")
    assert await claimed(store, tenant, digest=b"other") == IdempotencyKeyRecord("differs")
    await settled(store, tenant)
    assert await claimed(store, tenant) == IdempotencyKeyRecord("done", "conv", 7)


async def test_what_is_over_is_purged(store: Store, clock: Clock) -> None:
    tenant = fresh_tenant()
    await pass_by(store, clock, 3 * 365 * 86_400)
    await store.purge_idempotency_keys()
    await claimed(store, tenant, key="short", seconds=1)
    await claimed(store, tenant, key="long")
    await pass_by(store, clock, 2)
    assert await store.purge_idempotency_keys() == 1
    assert await store.purge_idempotency_keys() == 0
    assert await claimed(store, tenant, key="long", holder="you") == IdempotencyKeyRecord("running")


async def test_of_many_claims_at_once_one_wins(store: Store) -> None:
    tenant = fresh_tenant()
    outcomes = await asyncio.gather(*(claimed(store, tenant, holder=str(number)) for number in range(20)))
    assert sorted(outcome.state for outcome in outcomes) == ["claimed"] + ["running"] * 19


def key_of(tenant: str, **fields: Any) -> ApiKey:
    number = next(_numbers)
    values: dict[str, Any] = {"scopes": ("chat", "read"), "created_at": NOON + timedelta(seconds=number)}
    return ApiKey(
        id=f"key_{number}", digest=f"digest {number}", hint="abcd", name="é", tenant=tenant, **values | fields
    )


async def test_a_key_comes_back_as_it_was_added(store: Store) -> None:
    tenant = fresh_tenant()
    plain = key_of(tenant)
    full = key_of(
        tenant,
        policy="agent",
        models=("gpt-*", "x"),
        retention_days=30,
        expires_at=NOON,
        revoked_at=NOON,
        scopes=(),
        budget_usd=0.1,
        pass_through=("files",),
        requests_per_minute=5,
        tokens_per_minute=1000,
    )
    for key in (full, plain):
        await store.add_api_key(key)
        assert await store.find_api_key(key.digest) == key
    assert await store.list_api_keys(tenant=tenant) == [plain, full]
    assert await store.find_api_key("no digest") is None
    assert await store.list_api_keys(tenant=fresh_tenant()) == []
    theirs = key_of(fresh_tenant())
    await store.add_api_key(theirs)
    everybodys = await store.list_api_keys()
    assert [key for key in everybodys if key.id in (plain.id, full.id, theirs.id)] == [plain, full, theirs]


async def test_a_key_is_revoked_once(store: Store, clock: Clock) -> None:
    key = key_of(fresh_tenant())
    await store.add_api_key(key)
    assert await store.revoke_api_key("key_none") is None
    assert await store.find_api_key(key.digest) == key
    revoked = replace(key, revoked_at=clock())
    assert await store.revoke_api_key(key.id) == revoked
    clock.forward(60)
    assert await store.revoke_api_key(key.id) == revoked
    assert await store.find_api_key(key.digest) == revoked


async def test_the_budget_of_a_key_is_changed_and_nothing_else(store: Store) -> None:
    key, other = key_of(fresh_tenant(), policy="agent", expires_at=NOON, budget_usd=0.1), key_of(fresh_tenant())
    for one in (key, other):
        await store.add_api_key(one)
    assert await store.set_api_key_budget("key_none", 5) is None
    for budget_usd in (20.5, None, 0.25):
        changed = replace(key, budget_usd=budget_usd)
        assert await store.set_api_key_budget(key.id, budget_usd) == changed
        assert await store.find_api_key(key.digest) == changed
    assert await store.find_api_key(other.digest) == other


async def test_a_secret_is_what_the_first_proposed(store: Store) -> None:
    name = fresh_tenant()
    told = await asyncio.gather(*(store.ensure_server_secret(name, proposed=str(number)) for number in range(8)))
    assert len(set(told)) == 1
    assert await store.ensure_server_secret(name, proposed="late") == told[0]
    assert await store.ensure_server_secret(f"{name} other", proposed="x") == "x"


async def test_facts_about_models_are_merged(store: Store) -> None:
    model = f"provider/{fresh_tenant()}"
    await store.merge_model_facts(model=model, facts={"window": 8192, "calibration": {"a": 1}})
    await store.merge_model_facts(model=model, facts={"calibration": {"b": 2.5}})
    assert (await store.read_model_facts())[model] == {"window": 8192, "calibration": {"b": 2.5}}
