"""The stages that shorten a view, each `Draft → Draft`. A policy lists its own, in order; the last resort is the same
for all.

Stages that lose most come last: first summaries that crowd out the conversation are left out, then whole old rounds,
the middle of long messages, every summary, the middle of new messages, and at the end everything but the request
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from app.context.stages.cap_messages import (
    cap_messages,
    fade_results,
    shorten_long_messages,
    shorten_new_messages,
    truncate_results,
)
from app.context.stages.clear_results_and_reasoning import clear_reasoning, clear_tool_results, drop_results
from app.context.stages.condense_tool_rounds import tell_old_rounds
from app.context.stages.draft import Draft
from app.context.stages.drop_rounds_and_summaries import (
    drop_all_but_newest_user_message,
    drop_all_summaries,
    drop_oldest,
    drop_oldest_summaries,
    share_evenly,
)
from app.context.stages.mask_results import mask_results, prune_by_position
from app.context.stages.sliding_window import keep_last

Stage = Callable[[Draft], Draft]

STAGES: Final[Mapping[str, Stage]] = {
    stage.__name__: stage
    for stage in (
        mask_results,
        cap_messages,
        fade_results,
        prune_by_position,
        truncate_results,
        tell_old_rounds,
        drop_results,
        clear_tool_results,
        clear_reasoning,
        keep_last,
        drop_oldest,
        share_evenly,
    )
}
"""By their names in the configuration."""

LAST_RESORT_STAGES: Final[tuple[Stage, ...]] = (
    drop_oldest_summaries,
    drop_oldest,
    shorten_long_messages,
    drop_all_summaries,
    shorten_new_messages,
    drop_all_but_newest_user_message,
)


def apply_stages(draft: Draft, names: Sequence[str]) -> Draft:
    """Applies stages in order. Each stage decides whether it has anything to do."""
    for name in names:
        draft = STAGES[name](draft)
    return draft


def apply_last_resort_stages(draft: Draft, stages: tuple[Stage, ...] = LAST_RESORT_STAGES) -> Draft:
    """Applies stages until the view fits. It may still not fit after the last one."""
    for stage in stages:
        if draft.fits_limit:
            break
        draft = stage(draft)
    return draft
