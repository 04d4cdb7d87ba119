"""Summaries of the parts of a long log, kept for the checkpoints to come: the log before them never changes.

A checkpoint is written from the whole log. Where that is longer than the summarizer can read, summaries of its older
parts are read in place of their messages. Each part is summarized once. When the summaries of parts grow too long
themselves, those of one size are merged into one, which is kept, too; so the calls grow with the log and not with its
square. A part is no summary of a checkpoint, and is shown in no view.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

from msgspec.structs import replace

from app.compaction.compaction_job import CompactionJob, Spot
from app.compaction.summarizer.range_parts import MOST_PARTS, part_limit
from app.compaction.summarizer.transcript import SPEAKER_LINE_TOKENS
from app.context.plan.log_cuts import NEAR_SHARE, Round, Tail
from app.conversation.messages import Chunk, LogMessage
from app.errors import StoreUnavailable
from app.store.contract import Lease, LeaseLost, Store

SUMMARIES_SHARE = 0.75
"""Of what the summarizer can read, the most that summaries of parts take before they are merged."""
LEAST_PARTS = 8
"""So many summaries of parts can be read at once."""
PARALLEL_PARTS = 4

WritePart = Callable[[Sequence[LogMessage], Sequence[Chunk], int], Awaitable[tuple[str, str]]]
"""From messages, or summaries to be merged, and a limit in tokens to a summary and the model that wrote it."""
MakeChunk = Callable[[Spot, str, str], Chunk]
Piece = Chunk | tuple[Round, ...]
"""A summary of a part, or rounds that there is none for."""


@dataclass(frozen=True, slots=True)
class LogParts:
    """The parts of one log, from its beginning to the end of a checkpoint.

    `spot` is the checkpoint's place. Parts are stored under its lease; without one they serve this checkpoint only.
    """

    store: Store
    job: CompactionJob
    spot: Spot
    lease: Lease | None
    limit_tokens: int
    """The most tokens of the summary of a part."""
    make_chunk: MakeChunk

    async def cover(self, room_tokens: int, write: WritePart) -> tuple[list[Chunk], Sequence[LogMessage]]:
        """Summaries of the older part of the log, and the messages behind them: together what can be read at once.

        Raises:
            SummaryRefused, UpstreamRefused, UpstreamUnavailable: as `write`. Parts that were written are kept.
        """
        tail = await asyncio.to_thread(Tail, self.spot.messages, after=None)
        if _tokens(tail.rounds) <= room_tokens:
            return [], self.spot.messages
        limit_tokens = part_limit(LEAST_PARTS, room_tokens, self.limit_tokens)
        known, taken = await self._stored()
        pieces = _pieces(tail, known)
        due = _due(pieces, room_tokens, limit_tokens, taken)
        turns = asyncio.Semaphore(PARALLEL_PARTS)

        async def summarize(rounds: Sequence[Round]) -> Chunk:
            async with turns:
                return await self._part(tail, rounds[0].from_seq, rounds[-1].to_seq, (), limit_tokens, write)

        made = await asyncio.gather(*map(summarize, due), return_exceptions=True)
        for one in made:
            if isinstance(one, BaseException):
                raise one
        chunks = [piece for piece in (*pieces, *made) if isinstance(piece, Chunk)]
        chunks.sort(key=lambda chunk: chunk.from_seq)
        while run := _run_to_merge(chunks, room_tokens):
            part = await self._part(tail, run[0].from_seq, run[-1].to_seq, run, limit_tokens, write)
            at = chunks.index(run[0])
            chunks[at : at + len(run)] = [part]
        end_seq = chunks[-1].to_seq if chunks else 0
        return chunks, self.spot.messages[end_seq:]

    async def _stored(self) -> tuple[list[Chunk], set[tuple[int, int]]]:
        """The stored parts of this log, and the ranges of its other summaries: for a range only one is ever kept."""
        links = [entry.link for entry in self.spot.messages]
        try:
            stored = await self.store.chunks(tenant=self.job.tenant, root=self.job.root, links=links)
        except StoreUnavailable:
            return [], set()
        here = [
            chunk
            for chunk in stored
            # Logs that differ in system messages share links but not places.
            if chunk.to_seq <= len(links)
            and links[chunk.to_seq - 1] == chunk.to_link
            and chunk.from_link == (links[chunk.from_seq - 1] if chunk.from_seq else self.spot.from_link)
        ]
        parts = [chunk for chunk in here if chunk.kind == "part"]
        return parts, {(chunk.from_seq, chunk.to_seq) for chunk in here if chunk.kind != "part" and not chunk.folds}

    async def _part(
        self, tail: Tail, from_seq: int, to_seq: int, merged: Sequence[Chunk], limit_tokens: int, write: WritePart
    ) -> Chunk:
        """A new summary of a part, stored."""
        last = tail.message(to_seq - 1)
        messages = () if merged else tuple(self.spot.messages[from_seq:to_seq])
        text, model = await write(messages, merged, limit_tokens)
        spot = Spot(
            from_seq=from_seq,
            from_link=tail.message(from_seq - 1).link if from_seq else self.spot.from_link,
            to_link=last.link,
            to_skeleton=last.skeleton if last.in_skeleton else None,
            boundary=tail.boundary(to_seq),
            replaced_tokens=tail.total_before(to_seq) - tail.total_before(from_seq),
            messages=messages,
            folded=tuple(merged),
        )
        chunk = replace(self.make_chunk(spot, text, model), kind="part")
        if self.lease is not None:
            # A part that cannot be stored serves this checkpoint all the same.
            with suppress(StoreUnavailable, LeaseLost):
                await self.store.add_chunk(tenant=self.job.tenant, root=self.job.root, chunk=chunk, fence=self.lease)
        return chunk


def _pieces(tail: Tail, known: Sequence[Chunk]) -> list[Piece]:
    """The whole log in order: of parts that begin at one place the longest, and the rounds between them."""
    longest: dict[int, Chunk] = {}
    for part in sorted(known, key=lambda part: part.to_seq):
        longest[part.from_seq] = part
    pieces: list[Piece] = []
    gap: list[Round] = []
    end_seq = 0
    for one in tail.rounds:
        if one.from_seq < end_seq:
            continue
        if (chunk := longest.get(one.from_seq)) is not None:
            pieces += [tuple(gap), chunk] if gap else [chunk]
            gap, end_seq = [], chunk.to_seq
        else:
            gap.append(one)
    return [*pieces, tuple(gap)] if gap else pieces


def _due(
    pieces: Sequence[Piece], room_tokens: int, limit_tokens: int, taken_ranges: Set[tuple[int, int]]
) -> list[Sequence[Round]]:
    """The stretches to be summarized, oldest first, until what is left can be read at once.

    They are longer than the room where there would be more than `MOST_PARTS` of them: their reader gets them shortened.
    """
    gaps = [piece for piece in pieces if not isinstance(piece, Chunk)]
    taken = sum(piece.tokens if isinstance(piece, Chunk) else _tokens(piece) for piece in pieces)
    longest = max(room_tokens, -(-sum(map(_tokens, gaps)) // MOST_PARTS))
    due: list[Sequence[Round]] = []
    for gap in gaps:
        for stretch in _filled(gap, longest, taken_ranges):
            # Only the end of the log is read as it is, so that what is summarized has no gap.
            if taken <= room_tokens and gap is pieces[-1]:
                return due
            due.append(stretch)
            taken -= max(0, _tokens(stretch) - limit_tokens)
    return due


def _filled(
    rounds: Sequence[Round], longest_tokens: int, taken_ranges: Set[tuple[int, int]]
) -> Iterator[Sequence[Round]]:
    """Rounds in stretches as long as can be, so that there are few; each ends with a turn if one ends near, and none is
    over a range that has another summary."""
    start, tokens = 0, 0
    for at, one in enumerate(rounds):
        if at > start and tokens + _tokens([one]) > longest_tokens:
            end = next((turn for turn in range(at, start, -1) if rounds[turn].opens_turn), at)
            if _tokens(rounds[start:end]) < NEAR_SHARE * tokens:
                end = at
            if end - start > 1 and (rounds[start].from_seq, rounds[end - 1].to_seq) in taken_ranges:
                end -= 1
            yield rounds[start:end]
            start, tokens = end, _tokens(rounds[end:at])
        tokens += _tokens([one])
    yield rounds[start:]


def _run_to_merge(chunks: Sequence[Chunk], room_tokens: int) -> list[Chunk]:
    """Neighbouring parts to be merged into one; none where they leave room enough. Merged ones are not merged with
    single ones, or the oldest would be rewritten each time."""
    if sum(chunk.tokens for chunk in chunks) <= room_tokens * SUMMARIES_SHARE:
        return []
    longest = max(([*run] for _, run in groupby(chunks, key=lambda chunk: bool(chunk.folds))), key=len)
    return longest if len(longest) > 1 else []


def _tokens(rounds: Sequence[Round]) -> int:
    """What rounds take in a transcript, with a line for each speaker."""
    return sum(one.tokens + SPEAKER_LINE_TOKENS * (one.to_seq - one.from_seq) for one in rounds)
