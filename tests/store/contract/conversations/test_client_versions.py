"""What clients show in the place of log messages, and anchors by which conversations are found: the same everywhere."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from app.conversation.conversation_types import AnswerAnchor, ClientVersion, Conversation, LogMessage
from app.conversation.identity import compute_anchor_digest
from app.store.contract.conversations import MAX_ANCHORS, LogAppend, WriteConflict
from app.store.contract.leases import Lease, LeaseLost
from app.store.contract.store import Store
from tests.store.contract.conversations.test_redaction import fresh, overwritten
from tests.store.example_logs import begin, branch_of, fresh_tenant, grown, log_of

CHAT = ["user hi", "assistant hello", "user more", "assistant yes"]


def version(seq: int, since_seq: int, *texts: bytes, to_seq: int | None = None) -> ClientVersion:
    return ClientVersion(seq, since_seq, seq + 1 if to_seq is None else to_seq, texts, tokens_delta=-5)


async def tell(
    store: Store, conversation: Conversation, log: list[LogMessage], *versions: ClientVersion, **fields: Any
) -> tuple[Conversation, list[LogMessage]]:
    """A turn whose client shows older messages otherwise."""
    more = log_of(conversation.tenant, ["user go on", "assistant well"], after=log[-1])
    after = grown(conversation, more)
    await store.append(LogAppend(after, conversation.head_seq, more, versions=versions, **fields))
    return after, [*log, *more]


async def test_versions_come_back_as_they_were_written(store: Store) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    masked = version(1, 4, b'{"role": "assistant", "content": "[\xc3\xa4]"}')
    left_out = version(2, 4)
    summary = version(0, 4, b'{"a": 1}', b'{"b": 2}', to_seq=3)
    conversation, log = await tell(store, conversation, log, summary, masked, left_out)
    again = replace(version(1, 6), bodies=None, tokens_delta=0)
    conversation, log = await tell(store, conversation, log, again)
    assert await store.read_client_versions(conversation) == [summary, masked, left_out, again]
    assert await store.read_client_versions(conversation, until_seq=5) == [summary, masked, left_out]
    assert await store.read_client_versions(conversation, until_seq=3) == []
    assert await store.read_log(conversation, 0, 4) != []


async def test_of_two_versions_of_one_place_the_later_stays(store: Store) -> None:
    """A turn without new messages, such as an answer that is asked for again, leaves the place as it is."""
    conversation, _ = await begin(store, fresh_tenant(), CHAT)
    for versions in ([version(1, 3, b'{"a": 1}'), version(2, 3)], [again := version(1, 3, b'{"b": 2}', to_seq=3)]):
        await store.append(LogAppend(conversation, conversation.head_seq, [], versions=versions))
    assert await store.read_client_versions(await fresh(store, conversation)) == [again, version(2, 3)]


async def test_versions_are_stored_with_a_new_conversation_and_with_many_appends_at_once(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, _ = await begin(store, tenant, CHAT)
    other, other_log = await begin(store, tenant, CHAT)
    await tell(store, other, other_log, *(version(seq, 4) for seq in range(4)))
    assert [one.seq for one in await store.read_client_versions(await fresh(store, other))] == [0, 1, 2, 3]
    assert await store.read_client_versions(conversation) == []


async def test_a_branch_has_the_versions_of_what_it_shares(store: Store) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    early, late = version(0, 4), version(1, 6)
    conversation, log = await tell(store, conversation, log, early)
    conversation, log = await tell(store, conversation, log, late)
    branch, _, own = branch_of(conversation, log, 4, ["assistant otherwise"])
    own_version = version(2, 5)
    await store.append(LogAppend(branch, 4, own, creates_conversation=True, versions=[own_version]))
    assert await store.read_client_versions(branch) == [early, own_version]
    assert await store.read_client_versions(conversation) == [early, late]


async def test_versions_pass_to_the_branch_that_outlives_their_conversation(store: Store) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    early, late = version(0, 4), version(1, 6)
    conversation, log = await tell(store, conversation, log, early)
    conversation, log = await tell(store, conversation, log, late)
    branch, _, own = branch_of(conversation, log, 4, ["assistant otherwise"])
    await store.append(LogAppend(branch, 4, own, creates_conversation=True))
    kept = AnswerAnchor(
        compute_anchor_digest(conversation.tenant, "answer", b"kept"), conversation.root, conversation.id, 1
    )
    gone = [
        replace(kept, digest=compute_anchor_digest(conversation.tenant, "answer", b"late"), seq=7),
        replace(kept, seq=-1),
    ]
    await store.add_anchors([kept, *gone])
    assert await store.erase_conversation(tenant=conversation.tenant, conversation_id=conversation.id)
    assert await store.read_client_versions(await fresh(store, branch)) == [early]
    assert await store.find_anchors([kept.digest]) == [replace(kept, conversation_id=branch.id)]
    assert await store.find_anchors([gone[0].digest]) == []


async def test_versions_and_anchors_go_with_their_conversation(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    conversation, log = await tell(store, conversation, log, version(0, 4))
    anchor = AnswerAnchor(compute_anchor_digest(tenant, "call", b"1"), conversation.root, conversation.id, 1)
    await store.add_anchors([anchor])
    assert await store.erase_conversation(tenant=tenant, conversation_id=conversation.id)
    assert await store.read_client_versions(conversation) == []
    assert await store.find_anchors([anchor.digest]) == []


async def test_a_redaction_takes_every_version_of_the_message_and_its_anchors(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    summary, other = version(0, 4, b"{}", to_seq=3), version(3, 4, b"{}")
    conversation, log = await tell(store, conversation, log, summary, version(2, 4, b"{}"), other)
    conversation, log = await tell(store, conversation, log, version(2, 6))
    branch, _, own = branch_of(conversation, log, 5, ["user otherwise"])
    of_branch = version(2, 6, b'{"own": 1}')
    await store.append(LogAppend(branch, 5, own, creates_conversation=True, versions=[of_branch]))
    anchors = [
        AnswerAnchor(compute_anchor_digest(tenant, "answer", b"%d" % seq), conversation.root, conversation.id, seq)
        for seq in (2, 3)
    ]
    await store.add_anchors(anchors)
    await store.redact_messages(conversation, [overwritten(log[2])])
    assert await store.read_client_versions(await fresh(store, conversation)) == [other]
    assert await store.read_client_versions(await fresh(store, branch)) == [other]
    assert await store.find_anchors([anchors[0].digest]) == []
    assert await store.find_anchors([anchors[1].digest]) == [anchors[1]]


@pytest.mark.parametrize("tokens", [2, 7])
async def test_no_version_of_a_message_that_was_redacted_meanwhile_is_stored(store: Store, tokens: int) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    await store.redact_messages(conversation, [overwritten(log[2], tokens=tokens)])
    more = log_of(conversation.tenant, ["user go on"], after=log[-1])
    versions = [version(0, 4), version(2, 4), version(1, 4, b"{}", to_seq=4)]
    await store.append(LogAppend(grown(conversation, more), 3, more, versions=versions))
    assert await store.read_client_versions(await fresh(store, conversation)) == [versions[0]]


async def test_versions_are_fenced_and_follow_the_head_like_messages(store: Store) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    with pytest.raises(LeaseLost):
        await tell(
            store, conversation, log, version(0, 4), fence=Lease(conversation.root, conversation.id, "nobody", 1)
        )
    await tell(store, conversation, log, version(1, 4))
    with pytest.raises(WriteConflict):
        await tell(store, conversation, log, version(2, 4))
    assert [one.seq for one in await store.read_client_versions(await fresh(store, conversation))] == [1]


async def test_versions_are_written_in_another_form(store: Store) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    conversation, log = await tell(store, conversation, log, version(0, 4, b'{"a": 1}'), version(1, 4))
    found = await store.read_client_versions(conversation)
    await store.rewrite_sealed_fields(conversation, client_versions=[replace(found[0], bodies=(b'{"b": 2}',))])
    assert [one.bodies for one in await store.read_client_versions(conversation)] == [(b'{"b": 2}',), ()]


async def test_anchors_are_found_by_their_digest_the_newest_first(store: Store) -> None:
    tenant = fresh_tenant()
    digest, other = compute_anchor_digest(tenant, "call", b"call_1"), compute_anchor_digest(tenant, "answer", b"call_1")
    assert digest != other != compute_anchor_digest(fresh_tenant(), "answer", b"call_1")
    conversation, _ = await begin(store, tenant, CHAT)
    anchor = AnswerAnchor(digest, conversation.root, conversation.id, 1)
    await store.add_anchors([anchor, replace(anchor, digest=other, seq=3)])
    await store.add_anchors([anchor])
    assert await store.find_anchors([digest]) == [anchor]
    assert await store.find_anchors([other, digest]) == [replace(anchor, digest=other, seq=3), anchor]
    assert await store.find_anchors([compute_anchor_digest(tenant, "call", b"2")]) == []
    for seq in range(MAX_ANCHORS + 2):
        await store.add_anchors([replace(anchor, seq=10 + seq)])
    assert len(await store.find_anchors([digest])) == MAX_ANCHORS
