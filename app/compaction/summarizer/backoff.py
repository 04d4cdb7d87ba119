"""Growing pauses for summarizers that fail: for a tenant where nobody answers, else for the conversation."""

from __future__ import annotations

from collections.abc import Callable

from app.compaction.summarizer.summary_request import SummaryRefused
from app.errors import UpstreamRefused
from app.upstream.routing.circuit_breaker import Breaker

FAILURES = 3
"""So many in a row begin a pause …"""
FIRST_SECONDS, LONGEST_SECONDS = 30.0, 600.0
"""… of this length; each failure after a pause doubles it."""
REMEMBERED = 2_048
UNPROCESSABLE = frozenset({400, 413, 422})
"""Refusals that say something about what was asked, not about who answers."""


class Pauses:
    """Remembers failures in this process.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._breakers: dict[tuple[str, ...], Breaker] = {}

    def of(self, model: str, tenant: str, root: str) -> Pause:
        return Pause(self._breaker(model, tenant), self._breaker(model, tenant, root))

    def _breaker(self, *key: str) -> Breaker:
        """The breaker of a key; the one that was asked for longest ago is forgotten when there are too many."""
        breaker = self._breakers.pop(key, None) or Breaker(FAILURES, FIRST_SECONDS, LONGEST_SECONDS, self._clock)
        self._breakers[key] = breaker
        while len(self._breakers) > REMEMBERED:
            del self._breakers[next(iter(self._breakers))]
        return breaker


class Pause:
    """Whether a model is asked for one tenant's conversation."""

    def __init__(self, of_tenant: Breaker, of_conversation: Breaker) -> None:
        self._of_tenant = of_tenant
        self._of_conversation = of_conversation

    @property
    def wait_seconds(self) -> float:
        return max(self._of_tenant.wait_seconds, self._of_conversation.wait_seconds)

    def enter(self) -> bool:
        """Whether to ask; then `succeeded`, `failed` or `gave_up` must follow."""
        if not self._of_tenant.enter():
            return False
        if self._of_conversation.enter():
            return True
        self._of_tenant.gave_up()
        return False

    def succeeded(self) -> None:
        self._of_tenant.succeeded()
        self._of_conversation.succeeded()

    def failed(self, error: Exception) -> None:
        """An answer that is of no use counts for the conversation, no answer for whoever asks that model."""
        if isinstance(error, SummaryRefused) or (isinstance(error, UpstreamRefused) and error.status in UNPROCESSABLE):
            self._of_tenant.succeeded()
            self._of_conversation.failed()
        else:
            self._of_tenant.failed()
            self._of_conversation.gave_up()

    def gave_up(self) -> None:
        self._of_tenant.gave_up()
        self._of_conversation.gave_up()
