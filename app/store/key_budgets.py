"""Keeps API keys within their budgets of the calendar month. Before each call of a model, what it may cost is reserved
in the store; after it, the reservation gives way to the cost (docs/decisions/0048).

Without it, all calls that begin at once would pass a check of what is spent. A reservation that is too low lets a key
spend the difference; one that is too high refuses a call that would have fitted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from app.conversation.api_keys import KeyBudget
from app.errors import BudgetExceeded, StoreUnavailable
from app.observability.background_loops import BackgroundLoop
from app.observability.metrics import NO_METRICS, Metrics
from app.store.contract.limits import MAX_RELEASED_RESERVATIONS, BudgetReservation, BudgetUse, LimitStore
from app.store.usage_recorder import UsageRecorder

log = logging.getLogger(__name__)

RESERVED_SECONDS: Final = 60.0
"""How long after its last renewal a reservation counts: the reservations of a killed process are free after that."""
RENEW_SECONDS: Final = 20.0
ROUNDING_USD: Final = 1e-9
"""Sums of costs are inexact by less."""


class KeyBudgets:
    """Checks budgets, and reserves and releases what calls may cost.

    While the store is unavailable nothing is checked: answers are given without it, so they are given here, too.

    Args:
        usage: what calls have cost, and writes it to the store before their reservations end.
        holder: names this process among all that share the store.
        now: the time of day, in UTC.
        new_id: makes the id of a reservation.
    """

    def __init__(
        self,
        store: LimitStore,
        usage: UsageRecorder,
        *,
        holder: str,
        now: Callable[[], datetime],
        new_id: Callable[[], str],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._store = store
        self._usage = usage
        self._holder = holder
        self._now = now
        self._new_id = new_id
        self._running_ids: set[str] = set()
        self._finished_ids: list[str] = []
        """Reservations of calls that are over, whose costs may not be written yet."""
        self._release_task: asyncio.Task[None] | None = None
        self.renewals = BackgroundLoop(
            "budget reservations",
            self._renew,
            lambda: RENEW_SECONDS,
            metrics=metrics,
            sleep=sleep,
            max_retry_seconds=RENEW_SECONDS,
        )

    def start(self) -> None:
        """Starts the periodic renewal."""
        self.renewals.start()

    async def aclose(self) -> None:
        """Stops the renewal, and releases the reservations of finished calls."""
        await self.renewals.aclose()
        self._start_release()
        if self._release_task is not None:
            await self._release_task

    async def check_budget(self, budget: KeyBudget | None) -> None:
        """Refuses a call early if nothing is left of the budget, so that no work is done for it.

        Raises:
            BudgetExceeded: the budget is spent, or reserved by running calls.
        """
        if budget is None:
            return
        try:
            use = await self._read_use(budget)
            if _is_used_up(budget, use) and await self._finish_releases():
                use = await self._read_use(budget)
        except StoreUnavailable as error:
            log.warning("could not check the budget of a key: %s", error.message)
            return
        if _is_used_up(budget, use):
            raise self._make_refusal(budget, use, 0.0)

    async def reserve(self, budget: KeyBudget, usd: float) -> str | None:
        """Reserves what a call may cost, and returns the reservation's id; None if the store is unavailable.

        Raises:
            BudgetExceeded: the amount is more than what is left.
        """
        reservation = BudgetReservation(self._new_id(), budget.key_id, self._holder, usd)
        self._running_ids.add(reservation.id)
        try:
            use = await self._try_reserve(budget, reservation)
            if not use.is_granted and await self._finish_releases():
                use = await self._try_reserve(budget, reservation)
        except StoreUnavailable as error:
            log.warning("could not reserve a part of a key's budget: %s", error.message)
            self.release(reservation.id)  # it may have been made nevertheless
            return None
        except BaseException:
            self.release(reservation.id)
            raise
        if use.is_granted:
            return reservation.id
        self._running_ids.discard(reservation.id)
        raise self._make_refusal(budget, use, usd)

    def release(self, reservation_id: str) -> None:
        """Ends a reservation, in the background: after the costs that are counted by now are written."""
        self._running_ids.discard(reservation_id)
        self._finished_ids.append(reservation_id)
        self._start_release()

    @property
    def _month_start(self) -> str:
        return self._now().date().replace(day=1).isoformat()

    def _read_use(self, budget: KeyBudget) -> Awaitable[BudgetUse]:
        return self._store.read_budget_use(key_id=budget.key_id, since_day=self._month_start)

    def _try_reserve(self, budget: KeyBudget, reservation: BudgetReservation) -> Awaitable[BudgetUse]:
        return self._store.reserve_budget(
            reservation, budget_usd=budget.usd + ROUNDING_USD, since_day=self._month_start, seconds=RESERVED_SECONDS
        )

    async def _finish_releases(self) -> bool:
        """Waits until the calls of this process that are over hold nothing back; returns False if there were none."""
        self._start_release()
        if self._release_task is None or self._release_task.done():
            return False
        await asyncio.wait({self._release_task})
        return True

    def _start_release(self) -> None:
        if self._finished_ids and (self._release_task is None or self._release_task.done()):
            self._release_task = asyncio.create_task(self._release_finished())  # noqa: TID251 - ended by aclose

    async def _release_finished(self) -> None:
        while self._finished_ids:
            batch = self._finished_ids[:MAX_RELEASED_RESERVATIONS]
            try:
                await self._usage.flush()
                await self._store.release_reservations(batch)
            except StoreUnavailable as error:
                log.warning("could not release reservations of budgets, and will try again: %s", error.message)
                return
            del self._finished_ids[: len(batch)]

    async def _renew(self) -> None:
        """Renews the reservations of running calls. If it fails, they may expire under their calls."""
        self._start_release()
        if self._running_ids:
            await self._store.renew_reservations(holder=self._holder, seconds=RESERVED_SECONDS)
        await self._store.purge_limits()

    def _make_refusal(self, budget: KeyBudget, use: BudgetUse, needed_usd: float) -> BudgetExceeded:
        now = self._now()
        month_end = compute_next_month(now)
        spent = f"${use.spent_usd:.2f} until now"
        if use.reserved_usd:
            spent += f", and ${use.reserved_usd:.2f} reserved for requests that run now"
        if use.spent_usd + ROUNDING_USD >= budget.usd:
            return BudgetExceeded(
                f"This API key ({budget.key_id}) has spent its budget of ${budget.usd:.2f} for {now:%B %Y}: {spent}. "
                f"It can be used again from {month_end:%Y-%m-%d} 00:00 UTC.",
                hint="Ask the operator of this gateway for a higher budget.",
                retry_after_seconds=(month_end - now).total_seconds(),
            )
        needed = f"this request may cost ${needed_usd:.4f}" if needed_usd else "nothing is left for another request"
        return BudgetExceeded(
            f"This API key ({budget.key_id}) has a budget of ${budget.usd:.2f} for {now:%B %Y}: {spent}; {needed}.",
            hint="Send a shorter prompt or a lower limit for the answer, or ask the operator of this gateway for a "
            "higher budget.",
        )


def _is_used_up(budget: KeyBudget, use: BudgetUse) -> bool:
    return use.spent_usd + use.reserved_usd + ROUNDING_USD >= budget.usd


def compute_next_month(moment: datetime) -> datetime:
    """Returns the first moment of the calendar month (UTC) after a moment."""
    first = datetime(moment.year, moment.month, 1, tzinfo=UTC)
    return first.replace(year=first.year + 1, month=1) if first.month == 12 else first.replace(month=first.month + 1)
