"""The contract for model calls that have ended: who asked, who answered, how long it took. None has content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

MAX_SEARCHED_RECORDS: Final = 50_000
"""Among how many of the newest requests a search in their records looks: they have no index, and take up to 300 ms."""
MAX_REQUEST_BATCH: Final = 100
"""How many requests one call of `add_requests` may have: they are one statement."""


class StoredRequest(msgspec.Struct, frozen=True):
    """A model call that has ended. What is unknown is None."""

    id: str
    started_at: float
    """Unix seconds."""
    duration_ms: float
    status: int
    error: str | None
    """The code of the error; None if it was answered."""
    tenant: str | None
    key_id: str | None
    model: str | None
    """The model that was asked for."""
    answered_by: str | None
    """The provider's model that answered."""
    provider: str | None
    context_status: str | None
    conversation_id: str | None
    record: str
    """The whole request with its steps, as JSON (`observability.request_record.EndedRequest`)."""


class RequestQuery(msgspec.Struct, frozen=True):
    """Selects a page of requests, those that began last first, then by id. A filter that is None selects all."""

    limit: int
    after: tuple[float, str] | None = None
    """`started_at` and id of the last request of the page before."""
    started_after: float | None = None
    started_before: float | None = None
    is_failed: bool | None = None
    """Whether the request has an error."""
    min_duration_ms: float | None = None
    status: int | None = None
    model: str | None = None
    """Asked for, or that answered."""
    provider: str | None = None
    tenant: str | None = None
    key_id: str | None = None
    context_status: str | None = None
    conversation_id: str | None = None
    record_part: str | None = None
    """A piece of the record. Only the newest `MAX_SEARCHED_RECORDS` requests are looked at."""

    def selects(self, request: StoredRequest) -> bool:
        """Whether a request is one of the selected; the limit is not looked at."""
        return (
            (self.after is None or (request.started_at, request.id) < self.after)
            and (self.started_after is None or request.started_at >= self.started_after)
            and (self.started_before is None or request.started_at < self.started_before)
            and (self.is_failed is None or self.is_failed == (request.error is not None))
            and (self.min_duration_ms is None or request.duration_ms >= self.min_duration_ms)
            and (self.model is None or self.model in (request.model, request.answered_by))
            and (self.record_part is None or self.record_part in request.record)
            and all(getattr(self, name) in (None, getattr(request, name)) for name in EQUAL_FIELDS)
        )


EQUAL_FIELDS: Final = ("status", "provider", "tenant", "key_id", "context_status", "conversation_id")
"""Fields that a query and a request have in common: they must be equal."""


class RequestStore(Protocol):
    """Keeps model calls that have ended.

    Raises:
        StoreUnavailable: from every method, when the database cannot be reached or does not answer in time.
    """

    async def add_requests(self, requests: Sequence[StoredRequest]) -> None:
        """Adds at most `MAX_REQUEST_BATCH` requests. One whose id is stored already changes nothing."""

    async def list_requests(self, query: RequestQuery) -> list[StoredRequest]:
        """Returns a page of requests."""

    async def find_request(self, request_id: str) -> StoredRequest | None:
        """Returns a request; None if there is none with this id."""

    async def purge_requests(self, *, before: float, tenant: str | None = None) -> int:
        """Deletes the requests that began before a time, in Unix seconds: of all tenants, or of one and those derived
        from it. Returns how many."""
