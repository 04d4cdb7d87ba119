"""The contract for sums of usage: tokens and costs by day, tenant, API key and model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

import msgspec

MAX_USAGE_BATCH: Final = 50
"""How many sums one call of `add_usage` may have: they are one statement."""
UsageGrouping = Literal["tenant", "key", "model", "day"]


class UsageQuery(msgspec.Struct, frozen=True):
    """Selects and splits sums of usage, the highest cost first. A filter that is None selects all."""

    since_day: str
    by: UsageGrouping
    """`key` splits by tenant and key."""
    is_daily: bool = False
    """True: splits by day, too."""
    tenant: str | None = None
    key_id: str | None = None
    """The empty string selects calls without a key."""
    limit: int | None = None


class UsageTotals(msgspec.Struct, frozen=True):
    """Sums over model calls. Strings that a sum does not split are empty."""

    tenant: str
    """The application's tenant. End users have no sums of their own."""
    key_id: str
    """The id of the API key; empty for calls without one (`auth.mode: open`)."""
    day: str
    """The date in UTC, such as `2026-11-24`. Its text order is the order of time."""
    model: str
    """The provider's name of the model."""
    requests: int = 0
    """Answers. Summary calls and rounds of the search tool add tokens and cost only."""
    unpriced_calls: int = 0
    """Calls whose cost is not known, so that it is missing in `cost_usd`."""
    prompt_tokens: int = 0
    """Cached tokens included."""
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0


class UsageReader(Protocol):
    """Reads sums of usage.

    Raises:
        StoreUnavailable: the database cannot be reached or does not answer in time.
    """

    async def sum_usage(self, query: UsageQuery) -> list[UsageTotals]:
        """Returns sums of usage."""


class UsageStore(Protocol):
    """Keeps sums of usage, which all processes add to.

    Raises:
        StoreUnavailable: from every method, when the database cannot be reached or does not answer in time.
    """

    async def add_usage(self, totals: Sequence[UsageTotals]) -> None:
        """Adds to the stored sums, all or nothing.

        Args:
            totals: at most `MAX_USAGE_BATCH`, no two with the same tenant, key, day and model.
        """

    async def sum_usage(self, query: UsageQuery) -> list[UsageTotals]:
        """Returns sums of usage."""

    async def purge_usage(self, *, before_day: str, tenant: str | None = None) -> int:
        """Deletes the sums of earlier days, of one tenant or of all. Returns the number of deleted rows."""
