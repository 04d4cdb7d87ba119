"""Fingerprints of answers that were served while the store was away. Without them, an equal answer of somebody else
would count as the only one, and prove that person's conversation to whoever was served here."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from app.conversation.conversation_types import IssuedAnswer
from app.errors import StoreUnavailable, drop_tracebacks
from app.store.contract.conversations import ConversationStore

log = logging.getLogger(__name__)

MAX_UNWRITTEN_ANSWERS: Final = 100_000
"""Answers that wait in memory: about 30 MB. Further ones are not counted, which is logged."""


class UnwrittenFingerprints:
    """Keeps fingerprints until the store takes them. There is one instance for each process."""

    def __init__(self, store: ConversationStore) -> None:
        self._store = store
        self._waiting: deque[IssuedAnswer] = deque()

    def add(self, issued: IssuedAnswer) -> None:
        """Keeps the fingerprints of an answer that the store could not take."""
        if len(self._waiting) >= MAX_UNWRITTEN_ANSWERS:
            log.error("an answer was not counted: %d others wait for the store", len(self._waiting))
            return
        self._waiting.append(issued)

    async def write(self) -> None:
        """Writes what waits.

        Raises:
            StoreUnavailable: the store is still away.
        """
        while self._waiting:
            issued = self._waiting[0]
            await self._store.issue_answer(issued)
            # Another task may have written it meanwhile; writing twice changes nothing.
            if self._waiting and self._waiting[0] is issued:
                self._waiting.popleft()

    async def aclose(self) -> None:
        """Tries to write what waits, once."""
        try:
            await self.write()
        except StoreUnavailable as error:
            drop_tracebacks(error)
            log.error("%d answers were not counted: %s", len(self._waiting), error.message)
