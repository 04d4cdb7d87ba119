"""The contract for what limits calls of models over all processes: reservations of budgets, and counts of rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

RATE_WINDOW_SECONDS: Final = 60
MAX_RELEASED_RESERVATIONS: Final = 50
"""How many reservations one call of `release_reservations` may have: they are one statement."""


class BudgetReservation(msgspec.Struct, frozen=True):
    """What a running call of a model may cost. It counts as spent until it is released or expires."""

    id: str
    key_id: str
    holder: str
    """The process that makes the call, and renews the reservation."""
    usd: float


class BudgetUse(msgspec.Struct, frozen=True):
    """How much of an API key's budget is used, in US dollars."""

    spent_usd: float
    reserved_usd: float
    """By calls that run now."""
    is_granted: bool = False
    """Whether the reservation that was asked for was made."""


class RateLimit(msgspec.Struct, frozen=True):
    """A limit of the calls in a minute. None: no limit."""

    scope: str
    """What is counted together: a key, a tenant, or all."""
    requests: int | None
    tokens: int | None


class RateUse(msgspec.Struct, frozen=True):
    """The calls of a scope in the last minute."""

    requests: int
    tokens: int
    frees_after_seconds: int
    """Until the oldest of them is no longer counted."""
    resets_after_seconds: int
    """Until none of them is counted."""


class RateCount(msgspec.Struct, frozen=True):
    """The result of an attempt to count a call."""

    counted_at: int | None
    """The second at which the call was counted, by the store's clock. None: it would have exceeded a limit."""
    uses: tuple[RateUse, ...]
    """In the order of the limits, with this call if it was counted."""


class LimitStore(Protocol):
    """Keeps what running and recent calls of models use of their limits. All processes share it.

    Raises:
        StoreUnavailable: from every method, when the database cannot be reached or does not answer in time.
    """

    async def reserve_budget(
        self, reservation: BudgetReservation, *, budget_usd: float, since_day: str, seconds: float
    ) -> BudgetUse:
        """Makes a reservation if it fits the budget beside the key's costs since a day and its other reservations. Two
        processes can never use the same money: this is exact.

        Args:
            seconds: the reservation expires after this time unless it is renewed.
        """

    async def read_budget_use(self, *, key_id: str, since_day: str) -> BudgetUse:
        """Returns what a key has spent since a day and what is reserved."""

    async def release_reservations(self, ids: Sequence[str]) -> None:
        """Deletes at most `MAX_RELEASED_RESERVATIONS` reservations."""

    async def renew_reservations(self, *, holder: str, seconds: float) -> None:
        """Lets all reservations of a process live for `seconds` from now."""

    async def count_call(self, limits: Sequence[RateLimit], *, tokens: int) -> RateCount:
        """Counts one call in every scope, if no limit is exceeded by it; otherwise in none. This is exact: no 60
        seconds have more than a limit allows. A call with more tokens than a limit is counted if there was no other.

        Args:
            limits: at least one; the widest scope first, always in the same order. One call at a time is counted in it.
        """

    async def correct_tokens(self, scopes: Sequence[str], *, counted_at: int, added_tokens: int) -> None:
        """Changes the tokens of a counted call when they are known; `added_tokens` may be negative."""

    async def purge_limits(self) -> None:
        """Deletes expired reservations, and counts that are older than a minute."""
