"""What a process takes from its surroundings: its store, clocks, intervals. Tests give others than those that serve."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from app.api.answer_endpoint import SILENCE_SECONDS
from app.context.count.token_counter import TokenCounter
from app.pipeline.pipeline import HEARTBEAT_SECONDS
from app.pipeline.turn.token_counting import MessageCounter
from app.store.contract.store import Store
from app.store.store_factory import create_store, read_utc_now


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The defaults are what a process that serves uses.

    Attributes:
        create_store: takes what `store_factory.create_store` takes.
        create_message_counter: takes a function that finds a token counter by the name of its encoding.
        now: the time of day, in UTC.
        heartbeat_seconds: the longest time between two events of a stream while a compaction runs.
        silence_seconds: the longest time between two frames of a stream.
        collect_garbage: called once when a process has started, before `freeze_garbage`.
        freeze_garbage: takes what is in memory out of garbage collection.
    """

    create_store: Callable[..., Store] = create_store
    create_message_counter: Callable[[Callable[[str], TokenCounter]], MessageCounter] = MessageCounter
    now: Callable[[], datetime] = read_utc_now
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    silence_seconds: float = SILENCE_SECONDS
    collect_garbage: Callable[[], object] = gc.collect
    freeze_garbage: Callable[[], object] = gc.freeze


DEFAULT_DEPENDENCIES: Final = Dependencies()
