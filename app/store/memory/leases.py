"""Leases in a dict, and what is known of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from app.store.contract import Lease, LeaseLost


class MemoryLeases:
    """The part of `Store` that processes agree by: who may do what, and what was learned of models."""

    def __init__(self, *, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._leases: dict[tuple[str, str], tuple[Lease, datetime]] = {}
        self._facts: dict[str, dict[str, Any]] = {}

    async def claim_lease(self, *, root: str, key: str, holder: str, seconds: float) -> Lease | None:
        now = self._clock()
        held, expires_at = self._leases.get((root, key), (None, now))
        if held is not None and held.holder != holder and expires_at > now:
            return None
        token = int(now.timestamp() * 1_000_000)
        lease = Lease(root, key, holder, token if held is None else max(held.token + 1, token))
        self._leases[root, key] = (lease, now + timedelta(seconds=seconds))
        return lease

    async def renew_leases(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        expires_at = self._clock() + timedelta(seconds=seconds)
        lost = []
        for lease in leases:
            if self._holds(lease):
                self._leases[lease.root, lease.key] = (lease, expires_at)
            else:
                lost.append(lease)
        return lost

    async def release_lease(self, lease: Lease) -> None:
        if self._holds(lease):
            del self._leases[lease.root, lease.key]

    def _holds(self, lease: Lease) -> bool:
        return (lease.root, lease.key) in self._leases and self._leases[lease.root, lease.key][0] == lease

    def _require(self, fence: Lease, now: datetime) -> None:
        if not self._holds(fence) or self._leases[fence.root, fence.key][1] <= now:
            raise LeaseLost

    def _drop_leases(self, root: str, prefixes: str | tuple[str, ...]) -> None:
        for place in [place for place in self._leases if place[0] == root and place[1].startswith(prefixes)]:
            del self._leases[place]

    async def model_facts(self) -> dict[str, dict[str, Any]]:
        return {model: dict(facts) for model, facts in self._facts.items()}

    async def learn(self, *, model: str, facts: Mapping[str, Any]) -> None:
        self._facts[model] = {**self._facts.get(model, {}), **facts}
