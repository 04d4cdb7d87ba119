"""Finding what was said: in one conversation, or in all of a tenant's.

Messages are made findable when somebody searches, newest conversations first and for a bounded time; what is left is
done in the background, and the answer says that it may be incomplete.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from app.context.quote.quote_message import quotable_text
from app.conversation.messages import Conversation, LogMessage
from app.conversation.search_terms import query_terms
from app.errors import StoreUnavailable
from app.pipeline.background_tasks import Tasks
from app.pipeline.chat_request import Caller
from app.pipeline.view.quotations import Finding
from app.store.contract import ListQuery, Store

INDEXING_SECONDS: Final = 1.0
"""How long a search may spend on making messages findable first."""
PAGE: Final = 100
CLOCK_SKEW: Final = timedelta(seconds=60)
"""A conversation may bear a time that is a little older than when it became visible."""
REMEMBERED_TENANTS: Final = 10_000
EXCERPT_CHARS: Final = 240
LEAD_CHARS: Final = 60


class Hit(msgspec.Struct, frozen=True):
    """A message that a search found."""

    conversation: Conversation
    message: LogMessage
    score: float


class Hits(msgspec.Struct, frozen=True):
    """What a search found, best first."""

    terms: Sequence[str]
    """What was looked for: the words of the question that tell something, as they are indexed."""
    hits: Sequence[Hit]
    is_complete: bool
    """Whether every message was looked at; otherwise some are still being made findable."""
    is_limited: bool
    """Whether only the newest messages are ever searched, because what is stored is encrypted."""


class Searching:
    """Searches by words: lightly stemmed, identifiers whole and in parts, rarest words first."""

    def __init__(self, *, store: Store, finding: Finding, tasks: Tasks, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._finding = finding
        self._tasks = tasks
        self._clock = clock
        self._complete_until: OrderedDict[str, datetime] = OrderedDict()
        self._at_work: set[str] = set()

    async def within(self, conversation: Conversation, query: str, *, limit: int) -> Hits:
        """The messages of a conversation that hold the words of `query`."""
        terms = query_terms(query)
        is_complete = await self._catch_up(conversation, time.monotonic() + INDEXING_SECONDS)
        if not is_complete:
            self._continue(conversation.id, self._finish(conversation))
        end = conversation.head_seq + 1
        found = await self._store.search(conversation, terms=terms, from_seq=0, before_seq=end, limit=limit)
        hits = [Hit(conversation, one.message, one.score) for one in found if one.score is not None]
        return Hits(terms, hits, is_complete, not self._store.searches_all)

    async def everywhere(self, caller: Caller, query: str, *, limit: int) -> Hits:
        """The caller's conversations that hold the words of `query`, each with its best message."""
        terms = query_terms(query)
        is_complete = await self._catch_up_all(caller.tenant, time.monotonic() + INDEXING_SECONDS)
        if not is_complete:
            self._continue(caller.tenant, self._finish_all(caller.tenant))
        found = await self._store.search_all(tenant=caller.tenant, terms=terms, limit=limit)
        hits = [Hit(one.conversation, one.message, one.score) for one in found]
        return Hits(terms, hits, is_complete, not self._store.searches_all)

    def _continue(self, name: str, work: AsyncIterator[None]) -> None:
        """Go on in the background, once for each name at a time."""
        if name in self._at_work:
            return
        self._at_work.add(name)
        self._tasks.spawn(self._run(name, work))

    async def _run(self, name: str, work: AsyncIterator[None]) -> None:
        try:
            async for _ in work:
                pass
        except StoreUnavailable:
            return
        finally:
            self._at_work.discard(name)

    async def _finish(self, conversation: Conversation) -> AsyncIterator[None]:
        await self._finding.catch_up(conversation, conversation.head_seq + 1)
        yield

    async def _finish_all(self, tenant: str) -> AsyncIterator[None]:
        while not await self._catch_up_all(tenant, time.monotonic() + INDEXING_SECONDS):
            yield

    async def _catch_up(self, conversation: Conversation, deadline: float) -> bool:
        """Make a conversation findable, as far as there is time. Whether all of it is."""
        if not self._store.searches_all:
            return True
        return await self._finding.catch_up_until(conversation, conversation.head_seq + 1, deadline)

    async def _catch_up_all(self, tenant: str, deadline: float) -> bool:
        """Make a tenant's conversations findable that changed since all of them were, as far as there is time."""
        if not self._store.searches_all:
            return True
        began = self._clock()
        after: tuple[datetime, str] | None = None
        while True:
            query = ListQuery(limit=PAGE, after=after, updated_after=self._complete_until.get(tenant))
            page = await self._store.conversations(tenant=tenant, query=query)
            for conversation in page:
                if not await self._catch_up(conversation, deadline):
                    return False
            if len(page) < PAGE:
                self._remember(tenant, began - CLOCK_SKEW)
                return True
            last = page[-1]
            assert last.created_at is not None
            after = (last.created_at, last.id)

    def _remember(self, tenant: str, until: datetime) -> None:
        self._complete_until[tenant] = until
        self._complete_until.move_to_end(tenant)
        while len(self._complete_until) > REMEMBERED_TENANTS:
            self._complete_until.popitem(last=False)


def excerpt(message: LogMessage, query: str) -> str:
    """The part of a message's text that a person who searched wants to see: around the first of the words, on one
    line."""
    text = " ".join(quotable_text(message.message).split())
    words = [re.escape(word) for word in re.findall(r"\w+", query) if len(word) > 1]
    match = re.search("|".join(sorted(words, key=len, reverse=True)), text, re.IGNORECASE) if words else None
    start = max(0, match.start() - LEAD_CHARS) if match else 0
    end = start + EXCERPT_CHARS
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
