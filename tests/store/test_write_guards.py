"""Each guard of the store by itself, where nothing else would catch what it lets through: fences, tenants and erased
messages, in writes that are submitted at once and in each method that takes the place of a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from app.conversation.conversation_types import Conversation, LogMessage, StoredCompletion
from app.conversation.search_terms import extract_terms
from app.dialects.body.message import ChatMessage
from app.store.contract.conversations import CompletionQuery, ConversationQuery, LogAppend, WriteConflict
from app.store.contract.leases import Lease, LeaseLost
from app.store.contract.store import Store
from tests.store.example_logs import (
    NOON,
    Clock,
    begin,
    beginnings,
    bodies,
    branch_of,
    branch_off,
    chunk_over,
    following,
    fresh_tenant,
    lease_on,
    links,
)

COUNT = 8
STRANGER = "somebody else"
CHAT = ["user where are the ships", "assistant in the harbour", "user which one", "assistant the second"]


async def prepare_answers(store: Store) -> list[LogAppend]:
    """Writes to as many conversations that are stored, and that nothing keeps from being written."""
    asked = beginnings(COUNT)
    await asyncio.gather(*(store.append(write) for write in asked))
    return [following(write) for write in asked]


async def append_at_once(store: Store, writes: list[LogAppend]) -> list[type[BaseException] | None]:
    """What each of some writes that are submitted at once comes to."""
    outcomes = await asyncio.gather(*(store.append(write) for write in writes), return_exceptions=True)
    return [None if outcome is None else type(outcome) for outcome in outcomes]


async def read_heads(store: Store, writes: list[LogAppend]) -> list[int]:
    """Where the logs end that are written to; -1 for those that do not exist."""
    found = [await store.find_conversation_of_any_tenant(write.conversation.id) for write in writes]
    return [-1 if conversation is None else conversation.head_seq for conversation in found]


async def let_expire(store: Store, root: str) -> Lease:
    return await lease_on(store, root, seconds=0)


async def have_taken_over(store: Store, root: str) -> Lease:
    lease = await lease_on(store, root, seconds=0)
    await lease_on(store, root, holder="another process")
    return lease


async def claim_again(store: Store, root: str) -> Lease:
    lease = await lease_on(store, root)
    await lease_on(store, root)
    return lease


async def give_back(store: Store, root: str) -> Lease:
    lease = await lease_on(store, root)
    await store.release_lease(lease)
    return lease


async def forge_holder(store: Store, root: str) -> Lease:
    return replace(await lease_on(store, root), holder="another process")


LOST = pytest.mark.parametrize("lose", [let_expire, have_taken_over, claim_again, give_back, forge_holder])


@LOST
@pytest.mark.parametrize("releases", [False, True])
async def test_of_appends_at_once_those_whose_lease_was_lost_are_not_written(
    store: Store, lose: Callable[[Store, str], Awaitable[Lease]], releases: bool
) -> None:
    writes = [replace(write, releases_lease=releases) for write in await prepare_answers(store)]
    for place, write in enumerate(writes):
        take = lease_on if place % 2 else lose
        writes[place] = replace(write, fence=await take(store, write.conversation.root))
    assert await append_at_once(store, writes) == [LeaseLost, None] * (COUNT // 2)
    assert await read_heads(store, writes) == [0, 1] * (COUNT // 2)


@LOST
async def test_of_beginnings_at_once_those_whose_lease_was_lost_are_not_written(
    store: Store, lose: Callable[[Store, str], Awaitable[Lease]]
) -> None:
    writes = beginnings(COUNT)
    for place, write in enumerate(writes):
        take = lease_on if place % 2 else lose
        writes[place] = replace(write, fence=await take(store, write.conversation.root))
    assert await append_at_once(store, writes) == [LeaseLost, None] * (COUNT // 2)
    assert await read_heads(store, writes) == [-1, 0] * (COUNT // 2)


async def test_a_lease_ends_while_writes_wait_for_their_turn(store: Store, clock: Clock) -> None:
    writes = await prepare_answers(store)
    # PostgreSQL looks at its own clock, the others at the one that they are given.
    seconds = 0.05
    leases = [await lease_on(store, write.conversation.root, seconds=seconds) for write in writes]
    clock.forward(1)
    await asyncio.sleep(2 * seconds)
    fenced = [replace(write, fence=lease) for write, lease in zip(writes, leases, strict=True)]
    assert await append_at_once(store, fenced) == [LeaseLost] * COUNT
    assert await read_heads(store, writes) == [0] * COUNT


async def test_of_appends_at_once_those_of_another_tenant_are_not_written(store: Store) -> None:
    writes = await prepare_answers(store)
    for place in range(0, COUNT, 2):
        theirs = replace(writes[place].conversation, tenant=STRANGER)
        writes[place] = replace(writes[place], conversation=theirs)
    assert await append_at_once(store, writes) == [WriteConflict, None] * (COUNT // 2)
    assert await read_heads(store, writes) == [0, 1] * (COUNT // 2)


async def test_of_branches_at_once_those_off_anothers_conversation_are_not_written(store: Store) -> None:
    begun = [await begin(store, fresh_tenant(), CHAT) for _ in range(COUNT)]
    writes = []
    for place, (trunk, log) in enumerate(begun):
        branch, _, own = branch_of(trunk, log, 1, ["user other"])
        writes.append(
            LogAppend(branch if place % 2 else replace(branch, tenant=STRANGER), 1, own, creates_conversation=True)
        )
    assert await append_at_once(store, writes) == [WriteConflict, None] * (COUNT // 2)
    assert await read_heads(store, writes) == [-1, 2] * (COUNT // 2)


@LOST
async def test_of_summaries_at_once_those_whose_lease_was_lost_are_not_kept(
    store: Store, lose: Callable[[Store, str], Awaitable[Lease]]
) -> None:
    begun = [await begin(store, fresh_tenant(), CHAT) for _ in range(COUNT)]
    keeping = []
    for place, (conversation, log) in enumerate(begun):
        fence = await (lease_on if place % 2 else lose)(store, conversation.root)
        chunk = chunk_over(conversation, log, 0, 2)
        keeping.append(
            store.add_summary(tenant=conversation.tenant, root=conversation.root, summary=chunk, fence=fence)
        )
    outcomes = await asyncio.gather(*keeping, return_exceptions=True)
    assert [outcome and type(outcome) for outcome in outcomes] == [LeaseLost, None] * (COUNT // 2)
    kept = [
        await store.find_summaries(tenant=one.tenant, root=one.root, path=one.lineage_with_self) for one, _ in begun
    ]
    assert [len(chunks) for chunks in kept] == [0, 1] * (COUNT // 2)


async def test_a_lease_is_released_and_renewed_only_by_its_holder_and_token(store: Store) -> None:
    root = fresh_tenant()
    lease = await lease_on(store, root)
    strangers = [
        replace(lease, holder="another process"),
        replace(lease, token=lease.token - 1),
        replace(lease, key="another key"),
        replace(lease, root=fresh_tenant()),
    ]
    await asyncio.gather(*(store.release_lease(stranger) for stranger in strangers))
    assert await store.renew_leases(strangers, 60) == strangers
    assert await store.renew_leases([lease], 60) == []


class Owned:
    """What an owner keeps in a store: a conversation, a branch, two revisions of a summary, an index of words."""

    def __init__(self, store: Store, tenant: str) -> None:
        self.store = store
        self.tenant = tenant

    async def prepare(self) -> Owned:
        store = self.store
        self.conversation, self.log = await begin(store, self.tenant, CHAT, external_id="chat-1", metadata={"a": "b"})
        self.branch, _ = await branch_off(store, self.conversation, self.log, 1, ["user other"])
        root = self.conversation.root
        fence = await lease_on(store, root)
        chunk = chunk_over(self.conversation, self.log, 0, 2)
        await store.add_summary(tenant=self.tenant, root=root, summary=chunk, fence=fence)
        self.chunk = replace(chunk, text="revised", revision=2)
        await store.revise_summary(tenant=self.tenant, root=root, summary=self.chunk)
        await store.index_messages(self.conversation, self.log)
        return self

    @property
    def theirs(self) -> Conversation:
        """The conversation in a stranger's name, who knows all that leads to it."""
        return replace(self.conversation, tenant=STRANGER)

    @property
    def erased_entries(self) -> list[LogMessage]:
        return [replace(self.log[0], message=ChatMessage.from_body({"role": "user", "content": "[erased]"}))]

    async def everything(self) -> list[Any]:
        """All that the owner finds."""
        store, tenant, conversation = self.store, self.tenant, self.conversation
        root = conversation.root
        found = await store.search_tenant(tenant=tenant, terms=extract_terms("ships"), limit=9)
        return [
            await store.list_conversations(tenant=tenant, query=ConversationQuery(limit=9)),
            await store.find_conversation(tenant=tenant, conversation_id="chat-1"),
            await store.read_log(conversation, 0, 9),
            await store.find_summaries(tenant=tenant, root=root, path=conversation.lineage_with_self),
            await store.read_summary_revisions(tenant=tenant, root=root, summary_id=self.chunk.id),
            [(one.conversation.id, one.message.seq) for one in found],
        ]


async def find_by_links(kept: Owned) -> object:
    root = kept.conversation.root
    return await kept.store.find_link_matches(tenant=STRANGER, root=root, links=links(kept.log))


async def find_within(kept: Owned) -> object:
    root, named = kept.conversation.root, kept.conversation.id
    return await kept.store.find_link_matches(
        tenant=STRANGER, root=root, links=links(kept.log), named_conversation_id=named
    )


async def get_by_id(kept: Owned) -> object:
    return await kept.store.find_conversation(tenant=STRANGER, conversation_id=kept.conversation.id)


async def get_by_client_id(kept: Owned) -> object:
    return await kept.store.find_conversation(tenant=STRANGER, conversation_id="chat-1")


async def list_all(kept: Owned) -> object:
    return await kept.store.list_conversations(tenant=STRANGER, query=ConversationQuery(limit=9))


async def list_family(kept: Owned) -> object:
    return await kept.store.list_conversations(
        tenant=STRANGER, query=ConversationQuery(limit=9, ancestor_id=kept.conversation.id)
    )


async def search_everywhere(kept: Owned) -> object:
    return await kept.store.search_tenant(tenant=STRANGER, terms=extract_terms("ships"), limit=9)


async def read_chunks_on_path(kept: Owned) -> object:
    root, path = kept.conversation.root, kept.conversation.lineage_with_self
    return await kept.store.find_summaries(tenant=STRANGER, root=root, path=path)


async def read_chunks_at_link(kept: Owned) -> object:
    return await kept.store.find_summaries(tenant=STRANGER, root=kept.conversation.root, links=[kept.chunk.to_link])


async def read_revisions(kept: Owned) -> object:
    return await kept.store.read_summary_revisions(
        tenant=STRANGER, root=kept.conversation.root, summary_id=kept.chunk.id
    )


async def describe(kept: Owned) -> object:
    place = kept.conversation.id
    return await kept.store.replace_metadata(tenant=STRANGER, conversation_id=place, metadata={"a": "theirs"})


async def delete(kept: Owned) -> object:
    return await kept.store.erase_conversation(tenant=STRANGER, conversation_id=kept.conversation.id)


async def delete_chunk(kept: Owned) -> object:
    return await kept.store.delete_summary(tenant=STRANGER, root=kept.conversation.root, summary_id=kept.chunk.id)


async def rewrite(kept: Owned) -> object:
    chunk = replace(kept.chunk, text="theirs")
    await kept.store.rewrite_sealed_fields(
        replace(kept.theirs, state={"theirs": 1}), entries=kept.erased_entries, summaries=[chunk]
    )
    return None


async def mark(kept: Owned) -> object:
    await kept.store.replace_marks(kept.theirs, {"pins": []})
    return None


async def redact(kept: Owned) -> object:
    return await kept.store.redact_messages(kept.theirs, kept.erased_entries)


async def revise(kept: Owned) -> object:
    chunk = replace(kept.chunk, text="theirs", revision=3)
    await kept.store.revise_summary(tenant=STRANGER, root=kept.conversation.root, summary=chunk)
    return None


async def index(kept: Owned) -> object:
    await kept.store.index_messages(kept.theirs, kept.log)
    return await kept.store.search_tenant(tenant=STRANGER, terms=extract_terms("ships"), limit=9)


FINDING_NOTHING = (
    find_by_links,
    find_within,
    get_by_id,
    get_by_client_id,
    list_all,
    list_family,
    search_everywhere,
    read_chunks_on_path,
    read_chunks_at_link,
    read_revisions,
    describe,
    delete,
    delete_chunk,
    rewrite,
    index,
)
REFUSED = (mark, redact, revise)


@pytest.mark.parametrize("ask", FINDING_NOTHING)
async def test_a_stranger_finds_and_changes_nothing(store: Store, ask: Callable[[Owned], Awaitable[object]]) -> None:
    kept = await Owned(store, fresh_tenant()).prepare()
    before = await kept.everything()
    assert not await ask(kept)
    assert await kept.everything() == before


@pytest.mark.parametrize("ask", REFUSED)
async def test_a_strangers_change_is_refused(store: Store, ask: Callable[[Owned], Awaitable[object]]) -> None:
    kept = await Owned(store, fresh_tenant()).prepare()
    before = await kept.everything()
    with pytest.raises(WriteConflict):
        await ask(kept)
    assert await kept.everything() == before


async def find_seqs(store: Store, conversation: Conversation, word: str) -> list[int]:
    """Which messages of a conversation are indexed with a word."""
    found = await store.search_log(conversation, terms=extract_terms(word), from_seq=0, before_seq=9, limit=9)
    return [one.message.seq for one in found if one.score is not None]


async def test_what_was_erased_while_it_was_to_be_indexed_is_not_found(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    await store.redact_messages(
        conversation, [replace(log[0], message=ChatMessage.from_body({"role": "user", "content": "[erased]"}))]
    )
    # In several portions at once, each as it was read before the erasure.
    await asyncio.gather(*(store.index_messages(conversation, [entry]) for entry in log))
    assert await store.search_tenant(tenant=tenant, terms=extract_terms("ships"), limit=9) == []
    assert await find_seqs(store, conversation, "ships") == []
    assert await find_seqs(store, conversation, "harbour") == [1]


async def test_words_that_a_stranger_has_indexed_are_found_by_nobody(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    others = [replace(entry, message=ChatMessage.from_body({"role": "user", "content": "treasure"})) for entry in log]
    await store.index_messages(replace(conversation, tenant=STRANGER), others)
    assert await find_seqs(store, conversation, "treasure") == []
    found = await store.find_conversation(tenant=tenant, conversation_id=conversation.id)
    assert found is not None
    assert found.indexed_before == 0
    await store.index_messages(conversation, log)
    assert await find_seqs(store, conversation, "treasure") == []
    assert await find_seqs(store, conversation, "harbour") == [1]


async def test_what_was_erased_while_it_was_to_be_written_anew_does_not_come_back(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, CHAT)
    read = await store.read_log(conversation, 0, 9)
    # As long as it was, so that its count of tokens does not tell them apart.
    erased = replace(log[0], message=ChatMessage.from_body({"role": "user", "content": "[erased]"}))
    await store.redact_messages(conversation, [erased])
    await asyncio.gather(*(store.rewrite_sealed_fields(conversation, entries=[entry]) for entry in read))
    assert bodies(await store.read_log(conversation, 0, 9))[0] == "[erased]"


async def test_leases_of_summaries_end_with_an_erasure_and_those_of_other_families_stay(store: Store) -> None:
    (mine, log), (other, _) = [await begin(store, fresh_tenant(), CHAT) for _ in range(2)]
    ranges = [await lease_on(store, one.root, f"range:{one.root}") for one in (mine, other)]
    await store.redact_messages(
        mine, [replace(log[0], message=ChatMessage.from_body({"role": "user", "content": "[erased]"}))]
    )
    assert await store.renew_leases(ranges, 60) == ranges[:1]


async def test_what_one_tenant_does_with_a_request_key_changes_nothing_for_another(store: Store) -> None:
    mine, other = fresh_tenant(), fresh_tenant()

    # The same key, request and holder: only the tenant tells them apart.
    async def claim(tenant: str, holder: str) -> str:
        found = await store.claim_idempotency_key(
            tenant=tenant, key="k", digest=b"d", holder=holder, seconds=60, kept_seconds=600
        )
        return found.state

    assert await asyncio.gather(*(claim(tenant, "me") for tenant in (mine, other))) == ["claimed", "claimed"]
    await store.complete_idempotency_key(tenant=mine, key="k", holder="me", conversation_id="conv", seq=7)
    assert [await claim(tenant, "you") for tenant in (mine, other)] == ["done", "running"]
    await store.release_idempotency_key(tenant=other, key="k", holder="me")
    assert [await claim(tenant, "you") for tenant in (mine, other)] == ["done", "claimed"]
    await store.release_idempotency_key(tenant=mine, key="k", holder="you")
    assert [await claim(tenant, "me") for tenant in (mine, other)] == ["done", "running"]


async def test_what_one_tenant_does_with_a_completion_changes_nothing_for_another(store: Store) -> None:
    tenants = [fresh_tenant(), fresh_tenant()]
    # The same id, as vendors may give it to two.
    kept = [
        StoredCompletion(
            id="chatcmpl-1",
            tenant=conversation.tenant,
            root=conversation.root,
            conversation_id=conversation.id,
            seq=1,
            model="m",
            created_at=NOON,
        )
        for conversation in [(await begin(store, tenant, CHAT))[0] for tenant in tenants]
    ]
    await asyncio.gather(*(store.save_completion(one) for one in kept))
    assert await store.replace_completion_metadata(
        tenant=tenants[0], completion_id="chatcmpl-1", metadata={"a": "mine"}
    )
    found = [await store.find_completion(tenant=tenant, completion_id="chatcmpl-1") for tenant in tenants]
    assert found == [replace(kept[0], metadata={"a": "mine"}), kept[1]]
    assert await store.delete_completion(tenant=tenants[0], completion_id="chatcmpl-1")
    assert not await store.delete_completion(tenant=tenants[0], completion_id="chatcmpl-1")
    for tenant, expected in zip(tenants, ([], [kept[1]]), strict=True):
        assert await store.list_completions(tenant=tenant, query=CompletionQuery(limit=9)) == expected


async def test_an_id_of_the_clients_that_is_moved_stays_where_it_is_for_another_tenant(store: Store) -> None:
    tenants = [fresh_tenant(), fresh_tenant()]
    first = [(await begin(store, tenant, CHAT, external_id="chat-1"))[0] for tenant in tenants]
    second, _ = await begin(store, tenants[0], ["user again"])
    await store.assign_external_id(tenant=tenants[0], external_id="chat-1", conversation=second)
    found = [await store.find_conversation(tenant=tenant, conversation_id="chat-1") for tenant in tenants]
    assert [one and one.id for one in found] == [second.id, first[1].id]
    theirs = await store.find_conversation(tenant=tenants[1], conversation_id=first[1].id)
    assert theirs is not None
    assert theirs.external_id == "chat-1"
    assert await store.erase_conversation(tenant=tenants[0], conversation_id="chat-1")
    assert await store.find_conversation(tenant=tenants[1], conversation_id="chat-1") is not None
