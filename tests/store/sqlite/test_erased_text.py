"""Erased text is nowhere in the files of SQLite."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from app.conversation.conversation_types import LogMessage
from app.dialects.body.message import ChatMessage
from app.store.contract.store import Store
from app.store.sqlite.backend import SqliteStore
from app.store.store_factory import create_store
from tests.store.example_logs import Clock, begin, branch_off, chunk_over, fresh_tenant, go_on, lease_on


@pytest.fixture
async def store(sqlite_url: str, clock: Clock) -> AsyncIterator[Store]:
    opened = create_store(sqlite_url, clock=clock)
    await opened.open()
    yield opened
    await opened.close()


def left_of(directory: Path, words: Collection[str]) -> list[str]:
    """Which of the words stand in any file."""
    content = b"".join(path.read_bytes() for path in directory.iterdir())
    return [word for word in words if word.encode() in content]


def overwritten(entry: LogMessage) -> LogMessage:
    return replace(entry, message=ChatMessage.from_body({"role": "user", "content": "[erased]"}), tokens=2, meta=None)


async def test_a_redacted_text_is_gone_with_its_summaries_and_words(store: Store, tmp_path: Path) -> None:
    tenant = fresh_tenant()
    lines = ["user hi", f"assistant sesame {'long ' * 3000}", "user thanks", "assistant abracadabra"]
    conversation, log = await begin(store, tenant, lines)
    await branch_off(store, conversation, log, 2, ["assistant else"])
    await store.index_messages(conversation, log)
    fence = await lease_on(store, conversation.root)
    chunk = chunk_over(conversation, log, 0, 3, text="They said xyzzy.")
    await store.add_summary(tenant=tenant, root=conversation.root, summary=chunk, fence=fence)
    edited = replace(chunk, text="They said plugh.", revision=2)
    await store.revise_summary(tenant=tenant, root=conversation.root, summary=edited)
    words = {"sesame", "xyzzy", "plugh"}
    assert set(left_of(tmp_path, words)) == words
    await store.redact_messages(conversation, [overwritten(log[1])])
    assert left_of(tmp_path, words) == []
    assert left_of(tmp_path, ["abracadabra"]) == ["abracadabra"]
    await store.erase_conversation(tenant=tenant, conversation_id=conversation.id)
    assert left_of(tmp_path, ["abracadabra"]) == []


async def test_a_deleted_summary_is_gone(store: Store, tmp_path: Path) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, ["user hi", "assistant hello"])
    fence = await lease_on(store, conversation.root)
    chunk = chunk_over(conversation, log, 0, 2, text="They said xyzzy.")
    await store.add_summary(tenant=tenant, root=conversation.root, summary=chunk, fence=fence)
    await store.delete_summary(tenant=tenant, root=conversation.root, summary_id=chunk.id)
    assert left_of(tmp_path, ["xyzzy"]) == []


async def test_a_copy_that_was_left_when_rows_were_moved_goes(store: Store, tmp_path: Path) -> None:
    tenant = fresh_tenant()
    conversation, log = await begin(store, tenant, ["user hi", "assistant sesame", "user hm", "assistant xyzzy"])
    leave_copies(tmp_path / "store.db", [entry.message.raw.decode() for entry in log])
    await store.redact_messages(conversation, [overwritten(log[1])])
    assert left_of(tmp_path, ["sesame", "xyzzy"]) == ["xyzzy"]
    leave_copies(tmp_path / "store.db", [log[3].message.raw.decode()])
    await store.erase_conversation(tenant=tenant, conversation_id=conversation.id)
    await store.scrub_deleted_data()
    assert left_of(tmp_path, ["sesame", "xyzzy"]) == []


def leave_copies(path: Path, texts: Sequence[str]) -> None:
    """What SQLite itself does now and then, in the free space of a page."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("CREATE TABLE copies (body TEXT)")
        connection.executemany("INSERT INTO copies VALUES (?)", [(text,) for text in texts])
        connection.execute("DROP TABLE copies")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def count_rewrites(path: Path) -> int:
    """Grows each time that SQLite writes the whole file anew."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA schema_version").fetchone()[0])


async def test_an_erased_conversation_does_not_rewrite_the_file(store: Store, tmp_path: Path) -> None:
    tenant, rewrites = fresh_tenant(), count_rewrites(tmp_path / "store.db")
    first, _ = await begin(store, tenant, ["user we all say this", "assistant sesame"])
    second, _ = await begin(store, tenant, ["user we all say this", "assistant hello"])
    await store.erase_conversation(tenant=tenant, conversation_id=first.id)
    assert left_of(tmp_path, ["sesame"]) == []
    assert count_rewrites(tmp_path / "store.db") == rewrites
    await store.scrub_deleted_data()
    assert count_rewrites(tmp_path / "store.db") > rewrites
    assert await store.find_conversation(tenant=tenant, conversation_id=second.id) is not None


async def test_a_large_file_is_left_to_whoever_scrubs_it(sqlite_file: Path, tmp_path: Path, clock: Clock) -> None:
    store = SqliteStore(sqlite_file, clock=clock, max_vacuum_bytes=1)
    await store.open()
    conversation, log = await begin(store, fresh_tenant(), ["user sesame", "assistant hello"])
    leave_copies(sqlite_file, [log[0].message.raw.decode()])
    await store.redact_messages(conversation, [overwritten(log[0])])
    assert left_of(tmp_path, ["sesame"]) == ["sesame"]
    await go_on(store, conversation, log, ["user more"])
    await store.scrub_deleted_data()
    assert left_of(tmp_path, ["sesame"]) == []
    await store.close()


COUNT = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(connection.execute("SELECT count(*) FROM conversations").fetchone()[0])
connection.close()
"""


async def test_another_process_that_comes_and_goes_does_not_take_the_log_along(store: Store, tmp_path: Path) -> None:
    tenant = fresh_tenant()
    gone, _ = await begin(store, tenant, ["user sesame", "assistant open"])
    await store.erase_conversation(tenant=tenant, conversation_id=gone.id)
    look = [sys.executable, "-c", COUNT, str(tmp_path / "store.db")]
    for count in (1, 2):
        await begin(store, tenant, [f"user hi {count}", "assistant hello"])
        assert int(await asyncio.to_thread(subprocess.check_output, look)) == count
