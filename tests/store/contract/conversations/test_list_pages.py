"""Pages of conversations and of stored completions: the same in every store."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.conversation.api_keys import derive_context_tenant
from app.conversation.conversation_types import Conversation, StoredCompletion
from app.store.contract.conversations import CompletionQuery, ConversationQuery
from app.store.contract.store import Store
from app.store.sql import page_queries
from app.store.sql.dialects import SQLITE
from tests.store.contract.requests.test_requests import request
from tests.store.example_logs import NOON, Clock, begin, branch_off, fresh_tenant, go_on
from tests.support.memory_store import MemoryStore

CHAT = ["user hi", "assistant hello"]


async def listed(store: Store, tenant: str | None, **query: Any) -> list[str]:
    found = await store.list_conversations(tenant=tenant, query=ConversationQuery(**{"limit": 99, **query}))
    return [conversation.id for conversation in found]


async def pages(store: Store, tenant: str, limit: int, *, descending: bool) -> list[str]:
    """All ids, page after page."""
    seen: list[str] = []
    after: tuple[datetime, str] | None = None
    while True:
        query = ConversationQuery(limit=limit, descending=descending, after=after)
        page = await store.list_conversations(tenant=tenant, query=query)
        seen += [conversation.id for conversation in page]
        if len(page) < limit:
            return seen
        assert page[-1].created_at is not None
        after = (page[-1].created_at, page[-1].id)


def in_order(conversations: list[Conversation], *, descending: bool) -> list[str]:
    ordered = sorted(conversations, key=lambda one: (one.created_at or NOON, one.id), reverse=descending)
    return [conversation.id for conversation in ordered]


async def test_pages_have_no_gaps_and_no_repeats_at_equal_times(store: Store, clock: Clock) -> None:
    tenant = fresh_tenant()
    made: list[Conversation] = []
    for moment in (0, 0, 0, 1, 1, 2, 0, 0, 3):
        created_at = NOON + timedelta(microseconds=moment)
        made.append((await begin(store, tenant, [f"user {len(made)}"], created_at=created_at))[0])
    await begin(store, fresh_tenant(), CHAT)
    for limit in (1, 2, 3, 4, 20):
        for descending in (True, False):
            expected = in_order(made, descending=descending)
            assert await pages(store, tenant, limit, descending=descending) == expected


async def test_conversations_are_ordered_by_their_last_activity(store: Store, clock: Clock) -> None:
    tenant = fresh_tenant()
    made = []
    for _ in range(3):
        clock.forward(1)
        made.append(await begin(store, tenant, CHAT))
    clock.forward(1)
    await go_on(store, *made[0], ["user again"])
    ids = [made[at][0].id for at in (0, 2, 1)]
    assert await listed(store, tenant, order_by="updated_at") == ids
    assert await listed(store, tenant, order_by="updated_at", descending=False) == ids[::-1]
    (first,) = await store.list_conversations(tenant=tenant, query=ConversationQuery(limit=1, order_by="updated_at"))
    assert first.updated_at is not None
    assert await listed(store, tenant, order_by="updated_at", after=(first.updated_at, first.id)) == ids[1:]


async def test_conversations_are_selected_by_length_and_by_their_requests(store: Store) -> None:
    tenant = fresh_tenant()
    short, long, other = [
        (await begin(store, tenant, lines))[0].id for lines in (CHAT, [*CHAT, *CHAT], ["user hi", *CHAT, *CHAT])
    ]
    await store.add_requests(
        [
            request(tenant, 0, conversation_id=short, model="a", context_status="trimmed"),
            request(tenant, 1, conversation_id=long, model="a", answered_by="b"),
            request(tenant, 2, conversation_id=long, model="c", context_status="trimmed", key_id="key_2"),
            request(tenant, 3, model="a"),
        ]
    )
    assert set(await listed(store, tenant, min_messages=4)) == {long, other}
    assert set(await listed(store, tenant, min_messages=5)) == {other}
    assert set(await listed(store, tenant, model="a")) == {short, long}
    assert await listed(store, tenant, model="b") == [long]
    assert set(await listed(store, tenant, context_status="trimmed")) == {short, long}
    assert await listed(store, tenant, key_id="key_2") == [long]
    # One and the same request must be like that.
    assert await listed(store, tenant, model="a", context_status="trimmed") == [short]
    assert await listed(store, tenant, model="a", context_status="trimmed", min_messages=4) == []


@given(moments=st.lists(st.integers(0, 3), max_size=12), limit=st.integers(1, 5), descending=st.booleans())
def test_whatever_the_times_pages_are_whole(moments: list[int], limit: int, descending: bool) -> None:
    asyncio.run(_page(moments, limit, descending))


async def _page(moments: list[int], limit: int, descending: bool) -> None:
    store = MemoryStore(clock=lambda: NOON)
    tenant = fresh_tenant()
    made = [
        (await begin(store, tenant, [f"user {number}"], created_at=NOON + timedelta(microseconds=moment)))[0]
        for number, moment in enumerate(moments)
    ]
    assert await pages(store, tenant, limit, descending=descending) == in_order(made, descending=descending)


async def test_a_page_goes_on_where_it_ended_although_that_one_is_gone(store: Store) -> None:
    tenant = fresh_tenant()
    made = [(await begin(store, tenant, [f"user {number}"]))[0] for number in range(5)]
    ids = in_order(made, descending=True)
    last = next(one for one in made if one.id == ids[2])
    await store.erase_conversation(tenant=tenant, conversation_id=last.id)
    assert await listed(store, tenant, after=(NOON, last.id)) == ids[3:]


async def test_conversations_are_chosen_by_all_their_pairs(store: Store) -> None:
    tenant = fresh_tenant()
    odd = 'q"uo\\te,{"a":"b"}\x00'
    first, _ = await begin(store, tenant, ["user 1"], metadata={"a": "x", "b": "y", odd: odd})
    second, _ = await begin(store, tenant, ["user 2"], metadata={"a": "x", "b": "z"})
    await begin(store, tenant, ["user 3"])
    assert set(await listed(store, tenant, metadata={"a": "x"})) == {first.id, second.id}
    assert await listed(store, tenant, metadata={"b": "z", "a": "x"}) == [second.id]
    assert await listed(store, tenant, metadata={odd: odd}) == [first.id]
    for none in ({"a": "y"}, {"x": "a"}, {"a": "x", "c": "y"}, {"a": ""}):
        assert await listed(store, tenant, metadata=none) == []


async def test_conversations_are_chosen_by_when_they_began_and_last_went_on(store: Store, clock: Clock) -> None:
    tenant = fresh_tenant()
    old, log = await begin(store, tenant, ["user 1", "assistant 1"])
    clock.forward(10)
    rested, _ = await begin(store, tenant, ["user 2"])
    clock.forward(10)
    await go_on(store, old, log, ["user again"])
    ten = NOON + timedelta(seconds=10)
    assert await listed(store, tenant, created_before=ten) == [old.id]
    assert await listed(store, tenant, created_after=NOON) == [rested.id]
    assert await listed(store, tenant, updated_after=ten) == [old.id]
    assert await listed(store, tenant, updated_before=ten) == []
    assert await listed(store, tenant, updated_before=ten + timedelta(microseconds=1), descending=False) == [rested.id]
    assert await listed(store, tenant, created_after=NOON, updated_after=NOON, limit=1) == [rested.id]


async def test_operators_see_everybodys(store: Store) -> None:
    mine, _ = await begin(store, fresh_tenant(), CHAT)
    theirs, _ = await begin(store, fresh_tenant(), CHAT)
    assert {mine.id, theirs.id} <= set(await listed(store, None, limit=100_000))


async def test_metadata_is_replaced_and_nothing_else(store: Store, clock: Clock) -> None:
    tenant = fresh_tenant()
    conversation, _ = await begin(store, tenant, CHAT, metadata={"a": "b"}, external_id="mine", marks={"pins": []})
    clock.forward(5)
    for name, metadata in ((conversation.id, {"c": "ü"}), ("mine", {})):
        described = await store.replace_metadata(tenant=tenant, conversation_id=name, metadata=metadata)
        assert described is not None
        assert (described.metadata, described.updated_at, described.marks) == (metadata, NOON, {"pins": []})
        assert described == await store.find_conversation(tenant=tenant, conversation_id=name)
    for stranger, name in ((fresh_tenant(), conversation.id), (tenant, "other")):
        assert await store.replace_metadata(tenant=stranger, conversation_id=name, metadata={"x": "y"}) is None
    found = await store.find_conversation(tenant=tenant, conversation_id=conversation.id)
    assert found is not None
    assert found.metadata == {}


def completion(conversation: Conversation, number: int, **fields: Any) -> StoredCompletion:
    values: dict[str, Any] = {
        "model": "gpt",
        "created_at": NOON,
        "metadata": {"n": str(number)},
        "parameters": {"temperature": 0.5, "tools": [{"type": "function"}]},
        "instructions": ('{"role": "system", "content": "é"}',),
    }
    return StoredCompletion(
        id=f"chatcmpl-{number}",
        tenant=conversation.tenant,
        root=conversation.root,
        conversation_id=conversation.id,
        seq=number,
        **values | fields,
    )


async def test_a_completion_comes_back_as_it_was_kept_and_is_kept_once(store: Store) -> None:
    conversation, _ = await begin(store, fresh_tenant(), CHAT)
    tenant, kept = conversation.tenant, completion(conversation, 1)
    await store.save_completion(completion(conversation, 1, model="before"))
    await store.save_completion(kept)
    assert await store.find_completion(tenant=tenant, completion_id=kept.id) == kept
    assert await store.list_completions(tenant=tenant, query=CompletionQuery(limit=9)) == [kept]
    assert await store.replace_completion_metadata(tenant=tenant, completion_id=kept.id, metadata={"x": "y"})
    found = await store.find_completion(tenant=tenant, completion_id=kept.id)
    assert found is not None
    assert found.metadata == {"x": "y"}
    assert await store.delete_completion(tenant=tenant, completion_id=kept.id)
    assert not await store.delete_completion(tenant=tenant, completion_id=kept.id)
    assert not await store.replace_completion_metadata(tenant=tenant, completion_id=kept.id, metadata={})
    assert await store.find_completion(tenant=tenant, completion_id=kept.id) is None
    assert await store.find_conversation(tenant=tenant, conversation_id=conversation.id) is not None


async def test_completions_are_listed_in_pages_and_chosen(store: Store) -> None:
    conversation, _ = await begin(store, fresh_tenant(), CHAT)
    tenant = conversation.tenant
    for number in range(5):
        await store.save_completion(
            completion(
                conversation,
                number,
                created_at=NOON + timedelta(seconds=number // 2),
                model="a" if number % 2 else "b",
                metadata={"even": "yes"} if number % 2 == 0 else {},
            )
        )

    async def ids(**query: Any) -> list[int]:
        found = await store.list_completions(tenant=tenant, query=CompletionQuery(**{"limit": 99, **query}))
        return [one.seq for one in found]

    assert await ids() == [0, 1, 2, 3, 4]
    assert await ids(descending=True, limit=3) == [4, 3, 2]
    assert await ids(after=(NOON, "chatcmpl-0"), limit=2) == [1, 2]
    assert await ids(after=(NOON + timedelta(seconds=1), "chatcmpl-3"), descending=True) == [2, 1, 0]
    assert await ids(model="a") == [1, 3]
    assert await ids(metadata={"even": "yes"}, model="b") == [0, 2, 4]
    assert await ids(model="c") == []


async def test_responses_are_listed_with_completions_or_left_out(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, _ = await begin(store, tenant, CHAT)
    chat, response = completion(conversation, 1), replace(completion(conversation, 1), id=f"resp_{'0' * 48}")
    for kept in (chat, response):
        await store.save_completion(kept)
    for with_responses, expected in ((True, {chat.id, response.id}), (False, {chat.id})):
        query = CompletionQuery(limit=9, with_responses=with_responses)
        assert {one.id for one in await store.list_completions(tenant=tenant, query=query)} == expected


async def test_conversations_of_end_users_are_listed_with_their_application(store: Store) -> None:
    tenant = f"{fresh_tenant()}_%"
    owners = (tenant, f"{tenant}/anna", f"{tenant}/anna/context-only", f"{tenant}0", f"x{tenant[1:-1]}y/anna")
    conversations = {owner: (await begin(store, owner, CHAT))[0].id for owner in owners}

    for owner, expected in ((tenant, owners[:3]), (f"{tenant}/anna", owners[1:3]), (f"{tenant}/a", ())):
        found = await listed(store, owner, with_derived_tenants=True, limit=9999)
        assert set(found) == {conversations[one] for one in expected}
    assert await listed(store, tenant) == [conversations[tenant]]


async def test_conversations_that_are_kept_for_continuing_are_listed_alone(store: Store) -> None:
    tenant = fresh_tenant()
    shown, _ = await begin(store, tenant, CHAT)
    hidden, _ = await begin(store, derive_context_tenant(tenant), CHAT)
    for name in (derive_context_tenant(tenant), None):
        found = await listed(store, name, is_context_only=True, limit=9999)
        assert hidden.id in found
        assert all(one.tenant.endswith("/context-only") for one in await all_of(store) if one.id in found)
    assert await listed(store, tenant, is_context_only=True) == []
    everywhere = await listed(store, None, excludes_context_tenants=True, limit=9999)
    assert shown.id in everywhere
    assert hidden.id not in everywhere


async def all_of(store: Store) -> list[Conversation]:
    return await store.list_conversations(tenant=None, query=ConversationQuery(limit=9999))


async def test_completions_go_with_their_conversation_or_with_the_messages_to_its_heir(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, log = await begin(store, tenant, [*CHAT, "user a", "assistant b"])
    branch, _ = await branch_off(store, trunk, log, 1, ["user c", "assistant d"])
    for kept in (completion(trunk, 1), completion(trunk, 3), completion(branch, 2)):
        await store.save_completion(kept)
    await store.erase_conversation(tenant=tenant, conversation_id=trunk.id)
    found = await store.list_completions(tenant=tenant, query=CompletionQuery(limit=9))
    assert [(one.seq, one.conversation_id) for one in found] == [(1, branch.id), (2, branch.id)]
    await store.erase_conversation(tenant=tenant, conversation_id=branch.id)
    assert await store.list_completions(tenant=tenant, query=CompletionQuery(limit=9)) == []


async def test_completions_are_their_tenants(store: Store) -> None:
    conversation, _ = await begin(store, fresh_tenant(), CHAT)
    kept, other = completion(conversation, 1), fresh_tenant()
    await store.save_completion(kept)
    asks: list[Callable[[], Awaitable[object]]] = [
        lambda: store.find_completion(tenant=other, completion_id=kept.id),
        lambda: store.list_completions(tenant=other, query=CompletionQuery(limit=9)),
        lambda: store.replace_completion_metadata(tenant=other, completion_id=kept.id, metadata={}),
        lambda: store.delete_completion(tenant=other, completion_id=kept.id),
    ]
    for ask in asks:
        assert not await ask()
    assert await store.find_completion(tenant=conversation.tenant, completion_id=kept.id) == kept


async def test_conversations_are_listed_by_their_mode_and_their_client_s_name(store: Store) -> None:
    tenant = fresh_tenant()
    one, _ = await begin(store, tenant, CHAT)
    two, log = await begin(store, tenant, ["user else"])
    await store.assign_external_id(tenant=tenant, external_id="name", conversation=two)
    await go_on(store, replace(two, mode="append"), log, ["assistant and"])
    assert await listed(store, tenant, mode="append") == [two.id]
    assert await listed(store, tenant, mode="unknown") == [one.id]
    assert await listed(store, tenant, external_id="name") == [two.id]
    assert await listed(store, tenant, external_id="name", mode="unknown") == []
    assert await listed(store, fresh_tenant(), external_id="name") == []


async def test_a_family_is_listed_by_itself(store: Store) -> None:
    tenant = fresh_tenant()
    root, log = await begin(store, tenant, CHAT * 3)
    left, left_log = await branch_off(store, root, log, 1, ["user left"])
    right, _ = await branch_off(store, root, log, 3, ["user right"])
    lower, _ = await branch_off(store, left, left_log, 2, ["user lower"])
    alike, _ = await begin(store, tenant, CHAT)
    assert alike.root == root.root
    everybody = in_order([root, left, right, lower], descending=True)
    assert await listed(store, tenant, ancestor_id=root.id) == everybody
    assert await listed(store, tenant, ancestor_id=root.id, limit=2) == everybody[:2]
    assert await listed(store, tenant, ancestor_id=left.id) == in_order([left, lower], descending=True)
    assert await listed(store, tenant, ancestor_id=lower.id) == [lower.id]
    assert await listed(store, tenant, ancestor_id=alike.id) == [alike.id]
    assert await listed(store, fresh_tenant(), ancestor_id=root.id) == []
    assert await listed(store, tenant, ancestor_id="conv_made-up") == []


def test_a_family_is_found_by_its_root_however_many_conversations_there_are(sqlite_url: str) -> None:
    sql, arguments = page_queries.build_conversations_query(
        SQLITE, "t", ConversationQuery(limit=10, ancestor_id=f"conv_{'a' * 48}")
    )
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
        steps = [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", arguments)]
    assert any("root=?" in step for step in steps), steps
