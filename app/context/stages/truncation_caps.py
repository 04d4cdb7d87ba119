"""Computes how much of each message a view keeps: by age, from the policy's share for the oldest to everything for the
newest; or the same cap for all.
"""

from __future__ import annotations

from collections.abc import Sequence

CHARS_PER_TOKEN = 4
"""Roughly, for English text: https://help.openai.com/en/articles/4936856. Caps are in characters, so that applying
one needs no tokenizer."""


def compute_age_weights(count: int, oldest_share: float) -> list[float]:
    """Returns a weight for each of `count` results, oldest first, from `oldest_share` to 1."""
    if count == 1:
        return [1.0]
    return [oldest_share + (1 - oldest_share) * index / (count - 1) for index in range(count)]


def compute_equal_cap(sizes: Sequence[int], room_tokens: int) -> int:
    """Returns the largest cap under which these sizes sum to at most `room_tokens`; 0 if there is none."""
    left = room_tokens
    ordered = sorted(sizes)
    for index, size in enumerate(ordered):
        # Smallest first: what a small message does not need is shared by the larger ones.
        share = left // (len(ordered) - index)
        if size > share:
            return max(share, 0)
        left -= size
    return ordered[-1] if ordered else 0
