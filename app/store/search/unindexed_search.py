"""Searches a conversation whose messages are encrypted, without an index: reads the newest messages and searches them
in memory.

The number of messages is bounded, so that no search takes all of the machine; older messages are not found. A process
runs one search at a time, off the event loop.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.search_terms import extract_message_terms
from app.store.contract.conversations import ConversationStore, SearchHit
from app.store.lineage import count_range_messages
from app.store.search.term_ranking import rank_search_hits

MAX_SEARCHED_MESSAGES: Final = 2000
MAX_CACHED_TERMS: Final = 2_000_000
"""8 bytes each: 16 megabytes."""
CIPHERTEXT_TAIL_CHARS: Final = 24
"""Characters at the end of a ciphertext in base64 (its authentication tag), which no other ciphertext shares."""


class UnindexedSearch:
    """Searches a store whose messages are encrypted. `unseal` decrypts a message of a tenant.

    The terms of searched messages are cached, as numbers that mean nothing outside of this process, up to
    `MAX_CACHED_TERMS`: the next turn of the same conversation searches them again. Without the cache, each turn of a
    conversation of 2,000 messages would take about a second more.
    """

    def __init__(self, inner: ConversationStore, unseal: Callable[[str, LogMessage], LogMessage]) -> None:
        self._inner = inner
        self._unseal = unseal
        self._term_cache: OrderedDict[bytes, array[int]] = OrderedDict()
        self._cached_term_count = 0
        self._search_lock = asyncio.Lock()

    async def search_log(
        self, conversation: Conversation, *, terms: Sequence[str], from_seq: int, before_seq: int, limit: int
    ) -> list[SearchHit]:
        """As `ConversationStore.search_log`, among the newest `MAX_SEARCHED_MESSAGES` of the range. The returned
        messages are encrypted.
        """
        end = min(before_seq, conversation.head_seq + 1)
        start = max(from_seq, end - MAX_SEARCHED_MESSAGES, 0)
        if not terms or start >= end:
            return []
        log = {entry.seq: entry for entry in await self._inner.read_log(conversation, start, end)}
        # One search at a time: decryption and tokenization would otherwise take all threads, and the cache is not
        # thread-safe.
        async with self._search_lock:
            matches = await asyncio.to_thread(self._find_query_terms, conversation.tenant, log, terms)
        return rank_search_hits(log, matches, message_count=count_range_messages(conversation, start, end), limit=limit)

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
            message = self._unseal(tenant, stored).message
            numbers = array("q", {hash(term) for term in extract_message_terms(message)})
            self._cached_term_count += len(numbers)
        self._term_cache[name] = numbers
        while self._cached_term_count > MAX_CACHED_TERMS:
            self._cached_term_count -= len(self._term_cache.popitem(last=False)[1])
        return numbers
