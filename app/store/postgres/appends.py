"""Appends to conversations in PostgreSQL: one statement each, those of one moment in one transaction.

What the event loop submits within one iteration, or while enough transactions are under way, is sent as one batch: one
round trip and one commit for many turns (group commit). Where anything of it is not as it should be, or has to wait for
a lock, all of it is undone, and each append runs by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, NamedTuple

import asyncpg
from msgspec.structs import replace

from app.conversation.messages import ClientVersion, LogMessage
from app.errors import StoreUnavailable, drop_tracebacks
from app.store.contract import LeaseLost, LogAppend, WriteConflict
from app.store.postgres.pool import PostgresPool
from app.store.postgres.statements import SQL, build_append_statement
from app.store.shared_redaction import drop_redacted_versions, rebase_append, tokens_before_append
from app.store.sql.rows import (
    claims_external_id,
    client_version_values,
    conversation_values,
    decode_conversation,
    head_update_values,
    message_values,
)

MAX_RUNNING_BATCHES: Final = 2
"""Transactions of batches under way: while so many are, others gather."""
MAX_BATCH_APPENDS: Final = 64

lease_arguments: Final = attrgetter("root", "key", "holder", "token")
"""A lease as statements name it."""


class _StatementShape(NamedTuple):
    """What makes a statement: the parameters of `build_append_statement`."""

    creates: bool
    names: bool
    branches: bool
    message_count: int
    fenced: bool
    releases: bool
    has_versions: bool


class _QueuedAppend(NamedTuple):
    write: LogAppend
    now: datetime
    done_future: asyncio.Future[None]


class AppendQueue:
    """Takes appends, and writes them in the order in which they were submitted to a conversation."""

    def __init__(self, connections: PostgresPool) -> None:
        self._connections = connections
        self._submitted: list[_QueuedAppend] = []
        self._batches: set[asyncio.Task[None]] = set()
        self._single_writes: set[asyncio.Task[None]] = set()
        """Appends that run by themselves, maybe waiting for others' locks: nobody waits for those."""

    def append(self, write: LogAppend, now: datetime) -> asyncio.Future[None]:
        """As `Store.append`; it goes on when nobody waits for it any more."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._submitted.append(_QueuedAppend(write, now, done))
        if len(self._submitted) == 1 and len(self._batches) < MAX_RUNNING_BATCHES:
            # Whatever else this iteration of the loop submits goes along.
            loop.call_soon(self._send_batches)
        return done

    async def close(self) -> None:
        """Finish what is under way or submitted."""
        while self._submitted or self._batches or self._single_writes:
            self._send_batches()
            await asyncio.wait(self._batches | self._single_writes)

    def _send_batches(self) -> None:
        """Send what has gathered, those that are alike together."""
        while self._submitted and len(self._batches) < MAX_RUNNING_BATCHES:
            batches: dict[_StatementShape, list[_QueuedAppend]] = {}
            for one in self._submitted[:MAX_BATCH_APPENDS]:
                batches.setdefault(_statement_shape(one.write), []).append(one)
            del self._submitted[:MAX_BATCH_APPENDS]
            for shape, batch in batches.items():
                # Versions are held against what was redacted meanwhile, a branch against what it branches from.
                if shape.branches or shape.has_versions or not _are_independent(batch):
                    self._start_single_writes(batch)
                    continue
                task = asyncio.create_task(self._write_batch(shape, batch))  # noqa: TID251 - awaited by close
                self._batches.add(task)
                task.add_done_callback(self._finish_batch)

    def _finish_batch(self, task: asyncio.Task[None]) -> None:
        self._batches.discard(task)
        self._send_batches()

    async def _write_batch(self, shape: _StatementShape, batch: Sequence[_QueuedAppend]) -> None:
        # In one order everywhere: processes that append to the same conversations never wait in a circle.
        rows = [
            _append_arguments(one.write, one.now) for one in sorted(batch, key=lambda one: one.write.conversation.id)
        ]
        try:
            await self._connections.execute_all(build_append_statement(**shape._asdict(), in_batch=True), rows)
        except (asyncpg.DivisionByZeroError, asyncpg.UniqueViolationError):
            self._start_single_writes(batch)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, asyncpg.LockNotAvailableError | asyncpg.DeadlockDetectedError):
                self._start_single_writes(batch)
                return
            for one in batch:
                _resolve_append(one, error)
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for it
            for one in batch:
                _resolve_append(one, error)
        else:
            for one in batch:
                _resolve_append(one, None)

    def _start_single_writes(self, batch: Sequence[_QueuedAppend]) -> None:
        for one in batch:
            task = asyncio.create_task(self._write_single(one))  # noqa: TID251 - awaited by close
            self._single_writes.add(task)
            task.add_done_callback(self._single_writes.discard)

    async def _write_single(self, one: _QueuedAppend) -> None:
        try:
            await self._append_or_rebase(one.write, one.now)
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for it
            _resolve_append(one, error)
        else:
            _resolve_append(one, None)

    async def _append_or_rebase(self, write: LogAppend, now: datetime) -> None:
        if write.creates_conversation and write.versions:
            write = replace(write, versions=drop_redacted_versions(write, write.conversation))
        may_be_stale = bool(write.versions) and not write.creates_conversation
        if not may_be_stale and await self._try_append(write, now):
            return
        after = write.conversation
        rows = (
            []
            if write.creates_conversation
            else await self._connections.fetch(SQL.select_conversation, after.root, after.id, after.tenant)
        )
        if not rows:
            raise WriteConflict
        stored = decode_conversation(rows[0])
        has_moved = stored.head_seq != write.after_seq
        if has_moved or not (may_be_stale or stored.head_tokens_total != tokens_before_append(write)):
            raise WriteConflict
        if not await self._try_append(rebase_append(write, stored), now):
            raise WriteConflict

    async def _try_append(self, write: LogAppend, now: datetime) -> bool:
        """Whether the log ended where the write expects it to, with that total."""
        sql = build_append_statement(**_statement_shape(write)._asdict())
        try:
            rows = await self._connections.fetch(sql, *_append_arguments(write, now))
        except asyncpg.UniqueViolationError as error:
            raise WriteConflict from error
        moved, held = rows[0]
        if not held:
            raise LeaseLost
        return bool(moved)


def _resolve_append(queued: _QueuedAppend, error: BaseException | None) -> None:
    if queued.done_future.done():
        return
    if error is None:
        queued.done_future.set_result(None)
    else:
        drop_tracebacks(error)
        queued.done_future.set_exception(error)


def _are_independent(batch: Sequence[_QueuedAppend]) -> bool:
    return len({one.write.conversation.id for one in batch}) == len(batch)


def _statement_shape(write: LogAppend) -> _StatementShape:
    return _StatementShape(
        creates=write.creates_conversation,
        names=write.creates_conversation and claims_external_id(write.conversation),
        branches=_creates_branch(write),
        message_count=min(len(write.messages), 2),
        fenced=write.fence is not None,
        releases=write.releases_lease and write.fence is not None,
        has_versions=bool(write.versions),
    )


def _append_arguments(write: LogAppend, now: datetime) -> tuple[Any, ...]:
    after = write.conversation
    if write.creates_conversation:
        head = conversation_values(after, after.created_at or now, now)
    else:
        head = head_update_values(after, write.after_seq, tokens_before_append(write), now)
    shared = ([ancestor for ancestor, _ in after.lineage], *after.lineage[-1]) if _creates_branch(write) else ()
    lease = () if write.fence is None else lease_arguments(write.fence)
    return (*head, *shared, *_message_arguments(write.messages, now), *_version_arguments(write.versions), *lease)


def _creates_branch(write: LogAppend) -> bool:
    return write.creates_conversation and bool(write.conversation.lineage)


def _version_arguments(versions: Sequence[ClientVersion]) -> Sequence[Any]:
    """An array for each column, or nothing."""
    if not versions:
        return ()
    return [list(column) for column in zip(*map(client_version_values, versions), strict=True)]


def _message_arguments(messages: Sequence[LogMessage], now: datetime) -> Sequence[Any]:
    """Nothing, the columns of one message, or an array for each column."""
    if not messages:
        return ()
    rows = [message_values(entry, entry.created_at or now) for entry in messages]
    return rows[0] if len(rows) == 1 else [list(column) for column in zip(*rows, strict=True)]
