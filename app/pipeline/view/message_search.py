"""Finding old messages of a conversation again: index what has left the verbatim part, then search.

A message is indexed once, when it is first searched for or in the background before that; never on the way of a turn
that needs no old message.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final
from weakref import WeakValueDictionary

from app.conversation.messages import Conversation, LogMessage
from app.conversation.search_terms import query_terms
from app.store.contract import Found, Store

BATCH_MESSAGES: Final = 64
"""How many are read first; then as many as hold `BATCH_BYTES`, but never more than `MOST_MESSAGES`."""
BATCH_BYTES: Final = 512 * 1024
MOST_MESSAGES: Final = 512
REMEMBERED_CONVERSATIONS: Final = 10_000


class Finding:
    """Searches conversations. One for each process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._indexed: OrderedDict[str, int] = OrderedDict()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By conversation: who indexes the same one takes turns, so that none of it is done twice."""

    async def find(
        self, conversation: Conversation, asked: str | Sequence[str], *, from_seq: int, before_seq: int, limit: int
    ) -> list[Found]:
        """Messages `[from_seq, before_seq)` that hold what is asked for, best first, then those beside them.

        Args:
            asked: the text of a question, or terms (`conversation.search_terms`).

        Raises:
            StoreUnavailable: the index cannot be written or read.
        """
        terms = query_terms(asked) if isinstance(asked, str) else asked
        end = min(before_seq, conversation.head_seq + 1)
        if not terms or from_seq >= end:
            return []
        await self.catch_up(conversation, end)
        return await self._store.search(conversation, terms=terms, from_seq=from_seq, before_seq=end, limit=limit)

    async def catch_up(self, conversation: Conversation, before_seq: int) -> None:
        """Index the messages before `before_seq` that are not indexed yet.

        Raises:
            StoreUnavailable: what was indexed until then is remembered, the rest is left for the next time.
        """
        await self.catch_up_until(conversation, before_seq, math.inf)

    async def catch_up_until(self, conversation: Conversation, before_seq: int, deadline: float) -> bool:
        """The same until a moment of `time.monotonic`. Whether all were indexed by then, or nothing ever is."""
        if not self._store.searches_all:
            return True
        end = min(before_seq, conversation.head_seq + 1)
        turn = self._turns.setdefault(conversation.id, asyncio.Lock())
        size = BATCH_MESSAGES
        while self.indexed_before(conversation) < end:
            if time.monotonic() >= deadline:
                return False
            async with turn:
                start = self.indexed_before(conversation)
                stop = min(start + size, end)
                if start < stop:
                    entries = await self._store.read(conversation, start, stop)
                    await self._store.index(conversation, entries)
                    self._remember(conversation.id, stop)
                    size = _size_after(entries)
        return True

    def indexed_before(self, conversation: Conversation) -> int:
        """The seq before which all messages are indexed, as far as this process knows."""
        return max(conversation.indexed_before, self._indexed.get(conversation.id, 0))

    def _remember(self, conversation_id: str, before_seq: int) -> None:
        self._indexed[conversation_id] = max(before_seq, self._indexed.pop(conversation_id, 0))
        while len(self._indexed) > REMEMBERED_CONVERSATIONS:
            self._indexed.popitem(last=False)


def _size_after(entries: Sequence[LogMessage]) -> int:
    """How many messages to read next if they are as long as these."""
    held_bytes = sum(len(entry.message.raw) for entry in entries)
    return max(1, min(MOST_MESSAGES, BATCH_BYTES * len(entries) // max(1, held_bytes)))
