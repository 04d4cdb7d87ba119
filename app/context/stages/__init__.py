"""Mechanical trimming, the last resort: stages in order, each `Draft → Draft`, until the view fits.

What stands for most is lost last: summaries that crowd out the conversation, whole old rounds, the middle of long
messages, every summary, and at the end everything but the request itself.
"""

from __future__ import annotations

from collections.abc import Callable

from app.context.draft import Draft
from app.context.stages.drop import drop_all_but_the_request, drop_oldest_rounds
from app.context.stages.forget import forget_all_summaries, forget_oldest_summaries
from app.context.stages.shorten import shorten_long_messages

Stage = Callable[[Draft], Draft]

STAGES: tuple[Stage, ...] = (
    forget_oldest_summaries,
    drop_oldest_rounds,
    shorten_long_messages,
    forget_all_summaries,
    drop_all_but_the_request,
)


def trim(draft: Draft, stages: tuple[Stage, ...] = STAGES) -> Draft:
    """Apply stages until the view fits; it may still not fit when all are used up."""
    for stage in stages:
        if draft.fits:
            break
        draft = stage(draft)
    return draft
