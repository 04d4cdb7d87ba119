"""Erasing a conversation for good, while branches keep what they share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as struct_replace

from app.conversation.conversation_types import AnswerAnchor, Conversation, IssuedAnswer, LogMessage
from app.conversation.search_terms import extract_terms
from app.store.contract.conversations import WriteConflict
from app.store.contract.leases import SUMMARY_LEASE_PREFIXES, LeaseLost
from app.store.contract.store import Store
from app.store.lineage import ErasurePlan, FamilyMember, plan_erasure
from tests.store.contract.conversations.test_list_pages import completion
from tests.store.example_logs import (
    Clock,
    begin,
    branch_off,
    chunk_over,
    fresh_tenant,
    go_on,
    lease_on,
    links,
    random_bytes,
    strays_of,
    twin_of,
)
from tests.support.memory_store import MemoryStore

CHAT = ["user hi", "assistant hello", "user how?", "assistant so", "user why?", "assistant because"]


async def test_a_conversation_is_erased_with_all_that_belongs_to_it(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT, external_id="chat-1")
    fence = await lease_on(store, conversation.root, conversation.id)
    other = await lease_on(store, conversation.root, "unrelated")
    chunk = chunk_over(conversation, log, 0, 4)
    await store.add_summary(tenant=tenant, root=conversation.root, summary=chunk, fence=fence)

    assert await store.erase_conversation(tenant=tenant, conversation_id=conversation.id)

    assert await store.find_conversation(tenant=tenant, conversation_id=conversation.id) is None
    assert await store.find_conversation(tenant=tenant, conversation_id="chat-1") is None
    assert await store.read_log(conversation, 0, 99) == []
    assert (
        await store.find_summaries(
            tenant=tenant, root=conversation.root, path=conversation.lineage_with_self, links=links(log)
        )
        == []
    )
    found = await store.find_link_matches(tenant=tenant, root=conversation.root, links=links(log))
    assert found == []
    assert await store.renew_leases([fence, other], 60) == [fence]
    assert not await store.erase_conversation(tenant=tenant, conversation_id=conversation.id)


@pytest.mark.parametrize("prefix", SUMMARY_LEASE_PREFIXES)
async def test_what_is_being_made_of_an_erased_conversation_is_not_stored(store: Store, prefix: str) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    lease = await lease_on(store, conversation.root, f"{prefix}{log[0].link.hex()}")
    await store.erase_conversation(tenant=tenant, conversation_id=conversation.id)

    with pytest.raises(LeaseLost):
        await store.add_summary(
            tenant=tenant, root=conversation.root, summary=chunk_over(conversation, log, 0, 4), fence=lease
        )
    await store.save_completion(completion(conversation, 1))

    assert await store.find_summaries(tenant=tenant, root=conversation.root, links=links(log)) == []
    assert await store.find_completion(tenant=tenant, completion_id="chatcmpl-1") is None


async def test_a_conversation_is_erased_by_the_clients_own_id_and_only_by_its_tenant(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, _ = await begin(store, tenant, CHAT, external_id="chat-1")
    assert not await store.erase_conversation(tenant=fresh_tenant(), conversation_id=conversation.id)
    assert await store.erase_conversation(tenant=tenant, conversation_id="chat-1")
    assert await store.find_conversation(tenant=tenant, conversation_id=conversation.id) is None


async def test_erasing_the_trunk_leaves_branches_whole(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, trunk_log = await begin(store, tenant, CHAT)
    early, early_log = await branch_off(store, trunk, trunk_log, 1, ["user e", "assistant f"])
    late, late_log = await branch_off(store, trunk, trunk_log, 3, ["user g", "assistant h"])
    twig, twig_log = await branch_off(store, late, late_log, 4, ["assistant i"])

    assert await store.erase_conversation(tenant=tenant, conversation_id=trunk.id)

    for conversation, log in ((early, early_log), (late, late_log), (twig, twig_log)):
        assert links(await store.read_log(conversation, 0, 99)) == links(log), "read with the lineage known before"
        fresh = await store.find_conversation(tenant=tenant, conversation_id=conversation.id)
        assert fresh is not None
        assert trunk.id not in dict(fresh.lineage)
        assert links(await store.read_log(fresh, 0, 99)) == links(log)
        assert links(await store.read_log(fresh, 1, 4)) == links(log[1:4])
    gone = await store.find_link_matches(tenant=tenant, root=trunk.root, links=links(trunk_log[4:]))
    assert gone == []
    shared = await store.find_link_matches(tenant=tenant, root=trunk.root, links=links(trunk_log[:4]))
    assert shared[0].message.link == trunk_log[3].link
    assert (
        await store.find_conversation(tenant=tenant, conversation_id=shared[0].conversation.id)
        == shared[0].conversation
    )


async def test_messages_go_with_the_last_branch_that_shares_them(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, trunk_log = await begin(store, tenant, CHAT)
    branch, _ = await branch_off(store, trunk, trunk_log, 3, ["user g", "assistant h"])
    await store.erase_conversation(tenant=tenant, conversation_id=trunk.id)
    await store.erase_conversation(tenant=tenant, conversation_id=branch.id)
    assert await store.find_link_matches(tenant=tenant, root=trunk.root, links=links(trunk_log)) == []


async def test_a_branch_goes_on_after_its_trunk_was_erased(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, trunk_log = await begin(store, tenant, CHAT)
    branch, log = await branch_off(store, trunk, trunk_log, 3, ["user g", "assistant h"])
    await store.erase_conversation(tenant=tenant, conversation_id=trunk.id)
    branch, log = await go_on(store, branch, log, ["user more", "assistant yes"])
    assert links(await store.read_log(branch, 0, 99)) == links(log)
    fresh = await store.find_conversation(tenant=tenant, conversation_id=branch.id)
    assert fresh is not None
    twig, twig_log = await branch_off(store, fresh, log, 2, ["user again"])
    assert links(await store.read_log(twig, 0, 99)) == links(twig_log)


async def test_a_branch_whose_lineage_is_out_of_date_is_refused(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, trunk_log = await begin(store, tenant, CHAT)
    limb, log = await branch_off(store, trunk, trunk_log, 3, ["user g", "assistant h"])
    await store.erase_conversation(tenant=tenant, conversation_id=trunk.id)
    for upto_seq in (2, 5):
        with pytest.raises(WriteConflict):
            await branch_off(store, limb, log, upto_seq, ["user again"])


async def test_a_chunk_stays_while_a_branch_has_the_message_it_ends_at(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, log = await begin(store, tenant, CHAT)
    branch, _ = await branch_off(store, trunk, log, 3, ["user g", "assistant h"])
    fence = await lease_on(store, trunk.root)
    shared, own = chunk_over(trunk, log, 0, 4), chunk_over(trunk, log, 4, 6)
    for chunk in (shared, own):
        await store.add_summary(tenant=tenant, root=trunk.root, summary=chunk, fence=fence)
    await store.erase_conversation(tenant=tenant, conversation_id=trunk.id)
    (kept,) = await store.find_summaries(
        tenant=tenant, root=trunk.root, path=branch.lineage_with_self, links=links(log)
    )
    assert (kept.id, kept.conversation_id) == (shared.id, branch.id)
    await store.erase_conversation(tenant=tenant, conversation_id=branch.id)
    assert await store.find_summaries(tenant=tenant, root=trunk.root, links=links(log)) == []


async def test_summaries_of_what_was_never_stored_go_with_their_family(store: Store) -> None:
    tenant = fresh_tenant()
    unstored, log, _ = await strays_of(store, tenant, CHAT)
    other, _ = await begin(store, tenant, CHAT[:1])
    assert other.root == unstored.root
    await store.erase_conversation(tenant=tenant, conversation_id=other.id)
    assert await store.find_summaries(tenant=tenant, root=unstored.root, links=links(log)) == []


async def test_a_summary_goes_with_the_message_it_ends_at_whoever_it_was_made_for(store: Store) -> None:
    tenant = fresh_tenant()
    unstored, log, _ = await strays_of(store, tenant, CHAT)
    retried, _ = await begin(store, tenant, CHAT)
    branch, branch_log = await branch_off(store, retried, log, 4, ["assistant other"])
    await store.erase_conversation(tenant=tenant, conversation_id=retried.id)
    (kept,) = await store.find_summaries(tenant=tenant, root=unstored.root, links=links([*log, *branch_log]))
    assert kept.to_seq == 4
    await store.erase_conversation(tenant=tenant, conversation_id=branch.id)
    assert await store.find_summaries(tenant=tenant, root=unstored.root, links=links(log)) == []


async def test_parallel_erasures_in_one_family_leave_the_rest_whole(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, trunk_log = await begin(store, tenant, CHAT)
    limb, limb_log = await branch_off(store, trunk, trunk_log, 3, ["user g", "assistant h"])
    twig, twig_log = await branch_off(store, limb, limb_log, 4, ["assistant i"])
    other, other_log = await branch_off(store, trunk, trunk_log, 1, ["user j"])
    await asyncio.gather(
        store.erase_conversation(tenant=tenant, conversation_id=trunk.id),
        store.erase_conversation(tenant=tenant, conversation_id=limb.id),
    )
    for conversation, log in ((twig, twig_log), (other, other_log)):
        assert links(await store.read_log(conversation, 0, 99)) == links(log)


@dataclass(frozen=True)
class Growth:
    """Branch off an earlier conversation at a fraction of its log, and say this many messages."""

    parent: int
    at: float
    messages: int
    merely_shares: bool


_growths = st.lists(
    st.builds(Growth, st.integers(0, 9), st.floats(0, 1), st.integers(0, 3), st.booleans()), min_size=1, max_size=8
)


@given(growths=_growths, erased=st.lists(st.integers(0, 8), max_size=8))
def test_whatever_is_erased_all_other_logs_read_as_before(growths: list[Growth], erased: list[int]) -> None:
    asyncio.run(_grow_and_erase(growths, erased))


async def _grow_and_erase(growths: list[Growth], erased: list[int]) -> None:
    store = MemoryStore(clock=lambda: datetime.now(UTC))
    tenant = fresh_tenant()
    family: list[tuple[Conversation, list[LogMessage]]] = [await begin(store, tenant, CHAT)]
    for growth in growths:
        parent, log = family[growth.parent % len(family)]
        upto_seq = round(growth.at * parent.head_seq)
        lines = [f"user {len(family)} {number}" for number in range(growth.messages)]
        grow = twin_of if growth.merely_shares else branch_off
        family.append(await grow(store, parent, log, upto_seq, lines))
    alive = dict(enumerate(family))
    for number in erased:
        if number in alive:
            doomed, _ = alive.pop(number)
            assert await store.erase_conversation(tenant=tenant, conversation_id=doomed.id)
    families_before: dict[str, set[str]] = {}
    for conversation, log in alive.values():
        fresh = await store.find_conversation(tenant=tenant, conversation_id=conversation.id)
        assert fresh is not None
        for version in (fresh, conversation):
            assert links(await store.read_log(version, 0, 99)) == links(log)
        families_before.setdefault(fresh.family_id, set()).add(conversation.family_id)
    assert all(len(families) == 1 for families in families_before.values()), "families never merge"
    if not alive:
        assert await store.find_link_matches(tenant=tenant, root=family[0][0].root, links=links(family[0][1])) == []


def test_the_branch_that_shares_most_inherits() -> None:
    family = [
        FamilyMember("early", (("trunk", 1),)),
        FamilyMember("late", (("trunk", 8),)),
        FamilyMember("twig", (("trunk", 8), ("late", 12))),
        FamilyMember("elsewhere", (("other", 3),)),
        FamilyMember("same", (("trunk", 8),), {"shared_through": 8}),
    ]
    early, late, twig, _, same = family
    changed = [
        replace(early, lineage=(("late", 1),)),
        replace(late, lineage=()),
        replace(twig, lineage=(("late", 12),)),
        replace(same, lineage=(("late", 8),)),
    ]
    assert plan_erasure("trunk", family) == ErasurePlan("late", 8, 8, changed)
    assert plan_erasure("twig", family) == ErasurePlan()


def test_a_branch_of_the_erased_conversation_is_no_relative_of_an_heir_that_merely_shares_its_rows() -> None:
    twin_marks = {"shared_through": 8, "pins": []}
    family = [
        FamilyMember("early", (("trunk", 1),), {"redacted": []}),
        FamilyMember("leaf", (("trunk", 1), ("early", 6))),
        FamilyMember("twin", (("trunk", 8),), twin_marks),
        FamilyMember("its", (("trunk", 8), ("twin", 12)), twin_marks),
    ]
    early, leaf, twin, its = family
    changed = [
        replace(early, lineage=(("twin", 1),), marks={"redacted": [], "shared_through": 1}),
        replace(leaf, lineage=(("twin", 1), ("early", 6)), marks={"shared_through": 1}),
        replace(twin, lineage=()),
        replace(its, lineage=(("twin", 12),)),
    ]
    plan = plan_erasure("trunk", family)
    assert plan == ErasurePlan("twin", 8, -1, changed)
    assert [one.family_id for one in plan.changed] == ["early", "early", "twin", "twin"]


async def test_an_heir_that_merely_shares_the_rows_gets_the_messages_alone(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, log = await begin(store, tenant, CHAT)
    early, early_log = await branch_off(store, trunk, log, 1, ["user e", "assistant f"])
    twin, twin_log = await twin_of(store, trunk, log, 3, ["user g", "assistant h"])
    fence = await lease_on(store, trunk.root)
    made, edited = chunk_over(trunk, log, 0, 2), chunk_over(trunk, log, 0, 4)
    for chunk in (made, edited):
        await store.add_summary(tenant=tenant, root=trunk.root, summary=chunk, fence=fence)
    await store.revise_summary(
        tenant=tenant, root=trunk.root, summary=struct_replace(edited, kind="edited", revision=2)
    )
    digest = random_bytes(16)
    await store.issue_answer(IssuedAnswer((digest,), trunk.root, trunk.id, 1, trunk.owner_lineage))
    await store.add_anchors([AnswerAnchor(digest, trunk.root, trunk.id, 1)])
    await store.index_messages(trunk, log)

    assert await store.erase_conversation(tenant=tenant, conversation_id=trunk.id)

    for conversation, whole in ((early, early_log), (twin, twin_log)):
        assert links(await store.read_log(conversation, 0, 99)) == links(whole)
        fresh = await store.find_conversation(tenant=tenant, conversation_id=conversation.id)
        assert fresh is not None
        assert (fresh.relatives, fresh.family_id) == ((), conversation.id)
        assert fresh.lineage == (((twin.id, 1),) if conversation is early else ())
    (proof,) = await store.find_proofs(tenant=tenant, fingerprints=[digest])
    assert (proof.conversation, await store.find_anchors([digest])) == (None, [])
    left = await store.find_summaries(tenant=tenant, root=trunk.root, path=twin.lineage_with_self, links=links(log))
    assert [(one.id, one.conversation_id) for one in left] == [(made.id, trunk.id)]
    if store.is_fully_searchable:
        twin = struct_replace(twin, lineage=())
        hits = await store.search_log(twin, terms=extract_terms("hello"), from_seq=0, before_seq=99, limit=1)
        assert [hit.message.seq for hit in hits if hit.score is not None] == [1]
    for conversation in (twin, early):
        assert await store.erase_conversation(tenant=tenant, conversation_id=conversation.id)
    assert await store.find_summaries(tenant=tenant, root=trunk.root, links=links(log)) == []
    assert await store.find_link_matches(tenant=tenant, root=trunk.root, links=links(log)) == []


async def test_a_real_branch_inherits_before_one_that_merely_shares_the_rows(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, log = await begin(store, tenant, CHAT)
    twins = [await twin_of(store, trunk, log, 3, [f"user {number}"]) for number in range(2)]
    branch, _ = await branch_off(store, trunk, log, 3, ["user g", "assistant h"])
    twins += [await twin_of(store, trunk, log, 3, [f"user {number}"]) for number in range(2)]
    digest = random_bytes(16)
    await store.issue_answer(IssuedAnswer((digest,), trunk.root, trunk.id, 1, trunk.owner_lineage))
    await store.erase_conversation(tenant=tenant, conversation_id=trunk.id)
    (proof,) = await store.find_proofs(tenant=tenant, fingerprints=[digest])
    assert proof.conversation is not None
    assert proof.conversation.id == branch.id
    for twin, twin_log in twins:
        fresh = await store.find_conversation(tenant=tenant, conversation_id=twin.id)
        assert fresh is not None
        assert (fresh.lineage, fresh.relatives) == (((branch.id, 3),), ())
        assert links(await store.read_log(fresh, 0, 99)) == links(twin_log)


async def test_a_tombstone_tells_when_a_family_lost_words_last(store: Store, clock: Clock) -> None:
    root, family_id = fresh_tenant(), "conv_family"
    assert await store.find_tombstone(root=root, family_id=family_id) is None
    await store.add_tombstone(root=root, family_id=family_id)
    assert await store.find_tombstone(root=root, family_id=family_id) == clock()
    clock.forward(60)
    await store.add_tombstone(root=root, family_id=family_id)
    assert await store.find_tombstone(root=root, family_id=family_id) == clock()
    assert await store.find_tombstone(root=root, family_id="conv_other") is None
    assert await store.find_tombstone(root=fresh_tenant(), family_id=family_id) is None
