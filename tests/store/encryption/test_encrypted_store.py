"""A store under a key: what is said never reaches the disk in plain, and what was moved or altered is not believed."""

from __future__ import annotations

import asyncio
import inspect
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from app.commands.progress import CommandProgress
from app.commands.reencrypt import rewrite_all
from app.conversation.conversation_types import Conversation, LogMessage, StoredCompletion
from app.conversation.search_terms import extract_terms
from app.errors import StoreUnreadable
from app.store.contract.conversations import ConversationQuery, LogAppend
from app.store.contract.store import Store
from app.store.encryption.cipher import Cipher
from app.store.encryption.encrypted_store import UNSEALED_OPERATIONS, EncryptedStore, encrypt_store
from app.store.leases import LeaseKeeper
from app.store.search.unindexed_search import MAX_SEARCHED_MESSAGES
from app.store.store_factory import create_store
from migrations.run import prepare_database
from tests.store.example_logs import (
    NOON,
    Clock,
    begin,
    bodies,
    branch_off,
    chunk_over,
    conversation_of,
    fresh_tenant,
    go_on,
    lease_on,
    log_of,
)
from tests.support.memory_store import MemoryStore

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
TALK = ["user my password is hunter2", "assistant I keep that marmalade", "user and the vault", "assistant is zanzibar"]
SECRETS = [b"hunter2", b"marmalade", b"vault", b"zanzibar", b"clandestine", b"obelisk", b"quinine", b"tarpaulin"]


def encrypted(inner: Store, active: str | None = "old", **keys: bytes) -> Store:
    return encrypt_store(inner, Cipher(keys or {"old": OLD}, active))


def rotating(inner: Store) -> Store:
    return encrypted(inner, "new", old=OLD, new=NEW)


@pytest.fixture
async def inner(request: pytest.FixtureRequest, clock: Clock, kind: str) -> AsyncIterator[Store]:
    url = "memory://" if kind == "memory" else str(request.getfixturevalue("sqlite_url"))
    opened = create_store(url, clock=clock)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture(params=["memory", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def tell_secrets(store: Store) -> tuple[Conversation, list[LogMessage]]:
    """A conversation with a word of `SECRETS` in each place that is encrypted."""
    tenant = fresh_tenant()
    log = log_of(tenant, TALK)
    log[1] = replace(log[1], meta={"alternatives": ["clandestine"]})
    conversation = conversation_of(tenant, log, state={"instructions": ["obelisk"]})
    await store.append(LogAppend(conversation, -1, log, creates_conversation=True))
    chunk = chunk_over(conversation, log, 0, 2, text="they spoke of quinine")
    fence = await lease_on(store, conversation.root)
    await store.add_summary(tenant=tenant, root=conversation.root, summary=chunk, fence=fence)
    await store.revise_summary(
        tenant=tenant, root=conversation.root, summary=replace(chunk, text="and of quinine again", revision=2)
    )
    await store.save_completion(
        StoredCompletion(
            id="chatcmpl-1",
            tenant=tenant,
            root=conversation.root,
            conversation_id=conversation.id,
            seq=3,
            model="m",
            created_at=NOON,
            parameters={"tools": ["tarpaulin"]},
            instructions=("obelisk", "tarpaulin"),
        )
    )
    return conversation, log


async def everything_is_there(store: Store, conversation: Conversation, log: list[LogMessage]) -> None:
    tenant, root = conversation.tenant, conversation.root
    found = await store.find_conversation(tenant=tenant, conversation_id=conversation.id)
    assert found is not None
    assert found.state == {"instructions": ["obelisk"]}
    entries = await store.read_log(found, 0, 99)
    assert bodies(entries) == bodies(log)
    assert entries[1].meta == {"alternatives": ["clandestine"]}
    (chunk,) = await store.find_summaries(tenant=tenant, root=root, path=found.lineage_with_self)
    assert chunk.text == "and of quinine again"
    texts = await store.read_summary_revisions(tenant=tenant, root=root, summary_id=chunk.id)
    assert [one.text for one in texts] == ["they spoke of quinine", "and of quinine again"]
    completion = await store.find_completion(tenant=tenant, completion_id="chatcmpl-1")
    assert completion is not None
    assert completion.parameters == {"tools": ["tarpaulin"]}
    assert completion.instructions == ("obelisk", "tarpaulin")


async def raw_texts(inner: Store) -> list[str]:
    """Everything in a store that is encrypted, as it is kept."""
    texts: list[Any] = []
    for conversation in await inner.list_conversations(tenant=None, query=ConversationQuery(limit=100)):
        tenant, root = conversation.tenant, conversation.root
        texts += [conversation.state] if conversation.state else []
        for entry in await inner.read_log(conversation, 0, 9999):
            texts += [entry.message.raw.decode(), *([entry.meta] if entry.meta else [])]
        for chunk in await inner.find_summaries(tenant=tenant, root=root, path=conversation.lineage_with_self):
            texts += [
                one.text for one in await inner.read_summary_revisions(tenant=tenant, root=root, summary_id=chunk.id)
            ]
        completion = await inner.find_completion(tenant=tenant, completion_id="chatcmpl-1")
        texts += [completion.parameters, *completion.instructions] if completion else []
    return [text if isinstance(text, str) else str(text.get("enc", text)) for text in texts]


def read_key_name(stored: str) -> str | None:
    """The key under which a text is kept; None for plain text."""
    return stored.split(":")[1] if stored.startswith("enc1:") else None


async def key_names(inner: Store) -> set[str | None]:
    return set(map(read_key_name, await raw_texts(inner)))


async def rewrite(store: Store) -> tuple[int, list[str], list[str]]:
    if not store.is_fully_searchable:
        await store.clear_search_index()
    progress = CommandProgress("reencrypting", "conversations", quiet=True)
    return await rewrite_all(
        cast(EncryptedStore, store), LeaseKeeper(store, holder="rotation"), progress, wait_seconds=0
    )


def test_no_method_of_a_store_is_forgotten() -> None:
    forgotten, reads = set[str](), set[str]()
    for name, method in inspect.getmembers(Store, inspect.isfunction):
        annotations = dict(inspect.get_annotations(method))
        returned = annotations.pop("return", "")
        writes = [kind for argument, kind in annotations.items() if argument != "conversation"]
        if re.search("LogMessage|ClientVersion|Summary|StoredCompletion|LogAppend", " ".join(writes)):
            forgotten |= {name} - vars(EncryptedStore).keys()
        elif re.search("Conversation|Message|Version|Summary|Completion|Match|Hit|Proof", returned):
            reads.add(name)
    assert not forgotten
    assert len(reads) > 12
    assert reads - vars(EncryptedStore).keys() == set(UNSEALED_OPERATIONS)


async def test_what_was_told_is_read_again_and_everything_is_under_the_key(inner: Store) -> None:
    store = encrypted(inner)
    conversation, log = await tell_secrets(store)
    await everything_is_there(store, conversation, log)
    assert await key_names(inner) == {"old"}
    assert len(await raw_texts(inner)) == 10


async def test_no_word_reaches_the_file(sqlite_url: str, clock: Clock) -> None:
    for told, expected in ((encrypted, 0), (lambda plain: plain, len(SECRETS))):
        inner = create_store(sqlite_url, clock=clock)
        store: Store = told(inner)
        await store.open()
        conversation, log = await tell_secrets(store)
        await store.index_messages(conversation, log)
        await store.close()
        files = Path(sqlite_url.removeprefix("sqlite:///")).parent.glob("store.db*")
        kept = b"".join(file.read_bytes() for file in files)
        assert sum(secret in kept for secret in SECRETS) == expected


async def test_no_index_of_words_lies_beside_what_is_encrypted(inner: Store) -> None:
    for store, expected in ((encrypted(inner), 0), (inner, 1)):
        conversation, log = await tell_secrets(store)
        await store.index_messages(conversation, log)
        found = await inner.search_tenant(tenant=conversation.tenant, terms=extract_terms("vault"), limit=9)
        assert len(found) == expected


async def test_messages_that_change_places_are_noticed(inner: Store) -> None:
    store = encrypted(inner)
    conversation, _ = await tell_secrets(store)
    first, second, *_ = await inner.read_log(conversation, 0, 4)
    await inner.rewrite_sealed_fields(conversation, entries=[replace(first, message=second.message)])
    with pytest.raises(StoreUnreadable):
        await store.read_log(conversation, 0, 1)
    assert len(await store.read_log(conversation, 1, 4)) == 3


async def test_what_another_tenant_said_is_not_read_in_ones_own_name(inner: Store) -> None:
    store = encrypted(inner)
    mine, _ = await begin(store, fresh_tenant(), TALK)
    theirs, _ = await begin(store, fresh_tenant(), TALK)
    stolen, *_ = await inner.read_log(theirs, 0, 1)
    own, *_ = await inner.read_log(mine, 0, 1)
    await inner.rewrite_sealed_fields(mine, entries=[replace(own, message=stolen.message)])
    with pytest.raises(StoreUnreadable):
        await store.read_log(mine, 0, 1)


async def test_a_body_does_not_pass_for_meta_nor_a_state_for_another_conversations(inner: Store) -> None:
    store = encrypted(inner)
    one, _ = await tell_secrets(store)
    other, _ = await begin(store, one.tenant, TALK, state={"instructions": ["something else"]})
    raw_one = await inner.find_conversation(tenant=one.tenant, conversation_id=one.id)
    raw_other = await inner.find_conversation(tenant=one.tenant, conversation_id=other.id)
    assert raw_one is not None
    assert raw_other is not None
    entries = await inner.read_log(raw_one, 1, 2)
    moved = [replace(entries[0], meta={"enc": entries[0].message.raw.decode()})]
    await inner.rewrite_sealed_fields(replace(raw_one, state=raw_other.state), entries=moved)
    with pytest.raises(StoreUnreadable):
        await store.read_log(one, 1, 2)
    found = await store.find_conversation(tenant=one.tenant, conversation_id=one.id)
    assert found is not None
    with pytest.raises(StoreUnreadable):
        found.state.get("instructions")


async def test_summaries_that_change_places_are_noticed(inner: Store) -> None:
    store = encrypted(inner)
    conversation, log = await begin(store, fresh_tenant(), TALK)
    fence = await lease_on(store, conversation.root)
    for ends in ((0, 2), (2, 4)):
        chunk = chunk_over(conversation, log, *ends)
        await store.add_summary(tenant=conversation.tenant, root=conversation.root, summary=chunk, fence=fence)
    where = {"tenant": conversation.tenant, "root": conversation.root, "path": conversation.lineage_with_self}
    first, second = await inner.find_summaries(**where)  # type: ignore[arg-type]
    await inner.rewrite_sealed_fields(conversation, summaries=[replace(first, text=second.text)])
    with pytest.raises(StoreUnreadable):
        await store.find_summaries(**where)  # type: ignore[arg-type]


async def test_a_branch_reads_what_it_shares_even_after_its_parent_was_erased(inner: Store) -> None:
    store = encrypted(inner)
    parent, log = await tell_secrets(store)
    branch, whole = await branch_off(store, parent, log, 1, ["user go elsewhere", "assistant gladly"])
    assert await store.erase_conversation(tenant=parent.tenant, conversation_id=parent.id)
    found = await store.find_conversation(tenant=branch.tenant, conversation_id=branch.id)
    assert found is not None
    assert bodies(await store.read_log(found, 0, 99)) == bodies(whole)
    assert [
        chunk.text
        for chunk in await store.find_summaries(tenant=found.tenant, root=found.root, path=found.lineage_with_self)
    ] == ["and of quinine again"]


async def test_plain_rows_of_before_are_read_and_what_follows_is_encrypted(inner: Store) -> None:
    conversation, log = await tell_secrets(inner)
    store = encrypted(inner)
    await everything_is_there(store, conversation, log)
    conversation, log = await go_on(store, conversation, log, ["user thanks"])
    stored = await inner.read_log(conversation, 0, 99)
    assert [read_key_name(entry.message.raw.decode()) for entry in stored] == [None] * 4 + ["old"]
    assert bodies(await store.read_log(conversation, 0, 99)) == bodies(log)


async def test_erased_words_do_not_come_back(inner: Store) -> None:
    store = encrypted(inner)
    conversation, log = await tell_secrets(store)
    gone = await store.redact_messages(conversation, [replace(log[0], message=log[2].message, meta={"deleted": {}})])
    assert [chunk.text for chunk in gone] == ["and of quinine again"]
    assert (await store.read_log(conversation, 0, 1))[0].meta == {"deleted": {}}
    assert bodies(await store.read_log(conversation, 0, 1)) == ["and the vault"]


async def test_keys_are_changed_and_the_old_one_is_not_needed_any_more(inner: Store) -> None:
    conversation, log = await tell_secrets(encrypted(inner))
    branch, whole = await branch_off(encrypted(inner), conversation, log, 1, ["user go elsewhere"])
    assert await rewrite(rotating(inner)) == (2, [], [])
    assert await key_names(inner) == {"new"}
    only_new = encrypted(inner, "new", new=NEW)
    await everything_is_there(only_new, conversation, log)
    assert bodies(await only_new.read_log(branch, 0, 99)) == bodies(whole)


async def test_keys_are_changed_in_postgresql(empty_postgres_url: str, clock: Clock) -> None:
    await asyncio.to_thread(prepare_database, empty_postgres_url, auto_migrate=True)
    inner = create_store(empty_postgres_url, clock=clock)
    await inner.open()
    plain, plain_log = await begin(inner, fresh_tenant(), TALK)
    await inner.index_messages(plain, plain_log)
    conversation, log = await tell_secrets(encrypted(inner))
    assert await rewrite(rotating(inner)) == (2, [], [])
    assert await key_names(inner) == {"new"}
    await everything_is_there(encrypted(inner, "new", new=NEW), conversation, log)
    assert await inner.search_tenant(tenant=plain.tenant, terms=["hunter2"], limit=9) == []
    await inner.close()


async def test_keys_can_be_changed_again(inner: Store) -> None:
    conversation, log = await tell_secrets(encrypted(inner))
    await rewrite(rotating(inner))
    await rewrite(rotating(inner))
    assert await key_names(inner) == {"new"}
    await everything_is_there(encrypted(inner, "new", new=NEW), conversation, log)


async def test_plain_rows_are_encrypted_and_their_words_forgotten(inner: Store) -> None:
    conversation, log = await tell_secrets(inner)
    await inner.index_messages(conversation, log)
    await rewrite(encrypted(inner))
    assert await key_names(inner) == {"old"}
    found = await inner.find_conversation(tenant=conversation.tenant, conversation_id=conversation.id)
    assert found is not None
    assert found.indexed_before == 0
    assert await inner.search_log(found, terms=["hunter2"], from_seq=0, before_seq=9, limit=9) == []


async def test_without_an_active_key_everything_becomes_plain_again(inner: Store) -> None:
    conversation, log = await tell_secrets(encrypted(inner))
    await rewrite(encrypted(inner, None, old=OLD))
    assert await key_names(inner) == {None}
    await everything_is_there(inner, conversation, log)


async def test_a_conversation_in_use_is_left_and_named(inner: Store) -> None:
    conversation, log = await tell_secrets(encrypted(inner))
    other, _ = await begin(encrypted(inner), fresh_tenant(), TALK)
    await lease_on(inner, conversation.root, conversation.id, holder="a turn")
    assert await rewrite(rotating(inner)) == (1, [conversation.id], [])
    await everything_is_there(rotating(inner), conversation, log)
    assert {read_key_name(entry.message.raw.decode()) for entry in await inner.read_log(other, 0, 9)} == {"new"}


async def test_what_cannot_be_read_is_named_and_the_rest_is_written(inner: Store) -> None:
    lost, _ = await begin(encrypted(inner, "lost", lost=NEW), fresh_tenant(), TALK)
    conversation, log = await tell_secrets(encrypted(inner))
    assert await rewrite(rotating(inner)) == (1, [], [lost.id])
    await everything_is_there(encrypted(inner, "new", new=NEW), conversation, log)


async def test_what_cannot_be_read_is_listed_and_can_be_erased(inner: Store) -> None:
    lost, _ = await tell_secrets(encrypted(inner))
    store = encrypted(inner, "new", new=NEW)
    (listed,) = await store.list_conversations(tenant=lost.tenant, query=ConversationQuery(limit=9))
    assert listed.id == lost.id
    with pytest.raises(StoreUnreadable):
        listed.state.get("instructions")
    with pytest.raises(StoreUnreadable):
        await store.read_log(lost, 0, 1)
    assert await store.erase_conversation(tenant=lost.tenant, conversation_id=lost.id)
    assert await raw_texts(inner) == []


async def test_a_listed_conversation_has_its_state(inner: Store) -> None:
    store = encrypted(inner)
    conversation, _ = await tell_secrets(store)
    (listed,) = await store.list_conversations(tenant=conversation.tenant, query=ConversationQuery(limit=9))
    assert {**listed.state} == conversation.state
    assert replace(listed, state={**listed.state}) == await store.find_conversation(
        tenant=conversation.tenant, conversation_id=conversation.id
    )


async def test_searches_find_messages_without_an_index(inner: Store) -> None:
    store = encrypted(inner)
    conversation, log = await tell_secrets(store)
    await store.index_messages(conversation, log)
    assert not store.is_fully_searchable
    found = await store.search_log(conversation, terms=extract_terms("zanzibar"), from_seq=0, before_seq=9, limit=1)
    assert [(one.message.seq, one.score is None) for one in found] == [(3, False), (2, True), (1, True)]
    assert bodies([one.message for one in found]) == bodies([log[3], log[2], log[1]])


async def test_a_search_looks_at_the_newest_messages_of_a_long_log(clock: Clock) -> None:
    store = encrypted(MemoryStore(clock=clock))
    lines = ["user the needle", *["user hay"] * MAX_SEARCHED_MESSAGES]
    conversation, _ = await begin(store, fresh_tenant(), lines)
    where = {"terms": ["needl"], "from_seq": 0, "limit": 9}
    assert extract_terms("needle") == ["needl"]
    assert await store.search_log(conversation, before_seq=9999, **where) == []  # type: ignore[arg-type]
    found = await store.search_log(conversation, before_seq=MAX_SEARCHED_MESSAGES, **where)  # type: ignore[arg-type]
    assert [one.message.seq for one in found if one.score is not None] == [0]


async def test_long_messages_are_as_they_were(inner: Store) -> None:
    store = encrypted(inner)
    text = "".join(random.Random(1).choices("abc\u00e4\u4e2d\n", k=500_000))
    conversation, log = await begin(store, fresh_tenant(), [f"user {text}"] * 3)
    assert [entry.message.raw for entry in await store.read_log(conversation, 0, 9)] == [
        entry.message.raw for entry in log
    ]
