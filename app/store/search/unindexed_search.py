"""Searching without an index: the newest messages are read and looked into in memory.

How much is read is bounded, so that no search takes the machine: what is older is not found. One search of a process
runs at a time, off the event loop.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from app.conversation.messages import Conversation, LogMessage
from app.conversation.search_terms import terms_of_message
from app.store.contract import Found, FoundAnywhere, ListQuery, Store
from app.store.encryption.sealed_fields import Sealing
from app.store.lineage import expected_count, own_from
from app.store.search.index_terms import best, found_in, score, weight

SEARCHED_MESSAGES: Final = 2000
SEARCHED_CONVERSATIONS: Final = 100
"""Of a tenant, the newest; of each at most `MESSAGES_OF_EACH` of its newest messages."""
MESSAGES_OF_EACH: Final = 200
REMEMBERED_TERMS: Final = 2_000_000
"""16 megabytes."""
TAG_CHARS: Final = 24
"""The end of a ciphertext in base64, which no other has."""
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


class Unindexed:
    """Searches a store whose messages are encrypted.

    The words of messages that were looked into are remembered, as numbers that mean nothing outside of this process,
    up to `REMEMBERED_TERMS` of them: the next turn of the same conversation asks again.
    """

    def __init__(self, inner: Store, sealing: Sealing) -> None:
        self._inner = inner
        self._sealing = sealing
        self._known: OrderedDict[bytes, array[int]] = OrderedDict()
        self._known_terms = 0
        self._turn = asyncio.Lock()

    async def search(
        self, conversation: Conversation, *, terms: Sequence[str], from_seq: int, before_seq: int, limit: int
    ) -> list[Found]:
        """As `Store.search`, among the newest `SEARCHED_MESSAGES` of the range."""
        end = min(before_seq, conversation.head_seq + 1)
        start = max(from_seq, end - SEARCHED_MESSAGES, 0)
        if not terms or start >= end:
            return []
        log = {entry.seq: entry for entry in await self._inner.read(conversation, start, end)}
        async with self._turn:
            holding = await asyncio.to_thread(self._terms_at, conversation.tenant, log, terms)
        found = found_in(log, holding, messages=expected_count(conversation, start, end), limit=limit)
        return [Found(self._sealing.open_message(conversation.tenant, one.message), one.score) for one in found]

    async def search_all(self, *, tenant: str, terms: Sequence[str], limit: int) -> list[FoundAnywhere]:
        """As `Store.search_all`, in the tenant's newest conversations."""
        if not terms:
            return []
        room = SEARCHED_MESSAGES
        newest = await self._inner.conversations(tenant=tenant, query=ListQuery(limit=SEARCHED_CONVERSATIONS))
        looked: list[_Looked] = []
        async with self._turn:
            for conversation in newest:
                end = conversation.head_seq + 1
                start = max(own_from(conversation), end - min(MESSAGES_OF_EACH, room))
                entries = await self._inner.read(conversation, start, end)
                room -= len(entries)
                log = {entry.seq: entry for entry in entries}
                looked.append(_Looked(conversation, log, await asyncio.to_thread(self._terms_at, tenant, log, terms)))
                if room <= 0:
                    break
        return [
            FoundAnywhere(
                self._sealing.open_conversation(one.conversation),
                self._sealing.open_message(tenant, one.message),
                one.score,
            )
            for one in _ranked(looked, limit)
        ]

    def _terms_at(self, tenant: str, log: Mapping[int, LogMessage], asked: Sequence[str]) -> dict[int, list[str]]:
        """Which of the asked terms each message holds. In a thread, one at a time."""
        by_number = {hash(term): term for term in asked}
        return {
            seq: [by_number[number] for number in by_number.keys() & self._numbers_of(tenant, entry)]
            for seq, entry in log.items()
        }

    def _numbers_of(self, tenant: str, stored: LogMessage) -> array[int]:
        """The distinct terms of a stored message, hashed. What is encrypted anew, or changed, is another message."""
        name = stored.link + stored.message.raw[-TAG_CHARS:]
        numbers = self._known.pop(name, None)
        if numbers is None:
            opened = self._sealing.open_message(tenant, stored)
            numbers = array("q", {hash(term) for term in terms_of_message(opened.message)})
            self._known_terms += len(numbers)
        self._known[name] = numbers
        while self._known_terms > REMEMBERED_TERMS:
            self._known_terms -= len(self._known.popitem(last=False)[1])
        return numbers


@dataclass(frozen=True, slots=True)
class _Looked:
    """What was read of a conversation, and which of the asked terms are in it."""

    conversation: Conversation
    log: Mapping[int, LogMessage]
    terms_at: Mapping[int, Sequence[str]]


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
