"""Which of the stored chunks stand for the log: the active chain, and the folds over a prefix of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from app.conversation.messages import Chunk


def active_chain(chunks: Iterable[Chunk]) -> tuple[tuple[Chunk, ...], tuple[Chunk, ...]]:
    """The chain from the log's start, each chunk beginning where the one before ended, and its folds by reach.

    Args:
        chunks: every chunk whose links lie on the conversation's path, in any order.
    """
    starting: dict[int, list[Chunk]] = defaultdict(list)
    folds_ending: dict[int, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        if chunk.folds and chunk.from_seq == 0:
            folds_ending[chunk.to_seq].append(chunk)
        elif not chunk.folds and chunk.to_seq > chunk.from_seq:
            starting[chunk.from_seq].append(chunk)
    chain: list[Chunk] = []
    folds: list[Chunk] = []
    position = 0
    while position in starting:
        chain.append(min(starting[position], key=_preference))
        position = chain[-1].to_seq
        if position in folds_ending:
            folds.append(min(folds_ending[position], key=_preference))
    return tuple(chain), tuple(folds)


def shown_at(chain: tuple[Chunk, ...], folds: tuple[Chunk, ...], count: int) -> tuple[Chunk, ...]:
    """The first `count` chunks of the chain as a view shows them: the longest fold in place of what it folds."""
    active = chain[:count]
    if not active:
        return ()
    reach = active[-1].to_seq
    usable = [fold for fold in folds if fold.to_seq <= reach]
    if not usable:
        return active
    fold = max(usable, key=lambda candidate: candidate.to_seq)
    return (fold, *(chunk for chunk in active if chunk.from_seq >= fold.to_seq))


def _preference(chunk: Chunk) -> tuple[bool, datetime, str]:
    """A model's summary before a mechanical one, then the oldest; the id settles what is left."""
    return chunk.kind == "mechanical", chunk.created_at, chunk.id
