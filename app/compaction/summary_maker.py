"""The way of one range from a wish to a chunk: lease, second look, model call or mechanical summary, fenced append."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from app.compaction.acceptance.mechanical_summary import MECHANICAL_VERSION, build_mechanical_summary
from app.compaction.compaction_job import CompactionJob, CompactionOutcome, SummarySource
from app.compaction.part_summaries import LogPartSummaries
from app.compaction.summarizer.prompts import PromptVariant, compute_prompt_version
from app.compaction.summarizer.summarizer import SummaryGenerator
from app.compaction.summarizer.summary_request import GeneratedSummary, NoUsableSummary, SummaryRequest
from app.context.plan.budget import compute_summary_token_limit
from app.context.view.view_messages import ViewTokenCounter, count_empty_section_tokens, count_section_tokens
from app.conversation.messages import Conversation, Summary
from app.errors import ConversationBusy, GatewayError, StoreUnavailable, UpstreamRefused, UpstreamUnavailable
from app.store.contract import Lease, LeaseLost, Store
from app.store.leases import LeaseKeeper

NOTICE_DELAY_SECONDS = 0.25
"""Who waits longer than this for somebody else's summary is told that one is being written."""
MAX_OVERRUN_MESSAGES: Final = 256
"""So far behind the end of a range it is looked for somebody else's summary."""
REVISED_FIELDS = ("text", "tokens", "kind", "model", "prompt_version", "created_at", "duration_ms", "usage")
"""What of a chunk comes with its text."""
REPLACED_TOKENS_PER_SUMMARY_TOKEN: Final = 20
"""A summary has a token for so many that it stands for: 3,640 for 72,800, which is what additive compaction writes at a
window of 128,000. Its source asks for 2,000 to 4,000 there …"""
MIN_SUMMARY_LIMIT_TOKENS: Final = 1024
"""… and a summary may have so many however little it stands for, if the window has room for it."""
CALLER_KEY_STATUSES = frozenset({401, 403})
"""Statuses that say something about the caller's key and nothing about the range: no chunk is stored for them."""


class RangeResult(msgspec.Struct, frozen=True):
    """What came of one range."""

    range_summary: Summary | None
    outcome: CompactionOutcome
    is_stored: bool = True
    generated: GeneratedSummary | None = None
    warning: str | None = None


OUTDATED_RESULT: Final = RangeResult(None, "none", warning="Messages were deleted while they were to be summarized.")


class SummaryMaker:
    """Makes the chunk of a range.

    Args:
        store: where chunks are kept.
        leases: keeps other processes from making the same chunk.
        summary_generator: asks the model.
        counter_for: the token counter of an encoding.
        clock: the time that chunks are dated with, aware.
        new_id: makes chunk ids.
    """

    def __init__(
        self,
        store: Store,
        leases: LeaseKeeper,
        summary_generator: SummaryGenerator,
        *,
        counter_for: Callable[[str], ViewTokenCounter],
        clock: Callable[[], datetime],
        new_id: Callable[[], str],
    ) -> None:
        self._store = store
        self._leases = leases
        self._summary_generator = summary_generator
        self._counter_for = counter_for
        self._clock = clock
        self._new_id = new_id

    async def make_summary(
        self, job: CompactionJob, source: SummarySource, on_start: Callable[[], None]
    ) -> RangeResult:
        """A chunk for a range: somebody else's if there is one by now, otherwise a new one.

        Args:
            on_start: called right before the model is asked, or when somebody else's summary takes its time.
        """
        notice_timer = asyncio.get_running_loop().call_later(NOTICE_DELAY_SECONDS, on_start)
        try:
            async with self._acquire_lease(job, source) as lease:
                notice_timer.cancel()
                stored_summary = await self._find_stored_summary(job, source) if lease else None
                if stored_summary is not None:
                    return RangeResult(stored_summary, "found")
                if await is_outdated(self._store, job, source):
                    return OUTDATED_RESULT
                on_start()
                return await self._store_result(
                    job, source, await self._summarize_or_fall_back(job, source, lease), lease
                )
        except ConversationBusy:
            stored_summary = await self._find_stored_summary(job, source)
            if stored_summary is not None:
                return RangeResult(stored_summary, "found")
            if await is_outdated(self._store, job, source):
                return OUTDATED_RESULT
            result = await self._make_mechanical(job, source, "another process has been at it for too long")
            return replace(result, is_stored=False)
        finally:
            notice_timer.cancel()

    async def precompact(self, job: CompactionJob, source: SummarySource, on_start: Callable[[], None]) -> RangeResult:
        """A model's summary that nobody waits for yet. Where there is none to be had, nothing is made: whoever needs
        the range then asks again."""
        if self._summary_generator.is_backing_off(self._build_request(job, source)):
            return RangeResult(None, "none")
        try:
            async with self._acquire_lease(job, source) as lease:
                stored_summary = await self._find_stored_summary(job, source) if lease else None
                if stored_summary is not None or lease is None:
                    return RangeResult(stored_summary, "found" if stored_summary else "none")
                if await is_outdated(self._store, job, source):
                    return OUTDATED_RESULT
                on_start()
                try:
                    generated = await self._summary_generator.generate_summary(self._build_request(job, source, lease))
                except (NoUsableSummary, GatewayError) as error:
                    return RangeResult(None, "none", warning=f"Nothing was prepared: {_describe_failure(error)}.")
                result = RangeResult(
                    self._build_summary(job, source, generated.text, generated), "made", generated=generated
                )
                return await self._store_result(job, source, result, lease)
        except ConversationBusy:
            return RangeResult(None, "none")

    async def remake_mechanical(
        self, job: CompactionJob, source: SummarySource, on_start: Callable[[], None]
    ) -> RangeResult:
        """A model's summary in place of a stored mechanical one over the very range, under the same id.

        Nothing is done where there is no such chunk, where every model rests, or where the model fails again.
        """
        if self._summary_generator.is_backing_off(self._build_request(job, source)):
            return RangeResult(None, "none")
        try:
            async with self._acquire_lease(job, source) as lease:
                stored_summary = await self._find_stored_summary(job, source) if lease else None
                if (
                    stored_summary is None
                    or stored_summary.kind != "mechanical"
                    or stored_summary.to_link != source.to_link
                ):
                    return RangeResult(stored_summary, "none" if stored_summary is None else "found")
                if await is_outdated(self._store, job, source):
                    return OUTDATED_RESULT
                on_start()
                try:
                    generated = await self._summary_generator.generate_summary(self._build_request(job, source, lease))
                except (NoUsableSummary, GatewayError) as error:
                    return RangeResult(
                        stored_summary,
                        "found",
                        warning=f"Still summarized without a model: {_describe_failure(error)}.",
                    )
                new_summary = replace(self._build_summary(job, source, generated.text, generated), id=stored_summary.id)
                return await self._store_result(
                    job, source, RangeResult(new_summary, "made", generated=generated), lease
                )
        except ConversationBusy:
            return RangeResult(None, "none")

    async def rewrite_summary(self, job: CompactionJob, source: SummarySource, stored_summary: Summary) -> Summary:
        """A model's summary as the next revision of a stored chunk; never a mechanical one.

        Raises:
            ConversationBusy, UpstreamUnavailable, HeadMoved, StoreUnavailable: as `Compactor.rewrite`.
        """
        async with self._leases.hold_lease(job.root, source.lease_key, job.wait_seconds) as lease:
            request = self._build_request(job, source, lease)
            backoff_seconds = self._summary_generator.compute_backoff_seconds(request)
            if backoff_seconds > 0:
                raise UpstreamUnavailable(
                    "The summarizer has failed too often and is left alone for a while.",
                    status=503,
                    retry_after_seconds=backoff_seconds,
                )
            try:
                generated = await self._summary_generator.generate_summary(request)
            except (NoUsableSummary, UpstreamRefused) as error:
                raise UpstreamUnavailable(f"No summary could be made: {_describe_failure(error)}.") from error
            new_summary = self._build_summary(job, source, generated.text, generated)
            new_summary = replace(new_summary, kind="part") if stored_summary.kind == "part" else new_summary
            revised = replace(
                stored_summary,
                **{name: getattr(new_summary, name) for name in REVISED_FIELDS},
                revision=stored_summary.revision + 1,
            )
            await self._store.revise_summary(tenant=job.tenant, root=job.root, summary=revised)
        return revised

    @asynccontextmanager
    async def _acquire_lease(self, job: CompactionJob, source: SummarySource) -> AsyncIterator[Lease | None]:
        """The lease on the range; None when the store is away, which must not keep a client from its answer."""
        lease_context = self._leases.hold_lease(job.root, source.lease_key, job.wait_seconds)
        try:
            lease = await lease_context.__aenter__()
        except StoreUnavailable:
            yield None
            return
        try:
            yield lease
        finally:
            await _release_lease(lease_context)

    async def _find_stored_summary(self, job: CompactionJob, source: SummarySource) -> Summary | None:
        """A stored chunk that a new plan would use instead: one that begins where this range does and ends in it, or
        at most `MAX_OVERRUN_MESSAGES` behind it, since others may have planned with a message more or less. A fold
        must be
        the same."""
        end_links = [source.to_link]
        if not source.folded_summaries:
            # A long log has many ranges: to look at all of its messages for each would take the square of its length.
            from_seq = max(source.from_seq, job.log_tail.start_seq)
            to_seq = min(source.boundary.to_seq + MAX_OVERRUN_MESSAGES, job.log_tail.end_seq)
            end_links = [job.log_tail.find_message(seq).link for seq in range(from_seq, to_seq)]
        try:
            summaries = await self._store.find_summaries(tenant=job.tenant, root=job.root, links=end_links)
        except StoreUnavailable:
            return None
        summaries = [summary for summary in summaries if summary.kind != "part"]
        usable = [
            fitted for fitted in (_fit_to_source(chunk, source, job) for chunk in summaries) if fitted is not None
        ]
        return min(usable, key=lambda chunk: (chunk.kind == "mechanical", chunk.created_at, chunk.id), default=None)

    async def _summarize_or_fall_back(
        self, job: CompactionJob, source: SummarySource, lease: Lease | None
    ) -> RangeResult:
        """A model's summary, or a mechanical one where that fails."""
        try:
            generated = await self._summary_generator.generate_summary(self._build_request(job, source, lease))
        except UpstreamRefused as refusal:
            result = await self._make_mechanical(job, source, _describe_failure(refusal))
            return replace(result, is_stored=result.is_stored and refusal.status not in CALLER_KEY_STATUSES)
        except (NoUsableSummary, GatewayError) as error:
            return await self._make_mechanical(job, source, _describe_failure(error))
        return RangeResult(self._build_summary(job, source, generated.text, generated), "made", generated=generated)

    async def _make_mechanical(self, job: CompactionJob, source: SummarySource, reason: str) -> RangeResult:
        """A chunk without a model; none where even that would gain nothing."""
        counter = self._counter_for(job.encoding)
        gain_limit = int(source.replaced_tokens * (1 - job.policy.min_gain_ratio)) - count_empty_section_tokens(counter)
        limit_tokens = min(compute_summary_token_limit(job.policy, job.window), gain_limit)
        earlier_summaries = self._build_request(job, source).earlier_summaries
        text = await asyncio.to_thread(
            build_mechanical_summary, source.messages, earlier_summaries, limit_tokens, counter.count
        )
        if not text or counter.count(text) > limit_tokens:
            return RangeResult(None, "none", is_stored=False, warning=f"Nothing was summarized: {reason}.")
        return RangeResult(
            self._build_summary(job, source, text, None), "mechanical", warning=f"Summarized without a model: {reason}."
        )

    async def _store_result(
        self, job: CompactionJob, source: SummarySource, result: RangeResult, lease: Lease | None
    ) -> RangeResult:
        """The result after its chunk was appended; what cannot be appended still serves this request."""
        if result.range_summary is None or not result.is_stored:
            return result
        unstored_result = replace(result, is_stored=False, warning=result.warning or "The summary could not be stored.")
        if lease is None:
            return unstored_result
        try:
            await self._store.add_summary(tenant=job.tenant, root=job.root, summary=result.range_summary, fence=lease)
        except LeaseLost:
            stored_summary = await self._find_stored_summary(job, source)
            if stored_summary is not None:
                return replace(result, range_summary=stored_summary)
            return OUTDATED_RESULT if await is_outdated(self._store, job, source) else unstored_result
        except StoreUnavailable:
            return unstored_result
        return result

    def _build_log_parts(
        self, job: CompactionJob, source: SummarySource, lease: Lease | None
    ) -> LogPartSummaries | None:
        """What a checkpoint keeps of its log beside itself."""
        if source.style != "checkpoint" or source.from_seq:
            return None

        def make_chunk(part: SummarySource, text: str, model: str) -> Summary:
            generated = GeneratedSummary(
                text,
                model,
                compute_prompt_version(job.policy.summarizer, PromptVariant(is_fold=bool(part.folded_summaries))),
                0,
            )
            return self._build_summary(job, part, text, generated)

        return LogPartSummaries(
            self._store, job, source, lease, compute_summary_token_limit(job.policy, job.window), make_chunk
        )

    def _build_request(self, job: CompactionJob, source: SummarySource, lease: Lease | None = None) -> SummaryRequest:
        return SummaryRequest(
            messages=source.messages,
            folded_summaries=source.folded_summaries,
            policy=job.policy,
            model=job.model,
            limit_tokens=_compute_summary_limit(job, source),
            replaced_tokens=source.replaced_tokens,
            encoding=job.encoding,
            client_key=job.client_key,
            focus=job.focus,
            style=source.style,
            previous_summary=source.previous_summary,
            view_prefix=source.view_prefix,
            prefix_message_count=source.prefix_message_count,
            fields=job.fields,
            log_parts=self._build_log_parts(job, source, lease),
            tenant=job.tenant,
            root=job.root,
        )

    def _build_summary(
        self, job: CompactionJob, source: SummarySource, text: str, generated: GeneratedSummary | None
    ) -> Summary:
        return Summary(
            id=self._new_id(),
            conversation_id=job.conversation_id,
            from_seq=source.from_seq,
            to_seq=source.boundary.to_seq,
            from_link=source.from_link,
            to_link=source.to_link,
            to_skeleton=source.to_skeleton,
            text=text,
            tokens=count_section_tokens(
                text, through_turn=source.boundary.through_turn, counter=self._counter_for(job.encoding)
            ),
            tokens_total=source.boundary.tokens_total,
            anchor_seq=source.boundary.anchor_seq,
            anchor_tokens=source.boundary.anchor_tokens,
            through_turn=source.boundary.through_turn,
            kind="mechanical" if generated is None else "model",
            model="" if generated is None else generated.model,
            prompt_version=MECHANICAL_VERSION if generated is None else generated.prompt_version,
            created_at=self._clock(),
            folds=tuple(folded_summary.id for folded_summary in source.folded_summaries),
            duration_ms=0 if generated is None else generated.duration_ms,
            usage=None if generated is None else generated.usage,
        )


def _compute_summary_limit(job: CompactionJob, source: SummarySource) -> int:
    """The most tokens for the summary of a range, by what it stands for. Summaries that are folded are dense."""
    max_tokens = compute_summary_token_limit(job.policy, job.window)
    return (
        max_tokens
        if source.folded_summaries
        else min(max_tokens, max(MIN_SUMMARY_LIMIT_TOKENS, source.replaced_tokens // REPLACED_TOKENS_PER_SUMMARY_TOKEN))
    )


def _fit_to_source(summary: Summary, source: SummarySource, job: CompactionJob) -> Summary | None:
    """A stored chunk as it stands for the job's log from the spot on, or None if it does not.

    Logs that differ in system messages share links but not places: a chunk over the very range takes the spot's.
    """
    begins_here = (summary.from_link, summary.from_seq) == (
        source.from_link,
        source.from_seq,
    ) and not source.folded_summaries
    if begins_here and not summary.folds and source.reusable_after_seq < summary.to_seq <= job.log_tail.end_seq:
        last_message = job.log_tail.find_message(summary.to_seq - 1)
        if last_message.link == summary.to_link:
            return summary
    if not source.matches_summary(summary):
        return None
    boundary = source.boundary
    return replace(
        summary,
        from_seq=source.from_seq,
        to_seq=boundary.to_seq,
        tokens_total=boundary.tokens_total,
        anchor_seq=boundary.anchor_seq,
        anchor_tokens=boundary.anchor_tokens,
        through_turn=boundary.through_turn,
    )


def _describe_failure(error: Exception) -> str:
    if isinstance(error, UpstreamRefused):
        return f"the summarizer answered with status {error.status}"
    return str(error).rstrip(".")


async def _release_lease(lease_context: AbstractAsyncContextManager[Lease]) -> None:
    """Leave a lease's block; one that cannot be given back runs out by itself."""
    try:
        await lease_context.__aexit__(None, None, None)
    except (StoreUnavailable, LeaseLost):
        return


DELETED_PARTS: Final = "deleted"
"""`LogMessage.meta`: which parts of the message are gone."""


async def is_outdated(store: Store, job: CompactionJob, source: SummarySource) -> bool:
    """Whether messages were deleted since a job was prepared, or summaries that it reads are others by now.

    False while the store is away: then nothing is stored either.
    """
    if job.conversation is None:
        return False
    try:
        return (
            await _has_new_marks(store, job.conversation)
            or await _has_other_messages(store, job.conversation, source)
            or await _has_other_summaries(store, job, source)
        )
    except StoreUnavailable:
        return False


async def _has_new_marks(store: Store, conversation: Conversation) -> bool:
    conversation_id, last_seq = conversation.id, conversation.head_seq
    stored = await store.find_conversation(tenant=conversation.tenant, conversation_id=conversation_id)
    if stored is None and conversation.lineage:
        # A branch that is not stored yet: what is deleted in the log that it shares.
        conversation_id, last_seq = conversation.lineage[-1]
        stored = await store.find_conversation(tenant=conversation.tenant, conversation_id=conversation_id)
    if stored is None:
        return False
    known_seqs = [seq for seq in conversation.redacted_seqs if seq <= last_seq]
    return [seq for seq in stored.redacted_seqs if seq <= last_seq] != known_seqs


async def _has_other_messages(store: Store, conversation: Conversation, source: SummarySource) -> bool:
    """Whether a message lacks words by now that the job still has: it may have lacked others before."""
    if not source.messages or conversation.head_seq < source.messages[0].seq:
        return False
    read_messages = {entry.seq: entry.message.raw for entry in source.messages}
    stored = await store.read_log(conversation, source.messages[0].seq, source.messages[-1].seq + 1)
    return any(
        DELETED_PARTS in (entry.meta or ()) and entry.message.raw != read_messages.get(entry.seq) for entry in stored
    )


async def _has_other_summaries(store: Store, job: CompactionJob, source: SummarySource) -> bool:
    read_summaries = [
        *source.folded_summaries,
        *([source.previous_summary] if source.previous_summary is not None else []),
    ]
    if not read_summaries:
        return False
    stored = await store.find_summaries(
        tenant=job.tenant, root=job.root, links=[chunk.to_link for chunk in read_summaries]
    )
    return not {_build_text_key(summary) for summary in read_summaries} <= {_build_text_key(chunk) for chunk in stored}


def _build_text_key(summary: Summary) -> tuple[str, int, str]:
    return summary.id, summary.revision, summary.text
