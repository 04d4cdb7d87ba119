"""Leases for coroutines: claim with waiting, hold, renew, release.

Inside a process an asyncio lock for each key stands before the lease, so local waiters do not poll. Processes poll the
store with jitter. No database connection is in use while a lease is held or waited for. LISTEN is not needed, so leases
work behind a pooler in transaction mode.
"""

from __future__ import annotations

import asyncio
import contextlib
import random as randomness
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from app.errors import ConversationBusy, StoreUnavailable
from app.observability.background_loops import BackgroundLoop
from app.observability.metric_families import LEASE_WAIT_SECONDS
from app.observability.metrics import NO_METRICS, Metrics
from app.observability.request_record import current_request_record
from app.store.contract.leases import SUMMARY_LEASE_PREFIXES, Lease, LeaseStore

Result = TypeVar("Result")

RETENTION_LEASE: Final = ("retention", "sweep")
"""Root and key of the lease for erasing old conversations: one process sweeps at a time."""
POLL_SECONDS: Final = (0.02, 0.1)
"""Shortest and longest pause between two attempts to claim a lease that another process holds."""


@dataclass(slots=True)
class _LocalLock:
    """The lock of one key inside this process; `user_count` counts its holder and waiters."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    user_count: int = 0


class LeaseKeeper:
    """Claims leases for one process, and renews all of them in one task until they are released."""

    def __init__(
        self,
        store: LeaseStore,
        holder: str,
        *,
        lease_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = randomness.random,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        """
        Args:
            holder: names this process among all that share the store.
            lease_seconds: a lease ends this long after its last renewal; it is renewed three times as often.
            clock: monotonic seconds.
            random: uniform in [0, 1).
        """
        self._store = store
        self._holder = holder
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._metrics = metrics
        self._local_locks: dict[tuple[str, str], _LocalLock] = {}
        self._held_leases: set[Lease] = set()
        self.renewals = BackgroundLoop(
            "leases",
            self._renew_held_leases,
            lambda: lease_seconds / 3,
            metrics=metrics,
            sleep=sleep,
            # Later, the leases would have expired.
            max_retry_seconds=0.0,
        )
        self._background_tasks: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        """Starts the renewal task."""
        self.renewals.start()

    async def aclose(self) -> None:
        """Stops renewing and releases all leases."""
        await self.renewals.aclose()
        for lease in list(self._held_leases):
            self._start_release(lease)
        while self._background_tasks:
            await asyncio.wait(self._background_tasks)

    @asynccontextmanager
    async def hold_lease(self, root: str, key: str, wait_seconds: float) -> AsyncIterator[Lease]:
        """Holds the lease of `(root, key)` for the length of a block.

        The lease can be lost inside the block, if the store cannot be reached for `lease_seconds`. Writes must
        therefore carry the lease as their fence. See `is_held`.

        Args:
            wait_seconds: the longest wait for other holders, in this process and in others together.

        Raises:
            ConversationBusy: other holders had the lease for `wait_seconds`.
            StoreUnavailable: the lease could not be claimed.
        """
        started_at = self._clock()
        async with self._lock_locally(root, key, started_at, wait_seconds):
            lease = await self._claim_with_polling(root, key, started_at, wait_seconds)
            self._record_wait(key, "held", started_at)
            self._held_leases.add(lease)
            try:
                yield lease
            finally:
                # Not held any more: lost, or released together with a write. Shielded: a client that hangs up must not
                # keep the next request waiting until the lease expires.
                if lease in self._held_leases:
                    await asyncio.shield(self._start_release(lease))

    def is_held(self, lease: Lease) -> bool:
        """Whether this process still holds the lease, as far as it knows: False once it was lost or released."""
        return lease in self._held_leases

    def forget_released_lease(self, lease: Lease) -> None:
        """Forgets a lease that a write has released (`LogAppend.releases_lease`), so that it is not released again."""
        self._held_leases.discard(lease)

    @asynccontextmanager
    async def _lock_locally(self, root: str, key: str, started_at: float, wait_seconds: float) -> AsyncIterator[None]:
        """Holds the process's lock of the key; waits for other coroutines of this process."""
        queue = self._local_locks.setdefault((root, key), _LocalLock())
        queue.user_count += 1
        try:
            try:
                async with asyncio.timeout(wait_seconds):
                    await queue.lock.acquire()
            except TimeoutError as error:
                raise self._record_busy_error(key, started_at) from error
            try:
                yield
            finally:
                queue.lock.release()
        finally:
            # The last user deletes the lock: a long-running process sees more conversations than it can keep locks for.
            queue.user_count -= 1
            if not queue.user_count:
                del self._local_locks[root, key]

    async def _claim_with_polling(self, root: str, key: str, started_at: float, wait_seconds: float) -> Lease:
        """Claims the lease; waits for other processes."""
        while True:
            lease = await self._claim_once(root, key)
            if lease is not None:
                return lease
            remaining = started_at + wait_seconds - self._clock()
            if remaining <= 0:
                raise self._record_busy_error(key, started_at)
            shortest, longest = POLL_SECONDS
            await self._sleep(min(remaining, shortest + (longest - shortest) * self._random()))

    async def _claim_once(self, root: str, key: str) -> Lease | None:
        # The claim runs in a task of its own: a cancelled statement may have claimed the lease without anybody knowing.
        claim = self._start_background_task(
            self._store.claim_lease(root=root, key=key, holder=self._holder, seconds=self._lease_seconds)
        )
        try:
            return await asyncio.shield(claim)
        except asyncio.CancelledError:
            # The claim may still succeed after the cancellation: then no other code would release the lease.
            self._start_background_task(self._release_late_claim(claim))
            raise

    def _record_busy_error(self, key: str, started_at: float) -> ConversationBusy:
        self._record_wait(key, "busy", started_at)
        return _build_conversation_busy_error()

    def _record_wait(self, key: str, outcome: str, started_at: float) -> None:
        record = current_request_record()
        if self._metrics.is_on or record is not None:
            lease_kind = (
                "range"
                if key.startswith(SUMMARY_LEASE_PREFIXES)
                else "other"
                if key == RETENTION_LEASE[1]
                else "conversation"
            )
            if record is not None:
                record.add_step("lease", started_at, {"of": lease_kind, "outcome": outcome})
            self._metrics.histogram_series(LEASE_WAIT_SECONDS, lease_kind, outcome).observe(self._clock() - started_at)

    async def _release_late_claim(self, claim: asyncio.Task[Lease | None]) -> None:
        with contextlib.suppress(StoreUnavailable):
            lease = await claim
            if lease is not None:
                await self._store.release_lease(lease)

    def _start_release(self, lease: Lease) -> asyncio.Task[None]:
        self._held_leases.discard(lease)
        return self._start_background_task(self._release_lease(lease))

    async def _release_lease(self, lease: Lease) -> None:
        # If the store is unavailable, the lease cannot be released; it expires.
        with contextlib.suppress(StoreUnavailable):
            await self._store.release_lease(lease)

    def _start_background_task(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Starts a task that continues when its caller is cancelled; `aclose` waits for it."""
        task = asyncio.create_task(work)  # noqa: TID251 - awaited by aclose
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)
        return task

    async def _renew_held_leases(self) -> None:
        """Renews the held leases, and forgets those that are lost. Runs three times per `lease_seconds`.

        If it fails, the next run tries again before the leases expire. After that, other holders may claim them, and
        the store refuses writes with these fences.
        """
        if leases := list(self._held_leases):
            self._held_leases.difference_update(await self._store.renew_leases(leases, self._lease_seconds))


def _build_conversation_busy_error() -> ConversationBusy:
    return ConversationBusy(
        "Another request is using this conversation.",
        hint="Send requests of one conversation one after the other, or retry.",
        retry_after_seconds=1.0,
    )
