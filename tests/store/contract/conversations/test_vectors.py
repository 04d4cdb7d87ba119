"""Vectors of messages are kept with their messages, and go with them: the same in every store."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.conversation.conversation_types import Conversation, LogMessage
from app.store.contract.conversations import MessageVectors
from app.store.contract.store import Store
from tests.store.contract.conversations.test_redaction import CHAT, fresh, overwritten
from tests.store.example_logs import begin, branch_off, fresh_tenant, twin_of

MODEL = "sentences"


def vectors_of(log: list[LogMessage]) -> list[MessageVectors]:
    return [MessageVectors(entry.seq, entry.link, b"\x00\xff" + bytes([entry.seq])) for entry in log]


async def seqs_with_vectors(store: Store, conversation: Conversation, *, model: str = MODEL) -> list[int]:
    found = await store.read_vectors(conversation, model=model, from_seq=0, before_seq=99)
    return [one.seq for one in found]


async def test_vectors_are_read_as_they_were_stored_for_each_model(store: Store) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    await store.add_vectors(conversation, model=MODEL, vectors=vectors_of(log[:4]))
    await store.add_vectors(conversation, model="other", vectors=vectors_of(log[1:2]))
    read = await store.read_vectors(conversation, model=MODEL, from_seq=1, before_seq=3)
    assert read == vectors_of(log[1:3])
    assert await seqs_with_vectors(store, conversation, model="other") == [1]
    newer = replace(vectors_of(log)[1], vectors=b"newer")
    await store.add_vectors(conversation, model=MODEL, vectors=[newer])
    assert (await store.read_vectors(conversation, model=MODEL, from_seq=1, before_seq=2)) == [newer]


async def test_a_branch_reads_those_of_what_it_shares(store: Store) -> None:
    trunk, log = await begin(store, fresh_tenant(), CHAT)
    branch, branch_log = await branch_off(store, trunk, log, 3, ["user b", "assistant c"])
    await store.add_vectors(trunk, model=MODEL, vectors=vectors_of(log))
    await store.add_vectors(branch, model=MODEL, vectors=vectors_of(branch_log[4:]))
    read = await store.read_vectors(branch, model=MODEL, from_seq=0, before_seq=99)
    assert read == vectors_of(branch_log)
    assert await store.erase_conversation(tenant=trunk.tenant, conversation_id=trunk.id)
    assert await store.read_vectors(await fresh(store, branch), model=MODEL, from_seq=0, before_seq=99) == read


@pytest.mark.parametrize("shared_through", [None, 3])
async def test_nothing_of_an_erased_conversation_is_left(store: Store, shared_through: int | None) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    await store.add_vectors(conversation, model=MODEL, vectors=vectors_of(log))
    twin = None
    if shared_through is not None:
        twin, _ = await twin_of(store, conversation, log, shared_through, ["user t"])
    assert await store.erase_conversation(tenant=conversation.tenant, conversation_id=conversation.id)
    assert await seqs_with_vectors(store, conversation) == []
    if twin is not None:
        assert await seqs_with_vectors(store, await fresh(store, twin)) == [0, 1, 2, 3]


async def test_vectors_of_a_redacted_message_go_and_do_not_come_back(store: Store) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    twin, _ = await twin_of(store, conversation, log, 4, ["user t"])
    await store.add_vectors(conversation, model=MODEL, vectors=vectors_of(log))
    await store.redact_messages(conversation, [overwritten(log[2])])
    assert await seqs_with_vectors(store, await fresh(store, conversation)) == [0, 1, 3, 4, 5]
    assert await seqs_with_vectors(store, await fresh(store, twin)) == [0, 1, 2, 3, 4], "it keeps the message"
    # They were made from the old text before the redaction, and come afterwards.
    await store.add_vectors(conversation, model=MODEL, vectors=vectors_of(log[2:3]))
    assert await seqs_with_vectors(store, await fresh(store, conversation)) == [0, 1, 3, 4, 5]


async def test_only_stored_messages_of_the_tenant_get_vectors(store: Store) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    strange_link, too_late = replace(vectors_of(log)[0], link=bytes(16)), replace(vectors_of(log)[0], seq=40)
    await store.add_vectors(conversation, model=MODEL, vectors=[strange_link, too_late])
    await store.add_vectors(replace(conversation, tenant=fresh_tenant()), model=MODEL, vectors=vectors_of(log))
    assert await seqs_with_vectors(store, conversation) == []


async def test_all_vectors_can_be_cleared(store: Store) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    await store.add_vectors(conversation, model=MODEL, vectors=vectors_of(log))
    await store.clear_vectors()
    assert await seqs_with_vectors(store, conversation) == []
