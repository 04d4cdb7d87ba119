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
from typing import Final

from app.conversation.conversation_types import LogMessage
from app.conversation.search_terms import extract_message_terms
from app.store.contract.conversations import SearchHit

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


@lru_cache(maxsize=8_192)
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


def rank_by_weight(terms_by_key: Mapping[int, Collection[str]], *, total_count: int, limit: int) -> dict[int, int]:
    """Returns the sums of weights of the best messages, or conversations, that have at least one counted term; best
    first. At equal sums the higher key is better. Databases compute the same.

    Args:
        terms_by_key: which of the query's terms each message, or conversation, has.
        total_count: how many messages, or conversations, there are.
        limit: the most keys to return.
    """
    matching_counts = Counter(term for terms in terms_by_key.values() for term in terms)
    weights, hits = {}, 0
    for term in sorted(matching_counts, key=lambda term: (matching_counts[term], hash_term(term))):
        # The term that crosses the bound still counts: otherwise a query of one common term would find nothing.
        if hits < MAX_RANKED_HITS:
            weights[term] = term_weight(total_count, matching_counts[term])
        hits += matching_counts[term]
    sums = [
        (sum(weights.get(term, 0) for term in terms), key)
        for key, terms in terms_by_key.items()
        if not weights.keys().isdisjoint(terms)
    ]
    return {key: weight for weight, key in sorted(sums, reverse=True)[:limit]}


def rank_search_hits(
    log: Mapping[int, LogMessage],
    terms_by_seq: Mapping[int, Collection[str]],
    *,
    message_count: int,
    limit: int,
) -> list[SearchHit]:
    """Returns what `ConversationStore.search_log` returns, for a log in memory: the best messages, then their
    neighbours, nearest first.

    Args:
        log: the messages of the range, by seq.
        terms_by_seq, message_count, limit: as in `rank_by_weight`.
    """
    ranked = rank_by_weight(terms_by_seq, total_count=message_count, limit=limit)
    distances: dict[int, int] = {}
    for step in sorted(NEIGHBOUR_STEPS, key=abs):
        for seq in ranked:
            distances.setdefault(seq + step, abs(step))
    beside = sorted(distances.keys() - ranked.keys(), key=lambda seq: (distances[seq], seq))
    found = [SearchHit(log[seq], weights_to_score(weights)) for seq, weights in ranked.items()]
    return found + [SearchHit(log[seq], None) for seq in beside if seq in log]
