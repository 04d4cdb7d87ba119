"""A store whose operations are counted and timed, around any other one."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final, cast

from app.errors import StoreUnavailable
from app.observability import families
from app.observability.metrics import Metrics, Observed
from app.store.base import Store

UNTIMED: Final = ("open", "close", "scrub")
"""Of the process, not of requests."""


def measured(store: Store, metrics: Metrics) -> Store:
    """The same store; each of its operations tells how long it took, and whether it found the store away."""
    if not metrics.is_on:
        return store
    names = [name for name, declared in vars(Store).items() if inspect.iscoroutinefunction(declared)]
    operations = {name: getattr(store, name) if name in UNTIMED else _timed(store, name, metrics) for name in names}
    return cast(Store, SimpleNamespace(searches_all=store.searches_all, **operations))


def _timed(store: Store, name: str, metrics: Metrics) -> Callable[..., Awaitable[Any]]:
    now, queue = metrics.now, metrics.store_queue
    series: list[Observed] = []

    async def operation(*args: Any, **kwargs: Any) -> Any:
        if not series:
            series.append(metrics.observed(families.STORE_SECONDS, name))
            metrics.counted(families.STORE_ERRORS, name)  # told as 0 until one comes, so that the first is a change
        queue.add()
        began = now()
        try:
            return await getattr(store, name)(*args, **kwargs)
        except StoreUnavailable:
            metrics.counted(families.STORE_ERRORS, name).add()
            raise
        finally:
            series[0].add(now() - began)
            queue.add(-1)

    return operation
