"""Makes the summary of one range: takes the lease, looks for a stored summary, calls the model, stores the result."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from app.compaction.acceptance.mechanical_summary import MECHANICAL_VERSION, build_mechanical_summary
from app.compaction.compaction_job import CompactionJob, CompactionOutcome, SummarySource
from app.compaction.part_summaries import LogPartSummaries
from app.compaction.summarizer.prompts import PromptVariant, compute_prompt_version
from app.compaction.summarizer.summary_generator import SummaryGenerator
from app.compaction.summarizer.summary_request import GeneratedSummary, NoUsableSummary, SummaryRequest
from app.context.plan.budget import compute_summary_token_limit
from app.context.view.client_words import mark_instructions
from app.context.view.view_rendering import ViewTokenCounter, count_empty_summary_tokens, count_summary_section_tokens
from app.conversation.conversation_types import Conversation, Summary
from app.dialects.summarizer_fields import read_parameter_names
from app.errors import ConversationBusy, GatewayError, StoreUnavailable, UpstreamRefused, UpstreamUnavailable
from app.store.contract.conversations import ConversationStore, WriteConflict
from app.store.contract.leases import Lease, LeaseLost
from app.store.contract.summaries import ConversationAndSummaryStore, SummaryStore
from app.store.leases import LeaseKeeper

NOTICE_DELAY_SECONDS = 0.25
"""A caller that waits longer than this for another process's summary is notified that a summary is being written."""
MAX_OVERRUN_MESSAGES: Final = 256
"""Another process's summary is searched up to this many messages after the end of a range."""
REVISED_FIELDS = ("text", "tokens", "kind", "model", "prompt_version", "created_at", "duration_ms", "usage")
"""Fields of a summary that change with its text."""
REPLACED_TOKENS_PER_SUMMARY_TOKEN: Final = 20
"""A summary may have one token for this many tokens of its range: 3,640 for the 72,800 tokens that an additive
compaction replaces at a window of 128,000. The source of the method asks for 2,000 to 4,000 tokens there."""
MIN_SUMMARY_LIMIT_TOKENS: Final = 1024
"""A summary may have this many tokens even if its range is short, if the window has room."""
CALLER_KEY_STATUSES = frozenset({401, 403})
"""Statuses that are about the caller's key, not about the range. The mechanical summary that follows them is not
stored, because another caller's key may work."""


class RangeResult(msgspec.Struct, frozen=True):
    """The result for one range."""

    range_summary: Summary | None
    outcome: CompactionOutcome
    is_stored: bool = True
    generated: GeneratedSummary | None = None
    warning: str | None = None


NO_RESULT: Final = RangeResult(None, "none")
OUTDATED_RESULT: Final = RangeResult(None, "none", warning="Messages were deleted while they were to be summarized.")


def _read_utc_now() -> datetime:
    return datetime.now(UTC)


def make_summary_id() -> str:
    return f"sum_{uuid.uuid4().hex}"


@dataclass(eq=False, kw_only=True)
class SummaryMaker:
    """Makes the summary of a range.

    Args:
        store: stores the summaries.
        leases: keeps other processes from making the same summary.
        summary_generator: calls the model.
        counter_for: returns the token counter of an encoding.
        clock: returns the time of a new summary, with a time zone.
        new_id: makes ids of summaries.
    """

    store: ConversationAndSummaryStore
    leases: LeaseKeeper
    summary_generator: SummaryGenerator
    counter_for: Callable[[str], ViewTokenCounter]
    clock: Callable[[], datetime] = _read_utc_now
    new_id: Callable[[], str] = make_summary_id

    async def find_or_make_summary(
        self, job: CompactionJob, source: SummarySource, on_start: Callable[[], None], *, is_ahead: bool = False
    ) -> RangeResult:
        """Finds the summary of a range, or makes it: by a model, else mechanically.

        Args:
            job: the job of the range.
            source: the range.
            on_start: called right before the model is called, or if another process's summary takes longer than
                `NOTICE_DELAY_SECONDS`.
            is_ahead: no request waits for the summary yet, so a model makes it or nobody. If it fails, the request that
                needs the range makes the summary.
        """
        if is_ahead and self.summary_generator.compute_backoff_seconds(self._build_summary_request(job, source)) > 0:
            return NO_RESULT
        notice_timer = asyncio.get_running_loop().call_later(NOTICE_DELAY_SECONDS, on_start)
        try:
            async with self._acquire_lease(job, source) as lease:
                notice_timer.cancel()
                if is_ahead and lease is None:
                    return NO_RESULT
                # Looked for under the lease: another process may have stored the summary while this one waited.
                known_result = await self._find_known_result(job, source)
                if known_result is not None:
                    return known_result
                on_start()
                result = await self._write_or_fall_back(job, source, lease, is_ahead=is_ahead)
                return await self._store_result(job, source, result, lease)
        # The holder of the lease takes too long. The client gets a mechanical summary now; it is not stored, because
        # the holder will store a better one.
        except ConversationBusy:
            if is_ahead:
                return NO_RESULT
            known_result = await self._find_known_result(job, source)
            if known_result is not None:
                return known_result
            result = await self._make_mechanical_summary(
                job, source, "another process holds the range's lease for too long"
            )
            return replace(result, is_stored=False)
        finally:
            notice_timer.cancel()

    async def rewrite_summary(self, job: CompactionJob, source: SummarySource, stored_summary: Summary) -> Summary:
        """Writes the next revision of a stored summary, by a model; never mechanically.

        Args:
            job: a job without ranges, for the model, the policy and the limits.
            source: the summary's range, with the material to read.
            stored_summary: the summary to write again.

        Raises:
            ConversationBusy: another process holds the lease of the range.
            UpstreamUnavailable: no model wrote a usable summary; nothing changed.
            WriteConflict: the summary was revised or deleted meanwhile; nothing changed.
            StoreUnavailable: the summary could not be stored.
        """
        async with self.leases.hold_lease(job.root, source.lease_key, job.wait_seconds) as lease:
            request = self._build_summary_request(job, source, lease)
            backoff_seconds = self.summary_generator.compute_backoff_seconds(request)
            if backoff_seconds > 0:
                raise UpstreamUnavailable(
                    "The summarizer has failed too often and gets no calls for a while.",
                    status=503,
                    retry_after_seconds=backoff_seconds,
                )
            # Before a model is paid: the summary may be gone, or written again already.
            if await _has_changed_summaries(self.store, job, [stored_summary, *source.folded_summaries]):
                raise WriteConflict
            try:
                generated = await self.summary_generator.generate_summary(request)
            except (NoUsableSummary, UpstreamRefused) as error:
                raise UpstreamUnavailable(f"No summary could be made: {_describe_failure(error)}.") from error
            new_summary = self._build_summary(job, source, generated.text, generated)
            new_summary = replace(new_summary, kind="part") if stored_summary.kind == "part" else new_summary
            revised = replace(
                stored_summary,
                **{name: getattr(new_summary, name) for name in REVISED_FIELDS},
                revision=stored_summary.revision + 1,
            )
            await self.store.revise_summary(tenant=job.tenant, root=job.root, summary=revised)
        return revised

    @asynccontextmanager
    async def _acquire_lease(self, job: CompactionJob, source: SummarySource) -> AsyncIterator[Lease | None]:
        """Acquires the lease on the range; None if the store is away, which must not keep a client from its answer."""
        lease_context = self.leases.hold_lease(job.root, source.lease_key, job.wait_seconds)
        try:
            lease = await lease_context.__aenter__()
        except StoreUnavailable:
            yield None
            return
        try:
            yield lease
        finally:
            # A lease that cannot be released expires by itself.
            with suppress(StoreUnavailable, LeaseLost):
                await lease_context.__aexit__(None, None, None)

    async def _find_known_result(self, job: CompactionJob, source: SummarySource) -> RangeResult | None:
        """Finds the result of a range for which no summary must be made: there is one, or the job is outdated."""
        stored_summary = await self._find_usable_summary(job, source)
        if stored_summary is not None:
            return RangeResult(stored_summary, "found")
        return OUTDATED_RESULT if await is_job_outdated(self.store, job, source) else None

    async def _find_usable_summary(self, job: CompactionJob, source: SummarySource) -> Summary | None:
        """Finds a stored summary that can be used for the range.

        It begins where the range does and ends in the range or at most `MAX_OVERRUN_MESSAGES` after it, because another
        request may have planned with a few messages more or less. A fold must cover exactly the range.
        """
        end_links = [source.to_link]
        if not source.folded_summaries:
            # A long log has many ranges. Searching all of its messages for each would take quadratic time.
            from_seq = max(source.from_seq, job.log_tail.start_seq)
            to_seq = min(source.boundary.to_seq + MAX_OVERRUN_MESSAGES, job.log_tail.end_seq)
            end_links = [job.log_tail.find_message(seq).link for seq in range(from_seq, to_seq)]
        try:
            summaries = await self.store.find_summaries(tenant=job.tenant, root=job.root, links=end_links)
        except StoreUnavailable:
            return None
        summaries = [summary for summary in summaries if summary.kind != "part"]
        usable = [
            fitted
            for fitted in (_adapt_stored_summary(summary, source, job) for summary in summaries)
            # The parts of a fold were chosen for this view.
            if fitted is not None and job.client_words.is_usable_fold(fitted)
        ]
        # A model's summary before a mechanical one, then the oldest, so that all processes choose the same.
        return min(
            usable, key=lambda summary: (summary.kind == "mechanical", summary.created_at, summary.id), default=None
        )

    async def _write_or_fall_back(
        self, job: CompactionJob, source: SummarySource, lease: Lease | None, *, is_ahead: bool
    ) -> RangeResult:
        """Makes a summary by a model; if the model fails, mechanically, or not at all if no request waits."""
        try:
            generated = await self.summary_generator.generate_summary(self._build_summary_request(job, source, lease))
        except (NoUsableSummary, GatewayError) as error:
            reason = _describe_failure(error)
            if is_ahead:
                return replace(NO_RESULT, warning=f"No model wrote a summary in the background: {reason}.")
            result = await self._make_mechanical_summary(job, source, reason)
            is_about_key = isinstance(error, UpstreamRefused) and error.status in CALLER_KEY_STATUSES
            return replace(result, is_stored=result.is_stored and not is_about_key)
        return RangeResult(self._build_summary(job, source, generated.text, generated), "made", generated=generated)

    async def _make_mechanical_summary(self, job: CompactionJob, source: SummarySource, reason: str) -> RangeResult:
        """Makes a summary without a model; none if that would not be shorter by the policy's `min_gain_ratio`."""
        counter = self.counter_for(job.encoding)
        most_tokens = int(source.replaced_tokens * (1 - job.policy.compaction.min_gain_ratio))
        gain_limit = most_tokens - count_empty_summary_tokens(counter)
        limit_tokens = min(compute_summary_token_limit(job.policy, job.window), gain_limit)
        request = self._build_summary_request(job, source)
        text = await asyncio.to_thread(
            build_mechanical_summary,
            request.messages,
            request.earlier_summaries,
            limit_tokens,
            counter.count,
            read_parameter_names(job.fields),
        )
        if not text or counter.count(text) > limit_tokens:
            return RangeResult(None, "none", is_stored=False, warning=f"Nothing was summarized: {reason}.")
        return RangeResult(
            self._build_summary(job, source, text, None), "mechanical", warning=f"Summarized without a model: {reason}."
        )

    async def _store_result(
        self, job: CompactionJob, source: SummarySource, result: RangeResult, lease: Lease | None
    ) -> RangeResult:
        """Stores the summary of a result. A summary that cannot be stored still serves this request."""
        if result.range_summary is None or not result.is_stored:
            return result
        unstored_result = replace(result, is_stored=False, warning=result.warning or "The summary could not be stored.")
        if lease is None:
            return unstored_result
        try:
            await self.store.add_summary(tenant=job.tenant, root=job.root, summary=result.range_summary, fence=lease)
        except LeaseLost:
            stored_summary = await self._find_usable_summary(job, source)
            if stored_summary is not None:
                return replace(result, range_summary=stored_summary)
            # A lost lease can mean that an erasure took it: then this summary may hold erased text and must not be
            # used.
            return OUTDATED_RESULT if await is_job_outdated(self.store, job, source) else unstored_result
        except StoreUnavailable:
            return unstored_result
        return result

    def _build_log_parts(
        self, job: CompactionJob, source: SummarySource, lease: Lease | None
    ) -> LogPartSummaries | None:
        """Builds the store of part summaries for a checkpoint of the whole log; None for any other summary."""
        if source.style != "checkpoint" or source.from_seq:
            return None

        def make_part(part: SummarySource, text: str, model: str) -> Summary:
            version = compute_prompt_version(job.policy.summarizer, PromptVariant(is_fold=bool(part.folded_summaries)))
            generated = GeneratedSummary(text, model, mark_instructions(version, job.focus), 0)
            return self._build_summary(job, part, text, generated)

        return LogPartSummaries(
            self.store, job, source, lease, compute_summary_token_limit(job.policy, job.window), make_part
        )

    def _build_summary_request(
        self, job: CompactionJob, source: SummarySource, lease: Lease | None = None
    ) -> SummaryRequest:
        return SummaryRequest(
            job,
            source,
            messages=job.client_words.apply_to_log_messages(source.messages),
            limit_tokens=_compute_summary_limit(job, source),
            log_parts=self._build_log_parts(job, source, lease),
        )

    def _build_summary(
        self, job: CompactionJob, source: SummarySource, text: str, generated: GeneratedSummary | None
    ) -> Summary:
        return Summary(
            id=self.new_id(),
            conversation_id=job.conversation_id,
            from_seq=source.from_seq,
            to_seq=source.boundary.to_seq,
            from_link=source.from_link,
            to_link=source.to_link,
            text=text,
            tokens=count_summary_section_tokens(
                text, through_turn=source.boundary.through_turn, counter=self.counter_for(job.encoding)
            ),
            tokens_total=source.boundary.tokens_total,
            anchor_seq=source.boundary.anchor_seq,
            anchor_tokens=source.boundary.anchor_tokens,
            through_turn=source.boundary.through_turn,
            kind="mechanical" if generated is None else "model",
            model="" if generated is None else generated.model,
            prompt_version=MECHANICAL_VERSION if generated is None else generated.prompt_version,
            created_at=self.clock(),
            folds=tuple(folded_summary.id for folded_summary in source.folded_summaries),
            duration_ms=0 if generated is None else generated.duration_ms,
            usage=None if generated is None else generated.usage,
            versions_digest=job.client_words.compute_digest(source.from_seq, source.boundary.to_seq),
        )


def _compute_summary_limit(job: CompactionJob, source: SummarySource) -> int:
    """Computes the token limit of a range's summary from the size of the range.

    A fold may use the whole limit, because the summaries that it replaces are dense already.
    """
    max_tokens = compute_summary_token_limit(job.policy, job.window)
    if source.folded_summaries:
        return max_tokens
    return min(max_tokens, max(MIN_SUMMARY_LIMIT_TOKENS, source.replaced_tokens // REPLACED_TOKENS_PER_SUMMARY_TOKEN))


def _adapt_stored_summary(summary: Summary, source: SummarySource, job: CompactionJob) -> Summary | None:
    """Returns a stored summary with the seqs and token totals of the job's log; None if it cannot be used for the
    range.

    Logs that differ in system messages share links, but their seqs and totals differ.
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


DELETED_PARTS: Final = "deleted"
"""Key in `LogMessage.meta`: the parts of the message that were deleted."""


async def is_job_outdated(store: ConversationAndSummaryStore, job: CompactionJob, source: SummarySource) -> bool:
    """Whether messages or the conversation were deleted since a job was built, or summaries that it reads have changed.

    False while the store is away, because then the result is not stored either.
    """
    if job.conversation is None:
        return False
    try:
        return (
            await _has_new_redactions(store, job.conversation)
            or await _has_lost_text(store, job.conversation, source)
            or await _has_changed_summaries(
                store, job, [*source.folded_summaries, *filter(None, [source.previous_summary])]
            )
        )
    except StoreUnavailable:
        return False


async def _has_new_redactions(store: ConversationStore, conversation: Conversation) -> bool:
    conversation_id, last_seq = conversation.id, conversation.head_seq
    stored = await store.find_conversation(tenant=conversation.tenant, conversation_id=conversation_id)
    if stored is None and conversation.lineage and conversation.head_seq <= conversation.lineage[-1][1]:
        # A branch that is not stored yet: its parent knows what was deleted in the log that both share.
        conversation_id, last_seq = conversation.lineage[-1]
        stored = await store.find_conversation(tenant=conversation.tenant, conversation_id=conversation_id)
    if stored is None:
        # Messages of the log were stored, so the conversation was deleted; else it is not stored yet.
        return conversation.head_seq >= 0
    known_seqs = [seq for seq in conversation.redacted_seqs if seq <= last_seq]
    return [seq for seq in stored.redacted_seqs if seq <= last_seq] != known_seqs


async def _has_lost_text(store: ConversationStore, conversation: Conversation, source: SummarySource) -> bool:
    """Whether a message has lost text that the job still has.

    Only the texts tell: the mark alone may be older than the job.
    """
    if not source.messages or conversation.head_seq < source.messages[0].seq:
        return False
    read_messages = {entry.seq: entry.message.raw for entry in source.messages}
    stored = await store.read_log(conversation, source.messages[0].seq, source.messages[-1].seq + 1)
    return any(
        DELETED_PARTS in (entry.meta or ()) and entry.message.raw != read_messages.get(entry.seq) for entry in stored
    )


async def _has_changed_summaries(store: SummaryStore, job: CompactionJob, read_summaries: Sequence[Summary]) -> bool:
    if not read_summaries:
        return False
    stored = await store.find_summaries(
        tenant=job.tenant, root=job.root, links=[summary.to_link for summary in read_summaries]
    )
    read_texts, stored_texts = ({(one.id, one.revision, one.text) for one in some} for some in (read_summaries, stored))
    return not read_texts <= stored_texts
