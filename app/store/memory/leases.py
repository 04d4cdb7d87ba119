"""Leases in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from app.store.contract.leases import Lease, LeaseLost


class MemoryLeases:
    """The part of `Store` that is `LeaseStore`."""

    def __init__(self, *, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._leases: dict[tuple[str, str], tuple[Lease, datetime]] = {}

    async def claim_lease(self, *, root: str, key: str, holder: str, seconds: float) -> Lease | None:
        now = self._clock()
        current_lease, expires_at = self._leases.get((root, key), (None, now))
        if current_lease is not None and current_lease.holder != holder and expires_at > now:
            return None
        # Microseconds since 1970, and more than the stored token: tokens grow even though releasing deletes the lease.
        token = int(now.timestamp() * 1_000_000)
        lease = Lease(root, key, holder, token if current_lease is None else max(current_lease.token + 1, token))
        self._leases[root, key] = (lease, now + timedelta(seconds=seconds))
        return lease

    async def renew_leases(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        expires_at = self._clock() + timedelta(seconds=seconds)
        lost = []
        for lease in leases:
            if self._is_lease_held(lease):
                self._leases[lease.root, lease.key] = (lease, expires_at)
            else:
                lost.append(lease)
        return lost

    async def release_lease(self, lease: Lease) -> None:
        if self._is_lease_held(lease):
            del self._leases[lease.root, lease.key]

    def _is_lease_held(self, lease: Lease) -> bool:
        return (lease.root, lease.key) in self._leases and self._leases[lease.root, lease.key][0] == lease

    def _require_lease(self, fence: Lease, now: datetime) -> None:
        if not self._is_lease_held(fence) or self._leases[fence.root, fence.key][1] <= now:
            raise LeaseLost

    def _drop_leases(self, root: str, prefixes: str | tuple[str, ...]) -> None:
        for lease_key in [
            lease_key for lease_key in self._leases if lease_key[0] == root and lease_key[1].startswith(prefixes)
        ]:
            del self._leases[lease_key]
