"""Searching without an index: the newest messages are read, and looked into in memory.

How much is read is bounded, so that no search takes the machine: what is older is not found. One search of a process
runs at a time, off the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

from app.conversation.messages import Conversation, LogMessage
from app.conversation.terms import terms_of_message
from app.store.base import Found, FoundAnywhere, ListQuery
from app.store.lineage import expected_count, own_from
from app.store.search import best, found_in, score, weight

SEARCHED_MESSAGES: Final = 2000
SEARCHED_CONVERSATIONS: Final = 100
"""Of a tenant, the newest; of each at most `MESSAGES_OF_EACH` of its newest messages."""
MESSAGES_OF_EACH: Final = 200
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


class Readable(Protocol):
    """The part of a store that is searched."""

    async def read(self, conversation: Conversation, from_seq: int, to_seq: int) -> list[LogMessage]: ...

    async def conversations(self, *, tenant: str | None, query: ListQuery) -> list[Conversation]: ...


class Unindexed:
    """Searches a store that has no index of words."""

    def __init__(self, store: Readable) -> None:
        self._store = store
        self._turn = asyncio.Lock()

    async def search(
        self, conversation: Conversation, *, terms: Sequence[str], from_seq: int, before_seq: int, limit: int
    ) -> list[Found]:
        """As `Store.search`, among the newest `SEARCHED_MESSAGES` of the range."""
        end = min(before_seq, conversation.head_seq + 1)
        start = max(from_seq, end - SEARCHED_MESSAGES, 0)
        if not terms or start >= end:
            return []
        async with self._turn:
            entries = await self._store.read(conversation, start, end)
            log = {entry.seq: entry for entry in entries}
            holding = await asyncio.to_thread(_terms_at, log, frozenset(terms))
        return found_in(log, holding, messages=expected_count(conversation, start, end), limit=limit)

    async def search_all(self, *, tenant: str, terms: Sequence[str], limit: int) -> list[FoundAnywhere]:
        """As `Store.search_all`, in the tenant's newest conversations."""
        if not terms:
            return []
        asked, room = frozenset(terms), SEARCHED_MESSAGES
        newest = await self._store.conversations(tenant=tenant, query=ListQuery(limit=SEARCHED_CONVERSATIONS))
        looked: list[_Looked] = []
        async with self._turn:
            for conversation in newest:
                end = conversation.head_seq + 1
                start = max(own_from(conversation), end - min(MESSAGES_OF_EACH, room))
                entries = await self._store.read(conversation, start, end)
                room -= len(entries)
                log = {entry.seq: entry for entry in entries}
                looked.append(_Looked(conversation, log, await asyncio.to_thread(_terms_at, log, asked)))
                if room <= 0:
                    break
        return _ranked(looked, limit)


@dataclass(frozen=True, slots=True)
class _Looked:
    """What was read of a conversation, and which of the asked terms are in it."""

    conversation: Conversation
    log: Mapping[int, LogMessage]
    terms_at: Mapping[int, frozenset[str]]


def _ranked(looked: Sequence[_Looked], limit: int) -> list[FoundAnywhere]:
    """The best conversations, at equal scores the most recently updated, each with its best message."""
    by_age = sorted(looked, key=lambda one: (one.conversation.updated_at or _NEVER, one.conversation.id))
    held = {place: frozenset[str]().union(*one.terms_at.values()) for place, one in enumerate(by_age)}
    matching = Counter(term for terms in held.values() for term in terms)
    weights = {term: weight(len(looked), count) for term, count in matching.items()}
    found = []
    for place, weighed in best(held, messages=len(looked), limit=limit).items():
        one = by_age[place]
        sums = {seq: sum(weights[term] for term in terms) for seq, terms in one.terms_at.items()}
        seq = max(sums, key=lambda seq: (sums[seq], seq))
        found.append(FoundAnywhere(one.conversation, one.log[seq], score(weighed)))
    return found


def _terms_at(log: Mapping[int, LogMessage], asked: frozenset[str]) -> dict[int, frozenset[str]]:
    """Which of the asked terms each message holds."""
    return {seq: asked.intersection(terms_of_message(entry.message)) for seq, entry in log.items()}
