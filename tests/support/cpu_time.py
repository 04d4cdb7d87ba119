"""Processor time: a busy machine lengthens it far less than time by the clock. Compared, it needs no bound at all."""

from __future__ import annotations

import time
from collections.abc import Callable

TRIES = 3
GROWTH = 4


def least_cpu_seconds(work: Callable[[], object], tries: int = TRIES) -> float:
    """What some work takes at least, of this thread."""
    return min(_cpu_seconds(work) for _ in range(tries))


def grows_linearly(work: Callable[[int], Callable[[], object]], size: int) -> bool:
    """Whether work of a size takes nothing like 16 times as long as work of a quarter of it."""
    less, more = (least_cpu_seconds(work(one)) for one in (size // GROWTH, size))
    return more < 2.5 * GROWTH * less


def _cpu_seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began
