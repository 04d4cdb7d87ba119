"""Recognising a history: which stored messages a chain of links reaches, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from app.conversation.conversation_types import LogMessage
from app.store.contract.conversations import MAX_LINK_MATCHES, LinkMatch
from app.store.contract.store import Store
from tests.store.example_logs import (
    Clock,
    begin,
    branch_off,
    fresh_tenant,
    go_on,
    links,
    log_of,
)

CHAT = ["user hi", "assistant hello", "user how are you?", "assistant well"]


async def find(
    store: Store, tenant: str, log: Sequence[LogMessage], *, root: str, within: str | None = None
) -> list[LinkMatch]:
    return await store.find_link_matches(
        tenant=tenant,
        root=root,
        links=links(log),
        named_conversation_id=within,
    )


def places(found: Sequence[LinkMatch]) -> list[tuple[str, int]]:
    return [(match.conversation.id, match.message.seq) for match in found]


async def test_a_resent_history_is_found_at_the_head_it_continues(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    resent = [*log, *log_of(tenant, ["user new"], after=log[-1])]
    (match,) = await find(store, tenant, resent, root=conversation.root)
    assert (match.conversation.id, match.message.seq) == (conversation.id, 3)
    assert match.message.message == log[3].message
    assert match.conversation.head_seq == 3


async def test_a_retried_question_is_found_itself(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    conversation, log = await go_on(store, conversation, log, ["user asked twice"])
    assert places(await find(store, tenant, log, root=conversation.root)) == [(conversation.id, 4)]


async def test_what_holds_no_answer_of_ours_is_not_found(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, ["user hi"])
    assert await find(store, tenant, log, root=conversation.root) == []
    imported, log = await begin(store, tenant, ["user imported", "assistant by others"], imported=True)
    assert await find(store, tenant, log, root=imported.root) == []


@pytest.mark.parametrize("new_messages", [0, 3, 200])
async def test_unanswered_messages_are_found_on_request(store: Store, new_messages: int) -> None:
    tenant = fresh_tenant()
    imported, log = await begin(store, tenant, ["user hi", "assistant by others"], imported=True)
    beyond = log_of(tenant, [f"user {number}" for number in range(new_messages)], after=log[-1])
    chain: dict[str, Any] = {"links": links([*log, *beyond])}
    found = await store.find_link_matches(tenant=tenant, root=imported.root, **chain, with_unanswered=True)
    assert places(found)[0] == (imported.id, 1)
    assert await store.find_link_matches(tenant=tenant, root=imported.root, **chain) == []
    assert await store.find_link_matches(tenant=fresh_tenant(), root=imported.root, **chain, with_unanswered=True) == []


async def test_in_the_conversation_that_was_named_unanswered_messages_count(store: Store) -> None:
    tenant = fresh_tenant()
    other, _ = await begin(store, tenant, ["user hi"])
    named, log = await begin(store, tenant, ["user hi"])
    found = await find(store, tenant, log, root=named.root, within=named.id)
    assert places(found) == [(named.id, 0)]
    assert other.root == named.root


async def test_in_the_lineage_of_the_named_conversation_only_what_it_shares_counts(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, log = await begin(store, tenant, ["user a", "user b", "user c"])
    branch, _ = await branch_off(store, trunk, log, 1, ["user d"])
    found = await find(store, tenant, log, root=trunk.root, within=branch.id)
    assert places(found) == [(trunk.id, 1), (trunk.id, 0)]


async def test_a_near_match_elsewhere_does_not_hide_the_named_conversation(store: Store) -> None:
    tenant = fresh_tenant()
    named, log = await begin(store, tenant, CHAT)
    branch, whole = await branch_off(store, named, log, 1, ["user edited", "assistant again"])
    found = await find(store, tenant, whole, root=named.root, within=named.id)
    assert (branch.id, 3) in places(found)
    assert (named.id, 1) in places(found)


async def test_the_deepest_match_comes_first(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    beyond = log_of(tenant, ["user x", "assistant y", "user z"], after=log[-1])
    found = await find(store, tenant, [*log, *beyond], root=conversation.root)
    assert [match.message.seq for match in found] == [3, 2, 1]


async def test_of_conversations_with_the_same_link_heads_come_first_then_the_newest(store: Store, clock: Clock) -> None:
    tenant = fresh_tenant()
    moved_on, log = await begin(store, tenant, CHAT)
    await go_on(store, moved_on, log, ["user more", "assistant yes"])
    older, _ = await begin(store, tenant, CHAT)
    clock.forward(1)
    newer, _ = await begin(store, tenant, CHAT)
    clock.forward(1)
    touched, touched_log = await begin(store, tenant, CHAT)
    await go_on(store, touched, touched_log, ["user else", "assistant no"])
    found = await find(store, tenant, log, root=moved_on.root)
    assert [match.conversation.id for match in found] == [newer.id, older.id, touched.id, moved_on.id]


async def test_at_most_eight_matches_are_returned(store: Store) -> None:
    tenant = fresh_tenant()
    first, log = await begin(store, tenant, CHAT)
    for _ in range(MAX_LINK_MATCHES + 3):
        await begin(store, tenant, CHAT)
    assert len(await find(store, tenant, log, root=first.root)) == MAX_LINK_MATCHES
    beyond = log_of(tenant, ["user x", "user y", "user z"], after=log[-1])
    found = await find(store, tenant, [*log, *beyond], root=first.root)
    assert len(found) == MAX_LINK_MATCHES
    assert {match.message.seq for match in found} == {3}


async def test_a_match_near_the_end_is_all_that_is_returned(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, [*CHAT, "user a", "assistant b"])
    resent = [*log, *log_of(tenant, ["user new"], after=log[-1])]
    assert places(await find(store, tenant, resent, root=conversation.root)) == [(conversation.id, 5)]


async def test_tenants_do_not_find_each_others_messages(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    beyond = [*log, *log_of(tenant, ["user x", "user y", "user z"], after=log[-1])]
    for history in (log, beyond):
        assert await find(store, fresh_tenant(), history, root=conversation.root) == []
        assert await find(store, fresh_tenant(), history, root=conversation.root, within=conversation.id) == []


@pytest.mark.parametrize("new_messages", [100, 127, 128, 500, 1500])
async def test_a_match_is_found_however_much_is_new(store: Store, new_messages: int) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    beyond = log_of(tenant, [f"user {number}" for number in range(new_messages)], after=log[-1])
    found = await find(store, tenant, [*log, *beyond], root=conversation.root)
    assert places(found)[0] == (conversation.id, 3)


async def test_an_unknown_history_finds_nothing(store: Store) -> None:
    tenant = fresh_tenant()
    log = log_of(tenant, ["user nobody", *(f"assistant {number}" for number in range(3000))])
    assert await store.find_link_matches(tenant=tenant, root="0" * 16, links=links(log)) == []
    conversation, _ = await begin(store, tenant, CHAT)
    assert await find(store, tenant, log, root=conversation.root) == []


async def test_no_links_find_nothing(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, _ = await begin(store, tenant, CHAT)
    assert await store.find_link_matches(tenant=tenant, root=conversation.root, links=[]) == []


async def test_the_last_of_messages_that_the_chain_looks_through_is_found(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, ["user hi", "assistant hello", "assistant", "assistant"])
    assert log[1].link == log[3].link
    found = await find(store, tenant, log, root=conversation.root)
    assert [match.message.seq for match in found] == [3, 2, 1]
    beyond = [*log, *log_of(tenant, ["user a", "user b", "user c"], after=log[-1])]
    found = await find(store, tenant, beyond, root=conversation.root)
    assert [match.message.seq for match in found] == [3, 2, 1]
