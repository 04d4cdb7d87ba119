"""A stretch that is longer than a summarizer can read, in parts that it can: each is summarized, then all are merged.

There are never more parts than their summaries fit into one call that merges them. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.compaction.summarizer.transcript import SPEAKER_LINE_TOKENS, Count, Entry, cut_to

MOST_PARTS = 15
"""With the call that merges them, sixteen calls at the most for one summary."""
SMALLEST_PART_TOKENS = 128
"""Below this the summary of a part keeps hardly a fact."""
SLACK = 1.15
"""Up to this many times what fits, shortening costs less than three calls for one."""
FILL = 0.9
"""How full parts are made, since slices are measured in characters."""
SMALLEST_SLICE = 0.25
"""Of a part: with less left over, an entry begins the next part."""


def most_parts(room_tokens: int) -> int:
    """How many parts a summarizer that reads `room_tokens` at a time can merge."""
    return max(1, min(MOST_PARTS, room_tokens // (SMALLEST_PART_TOKENS + SPEAKER_LINE_TOKENS)))


def part_limit(parts: int, room_tokens: int, limit_tokens: int) -> int:
    """How long the summary of each part may be, in tokens."""
    share = room_tokens // max(1, parts) - SPEAKER_LINE_TOKENS
    return max(min(SMALLEST_PART_TOKENS, limit_tokens), min(limit_tokens, share))


def parts_of(entries: Sequence[Entry], room_tokens: int, count: Count) -> list[list[Entry]]:
    """Entries in stretches of about `room_tokens`, long ones sliced; one stretch where all of it nearly fits.

    What is longer than all parts together is shortened first: long entries to head and tail.
    """
    sizes = [count(entry.text) + SPEAKER_LINE_TOKENS for entry in entries]
    most = most_parts(room_tokens)
    if sum(sizes) <= room_tokens * SLACK or most == 1:
        return [list(entries)]
    each = int(room_tokens * FILL)
    entries = cut_to(entries, int(each * most * (1 - SMALLEST_SLICE)), count)
    parts: list[list[Entry]] = [[]]
    left = each
    for entry in entries:
        for piece, size in _pieces(entry, count, each, left):
            if size > left:
                parts.append([])
                left = each
            parts[-1].append(piece)
            left -= size
    return [part for part in parts if part]


def _pieces(entry: Entry, count: Count, each: int, left: int) -> list[tuple[Entry, int]]:
    """An entry with its size in tokens; one that does not fit in slices: the first as large as what is left."""
    size = count(entry.text) + SPEAKER_LINE_TOKENS
    if size <= left or (size <= each and left < each * SMALLEST_SLICE):
        return [(entry, size)]
    chars_per_token = len(entry.text) / max(1, size - SPEAKER_LINE_TOKENS)
    room = left if left >= each * SMALLEST_SLICE else each
    pieces = []
    at = 0
    while at < len(entry.text):
        taken = max(1, int((room - SPEAKER_LINE_TOKENS) * chars_per_token))
        speaker = entry.speaker if at == 0 else f"{entry.speaker}, continued"
        tokens = int(min(taken, len(entry.text) - at) / chars_per_token) + SPEAKER_LINE_TOKENS
        pieces.append((Entry(entry.place, speaker, entry.text[at : at + taken]), tokens))
        at += taken
        room = each
    return pieces
