"""Reservations of budgets and counts of rates, in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from app.store.contract.limits import (
    RATE_WINDOW_SECONDS,
    BudgetReservation,
    BudgetUse,
    RateCount,
    RateLimit,
    RateUse,
)
from app.store.memory.usage import MemoryUsage


class MemoryLimits(MemoryUsage):
    """The part of `Store` that is `LimitStore`, and `UsageStore`, whose sums count for budgets."""

    def __init__(self, *, clock: Callable[[], datetime]) -> None:
        MemoryUsage.__init__(self)
        self._clock = clock
        self._reservations: dict[str, tuple[BudgetReservation, datetime]] = {}
        """By id, each with the time at which it expires."""
        self._rate_counts: dict[str, dict[int, list[int]]] = {}
        """Requests and tokens, by scope and second."""

    async def reserve_budget(
        self, reservation: BudgetReservation, *, budget_usd: float, since_day: str, seconds: float
    ) -> BudgetUse:
        use = await self.read_budget_use(key_id=reservation.key_id, since_day=since_day)
        if use.spent_usd + use.reserved_usd + reservation.usd > budget_usd:
            return use
        self._reservations[reservation.id] = reservation, self._clock() + timedelta(seconds=seconds)
        return BudgetUse(use.spent_usd, use.reserved_usd + reservation.usd, is_granted=True)

    async def read_budget_use(self, *, key_id: str, since_day: str) -> BudgetUse:
        now = self._clock()
        reserved_usd = sum(
            one.usd for one, expires_at in self._reservations.values() if one.key_id == key_id and expires_at > now
        )
        return BudgetUse(await self.read_key_cost(key_id=key_id, since_day=since_day), reserved_usd)

    async def release_reservations(self, ids: Sequence[str]) -> None:
        for reservation_id in ids:
            self._reservations.pop(reservation_id, None)

    async def renew_reservations(self, *, holder: str, seconds: float) -> None:
        expires_at = self._clock() + timedelta(seconds=seconds)
        for reservation, _ in list(self._reservations.values()):
            if reservation.holder == holder:
                self._reservations[reservation.id] = reservation, expires_at

    async def count_call(self, limits: Sequence[RateLimit], *, tokens: int) -> RateCount:
        now = int(self._clock().timestamp())
        uses = [self._read_use(limit.scope, now) for limit in limits]
        for limit, use in zip(limits, uses, strict=True):
            if limit.requests is not None and use.requests + 1 > limit.requests:
                return RateCount(None, tuple(uses))
            if limit.tokens is not None and use.tokens + min(tokens, limit.tokens) > limit.tokens:
                return RateCount(None, tuple(uses))
        for limit in limits:
            count = self._rate_counts.setdefault(limit.scope, {}).setdefault(now, [0, 0])
            count[0] += 1
            count[1] += tokens
        return RateCount(now, tuple(self._read_use(limit.scope, now) for limit in limits))

    async def correct_tokens(self, scopes: Sequence[str], *, counted_at: int, added_tokens: int) -> None:
        for scope in scopes:
            if counted_at in self._rate_counts.get(scope, {}):
                self._rate_counts[scope][counted_at][1] += added_tokens

    async def purge_limits(self) -> None:
        now = self._clock()
        self._reservations = {
            name: (one, expires_at) for name, (one, expires_at) in self._reservations.items() if expires_at > now
        }
        oldest = int(now.timestamp()) - RATE_WINDOW_SECONDS
        for scope, counts in list(self._rate_counts.items()):
            self._rate_counts[scope] = {second: count for second, count in counts.items() if second >= oldest}
            if not self._rate_counts[scope]:
                del self._rate_counts[scope]

    def _read_use(self, scope: str, now: int) -> RateUse:
        oldest = now - RATE_WINDOW_SECONDS
        counts = {second: count for second, count in self._rate_counts.get(scope, {}).items() if second >= oldest}
        return RateUse(
            sum(requests for requests, _ in counts.values()),
            sum(tokens for _, tokens in counts.values()),
            min(counts, default=oldest) - oldest + 1 if counts else 0,
            max(counts, default=oldest) - oldest + 1 if counts else 0,
        )
