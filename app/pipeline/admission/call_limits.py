"""Lets requests that call a model in within the limits of their callers: budgets and rates. What a request has used of
them is settled when it is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from app.conversation.api_keys import extract_application_tenant
from app.pipeline.turn.chat_request import Caller
from app.store.call_allowance import CallAllowance
from app.store.contract.limits import RateLimit
from app.store.key_budgets import KeyBudgets
from app.store.rate_limits import RateLimits

BYTES_PER_TOKEN: Final = 4


class RateSettings(msgspec.Struct, frozen=True):
    """How many requests or tokens a minute may have. 0: no limit."""

    key: int = 0
    tenant: int = 0
    all: int = 0


NO_RATES: Final = RateSettings()


@dataclass(eq=False)
class CallLimits:
    """The limits of all callers.

    Args:
        requests, tokens: the rates of the settings. A key's own rate stands before that for each key.
        assumed_answer_tokens: how long an answer may become if its request has no limit.
    """

    budgets: KeyBudgets
    rates: RateLimits
    requests: RateSettings
    tokens: RateSettings
    assumed_answer_tokens: int

    def is_limited(self, caller: Caller) -> bool:
        """Returns whether anything is limited for a caller."""
        has_rates = self.requests != NO_RATES or self.tokens != NO_RATES
        return bool(has_rates or caller.budget_usd or caller.requests_per_minute or caller.tokens_per_minute)

    async def admit(self, caller: Caller, *, body_bytes: int = 0, answer_tokens: int = 0) -> CallAllowance | None:
        """Counts a request in the rates of its caller, and checks that the caller's budget has something left.

        Args:
            body_bytes: of the request; a token has four of them.
            answer_tokens: the most tokens that all its answers may have together.

        Returns:
            What the request may use, to be finished at its end; None if nothing is limited for the caller.

        Raises:
            BudgetExceeded: the budget is spent, or reserved by running requests.
            RateLimitExceeded: there were too many requests or tokens in the last minute.
        """
        await self.budgets.check_budget(caller.budget)
        counted_call = await self.rates.count_call(
            self._list_rates(caller), tokens=body_bytes // BYTES_PER_TOKEN + answer_tokens
        )
        if counted_call is None and caller.budget is None:
            return None
        return CallAllowance(self.budgets, caller.budget, self.rates, counted_call, self.compute_answer_tokens)

    def compute_answer_tokens(self, limit: int | None, choice_count: int = 1) -> int:
        """Returns the most tokens that the answers to a request may have together.

        Args:
            limit: the request's limit for one answer, as the client wrote it.
        """
        return (limit if limit is not None and limit > 0 else self.assumed_answer_tokens) * max(1, choice_count)

    def _list_rates(self, caller: Caller) -> list[RateLimit]:
        """Lists the rates of a caller, the widest first."""
        rates = [
            RateLimit("all", self.requests.all or None, self.tokens.all or None),
            RateLimit(
                f"tenant {extract_application_tenant(caller.tenant)}",
                self.requests.tenant or None,
                self.tokens.tenant or None,
            ),
        ]
        if caller.api_key_id is not None:
            requests = caller.requests_per_minute or self.requests.key or None
            tokens = caller.tokens_per_minute or self.tokens.key or None
            rates.append(RateLimit(f"key {caller.api_key_id}", requests, tokens))
        return [rate for rate in rates if rate.requests or rate.tokens]
