"""Stores part summaries of a long log, so that the next checkpoints do not read the same messages again.

A checkpoint is written from the whole log. If the log is longer than the summarizer can read, part summaries replace
its older messages. Each part is summarized once. When the part summaries grow too long themselves, those of one size
are merged into one, which is stored, too; so the number of calls grows linearly with the log. No view shows a part
summary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

from msgspec.structs import replace

from app.compaction.compaction_job import CompactionJob, SummarySource
from app.compaction.summarizer.range_parts import MAX_PARALLEL_CALLS, MAX_PARTS, compute_part_limit
from app.compaction.summarizer.transcript import SPEAKER_LINE_TOKENS
from app.context.plan.log_rounds import MIN_STRETCH_FILL_SHARE, LogTail, Round
from app.conversation.conversation_types import LogMessage, Summary
from app.errors import StoreUnavailable
from app.store.contract.leases import Lease, LeaseLost
from app.store.contract.summaries import SummaryStore

MAX_SUMMARIES_SHARE = 0.75
"""Part summaries are merged when they take more than this share of what the summarizer can read."""
MIN_PARTS = 8
"""The limit of a part summary is chosen so that the summarizer can read at least this many at once."""

WritePart = Callable[[Sequence[LogMessage], Sequence[Summary], int], Awaitable[tuple[str, str]]]
"""Takes messages, or summaries to merge, and a limit in tokens; returns a summary and the model that wrote it."""
BuildSummary = Callable[[SummarySource, str, str], Summary]
LogPiece = Summary | tuple[Round, ...]
"""A part summary, or consecutive rounds without one."""


@dataclass(frozen=True, slots=True)
class LogPartSummaries:
    """The part summaries of one log, from its beginning to the end of a checkpoint.

    `source` is the checkpoint's range. Part summaries are stored under its lease; without a lease they are used for
    this checkpoint only.
    """

    store: SummaryStore
    job: CompactionJob
    source: SummarySource
    lease: Lease | None
    limit_tokens: int
    """The most tokens that a part summary may have."""
    build_summary: BuildSummary

    async def make_missing_part_summaries(
        self, room_tokens: int, write_part: WritePart
    ) -> tuple[list[Summary], Sequence[LogMessage]]:
        """Makes the part summaries that are missing.

        Args:
            room_tokens: how many tokens the summarizer can read at once.
            write_part: writes one part summary.

        Returns:
            Summaries of the older part of the log, and the messages after it: together within `room_tokens`.

        Raises:
            NoUsableSummary, UpstreamRefused, UpstreamUnavailable: as `write_part`. Finished parts stay stored.
        """
        tail = await asyncio.to_thread(LogTail, self.source.messages, after=None)
        if _count_transcript_tokens(tail.rounds) <= room_tokens:
            return [], self._read_messages(0, len(self.source.messages))
        limit_tokens = compute_part_limit(MIN_PARTS, room_tokens, self.limit_tokens)
        stored_parts, taken_ranges = await self._read_stored_parts()
        pieces = _split_at_stored_parts(tail, stored_parts)
        stretches = _choose_stretches_to_summarize(pieces, room_tokens, limit_tokens, taken_ranges)
        slots = asyncio.Semaphore(MAX_PARALLEL_CALLS)

        async def summarize(rounds: Sequence[Round]) -> Summary:
            async with slots:
                return await self._write_part(tail, rounds[0].from_seq, rounds[-1].to_seq, (), limit_tokens, write_part)

        # Exceptions are collected first, so that each part that succeeds is stored before the first failure is raised.
        new_parts = await asyncio.gather(*map(summarize, stretches), return_exceptions=True)
        for new_part in new_parts:
            if isinstance(new_part, BaseException):
                raise new_part
        summaries = [piece for piece in (*pieces, *new_parts) if isinstance(piece, Summary)]
        summaries.sort(key=lambda summary: summary.from_seq)
        while mergeable := _find_mergeable_parts(summaries, room_tokens):
            part = await self._write_part(
                tail, mergeable[0].from_seq, mergeable[-1].to_seq, mergeable, limit_tokens, write_part
            )
            index = summaries.index(mergeable[0])
            summaries[index : index + len(mergeable)] = [part]
        end_seq = summaries[-1].to_seq if summaries else 0
        return summaries, self._read_messages(end_seq, len(self.source.messages))

    def _read_messages(self, from_seq: int, to_seq: int) -> Sequence[LogMessage]:
        """Returns what the summarizer reads of a range of the log."""
        return self.job.client_words.apply_to_log_messages(self.source.messages[from_seq:to_seq])

    async def _read_stored_parts(self) -> tuple[list[Summary], set[tuple[int, int]]]:
        """Reads the stored part summaries of this log, and the ranges of its other summaries.

        The store keeps one summary for each range, so a part must not have the range of another summary.
        """
        links = [entry.link for entry in self.source.messages]
        try:
            stored = await self.store.find_summaries(tenant=self.job.tenant, root=self.job.root, links=links)
        except StoreUnavailable:
            return [], set()
        log_summaries = [
            summary
            for summary in stored
            # Logs that differ in system messages share links, but their seqs differ.
            if summary.to_seq <= len(links)
            and links[summary.to_seq - 1] == summary.to_link
            and summary.from_link == (links[summary.from_seq - 1] if summary.from_seq else self.source.from_link)
        ]
        parts = [
            summary for summary in log_summaries if summary.kind == "part" and self.job.client_words.is_usable(summary)
        ]
        return parts, {
            (summary.from_seq, summary.to_seq)
            for summary in log_summaries
            if summary.kind != "part" and not summary.folds
        }

    async def _write_part(
        self,
        tail: LogTail,
        from_seq: int,
        to_seq: int,
        merged: Sequence[Summary],
        limit_tokens: int,
        write_part: WritePart,
    ) -> Summary:
        """Writes and stores a part summary."""
        last = tail.find_message(to_seq - 1)
        messages = () if merged else tuple(self.source.messages[from_seq:to_seq])
        text, model = await write_part(() if merged else self._read_messages(from_seq, to_seq), merged, limit_tokens)
        source = SummarySource(
            from_seq=from_seq,
            from_link=tail.find_message(from_seq - 1).link if from_seq else self.source.from_link,
            to_link=last.link,
            boundary=tail.build_boundary(to_seq),
            replaced_tokens=tail.count_tokens_before(to_seq) - tail.count_tokens_before(from_seq),
            messages=messages,
            folded_summaries=tuple(merged),
        )
        summary = replace(self.build_summary(source, text, model), kind="part")
        if self.lease is not None:
            # A part summary that cannot be stored is used for this checkpoint only.
            with suppress(StoreUnavailable, LeaseLost):
                await self.store.add_summary(
                    tenant=self.job.tenant, root=self.job.root, summary=summary, fence=self.lease
                )
        return summary


def _split_at_stored_parts(tail: LogTail, stored_parts: Sequence[Summary]) -> list[LogPiece]:
    """Splits the log into part summaries and the rounds between them, in order.

    Of several parts that begin at one message, the longest is taken.
    """
    longest: dict[int, Summary] = {}
    for part in sorted(stored_parts, key=lambda part: part.to_seq):
        longest[part.from_seq] = part
    pieces: list[LogPiece] = []
    gap: list[Round] = []
    end_seq = 0
    for log_round in tail.rounds:
        if log_round.from_seq < end_seq:
            continue
        if (summary := longest.get(log_round.from_seq)) is not None:
            pieces += [tuple(gap), summary] if gap else [summary]
            gap, end_seq = [], summary.to_seq
        else:
            gap.append(log_round)
    return [*pieces, tuple(gap)] if gap else pieces


def _choose_stretches_to_summarize(
    pieces: Sequence[LogPiece], room_tokens: int, limit_tokens: int, taken_ranges: Set[tuple[int, int]]
) -> list[Sequence[Round]]:
    """Chooses the stretches of rounds to summarize, oldest first, until the rest can be read at once.

    If there would be more than `MAX_PARTS` stretches, they are longer than the room, and the summarizer gets them
    shortened.
    """
    gaps = [piece for piece in pieces if not isinstance(piece, Summary)]
    transcript_tokens = sum(
        piece.tokens if isinstance(piece, Summary) else _count_transcript_tokens(piece) for piece in pieces
    )
    longest = max(room_tokens, -(-sum(map(_count_transcript_tokens, gaps)) // MAX_PARTS))
    stretches: list[Sequence[Round]] = []
    for gap in gaps:
        for stretch in _cut_into_stretches(gap, longest, taken_ranges):
            # Only the end of the log is read verbatim, so that the part summaries have no gap.
            if transcript_tokens <= room_tokens and gap is pieces[-1]:
                return stretches
            stretches.append(stretch)
            transcript_tokens -= max(0, _count_transcript_tokens(stretch) - limit_tokens)
    return stretches


def _cut_into_stretches(
    rounds: Sequence[Round], longest_tokens: int, taken_ranges: Set[tuple[int, int]]
) -> Iterator[Sequence[Round]]:
    """Cuts rounds into few, long stretches. A stretch ends at a turn's end if one is near, and never has the range of
    another summary."""
    start, tokens = 0, 0
    for index, log_round in enumerate(rounds):
        if index > start and tokens + _count_transcript_tokens([log_round]) > longest_tokens:
            end = next((turn for turn in range(index, start, -1) if rounds[turn].opens_turn), index)
            if _count_transcript_tokens(rounds[start:end]) < MIN_STRETCH_FILL_SHARE * tokens:
                end = index
            if end - start > 1 and (rounds[start].from_seq, rounds[end - 1].to_seq) in taken_ranges:
                end -= 1
            yield rounds[start:end]
            start, tokens = end, _count_transcript_tokens(rounds[end:index])
        tokens += _count_transcript_tokens([log_round])
    yield rounds[start:]


def _find_mergeable_parts(summaries: Sequence[Summary], room_tokens: int) -> list[Summary]:
    """Finds the longest run of neighbouring part summaries to merge; none if all leave enough room.

    Merged summaries are not merged with single ones: otherwise the oldest summary would be rewritten each time.
    """
    if sum(summary.tokens for summary in summaries) <= room_tokens * MAX_SUMMARIES_SHARE:
        return []
    longest = max(([*run] for _, run in groupby(summaries, key=lambda summary: bool(summary.folds))), key=len)
    return longest if len(longest) > 1 else []


def _count_transcript_tokens(rounds: Sequence[Round]) -> int:
    """Counts the tokens of rounds in a transcript, with a line for each speaker."""
    return sum(log_round.tokens + SPEAKER_LINE_TOKENS * (log_round.to_seq - log_round.from_seq) for log_round in rounds)
