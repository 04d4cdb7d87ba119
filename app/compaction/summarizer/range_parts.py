"""A stretch that is longer than a summarizer can read, in parts that it can: each is summarized, then all are merged.

There are never more parts than their summaries fit into one call that merges them. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.compaction.summarizer.transcript import SPEAKER_LINE_TOKENS, CountTokens, TranscriptEntry, cut_entries

MAX_PARTS = 15
"""With the call that merges them, sixteen calls at the most for one summary."""
MIN_PART_TOKENS = 128
"""Below this the summary of a part keeps hardly a fact."""
OVERSIZE_FACTOR = 1.15
"""Up to this many times what fits, shortening costs less than three calls for one."""
PART_FILL_SHARE = 0.9
"""How full parts are made, since slices are measured in characters."""
MIN_SLICE_SHARE = 0.25
"""Of a part: with less left over, an entry begins the next part."""


def compute_max_parts(room_tokens: int) -> int:
    """How many parts a summarizer that reads `room_tokens` at a time can merge."""
    return max(1, min(MAX_PARTS, room_tokens // (MIN_PART_TOKENS + SPEAKER_LINE_TOKENS)))


def compute_part_limit(part_count: int, room_tokens: int, limit_tokens: int) -> int:
    """How long the summary of each part may be, in tokens."""
    share = room_tokens // max(1, part_count) - SPEAKER_LINE_TOKENS
    return max(min(MIN_PART_TOKENS, limit_tokens), min(limit_tokens, share))


def split_into_parts(
    entries: Sequence[TranscriptEntry], room_tokens: int, count_tokens: CountTokens
) -> list[list[TranscriptEntry]]:
    """Entries in stretches of about `room_tokens`, long ones sliced; one stretch where all of it nearly fits.

    What is longer than all parts together is shortened first: long entries to head and tail.
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
    """An entry with its size in tokens; one that does not fit in slices: the first as large as what is left."""
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
