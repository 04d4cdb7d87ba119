"""Runs compactions, so that each range is summarized once, however many callers need it.

The work for a range runs in a task of this module. A caller that is cancelled does not stop it, a second caller for the
same range waits for the same task, and a lease on the range keeps other processes out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from app.compaction.compaction_job import (
    CompactionJob,
    CompactionOutcome,
    CompactionResult,
    SummarySource,
    build_summary_sources,
)
from app.compaction.summarizer.range_parts import MAX_PARALLEL_CALLS
from app.compaction.summary_maker import RangeResult, SummaryMaker
from app.conversation.conversation_types import Summary
from app.dialects.usage import sum_usages
from app.observability.metric_families import COMPACTION_SECONDS, COMPACTIONS
from app.observability.metrics import NO_METRICS, Metrics

log = logging.getLogger(__name__)

PRECOMPACTION_PREFIX: Final = "ahead:"
"""Prefix of range names: work in the background is not shared with requests."""
DRAIN_TIMEOUT_SECONDS = 10.0
LONG_TAIL_MESSAGES = 1_000
"""The sources of a longer tail are built in a thread."""

RANKED_OUTCOMES: Final[tuple[CompactionOutcome, ...]] = ("mechanical", "made", "found", "none")
"""The outcome of a job is that of its ranges which comes first."""

RangeKey = tuple[str, str]
MakeSummary = Callable[[Callable[[], None]], Awaitable[RangeResult]]


@dataclass(slots=True)
class _StartListener:
    """Notifies a caller when a model is called for it: at most once, and never after the caller has stopped waiting."""

    callback: Callable[[], None] | None

    def notify(self) -> None:
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()


@dataclass(slots=True)
class _SharedWork:
    """The running work for one range, and the callers that wait for it. `started_at` is in monotonic seconds."""

    conversation_id: str
    started_at: float
    task: asyncio.Task[RangeResult] = field(init=False)
    has_called_model: bool = False
    listeners: list[_StartListener] = field(default_factory=list)

    def notify_start(self) -> None:
        self.has_called_model = True
        for listener in self.listeners:
            listener.notify()

    def add_start_listener(self, listener: _StartListener) -> None:
        self.listeners.append(listener)
        if self.has_called_model:
            listener.notify()


@dataclass(eq=False, kw_only=True)
class Compactor:
    """Makes summaries. Works on each range once at a time.

    Args:
        maker: makes the summary of one range.
        monotonic: returns seconds, for durations.
        metrics: counts compactions.
    """

    maker: SummaryMaker
    monotonic: Callable[[], float] = time.monotonic
    metrics: Metrics = NO_METRICS
    _running_work: dict[RangeKey, _SharedWork] = field(default_factory=dict, init=False)

    async def wait_for_precompaction(
        self, conversation_id: str, on_start: Callable[[], None] | None
    ) -> CompactionResult | None:
        """Waits for the running precompactions of a conversation.

        Args:
            conversation_id: the conversation.
            on_start: called at most once, if a precompaction calls a model.

        Returns:
            The summaries; None if no precompaction is running.
        """
        precompactions = [
            work
            for (_, name), work in self._running_work.items()
            if name.startswith(PRECOMPACTION_PREFIX) and work.conversation_id == conversation_id
        ]
        if not precompactions:
            return None
        started_at, listener = self.monotonic(), _StartListener(on_start)
        for work in precompactions:
            work.add_start_listener(listener)
        try:
            outcomes = await asyncio.gather(
                *(asyncio.shield(work.task) for work in precompactions), return_exceptions=True
            )
        finally:
            listener.callback = None
        # A failed precompaction is no failure of its waiter: the waiter's own plan makes what is missing.
        results = [range_result for range_result in outcomes if isinstance(range_result, RangeResult)]
        return _build_result(results, round((self.monotonic() - started_at) * 1000))

    async def compact(
        self,
        job: CompactionJob,
        on_start: Callable[[], None] | None = None,
        on_summary: Callable[[Summary], None] | None = None,
        *,
        is_ahead: bool = False,
    ) -> CompactionResult:
        """Makes or finds the summaries of a job's ranges, or joins the tasks that make them. If the model fails, a
        summary is mechanical.

        Args:
            job: the ranges to summarize.
            on_start: called once, before the first summarizer call that the job waits for; never if all summaries are
                found.
            on_summary: called with each summary when it is ready.
            is_ahead: no request waits for the summaries yet: a model makes them, or nobody.
        """
        started_at = self.monotonic()
        listener = _StartListener(on_start)
        slots = asyncio.Semaphore(MAX_PARALLEL_CALLS)
        is_long = len(job.log_tail.messages) > LONG_TAIL_MESSAGES
        sources = await asyncio.to_thread(build_summary_sources, job) if is_long else build_summary_sources(job)
        prefix = PRECOMPACTION_PREFIX if is_ahead else ""
        works = [
            self._join_or_start(
                job,
                (job.root, prefix + _build_range_name(job, source)),
                partial(self.maker.find_or_make_summary, job, source, is_ahead=is_ahead),
                listener,
                slots,
            )
            for source in sources
        ]
        if on_summary is not None:
            for work in works:
                work.task.add_done_callback(partial(_notify_summary, on_summary))
        try:
            # Shielded: other callers may wait for the same tasks, and a summary that is half written is paid for.
            results = await asyncio.gather(*(asyncio.shield(work.task) for work in works))
        finally:
            listener.callback = None
        return _build_result(results, round((self.monotonic() - started_at) * 1000))

    async def aclose(self, timeout_seconds: float = DRAIN_TIMEOUT_SECONDS) -> None:
        """Cancels background work, waits for other work up to `timeout_seconds`, then cancels the rest."""
        for (_, name), work in self._running_work.items():
            if name.startswith(PRECOMPACTION_PREFIX):
                work.task.cancel()
        running = [work.task for work in self._running_work.values()]
        if not running:
            return
        _, late_tasks = await asyncio.wait(running, timeout=timeout_seconds)
        for task in late_tasks:
            task.cancel()
        if late_tasks:
            await asyncio.wait(late_tasks)

    def _join_or_start(
        self, job: CompactionJob, key: RangeKey, make: MakeSummary, listener: _StartListener, slots: asyncio.Semaphore
    ) -> _SharedWork:
        """Returns the running work for a range, or starts it."""
        shared_work = self._running_work.get(key)
        if shared_work is None:
            shared_work = self._running_work[key] = _SharedWork(job.conversation_id, self.monotonic())
            self.metrics.running_compactions.inc()
            coroutine = _run_work(make, shared_work, slots)
            shared_work.task = asyncio.create_task(coroutine)  # noqa: TID251  aclose awaits and cancels it
            shared_work.task.add_done_callback(lambda task: self._finish_work(key, shared_work, task))
        shared_work.add_start_listener(listener)
        return shared_work

    def _finish_work(self, key: RangeKey, work: _SharedWork, task: asyncio.Task[RangeResult]) -> None:
        """Removes finished work. The next caller finds its result in the store."""
        del self._running_work[key]
        self.metrics.running_compactions.dec()
        if not task.cancelled() and task.exception() is None and (warning := task.result().warning):
            log.info("a range of the log was not summarized by a model: %s", warning)
        if not self.metrics.is_on:
            return
        outcome = "cancelled" if task.cancelled() else "failed" if task.exception() else task.result().outcome
        trigger = "ahead" if key[1].startswith(PRECOMPACTION_PREFIX) else "request"
        self.metrics.counter_series(COMPACTIONS, outcome, trigger).inc()
        self.metrics.histogram_series(COMPACTION_SECONDS, outcome).observe(self.monotonic() - work.started_at)


async def _run_work(make: MakeSummary, work: _SharedWork, slots: asyncio.Semaphore) -> RangeResult:
    async with slots:
        return await make(work.notify_start)


def _build_range_name(job: CompactionJob, source: SummarySource) -> str:
    """Names a range within a root, the messages that were redacted when the job was built, and the client's changes.

    A caller that knows of more redacted messages, or shows other words, must not join work that reads their text.
    """
    digest = job.client_words.compute_digest(source.from_seq, source.boundary.to_seq).hex()
    deleted = job.conversation.redacted_seqs if job.conversation else ()
    return f"{source.range_key}:{','.join(map(str, deleted))}:{digest}"


def _notify_summary(on_summary: Callable[[Summary], None], task: asyncio.Task[RangeResult]) -> None:
    if not task.cancelled() and task.exception() is None and (summary := task.result().range_summary) is not None:
        on_summary(summary)


def _build_result(results: Sequence[RangeResult], duration_ms: int) -> CompactionResult:
    summaries = [range_result.generated for range_result in results if range_result.generated is not None]
    ran = any(made.outcome in {"made", "mechanical"} for made in results)
    return CompactionResult(
        summaries=tuple(made.range_summary for made in results if made.range_summary is not None),
        has_run=ran,
        outcome=min((made.outcome for made in results), key=RANKED_OUTCOMES.index, default="none"),
        duration_ms=duration_ms if ran else 0,
        model=summaries[0].model if summaries else None,
        usage=sum_usages([generated.usage for generated in summaries if generated.usage]),
        warnings=tuple(dict.fromkeys(made.warning for made in results if made.warning)),
    )
