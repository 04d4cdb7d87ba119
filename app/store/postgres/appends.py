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
from app.errors import StoreUnavailable, release_frames
from app.store.contract import Append, HeadMoved, LeaseLost
from app.store.postgres.pool import Connections
from app.store.postgres.statements import SQL, append_sql
from app.store.shared_redaction import beginning_at, kept_versions, total_before
from app.store.sql.rows import (
    advance_values,
    conversation_of,
    conversation_values,
    message_values,
    names_itself,
    version_values,
)

MOST_AT_ONCE: Final = 2
"""Transactions of batches under way: while so many are, others gather."""
MAX_BATCH: Final = 64

place_of: Final = attrgetter("root", "key", "holder", "token")
"""A lease as statements name it."""


class _Shape(NamedTuple):
    """What makes a statement: the parameters of `append_sql`."""

    creates: bool
    names: bool
    branches: bool
    message_count: int
    fenced: bool
    releases: bool
    has_versions: bool


class _Waiting(NamedTuple):
    write: Append
    now: datetime
    done: asyncio.Future[None]


class Appends:
    """Takes appends, and writes them in the order in which they were submitted to a conversation."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._submitted: list[_Waiting] = []
        self._batches: set[asyncio.Task[None]] = set()
        self._alone: set[asyncio.Task[None]] = set()
        """Appends that run by themselves, maybe waiting for others' locks: nobody waits for those."""

    def append(self, write: Append, now: datetime) -> asyncio.Future[None]:
        """As `Store.append`; it goes on when nobody waits for it any more."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._submitted.append(_Waiting(write, now, done))
        if len(self._submitted) == 1 and len(self._batches) < MOST_AT_ONCE:
            # Whatever else this iteration of the loop submits goes along.
            loop.call_soon(self._hand_over)
        return done

    async def close(self) -> None:
        """Finish what is under way or submitted."""
        while self._submitted or self._batches or self._alone:
            self._hand_over()
            await asyncio.wait(self._batches | self._alone)

    def _hand_over(self) -> None:
        """Send what has gathered, those that are alike together."""
        while self._submitted and len(self._batches) < MOST_AT_ONCE:
            batches: dict[_Shape, list[_Waiting]] = {}
            for one in self._submitted[:MAX_BATCH]:
                batches.setdefault(_shape(one.write), []).append(one)
            del self._submitted[:MAX_BATCH]
            for shape, batch in batches.items():
                # Versions are held against what was redacted meanwhile, a branch against what it branches from.
                if shape.branches or shape.has_versions or not _are_independent(batch):
                    self._run_alone(batch)
                    continue
                task = asyncio.create_task(self._write(shape, batch))  # noqa: TID251 - awaited by close
                self._batches.add(task)
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._batches.discard(task)
        self._hand_over()

    async def _write(self, shape: _Shape, batch: Sequence[_Waiting]) -> None:
        # In one order everywhere: processes that append to the same conversations never wait in a circle.
        rows = [_arguments(one.write, one.now) for one in sorted(batch, key=lambda one: one.write.conversation.id)]
        try:
            await self._connections.execute_all(append_sql(**shape._asdict(), in_batch=True), rows)
        except (asyncpg.DivisionByZeroError, asyncpg.UniqueViolationError):
            self._run_alone(batch)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, asyncpg.LockNotAvailableError | asyncpg.DeadlockDetectedError):
                self._run_alone(batch)
                return
            for one in batch:
                _settle(one, error)
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for it
            for one in batch:
                _settle(one, error)
        else:
            for one in batch:
                _settle(one, None)

    def _run_alone(self, batch: Sequence[_Waiting]) -> None:
        for one in batch:
            task = asyncio.create_task(self._write_alone(one))  # noqa: TID251 - awaited by close
            self._alone.add(task)
            task.add_done_callback(self._alone.discard)

    async def _write_alone(self, one: _Waiting) -> None:
        try:
            await self._append(one.write, one.now)
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for it
            _settle(one, error)
        else:
            _settle(one, None)

    async def _append(self, write: Append, now: datetime) -> None:
        if write.creates and write.versions:
            write = replace(write, versions=kept_versions(write, write.conversation))
        may_be_stale = bool(write.versions) and not write.creates
        if not may_be_stale and await self._appended(write, now):
            return
        after = write.conversation
        rows = [] if write.creates else await self._connections.fetch(SQL.by_id, after.root, after.id, after.tenant)
        if not rows:
            raise HeadMoved
        stored = conversation_of(rows[0])
        has_moved = stored.head_seq != write.after_seq
        if has_moved or not (may_be_stale or stored.head_tokens_total != total_before(write)):
            raise HeadMoved
        if not await self._appended(beginning_at(write, stored), now):
            raise HeadMoved

    async def _appended(self, write: Append, now: datetime) -> bool:
        """Whether the log ended where the write expects it to, with that total."""
        sql = append_sql(**_shape(write)._asdict())
        try:
            rows = await self._connections.fetch(sql, *_arguments(write, now))
        except asyncpg.UniqueViolationError as error:
            raise HeadMoved from error
        moved, held = rows[0]
        if not held:
            raise LeaseLost
        return bool(moved)


def _settle(one: _Waiting, error: BaseException | None) -> None:
    if one.done.done():
        return
    if error is None:
        one.done.set_result(None)
    else:
        release_frames(error)
        one.done.set_exception(error)


def _are_independent(batch: Sequence[_Waiting]) -> bool:
    return len({one.write.conversation.id for one in batch}) == len(batch)


def _shape(write: Append) -> _Shape:
    return _Shape(
        creates=write.creates,
        names=write.creates and names_itself(write.conversation),
        branches=_branches(write),
        message_count=min(len(write.messages), 2),
        fenced=write.fence is not None,
        releases=write.releases and write.fence is not None,
        has_versions=bool(write.versions),
    )


def _arguments(write: Append, now: datetime) -> tuple[Any, ...]:
    after = write.conversation
    if write.creates:
        head = conversation_values(after, after.created_at or now, now)
    else:
        head = advance_values(after, write.after_seq, total_before(write), now)
    shared = ([ancestor for ancestor, _ in after.lineage], *after.lineage[-1]) if _branches(write) else ()
    lease = () if write.fence is None else place_of(write.fence)
    return (*head, *shared, *_message_arguments(write.messages, now), *_version_arguments(write.versions), *lease)


def _branches(write: Append) -> bool:
    return write.creates and bool(write.conversation.lineage)


def _version_arguments(versions: Sequence[ClientVersion]) -> Sequence[Any]:
    """An array for each column, or nothing."""
    if not versions:
        return ()
    return [list(column) for column in zip(*map(version_values, versions), strict=True)]


def _message_arguments(messages: Sequence[LogMessage], now: datetime) -> Sequence[Any]:
    """Nothing, the columns of one message, or an array for each column."""
    if not messages:
        return ()
    rows = [message_values(entry, entry.created_at or now) for entry in messages]
    return rows[0] if len(rows) == 1 else [list(column) for column in zip(*rows, strict=True)]
