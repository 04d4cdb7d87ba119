"""Keeps the model calls that have ended: the newest in memory, and a bounded time of them in the database.

A request waits for no write: its record goes into a queue, which a background loop writes every few seconds. While the
store is unavailable, records wait in the queue; those that do not fit are counted and dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from app.errors import StoreUnavailable, UpstreamRefused
from app.observability.background_loops import BackgroundLoop
from app.observability.metric_families import UNWRITTEN_REQUESTS
from app.observability.metrics import NO_METRICS, Metrics
from app.observability.request_record import EndedRequest, decode_requests, encode_request
from app.store.contract.requests import MAX_REQUEST_BATCH, RequestQuery, RequestStore, StoredRequest

log = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 2.0
MAX_UNWRITTEN_REQUESTS: Final = 10_000
"""How many records wait for the store, about 1.5 KB each."""
ANSWERED_STATUS: Final = 200
FIRST_ERROR_STATUS: Final = 400
DISCONNECTED: Final = "client_disconnected"
"""The error of a request whose client left before the end of the answer."""


class RequestHistory:
    """The model calls that have ended.

    Args:
        recent_count: how many of the newest are kept in memory, for the time in which the store is unavailable, too.
        store: None: the database keeps none.
    """

    def __init__(
        self,
        recent_count: int,
        store: RequestStore | None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._recent: deque[StoredRequest] = deque(maxlen=recent_count)
        self._store = store
        self._dropped = metrics.counter_series(UNWRITTEN_REQUESTS)
        self._unwritten: deque[StoredRequest] = deque()
        self._lock = asyncio.Lock()
        """Held while requests are written."""
        self.writes = BackgroundLoop("requests", self.flush, lambda: FLUSH_SECONDS, metrics=metrics, sleep=sleep)

    def start(self) -> None:
        """Starts the periodic writes."""
        if self._store is not None:
            self.writes.start()

    async def aclose(self) -> None:
        """Stops the periodic writes, and writes what is left."""
        async with self._lock:  # the loop is not writing
            await self.writes.aclose()
        try:
            await self.flush()
        except StoreUnavailable as error:
            log.warning("could not write the requests of the last seconds: %s", error.message)

    def add(self, request: EndedRequest) -> None:
        """Adds a request that has ended. One that ended before it had an id is not kept."""
        if request.id is None:
            return
        provider, model = find_answerer(request)
        row = StoredRequest(
            id=request.id,
            started_at=request.started_unix,
            duration_ms=request.duration * 1000,
            status=request.status,
            error=find_error(request),
            tenant=request.tenant,
            key_id=request.key_id,
            model=request.facts.model,
            answered_by=model,
            provider=provider,
            context_status=request.facts.context_status,
            conversation_id=request.facts.conversation_id,
            record=encode_request(request).decode(),
        )
        self._recent.append(row)
        if self._store is None:
            return
        if len(self._unwritten) < MAX_UNWRITTEN_REQUESTS:
            self._unwritten.append(row)
        else:
            self._dropped.inc()

    async def flush(self) -> None:
        """Writes the requests that wait.

        Raises:
            StoreUnavailable: those that are not written yet wait further.
        """
        async with self._lock:
            while self._unwritten and self._store is not None:
                rows = [self._unwritten.popleft() for _ in range(min(len(self._unwritten), MAX_REQUEST_BATCH))]
                try:
                    await self._store.add_requests(rows)
                except StoreUnavailable:
                    self._unwritten.extendleft(reversed(rows))
                    raise
                except Exception as error:
                    # Any error: what the database refuses once it refuses again, and would hold up all that follow.
                    self._dropped.inc(len(rows))
                    log.error("%d requests cannot be stored and are not kept", len(rows), exc_info=error)

    async def list_requests(self, query: RequestQuery) -> list[EndedRequest]:
        """Returns a page of requests: those of the database, and the newest, which may not be written yet.

        Raises:
            StoreUnavailable: none of the newest is selected, and the database cannot be asked.
        """
        recent = list(self._recent)
        # In a thread: a search in the records reads them all.
        found = await asyncio.to_thread(lambda: {row.id: row for row in recent if query.selects(row)})
        if self._store is not None:
            try:
                found |= {row.id: row for row in await self._store.list_requests(query)}
            except StoreUnavailable:
                if not found:
                    raise
        newest_first = sorted(found.values(), key=lambda row: (row.started_at, row.id), reverse=True)
        return decode_requests(row.record for row in newest_first[: query.limit])

    async def find_request(self, request_id: str) -> EndedRequest | None:
        """Returns a request; None if it is not kept.

        Raises:
            StoreUnavailable: it is none of the newest, and the database cannot be asked.
        """
        row = next((one for one in self._recent if one.id == request_id), None)
        if row is None and self._store is not None:
            row = await self._store.find_request(request_id)
        return None if row is None else next(iter(decode_requests([row.record])), None)


def find_answerer(request: EndedRequest) -> tuple[str | None, str | None]:
    """Returns the provider that was called last, if any was, and its model, if the client got its answer."""
    for step in reversed(request.steps):
        if step.name == "attempt":
            return step.detail["provider"], step.detail["model"] if request.status == ANSWERED_STATUS else None
    return None, None


def find_error(request: EndedRequest) -> str | None:
    """Returns the code of the error that ended the request; None if it was answered."""
    if (error := request.facts.error) is not None:
        return error.code or error.name
    if not request.is_complete:
        return DISCONNECTED
    # The gateway's own errors are in the facts. This one is a provider's, passed through.
    return UpstreamRefused.name if request.status >= FIRST_ERROR_STATUS else None
