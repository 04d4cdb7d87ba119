"""Splits a range that is too long for one summarizer call into parts; part summaries are then merged in one call. Pure.

There are never more parts than one merging call can read summaries of.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.compaction.summarizer.transcript import SPEAKER_LINE_TOKENS, CountTokens, TranscriptEntry, cut_entries

MAX_PARTS = 15
"""The most parts of a range. With the merging call, one summary takes at most sixteen calls."""
MAX_PARALLEL_CALLS = 12
"""How many summaries, or parts of one, are written at a time for one job: those of a history of 20,000 tokens at a
window of 4,096 in one round."""
MIN_PART_TOKENS = 128
"""The smallest limit of a part summary: below it hardly a fact is kept."""
OVERSIZE_FACTOR = 1.15
"""A range up to this many times the room is shortened instead of split: that loses less than three calls would cost."""
PART_FILL_SHARE = 0.9
"""The share of the room that a part fills. Slices are measured in characters, so their token counts are estimates."""
MIN_SLICE_SHARE = 0.25
"""If less than this share of a part is free, a long entry begins in the next part."""


def compute_max_parts(room_tokens: int) -> int:
    """Computes how many part summaries a summarizer that reads `room_tokens` at once can merge."""
    return max(1, min(MAX_PARTS, room_tokens // (MIN_PART_TOKENS + SPEAKER_LINE_TOKENS)))


def compute_part_limit(part_count: int, room_tokens: int, limit_tokens: int) -> int:
    """Computes the limit of each part summary in tokens."""
    share = room_tokens // max(1, part_count) - SPEAKER_LINE_TOKENS
    return max(min(MIN_PART_TOKENS, limit_tokens), min(limit_tokens, share))


def split_into_parts(
    entries: Sequence[TranscriptEntry], room_tokens: int, count_tokens: CountTokens
) -> list[list[TranscriptEntry]]:
    """Splits entries into parts of about `room_tokens`, and slices long entries. One part if all entries nearly fit.

    Entries that are too long for all parts together are shortened first, to their heads and tails.
    """
    sizes = [count_tokens(entry.text) + SPEAKER_LINE_TOKENS for entry in entries]
    max_parts = compute_max_parts(room_tokens)
    if sum(sizes) <= room_tokens * OVERSIZE_FACTOR or max_parts == 1:
        return [list(entries)]
    part_tokens = int(room_tokens * PART_FILL_SHARE)
    entries = cut_entries(entries, int(part_tokens * max_parts * (1 - MIN_SLICE_SHARE)), count_tokens)
    parts: list[list[TranscriptEntry]] = [[]]
    remaining_tokens = part_tokens
    for entry in entries:
        for entry_slice, size in _slice_entry(entry, count_tokens, part_tokens, remaining_tokens):
            if size > remaining_tokens:
                parts.append([])
                remaining_tokens = part_tokens
            parts[-1].append(entry_slice)
            remaining_tokens -= size
    return [part for part in parts if part]


def _slice_entry(
    entry: TranscriptEntry, count_tokens: CountTokens, part_tokens: int, remaining_tokens: int
) -> list[tuple[TranscriptEntry, int]]:
    """Slices an entry that does not fit into the current part. The first slice fills the part, if enough of it is free.

    Returns:
        The slices, each with its size in tokens.
    """
    size = count_tokens(entry.text) + SPEAKER_LINE_TOKENS
    if size <= remaining_tokens or (size <= part_tokens and remaining_tokens < part_tokens * MIN_SLICE_SHARE):
        return [(entry, size)]
    chars_per_token = len(entry.text) / max(1, size - SPEAKER_LINE_TOKENS)
    room_tokens = remaining_tokens if remaining_tokens >= part_tokens * MIN_SLICE_SHARE else part_tokens
    slices = []
    position = 0
    while position < len(entry.text):
        slice_chars = max(1, int((room_tokens - SPEAKER_LINE_TOKENS) * chars_per_token))
        speaker = entry.speaker if position == 0 else f"{entry.speaker}, continued"
        tokens = int(min(slice_chars, len(entry.text) - position) / chars_per_token) + SPEAKER_LINE_TOKENS
        slices.append((TranscriptEntry(entry.number, speaker, entry.text[position : position + slice_chars]), tokens))
        position += slice_chars
        room_tokens = part_tokens
    return slices
