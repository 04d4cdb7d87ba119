"""Appends to conversations in PostgreSQL: one statement for each, and one transaction for those of one moment.

Appends that the event loop submits within one iteration, or while `MAX_RUNNING_BATCHES` transactions are running, are
sent as one batch: one round trip and one commit for many turns (group commit). If one append of a batch fails, or has
to wait for a lock, the batch is rolled back, and each append runs by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple

import asyncpg
from msgspec.structs import astuple, replace

from app.conversation.conversation_types import AnswerAnchor, ClientVersion, IssuedAnswer, LogMessage
from app.errors import StoreUnavailable, drop_tracebacks
from app.store.contract.conversations import LogAppend, WriteConflict
from app.store.contract.leases import LeaseLost
from app.store.postgres.pool import PostgresPool
from app.store.postgres.statements import SELECT_CONVERSATION, AppendShape, build_append_statement
from app.store.redaction_effects import adapt_append_to_redactions, drop_redacted_versions
from app.store.sql.fingerprints import build_fingerprint_rows
from app.store.sql.rows import (
    claims_external_id,
    client_version_values,
    conversation_values,
    decode_conversation,
    head_update_values,
    lease_values,
    message_values,
)

MAX_RUNNING_BATCHES: Final = 2
"""Transactions of batches that run at a time. Further appends are collected meanwhile."""
MAX_BATCH_APPENDS: Final = 64


class _QueuedAppend(NamedTuple):
    write: LogAppend
    now: datetime
    done_future: asyncio.Future[None]


class AppendQueue:
    """Queues appends and writes them in batches."""

    def __init__(self, connections: PostgresPool) -> None:
        self._connections = connections
        self._submitted: list[_QueuedAppend] = []
        self._batches: set[asyncio.Task[bool]] = set()
        self._single_writes: set[asyncio.Task[bool]] = set()
        """Appends that run by themselves and may wait for locks. Other appends do not wait for them."""

    def append(self, write: LogAppend, now: datetime) -> asyncio.Future[None]:
        """As `ConversationStore.append`. The write continues if its caller is cancelled."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._submitted.append(_QueuedAppend(write, now, done))
        if len(self._submitted) == 1 and len(self._batches) < MAX_RUNNING_BATCHES:
            # Sent after this iteration of the loop, so that other appends of the iteration join the batch.
            loop.call_soon(self._send_batches)
        return done

    async def close(self) -> None:
        """Finishes all queued and running appends."""
        while self._submitted or self._batches or self._single_writes:
            self._send_batches()
            if running := self._batches | self._single_writes:
                await asyncio.wait(running)

    def _send_batches(self) -> None:
        """Sends the queued appends, grouped by their statement."""
        while self._submitted and len(self._batches) < MAX_RUNNING_BATCHES:
            taken = self._submitted[:MAX_BATCH_APPENDS]
            del self._submitted[:MAX_BATCH_APPENDS]
            try:
                batches = _group_by_shape(taken)
            except Exception:  # noqa: BLE001 - the single write of the append at fault raises it again
                self._start_single_writes(taken)
                continue
            for shape, batch in batches.items():
                # Client versions are compared with redactions, and a branch with its ancestors: such an append may need
                # several statements. Two appends to one conversation depend on each other.
                if shape.branches or shape.has_versions or not _have_distinct_conversations(batch):
                    self._start_single_writes(batch)
                else:
                    self._start_task(self._batches, self._write_batch(shape, batch), batch)

    def _start_single_writes(self, batch: Sequence[_QueuedAppend]) -> None:
        for one in batch:
            self._start_task(self._single_writes, self._append_with_retry(one.write, one.now), [one])

    def _start_task(
        self, tasks: set[asyncio.Task[bool]], work: Coroutine[Any, Any, bool], batch: Sequence[_QueuedAppend]
    ) -> None:
        task = asyncio.create_task(work)  # noqa: TID251 - awaited by close
        tasks.add(task)
        task.add_done_callback(partial(self._finish_task, tasks, batch))

    def _finish_task(
        self, tasks: set[asyncio.Task[bool]], batch: Sequence[_QueuedAppend], task: asyncio.Task[bool]
    ) -> None:
        """Resolves the futures of a task's appends, however the task has ended: none of them may wait for ever."""
        tasks.discard(task)
        error = StoreUnavailable("The write was cancelled.") if task.cancelled() else task.exception()
        if error is None and not task.result():
            self._start_single_writes(batch)
        else:
            for one in batch:
                _resolve_append_future(one, error)
        self._send_batches()

    async def _write_batch(self, shape: AppendShape, batch: Sequence[_QueuedAppend]) -> bool:
        """Writes appends in one transaction. Returns False if nothing was written, and each is to run by itself.

        Raises:
            StoreUnavailable: nothing was written.
        """
        try:
            # The same order in all processes: two that append to the same conversations then never wait for each other
            # in a circle. So all fingerprints come last, sorted over the batch.
            ordered = sorted(batch, key=lambda one: one.write.conversation.id)
            issued: list[list[IssuedAnswer]] = [[] for _ in ordered]
            issued[-1] = [one.write.issued for one in ordered if one.write.issued is not None]
            rows = [
                _append_statement_arguments(one.write, one.now, answers)
                for one, answers in zip(ordered, issued, strict=True)
            ]
            await self._connections.execute_all(build_append_statement(shape, in_batch=True), rows)
        except StoreUnavailable as error:
            # Another transaction holds a row of the batch. Only the append to that row has to wait for it.
            if isinstance(error.__cause__, asyncpg.LockNotAvailableError | asyncpg.DeadlockDetectedError):
                return False
            raise
        # One append of the batch did not move its head, has an id that exists already, or a value that cannot be
        # written. The single writes find out which.
        except Exception:  # noqa: BLE001 - the single write of the append at fault raises it again
            return False
        return True

    async def _append_with_retry(self, write: LogAppend, now: datetime) -> bool:
        """Appends; the result is always True.

        Raises:
            WriteConflict, LeaseLost, StoreUnavailable: as `ConversationStore.append`.
        """
        if write.creates_conversation and write.versions:
            write = replace(write, versions=drop_redacted_versions(write, write.conversation))
        # The usual case is one statement. Client versions must first be compared with the stored redactions.
        may_be_stale = bool(write.versions) and not write.creates_conversation
        if not may_be_stale and await self._try_append(write, now):
            return True
        after = write.conversation
        rows = (
            []
            if write.creates_conversation
            else await self._connections.fetch(SELECT_CONVERSATION, after.root, after.id, after.tenant)
        )
        if not rows:
            raise WriteConflict
        stored = decode_conversation(rows[0])
        # Rebasing helps only if the head is the expected one, and a redaction changed its total or may concern a
        # version.
        has_moved = stored.head_seq != write.after_seq
        if has_moved or not (may_be_stale or stored.head_tokens_total != write.tokens_before):
            raise WriteConflict
        if not await self._try_append(adapt_append_to_redactions(write, stored), now):
            raise WriteConflict
        return True

    async def _try_append(self, write: LogAppend, now: datetime) -> bool:
        """Runs the append's statement. Returns whether the stored head and running total were those that the write
        expects.

        Raises:
            WriteConflict: the conversation or the client's id exists already.
            LeaseLost: the lease of the fence is lost.
        """
        sql = build_append_statement(_derive_shape(write))
        try:
            issued = [] if write.issued is None else [write.issued]
            rows = await self._connections.fetch(sql, *_append_statement_arguments(write, now, issued))
        except asyncpg.UniqueViolationError as error:
            raise WriteConflict from error
        moved, held = rows[0]
        if not held:
            raise LeaseLost
        return bool(moved)


def _resolve_append_future(queued: _QueuedAppend, error: BaseException | None) -> None:
    # Cancelled by its waiter; the append is written all the same.
    if queued.done_future.done():
        return
    if error is None:
        queued.done_future.set_result(None)
    else:
        drop_tracebacks(error)
        queued.done_future.set_exception(error)


def _group_by_shape(batch: Sequence[_QueuedAppend]) -> dict[AppendShape, list[_QueuedAppend]]:
    groups: dict[AppendShape, list[_QueuedAppend]] = {}
    for one in batch:
        groups.setdefault(_derive_shape(one.write), []).append(one)
    return groups


def _have_distinct_conversations(batch: Sequence[_QueuedAppend]) -> bool:
    return len({one.write.conversation.id for one in batch}) == len(batch)


def _derive_shape(write: LogAppend) -> AppendShape:
    return AppendShape(
        creates=write.creates_conversation,
        names=write.creates_conversation and claims_external_id(write.conversation),
        branches=_creates_branch(write),
        # 2 stands for any number: the statement then takes arrays.
        message_count=min(len(write.messages), 2),
        fenced=write.fence is not None,
        releases=write.releases_lease and write.fence is not None,
        has_versions=bool(write.versions),
        has_anchors=bool(write.anchors),
        issues=write.issued is not None,
    )


def _append_statement_arguments(write: LogAppend, now: datetime, issued: Sequence[IssuedAnswer]) -> tuple[Any, ...]:
    """Returns the arguments of `build_append_statement`.

    Args:
        issued: the answers whose fingerprints this statement writes; also those of other appends of the batch.
    """
    after = write.conversation
    if write.creates_conversation:
        head = conversation_values(after, after.created_at or now, now)
    else:
        head = head_update_values(write, now)
    shared = ([ancestor for ancestor, _ in after.lineage], *after.lineage[-1]) if _creates_branch(write) else ()
    lease = () if write.fence is None else lease_values(write.fence)
    return (
        *head,
        *shared,
        *_message_arguments(write.messages, now),
        *_client_version_arguments(write.versions),
        *(build_anchor_arguments(write.anchors, now) if write.anchors else ()),
        *(build_issue_arguments(issued) if write.issued is not None else ()),
        *lease,
    )


def build_anchor_arguments(anchors: Sequence[AnswerAnchor], now: datetime) -> list[Any]:
    """Returns an array for each column of anchors, and the time."""
    return [*_build_columns(list(map(astuple, anchors))), now]


def build_issue_arguments(issued: Sequence[IssuedAnswer]) -> list[list[Any]]:
    """Returns an array for each value of the rows of fingerprints."""
    return _build_columns(build_fingerprint_rows(issued)) or [[]] * 5


def _build_columns(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _creates_branch(write: LogAppend) -> bool:
    return write.creates_conversation and bool(write.conversation.lineage)


def _client_version_arguments(versions: Sequence[ClientVersion]) -> Sequence[Any]:
    """Returns an array for each column, or nothing without versions."""
    if not versions:
        return ()
    return _build_columns(list(map(client_version_values, versions)))


def _message_arguments(messages: Sequence[LogMessage], now: datetime) -> Sequence[Any]:
    """Returns nothing, the columns of one message, or an array for each column of several."""
    if not messages:
        return ()
    rows = [message_values(entry, entry.created_at or now) for entry in messages]
    return rows[0] if len(rows) == 1 else _build_columns(rows)
