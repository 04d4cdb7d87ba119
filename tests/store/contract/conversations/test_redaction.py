"""Messages are overwritten for good, and all that was made of them goes: the same in every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.search_terms import extract_terms
from app.dialects.body.message import ChatMessage
from app.store.contract.conversations import LogAppend, WriteConflict
from app.store.contract.store import Store
from tests.store.example_logs import (
    begin,
    bodies,
    branch_off,
    chunk_over,
    fresh_tenant,
    go_on,
    lease_on,
    links,
    log_of,
)

CHAT = ["user hi", "assistant hello", "user secret word", "assistant well", "user more", "assistant yes"]


def overwritten(entry: LogMessage, tokens: int = 2, mark: str = "[erased]") -> LogMessage:
    message = ChatMessage.from_body({"role": entry.message.role, "content": mark})
    return replace(entry, message=message, tokens=tokens, meta={"deleted": {"parts": [0], "erased": True}})


async def fresh(store: Store, conversation: Conversation) -> Conversation:
    found = await store.find_conversation(tenant=conversation.tenant, conversation_id=conversation.id)
    assert found is not None
    return found


async def totals(store: Store, conversation: Conversation) -> list[int]:
    return [entry.tokens_total for entry in await store.read_log(conversation, 0, 99)]


async def test_a_message_is_overwritten_in_its_place(store: Store) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    assert await store.redact_messages(conversation, [overwritten(log[2])]) == []
    now = await fresh(store, conversation)
    read = await store.read_log(now, 0, 99)
    assert bodies(read) == ["hi", "hello", "[erased]", "well", "more", "yes"]
    assert links(read) == links(log)
    assert [entry.skeleton for entry in read] == [entry.skeleton for entry in log]
    assert read[2].meta == {"deleted": {"parts": [0], "erased": True}}
    assert (read[2].tokens, read[2].tokens_total) == (2, 16)
    assert await totals(store, now) == [7, 14, 16, 23, 30, 37]
    assert now.head_tokens_total == 37
    assert now.marks == {"redacted": [2]}
    assert (now.head_seq, now.head_link) == (conversation.head_seq, conversation.head_link)


async def test_several_are_overwritten_at_once_and_marks_are_sorted_and_kept(store: Store) -> None:
    pins = [{"from_seq": 1, "to_seq": 2, "tokens": 9}]
    conversation, log = await begin(store, fresh_tenant(), CHAT, marks={"pins": pins, "redacted": [5]})
    await store.redact_messages(conversation, [overwritten(log[4], 1), overwritten(log[0], 10)])
    now = await fresh(store, conversation)
    assert now.marks == {"pins": pins, "redacted": [0, 4, 5]}
    assert await totals(store, now) == [10, 17, 24, 31, 32, 39]
    assert now.head_tokens_total == 39
    await store.redact_messages(now, [overwritten(log[0], 7, "[again]")])
    now = await fresh(store, conversation)
    assert now.marks["redacted"] == [0, 4, 5]
    assert await totals(store, now) == [7, 14, 21, 28, 29, 36]


async def test_a_conversation_goes_on_after_a_redaction(store: Store) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    await store.redact_messages(conversation, [overwritten(log[2])])
    now = await fresh(store, conversation)
    after, whole = await go_on(store, now, await store.read_log(now, 0, 99), ["user again"])
    assert after.head_tokens_total == 44
    assert (await fresh(store, after)).marks == {"redacted": [2]}
    assert bodies(await store.read_log(after, 5, 99)) == ["yes", "again"]
    assert len(whole) == 7


async def test_an_append_that_was_prepared_before_a_redaction_counts_from_what_is_stored(store: Store) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    await store.redact_messages(conversation, [overwritten(log[2])])
    after, whole = await go_on(store, conversation, log, ["user one", "assistant two"])
    assert (await fresh(store, after)).head_tokens_total == 51
    assert (await totals(store, after))[5:] == [37, 44, 51]
    await store.append(LogAppend(replace(after, state={"a": 1}), after.head_seq, []))
    assert (await fresh(store, after)).head_tokens_total == 51
    await go_on(store, after, whole, ["user three"])
    assert (await totals(store, replace(after, head_seq=8)))[6:] == [44, 51, 58]


async def test_a_message_that_branches_share_is_overwritten_for_all_of_them(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, log = await begin(store, tenant, CHAT)
    limb, limb_log = await branch_off(store, trunk, log, 3, ["user c", "assistant d"])
    twig, _ = await branch_off(store, limb, limb_log, 4, ["assistant e"])
    early, _ = await branch_off(store, trunk, log, 1, ["user f"])
    await store.redact_messages(limb, [overwritten(log[2])])
    for conversation, expected in (
        (trunk, [7, 14, 16, 23, 30, 37]),
        (limb, [7, 14, 16, 23, 30, 37]),
        (twig, [7, 14, 16, 23, 30, 37]),
        (early, [7, 14, 21]),
    ):
        now = await fresh(store, conversation)
        assert await totals(store, now) == expected
        assert now.head_tokens_total == expected[-1]
        assert now.marks == ({} if conversation is early else {"redacted": [2]})
    assert "secret word" not in bodies(await store.read_log(twig, 0, 99))


async def test_a_branchs_own_message_is_nobody_elses(store: Store) -> None:
    trunk, log = await begin(store, fresh_tenant(), CHAT)
    limb, limb_log = await branch_off(store, trunk, log, 3, ["user c", "assistant d"])
    twig, _ = await branch_off(store, limb, limb_log, 5, ["user e"])
    await store.redact_messages(twig, [overwritten(limb_log[4], 9), overwritten(limb_log[1], 8)])
    assert await totals(store, await fresh(store, trunk)) == [7, 15, 22, 29, 36, 43]
    for conversation in (limb, twig):
        assert (await totals(store, await fresh(store, conversation)))[:6] == [7, 15, 22, 29, 38, 45]
    assert (await fresh(store, trunk)).marks == {"redacted": [1]}
    assert (await fresh(store, limb)).marks == (await fresh(store, twig)).marks == {"redacted": [1, 4]}
    assert (await fresh(store, twig)).head_tokens_total == 52


async def test_a_place_is_found_after_the_trunk_was_erased(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, log = await begin(store, tenant, CHAT)
    limb, _ = await branch_off(store, trunk, log, 3, ["user c", "assistant d"])
    await store.erase_conversation(tenant=tenant, conversation_id=trunk.id)
    await store.redact_messages(limb, [overwritten(log[2])])
    assert bodies(await store.read_log(limb, 2, 4)) == ["[erased]", "well"]


async def test_chunks_that_cover_the_message_go_and_those_behind_it_move(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, log = await begin(store, tenant, CHAT)
    limb, limb_log = await branch_off(store, trunk, log, 3, ["user c", "assistant d"])
    root = trunk.root
    fence = await lease_on(store, root)
    before, covering = chunk_over(trunk, log, 0, 2), chunk_over(trunk, log, 2, 4)
    behind, theirs = chunk_over(trunk, log, 4, 6), chunk_over(limb, limb_log, 4, 6)
    fold = chunk_over(trunk, log, 0, 4, folds=(before.id, covering.id))
    for chunk in (before, covering, behind, theirs, fold):
        await store.add_summary(tenant=tenant, root=root, summary=chunk, fence=fence)
    await store.revise_summary(
        tenant=tenant, root=root, summary=replace(covering, text="better", kind="edited", revision=2)
    )

    gone = await store.redact_messages(limb, [overwritten(log[2])])

    assert [chunk.id for chunk in gone] == [covering.id, fold.id]
    assert gone[0].text == "better"
    left = await store.find_summaries(tenant=tenant, root=root, links=links([*log, *limb_log]))
    assert sorted(chunk.id for chunk in left) == sorted([before.id, behind.id, theirs.id])
    assert {chunk.id: chunk.tokens_total for chunk in left} == {before.id: 14, behind.id: 37, theirs.id: 37}
    assert await store.read_summary_revisions(tenant=tenant, root=root, summary_id=covering.id) == []


async def test_chunks_of_logs_that_do_not_share_the_message_stay(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, log = await begin(store, tenant, CHAT)
    limb, limb_log = await branch_off(store, trunk, log, 1, ["user c", "assistant d", "user e", "assistant f"])
    fence = await lease_on(store, trunk.root)
    theirs = chunk_over(limb, limb_log, 0, 6)
    await store.add_summary(tenant=tenant, root=trunk.root, summary=theirs, fence=fence)
    assert await store.redact_messages(trunk, [overwritten(log[2])]) == []
    assert await store.find_summaries(tenant=tenant, root=trunk.root, path=limb.lineage_with_self) == [theirs]
    assert [chunk.id for chunk in await store.redact_messages(limb, [overwritten(log[0])])] == [theirs.id]


async def test_a_chunk_over_messages_that_were_never_stored_goes_too(store: Store) -> None:
    """Made for a request whose messages another took over: its text is of this conversation all the same."""
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    fence = await lease_on(store, conversation.root)
    lost = [*log[:4], *log_of(tenant, ["user lost", "assistant too"], after=log[3])]
    chunk = chunk_over(conversation, lost, 0, 6)
    await store.add_summary(tenant=tenant, root=conversation.root, summary=chunk, fence=fence)
    assert await store.redact_messages(conversation, [overwritten(log[2])]) == [chunk]


async def test_what_is_not_in_the_log_is_refused_and_nothing_is_written(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    other, other_log = await begin(store, tenant, ["user hi", "assistant other"])
    beyond = log_of(tenant, ["user beyond"], after=log[-1])
    for wrong in ([overwritten(log[2]), overwritten(other_log[1])], [overwritten(log[2]), overwritten(beyond[0])]):
        with pytest.raises(WriteConflict):
            await store.redact_messages(conversation, wrong)
    with pytest.raises(WriteConflict):
        await store.redact_messages(replace(conversation, tenant=fresh_tenant()), [overwritten(log[2])])
    now = await fresh(store, conversation)
    assert (now.marks, now.head_tokens_total) == ({}, 42)
    assert bodies(await store.read_log(now, 0, 99))[2] == "secret word"
    await store.erase_conversation(tenant=tenant, conversation_id=other.id)
    with pytest.raises(WriteConflict):
        await store.redact_messages(other, [overwritten(other_log[1])])


async def found_in(store: Store, conversation: Conversation, text: str) -> list[int]:
    found = await store.search_log(conversation, terms=extract_terms(text), from_seq=0, before_seq=99, limit=9)
    return [entry.message.seq for entry in found if entry.score is not None]


async def test_words_of_the_message_are_found_no_more_even_if_they_are_indexed_late(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    limb, _ = await branch_off(store, conversation, log, 3, ["user word"])
    await store.index_messages(limb, await store.read_log(limb, 0, 99))
    assert await found_in(store, limb, "secret word") == [2, 4]
    await store.redact_messages(conversation, [overwritten(log[2])])
    await store.index_messages(conversation, log)
    await store.index_messages(limb, log[:4])
    assert await found_in(store, limb, "secret word") == [4]
    assert await found_in(store, conversation, "secret") == []
    if store.is_fully_searchable:
        assert await store.search_tenant(tenant=tenant, terms=extract_terms("secret"), limit=9) == []
        assert [hit.conversation.id for hit in await store.search_tenant(tenant=tenant, terms=["word"], limit=9)] == [
            limb.id
        ]
        assert (await store.search_tenant(tenant=tenant, terms=["well"], limit=9))[0].message.seq == 3


async def test_parallel_redactions_appends_and_erasures_lose_no_token(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, log = await begin(store, tenant, CHAT)
    limbs = [await branch_off(store, trunk, log, 3, [f"user {number}"]) for number in range(4)]
    doomed, _ = limbs.pop()
    await asyncio.gather(
        *(store.redact_messages(trunk, [overwritten(log[seq], seq + 1)]) for seq in range(4)),
        *(store.redact_messages(limb, [overwritten(limb_log[4], 3)]) for limb, limb_log in limbs),
        store.erase_conversation(tenant=tenant, conversation_id=doomed.id),
    )
    assert await totals(store, await fresh(store, trunk)) == [1, 3, 6, 10, 17, 24]
    for limb, _ in limbs:
        now = await fresh(store, limb)
        assert await totals(store, now) == [1, 3, 6, 10, 13]
        assert now.head_tokens_total == 13
        assert now.marks == {"redacted": [0, 1, 2, 3, 4]}


async def test_a_pin_takes_as_many_tokens_as_its_messages_have_left(store: Store) -> None:
    pins = [{"from_seq": 0, "to_seq": 1, "tokens": 20}, {"from_seq": 2, "to_seq": 4, "tokens": 50}]
    conversation, log = await begin(store, fresh_tenant(), CHAT, marks={"pins": pins})
    shorter = overwritten(log[3])
    await store.redact_messages(conversation, [shorter])
    now = await fresh(store, conversation)
    assert now.marks["pins"] == [pins[0], {**pins[1], "tokens": 50 + shorter.tokens - log[3].tokens}]


async def test_marks_are_replaced_only_where_they_are_what_was_read(store: Store) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    pins: dict[str, Any] = {"pins": [{"from_seq": 1, "to_seq": 2, "tokens": 7}]}
    await store.replace_marks(conversation, pins)
    with pytest.raises(WriteConflict):
        await store.replace_marks(conversation, {})
    now = await fresh(store, conversation)
    assert now.marks == pins
    await store.redact_messages(now, [overwritten(log[2])])
    with pytest.raises(WriteConflict):
        await store.replace_marks(now, {})
    with pytest.raises(WriteConflict):
        await store.replace_marks(replace(await fresh(store, now), tenant=fresh_tenant()), {})
    await store.replace_marks(await fresh(store, now), {})
    assert (await fresh(store, now)).marks == {}


async def test_an_append_leaves_marks_alone(store: Store) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT, marks={"pins": []}, indexed_before=3)
    after, log = await go_on(store, replace(conversation, marks={"pins": ["stale"]}, indexed_before=1), log, ["user x"])
    now = await fresh(store, after)
    assert (now.marks, now.indexed_before) == ({"pins": []}, 3)


async def test_things_are_rewritten_where_they_still_are_what_they_were(store: Store) -> None:
    tenant = fresh_tenant()
    trunk, log = await begin(store, tenant, CHAT, state={"a": 1})
    limb, limb_log = await branch_off(store, trunk, log, 3, ["user c"])
    fence = await lease_on(store, trunk.root)
    chunk = chunk_over(trunk, log, 0, 6, text="first")
    await store.add_summary(tenant=tenant, root=trunk.root, summary=chunk, fence=fence)
    await store.revise_summary(tenant=tenant, root=trunk.root, summary=replace(chunk, text="second", revision=2))
    await store.redact_messages(limb, [overwritten(limb_log[4])])
    read = await fresh(store, trunk)
    await store.redact_messages(read, [overwritten(log[2])])
    chunk = chunk_over(trunk, log, 4, 6, text="first")
    await store.add_summary(tenant=tenant, root=trunk.root, summary=chunk, fence=fence)
    await store.revise_summary(tenant=tenant, root=trunk.root, summary=replace(chunk, text="second", revision=2))

    def other(entry: LogMessage) -> LogMessage:
        return replace(
            entry, message=ChatMessage.from_body({"role": "user", "content": f"new {entry.seq}"}), meta={"n": 1}
        )

    await store.rewrite_sealed_fields(
        replace(read, state={"b": 2}),
        entries=[other(log[1]), other(log[2]), other(replace(log[3], tokens=99)), other(limb_log[4])],
        summaries=[replace(chunk, text="FIRST"), replace(chunk, text="SECOND", revision=2)],
    )

    now = await fresh(store, trunk)
    assert now.state == {"b": 2}
    assert bodies(await store.read_log(now, 0, 99)) == ["hi", "new 1", "[erased]", "well", "more", "yes"]
    assert (await store.read_log(now, 1, 2))[0].meta == {"n": 1}
    texts = [
        one.text for one in await store.read_summary_revisions(tenant=tenant, root=trunk.root, summary_id=chunk.id)
    ]
    assert texts == ["FIRST", "SECOND"]
    after, _ = await go_on(store, now, await store.read_log(now, 0, 99), ["user later"])
    await store.rewrite_sealed_fields(replace(read, state={"c": 3}), entries=[])
    assert (await fresh(store, after)).state == {"b": 2}
    await store.rewrite_sealed_fields(replace(after, tenant=fresh_tenant(), state={"d": 4}), entries=[other(log[0])])
    assert bodies(await store.read_log(after, 0, 1)) == ["hi"]
