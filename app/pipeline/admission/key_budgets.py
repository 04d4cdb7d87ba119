"""Refuses model calls of API keys that have spent their budget of the calendar month."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from app.errors import BudgetExceeded, StoreUnavailable
from app.pipeline.chat_request import Caller

log = logging.getLogger(__name__)


class KeyBudgets:
    """Checks callers' budgets. A request that began within its budget is answered, so that a key may spend a little
    more than its budget.

    Args:
        find_month_cost: returns what an API key has cost this month, in US dollars
            (`store.usage_recorder.UsageRecorder`).
        now: the time of day, in UTC.
    """

    def __init__(self, find_month_cost: Callable[[str], Awaitable[float]], *, now: Callable[[], datetime]) -> None:
        self._find_month_cost = find_month_cost
        self._now = now

    async def check_budget(self, caller: Caller) -> None:
        """Checks that the caller may spend more.

        Raises:
            BudgetExceeded: the caller's key has spent its budget.
        """
        budget_usd, key_id = caller.budget_usd, caller.api_key_id
        if budget_usd is None or key_id is None:
            return
        try:
            spent_usd = await self._find_month_cost(key_id)
        except StoreUnavailable as error:
            # Answers are given without the store, so they are given here, too.
            log.warning("could not check the budget of a key: %s", error.message)
            return
        if spent_usd < budget_usd:
            return
        now = self._now()
        month_end = compute_next_month(now)
        raise BudgetExceeded(
            f"This API key ({key_id}) has spent its budget of ${budget_usd:.2f} for {now:%B %Y}: "
            f"${spent_usd:.2f} until now. It can be used again from {month_end:%Y-%m-%d} 00:00 UTC.",
            hint="Ask the operator of this gateway for a higher budget.",
            retry_after_seconds=(month_end - now).total_seconds(),
        )


def compute_next_month(moment: datetime) -> datetime:
    """Returns the first moment of the calendar month (UTC) after a moment."""
    first = datetime(moment.year, moment.month, 1, tzinfo=UTC)
    return first.replace(year=first.year + 1, month=1) if first.month == 12 else first.replace(month=first.month + 1)
