"""Leases as a room full of coroutines uses them: wait in line, hold, renew, give back.

Within a process a lock per key stands in front, so local waiters do not poll; between processes waiters poll with
jitter. No database connection is held while a lease is held or waited for, and nothing needs LISTEN: it works behind
a pooler in transaction mode.
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
from app.observability.metric_families import LEASE_WAIT_SECONDS
from app.observability.metrics import SILENT, Metrics
from app.store.contract import RANGE_LEASES, Lease, Store

Result = TypeVar("Result")

SWEEP: Final = ("retention", "sweep")
"""Root and key that whoever erases old conversations holds: one process at a time."""
POLL_SECONDS: Final = (0.02, 0.1)
"""Bounds of the pause between two attempts to claim a lease that another process holds."""


@dataclass(slots=True)
class _Queue:
    """Who in this process wants one key."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    members: int = 0


class LeaseKeeper:
    """Claims leases for one process, and renews all of them in one task until they are given back."""

    def __init__(
        self,
        store: Store,
        holder: str,
        *,
        lease_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = randomness.random,
        metrics: Metrics = SILENT,
    ) -> None:
        """
        Args:
            holder: names this process among all that share the store.
            lease_seconds: how long a lease outlives its process; renewed three times as often.
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
        self._queues: dict[tuple[str, str], _Queue] = {}
        self._held: set[Lease] = set()
        self._renewal: asyncio.Task[None] | None = None
        self._unfinished: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        """Begin renewing."""
        self._renewal = asyncio.create_task(self._renew_all())  # noqa: TID251 - ended by aclose

    async def aclose(self) -> None:
        """Stop renewing and give everything back."""
        if self._renewal is not None:
            self._renewal.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewal
        for lease in list(self._held):
            self._give_back(lease)
        while self._unfinished:
            await asyncio.wait(self._unfinished)

    @asynccontextmanager
    async def hold(self, root: str, key: str, wait_seconds: float) -> AsyncIterator[Lease]:
        """Hold the lease of `(root, key)` for the length of a block.

        The lease may be lost while it is held, if the store cannot be reached for `lease_seconds`: writes must carry
        it as their fence. See `is_held`.

        Raises:
            ConversationBusy: others held it for `wait_seconds`.
            StoreUnavailable: it could not be claimed.
        """
        began = self._clock()
        async with self._turn(root, key, began, wait_seconds):
            lease = await self._claim(root, key, began, wait_seconds)
            self._waited(key, "held", began)
            self._held.add(lease)
            try:
                yield lease
            finally:
                if lease in self._held:
                    await asyncio.shield(self._give_back(lease))

    def is_held(self, lease: Lease) -> bool:
        """Whether the lease is still ours, as far as this process knows: False once it was lost or released."""
        return lease in self._held

    def released(self, lease: Lease) -> None:
        """A write has released the lease along with it (`Append.releases`): there is nothing left to give back."""
        self._held.discard(lease)

    @asynccontextmanager
    async def _turn(self, root: str, key: str, began: float, wait_seconds: float) -> AsyncIterator[None]:
        """Wait for the others in this process."""
        queue = self._queues.setdefault((root, key), _Queue())
        queue.members += 1
        try:
            try:
                async with asyncio.timeout(wait_seconds):
                    await queue.lock.acquire()
            except TimeoutError as error:
                raise self._busy(key, began) from error
            try:
                yield
            finally:
                queue.lock.release()
        finally:
            queue.members -= 1
            if not queue.members:
                del self._queues[root, key]

    async def _claim(self, root: str, key: str, began: float, wait_seconds: float) -> Lease:
        """Wait for other processes."""
        while True:
            lease = await self._claim_once(root, key)
            if lease is not None:
                return lease
            remaining = began + wait_seconds - self._clock()
            if remaining <= 0:
                raise self._busy(key, began)
            shortest, longest = POLL_SECONDS
            await self._sleep(min(remaining, shortest + (longest - shortest) * self._random()))

    async def _claim_once(self, root: str, key: str) -> Lease | None:
        claim = self._own(self._store.claim_lease(root=root, key=key, holder=self._holder, seconds=self._lease_seconds))
        try:
            return await asyncio.shield(claim)
        except asyncio.CancelledError:
            # The claim may succeed although nobody waits for it any more.
            self._own(self._undo(claim))
            raise

    def _busy(self, key: str, began: float) -> ConversationBusy:
        self._waited(key, "busy", began)
        return _busy()

    def _waited(self, key: str, outcome: str, began: float) -> None:
        if self._metrics.is_on:
            of = "range" if key.startswith(RANGE_LEASES) else "other" if key == SWEEP[1] else "conversation"
            self._metrics.observed(LEASE_WAIT_SECONDS, of, outcome).add(self._clock() - began)

    async def _undo(self, claim: asyncio.Task[Lease | None]) -> None:
        with contextlib.suppress(StoreUnavailable):
            lease = await claim
            if lease is not None:
                await self._store.release_lease(lease)

    def _give_back(self, lease: Lease) -> asyncio.Task[None]:
        self._held.discard(lease)
        return self._own(self._release(lease))

    async def _release(self, lease: Lease) -> None:
        # While the store is away the lease cannot be given back; it ends by itself.
        with contextlib.suppress(StoreUnavailable):
            await self._store.release_lease(lease)

    def _own(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Work that goes on when whoever wanted it is cancelled; `aclose` waits for it."""
        task = asyncio.create_task(work)  # noqa: TID251 - awaited by aclose
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        return task

    async def _renew_all(self) -> None:
        """Renew what is held, and remember what is lost."""
        while True:
            await self._sleep(self._lease_seconds / 3)
            held = list(self._held)
            if not held:
                continue
            # An unreachable store is tried again in time for at least one more renewal; after that the leases are
            # anybody's, and the fence of each write says so.
            with contextlib.suppress(StoreUnavailable):
                self._held.difference_update(await self._store.renew_leases(held, self._lease_seconds))


def _busy() -> ConversationBusy:
    return ConversationBusy(
        "Another request is using this conversation.",
        hint="Send requests of one conversation one after the other, or retry.",
        retry_after_seconds=1.0,
    )
