"""The ranking of `search_log`, in plain Python: what the statements of the databases must compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from app.store.search.term_ranking import (
    COMMON_NEWEST_HITS,
    COMMON_TERM_HITS,
    MAX_RANKED_HITS,
    NEIGHBOUR_STEPS,
    NEWEST_MESSAGES,
    hash_term,
    term_weight,
    weights_to_score,
)


def rank_log(
    terms_by_seq: Mapping[int, Collection[str]], ranges: Sequence[tuple[int, int]], *, limit: int
) -> list[tuple[int, float | None]]:
    """Returns seq and score of the best messages, then seq and None of their neighbours, nearest first.

    Args:
        terms_by_seq: which of the query's terms each message of the log has, by seq.
        ranges: as in `limit_common_terms`.
        limit: the most messages to return with a score.
    """
    shown, matching = limit_common_terms(terms_by_seq, ranges)
    shown_counts = Counter(term for terms in shown.values() for term in terms)
    weights, hits = dict[str, int](), 0
    for term in sorted(shown_counts, key=lambda term: (matching[term], hash_term(term))):
        if hits < MAX_RANKED_HITS:
            weights[term] = term_weight(len(terms_by_seq), matching[term])
        hits += shown_counts[term]
    sums = [
        (sum(weights.get(term, 0) for term in terms), seq) for seq, terms in shown.items() if weights.keys() & terms
    ]
    ranked = {seq: weight for weight, seq in sorted(sums, reverse=True)[:limit]}
    distances = dict[int, int]()
    for step in sorted(NEIGHBOUR_STEPS, key=abs):
        for seq in ranked:
            distances.setdefault(seq + step, abs(step))
    beside = sorted((terms_by_seq.keys() & distances) - ranked.keys(), key=lambda seq: (distances[seq], seq))
    return [(seq, weights_to_score(weight)) for seq, weight in ranked.items()] + [(seq, None) for seq in beside]


def limit_common_terms(
    terms_by_seq: Mapping[int, Collection[str]], ranges: Sequence[tuple[int, int]]
) -> tuple[dict[int, list[str]], Counter[str]]:
    """Returns the terms that a search reads of each message of a log, and an estimate of how many messages have each
    term.

    In a segment of more than `COMMON_TERM_HITS` messages, common terms are read among the newest messages only. Their
    frequency there is taken for the whole segment.

    Args:
        terms_by_seq: which of the query's terms each message has, by seq.
        ranges: the segments of the log, `[from_seq, to_seq)`.
    """
    shown: dict[int, list[str]] = {}
    matching: Counter[str] = Counter()
    for from_seq, to_seq in ranges:
        held = {seq: terms_by_seq[seq] for seq in range(from_seq, to_seq) if seq in terms_by_seq}
        hits = Counter(term for terms in held.values() for term in terms)
        late = Counter(term for seq, terms in held.items() if seq >= to_seq - NEWEST_MESSAGES for term in terms)
        is_long = to_seq - from_seq > COMMON_TERM_HITS
        common = {
            term for term in late if is_long and (late[term] >= COMMON_NEWEST_HITS or hits[term] > COMMON_TERM_HITS)
        }
        for term, all_hits in hits.items():
            estimated = late[term] * (to_seq - from_seq) // NEWEST_MESSAGES
            rare = 0 if late[term] >= COMMON_NEWEST_HITS else min(all_hits, COMMON_TERM_HITS)
            matching[term] += max(estimated, rare) if term in common else all_hits
        for seq, terms in held.items():
            shown[seq] = [term for term in terms if seq >= to_seq - NEWEST_MESSAGES or term not in common]
    return shown, matching
