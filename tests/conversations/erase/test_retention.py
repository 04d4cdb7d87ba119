"""What is old is erased: by the general rule or a tenant's own, never what is in use, and by one process at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.api.edge.auth import derive_end_user_tenant
from app.conversation.api_keys import SCOPES, ApiKey, derive_context_tenant
from app.conversation.conversation_types import Conversation
from app.conversations.erase.retention_sweeper import BATCH_SIZE, SWEEP_LEASE, RetentionSweeper, SweepResult
from app.errors import ConversationBusy, StoreUnavailable
from app.store.contract.conversations import ConversationQuery
from app.store.contract.requests import RequestQuery
from app.store.encryption.cipher import Cipher
from app.store.encryption.encrypted_store import encrypt_store
from app.store.leases import LeaseKeeper
from tests.store.contract.requests.test_requests import request
from tests.store.example_logs import (
    Clock,
    begin,
    bodies,
    branch_off,
    chunk_over,
    conversation_of,
    fresh_tenant,
    go_on,
    lease_on,
    links,
    log_of,
)
from tests.support.memory_store import MemoryStore

DAY = 24 * 3600.0
TALK = ["user hi", "assistant hello", "user how are you", "assistant fine"]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore(clock=clock)


async def no_sleep(seconds: float) -> None:
    await asyncio.sleep(0)


def retention_of(store: Any, clock: Clock, days: int | None = 30, **parts: Any) -> RetentionSweeper:
    leases = LeaseKeeper(store, holder="sweeper")
    values = {"sleep": no_sleep, "random": lambda: 0.5, "sweep_seconds": 3600.0, "context_hours": 24, **parts}
    values = {"requests": store, "request_hours": 168, **values}
    return RetentionSweeper(store=store, keys=store, leases=leases, days=days, clock=clock, **values)


async def kept(store: MemoryStore) -> set[str]:
    return {one.id for one in await store.list_conversations(tenant=None, query=ConversationQuery(limit=9999))}


async def key_for(store: MemoryStore, clock: Clock, tenant: str, days: int | None, **fields: Any) -> ApiKey:
    name = f"key_{tenant}_{days}_{len(fields)}"
    key = ApiKey(name, name, "abcd", name, tenant, SCOPES, clock.now, retention_days=days, **fields)
    await store.add_api_key(key)
    return key


async def talk(store: MemoryStore, tenant: str = "") -> Conversation:
    return (await begin(store, tenant or fresh_tenant(), TALK))[0]


async def test_requests_are_erased_after_their_hours(store: MemoryStore, clock: Clock) -> None:
    now = clock.now.timestamp()
    await store.add_requests([request("shop", n, started_at=now - n * 3600) for n in (1, 3)])
    await retention_of(store, clock, days=None, request_hours=2).sweep()
    assert [one.started_at for one in await store.list_requests(RequestQuery(limit=9))] == [now - 3600]
    await retention_of(store, clock, days=None, request_hours=0).sweep()
    assert await store.list_requests(RequestQuery(limit=9)) == []


async def test_conversations_that_rest_for_longer_are_erased(store: MemoryStore, clock: Clock) -> None:
    await talk(store)
    clock.forward(20 * DAY)
    newer = await talk(store)
    clock.forward(11 * DAY)
    assert await retention_of(store, clock).sweep() == SweepResult(erased_conversations=1)
    assert await kept(store) == {newer.id}


async def test_a_conversation_rests_from_its_last_message_on(store: MemoryStore, clock: Clock) -> None:
    conversation, log = await begin(store, fresh_tenant(), TALK)
    clock.forward(20 * DAY)
    await go_on(store, conversation, log, ["user still here"])
    clock.forward(29 * DAY)
    assert await retention_of(store, clock).sweep() == SweepResult()
    clock.forward(2 * DAY)
    assert await retention_of(store, clock).sweep() == SweepResult(erased_conversations=1)


async def test_what_holds_for_an_application_holds_for_its_end_users(store: MemoryStore, clock: Clock) -> None:
    short, long = fresh_tenant(), fresh_tenant()
    await key_for(store, clock, short, 10)
    await key_for(store, clock, long, 50)
    applications = {name: derive_end_user_tenant(name, b"anna", "") for name in (short, long, fresh_tenant())}
    conversations = {name: await talk(store, tenant) for name, tenant in applications.items()}
    clock.forward(11 * DAY)
    retention = retention_of(store, clock)
    assert await retention.sweep() == SweepResult(erased_conversations=1)
    assert await kept(store) == {one.id for name, one in conversations.items() if name != short}
    clock.forward(20 * DAY)
    assert await retention.sweep() == SweepResult(erased_conversations=1)
    assert await kept(store) == {conversations[long].id}


async def test_what_is_kept_for_continuing_is_erased_after_its_hours(store: MemoryStore, clock: Clock) -> None:
    tenant = fresh_tenant()
    visible = await talk(store, tenant)
    for owner in (tenant, derive_end_user_tenant(tenant, b"anna", "")):
        await talk(store, derive_context_tenant(owner))
    retention = retention_of(store, clock, days=None, context_hours=24)
    clock.forward(0.9 * DAY)
    assert await retention.sweep() == SweepResult()
    clock.forward(0.2 * DAY)
    assert await retention.sweep() == SweepResult(erased_conversations=2)
    assert await kept(store) == {visible.id}


async def test_a_tenants_rule_holds_for_what_is_kept_for_continuing(store: MemoryStore, clock: Clock) -> None:
    tenant = fresh_tenant()
    await key_for(store, clock, tenant, 2)
    await talk(store, tenant)
    await talk(store, derive_context_tenant(tenant))
    foreign = await talk(store, derive_context_tenant(f"{tenant}0"))
    clock.forward(3 * DAY)
    retention = retention_of(store, clock, days=None, context_hours=1000)
    assert await retention.sweep() == SweepResult(erased_conversations=2)
    assert await kept(store) == {foreign.id}


async def test_without_a_rule_everything_is_kept(store: MemoryStore, clock: Clock) -> None:
    conversation = await talk(store)
    clock.forward(9999 * DAY)
    assert await retention_of(store, clock, days=None).sweep() == SweepResult()
    assert await kept(store) == {conversation.id}


@pytest.mark.parametrize(
    ("days_of_keys", "age", "is_kept"),
    [
        ([90], 31, True),
        ([90], 91, False),
        ([7], 8, False),
        ([90, 7], 8, False),
        ([None, 90], 31, True),
        ([None], 31, False),
    ],
)
async def test_the_shortest_of_a_tenants_keys_counts_instead_of_the_general_rule(
    store: MemoryStore, clock: Clock, days_of_keys: list[int | None], age: int, is_kept: bool
) -> None:
    conversation = await talk(store, "t")
    for days in days_of_keys:
        await key_for(store, clock, "t", days)
    clock.forward(age * DAY)
    await retention_of(store, clock, days=30).sweep()
    assert await kept(store) == ({conversation.id} if is_kept else set())


async def test_keys_that_are_not_valid_any_more_have_no_say(store: MemoryStore, clock: Clock) -> None:
    conversation = await talk(store, "t")
    await key_for(store, clock, "t", 1, revoked_at=clock.now)
    await key_for(store, clock, "t", 2, revoked_at=None, expires_at=clock.now)
    clock.forward(5 * DAY)
    await retention_of(store, clock).sweep()
    assert await kept(store) == {conversation.id}


async def test_a_rule_of_one_tenant_touches_nobody_else(store: MemoryStore, clock: Clock) -> None:
    await talk(store, "short")
    other = await talk(store, "other")
    await key_for(store, clock, "short", 7)
    clock.forward(8 * DAY)
    await retention_of(store, clock, days=None).sweep()
    assert await kept(store) == {other.id}


async def test_a_branch_that_lives_keeps_what_it_shares(store: MemoryStore, clock: Clock) -> None:
    parent, log = await begin(store, fresh_tenant(), TALK)
    clock.forward(31 * DAY)
    branch, whole = await branch_off(store, parent, log, 1, ["user go elsewhere"])
    await retention_of(store, clock).sweep()
    assert await kept(store) == {branch.id}
    found = await store.find_conversation(tenant=branch.tenant, conversation_id=branch.id)
    assert found is not None
    assert bodies(await store.read_log(found, 0, 9)) == bodies(whole)


async def test_a_conversation_in_use_is_left_for_the_next_time(store: MemoryStore, clock: Clock) -> None:
    conversation = await talk(store)
    clock.forward(31 * DAY)
    turn = await lease_on(store, conversation.root, conversation.id, holder="a turn")
    assert await retention_of(store, clock).sweep() == SweepResult(skipped_in_use=1)
    await store.release_lease(turn)
    assert await retention_of(store, clock).sweep() == SweepResult(erased_conversations=1)


async def test_a_conversation_that_went_on_meanwhile_stays(store: MemoryStore, clock: Clock) -> None:
    conversation, log = await begin(store, fresh_tenant(), TALK)
    clock.forward(31 * DAY)
    before = clock.now
    await go_on(store, conversation, log, ["user I am back"])
    assert not await retention_of(store, clock).erase_unless_in_use(conversation, before)
    assert await kept(store) == {conversation.id}


async def test_what_cannot_be_read_any_more_is_erased_all_the_same(store: MemoryStore, clock: Clock) -> None:
    await begin(
        encrypt_store(store, Cipher({"k": bytes(32)}, "k")), fresh_tenant(), TALK, state={"instructions": ["x"]}
    )
    clock.forward(31 * DAY)
    assert await retention_of(encrypt_store(store, Cipher({}, None)), clock).sweep() == SweepResult(
        erased_conversations=1
    )


async def test_more_than_one_batch_is_erased_with_pauses_between(store: MemoryStore, clock: Clock) -> None:
    for _ in range(BATCH_SIZE + 5):
        await talk(store)
    clock.forward(31 * DAY)
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    assert (await retention_of(store, clock, sleep=sleep).sweep()).erased_conversations == BATCH_SIZE + 5
    assert await kept(store) == set()
    assert len(pauses) == 1


async def test_one_process_sweeps_at_a_time(store: MemoryStore, clock: Clock) -> None:
    await talk(store)
    clock.forward(31 * DAY)
    await lease_on(store, *SWEEP_LEASE, holder="another process")
    with pytest.raises(ConversationBusy):
        await retention_of(store, clock).sweep()
    assert len(await kept(store)) == 1


async def test_idempotency_keys_whose_time_is_over_are_forgotten(store: MemoryStore, clock: Clock) -> None:
    await store.claim_idempotency_key(tenant="t", key="k", digest=b"d", holder="h", seconds=60.0, kept_seconds=60.0)
    clock.forward(DAY)
    assert await retention_of(store, clock, days=None).sweep() == SweepResult(purged_idempotency_keys=1)


async def test_summaries_whose_requests_failed_are_erased_after_an_hour_whatever_the_rules(
    store: MemoryStore, clock: Clock
) -> None:
    tenant = fresh_tenant()
    log = log_of(tenant, TALK)
    unstored = conversation_of(tenant, log)
    chunk = chunk_over(unstored, log, 0, 2, created_at=clock.now)
    fence = await lease_on(store, unstored.root)
    await store.add_summary(tenant=tenant, root=unstored.root, summary=chunk, fence=fence)
    retention = retention_of(store, clock, days=None)
    clock.forward(3600)
    assert await retention.sweep() == SweepResult()
    clock.forward(1)
    assert await retention.sweep() == SweepResult(purged_summaries=1)
    assert await store.find_summaries(tenant=tenant, root=unstored.root, links=links(log)) == []


class Outage(MemoryStore):
    """Is away the first time that it is asked for keys."""

    is_away = True

    async def list_api_keys(self, *, tenant: str | None = None) -> list[ApiKey]:
        if self.is_away:
            self.is_away = False
            raise StoreUnavailable("gone")
        return await super().list_api_keys(tenant=tenant)


async def test_sweeping_goes_on_after_an_outage_at_jittered_times(clock: Clock) -> None:
    pauses: list[float] = []
    store = Outage(clock=clock)
    await talk(store)
    clock.forward(31 * DAY)
    done = asyncio.Event()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            done.set()
            await asyncio.sleep(3600)

    retention = retention_of(store, clock, sleep=sleep, random=lambda: 1.0)
    retention.start()
    await asyncio.wait_for(done.wait(), 10)
    await retention.aclose()
    assert await kept(store) == set()
    assert pauses == pytest.approx([360, 3960, 3960])
