"""A store whose operations are counted and timed, around any other one."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final, cast

from app.errors import StoreUnavailable
from app.observability import families
from app.observability.metrics import Metrics
from app.store.base import Store

UNTIMED: Final = ("open", "close", "scrub")
"""Of the process, not of requests."""


def measured(store: Store, metrics: Metrics) -> Store:
    """The same store; each of its operations tells how long it took, and whether it found the store away."""
    if not metrics.is_on:
        return store
    operations = {
        name: getattr(store, name) for name, declared in vars(Store).items() if inspect.iscoroutinefunction(declared)
    }
    timed = {name: run if name in UNTIMED else _timed(name, run, metrics) for name, run in operations.items()}
    return cast(Store, SimpleNamespace(searches_all=store.searches_all, **timed))


def _timed(name: str, run: Callable[..., Awaitable[Any]], metrics: Metrics) -> Callable[..., Awaitable[Any]]:
    now, queue = metrics.now, metrics.store_queue
    seconds = None

    async def operation(*args: Any, **kwargs: Any) -> Any:
        nonlocal seconds
        if seconds is None:
            seconds = metrics.observed(families.STORE_SECONDS, name)
        queue.add()
        began = now()
        try:
            return await run(*args, **kwargs)
        except StoreUnavailable:
            metrics.counted(families.STORE_ERRORS, name).add()
            raise
        finally:
            seconds.add(now() - began)
            queue.add(-1)

    return operation
