"""The search index's keys and its ranking: hashes of terms, and how much weight a term has. Pure.

Databases store hashes of terms (`conversation.search_terms`), not the terms. Each hash is scoped to the conversation
whose rows hold the message, so a search reads nothing of other conversations, even if they are alike: thousands may
share one root because they begin with the same greeting.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final, TypeVar

from app.conversation.conversation_types import LogMessage
from app.conversation.search_terms import extract_message_terms
from app.store.contract.conversations import SearchHit

Key = TypeVar("Key")

TERM_BITS: Final = 40
_SCOPE_BITS: Final = 63 - TERM_BITS
_WEIGHT_SCALE: Final = 1000
MAX_BATCH_TERMS: Final = 16_384
"""Terms that are indexed in one transaction. Other writers wait for it, about fifty milliseconds."""
COMMON_TERM_HITS: Final = 1024
"""A term that occurs more often than this in a segment of a log is common there: reading all its hits would take longer
with every turn. A term that does not occur among the newest messages is read wherever it is.
"""
NEWEST_MESSAGES: Final = 256
"""Common terms are searched only among this many messages at the end of a segment."""
COMMON_NEWEST_HITS: Final = NEWEST_MESSAGES // 4
"""A term that occurs this often among the newest messages is common, however often it occurs before them."""
MAX_RANKED_HITS: Final = 4096
"""Terms count, rarest first, until they have this many hits together. A term that every other message has tells
nothing, and ranking its hits would take longest.
"""

NEIGHBOUR_STEPS: Final = (-2, -1, 1, 2)
"""Where the neighbours of a message stand that a search returns with it. On FriendsQA, two on each side let quotations
hold 1 to 2 % more of the answers than one."""


def hash_conversation_scope(root: str, conversation_id: str) -> int:
    """Returns the key of a conversation in the search index: a signed 64-bit hash."""
    digest = blake2b(f"{root}\0{conversation_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def hash_tenant_scope(tenant: str) -> int:
    """Returns the key of a tenant in the search index: a signed 64-bit hash."""
    # surrogatepass: a name from a header may contain lone surrogates, which strict UTF-8 refuses.
    digest = blake2b(f"tenant\0{tenant}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


@lru_cache(maxsize=32_768)
def hash_term(term: str) -> int:
    """Returns the key of a term inside a conversation: a hash of `TERM_BITS`."""
    return int.from_bytes(blake2b(term.encode("utf-8", "surrogatepass"), digest_size=TERM_BITS // 8).digest(), "big")


def term_key_prefix(root: str, conversation_id: str) -> int:
    """Returns the bits that are combined with `hash_term` for a key that includes its conversation, so that the keys of
    one conversation lie together.
    """
    return (hash_conversation_scope(root, conversation_id) & ((1 << _SCOPE_BITS) - 1)) << TERM_BITS


def hash_message_terms(entries: Sequence[LogMessage]) -> list[list[int]]:
    """Returns the distinct term keys of each message, sorted. Takes about fifty microseconds for each message."""
    return [hash_terms(extract_message_terms(entry.message)) for entry in entries]


def split_index_batches(message_keys: Sequence[Sequence[int]]) -> Iterator[slice]:
    """Splits messages with these term keys into slices of at most `MAX_BATCH_TERMS` terms, or of one message."""
    start = terms = 0
    for index, term_keys in enumerate(message_keys):
        if index > start and terms + len(term_keys) > MAX_BATCH_TERMS:
            yield slice(start, index)
            start, terms = index, 0
        terms += len(term_keys)
    if start < len(message_keys):
        yield slice(start, len(message_keys))


def hash_terms(terms: Iterable[str]) -> list[int]:
    return sorted(set(map(hash_term, set(terms))))


def term_weight(message_count: int, matching_count: int) -> int:
    """Returns the weight, in thousandths, of a term that `matching_count` of `message_count` messages have: BM25's
    inverse document frequency.

    A whole number, so that sums are the same in whatever order a database adds them up.
    """
    return round(_WEIGHT_SCALE * math.log(1 + (message_count - matching_count + 0.5) / (matching_count + 0.5)))


def weights_to_score(weights: int) -> float:
    """Converts a sum of weights to `SearchHit.score`."""
    return weights / _WEIGHT_SCALE


def sum_term_weights(
    terms_by_key: Mapping[Key, Iterable[str]], *, total_count: int, matching_counts: Mapping[str, int] | None = None
) -> dict[Key, int]:
    """Returns the sums of weights of the messages, or conversations, that have at least one counted term. Databases
    compute the same.

    Args:
        terms_by_key: which of the query's terms each message, or conversation, has.
        total_count: how many messages, or conversations, there are.
        matching_counts: how many of them have each term, if `terms_by_key` does not show all.
    """
    shown = Counter(term for terms in terms_by_key.values() for term in terms)
    matching_counts = shown if matching_counts is None else matching_counts
    weights, hits = {}, 0
    for term in sorted(shown, key=lambda term: (matching_counts[term], hash_term(term))):
        # The term that crosses the bound still counts: otherwise a query of one common term would find nothing.
        if hits < MAX_RANKED_HITS:
            weights[term] = term_weight(total_count, matching_counts[term])
        hits += shown[term]
    sums = {key: sum(weights.get(term, 0) for term in terms) for key, terms in terms_by_key.items()}
    return {key: sums[key] for key, terms in terms_by_key.items() if any(term in weights for term in terms)}


def limit_common_terms(
    terms_by_seq: Mapping[int, Collection[str]], ranges: Iterable[tuple[int, int]]
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


def rank_by_weight(
    terms_by_seq: Mapping[int, Iterable[str]],
    *,
    message_count: int,
    limit: int,
    matching_counts: Mapping[str, int] | None = None,
) -> dict[int, int]:
    """Returns the sums of weights of the best messages, best first; at equal sums the later message is better.

    Args:
        terms_by_seq: which of the query's terms each message has, by seq.
        message_count: how many messages are in the searched range.
        limit: the most messages to return.
        matching_counts: as in `sum_term_weights`.
    """
    found = sum_term_weights(terms_by_seq, total_count=message_count, matching_counts=matching_counts)
    ranked = sorted(found.items(), key=lambda entry: (entry[1], entry[0]), reverse=True)
    return dict(ranked[:limit])


def rank_search_hits(
    log: Mapping[int, LogMessage],
    terms_by_seq: Mapping[int, Iterable[str]],
    *,
    message_count: int,
    limit: int,
    matching_counts: Mapping[str, int] | None = None,
) -> list[SearchHit]:
    """Returns what `ConversationStore.search_log` returns, for a log in memory: the best messages, then their
    neighbours, nearest first.

    Args:
        log: the messages of the range, by seq.
        terms_by_seq, message_count, limit, matching_counts: as in `rank_by_weight`.
    """
    ranked = rank_by_weight(terms_by_seq, message_count=message_count, limit=limit, matching_counts=matching_counts)
    distances: dict[int, int] = {}
    for step in sorted(NEIGHBOUR_STEPS, key=abs):
        for seq in ranked:
            distances.setdefault(seq + step, abs(step))
    beside = sorted(distances.keys() - ranked.keys(), key=lambda seq: (distances[seq], seq))
    found = [SearchHit(log[seq], weights_to_score(weights)) for seq, weights in ranked.items()]
    return found + [SearchHit(log[seq], None) for seq in beside if seq in log]
