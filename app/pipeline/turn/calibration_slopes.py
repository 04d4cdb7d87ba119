"""Remembers the calibration slopes of conversations, and derives from them where a new conversation starts."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from statistics import median
from typing import Any, Final

from app.context.calibration import HIGHEST_SLOPE, LOWEST_SLOPE, Calibration

MIN_EVIDENCE_TOKENS: Final = 500
"""A conversation's slope counts after this many tokens have been compared with the provider's reports."""
MIN_TENANTS: Final = 3
"""With this many tenants, their slopes say something about a model. Fewer may only say what one tenant sends."""
MAX_CONVERSATIONS_PER_TENANT: Final = 9
"""For each tenant and model, the slopes of this many conversations are remembered: those that learned last."""
MAX_TENANTS_PER_MODEL: Final = 64
"""For each model, the slopes of this many tenants are remembered: those that learned last."""
MAX_MODELS: Final = 1_000
MIN_SLOPE_DRIFT: Final = 0.02
"""A tenant's median is stored when it differs from the stored one by more than this."""
SLOPES_FACT: Final = "slopes"
"""A key of the stored facts of a model: the median slope of each tenant, by the digest of the tenant's name."""
STORED_SLOPE_KEY: Final = ""
"""Stands in the place of a conversation's id for the slope that was stored for a tenant."""


class CalibrationSlopes:
    """Remembers the slopes of recent conversations by model and tenant, as a start for new conversations. Offsets are
    not shared: an offset depends on the instructions of one application."""

    def __init__(self) -> None:
        self._slopes: OrderedDict[str, OrderedDict[str, OrderedDict[str, float]]] = OrderedDict()
        """By model, digest of the tenant, and conversation."""
        self._stored_slopes: dict[str, dict[str, float]] = {}
        """The stored slopes, by model and digest of the tenant."""

    def find_start_slope(self, model_key: str, tenant: str) -> float:
        """Returns the slope for a new conversation: the median of the tenant's own slopes; else the median over the
        other tenants, if there are at least three; else 1."""
        tenants = self._slopes.get(model_key)
        if tenants is None:
            return 1.0
        if tenant_slopes := tenants.get(_digest_tenant(tenant)):
            return median(tenant_slopes.values())
        return median(median(one.values()) for one in tenants.values()) if len(tenants) >= MIN_TENANTS else 1.0

    def learn_slope(
        self, model_key: str, tenant: str, conversation_id: str, calibration: Calibration
    ) -> dict[str, Any] | None:
        """Records the slope that a conversation has learned.

        Returns:
            The facts to store for the model; None if they have not changed enough.
        """
        if calibration.changed_estimated < MIN_EVIDENCE_TOKENS:
            return None
        tenant_digest = _digest_tenant(tenant)
        tenant_slopes = self._touch_tenant_slopes(model_key, tenant_digest)
        # A slope from this process's own traffic replaces the one that was read from the store.
        tenant_slopes.pop(STORED_SLOPE_KEY, None)
        tenant_slopes[conversation_id] = calibration.slope
        tenant_slopes.move_to_end(conversation_id)
        while len(tenant_slopes) > MAX_CONVERSATIONS_PER_TENANT:
            tenant_slopes.popitem(last=False)
        stored_slopes, tenant_median = self._stored_slopes.setdefault(model_key, {}), median(tenant_slopes.values())
        if abs(stored_slopes.get(tenant_digest, 1.0) - tenant_median) <= MIN_SLOPE_DRIFT:
            return None
        stored_slopes = {name: slope for name, slope in stored_slopes.items() if name in self._slopes[model_key]}
        stored_slopes[tenant_digest] = round(tenant_median, 4)
        self._stored_slopes[model_key] = stored_slopes
        return {SLOPES_FACT: stored_slopes}

    def restore_slopes(self, model_key: str, facts: object) -> None:
        """Takes over slopes from the stored facts of a model. Anything that is not a plausible slope is ignored."""
        for tenant, slope in facts.items() if isinstance(facts, Mapping) else ():
            if isinstance(slope, int | float) and LOWEST_SLOPE <= slope <= HIGHEST_SLOPE:
                self._touch_tenant_slopes(model_key, str(tenant))[STORED_SLOPE_KEY] = float(slope)
                self._stored_slopes.setdefault(model_key, {})[str(tenant)] = float(slope)

    def _touch_tenant_slopes(self, model_key: str, tenant: str) -> OrderedDict[str, float]:
        """Returns the slopes of a tenant, and makes the tenant the one that learned last."""
        tenants = self._slopes.setdefault(model_key, OrderedDict())
        self._slopes.move_to_end(model_key)
        tenant_slopes = tenants.setdefault(tenant, OrderedDict())
        tenants.move_to_end(tenant)
        if len(tenants) > MAX_TENANTS_PER_MODEL:
            tenants.popitem(last=False)
        if len(self._slopes) > MAX_MODELS:
            evicted_model, _ = self._slopes.popitem(last=False)
            self._stored_slopes.pop(evicted_model, None)
        return tenant_slopes


def _digest_tenant(tenant: str) -> str:
    return hashlib.blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
