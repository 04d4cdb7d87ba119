"""Circuit breakers of summarizer models: a model that fails repeatedly is not called for a while."""

from __future__ import annotations

from collections.abc import Callable

from app.compaction.summarizer.summary_request import NoUsableSummary
from app.errors import UpstreamRefused
from app.upstream.routing.circuit_breaker import CircuitBreaker

MAX_FAILURES = 3
"""How many failures in a row begin a backoff."""
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 30.0, 600.0
"""The first backoff, and the longest. Each failure after a backoff doubles it."""
MAX_BREAKERS = 2_048
UNPROCESSABLE_STATUSES = frozenset({400, 413, 422})
"""Statuses of refusals that are about the prompt, not about the model or its provider."""


class SummarizerBackoffs:
    """Keeps the circuit breakers of summarizer models in this process.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._breakers: dict[tuple[str, ...], CircuitBreaker] = {}

    def find_backoff(self, model: str, tenant: str, root: str) -> SummarizerBackoff:
        return SummarizerBackoff(self._find_breaker(model, tenant), self._find_breaker(model, tenant, root))

    def _find_breaker(self, *key: str) -> CircuitBreaker:
        """Returns the breaker of a key. Above `MAX_BREAKERS` the least recently used one is evicted."""
        breaker = self._breakers.pop(key, None) or CircuitBreaker(
            MAX_FAILURES, FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, self._clock
        )
        self._breakers[key] = breaker
        while len(self._breakers) > MAX_BREAKERS:
            del self._breakers[next(iter(self._breakers))]
        return breaker


class SummarizerBackoff:
    """Decides whether a model may be called for a conversation: by the tenant's breaker and the conversation's own."""

    def __init__(self, tenant_breaker: CircuitBreaker, conversation_breaker: CircuitBreaker) -> None:
        self._tenant_breaker = tenant_breaker
        self._conversation_breaker = conversation_breaker

    @property
    def seconds_until_trial(self) -> float:
        return max(self._tenant_breaker.seconds_until_trial, self._conversation_breaker.seconds_until_trial)

    def try_enter(self) -> bool:
        """Whether the model may be called. If so, `record_success`, `record_failure` or `cancel_trial` must follow."""
        if not self._tenant_breaker.try_enter():
            return False
        if self._conversation_breaker.try_enter():
            return True
        self._tenant_breaker.cancel_trial()
        return False

    def record_success(self) -> None:
        self._tenant_breaker.record_success()
        self._conversation_breaker.record_success()

    def record_failure(self, error: Exception) -> None:
        """Records a failure: an unusable answer for the conversation, a missing answer for the tenant."""
        if isinstance(error, NoUsableSummary) or (
            isinstance(error, UpstreamRefused) and error.status in UNPROCESSABLE_STATUSES
        ):
            # The model answered, so other conversations may go on calling it.
            self._tenant_breaker.record_success()
            self._conversation_breaker.record_failure()
        else:
            self._tenant_breaker.record_failure()
            self._conversation_breaker.cancel_trial()

    def cancel_trial(self) -> None:
        self._tenant_breaker.cancel_trial()
        self._conversation_breaker.cancel_trial()
