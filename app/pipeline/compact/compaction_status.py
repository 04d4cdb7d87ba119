"""`context.compaction`: what compacted the conversation of a view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.pipeline.turn import View


def shows_new_compaction(view: View) -> bool:
    """Returns whether the answer to this view is the first after a compaction."""
    status = build_compaction_status(view)
    return bool(view.plan.summaries) and bool(status["ran"] or status.get("prepared"))


def build_compaction_status(view: View) -> Mapping[str, Any]:
    """Builds `context.compaction` of a view.

    Describes the compaction of this answer, or the precompaction whose summary this view is the first to show.
    """
    plan, previous_view = view.plan, view.outline.last_view
    if not plan.summaries or view.compaction.get("ran") or plan.boundary_seq <= previous_view.boundary.to_seq:
        return view.compaction
    newest = plan.summaries[-1]
    return {"ran": False, "prepared": True, "duration_ms": 0, "model": newest.model or None, "usage": newest.usage}
