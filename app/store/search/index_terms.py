"""How messages are found by their words: what stands in the index, and how much a word tells. Pure.

Databases keep hashes of terms (`conversation.search_terms`) and not the terms. Each is scoped to the conversation whose
rows hold the message, so that a search reads nothing of other conversations, however alike they are: thousands may
share one root where they begin with the same greeting.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final, TypeVar

from app.conversation.messages import LogMessage
from app.conversation.search_terms import terms_of_message
from app.store.contract import Found

Key = TypeVar("Key")

TERM_BITS: Final = 40
_SCOPE_BITS: Final = 63 - TERM_BITS
_FINENESS: Final = 1000
TERMS_AT_ONCE: Final = 16_384
"""What is indexed in one transaction: other writers wait for it, some fifty milliseconds."""
MOST_HITS: Final = 1024
"""What occurs more often in a stretch of a log is common there: to read all of it would take longer with every turn.
But what is not among the newest at all is read wherever it is."""
NEWEST: Final = 256
"""Among so many messages at the end of a stretch common terms are looked for, and nowhere else."""
DENSE_HITS: Final = NEWEST // 4
"""What occurs so often among the newest is common, however often it occurs before them."""
RANKED_HITS: Final = 4096
"""Terms count from the rarest on until they have this many hits: what is in every other message tells nothing, and to
rank it would take longest."""


def scope_of(root: str, conversation_id: str) -> int:
    """A conversation's place in an index of whole numbers: a signed 64-bit hash."""
    digest = blake2b(f"{root}\0{conversation_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def tenant_scope_of(tenant: str) -> int:
    """A tenant's place in an index of whole numbers: a signed 64-bit hash."""
    digest = blake2b(f"tenant\0{tenant}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


@lru_cache(maxsize=32_768)
def term_key(term: str) -> int:
    """A term's place within a conversation: a hash of `TERM_BITS`."""
    return int.from_bytes(blake2b(term.encode("utf-8", "surrogatepass"), digest_size=TERM_BITS // 8).digest(), "big")


def scope_prefix(root: str, conversation_id: str) -> int:
    """What is added to `term_key` for a key that scopes itself, so that one conversation's keys lie together."""
    return (scope_of(root, conversation_id) & ((1 << _SCOPE_BITS) - 1)) << TERM_BITS


def keys_of_messages(entries: Sequence[LogMessage]) -> list[list[int]]:
    """The distinct term keys of each message, in order. Takes some fifty microseconds for each."""
    return [keys_of_terms(terms_of_message(entry.message)) for entry in entries]


def portions(keys: Sequence[Sequence[int]]) -> Iterator[slice]:
    """Parts the messages with these term keys into runs of at most `TERMS_AT_ONCE` terms, or of one message."""
    start = terms = 0
    for place, held in enumerate(keys):
        if place > start and terms + len(held) > TERMS_AT_ONCE:
            yield slice(start, place)
            start, terms = place, 0
        terms += len(held)
    if start < len(keys):
        yield slice(start, len(keys))


def keys_of_terms(terms: Iterable[str]) -> list[int]:
    return sorted(set(map(term_key, set(terms))))


def weight(messages: int, matching: int) -> int:
    """How much a term tells that `matching` of `messages` hold, in thousandths: BM25's inverse document frequency.

    A whole number, so that sums are the same in whatever order a database adds them up.
    """
    return round(_FINENESS * math.log(1 + (messages - matching + 0.5) / (matching + 0.5)))


def score(weights: int) -> float:
    """A sum of weights as `Found.score`."""
    return weights / _FINENESS


def told(
    terms_at: Mapping[Key, Iterable[str]], *, count: int, matching: Mapping[str, int] | None = None
) -> dict[Key, int]:
    """The sums of weights of those that hold a telling term, as databases do it.

    Args:
        terms_at: which of the asked terms each message, or conversation, holds.
        count: how many there are altogether.
        matching: how many of them hold each term, where `terms_at` does not show all.
    """
    shown = Counter(term for terms in terms_at.values() for term in terms)
    matching = shown if matching is None else matching
    weights, hits = {}, 0
    for term in sorted(shown, key=lambda term: (matching[term], term_key(term))):
        if hits < RANKED_HITS:
            weights[term] = weight(count, matching[term])
        hits += shown[term]
    sums = {key: sum(weights.get(term, 0) for term in terms) for key, terms in terms_at.items()}
    return {key: sums[key] for key, terms in terms_at.items() if any(term in weights for term in terms)}


def bounded(
    terms_at: Mapping[int, Collection[str]], parts: Iterable[tuple[int, int]]
) -> tuple[dict[int, list[str]], Counter[str]]:
    """What a search reads of a log, and in how many messages each term is, as far as it can tell from that.

    In a stretch of more than `MOST_HITS` messages, terms that are common are read among its newest messages only, and
    taken to be as common in all of it.

    Args:
        terms_at: which of the asked terms each message holds, by seq.
        parts: the stretches of the log, `[from_seq, to_seq)`.
    """
    shown: dict[int, list[str]] = {}
    matching: Counter[str] = Counter()
    for from_seq, to_seq in parts:
        held = {seq: terms_at[seq] for seq in range(from_seq, to_seq) if seq in terms_at}
        hits = Counter(term for terms in held.values() for term in terms)
        late = Counter(term for seq, terms in held.items() if seq >= to_seq - NEWEST for term in terms)
        is_long = to_seq - from_seq > MOST_HITS
        common = {term for term in late if is_long and (late[term] >= DENSE_HITS or hits[term] > MOST_HITS)}
        for term, all_hits in hits.items():
            estimated = late[term] * (to_seq - from_seq) // NEWEST
            rare = 0 if late[term] >= DENSE_HITS else min(all_hits, MOST_HITS)
            matching[term] += max(estimated, rare) if term in common else all_hits
        for seq, terms in held.items():
            shown[seq] = [term for term in terms if seq >= to_seq - NEWEST or term not in common]
    return shown, matching


def best(
    terms_at: Mapping[int, Iterable[str]], *, messages: int, limit: int, matching: Mapping[str, int] | None = None
) -> dict[int, int]:
    """The sums of weights of the messages that tell most, best first, at equal sums the later.

    Args:
        terms_at: which of the asked terms each message holds, by seq.
        messages: how many there are in the range that is searched.
        matching: as of `told`.
    """
    found = told(terms_at, count=messages, matching=matching)
    ranked = sorted(found.items(), key=lambda entry: (entry[1], entry[0]), reverse=True)
    return dict(ranked[:limit])


def found_in(
    log: Mapping[int, LogMessage],
    terms_at: Mapping[int, Iterable[str]],
    *,
    messages: int,
    limit: int,
    matching: Mapping[str, int] | None = None,
) -> list[Found]:
    """What `Store.search` gives for a log in memory: the best messages, then those beside them, by seq.

    Args:
        log: the messages of the range, by seq.
        terms_at, messages, limit, matching: as of `best`.
    """
    ranked = best(terms_at, messages=messages, limit=limit, matching=matching)
    beside = sorted({near for seq in ranked for near in (seq - 1, seq + 1)} - ranked.keys())
    found = [Found(log[seq], score(weights)) for seq, weights in ranked.items()]
    return found + [Found(log[seq], None) for seq in beside if seq in log]
