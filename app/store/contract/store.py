"""The whole store, for what builds, opens or wraps a backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.store.contract.keys import KeyStore
from app.store.contract.leases import LeaseStore
from app.store.contract.limits import LimitStore
from app.store.contract.requests import RequestStore
from app.store.contract.summaries import ConversationAndSummaryStore
from app.store.contract.usage import UsageStore


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """The facts about a store that `/readyz` and the start line show."""

    backend: str
    schema_version: str
    details: Mapping[str, Any] = field(default_factory=dict)


class Store(ConversationAndSummaryStore, LeaseStore, KeyStore, UsageStore, LimitStore, RequestStore, Protocol):
    """What a backend does: the seven contracts, and the operations on the database as a whole.

    Raises:
        StoreUnavailable: from every method, when the database cannot be reached or does not answer in time.
    """

    async def open(self) -> None:
        """Connects and checks the schema; called once."""

    async def close(self) -> None:
        """Finishes queued work, then disconnects."""

    async def check(self) -> StoreInfo:
        """Makes a cheap round trip that proves that the store answers."""

    async def scrub_deleted_data(self) -> None:
        """Rewrites the database's file without the remains of deleted and overwritten rows. Only SQLite needs this. It
        may take as long as copying the file, and writers wait meanwhile.
        """
