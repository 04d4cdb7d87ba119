"""The contract for leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

SUMMARY_LEASE_PREFIXES: Final = ("range:", "fold:")
"""The keys of leases for making a summary begin with one of these."""


class LeaseLost(Exception):
    """The lease that fences a write has expired, or another holder has it. Nothing was written."""


class Lease(msgspec.Struct, frozen=True):
    """A claim on `(root, key)`. `token` grows with every claim, so the store refuses late writes of former holders."""

    root: str
    key: str
    holder: str
    token: int


class LeaseStore(Protocol):
    """Keeps leases, by root and key.

    Raises:
        StoreUnavailable: from every method, when the database cannot be reached or does not answer in time.
    """

    async def claim_lease(self, *, root: str, key: str, holder: str, seconds: float) -> Lease | None:
        """Claims `(root, key)` if it is free, expired or already `holder`'s; None while another holder has it."""

    async def renew_leases(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        """Extends leases. Returns those that are lost."""

    async def release_lease(self, lease: Lease) -> None:
        """Releases a lease. Does nothing if it was lost."""
