"""The slopes (`context.calibration`) that new conversations start with: what others with the same model learned."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from statistics import median
from typing import Any, Final

from app.context.calibration import HIGHEST_SLOPE, LOWEST_SLOPE, Calibration

LEAST_EVIDENCE_TOKENS: Final = 500
"""A conversation counts once so many tokens were compared."""
LEAST_TENANTS: Final = 3
"""So many other tenants' slopes say something of a model; fewer may say something of what one tenant sends."""
KEPT_CONVERSATIONS: Final = 9
"""Of each tenant and model: those that learned last."""
KEPT_TENANTS: Final = 64
"""Of each model: those that learned last."""
KEPT_MODELS: Final = 1_000
SLOPE_DRIFT: Final = 0.02
"""A tenant's median that moved by more than this is stored."""
SLOPES: Final = "slopes"
"""Of the facts of a model: the median of each tenant, by the digest of its name."""
STORED: Final = ""
"""In the place of a conversation's id: what was stored for a tenant."""


class Slopes:
    """Remembers the slopes of recent conversations by model and tenant. Offsets are never borrowed."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, OrderedDict[str, OrderedDict[str, float]]] = OrderedDict()
        """By model, tenant (digest) and conversation."""
        self._stored: dict[str, dict[str, float]] = {}
        """What is stored, by model and tenant."""

    def start(self, model_key: str, tenant: str) -> float:
        """The slope of a new conversation: the median of its own tenant's, or that of three other tenants' at least."""
        tenants = self._known.get(model_key)
        if tenants is None:
            return 1.0
        if own := tenants.get(_digest(tenant)):
            return median(own.values())
        return median(median(one.values()) for one in tenants.values()) if len(tenants) >= LEAST_TENANTS else 1.0

    def learn(
        self, model_key: str, tenant: str, conversation_id: str, calibration: Calibration
    ) -> dict[str, Any] | None:
        """Take note of what a conversation has learned. Gives facts to store, where they changed."""
        if calibration.changed_estimated < LEAST_EVIDENCE_TOKENS:
            return None
        own = self._of(model_key, _digest(tenant))
        own.pop(STORED, None)
        own[conversation_id] = calibration.slope
        own.move_to_end(conversation_id)
        while len(own) > KEPT_CONVERSATIONS:
            own.popitem(last=False)
        stored, now = self._stored.setdefault(model_key, {}), median(own.values())
        if abs(stored.get(_digest(tenant), 1.0) - now) <= SLOPE_DRIFT:
            return None
        stored = {name: slope for name, slope in stored.items() if name in self._known[model_key]}
        stored[_digest(tenant)] = round(now, 4)
        self._stored[model_key] = stored
        return {SLOPES: stored}

    def restore(self, model_key: str, facts: object) -> None:
        """Read what was stored; anything else is passed over."""
        for tenant, slope in facts.items() if isinstance(facts, Mapping) else ():
            if isinstance(slope, int | float) and LOWEST_SLOPE <= slope <= HIGHEST_SLOPE:
                self._of(model_key, str(tenant))[STORED] = float(slope)
                self._stored.setdefault(model_key, {})[str(tenant)] = float(slope)

    def _of(self, model_key: str, tenant: str) -> OrderedDict[str, float]:
        """The slopes of a tenant, which becomes the one that learned last."""
        tenants = self._known.setdefault(model_key, OrderedDict())
        self._known.move_to_end(model_key)
        own = tenants.setdefault(tenant, OrderedDict())
        tenants.move_to_end(tenant)
        if len(tenants) > KEPT_TENANTS:
            tenants.popitem(last=False)
        if len(self._known) > KEPT_MODELS:
            gone, _ = self._known.popitem(last=False)
            self._stored.pop(gone, None)
        return own


def _digest(tenant: str) -> str:
    return hashlib.blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
