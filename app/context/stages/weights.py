"""How much of its tool results a view keeps by their age: the oldest the policy's share, the newest everything."""

from __future__ import annotations

CHARS_PER_TOKEN = 4
"""English text, roughly: https://help.openai.com/en/articles/4936856. Caps are in characters, so that applying one
needs no tokenizer."""


def weights(count: int, oldest_share: float) -> list[float]:
    """A weight for each of `count` results, oldest first, from `oldest_share` to 1."""
    if count == 1:
        return [1.0]
    return [oldest_share + (1 - oldest_share) * at / (count - 1) for at in range(count)]
