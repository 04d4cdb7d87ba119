"""Old turns become one additive chunk, once, whoever asks.

The work for a range runs in a task that this room owns: a caller that goes away does not stop it, a second caller for
the same range waits for the same task, and another process is kept out by a lease on the range.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Final

from app.compaction.compaction_job import CompactionJob, CompactionResult, Outcome, Spot, spots_of, summed
from app.compaction.summarizer.summarizer import Summarizer
from app.compaction.summary_maker import ChunkMaker, Made
from app.context.view.view_messages import Counter
from app.conversation.messages import Chunk
from app.observability.metric_families import COMPACTION_SECONDS, COMPACTIONS
from app.observability.metrics import SILENT, Metrics
from app.store.contract import Store
from app.store.leases import LeaseKeeper

log = logging.getLogger(__name__)

PARALLEL_SUMMARIES = 4
"""Summary calls at a time on behalf of one job."""
REMEMBERED_SECONDS = 30.0
"""How long a chunk that could not be stored, or the failure to make one, stands for its range."""
REMEMBERED_RANGES = 1024
AHEAD, AGAIN = "ahead:", "again:"
"""Begin the names of ranges that are worked on in the background."""
TRIGGERS: Final = {AHEAD: "ahead", AGAIN: "again"}
DRAIN_SECONDS = 10.0
LONG_TAIL_MESSAGES = 1_000
"""The ranges of longer tails are looked up off the event loop."""

RangeKey = tuple[str, str]
Make = Callable[[CompactionJob, Spot, Callable[[], None]], Awaitable[Made]]
MakeOne = Callable[[Callable[[], None]], Awaitable[Made]]


@dataclass(slots=True)
class _Listener:
    """A caller that is told when a model is asked on its behalf: at most once, and never after it has gone."""

    call: Callable[[], None] | None

    def tell(self) -> None:
        call, self.call = self.call, None
        if call is not None:
            call()


@dataclass(slots=True)
class _Flight:
    """A range of a conversation being worked on, since `began`."""

    conversation_id: str
    began: float
    task: asyncio.Task[Made] = field(init=False)
    started: bool = False
    listeners: list[_Listener] = field(default_factory=list)

    def start(self) -> None:
        self.started = True
        for listener in self.listeners:
            listener.tell()

    def listen(self, listener: _Listener) -> None:
        self.listeners.append(listener)
        if self.started:
            listener.tell()


def _now() -> datetime:
    return datetime.now(UTC)


def new_chunk_id() -> str:
    return f"sum_{uuid.uuid4().hex}"


class Compactor:
    """Makes chunks, each range once at a time.

    Args:
        store: where chunks are kept.
        leases: keeps other processes from making the same chunk.
        summarizer: asks the model.
        counter_for: the token counter of an encoding.
        clock: the time that chunks are dated with, aware.
        new_id: makes chunk ids.
        monotonic: seconds, for durations and for how long failures are remembered.
    """

    def __init__(
        self,
        *,
        store: Store,
        leases: LeaseKeeper,
        summarizer: Summarizer,
        counter_for: Callable[[str], Counter],
        clock: Callable[[], datetime] = _now,
        new_id: Callable[[], str] = new_chunk_id,
        monotonic: Callable[[], float] = time.monotonic,
        metrics: Metrics = SILENT,
    ) -> None:
        self._maker = ChunkMaker(store, leases, summarizer, counter_for=counter_for, clock=clock, new_id=new_id)
        self._monotonic = monotonic
        self._metrics = metrics
        self._flights: dict[RangeKey, _Flight] = {}
        self._remembered: dict[RangeKey, tuple[float, Made]] = {}

    async def compact(
        self,
        job: CompactionJob,
        on_start: Callable[[], None] | None = None,
        on_chunk: Callable[[Chunk], None] | None = None,
    ) -> CompactionResult:
        """Chunks for the ranges of a job, made or found. A failing model is no failure of the job.

        Args:
            on_start: called before the first summary call that the job waits for, exactly once; not at all when
                everything is there already.
            on_chunk: called with each chunk once it is there.
        """
        return await self._run(job, self._maker.make, "", on_start, on_chunk)

    async def rewrite(self, job: CompactionJob, spot: Spot, chunk: Chunk) -> Chunk:
        """Another text by a model for a stored chunk, as its next revision.

        Args:
            spot: the chunk's place, with what there is to read.

        Raises:
            ConversationBusy: somebody else is at it.
            UpstreamUnavailable: no model gave a summary that can be used; nothing changed.
            HeadMoved: the chunk was revised or deleted meanwhile; nothing changed.
            StoreUnavailable: the summary could not be stored.
        """
        return await self._maker.rewrite(job, spot, chunk)

    async def prepare(self, job: CompactionJob) -> CompactionResult:
        """Chunks for the ranges of a job that nobody waits for yet: a model's, or none."""
        return await self._run(job, self._maker.prepare, AHEAD, None)

    async def wait_for_prepared(
        self, conversation_id: str, on_start: Callable[[], None] | None
    ) -> CompactionResult | None:
        """The chunks of a conversation that are being made ahead, once they are there; None where none are.

        Args:
            on_start: called if a model is being asked for one, at most once.
        """
        flights = [
            flight
            for (_, name), flight in self._flights.items()
            if name.startswith(AHEAD) and flight.conversation_id == conversation_id
        ]
        if not flights:
            return None
        began, listener = self._monotonic(), _Listener(on_start)
        for flight in flights:
            flight.listen(listener)
        try:
            landed = await asyncio.gather(*(asyncio.shield(flight.task) for flight in flights), return_exceptions=True)
        finally:
            listener.call = None
        results = [made for made in landed if isinstance(made, Made)]  # one that failed is no failure of the caller's
        return _result(results, round((self._monotonic() - began) * 1000))

    async def refresh(self, job: CompactionJob) -> CompactionResult:
        """A model's summaries for those ranges of a job whose stored chunk is mechanical, each kept under its id.

        Meant for the background: `made` where a model is back, otherwise what is there stays.
        """
        return await self._run(job, self._maker.remake, AGAIN, None)

    async def _run(
        self,
        job: CompactionJob,
        make: Make,
        prefix: str,
        on_start: Callable[[], None] | None,
        on_chunk: Callable[[Chunk], None] | None = None,
    ) -> CompactionResult:
        """Have the chunk of each range made, or wait for who is at it; `prefix` tells kinds of work apart."""
        began = self._monotonic()
        listener = _Listener(on_start)
        turns = asyncio.Semaphore(PARALLEL_SUMMARIES)
        is_long = len(job.tail.messages) > LONG_TAIL_MESSAGES
        spots = await asyncio.to_thread(spots_of, job) if is_long else spots_of(job)
        flights = [
            self._join(job, (job.root, prefix + _name(job, spot)), partial(make, job, spot), listener, turns)
            for spot in spots
        ]
        if on_chunk is not None:
            for flight in flights:
                flight.task.add_done_callback(partial(_tell, on_chunk))
        try:
            results = await asyncio.gather(*(asyncio.shield(flight.task) for flight in flights))
        finally:
            listener.call = None
        return _result(results, round((self._monotonic() - began) * 1000))

    async def aclose(self, timeout_seconds: float = DRAIN_SECONDS) -> None:
        """Leave off what nobody waits for, wait for what else is running, then cancel what is left."""
        for (_, name), flight in self._flights.items():
            if name.startswith((AHEAD, AGAIN)):
                flight.task.cancel()
        running = [flight.task for flight in self._flights.values()]
        if not running:
            return
        _, late = await asyncio.wait(running, timeout=timeout_seconds)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    def _join(
        self, job: CompactionJob, key: RangeKey, make: MakeOne, listener: _Listener, turns: asyncio.Semaphore
    ) -> _Flight:
        """The flight of a range: the running one, or a new one."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(job.conversation_id, self._monotonic())
            self._metrics.compacting.add()
            work = self._work(key, make, flight, turns)
            flight.task = asyncio.create_task(work)  # noqa: TID251  owned by the flight; aclose awaits and cancels it
            flight.task.add_done_callback(lambda task: self._land(key, flight, task))
        flight.listen(listener)
        return flight

    async def _work(self, key: RangeKey, make: MakeOne, flight: _Flight, turns: asyncio.Semaphore) -> Made:
        recalled = self._recall(key)
        if recalled is not None:
            return recalled
        async with turns:
            return await make(flight.start)

    def _land(self, key: RangeKey, flight: _Flight, task: asyncio.Task[Made]) -> None:
        """Forget a finished flight, and remember for a while what could not be stored."""
        del self._flights[key]
        self._count(key, flight, task)
        if task.cancelled() or task.exception() is not None:
            return
        made = task.result()
        if made.warning:
            log.info("a range of the log has no summary of a model's: %s", made.warning)
        if made.stored:
            return
        while len(self._remembered) >= REMEMBERED_RANGES:
            del self._remembered[next(iter(self._remembered))]
        again = Made(made.chunk, "found" if made.chunk else "none", stored=False, warning=made.warning)
        self._remembered.setdefault(key, (self._monotonic() + REMEMBERED_SECONDS, again))

    def _count(self, key: RangeKey, flight: _Flight, task: asyncio.Task[Made]) -> None:
        self._metrics.compacting.add(-1)
        if not self._metrics.is_on:
            return
        outcome = "cancelled" if task.cancelled() else "failed" if task.exception() else task.result().outcome
        trigger = next((name for prefix, name in TRIGGERS.items() if key[1].startswith(prefix)), "request")
        self._metrics.counted(COMPACTIONS, outcome, trigger).add()
        self._metrics.observed(COMPACTION_SECONDS, outcome).add(self._monotonic() - flight.began)

    def _recall(self, key: RangeKey) -> Made | None:
        """What a recent attempt at this range came to, if that could not be stored."""
        if key not in self._remembered:
            return None
        until, made = self._remembered[key]
        if self._monotonic() < until:
            return made
        del self._remembered[key]
        return None


def _name(job: CompactionJob, spot: Spot) -> str:
    """Names a range among all of a root, with what of the log is deleted: nobody joins who knows of more."""
    deleted = job.conversation.redacted if job.conversation else ()
    return f"{spot.key}:{','.join(map(str, deleted))}"


def _tell(on_chunk: Callable[[Chunk], None], task: asyncio.Task[Made]) -> None:
    if not task.cancelled() and task.exception() is None and (chunk := task.result().chunk) is not None:
        on_chunk(chunk)


def _result(results: Sequence[Made], duration_ms: int) -> CompactionResult:
    summaries = [made.summary for made in results if made.summary is not None]
    ran = any(made.outcome in {"made", "mechanical"} for made in results)
    return CompactionResult(
        chunks=tuple(made.chunk for made in results if made.chunk is not None),
        ran=ran,
        outcome=_outcome({made.outcome for made in results}),
        duration_ms=duration_ms if ran else 0,
        model=summaries[0].model if summaries else None,
        usage=summed([summary.usage for summary in summaries if summary.usage]),
        warnings=tuple(dict.fromkeys(made.warning for made in results if made.warning)),
    )


def _outcome(outcomes: set[Outcome]) -> Outcome:
    """The outcome of a job from those of its ranges: the one that says most."""
    ranked: tuple[Outcome, ...] = ("mechanical", "made", "found", "none")
    return next((one for one in ranked if one in outcomes), "none")
