"""Fingerprints of issued answers: one owner proves a conversation, a second one spends the fingerprint for good."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from app.conversation.conversation_types import AnswerAnchor, Conversation, IssuedAnswer, LogMessage
from app.store.contract.conversations import LogAppend, WriteConflict
from app.store.contract.leases import Lease, LeaseLost
from app.store.contract.store import Store
from app.store.store_factory import create_store
from tests.store.contract.conversations.test_redaction import overwritten
from tests.store.example_logs import (
    Clock,
    begin,
    branch_of,
    conversation_of,
    fresh_tenant,
    go_on,
    grown,
    log_of,
    random_bytes,
)

CHAT = ["user hi", "assistant hello", "user more", "assistant yes"]
NOTHING = [(None, -1)]


def fingerprint() -> bytes:
    return random_bytes(16)


def issued_at(conversation: Conversation, seq: int, *fingerprints: bytes) -> IssuedAnswer:
    return IssuedAnswer(fingerprints, conversation.root, conversation.id, seq, conversation.owner_lineage)


def spent(conversation: Conversation, *fingerprints: bytes) -> IssuedAnswer:
    return IssuedAnswer(fingerprints, conversation.root, None, -1, conversation.owner_lineage)


async def proofs(store: Store, tenant: str, *fingerprints: bytes) -> list[tuple[str | None, int]]:
    """Conversation and place that each issued fingerprint proves."""
    found = {one.fingerprint: one for one in await store.find_proofs(tenant=tenant, fingerprints=fingerprints)}
    ordered = [found[one] for one in fingerprints if one in found]
    return [(None if one.conversation is None else one.conversation.id, one.seq) for one in ordered]


async def begun(store: Store, **fields: Any) -> tuple[str, Conversation, list[LogMessage]]:
    tenant = fresh_tenant()
    return tenant, *await begin(store, tenant, CHAT, **fields)


async def test_an_answer_proves_the_only_conversation_in_which_it_was_issued(store: Store) -> None:
    tenant, conversation, _ = await begun(store, external_id="chat", state={"a": "b"})
    link, words, unknown = fingerprint(), fingerprint(), fingerprint()
    await store.issue_answer(issued_at(conversation, 3, link, words))
    assert await proofs(store, tenant, words, link, unknown) == [(conversation.id, 3)] * 2
    (found,) = await store.find_proofs(tenant=tenant, fingerprints=[link])
    assert found.conversation == await store.find_conversation(tenant=tenant, conversation_id="chat")
    assert found.conversation is not None
    assert (found.conversation.external_id, dict(found.conversation.state)) == ("chat", {"a": "b"})


async def test_an_answer_proves_nothing_to_another_tenant(store: Store) -> None:
    _, conversation, _ = await begun(store)
    mark = fingerprint()
    await store.issue_answer(issued_at(conversation, 3, mark))
    assert await proofs(store, fresh_tenant(), mark) == NOTHING


async def test_a_second_owner_spends_a_fingerprint_for_good(store: Store) -> None:
    tenant, one, _ = await begun(store)
    other, _ = await begin(store, tenant, CHAT)
    mark, own = fingerprint(), fingerprint()
    await store.issue_answer(issued_at(one, 1, mark))
    await store.issue_answer(issued_at(other, 1, *sorted([mark, own])))
    assert await proofs(store, tenant, mark, own) == [*NOTHING, (other.id, 1)]
    await store.issue_answer(issued_at(one, 3, mark))
    assert await proofs(store, tenant, mark) == NOTHING


async def test_an_answer_that_its_owner_gives_again_keeps_its_first_place(store: Store) -> None:
    tenant, conversation, log = await begun(store)
    branch, _, own = branch_of(conversation, log, 2, ["assistant otherwise"])
    mark = fingerprint()
    await store.issue_answer(issued_at(conversation, 3, mark))
    await store.issue_answer(issued_at(conversation, 1, mark))
    # The branch replaces message 3: the answer that it replaces has the same owner.
    await store.append(LogAppend(branch, 2, own, creates_conversation=True, issued=issued_at(branch, 3, mark)))
    assert await proofs(store, tenant, mark) == [(conversation.id, 3)]


async def test_an_answer_after_the_place_of_the_branch_has_another_owner(store: Store) -> None:
    tenant, conversation, log = await begun(store)
    branch, _, own = branch_of(conversation, log, 0, ["assistant otherwise"])
    mark = fingerprint()
    await store.issue_answer(issued_at(conversation, 3, mark))
    await store.append(LogAppend(branch, 0, own, creates_conversation=True, issued=issued_at(branch, 1, mark)))
    assert await proofs(store, tenant, mark) == NOTHING


async def test_an_answer_of_a_conversation_that_merely_shares_rows_has_another_owner(store: Store) -> None:
    tenant, conversation, log = await begun(store)
    twin, _, own = branch_of(conversation, log, 3, ["user on", "assistant on"])
    twin = replace(twin, marks={"shared_through": 3})
    mark = fingerprint()
    await store.issue_answer(issued_at(conversation, 3, mark))
    await store.append(LogAppend(twin, 3, own, creates_conversation=True, issued=issued_at(twin, 5, mark)))
    assert await proofs(store, tenant, mark) == NOTHING


async def test_an_answer_that_is_not_kept_spends_what_nobody_else_may_prove_by(store: Store) -> None:
    tenant, conversation, _ = await begun(store)
    other, _ = await begin(store, tenant, CHAT)
    new, own, others = fingerprint(), fingerprint(), fingerprint()
    await store.issue_answer(issued_at(conversation, 1, own))
    await store.issue_answer(issued_at(other, 1, others))
    await store.issue_answer(spent(conversation, *sorted([new, own, others])))
    assert await proofs(store, tenant, new, own, others) == [*NOTHING, (conversation.id, 1), *NOTHING]
    await store.issue_answer(issued_at(conversation, 3, new))
    assert await proofs(store, tenant, new) == NOTHING


async def test_an_append_issues_its_answer_and_stores_its_anchors(store: Store) -> None:
    tenant, conversation, log = await begun(store)
    first, second, digest = fingerprint(), fingerprint(), fingerprint()
    for number, issued in enumerate((issued_at(conversation, 5, first, second), None)):
        more = log_of(tenant, ["user on", f"assistant {number}"], after=log[-1])
        anchor = AnswerAnchor(digest, conversation.root, conversation.id, more[-1].seq)
        conversation, log = grown(conversation, more), [*log, *more]
        await store.append(LogAppend(conversation, more[0].seq - 1, more, issued=issued, anchors=[anchor]))
    assert await proofs(store, tenant, first, second) == [(conversation.id, 5)] * 2
    assert sorted(one.seq for one in await store.find_anchors([digest])) == [5, 7]


async def test_a_rejected_append_issues_nothing(store: Store) -> None:
    tenant, conversation, log = await begun(store)
    more = log_of(tenant, ["user on", "assistant on"], after=log[-1])
    mark = fingerprint()
    write = LogAppend(
        grown(conversation, more),
        conversation.head_seq,
        more,
        issued=issued_at(conversation, 5, mark),
        anchors=[AnswerAnchor(mark, conversation.root, conversation.id, 5)],
        fence=Lease(conversation.root, conversation.id, "nobody", 1),
    )
    with pytest.raises(LeaseLost):
        await store.append(write)
    with pytest.raises(WriteConflict):
        await store.append(replace(write, fence=None, after_seq=1))
    with pytest.raises(WriteConflict):
        await store.append(replace(write, fence=None, creates_conversation=True))
    assert await proofs(store, tenant, mark) == []
    assert await store.find_anchors([mark]) == []


async def test_appends_of_one_moment_issue_their_answers_and_share_none(store: Store) -> None:
    tenant, shared, spent_before = fresh_tenant(), fingerprint(), fingerprint()
    await store.issue_answer(IssuedAnswer((spent_before,), "", None, -1))
    writes, marks = [], []
    for number in range(20):
        log = log_of(tenant, [f"user {number}", "assistant done"])
        conversation = conversation_of(tenant, log)
        marks.append(fingerprint())
        issued = issued_at(conversation, 1, *sorted([shared, spent_before, marks[-1]]))
        writes.append(LogAppend(conversation, -1, log, creates_conversation=True, issued=issued))
    await asyncio.gather(*(store.append(write) for write in writes))
    assert await proofs(store, tenant, shared, spent_before) == NOTHING * 2
    assert await proofs(store, tenant, *marks) == [(write.conversation.id, 1) for write in writes]


async def test_a_batch_with_a_rejected_append_issues_the_others_answers(store: Store) -> None:
    tenant, writes, marks = fresh_tenant(), [], []
    for number in range(6):
        conversation, log = await begin(store, tenant, [f"user {number}"])
        more = log_of(tenant, ["assistant done"], after=log[-1])
        marks.append(fingerprint())
        issued = issued_at(conversation, 1, marks[-1])
        writes.append(LogAppend(grown(conversation, more), 0 if number != 3 else 7, more, issued=issued))
    ended = await asyncio.gather(*(store.append(write) for write in writes), return_exceptions=True)
    assert [type(one) for one in ended if one is not None] == [WriteConflict]
    assert await proofs(store, tenant, marks[3]) == []
    del writes[3], marks[3]
    assert await proofs(store, tenant, *marks) == [(write.conversation.id, 1) for write in writes]


async def test_an_erased_conversation_leaves_its_fingerprints_spent(store: Store) -> None:
    tenant, conversation, _ = await begun(store)
    other, _ = await begin(store, tenant, CHAT)
    mark = fingerprint()
    await store.issue_answer(issued_at(conversation, 3, mark))
    assert await store.erase_conversation(tenant=tenant, conversation_id=conversation.id)
    assert await proofs(store, tenant, mark) == NOTHING
    await store.issue_answer(issued_at(other, 3, mark))
    assert await proofs(store, tenant, mark) == NOTHING


async def test_fingerprints_of_messages_that_a_branch_takes_over_prove_the_branch(store: Store) -> None:
    tenant, conversation, log = await begun(store)
    branch, _, own = branch_of(conversation, log, 2, ["assistant otherwise"])
    await store.append(LogAppend(branch, 2, own, creates_conversation=True))
    kept, gone = fingerprint(), fingerprint()
    await store.issue_answer(issued_at(conversation, 1, kept))
    await store.issue_answer(issued_at(conversation, 3, gone))
    assert await store.erase_conversation(tenant=tenant, conversation_id=conversation.id)
    assert await proofs(store, tenant, kept, gone) == [(branch.id, 1), *NOTHING]


async def test_a_redacted_answer_leaves_its_fingerprints_spent(store: Store) -> None:
    tenant, conversation, log = await begun(store)
    redacted, words, other = fingerprint(), fingerprint(), fingerprint()
    await store.issue_answer(issued_at(conversation, 1, redacted, words))
    await store.issue_answer(issued_at(conversation, 3, other))
    await store.redact_messages(conversation, [overwritten(log[1])])
    assert await proofs(store, tenant, redacted, words, other) == [*NOTHING * 2, (conversation.id, 3)]
    conversation, _ = await go_on(store, conversation, log, ["user on", "assistant hello"])
    late = fingerprint()
    await store.issue_answer(issued_at(conversation, 5, words))
    await store.issue_answer(issued_at(conversation, 1, late))
    assert await proofs(store, tenant, words, late) == NOTHING * 2
    branch, _, own = branch_of(conversation, log, 3, ["user otherwise"])
    await store.append(LogAppend(branch, 3, own, creates_conversation=True))
    assert await store.erase_conversation(tenant=tenant, conversation_id=conversation.id)
    assert await proofs(store, tenant, redacted, other) == [*NOTHING, (branch.id, 3)]


async def test_thousands_of_fingerprints_are_found_at_once(store: Store) -> None:
    tenant, conversation, _ = await begun(store)
    marks = [fingerprint() for _ in range(1200)]
    await store.issue_answer(issued_at(conversation, 3, *marks))
    assert await proofs(store, tenant, *marks) == [(conversation.id, 3)] * 1200
    assert await proofs(store, tenant) == []


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_many_processes_that_issue_the_same_answers_neither_deadlock_nor_wait(url: str, clock: Clock) -> None:
    tenant, marks = fresh_tenant(), [fingerprint() for _ in range(3)]
    stores = [create_store(url, clock=clock, pool_size=5, timeout_seconds=10) for _ in range(4)]
    for one in stores:
        await one.open()
    writes = []
    for number in range(200):
        conversation, log = await begin(stores[0], tenant, [f"user {number}"])
        more = log_of(tenant, ["assistant done"], after=log[-1])
        # In another order each: the store sorts them.
        issued = issued_at(conversation, 1, *marks[number % 3 :], *marks[: number % 3], fingerprint())
        writes.append(LogAppend(grown(conversation, more), 0, more, issued=issued))
    async with asyncio.timeout(10):
        await asyncio.gather(*(stores[number % 4].append(write) for number, write in enumerate(writes)))
    assert await proofs(stores[0], tenant, *marks) == NOTHING * 3
    for _ in range(10):
        fresh = [fingerprint() for _ in range(40)]
        orders = [IssuedAnswer(tuple(fresh[:: 1 if number % 2 else -1]), "r", f"c{number}", 1) for number in range(20)]
        await asyncio.gather(*(stores[number % 4].issue_answer(one) for number, one in enumerate(orders)))
        assert await proofs(stores[0], tenant, *fresh) == NOTHING * 40
    own = [fingerprints for write in writes if write.issued for fingerprints in write.issued.fingerprints[-1:]]
    assert await proofs(stores[0], tenant, *own) == [(write.conversation.id, 1) for write in writes]
    for one in stores:
        await one.close()
