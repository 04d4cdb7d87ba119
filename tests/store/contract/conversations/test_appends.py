"""Appends that are submitted at once end as each would by itself, in every store."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from app.store.contract.conversations import WriteConflict
from app.store.contract.leases import LeaseLost
from app.store.contract.store import Store
from tests.store.example_logs import NOON, Clock, beginnings, following, lease_on


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 37])
async def test_each_conversation_has_what_was_appended_to_it(store: Store, count: int) -> None:
    asked = beginnings(count)
    await asyncio.gather(*(store.append(write) for write in asked))
    answered = [following(write) for write in asked]
    more = beginnings(count)
    await asyncio.gather(*(store.append(write) for pair in zip(answered, more, strict=True) for write in pair))
    for question, answer in zip(asked, answered, strict=True):
        found = await store.find_conversation(
            tenant=question.conversation.tenant, conversation_id=question.conversation.id
        )
        assert found == replace(answer.conversation, created_at=NOON, updated_at=NOON)
        assert found is not None
        log = await store.read_log(found, 0, 9)
        assert [entry.message for entry in log] == [entry.message for entry in (*question.messages, *answer.messages)]


async def test_one_that_fails_takes_no_other_with_it(store: Store, clock: Clock) -> None:
    asked = beginnings(9)
    await asyncio.gather(*(store.append(write) for write in asked))
    lost = await lease_on(store, asked[2].conversation.root, seconds=0)
    writes = [following(write) for write in asked]
    writes[1] = replace(writes[1], after_seq=7)
    writes[2] = replace(writes[2], fence=lost)
    writes[3] = asked[3]
    outcomes = await asyncio.gather(*(store.append(write) for write in writes), return_exceptions=True)
    failed = [None, WriteConflict, LeaseLost, WriteConflict]
    assert [outcome and type(outcome) for outcome in outcomes] == failed + [None] * 5
    for place, write in enumerate(asked):
        found = await store.find_conversation(tenant=write.conversation.tenant, conversation_id=write.conversation.id)
        assert found is not None
        assert found.head_seq == (0 if place in (1, 2, 3) else 1)


async def test_a_total_that_a_redaction_moved_is_followed_among_others_too(store: Store) -> None:
    asked = beginnings(5)
    await asyncio.gather(*(store.append(write) for write in asked))
    (entry,) = asked[0].messages
    await store.redact_messages(asked[0].conversation, [replace(entry, tokens=entry.tokens + 5)])
    await asyncio.gather(*(store.append(following(write)) for write in asked))
    write = following(asked[0])
    found = await store.find_conversation(tenant=write.conversation.tenant, conversation_id=write.conversation.id)
    assert found is not None
    assert found.head_tokens_total == write.conversation.head_tokens_total + 5
