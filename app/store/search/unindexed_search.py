"""Searches without an index: reads the newest messages and searches them in memory.

The number of messages is bounded, so that no search takes all of the machine; older messages are not found. A process
runs one search at a time, off the event loop.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.search_terms import extract_message_terms
from app.store.contract.conversations import ConversationHit, ConversationQuery, ConversationStore, SearchHit
from app.store.encryption.sealed_fields import FieldSealer
from app.store.lineage import count_range_messages, first_own_seq
from app.store.search.term_ranking import rank_by_weight, rank_search_hits, term_weight, weights_to_score

MAX_SEARCHED_MESSAGES: Final = 2000
MAX_SEARCHED_CONVERSATIONS: Final = 100
"""The newest conversations of a tenant that a search reads; of each at most `MAX_MESSAGES_PER_CONVERSATION` of its
newest messages.
"""
MAX_MESSAGES_PER_CONVERSATION: Final = 200
MAX_CACHED_TERMS: Final = 2_000_000
"""8 bytes each: 16 megabytes."""
CIPHERTEXT_TAIL_CHARS: Final = 24
"""Characters at the end of a ciphertext in base64 (its authentication tag), which no other ciphertext shares."""
_EARLIEST_TIME: Final = datetime.min.replace(tzinfo=UTC)


class UnindexedSearch:
    """Searches a store whose messages are encrypted.

    The terms of searched messages are cached, as numbers that mean nothing outside of this process, up to
    `MAX_CACHED_TERMS`: the next turn of the same conversation searches them again.
    """

    def __init__(self, inner: ConversationStore, sealer: FieldSealer) -> None:
        self._inner = inner
        self._sealer = sealer
        self._term_cache: OrderedDict[bytes, array[int]] = OrderedDict()
        self._cached_term_count = 0
        self._search_lock = asyncio.Lock()

    async def search_log(
        self, conversation: Conversation, *, terms: Sequence[str], from_seq: int, before_seq: int, limit: int
    ) -> list[SearchHit]:
        """As `ConversationStore.search_log`, among the newest `MAX_SEARCHED_MESSAGES` of the range."""
        end = min(before_seq, conversation.head_seq + 1)
        start = max(from_seq, end - MAX_SEARCHED_MESSAGES, 0)
        if not terms or start >= end:
            return []
        log = {entry.seq: entry for entry in await self._inner.read_log(conversation, start, end)}
        # One search at a time: decryption and tokenization would otherwise take all threads, and the cache is not
        # thread-safe.
        async with self._search_lock:
            holding = await asyncio.to_thread(self._find_query_terms, conversation.tenant, log, terms)
        found = rank_search_hits(
            log, holding, message_count=count_range_messages(conversation, start, end), limit=limit
        )
        return [SearchHit(self._sealer.unseal_message(conversation.tenant, one.message), one.score) for one in found]

    async def search_tenant(self, *, tenant: str, terms: Sequence[str], limit: int) -> list[ConversationHit]:
        """As `ConversationStore.search_tenant`, in the tenant's newest conversations."""
        if not terms:
            return []
        remaining_messages = MAX_SEARCHED_MESSAGES
        newest = await self._inner.list_conversations(
            tenant=tenant, query=ConversationQuery(limit=MAX_SEARCHED_CONVERSATIONS)
        )
        scanned: list[_ScannedConversation] = []
        async with self._search_lock:
            for conversation in newest:
                end = conversation.head_seq + 1
                start = max(first_own_seq(conversation), end - min(MAX_MESSAGES_PER_CONVERSATION, remaining_messages))
                entries = await self._inner.read_log(conversation, start, end)
                remaining_messages -= len(entries)
                log = {entry.seq: entry for entry in entries}
                scanned.append(
                    _ScannedConversation(
                        conversation, log, await asyncio.to_thread(self._find_query_terms, tenant, log, terms)
                    )
                )
                if remaining_messages <= 0:
                    break
        return [
            ConversationHit(
                self._sealer.unseal_conversation_state(one.conversation),
                self._sealer.unseal_message(tenant, one.message),
                one.score,
            )
            for one in _rank_conversations(scanned, limit)
        ]

    def _find_query_terms(
        self, tenant: str, log: Mapping[int, LogMessage], terms: Sequence[str]
    ) -> dict[int, list[str]]:
        """Returns which of the query's terms each message has. Runs in a thread, one call at a time."""
        # Python's hashes are salted for each process: in memory they tell nothing about the words.
        by_number = {hash(term): term for term in terms}
        return {
            seq: [by_number[number] for number in by_number.keys() & self._hash_terms_cached(tenant, entry)]
            for seq, entry in log.items()
        }

    def _hash_terms_cached(self, tenant: str, stored: LogMessage) -> array[int]:
        """Returns the distinct terms of a stored message, hashed. A message that was encrypted again or redacted has
        another cache key.
        """
        name = stored.link + stored.message.raw[-CIPHERTEXT_TAIL_CHARS:]
        numbers = self._term_cache.pop(name, None)
        if numbers is None:
            opened = self._sealer.unseal_message(tenant, stored)
            numbers = array("q", {hash(term) for term in extract_message_terms(opened.message)})
            self._cached_term_count += len(numbers)
        self._term_cache[name] = numbers
        while self._cached_term_count > MAX_CACHED_TERMS:
            self._cached_term_count -= len(self._term_cache.popitem(last=False)[1])
        return numbers


@dataclass(frozen=True, slots=True)
class _ScannedConversation:
    """The messages that were read of a conversation, and the query's terms in each."""

    conversation: Conversation
    log: Mapping[int, LogMessage]
    terms_by_seq: Mapping[int, Sequence[str]]


def _rank_conversations(scanned: Sequence[_ScannedConversation], limit: int) -> list[ConversationHit]:
    """Returns the best conversations, each with its best message. At equal scores the most recently updated is
    first.
    """
    by_age = sorted(scanned, key=lambda one: (one.conversation.updated_at or _EARLIEST_TIME, one.conversation.id))
    terms_by_index = {index: frozenset[str]().union(*one.terms_by_seq.values()) for index, one in enumerate(by_age)}
    matching = Counter(term for terms in terms_by_index.values() for term in terms)
    weights = {term: term_weight(len(scanned), count) for term, count in matching.items()}
    found = []
    for index, weighed in rank_by_weight(terms_by_index, total_count=len(scanned), limit=limit).items():
        one = by_age[index]
        sums = {seq: sum(weights[term] for term in terms) for seq, terms in one.terms_by_seq.items()}
        seq = max(sums, key=lambda seq: (sums[seq], seq))
        found.append(ConversationHit(one.conversation, one.log[seq], weights_to_score(weighed)))
    return found
