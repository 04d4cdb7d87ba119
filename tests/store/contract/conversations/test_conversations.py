"""Conversations and their logs come back as they were written, in every store."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from app.conversation.conversation_types import LogMessage
from app.conversation.identity import make_conversation_id
from app.dialects.body.message import ChatMessage
from app.store.contract.conversations import LogAppend, WriteConflict
from app.store.contract.store import Store
from tests.store.example_logs import (
    NOON,
    Clock,
    begin,
    bodies,
    branch_of,
    branch_off,
    conversation_of,
    fresh_tenant,
    go_on,
    grown,
    links,
    log_of,
    random_bytes,
)

CHAT = ["user hi", "assistant hello", "user how are you?", "assistant well"]


async def test_a_conversation_comes_back_as_it_was_written(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(
        store,
        tenant,
        CHAT,
        mode="resend",
        chunk_count=2,
        state={"calibration": {"m": [1.5, 2]}},
        metadata={"topic": "ünïcode"},
    )
    found = await store.find_conversation(tenant=tenant, conversation_id=conversation.id)
    assert found == replace(conversation, created_at=NOON, updated_at=NOON)
    assert await store.read_log(conversation, 0, 99) == [replace(entry, created_at=NOON) for entry in log]


async def test_a_message_is_kept_byte_for_byte(store: Store) -> None:
    tenant = fresh_tenant()
    (entry,) = log_of(tenant, ["user x"])
    raw = '{ "content":"\\u0000 \\ud83d é 😀 1e2",  "role" : "user","n":1.0,"n":12345678901234567890123 }'.encode()
    odd = replace(entry, message=ChatMessage(raw), meta={"usage": {"prompt_tokens": 3}}, incomplete=True)
    conversation = conversation_of(tenant, [odd])
    await store.append(LogAppend(conversation, -1, [odd], creates_conversation=True))
    (kept,) = await store.read_log(conversation, 0, 1)
    assert kept.message.raw == raw
    assert (kept.meta, kept.incomplete) == ({"usage": {"prompt_tokens": 3}}, True)


async def test_times_are_the_stores_unless_given(store: Store, clock: Clock) -> None:
    tenant = fresh_tenant()
    given = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
    first, second = log_of(tenant, ["user a", "assistant b"])
    log = [replace(first, created_at=given), second]
    conversation = conversation_of(tenant, log, created_at=given)
    await store.append(LogAppend(conversation, -1, log, creates_conversation=True))
    clock.forward(5)
    await go_on(store, conversation, log, ["user c"])
    found = await store.find_conversation(tenant=tenant, conversation_id=conversation.id)
    assert found is not None
    assert (found.created_at, found.updated_at) == (given, clock())
    assert [entry.created_at for entry in await store.read_log(found, 0, 3)] == [given, NOON, clock()]


async def test_a_log_grows_only_at_its_end(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    after, _ = await go_on(store, conversation, log, ["user more"])
    with pytest.raises(WriteConflict):
        await go_on(store, conversation, log, ["user other"])
    assert bodies(await store.read_log(after, 0, 99)) == ["hi", "hello", "how are you?", "well", "more"]


async def test_a_conversation_is_created_once(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    with pytest.raises(WriteConflict):
        await store.append(LogAppend(conversation, -1, log, creates_conversation=True))


async def test_nothing_is_appended_to_what_does_not_exist_or_is_anothers(store: Store) -> None:
    tenant = fresh_tenant()
    log = log_of(tenant, CHAT)
    with pytest.raises(WriteConflict):
        await store.append(LogAppend(conversation_of(tenant, log), 3, []))
    conversation, log = await begin(store, tenant, CHAT)
    with pytest.raises(WriteConflict):
        await go_on(store, replace(conversation, tenant="somebody else"), log, ["user mine?"])


async def test_an_append_without_messages_changes_the_conversation_only(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    changed = replace(conversation, state={"boundary": {"8192": 2}}, mode="append", chunk_count=1)
    await store.append(LogAppend(changed, conversation.head_seq, []))
    found = await store.find_conversation(tenant=tenant, conversation_id=conversation.id)
    assert found is not None
    assert (found.state, found.mode, found.chunk_count) == ({"boundary": {"8192": 2}}, "append", 1)
    assert len(await store.read_log(found, 0, 99)) == len(log)


async def test_of_fifty_parallel_appends_to_one_head_exactly_one_wins(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    rivals = [go_on(store, conversation, log, [f"user rival {number}", "assistant ok"]) for number in range(50)]
    outcomes = await asyncio.gather(*rivals, return_exceptions=True)
    winners = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    losers = [outcome for outcome in outcomes if isinstance(outcome, WriteConflict)]
    assert (len(winners), len(losers)) == (1, 49)
    (winner,) = winners
    assert links(await store.read_log(winner[0], 0, 99)) == links(winner[1])


async def test_a_range_is_read_in_order_and_within_bounds(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, _ = await begin(store, tenant, [f"user {number}" for number in range(30)])
    assert bodies(await store.read_log(conversation, 10, 13)) == ["10", "11", "12"]
    assert bodies(await store.read_log(conversation, 28, 99)) == ["28", "29"]
    assert await store.read_log(conversation, 5, 5) == []
    assert await store.read_log(conversation, 30, 40) == []
    assert bodies(await store.read_log_ranges(conversation, [(2, 4), (7, 8), (28, 99)])) == ["2", "3", "7", "28", "29"]
    assert await store.read_log_ranges(conversation, []) == []


async def test_a_log_is_read_through_its_lineage(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, trunk_log = await begin(store, tenant, [*CHAT, "user a", "assistant b"])
    limb, limb_log = await branch_off(store, trunk, trunk_log, 3, ["user c", "assistant d", "user e"])
    twig, twig_log = await branch_off(store, limb, limb_log, 5, ["user f", "assistant g"])
    early, early_log = await branch_off(store, limb, limb_log, 1, ["user h"])
    assert twig.lineage == ((trunk.id, 3), (limb.id, 5))
    assert early.lineage == ((trunk.id, 1),)
    for conversation, log in ((trunk, trunk_log), (limb, limb_log), (twig, twig_log), (early, early_log)):
        assert links(await store.read_log(conversation, 0, 99)) == links(log)
        assert links(await store.read_log(conversation, 1, 6)) == links(log[1:6])
        assert links(await store.read_log_ranges(conversation, [(0, 1), (2, 5)])) == links([log[0], *log[2:5]])


async def test_a_branch_that_adds_nothing_yet_has_its_parents_log(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, log = await begin(store, tenant, CHAT)
    branch, whole = await branch_off(store, trunk, log, 1, [])
    assert bodies(await store.read_log(branch, 0, 99)) == ["hi", "hello"]
    assert links(whole) == links(log[:2])
    later, _ = await go_on(store, branch, whole, ["user again"])
    assert bodies(await store.read_log(later, 0, 99)) == ["hi", "hello", "again"]


async def test_a_branch_needs_a_parent_that_is_there(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, log = await begin(store, tenant, CHAT)
    branch, _, own = branch_of(trunk, log, 1, ["user other"])
    beyond = replace(branch, lineage=((trunk.id, 9),))
    with pytest.raises(WriteConflict):
        await store.append(LogAppend(beyond, 9, own, creates_conversation=True))
    await store.erase_conversation(tenant=tenant, conversation_id=trunk.id)
    with pytest.raises(WriteConflict):
        await store.append(LogAppend(branch, 1, own, creates_conversation=True))
    assert await store.find_conversation(tenant=tenant, conversation_id=branch.id) is None


async def test_ten_thousand_messages_are_stored_at_once(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, [f"user {number}" for number in range(10_000)])
    assert links(await store.read_log(conversation, 0, 10_000)) == links(log)


async def test_a_clients_own_id_means_the_conversation_it_was_created_with(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, _ = await begin(store, tenant, CHAT, external_id="chat-1")
    found = await store.find_conversation(tenant=tenant, conversation_id="chat-1")
    assert found is not None
    assert (found.id, found.external_id) == (conversation.id, "chat-1")
    assert await store.find_conversation(tenant=fresh_tenant(), conversation_id="chat-1") is None
    assert await store.find_conversation(tenant=fresh_tenant(), conversation_id=conversation.id) is None
    assert await store.find_conversation(tenant=tenant, conversation_id="chat-2") is None


async def test_two_conversations_cannot_be_created_under_one_id_of_the_clients(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, _ = await begin(store, tenant, CHAT, external_id="chat-1")
    log = log_of(tenant, ["user something else"])
    second = conversation_of(tenant, log, external_id="chat-1")
    with pytest.raises(WriteConflict):
        await store.append(LogAppend(second, -1, log, creates_conversation=True))
    assert await store.find_conversation(tenant=tenant, conversation_id=second.id) is None
    found = await store.find_conversation(tenant=tenant, conversation_id="chat-1")
    assert found is not None
    assert found.id == conversation.id


async def test_a_clients_id_can_be_made_to_mean_a_branch(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, log = await begin(store, tenant, CHAT, external_id="chat-1")
    branch, _ = await branch_off(store, trunk, log, 1, ["user other"])
    await store.assign_external_id(tenant=tenant, external_id="chat-1", conversation=branch)
    found = await store.find_conversation(tenant=tenant, conversation_id="chat-1")
    assert found is not None
    assert (found.id, found.external_id) == (branch.id, "chat-1")
    former = await store.find_conversation(tenant=tenant, conversation_id=trunk.id)
    assert former is not None
    assert former.external_id is None


async def test_a_clients_new_id_can_be_pointed_at_an_old_conversation(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, _ = await begin(store, tenant, CHAT)
    await store.assign_external_id(tenant=tenant, external_id="chat-2", conversation=conversation)
    await store.assign_external_id(tenant=tenant, external_id="chat-3", conversation=conversation)
    for name in ("chat-2", "chat-3"):
        found = await store.find_conversation(tenant=tenant, conversation_id=name)
        assert found is not None
        assert (found.id, found.external_id) == (conversation.id, name)


async def test_an_answer_is_stored_with_what_is_known_of_it(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, ["user hi"])
    (answer,) = log_of(tenant, ["assistant hello"], after=log[-1])
    answer = replace(answer, meta={"completion_id": "chatcmpl-1", "shown": [1, 2]})
    await store.append(LogAppend(grown(conversation, [answer]), 0, [answer]))
    (kept,) = await store.read_log(grown(conversation, [answer]), 1, 2)
    assert isinstance(kept, LogMessage)
    assert kept.meta == {"completion_id": "chatcmpl-1", "shown": [1, 2]}


async def test_unknown_ids_find_nothing(store: Store) -> None:
    tenant = fresh_tenant()
    ours = make_conversation_id("0" * 16, random_bytes)
    for unknown in (ours, "chat", "x' OR '1'='1"):
        assert await store.find_conversation(tenant=tenant, conversation_id=unknown) is None
        assert not await store.erase_conversation(tenant=tenant, conversation_id=unknown)
