"""What earlier views left in a conversation's state: where they were cut, and what their tokens were counted as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from app.context.calibration import Calibration
from app.context.plan.outline import KEPT_VIEWS, LastView
from app.context.plan.policy import Policy

CALIBRATION, VIEWS = "calibration", "views"
"""`Conversation.state`: calibration per `provider/model`; the last view per policy and window."""
NO_VIEW: Final = LastView()


def calibration_of(state: Mapping[str, Any], model_key: str, start_slope: float = 1.0) -> Calibration:
    """The calibration of a conversation for a model.

    Args:
        start_slope: of a conversation that the model has not answered yet.
    """
    known = state.get(CALIBRATION)
    return Calibration.from_dict(known.get(model_key) if known else None, start_slope=start_slope)


def last_view_of(state: Mapping[str, Any], policy: Policy, window: int) -> LastView:
    """What is kept of the last view that was made under a policy for a window."""
    views = state.get(VIEWS)
    stored = views.get(_view_key(policy, window)) if views else None
    return NO_VIEW if stored is None else msgspec.convert(stored, LastView)


def with_view(state: Mapping[str, Any], policy: Policy, window: int, view: LastView) -> Mapping[str, Any]:
    """`Conversation.state["views"]` with one more; of too many the one that was not used for longest goes."""
    key = _view_key(policy, window)
    known: Mapping[str, Any] = state.get(VIEWS, {})
    if view == NO_VIEW and key not in known:  # which says as much
        return known
    kept = {name: stored for name, stored in known.items() if name != key}
    while len(kept) >= KEPT_VIEWS:
        del kept[next(iter(kept))]
    return {**kept, key: msgspec.to_builtins(view)}


def _view_key(policy: Policy, window: int) -> str:
    return f"{policy.name}:{window}"
