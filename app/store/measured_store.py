"""A store whose operations are counted and timed, around any other one."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final, TypeVar, cast

from app.errors import StoreUnavailable
from app.observability import metric_families
from app.observability.metrics import Metrics, Observed
from app.store.contract import Append, Store, UnderWay

Result = TypeVar("Result")

UNTIMED: Final = ("open", "close", "scrub")
"""Of the process, not of requests."""


def measured(store: Store, metrics: Metrics) -> Store:
    """The same store; each of its operations tells how long it took, and whether it found the store away."""
    if not metrics.is_on:
        return store
    names = [name for name, declared in vars(Store).items() if inspect.iscoroutinefunction(declared)]
    operations = {name: getattr(store, name) if name in UNTIMED else _timed(store, name, metrics) for name in names}
    operations["append"] = _timed_append(store, metrics)
    return cast(Store, SimpleNamespace(searches_all=store.searches_all, **operations))


class _Operation:
    """The numbers of one operation; there from the first time on that it runs."""

    __slots__ = ("_errors", "_metrics", "_name", "_seconds", "now")

    def __init__(self, name: str, metrics: Metrics) -> None:
        self._name = name
        self._metrics = metrics
        self._seconds: Observed | None = None
        self.now = metrics.now

    def begins(self) -> float:
        """One more runs, from the returned time on."""
        if self._seconds is None:
            self._seconds = self._metrics.observed(metric_families.STORE_SECONDS, self._name)
            # Told as 0 until one comes, so that the first is a change.
            self._errors = self._metrics.counted(metric_families.STORE_ERRORS, self._name)
        self._metrics.store_queue.add()
        return self.now()

    def ends(self, began: float, error: BaseException | None = None) -> None:
        """One that runs since then is over."""
        assert self._seconds is not None
        self._seconds.add(self.now() - began)
        self._metrics.store_queue.add(-1)
        if isinstance(error, StoreUnavailable):
            self._errors.add()

    async def waited(self, work: Awaitable[Result]) -> Result:
        """What work comes to that has not begun yet."""
        began, failed = self.begins(), None
        try:
            return await work
        except StoreUnavailable as error:
            failed = error
            raise
        finally:
            self.ends(began, failed)


def _timed(store: Store, name: str, metrics: Metrics) -> Callable[..., Awaitable[Any]]:
    operation = _Operation(name, metrics)
    return lambda *args, **kwargs: operation.waited(getattr(store, name)(*args, **kwargs))


def _timed_append(store: Store, metrics: Metrics) -> Callable[[Append], UnderWay]:
    operation = _Operation("append", metrics)

    def note(began: float, work: asyncio.Future[None]) -> None:
        operation.ends(began, None if work.cancelled() else work.exception())

    def append(write: Append) -> UnderWay:
        work = store.append(write)
        if not isinstance(work, asyncio.Future):
            return operation.waited(work)
        work.add_done_callback(functools.partial(note, operation.begins()))
        return work

    return append
