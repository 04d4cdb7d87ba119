"""Notices that the store can be read but not written, as with a full disk: requests would go on with answers that are
not stored, and nobody would know why."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from app.errors import StoreUnavailable

log = logging.getLogger(__name__)

UNREADY_SECONDS: Final = 60.0
"""How long writes must fail until the process counts as not ready: a failover of a database takes less."""
WRITING_OPERATIONS: Final = frozenset(
    {"append", "claim_lease", "add_summary", "save_completion", "claim_idempotency_key", "add_usage", "add_anchors"}
)
"""The operations that tell whether the store can be written."""
PROBE_ROOT: Final = "write-probe"
PROBE_SECONDS: Final = 1.0


class WriteHealth:
    """Whether writes succeed. Each change is logged once.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failing_since: float | None = None
        self._reason = ""

    @property
    def is_failing(self) -> bool:
        return self._failing_since is not None

    def record_success(self) -> None:
        if self._failing_since is not None:
            self._failing_since = None
            log.warning("the database can be written again")

    def record_failure(self, error: StoreUnavailable) -> None:
        self._reason = error.message
        if self._failing_since is None:
            self._failing_since = self._clock()
            log.warning("the database cannot be written, so answers are not stored: %s", error.message)

    def raise_if_failing_for_long(self) -> None:
        """Raises the failure if writes fail for `UNREADY_SECONDS` or longer.

        Raises:
            StoreUnavailable: the last failure.
        """
        if self._failing_since is not None and self._clock() - self._failing_since >= UNREADY_SECONDS:
            raise StoreUnavailable(f"The database cannot be written: {self._reason}")
