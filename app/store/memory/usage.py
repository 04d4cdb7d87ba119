"""Sums of usage, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from app.store.contract.usage import UsageGrouping, UsageTotals

_UNSPLIT: Final[dict[UsageGrouping, dict[str, str]]] = {
    "tenant": {"key_id": "", "day": "", "model": ""},
    "key": {"day": "", "model": ""},
    "model": {"tenant": "", "key_id": "", "day": ""},
}
_UsageKey = tuple[str, str, str, str]


class MemoryUsage:
    """The part of `Store` that is `UsageStore`."""

    def __init__(self) -> None:
        self._usage: dict[_UsageKey, UsageTotals] = {}

    async def add_usage(self, totals: Sequence[UsageTotals]) -> None:
        _add_totals(self._usage, totals)

    async def sum_usage(self, *, since_day: str, by: UsageGrouping, limit: int | None = None) -> list[UsageTotals]:
        sums: dict[_UsageKey, UsageTotals] = {}
        _add_totals(sums, (replace(row, **_UNSPLIT[by]) for row in self._usage.values() if row.day >= since_day))
        found = sorted(sums.values(), key=lambda row: (-row.cost_usd, row.tenant, row.key_id, row.model))
        return found[:limit]

    async def read_key_cost(self, *, key_id: str, since_day: str) -> float:
        return sum(row.cost_usd for row in self._usage.values() if row.key_id == key_id and row.day >= since_day)

    async def purge_usage(self, *, before_day: str, tenant: str | None = None) -> int:
        old = [key for key, row in self._usage.items() if row.day < before_day and tenant in (None, row.tenant)]
        for key in old:
            del self._usage[key]
        return len(old)


def _add_totals(sums: dict[_UsageKey, UsageTotals], totals: Iterable[UsageTotals]) -> None:
    for row in totals:
        key = (row.tenant, row.key_id, row.day, row.model)
        known = sums.get(key)
        sums[key] = (
            row
            if known is None
            else replace(
                known,
                requests=known.requests + row.requests,
                unpriced_calls=known.unpriced_calls + row.unpriced_calls,
                prompt_tokens=known.prompt_tokens + row.prompt_tokens,
                cached_tokens=known.cached_tokens + row.cached_tokens,
                completion_tokens=known.completion_tokens + row.completion_tokens,
                cost_usd=known.cost_usd + row.cost_usd,
            )
        )
