"""Compacts a conversation for one request, in a task that a disconnect of the client does not cancel."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from msgspec.structs import replace

from app.compaction.compaction_job import CompactionJob, CompactionResult, SummarySource
from app.compaction.compactor import Compactor
from app.context.plan.budget import UNREACHABLE_TOKENS
from app.context.plan.log_rounds import LogTail, build_boundary_after, build_log_tail, find_tail_start
from app.context.plan.outline import LOG_START, Outline
from app.context.view.client_words import NO_WORDS
from app.conversation.conversation_types import Summary
from app.conversation.identity import compute_start_position
from app.dialects.client_dialects import CLIENT_DIALECTS
from app.dialects.usage import sum_usages
from app.errors import InvalidRequest, StoreUnavailable
from app.observability.request_record import timed_step
from app.observability.tracing import current_span
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.turn import Turn, View, build_cache_key
from app.pipeline.view.summary_chain_cache import select_summaries_in_place
from app.pipeline.view.view_builder import ViewBuilder
from app.store.contract.conversations import WriteConflict

MAX_PASSES: Final = 3
"""How many compactions one request may wait for: the first, and two more if the view is still too long."""
MAX_FOLDS: Final = 32
"""How many folds one request may wait for. A very long history that meets a small window for the first time has
hundreds of summaries, and one call folds about a dozen. Unfolded summaries would not fit into the view, and each later
turn would have to wait for their fold."""
FAILED_OUTCOMES: Final = ("mechanical", "none")


@dataclass(eq=False, kw_only=True)
class TurnCompactor:
    """Compacts conversations for requests. Requests that need the same range share the work
    (`compaction.compactor`)."""

    view_builder: ViewBuilder
    compactor: Compactor
    resolve_without_store: Callable[[Turn], Awaitable[Turn]]
    """Resolves a turn from the client's messages alone, after the store went away."""
    wait_seconds: float

    @timed_step("compaction", span="compact")
    async def compact(
        self,
        turn: Turn,
        view: View,
        *,
        on_start: Callable[[], None] | None = None,
        on_summary: Callable[[Summary], None] | None = None,
    ) -> tuple[Turn, View]:
        """Summarizes the ranges of the plan and plans again, until the plan has no more ranges.

        A running precompaction is waited for first: its summary may be enough.

        Args:
            turn: the turn that needs room.
            view: the view whose plan names ranges.
            on_start: called once, before the first call of a model.
            on_summary: called with each summary when it is ready.

        Returns:
            The view planned last, and its turn: another one if the store went away.

        Raises:
            StoreUnavailable: the store is away and the request needs it.
        """
        results: list[CompactionResult] = []
        new_summaries: list[Summary] = []
        precompacted = await self.compactor.wait_for_precompaction(turn.resolved_request.conversation.id, on_start)
        if precompacted is not None and precompacted.summaries:
            results.append(precompacted)
            new_summaries.extend(precompacted.summaries)
            turn, view = await self._replan_with_summaries(new_summaries, turn, view)
        passes = folds = 0
        while (ranges := view.plan.to_summarize) and passes < MAX_PASSES and folds < MAX_FOLDS:
            if not must_compact(turn, view):
                break
            # A plan that only folds has its own limit: one call folds about a dozen summaries, so many may be needed.
            if all(summary_range.folds for summary_range in ranges):
                folds += 1
            else:
                passes += 1
            job = await self.build_job(turn, view)
            result = await self.compactor.compact(job, on_start=on_start, on_summary=on_summary)
            results.append(result)
            if not result.summaries:
                break
            new_summaries.extend(result.summaries)
            turn, view = await self._replan_with_summaries(new_summaries, turn, view)
        facts = _build_compaction_status(results)
        current_span().set_attributes(
            {
                "concertina.compaction.outcome": facts.get("outcome", "none"),
                "concertina.compaction.summaries": len(new_summaries),
            }
        )
        warnings = (*view.warnings, *(warning for result in results for warning in result.warnings))
        return turn, replace(view, compaction=facts, warnings=warnings)

    async def _replan_with_summaries(
        self, new_summaries: Sequence[Summary], turn: Turn, view: View
    ) -> tuple[Turn, View]:
        """Plans the view again with new summaries; from the client's messages alone if the store is away. Then only
        summaries of these messages are shown: others may stand for words that the request does not carry."""
        try:
            return turn, await self.view_builder.build_view(
                turn, view.budget, summarize=turn.request.compaction.summarize, new_summaries=new_summaries
            )
        except StoreUnavailable:
            if turn.resolved_request.storage.needs_store:
                raise
        turn = await self.resolve_without_store(turn)
        in_place = select_summaries_in_place(new_summaries, turn.resolved_request)
        return turn, await self.view_builder.build_view(turn, view.budget, summarize="never", new_summaries=in_place)

    async def rewrite_summary(
        self, turn: Turn, view: View, summary: Summary, folded_summaries: Sequence[Summary]
    ) -> Summary:
        """Writes a stored summary again, by a model that reads the messages or summaries it stands for.

        Args:
            turn: a turn of the conversation, without new messages.
            view: the view of that turn.
            summary: the summary to write again.
            folded_summaries: the summaries that it folds, if it is a fold.

        Raises:
            GatewayError, WriteConflict: as `SummaryMaker.rewrite_summary`.
        """
        conversation, words = turn.resolved_request.conversation, view.words
        if summary.versions_digest != words.compute_digest(summary.from_seq, summary.to_seq):
            # Written from what the client no longer shows: it can be written again from the originals only.
            if summary.versions_digest:
                raise WriteConflict
            words = NO_WORDS
        entries = (
            []
            if folded_summaries
            else await self.view_builder.store.read_log(conversation, summary.from_seq, summary.to_seq)
        )
        log_tokens = sum(entry.tokens for entry in entries)
        source = SummarySource(
            from_seq=summary.from_seq,
            from_link=summary.from_link,
            to_link=summary.to_link,
            boundary=build_boundary_after(summary),
            replaced_tokens=log_tokens + sum(folded_summary.tokens for folded_summary in folded_summaries),
            messages=tuple(entries),
            folded_summaries=tuple(folded_summaries),
            style="checkpoint" if turn.policy.kind == "checkpoint" and summary.from_seq == 0 else "additive",
        )
        job = dataclasses.replace(self._build_empty_job(turn, view), client_words=words)
        return await self.compactor.maker.rewrite_summary(job, source, summary)

    async def build_job(self, turn: Turn, view: View) -> CompactionJob:
        """Builds the job for the ranges of a view's plan, with the log tail that they are made from."""
        outline, ranges = await self._restore_original_outline(turn, view), view.plan.to_summarize
        # A checkpoint is written from the whole log, not from the tail after the last summary.
        reads_all = any(one.style == "checkpoint" for one in ranges)
        if reads_all:
            outline = replace(
                outline, tail=await self.view_builder.read_log_tail(turn.resolved_request, 0), tail_start=LOG_START
            )
        empty_job = self._build_empty_job(turn, view)
        return dataclasses.replace(
            empty_job,
            log_tail=await asyncio.to_thread(build_log_tail, outline),
            start_link=compute_start_position(empty_job.tenant).link
            if reads_all or not outline.summaries
            else outline.summaries[-1].to_link,
            ranges=ranges,
            view_prefixes={one.to_seq: await self.view_builder.build_cached_prefix(turn, view, one) for one in ranges},
        )

    async def _restore_original_outline(self, turn: Turn, view: View) -> Outline:
        """Returns the outline with the log's own messages instead of the client's versions. Where the client changed or
        deleted words, the summarizer reads `CompactionJob.client_words` in their place."""
        outline, versions = view.outline, turn.resolved_request.shown.client_versions
        if not versions:
            return outline
        start = versions.recount_boundary_for_originals(find_tail_start(outline))
        log = () if outline.tail is None else await self.view_builder.read_log_tail(turn.resolved_request, start.to_seq)
        return replace(
            outline,
            summaries=tuple(map(versions.recount_summary_for_originals, outline.summaries)),
            folds=tuple(map(versions.recount_summary_for_originals, outline.folds)),
            tail=log,
            tail_start=start,
        )

    def _build_empty_job(self, turn: Turn, view: View) -> CompactionJob:
        """Builds a job without ranges."""
        resolved_request, request = turn.resolved_request, turn.request
        return CompactionJob(
            tenant=resolved_request.conversation.tenant,
            root=resolved_request.conversation.root,
            conversation_id=resolved_request.conversation.id,
            conversation=resolved_request.conversation,
            client_words=view.words,
            log_tail=LogTail([], after=None),
            start_link=b"",
            ranges=(),
            fields=_read_chat_fields(turn),
            policy=turn.policy,
            window=view.budget.window,
            model=request.model,
            encoding=resolved_request.conversation.token_counter_name,
            available_summaries=tuple(
                map(
                    resolved_request.shown.client_versions.recount_summary_for_originals,
                    (*view.outline.summaries, *view.outline.folds),
                )
            ),
            client_key=turn.client_key,
            api_key_id=request.caller.api_key_id,
            budget=request.caller.budget,
            focus=request.compaction.instructions,
            wait_seconds=self.wait_seconds,
        )


def _read_chat_fields(turn: Turn) -> Mapping[str, bytes]:
    """Returns the fields of a request in the form of Chat Completions, in which the summarizer's requests are built;
    none if a field has no such form. A call of the request's own model finds its cache by the same name."""
    try:
        fields = CLIENT_DIALECTS[turn.request.protocol].translate_to_chat(turn.request.raw_fields).fields
    except InvalidRequest:
        return {}
    if (key := build_cache_key(turn, turn.target.deployments[0])) is not None:
        return {"prompt_cache_key": orjson.dumps(key), **fields}
    return fields


class TurnCompactionTask:
    """A compaction for one request, in a task that a disconnect of the client does not cancel. It summarizes the ranges
    of the view's plan."""

    def __init__(self, turn_compactor: TurnCompactor, turn: Turn, view: View, tasks: BackgroundTasks) -> None:
        self._started = asyncio.Event()
        self._task = tasks.spawn(turn_compactor.compact(turn, view, on_start=self._started.set))

    async def wait_for_start(self) -> bool:
        """Waits until a model is called, or the compaction ends without a call.

        Returns:
            Whether the compaction is running and has called a model.
        """
        started = asyncio.create_task(self._started.wait())  # noqa: TID251 - ended below
        try:
            await asyncio.wait({self._task, started}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            started.cancel()
        return self._started.is_set() and not self._task.done()

    async def finishes_within(self, seconds: float) -> bool:
        done, _ = await asyncio.wait({self._task}, timeout=seconds)
        return bool(done)

    async def wait_for_result(self) -> tuple[Turn, View]:
        """Returns the result of `TurnCompactor.compact`."""
        return await asyncio.shield(self._task)


def may_compact(turn: Turn) -> bool:
    """Whether the turn may be compacted: only stored turns can, because summaries need the store."""
    return turn.resolved_request.storage.is_stored and turn.request.compaction.summarize != "never"


def must_compact(turn: Turn, view: View) -> bool:
    """Whether the turn must wait for summaries before it is answered.

    A view that is within its limit is sent as it is, while its summary is written, unless the client asked for the
    compaction or for a threshold of its own, or the policy is blocking. Folds that a view within its limit can do
    without are made after the answer; under a blocking policy only after the first answer to a long history, so that
    the beginning of the view changes once.
    """
    plan, request = view.plan, turn.request
    if not plan.to_summarize or not may_compact(turn):
        return False
    if request.compaction.summarize != "auto":
        return True
    is_blocking = turn.policy.compaction.blocking or request.compaction.threshold_tokens is not None
    if has_folds_to_precompact(view) and (turn.resolved_request.is_log_unstored or not is_blocking):
        return False
    return is_blocking or plan.is_cut_to_fit


def has_folds_to_precompact(view: View) -> bool:
    """Whether only folds are to be made, the view is within its limit without them, and the policy makes summaries
    ahead."""
    plan = view.plan
    if view.budget.precompaction_threshold == UNREACHABLE_TOKENS or not plan.fits or not plan.to_summarize:
        return False
    return all(one.folds for one in plan.to_summarize)


def _build_compaction_status(results: list[CompactionResult]) -> dict[str, Any]:
    """Builds `context.compaction` over all compactions of one request."""
    if not any(result.has_run for result in results):
        return {"ran": False, "duration_ms": 0}
    return {
        "ran": True,
        "outcome": "failed" if any(result.outcome in FAILED_OUTCOMES for result in results) else "completed",
        "duration_ms": sum(result.duration_ms for result in results),
        "model": next((result.model for result in results if result.model), None),
        "usage": sum_usages([result.usage for result in results if result.usage]),
    }
