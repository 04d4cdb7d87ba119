"""The way of one range from a wish to a chunk: lease, second look, model call or mechanical summary, fenced append."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from app.compaction.acceptance.mechanical_summary import MECHANICAL_VERSION, mechanical_summary
from app.compaction.compaction_job import CompactionJob, Outcome, Spot
from app.compaction.partial_summaries import LogParts
from app.compaction.summarizer.prompts import Wish, prompt_version
from app.compaction.summarizer.summarizer import Summarizer
from app.compaction.summarizer.summary_request import Summary, SummaryRefused, SummaryRequest
from app.context.plan.budget import summary_limit
from app.context.view.view_messages import Counter, empty_section_tokens, section_tokens
from app.conversation.messages import Chunk, Conversation
from app.errors import ConversationBusy, GatewayError, StoreUnavailable, UpstreamRefused, UpstreamUnavailable
from app.store.contract import Lease, LeaseLost, Store
from app.store.leases import LeaseKeeper

NOTICE_SECONDS = 0.25
"""Who waits longer than this for somebody else's summary is told that one is being written."""
FURTHER_MESSAGES: Final = 256
"""So far behind the end of a range it is looked for somebody else's summary."""
TEXT_FIELDS = ("text", "tokens", "kind", "model", "prompt_version", "created_at", "duration_ms", "usage")
"""What of a chunk comes with its text."""
REPLACED_PER_TOKEN: Final = 20
"""A summary has a token for so many that it stands for: 3,640 for 72,800, which is what additive compaction writes at a
window of 128,000. Its source asks for 2,000 to 4,000 there …"""
SMALL_SUMMARY_TOKENS: Final = 1024
"""… and a summary may have so many however little it stands for, if the window has room for it."""
REFUSED_TO_CALLER = frozenset({401, 403})
"""Statuses that say something about the caller's key and nothing about the range: no chunk is stored for them."""


class Made(msgspec.Struct, frozen=True):
    """What came of one range."""

    chunk: Chunk | None
    outcome: Outcome
    stored: bool = True
    summary: Summary | None = None
    warning: str | None = None


OUTDATED: Final = Made(None, "none", warning="Messages were deleted while they were to be summarized.")


class ChunkMaker:
    """Makes the chunk of a range.

    Args:
        store: where chunks are kept.
        leases: keeps other processes from making the same chunk.
        summarizer: asks the model.
        counter_for: the token counter of an encoding.
        clock: the time that chunks are dated with, aware.
        new_id: makes chunk ids.
    """

    def __init__(
        self,
        store: Store,
        leases: LeaseKeeper,
        summarizer: Summarizer,
        *,
        counter_for: Callable[[str], Counter],
        clock: Callable[[], datetime],
        new_id: Callable[[], str],
    ) -> None:
        self._store = store
        self._leases = leases
        self._summarizer = summarizer
        self._counter_for = counter_for
        self._clock = clock
        self._new_id = new_id

    async def make(self, job: CompactionJob, spot: Spot, on_start: Callable[[], None]) -> Made:
        """A chunk for a range: somebody else's if there is one by now, otherwise a new one.

        Args:
            on_start: called right before the model is asked, or when somebody else's summary takes its time.
        """
        notice = asyncio.get_running_loop().call_later(NOTICE_SECONDS, on_start)
        try:
            async with self._lease(job, spot) as lease:
                notice.cancel()
                found = await self._find(job, spot) if lease else None
                if found is not None:
                    return Made(found, "found")
                if await is_outdated(self._store, job, spot):
                    return OUTDATED
                on_start()
                return await self._kept(job, spot, await self._summarized(job, spot, lease), lease)
        except ConversationBusy:
            found = await self._find(job, spot)
            if found is not None:
                return Made(found, "found")
            if await is_outdated(self._store, job, spot):
                return OUTDATED
            made = await self._mechanical(job, spot, "another process has been at it for too long")
            return replace(made, stored=False)
        finally:
            notice.cancel()

    async def prepare(self, job: CompactionJob, spot: Spot, on_start: Callable[[], None]) -> Made:
        """A model's summary that nobody waits for yet. Where there is none to be had, nothing is made: whoever needs
        the range then asks again."""
        if self._summarizer.rests(self._request(job, spot)):
            return Made(None, "none")
        try:
            async with self._lease(job, spot) as lease:
                found = await self._find(job, spot) if lease else None
                if found is not None or lease is None:
                    return Made(found, "found" if found else "none")
                if await is_outdated(self._store, job, spot):
                    return OUTDATED
                on_start()
                try:
                    summary = await self._summarizer.summarize(self._request(job, spot, lease))
                except (SummaryRefused, GatewayError) as error:
                    return Made(None, "none", warning=f"Nothing was prepared: {_reason(error)}.")
                made = Made(self._chunk(job, spot, summary.text, summary), "made", summary=summary)
                return await self._kept(job, spot, made, lease)
        except ConversationBusy:
            return Made(None, "none")

    async def remake(self, job: CompactionJob, spot: Spot, on_start: Callable[[], None]) -> Made:
        """A model's summary in place of a stored mechanical one over the very range, under the same id.

        Nothing is done where there is no such chunk, where every model rests, or where the model fails again.
        """
        if self._summarizer.rests(self._request(job, spot)):
            return Made(None, "none")
        try:
            async with self._lease(job, spot) as lease:
                there = await self._find(job, spot) if lease else None
                if there is None or there.kind != "mechanical" or there.to_link != spot.to_link:
                    return Made(there, "none" if there is None else "found")
                if await is_outdated(self._store, job, spot):
                    return OUTDATED
                on_start()
                try:
                    summary = await self._summarizer.summarize(self._request(job, spot, lease))
                except (SummaryRefused, GatewayError) as error:
                    return Made(there, "found", warning=f"Still summarized without a model: {_reason(error)}.")
                chunk = replace(self._chunk(job, spot, summary.text, summary), id=there.id)
                return await self._kept(job, spot, Made(chunk, "made", summary=summary), lease)
        except ConversationBusy:
            return Made(None, "none")

    async def rewrite(self, job: CompactionJob, spot: Spot, there: Chunk) -> Chunk:
        """A model's summary as the next revision of a stored chunk; never a mechanical one.

        Raises:
            ConversationBusy, UpstreamUnavailable, HeadMoved, StoreUnavailable: as `Compactor.rewrite`.
        """
        async with self._leases.hold(job.root, spot.lease_key, job.wait_seconds) as lease:
            request = self._request(job, spot, lease)
            resting_seconds = self._summarizer.resting_seconds(request)
            if resting_seconds > 0:
                raise UpstreamUnavailable(
                    "The summarizer has failed too often and is left alone for a while.",
                    status=503,
                    retry_after_seconds=resting_seconds,
                )
            try:
                summary = await self._summarizer.summarize(request)
            except (SummaryRefused, UpstreamRefused) as error:
                raise UpstreamUnavailable(f"No summary could be made: {_reason(error)}.") from error
            made = self._chunk(job, spot, summary.text, summary)
            made = replace(made, kind="part") if there.kind == "part" else made
            chunk = replace(there, **{name: getattr(made, name) for name in TEXT_FIELDS}, revision=there.revision + 1)
            await self._store.revise(tenant=job.tenant, root=job.root, chunk=chunk)
        return chunk

    @asynccontextmanager
    async def _lease(self, job: CompactionJob, spot: Spot) -> AsyncIterator[Lease | None]:
        """The lease on the range; None when the store is away, which must not keep a client from its answer."""
        held = self._leases.hold(job.root, spot.lease_key, job.wait_seconds)
        try:
            lease = await held.__aenter__()
        except StoreUnavailable:
            yield None
            return
        try:
            yield lease
        finally:
            await _released(held)

    async def _find(self, job: CompactionJob, spot: Spot) -> Chunk | None:
        """A stored chunk that a new plan would use instead: one that begins where this range does and ends in it, or
        at most `FURTHER_MESSAGES` behind it, since others may have planned with a message more or less. A fold must be
        the same."""
        ends = [spot.to_link]
        if not spot.folded:
            # A long log has many ranges: to look at all of its messages for each would take the square of its length.
            from_seq = max(spot.from_seq, job.tail.start_seq)
            to_seq = min(spot.boundary.to_seq + FURTHER_MESSAGES, job.tail.end_seq)
            ends = [job.tail.message(seq).link for seq in range(from_seq, to_seq)]
        try:
            chunks = await self._store.chunks(tenant=job.tenant, root=job.root, links=ends)
        except StoreUnavailable:
            return None
        chunks = [chunk for chunk in chunks if chunk.kind != "part"]
        standing = [found for found in (_in_place(chunk, spot, job) for chunk in chunks) if found is not None]
        return min(standing, key=lambda chunk: (chunk.kind == "mechanical", chunk.created_at, chunk.id), default=None)

    async def _summarized(self, job: CompactionJob, spot: Spot, lease: Lease | None) -> Made:
        """A model's summary, or a mechanical one where that fails."""
        try:
            summary = await self._summarizer.summarize(self._request(job, spot, lease))
        except UpstreamRefused as refusal:
            made = await self._mechanical(job, spot, _reason(refusal))
            return replace(made, stored=made.stored and refusal.status not in REFUSED_TO_CALLER)
        except (SummaryRefused, GatewayError) as error:
            return await self._mechanical(job, spot, _reason(error))
        return Made(self._chunk(job, spot, summary.text, summary), "made", summary=summary)

    async def _mechanical(self, job: CompactionJob, spot: Spot, reason: str) -> Made:
        """A chunk without a model; none where even that would gain nothing."""
        count = self._counter_for(job.encoding)
        gaining = int(spot.replaced_tokens * (1 - job.policy.min_gain_ratio)) - empty_section_tokens(count)
        limit = min(summary_limit(job.policy, job.window), gaining)
        earlier = self._request(job, spot).earlier
        text = await asyncio.to_thread(mechanical_summary, spot.messages, earlier, limit, count.count)
        if not text or count.count(text) > limit:
            return Made(None, "none", stored=False, warning=f"Nothing was summarized: {reason}.")
        return Made(self._chunk(job, spot, text, None), "mechanical", warning=f"Summarized without a model: {reason}.")

    async def _kept(self, job: CompactionJob, spot: Spot, made: Made, lease: Lease | None) -> Made:
        """The result after its chunk was appended; what cannot be appended still serves this request."""
        if made.chunk is None or not made.stored:
            return made
        unstored = replace(made, stored=False, warning=made.warning or "The summary could not be stored.")
        if lease is None:
            return unstored
        try:
            await self._store.add_chunk(tenant=job.tenant, root=job.root, chunk=made.chunk, fence=lease)
        except LeaseLost:
            found = await self._find(job, spot)
            if found is not None:
                return replace(made, chunk=found)
            return OUTDATED if await is_outdated(self._store, job, spot) else unstored
        except StoreUnavailable:
            return unstored
        return made

    def _parts(self, job: CompactionJob, spot: Spot, lease: Lease | None) -> LogParts | None:
        """What a checkpoint keeps of its log beside itself."""
        if spot.style != "checkpoint" or spot.from_seq:
            return None

        def make_chunk(part: Spot, text: str, model: str) -> Chunk:
            summary = Summary(text, model, prompt_version(job.policy.summarizer, Wish(is_fold=bool(part.folded))), 0)
            return self._chunk(job, part, text, summary)

        return LogParts(self._store, job, spot, lease, summary_limit(job.policy, job.window), make_chunk)

    def _request(self, job: CompactionJob, spot: Spot, lease: Lease | None = None) -> SummaryRequest:
        return SummaryRequest(
            messages=spot.messages,
            folded=spot.folded,
            policy=job.policy,
            model=job.model,
            limit_tokens=_limit(job, spot),
            replaced_tokens=spot.replaced_tokens,
            encoding=job.encoding,
            client_key=job.client_key,
            focus=job.focus,
            style=spot.style,
            base=spot.base,
            prefix=spot.prefix,
            meant=spot.meant,
            fields=job.fields,
            parts=self._parts(job, spot, lease),
            tenant=job.tenant,
            root=job.root,
        )

    def _chunk(self, job: CompactionJob, spot: Spot, text: str, summary: Summary | None) -> Chunk:
        return Chunk(
            id=self._new_id(),
            conversation_id=job.conversation_id,
            from_seq=spot.from_seq,
            to_seq=spot.boundary.to_seq,
            from_link=spot.from_link,
            to_link=spot.to_link,
            to_skeleton=spot.to_skeleton,
            text=text,
            tokens=section_tokens(text, through_turn=spot.boundary.through_turn, count=self._counter_for(job.encoding)),
            tokens_total=spot.boundary.tokens_total,
            anchor_seq=spot.boundary.anchor_seq,
            anchor_tokens=spot.boundary.anchor_tokens,
            through_turn=spot.boundary.through_turn,
            kind="mechanical" if summary is None else "model",
            model="" if summary is None else summary.model,
            prompt_version=MECHANICAL_VERSION if summary is None else summary.prompt_version,
            created_at=self._clock(),
            folds=tuple(chunk.id for chunk in spot.folded),
            duration_ms=0 if summary is None else summary.duration_ms,
            usage=None if summary is None else summary.usage,
        )


def _limit(job: CompactionJob, spot: Spot) -> int:
    """The most tokens for the summary of a range, by what it stands for. Summaries that are folded are dense."""
    most = summary_limit(job.policy, job.window)
    return most if spot.folded else min(most, max(SMALL_SUMMARY_TOKENS, spot.replaced_tokens // REPLACED_PER_TOKEN))


def _in_place(chunk: Chunk, spot: Spot, job: CompactionJob) -> Chunk | None:
    """A stored chunk as it stands for the job's log from the spot on, or None if it does not.

    Logs that differ in system messages share links but not places: a chunk over the very range takes the spot's.
    """
    begins_here = (chunk.from_link, chunk.from_seq) == (spot.from_link, spot.from_seq) and not spot.folded
    if begins_here and not chunk.folds and spot.found_after_seq < chunk.to_seq <= job.tail.end_seq:
        last = job.tail.message(chunk.to_seq - 1)
        if last.link == chunk.to_link:
            return chunk
    if not spot.is_covered_by(chunk):
        return None
    end = spot.boundary
    return replace(
        chunk,
        from_seq=spot.from_seq,
        to_seq=end.to_seq,
        tokens_total=end.tokens_total,
        anchor_seq=end.anchor_seq,
        anchor_tokens=end.anchor_tokens,
        through_turn=end.through_turn,
    )


def _reason(error: Exception) -> str:
    if isinstance(error, UpstreamRefused):
        return f"the summarizer answered with status {error.status}"
    return str(error).rstrip(".")


async def _released(held: AbstractAsyncContextManager[Lease]) -> None:
    """Leave a lease's block; one that cannot be given back runs out by itself."""
    try:
        await held.__aexit__(None, None, None)
    except (StoreUnavailable, LeaseLost):
        return


DELETED: Final = "deleted"
"""`LogMessage.meta`: which parts of the message are gone."""


async def is_outdated(store: Store, job: CompactionJob, spot: Spot) -> bool:
    """Whether messages were deleted since a job was prepared, or summaries that it reads are others by now.

    False while the store is away: then nothing is stored either.
    """
    if job.conversation is None:
        return False
    try:
        return (
            await _has_new_marks(store, job.conversation)
            or await _has_other_messages(store, job.conversation, spot)
            or await _has_other_chunks(store, job, spot)
        )
    except StoreUnavailable:
        return False


async def _has_new_marks(store: Store, conversation: Conversation) -> bool:
    keeper, last_seq = conversation.id, conversation.head_seq
    now = await store.get(tenant=conversation.tenant, conversation_id=keeper)
    if now is None and conversation.lineage:
        # A branch that is not stored yet: what is deleted in the log that it shares.
        keeper, last_seq = conversation.lineage[-1]
        now = await store.get(tenant=conversation.tenant, conversation_id=keeper)
    if now is None:
        return False
    known = [seq for seq in conversation.redacted if seq <= last_seq]
    return [seq for seq in now.redacted if seq <= last_seq] != known


async def _has_other_messages(store: Store, conversation: Conversation, spot: Spot) -> bool:
    """Whether a message lacks words by now that the job still has: it may have lacked others before."""
    if not spot.messages or conversation.head_seq < spot.messages[0].seq:
        return False
    read = {entry.seq: entry.message.raw for entry in spot.messages}
    stored = await store.read(conversation, spot.messages[0].seq, spot.messages[-1].seq + 1)
    return any(DELETED in (entry.meta or ()) and entry.message.raw != read.get(entry.seq) for entry in stored)


async def _has_other_chunks(store: Store, job: CompactionJob, spot: Spot) -> bool:
    read = [*spot.folded, *([spot.base] if spot.base is not None else [])]
    if not read:
        return False
    stored = await store.chunks(tenant=job.tenant, root=job.root, links=[chunk.to_link for chunk in read])
    return not {_text(chunk) for chunk in read} <= {_text(chunk) for chunk in stored}


def _text(chunk: Chunk) -> tuple[str, int, str]:
    return chunk.id, chunk.revision, chunk.text
