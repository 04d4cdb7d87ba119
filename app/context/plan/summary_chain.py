"""Which of the stored chunks stand for the log: the active chain, and the folds over a prefix of it."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import datetime
from itertools import accumulate

from app.context.view.client_versions import ClientVersions
from app.conversation.messages import Chunk


def active_chain(
    chunks: Iterable[Chunk], *, replacing: bool = False, omitted: Set[int] = frozenset()
) -> tuple[tuple[Chunk, ...], tuple[Chunk, ...]]:
    """The chain from the log's start, each chunk beginning where the one before ended, and its folds by reach. Parts
    that checkpoints are written from are left aside.

    Messages that the client leaves out need no chunk: the chain goes on behind them. A chunk that stands for nothing
    else is not part of it; one that stands for any message that the client still sends is.

    Args:
        chunks: every chunk whose links lie on the conversation's path, in any order.
        replacing: instead of a chain, every chunk from the log's start, by reach: each stands for all before it.
        omitted: seqs of the messages that the client leaves out (`find_omitted`).
    """
    chunks = [chunk for chunk in chunks if chunk.kind != "part"]
    if replacing:
        return _from_the_start(chunks), ()
    starting: dict[int, list[Chunk]] = defaultdict(list)
    folds_ending: dict[int, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        if chunk.folds:
            folds_ending[chunk.to_seq].append(chunk)
        elif not chunk.folds and chunk.to_seq > chunk.from_seq:
            starting[chunk.from_seq].append(chunk)
    chain: list[Chunk] = []
    folds: list[Chunk] = []
    position = 0
    while position in starting or position in omitted:
        if position not in starting:
            position += 1
            continue
        chunk = min(starting[position], key=_preference)
        position = chunk.to_seq
        if all(seq in omitted for seq in range(chunk.from_seq, chunk.to_seq)):
            continue
        chain.append(chunk)
        usable = [fold for fold in folds_ending.get(position, ()) if fold.from_seq <= chain[0].from_seq]
        if usable:
            folds.append(min(usable, key=_preference))
    return tuple(chain), tuple(folds)


def find_omitted(versions: ClientVersions) -> frozenset[int]:
    """Seqs of the messages that the client leaves out, without those that a summary of its own stands for."""
    omitted = {seq for seq in versions if versions.is_omitted(seq)}
    for seq in versions:
        version = versions.get(seq)
        if version is not None and version.bodies and version.to_seq > seq + 1:
            omitted.difference_update(range(seq, version.to_seq))
    return frozenset(omitted)


def _from_the_start(chunks: Iterable[Chunk]) -> tuple[Chunk, ...]:
    ending: dict[int, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        if chunk.from_seq == 0 and chunk.to_seq > 0:
            ending[chunk.to_seq].append(chunk)
    return tuple(min(ending[to_seq], key=_preference) for to_seq in sorted(ending))


def totals_by_end(chain: Sequence[Chunk]) -> dict[int, int]:
    """What the chain weighs up to each place where one of its chunks ends."""
    return dict(zip((chunk.to_seq for chunk in chain), accumulate(chunk.tokens for chunk in chain), strict=True))


def fold_at(folds: Sequence[Chunk], totals: Mapping[int, int], reach_seq: int, limit_tokens: int) -> Chunk | None:
    """The fold that stands in a view whose summaries reach `reach_seq`, so that they weigh at most `limit_tokens`.

    None where they do so by themselves: what a smaller window had folded is told in full again. Otherwise the fold that
    takes in least, or the longest where none takes in enough.
    """
    total = totals.get(reach_seq, 0)
    if total <= limit_tokens:
        return None
    usable = [fold for fold in folds if fold.to_seq <= reach_seq]
    light = (fold for fold in usable if fold.tokens + total - totals[fold.to_seq] <= limit_tokens)
    return next(light, usable[-1] if usable else None)


def shown_at(chain: tuple[Chunk, ...], fold: Chunk | None, count: int) -> tuple[Chunk, ...]:
    """The first `count` chunks of the chain as a view shows them, `fold` in place of what it folds."""
    if fold is None:
        return chain[:count]
    return (fold, *chain[bisect_left(chain, fold.to_seq, key=lambda chunk: chunk.from_seq) : count])


def _preference(chunk: Chunk) -> tuple[bool, bool, datetime, str]:
    """A model's summary before a mechanical one, then one that was revised, then the oldest; the id settles what is
    left."""
    return chunk.kind == "mechanical", chunk.revision == 1, chunk.created_at, chunk.id
