"""Leases in the store, and the writes that they fence."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from app.dialects.body.message import ChatMessage
from app.store.contract.conversations import LogAppend, WriteConflict
from app.store.contract.leases import Lease, LeaseLost
from app.store.contract.store import Store
from tests.store.example_logs import begin, branch_of, chunk_over, fresh_tenant, grown, lease_on, log_of

CHAT = ["user hi", "assistant hello"]


async def test_a_lease_is_held_by_one(store: Store) -> None:
    root = fresh_tenant()
    await lease_on(store, root, holder="first")
    assert await store.claim_lease(root=root, key="a-key", holder="second", seconds=60) is None
    await lease_on(store, root, "another-key", holder="second")
    await lease_on(store, fresh_tenant(), holder="second")


async def test_of_parallel_claims_one_wins(store: Store) -> None:
    root = fresh_tenant()
    claims = [store.claim_lease(root=root, key="k", holder=f"h{number}", seconds=60) for number in range(20)]
    assert len([lease for lease in await asyncio.gather(*claims) if lease is not None]) == 1


async def test_a_released_lease_is_free(store: Store) -> None:
    root = fresh_tenant()
    first = await lease_on(store, root, holder="first")
    await store.release_lease(first)
    await lease_on(store, root, holder="second")


async def test_an_expired_lease_is_taken_over_and_its_token_grows(store: Store) -> None:
    root = fresh_tenant()
    first = await lease_on(store, root, holder="first", seconds=0)
    second = await lease_on(store, root, holder="second", seconds=0)
    third = await lease_on(store, root, holder="first")
    assert first.token < second.token < third.token


async def test_a_token_grows_over_a_release(store: Store) -> None:
    root = fresh_tenant()
    tokens = []
    for _ in range(3):
        lease = await lease_on(store, root, seconds=0)
        tokens.append((await lease_on(store, root)).token)
        await store.release_lease(replace(lease, token=tokens[-1]))
    assert tokens == sorted(tokens)


async def test_a_holder_may_claim_again_and_its_older_claim_is_void(store: Store) -> None:
    root = fresh_tenant()
    first = await lease_on(store, root)
    second = await lease_on(store, root)
    assert second.token > first.token
    assert await store.renew_leases([first, second], 60) == [first]


async def test_releasing_a_lost_lease_does_nothing_to_its_new_holder(store: Store) -> None:
    root = fresh_tenant()
    lost = await lease_on(store, root, holder="first", seconds=0)
    await lease_on(store, root, holder="second")
    await store.release_lease(lost)
    assert await store.claim_lease(root=root, key="a-key", holder="third", seconds=60) is None


async def test_renewing_tells_which_leases_are_lost(store: Store) -> None:
    root = fresh_tenant()
    kept = await lease_on(store, root, "kept", seconds=0)
    taken = await lease_on(store, root, "taken", seconds=0)
    await lease_on(store, root, "taken", holder="other")
    gone = Lease(root, "gone", "me", 1)
    assert await store.renew_leases([kept, taken, gone], 60) == [taken, gone]
    assert await store.claim_lease(root=root, key="kept", holder="other", seconds=60) is None
    assert await store.renew_leases([], 60) == []


async def test_a_write_is_fenced_by_its_lease(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    more = log_of(tenant, ["user more"], after=log[-1])
    write = LogAppend(grown(conversation, more), conversation.head_seq, more)
    expired = await lease_on(store, conversation.root, "expired", seconds=0)
    taken = await lease_on(store, conversation.root, "taken", seconds=0)
    await lease_on(store, conversation.root, "taken", holder="other")
    unheard_of = Lease(conversation.root, "unheard of", "me", 1)
    for fence in (expired, taken, unheard_of):
        with pytest.raises(LeaseLost):
            await store.append(replace(write, fence=fence))
    held = await lease_on(store, conversation.root, "held")
    await store.append(replace(write, fence=held))
    with pytest.raises(WriteConflict):
        await store.append(replace(write, fence=held))
    assert len(await store.read_log(write.conversation, 0, 99)) == 3


async def test_a_creation_is_fenced_too(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    branch, _, own = branch_of(conversation, log, 0, ["user other"])
    fence = await lease_on(store, conversation.root, seconds=0)
    with pytest.raises(LeaseLost):
        await store.append(LogAppend(branch, 0, own, creates_conversation=True, fence=fence))
    assert await store.find_conversation(tenant=tenant, conversation_id=branch.id) is None
    fence = await lease_on(store, conversation.root)
    await store.append(LogAppend(branch, 0, own, creates_conversation=True, fence=fence, releases_lease=True))
    assert await store.renew_leases([fence], 60) == [fence]


async def test_a_write_can_release_its_lease(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    fence = await lease_on(store, conversation.root)
    more = log_of(tenant, ["user more", "assistant yes"], after=log[-1])
    write = LogAppend(grown(conversation, more), conversation.head_seq, more, fence=fence, releases_lease=True)
    await store.append(write)
    await lease_on(store, conversation.root, holder="next")


async def test_a_write_that_comes_too_late_keeps_its_lease(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    fence = await lease_on(store, conversation.root)
    more = log_of(tenant, ["user more"], after=log[-1])
    with pytest.raises(WriteConflict):
        await store.append(LogAppend(grown(conversation, more), 0, more, fence=fence, releases_lease=True))
    assert await store.renew_leases([fence], 60) == []


async def test_a_summary_in_the_making_is_not_stored_once_what_it_read_was_redacted(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    chunk = chunk_over(conversation, log, 0, 2)
    fence = await lease_on(store, conversation.root, f"range:{chunk.from_link.hex()}")
    turn = await lease_on(store, conversation.root, conversation.id)
    await store.redact_messages(
        conversation, [replace(log[0], message=ChatMessage.from_body({"role": "user", "content": "[erased]"}))]
    )
    with pytest.raises(LeaseLost):
        await store.add_summary(tenant=tenant, root=conversation.root, summary=chunk, fence=fence)
    assert await store.renew_leases([turn], 60) == [], "the conversation's own lease stays"
