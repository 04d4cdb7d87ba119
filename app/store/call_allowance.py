"""What one request of a limited caller may use: it reserves the cost of its calls, and settles with what they used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from app.conversation.api_keys import KeyBudget
from app.dialects.usage import TokenUsage
from app.store.key_budgets import KeyBudgets
from app.store.rate_limits import CountedCall, RateLimits


@dataclass(eq=False)
class CallAllowance:
    """The allowance of one request. It is settled when everybody who kept it open has called `finish`.

    Args:
        compute_answer_tokens: as `CallLimits.compute_answer_tokens`.
    """

    budgets: KeyBudgets
    budget: KeyBudget | None
    rates: RateLimits
    counted_call: CountedCall | None
    compute_answer_tokens: Callable[[int | None, int], int]
    reserved_usd: float = field(default=0.0, init=False)
    """What is reserved for the request's calls until now."""
    _open_count: int = field(default=1, init=False)
    _reservation_ids: list[str] = field(default_factory=list, init=False)
    _used_tokens: int = field(default=0, init=False)

    @property
    def has_budget(self) -> bool:
        return self.budget is not None

    @property
    def headers(self) -> dict[str, str]:
        """The `x-ratelimit-…` headers of the answer."""
        return {} if self.counted_call is None else self.counted_call.headers

    async def reserve(self, total_usd: float) -> None:
        """Reserves what all calls of the request may cost together; what is reserved already counts.

        Raises:
            BudgetExceeded: the caller's budget has not so much left.
        """
        missing_usd = total_usd - self.reserved_usd
        if self.budget is None or missing_usd <= 0:
            return
        reservation_id = await self.budgets.reserve(self.budget, missing_usd)
        if reservation_id is not None:
            self._reservation_ids.append(reservation_id)
        self.reserved_usd = total_usd

    def record_usage(self, usage: TokenUsage) -> None:
        """Adds the tokens of an answer."""
        self._used_tokens += usage.prompt_tokens + usage.output_tokens

    def keep_open(self) -> None:
        """Delays the settlement until `finish` is called once more: some usage is recorded later."""
        self._open_count += 1

    def finish(self) -> None:
        """Settles in the background, unless somebody keeps the allowance open."""
        self._open_count -= 1
        if self._open_count:
            return
        for reservation_id in self._reservation_ids:
            self.budgets.release(reservation_id)
        if self.counted_call is not None:
            self.rates.settle_call(self.counted_call, self._used_tokens)
