"""Wraps a store and measures its operations: count, duration, errors. Notices that the store can be read but not
written, as with a full disk: requests would go on with answers that are not stored, and nobody would know why.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final, TypeVar, cast

from prometheus_client import Histogram

from app.errors import StoreUnavailable
from app.observability import metric_families
from app.observability.metrics import Metrics
from app.store.contract.conversations import LogAppend, PendingAppend
from app.store.contract.leases import Lease
from app.store.contract.store import Store, StoreInfo

Result = TypeVar("Result")

log = logging.getLogger(__name__)

UNTIMED: Final = ("open", "close", "scrub_deleted_data")
"""Operations of the process, not of requests."""
UNREADY_SECONDS: Final = 60.0
"""How long writes must fail until the process counts as not ready: a failover of a database takes less."""
WRITING_OPERATIONS: Final = frozenset(
    {"append", "claim_lease", "add_summary", "save_completion", "claim_idempotency_key", "add_usage", "add_anchors"}
)
"""The operations that tell whether the store can be written."""
PROBE_ROOT: Final = "write-probe"
PROBE_SECONDS: Final = 1.0


class WriteHealth:
    """Whether writes succeed. Each change is logged once.

    Args:
        clock: monotonic seconds.

    Attributes:
        failing_since: when the first write of those in a row failed, by the clock; None: writes succeed.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.failing_since: float | None = None
        self._reason = ""

    def record_success(self) -> None:
        if self.failing_since is not None:
            self.failing_since = None
            log.warning("the database can be written again")

    def record_failure(self, error: StoreUnavailable) -> None:
        self._reason = error.message
        if self.failing_since is None:
            self.failing_since = self._clock()
            log.warning("the database cannot be written, so answers are not stored: %s", error.message)

    def raise_if_failing_for_long(self) -> None:
        """Raises the failure if writes fail for `UNREADY_SECONDS` or longer.

        Raises:
            StoreUnavailable: the last failure.
        """
        if self.failing_since is not None and self._clock() - self.failing_since >= UNREADY_SECONDS:
            raise StoreUnavailable(f"The database cannot be written: {self._reason}")


def measure_store(store: Store, metrics: Metrics, write_health: WriteHealth) -> Store:
    """Returns the store with each operation timed, with a count of `StoreUnavailable` for each operation, and with its
    writes watched."""
    metrics.watch_gauge(metric_families.STORE_UNWRITABLE, lambda: int(write_health.failing_since is not None))
    names = [name for name, _ in inspect.getmembers(Store, inspect.iscoroutinefunction)]
    operations = {
        name: getattr(store, name) if name in UNTIMED else _time_operation(store, name, metrics, write_health)
        for name in names
    }
    operations["check"] = functools.partial(_check, store, operations["check"], operations["claim_lease"], write_health)
    # `append` is no coroutine function (it may return a future), so the loop above does not see it.
    operations["append"] = _time_append(store, metrics, write_health)
    return cast(Store, SimpleNamespace(is_fully_searchable=store.is_fully_searchable, **operations))


async def _check(
    store: Store,
    check: Callable[[], Awaitable[StoreInfo]],
    claim_lease: Callable[..., Awaitable[Lease | None]],
    write_health: WriteHealth,
) -> StoreInfo:
    """As `Store.check`, and fails while writes fail for long. Then it also writes: a process that is not ready gets no
    requests whose writes could show that the store can be written again."""
    info = await check()
    if write_health.failing_since is not None:
        with contextlib.suppress(StoreUnavailable):
            lease = await claim_lease(root=PROBE_ROOT, key=PROBE_ROOT, holder=PROBE_ROOT, seconds=PROBE_SECONDS)
            if lease is not None:
                await store.release_lease(lease)
    write_health.raise_if_failing_for_long()
    return info


class _OperationMetrics:
    """The metric series of one operation. They are created when the operation first runs."""

    __slots__ = ("_errors", "_metrics", "_name", "_seconds", "_write_health", "now")

    def __init__(self, name: str, metrics: Metrics, write_health: WriteHealth | None) -> None:
        self._write_health = write_health
        self._name = name
        self._metrics = metrics
        self._seconds: Histogram | None = None
        self.now = metrics.now

    def start(self) -> float:
        """Counts a started operation. Returns its start time."""
        if self._seconds is None:
            self._seconds = self._metrics.histogram_series(metric_families.STORE_SECONDS, self._name)
            # Created at 0, so that a rate over the counter sees the first error as a change.
            self._errors = self._metrics.counter_series(metric_families.STORE_ERRORS, self._name)
        self._metrics.store_queue.inc()
        return self.now()

    def finish(self, started_at: float, error: BaseException | None = None) -> None:
        """Records the end of an operation that began at `started_at`."""
        assert self._seconds is not None
        self._seconds.observe(self.now() - started_at)
        self._metrics.store_queue.dec()
        if isinstance(error, StoreUnavailable):
            self._errors.inc()
            if self._write_health is not None:
                self._write_health.record_failure(error)
        elif error is None and self._write_health is not None and self._write_health.failing_since is not None:
            self._write_health.record_success()

    async def run_timed(self, work: Awaitable[Result]) -> Result:
        """Runs work that has not begun yet, and measures it."""
        started_at, failed = self.start(), None
        try:
            return await work
        except StoreUnavailable as error:
            failed = error
            raise
        finally:
            self.finish(started_at, failed)


def _time_operation(
    store: Store, name: str, metrics: Metrics, write_health: WriteHealth
) -> Callable[..., Awaitable[Any]]:
    watched = write_health if name in WRITING_OPERATIONS else None
    operation = _OperationMetrics(name, metrics, watched)
    return lambda *args, **kwargs: operation.run_timed(getattr(store, name)(*args, **kwargs))


def _time_append(store: Store, metrics: Metrics, write_health: WriteHealth) -> Callable[[LogAppend], PendingAppend]:
    operation = _OperationMetrics("append", metrics, write_health)

    def note(began: float, work: asyncio.Future[None]) -> None:
        operation.finish(began, None if work.cancelled() else work.exception())

    def append(write: LogAppend) -> PendingAppend:
        work = store.append(write)
        if not isinstance(work, asyncio.Future):
            return operation.run_timed(work)
        # The write has begun, and continues if its waiter is cancelled: so the measurement hangs on the future.
        work.add_done_callback(functools.partial(note, operation.start()))
        return work

    return append
