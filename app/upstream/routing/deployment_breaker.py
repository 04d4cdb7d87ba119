"""Pauses the calls to a deployment that fails: for everybody only if calls of several tenants fail.

A failure that follows one prompt is that prompt's, and one that follows one tenant (or its key) is that tenant's: some
prompts crash a server, and a broken key may be answered with 500. Without this rule one tenant could pause the calls of
all others. A guess that is wrong costs each tenant some failed calls before it is paused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from app.upstream.routing.circuit_breaker import CircuitBreaker

MAX_TENANTS: Final = 1_000
"""In mode `open`, clients choose their tenants."""
SEVERAL: Final = 2


@dataclass(slots=True)
class _Failures:
    """The failures in a row of one tenant, or of all."""

    breaker: CircuitBreaker
    tenants: set[object] = field(default_factory=set)
    prompts: set[object] = field(default_factory=set)
    """Hashes of request bodies. Neither set grows beyond `SEVERAL`."""

    def record(self, tenant: str, body: bytes, *, min_tenants: int) -> None:
        for sources, source in ((self.tenants, tenant), (self.prompts, hash(body))):
            if len(sources) < SEVERAL:
                sources.add(source)
        self.breaker.record_failure(may_open=len(self.tenants) >= min_tenants and len(self.prompts) >= SEVERAL)


class DeploymentBreaker:
    """The circuit breakers of one deployment: one for all tenants, and one for each tenant whose calls fail.

    Only failures of the deployment itself count (no connection, no answer, 5xx), never a refusal of a request.

    Args:
        new_breaker: makes a circuit breaker.
    """

    def __init__(self, new_breaker: Callable[[], CircuitBreaker]) -> None:
        self._new_breaker = new_breaker
        self._all: _Failures | None = None
        self._tenants: dict[str, _Failures] = {}
        """The longest known one first."""
        self._failed_trial_tenant: str | None = None

    @property
    def is_open(self) -> bool:
        """Says whether calls pause, of all tenants or of one."""
        return self._all is not None and any(one.breaker.is_open for one in (self._all, *self._tenants.values()))

    def is_open_for(self, tenant: str) -> bool:
        own = self._tenants.get(tenant)
        return (self._all is not None and self._all.breaker.is_open) or (own is not None and own.breaker.is_open)

    def seconds_until_trial(self, tenant: str) -> float:
        return max((breaker.seconds_until_trial for breaker in self._find_breakers(tenant)), default=0.0)

    def try_enter(self, tenant: str) -> bool:
        """Says whether a tenant may make a call. A permitted call must end in `record_success`, `record_failure` or
        `cancel_trial`.
        """
        entered: list[CircuitBreaker] = []
        for breaker in self._find_breakers(tenant):
            # The tenant whose trial failed comes after the others: its calls may fail where theirs would not.
            is_last = self._all is not None and breaker is self._all.breaker and tenant == self._failed_trial_tenant
            if not breaker.try_enter(pauses=2 if is_last else 1):
                for one in entered:
                    one.cancel_trial()
                return False
            entered.append(breaker)
        return True

    def record_success(self, tenant: str) -> None:
        self._all = self._failed_trial_tenant = None
        self._tenants.pop(tenant, None)

    def record_failure(self, tenant: str, body: bytes) -> None:
        """Counts a failed call.

        Args:
            tenant: whose call it was.
            body: what was sent.
        """
        if self._all is None:
            self._all = _Failures(self._new_breaker())
        if self._all.breaker.is_open:
            self._failed_trial_tenant = tenant
        self._all.record(tenant, body, min_tenants=SEVERAL)
        if tenant not in self._tenants:
            if len(self._tenants) >= MAX_TENANTS:
                del self._tenants[next(iter(self._tenants))]
            self._tenants[tenant] = _Failures(self._new_breaker())
        self._tenants[tenant].record(tenant, body, min_tenants=1)

    def cancel_trial(self, tenant: str) -> None:
        """Ends a trial without a result: its call was cancelled, or never made."""
        for breaker in self._find_breakers(tenant):
            breaker.cancel_trial()

    def _find_breakers(self, tenant: str) -> list[CircuitBreaker]:
        """Returns the breakers that a call of a tenant must pass, the tenant's own first; mostly none."""
        failures = (self._tenants.get(tenant), self._all)
        return [one.breaker for one in failures if one is not None]
