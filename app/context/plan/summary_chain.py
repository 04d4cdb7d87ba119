"""Chooses which stored summaries stand for the log: the active chain, and the folds over a prefix of it."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate

from app.context.view.client_words import NO_WORDS, ClientWords
from app.conversation.conversation_types import Summary


def find_chain_and_folds(
    summaries: Iterable[Summary], *, are_replacing: bool = False, words: ClientWords = NO_WORDS
) -> tuple[tuple[Summary, ...], tuple[Summary, ...]]:
    """Finds the chain from the log's start, and its folds ordered by their ends.

    Each summary of the chain begins where the one before ended. Part summaries, from which checkpoints are written, are
    not used. Messages that the client leaves out need no summary: the chain goes on after them. A summary that stands
    only for such messages is not part of the chain; one that stands for any message that the client still sends is.

    Args:
        summaries: every summary whose links lie on the conversation's path, in any order.
        are_replacing: if true, the result is every summary from the log's start, ordered by their ends: each stands for
            all before it.
        words: what the client shows. Summaries of anything else are not used.
    """
    summaries = [summary for summary in words.select_usable(summaries) if summary.kind != "part"]
    omitted_seqs = words.omitted_seqs
    if are_replacing:
        return _select_summaries_from_start(summaries), ()
    starting: dict[int, list[Summary]] = defaultdict(list)
    folds_ending: dict[int, list[Summary]] = defaultdict(list)
    for summary in summaries:
        if summary.folds:
            folds_ending[summary.to_seq].append(summary)
        elif not summary.folds and summary.to_seq > summary.from_seq:
            starting[summary.from_seq].append(summary)
    chain: list[Summary] = []
    folds: list[Summary] = []
    position = 0
    while position in starting or position in omitted_seqs:
        if position not in starting:
            position += 1
            continue
        summary = min(starting[position], key=_rank_summary)
        position = summary.to_seq
        if all(seq in omitted_seqs for seq in range(summary.from_seq, summary.to_seq)):
            continue
        chain.append(summary)
        # A fold that begins after the chain's first summary would leave a gap in front of it.
        usable = [fold for fold in folds_ending.get(position, ()) if fold.from_seq <= chain[0].from_seq]
        if usable:
            folds.append(min(usable, key=_rank_summary))
    return tuple(chain), tuple(folds)


def _select_summaries_from_start(summaries: Iterable[Summary]) -> tuple[Summary, ...]:
    ending: dict[int, list[Summary]] = defaultdict(list)
    for summary in summaries:
        if summary.from_seq == 0 and summary.to_seq > 0:
            ending[summary.to_seq].append(summary)
    return tuple(min(ending[to_seq], key=_rank_summary) for to_seq in sorted(ending))


def accumulate_chain_tokens(chain: Sequence[Summary]) -> dict[int, int]:
    """Returns the tokens of the chain up to the end of each of its summaries."""
    return dict(
        zip((summary.to_seq for summary in chain), accumulate(summary.tokens for summary in chain), strict=True)
    )


def choose_fold(
    folds: Sequence[Summary], totals: Mapping[int, int], reach_seq: int, limit_tokens: int
) -> Summary | None:
    """Chooses the fold for a view whose summaries reach `reach_seq`, so that these take at most `limit_tokens`.

    Returns None if they do so without a fold: a larger window shows in full again what a smaller one had merged.
    Otherwise the fold that merges least and is small enough, or the longest fold if none is.
    """
    total = totals.get(reach_seq, 0)
    if total <= limit_tokens:
        return None
    usable = [fold for fold in folds if fold.to_seq <= reach_seq]
    light = (fold for fold in usable if fold.tokens + total - totals[fold.to_seq] <= limit_tokens)
    return next(light, usable[-1] if usable else None)


def list_shown_summaries(chain: tuple[Summary, ...], fold: Summary | None, count: int) -> tuple[Summary, ...]:
    """Returns the first `count` summaries of the chain, with `fold` in place of those that it merges."""
    if fold is None:
        return chain[:count]
    return (fold, *chain[bisect_left(chain, fold.to_seq, key=lambda summary: summary.from_seq) : count])


def _rank_summary(summary: Summary) -> tuple[bool, bool, datetime, str]:
    """Returns the sort key of summaries over the same range: a model's before a mechanical one, a revised one before
    one that was never revised, then the oldest. The id decides the rest, so that the choice is the same on each
    replica.
    """
    return summary.kind == "mechanical", summary.revision == 1, summary.created_at, summary.id
