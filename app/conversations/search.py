"""Searches messages in one conversation, or in all conversations of a tenant.

Messages are indexed when somebody searches, newest conversations first and for a bounded time. The rest is indexed in
the background, and the answer says that it may be incomplete.
"""

from __future__ import annotations

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from app.context.quote.quotation_message import extract_quotable_text
from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.search_terms import extract_message_terms, extract_query_terms
from app.conversations.history.conversation_records import stream_conversation_pages
from app.errors import InvalidRequest, StoreUnavailable
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.chat_request import Caller
from app.pipeline.view.message_search import MessageSearch
from app.store.contract.conversations import ConversationHit, ConversationQuery, ConversationStore
from app.store.search.term_ranking import rank_by_weight, weights_to_score

log = logging.getLogger(__name__)

INDEXING_SECONDS: Final = 1.0
"""How long a search may spend on indexing before it searches."""
CONVERSATION_PAGE_SIZE: Final = 100
NEWEST_CONVERSATIONS: Final = 1_000
"""In how many of the newest conversations a search over all tenants looks for tenants."""
MAX_SEARCHED_TENANTS: Final = 50
"""How many tenants one search asks at most: each takes a statement or two."""
CLOCK_SKEW: Final = timedelta(seconds=60)
"""How long after its time of change a conversation may become visible to other processes. The next indexing begins this
much before the start of the last one."""
MAX_CACHED_TENANTS: Final = 10_000
EXCERPT_CHARS: Final = 240
EXCERPT_LEAD_CHARS: Final = 60


class SearchResult(msgspec.Struct, frozen=True):
    """The result of a search."""

    terms: Sequence[str]
    """The words that were searched, in the form in which they are indexed."""
    hits: Sequence[ConversationHit]
    """Matching messages, best first."""
    is_complete: bool
    """Whether all messages were searched; otherwise some are not indexed yet."""


@dataclass(eq=False, kw_only=True)
class ConversationSearch:
    """Searches messages by words: lightly stemmed, identifiers as a whole and in parts, rare words first."""

    store: ConversationStore
    message_search: MessageSearch
    tasks: BackgroundTasks
    clock: Callable[[], datetime]
    _indexed_until: OrderedDict[str, datetime] = field(default_factory=OrderedDict, init=False)
    _running_index_jobs: set[str] = field(default_factory=set, init=False)

    async def search_conversation(self, conversation: Conversation, query: str, *, limit: int) -> SearchResult:
        """Returns the messages of a conversation that contain words of `query`.

        Raises:
            InvalidRequest: messages are encrypted.
        """
        self._require_index()
        terms, end = extract_query_terms(query), conversation.head_seq + 1
        deadline = time.monotonic() + INDEXING_SECONDS
        is_complete = await self.message_search.index_messages_until(conversation, end, deadline)
        if not is_complete:
            self._index_in_background(conversation.id, self.message_search.index_messages(conversation, end))
        matches = await self.store.search_log(conversation, terms=terms, from_seq=0, before_seq=end, limit=limit)
        hits = [ConversationHit(conversation, one.message, one.score) for one in matches if one.score is not None]
        return SearchResult(terms, hits, is_complete)

    async def search_tenant(self, caller: Caller, query: str, *, limit: int) -> SearchResult:
        """Returns the caller's conversations that contain words of `query`, each with its best message.

        For a caller who sees all tenants these are the conversations of the tenants that were active last. Their scores
        count in how many of all found messages a word is, so they have one scale.

        Raises:
            InvalidRequest: messages are encrypted.
        """
        self._require_index()
        terms = extract_query_terms(query)
        deadline = time.monotonic() + INDEXING_SECONDS
        tenants = await self.list_active_tenants() if caller.sees_all_tenants else [caller.tenant]
        hits: list[ConversationHit] = []
        are_all_complete = len(tenants) < MAX_SEARCHED_TENANTS
        for tenant in tenants:
            is_complete = await self._index_tenant(tenant, deadline)
            if not is_complete:
                self._index_in_background(tenant, self._finish_tenant_index(tenant))
            are_all_complete = are_all_complete and is_complete
            hits += await self.store.search_tenant(tenant=tenant, terms=terms, limit=limit)
        if len(tenants) > 1:
            hits = _rank_on_one_scale(hits, terms, limit)
        return SearchResult(terms, hits, are_all_complete)

    def _require_index(self) -> None:
        if not self.store.is_fully_searchable:
            raise InvalidRequest(
                "This gateway encrypts messages, so they cannot be searched: an index would reveal their words.",
                code="search_not_offered",
                hint="List the conversation's items, or ask a model: its search tool still searches.",
            )

    async def list_active_tenants(self) -> list[str]:
        """Returns the tenants of the newest conversations, the most active first, at most `MAX_SEARCHED_TENANTS`."""
        query = ConversationQuery(limit=NEWEST_CONVERSATIONS, excludes_context_tenants=True)
        newest = await self.store.list_conversations(tenant=None, query=query)
        return list(dict.fromkeys(conversation.tenant for conversation in newest))[:MAX_SEARCHED_TENANTS]

    def _index_in_background(self, name: str, work: Coroutine[Any, Any, object]) -> None:
        """Indexes in the background, with at most one job for each name at a time."""
        if name in self._running_index_jobs:
            work.close()
            return
        self._running_index_jobs.add(name)
        self.tasks.spawn(self._run_index_job(name, work))

    async def _run_index_job(self, name: str, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except StoreUnavailable:
            return  # the next search indexes the rest
        except Exception as error:  # nobody waits for this task
            log.error("could not index in the background; the next search tries again", exc_info=error)
        finally:
            self._running_index_jobs.discard(name)

    async def _finish_tenant_index(self, tenant: str) -> None:
        while not await self._index_tenant(tenant, time.monotonic() + INDEXING_SECONDS):
            pass

    async def _index_tenant(self, tenant: str, deadline: float) -> bool:
        """Indexes the conversations of a tenant that changed since all were last indexed, until `deadline`. Returns
        whether all are indexed."""
        started_at = self.clock()
        query = ConversationQuery(limit=CONVERSATION_PAGE_SIZE, updated_after=self._indexed_until.get(tenant))
        async for page in stream_conversation_pages(self.store, tenant, query):
            for conversation in page:
                end = conversation.head_seq + 1
                if not await self.message_search.index_messages_until(conversation, end, deadline):
                    return False
        self._cache_indexed_until(tenant, started_at - CLOCK_SKEW)
        return True

    def _cache_indexed_until(self, tenant: str, until: datetime) -> None:
        self._indexed_until[tenant] = until
        self._indexed_until.move_to_end(tenant)
        while len(self._indexed_until) > MAX_CACHED_TENANTS:
            self._indexed_until.popitem(last=False)


def _rank_on_one_scale(hits: Sequence[ConversationHit], terms: Sequence[str], limit: int) -> list[ConversationHit]:
    """Ranks hits of several tenants by the words of their best messages. At equal scores the first stays first."""
    hits = hits[::-1]  # the ranking prefers the higher place
    terms_by_place = {
        place: set(terms).intersection(extract_message_terms(hit.message.message)) for place, hit in enumerate(hits)
    }
    weights = rank_by_weight(terms_by_place, total_count=len(hits), limit=limit)
    return [replace(hits[place], score=weights_to_score(weight)) for place, weight in weights.items()]


def build_search_excerpt(message: LogMessage, query: str) -> str:
    """Returns the part of a message's text around the first word of the query, on one line."""
    text = " ".join(extract_quotable_text(message.message).split())
    words = [re.escape(word) for word in re.findall(r"\w+", query) if len(word) > 1]
    match = re.search("|".join(sorted(words, key=len, reverse=True)), text, re.IGNORECASE) if words else None
    start = max(0, match.start() - EXCERPT_LEAD_CHARS) if match else 0
    end = start + EXCERPT_CHARS
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
