"""Conversations that merely share rows: what one family redacts, the others keep."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from app.conversation.conversation_types import Conversation, IssuedAnswer, LogMessage
from app.conversation.search_terms import extract_terms
from app.store.contract.store import Store
from app.store.lineage import FamilyMember, plan_row_copies
from tests.store.contract.conversations.test_redaction import CHAT, found_in, fresh, overwritten, totals
from tests.store.example_logs import (
    begin,
    bodies,
    branch_off,
    chunk_over,
    fresh_tenant,
    go_on,
    lease_on,
    links,
    random_bytes,
    twin_of,
)
from tests.support.memory_store import MemoryStore

ERASED = "[erased]"


async def texts(store: Store, conversation: Conversation) -> list[str]:
    return bodies(await store.read_log(await fresh(store, conversation), 0, 99))


async def test_a_conversation_that_merely_shares_a_redacted_message_keeps_it(store: Store) -> None:
    tenant = fresh_tenant()
    owner, log = await begin(store, tenant, CHAT)
    branch, _ = await branch_off(store, owner, log, 3, ["user b"])
    twin, twin_log = await twin_of(store, owner, log, 5, ["user t", "assistant u"])
    leaf, _ = await branch_off(store, twin, twin_log, 6, ["assistant l"])
    other, _ = await twin_of(store, owner, log, 3, ["user o"])
    await store.index_messages(owner, log)
    chunk = chunk_over(owner, log, 0, 2)
    await store.add_summary(
        tenant=tenant, root=owner.root, summary=chunk, fence=await lease_on(store, owner.root, "a-key")
    )

    assert await store.redact_messages(branch, [overwritten(log[2])]) == []

    for one in (owner, branch):
        assert (await texts(store, one))[2] == ERASED
        assert (await fresh(store, one)).marks == {"redacted": [2]}
        assert await totals(store, await fresh(store, one)) == [7, 14, *range(16, 16 + 7 * (one.head_seq - 1), 7)]
    for one in (twin, leaf, other):
        now = await fresh(store, one)
        assert (await texts(store, one))[:4] == ["hi", "hello", "secret word", "well"]
        assert "redacted" not in now.marks
        assert await totals(store, now) == list(range(7, 7 * (one.head_seq + 2), 7))
        assert await store.find_summaries(tenant=tenant, root=owner.root, path=now.lineage_with_self) == [chunk]
    now = await fresh(store, twin)
    assert (now.lineage, (await fresh(store, other)).lineage) == ((), ((twin.id, 3),))
    assert (await fresh(store, leaf)).relatives == ((twin.id, 6),)
    assert (await fresh(store, other)).family_id == other.id
    if store.is_fully_searchable:
        assert await found_in(store, owner, "secret") == []
        assert await found_in(store, now, "secret") == [2]
        hits = await store.search_tenant(tenant=tenant, terms=extract_terms("secret"), limit=9)
        assert [hit.conversation.id for hit in hits] == [twin.id]
    after, whole = await go_on(store, now, twin_log, ["user more"])
    assert links(await store.read_log(after, 0, 99)) == links(whole)


async def test_a_message_that_a_mere_sharer_redacts_stays_in_the_rows_of_their_owner(store: Store) -> None:
    tenant = fresh_tenant()
    owner, log = await begin(store, tenant, CHAT)
    branch, _ = await branch_off(store, owner, log, 4, ["assistant b"])
    twin, twin_log = await twin_of(store, owner, log, 5, ["user t", "assistant u"])
    leaf, leaf_log = await branch_off(store, twin, twin_log, 6, ["assistant l"])
    third, _ = await twin_of(store, twin, twin_log, 7, ["user three"])
    digest = random_bytes(16)
    await store.issue_answer(IssuedAnswer((digest,), owner.root, owner.id, 3, owner.owner_lineage))
    await store.index_messages(owner, log)

    await store.redact_messages(leaf, [overwritten(leaf_log[3]), overwritten(leaf_log[6])])

    for one in (owner, branch, third):
        assert ERASED not in await texts(store, one)
        assert "redacted" not in (await fresh(store, one)).marks
        assert await totals(store, await fresh(store, one)) == list(range(7, 7 * (one.head_seq + 2), 7))
    for one in (twin, leaf):
        assert [seq for seq, text in enumerate(await texts(store, one)) if text == ERASED] == [3, 6]
        assert (await fresh(store, one)).redacted_seqs == (3, 6)
        assert (await fresh(store, one)).head_tokens_total == one.head_tokens_total - 10
    (proof,) = await store.find_proofs(tenant=tenant, fingerprints=[digest])
    assert proof.conversation is not None
    assert (proof.conversation.id, proof.seq) == (owner.id, 3)
    if store.is_fully_searchable:
        assert await found_in(store, await fresh(store, owner), "well") == [3]
        assert await found_in(store, await fresh(store, third), "well") == [3]
        assert await found_in(store, await fresh(store, twin), "well") == []
    for doomed in (owner, twin, third):
        assert await store.erase_conversation(tenant=tenant, conversation_id=doomed.id)
    assert (await texts(store, branch))[3] == "well"
    assert (await texts(store, leaf))[3] == ERASED


async def test_a_redaction_that_is_refused_copies_nothing(store: Store) -> None:
    tenant = fresh_tenant()
    owner, log = await begin(store, tenant, CHAT)
    twin, _ = await twin_of(store, owner, log, 5, ["user t"])
    assert await store.redact_messages(owner, []) == []
    assert (await fresh(store, twin)).lineage == ((owner.id, 5),)


def test_only_the_conversation_that_shares_most_takes_copies() -> None:
    marks = {"shared_through": 8}
    owner, early, late = (
        FamilyMember("o", ()),
        FamilyMember("e", (("o", 5),), marks),
        FamilyMember("l", (("o", 8),), marks),
    )
    short = FamilyMember("s", (("o", 1),), marks)
    plan = plan_row_copies("o", "o", 3, [owner, early, late, short])
    assert plan.copies == [("l", (("o", 8),))]
    assert [(one.id, one.lineage) for one in plan.changed] == [("e", (("l", 5),)), ("l", ())]


@dataclass(frozen=True)
class Step:
    """Branch off, share, redact or erase: what is done to which conversation, at which fraction of its log."""

    kind: str
    which: int
    at: float


@dataclass
class Known:
    conversation: Conversation
    log: list[LogMessage]
    texts: list[str] = field(default_factory=list)


_kinds = st.sampled_from(["branch", "branch", "share", "share", "redact", "redact", "erase"])
_steps = st.lists(st.builds(Step, _kinds, st.integers(0, 9), st.floats(0, 1)), min_size=3, max_size=12)


@given(steps=_steps)
def test_a_redaction_reaches_the_whole_family_and_nobody_else(steps: list[Step]) -> None:
    asyncio.run(_check_steps(steps))


async def _check_steps(steps: list[Step]) -> None:
    store, tenant, numbers = MemoryStore(clock=lambda: datetime.now(UTC)), fresh_tenant(), itertools.count()
    first, log = await begin(store, tenant, CHAT)
    alive = [Known(first, log, bodies(log))]
    for step in steps:
        if not alive:
            return
        one = alive[step.which % len(alive)]
        seq = round(step.at * one.conversation.head_seq)
        if step.kind == "erase":
            alive.remove(one)
            await store.erase_conversation(tenant=tenant, conversation_id=one.conversation.id)
        elif step.kind == "redact":
            family = {known.conversation.id: (await fresh(store, known.conversation)).family_id for known in alive}
            await store.redact_messages(one.conversation, [overwritten(one.log[seq])])
            for known in alive:
                is_shared = known.conversation.head_seq >= seq and known.log[seq].link == one.log[seq].link
                if is_shared and family[known.conversation.id] == family[one.conversation.id]:
                    known.texts[seq] = ERASED
        else:
            if step.kind == "share" and (ERASED in one.texts):
                continue  # a redacted log is not shared
            grow = branch_off if step.kind == "branch" else twin_of
            lines = [f"user {next(numbers)}", f"assistant {next(numbers)}"]
            parent = await fresh(store, one.conversation)
            conversation, grown_log = await grow(store, parent, await store.read_log(parent, 0, 99), seq, lines)
            alive.append(Known(conversation, grown_log, [*one.texts[: seq + 1], *bodies(grown_log)[seq + 1 :]]))
        for known in alive:
            read = await store.read_log(await fresh(store, known.conversation), 0, 99)
            assert (bodies(read), links(read)) == (known.texts, links(known.log))
            assert [entry.tokens_total for entry in read] == [*itertools.accumulate(entry.tokens for entry in read)]
