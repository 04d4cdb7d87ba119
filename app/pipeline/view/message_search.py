"""Searches the messages of conversations for words, and keeps the search index up to date."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final
from weakref import WeakValueDictionary

from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.search_terms import extract_query_terms
from app.store.contract.conversations import ConversationStore, SearchHit

FIRST_BATCH_MESSAGES: Final = 64
"""How many messages the first batch has. Later batches have as many messages as fit `BATCH_BYTES`, at most
`MAX_BATCH_MESSAGES`."""
BATCH_BYTES: Final = 512 * 1024
MAX_BATCH_MESSAGES: Final = 512
MAX_REMEMBERED_CONVERSATIONS: Final = 10_000


class MessageSearch:
    """Searches conversations for words, and keeps their index up to date. There is one instance for each process."""

    def __init__(self, store: ConversationStore) -> None:
        self._store = store
        self._indexed_before: OrderedDict[str, int] = OrderedDict()
        self._index_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One lock for each conversation, so that no message is indexed twice at the same time."""

    async def find_messages(
        self, conversation: Conversation, query: str | Sequence[str], *, from_seq: int, before_seq: int, limit: int
    ) -> list[SearchHit]:
        """Returns the messages `[from_seq, before_seq)` that match a query, best first, then their neighbours.

        Args:
            query: the text of a question, or terms (`conversation.search_terms`).

        Raises:
            StoreUnavailable: the index cannot be written or read.
        """
        terms = extract_query_terms(query) if isinstance(query, str) else query
        end = min(before_seq, conversation.head_seq + 1)
        if not terms or from_seq >= end:
            return []
        # Messages are indexed when a search first needs them, not when they are stored: a turn without a search pays
        # nothing.
        await self.index_messages(conversation, end)
        return await self._store.search_log(conversation, terms=terms, from_seq=from_seq, before_seq=end, limit=limit)

    async def read_messages(self, conversation: Conversation, seqs: Sequence[int]) -> list[LogMessage]:
        """Returns messages of a log.

        Raises:
            StoreUnavailable: they cannot be read.
        """
        return await self._store.read_log_ranges(conversation, [(seq, seq + 1) for seq in seqs])

    async def index_messages(self, conversation: Conversation, before_seq: int) -> None:
        """Indexes the messages before `before_seq` that are not indexed yet.

        Raises:
            StoreUnavailable: the batches so far are indexed, the rest is left for the next call.
        """
        await self.index_messages_until(conversation, before_seq, math.inf)

    async def index_messages_until(self, conversation: Conversation, before_seq: int, deadline: float) -> bool:
        """Indexes messages as `index_messages` does, until `deadline` on the clock of `time.monotonic`. Returns whether
        all messages are searchable."""
        if not self._store.is_fully_searchable:
            return True
        end = min(before_seq, conversation.head_seq + 1)
        lock = self._index_locks.setdefault(conversation.id, asyncio.Lock())
        batch_size = FIRST_BATCH_MESSAGES
        while self.find_indexed_end(conversation) < end:
            if time.monotonic() >= deadline:
                return False
            async with lock:
                # Read again under the lock: another task may have indexed this batch.
                start = self.find_indexed_end(conversation)
                stop = min(start + batch_size, end)
                if start < stop:
                    entries = await self._store.read_log(conversation, start, stop)
                    await self._store.index_messages(conversation, entries)
                    self._remember_indexed(conversation.id, stop)
                    batch_size = _compute_batch_size(entries)
        return True

    def find_indexed_end(self, conversation: Conversation) -> int:
        """Returns the seq before which all messages are indexed, as far as this process knows."""
        return max(conversation.indexed_before, self._indexed_before.get(conversation.id, 0))

    def _remember_indexed(self, conversation_id: str, before_seq: int) -> None:
        self._indexed_before[conversation_id] = max(before_seq, self._indexed_before.pop(conversation_id, 0))
        while len(self._indexed_before) > MAX_REMEMBERED_CONVERSATIONS:
            self._indexed_before.popitem(last=False)


def _compute_batch_size(entries: Sequence[LogMessage]) -> int:
    """Returns how many messages to read next, if they are as long as these."""
    total_bytes = sum(len(entry.message.raw) for entry in entries)
    return max(1, min(MAX_BATCH_MESSAGES, BATCH_BYTES * len(entries) // max(1, total_bytes)))
