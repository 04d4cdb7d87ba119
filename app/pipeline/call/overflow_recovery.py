"""Plans a smaller view, or lowers the answer's limit, after the upstream refused a view as too long."""

from __future__ import annotations

import logging
from typing import Final

from msgspec.structs import replace

from app.observability.request_record import timed_step
from app.pipeline.call.upstream_call import PromptOverflow
from app.pipeline.compact.turn_compaction import TurnCompactor
from app.pipeline.turn.turn import RefusedSize, Turn, View
from app.pipeline.view.view_builder import ViewBuilder, make_context_length_error
from app.upstream.protocols.overflow_detection import ContextOverflow

log = logging.getLogger(__name__)

MAX_OVERFLOW_RECOVERIES: Final = 2
"""The first recovery shortens the view without a model call, the second may compact."""
UNSTATED_OVERFLOW_SHARE: Final = 0.75
"""If an overflow error states no limit, the next view gets this share of the refused view's tokens."""
OUTPUT_MARGIN_TOKENS: Final = 64
"""Tokens left free between prompt and answer after an overflow: the provider's next count may differ a little."""


class OverflowRecovery:
    """Makes views that fit limits which the upstream has revealed by an overflow."""

    def __init__(self, *, view_builder: ViewBuilder, turn_compactor: TurnCompactor) -> None:
        self._view_builder = view_builder
        self._turn_compactor = turn_compactor

    @timed_step("plan")
    async def plan_smaller_view(self, turn: Turn, view: View, refusal: PromptOverflow) -> View:
        """Plans a smaller view, or lowers the answer's limit, after an overflow.

        Args:
            turn: the turn that is answered.
            view: the refused view. If it comes from a recovery itself, the new view may be compacted.
            refusal: what the upstream said.

        Raises:
            ContextLengthExceeded: no view fits.
        """
        overflow, refused_tokens = refusal.reported, view.prompt_tokens
        limit = overflow.limit_tokens
        # By our count, since the provider does not tell its own.
        if limit is None and overflow.excess_tokens is not None and overflow.excess_tokens < refused_tokens:
            limit = refused_tokens - overflow.excess_tokens
        # Prompt and answer together are too long: a lower limit for the answer keeps the whole view (decision 40).
        if overflow.is_output_too_long and (lowered_view := self._lower_output_limit(turn, view, overflow)) is not None:
            return replace(lowered_view, refused_size=_describe_refused_size(turn, view, refusal, limit))
        window = min(limit or view.budget.window, view.budget.window)
        ratio = view.budget.calibration_ratio
        # Our count was too low by a known ratio: the same window with this ratio gives a view that fits. A count that
        # is only a lower bound says nothing about the ratio.
        if overflow.prompt_tokens is not None and not overflow.is_lower_bound and view.plan.prompt_tokens:
            ratio = max(ratio, overflow.prompt_tokens / view.plan.prompt_tokens)
        # The limit is unknown, or by our count prompt and answer were below it: our count is too low by an unknown
        # ratio, so the view shrinks by a fixed share.
        elif limit is None or refused_tokens + (turn.request.max_output_tokens or 0) < limit:
            window = max(1, int(min(window, refused_tokens) * UNSTATED_OVERFLOW_SHARE))
        may_compact = view.is_overflow_recovered
        budget = self._view_builder.compute_budget(turn, window=window, slope=ratio)
        smaller = await self._view_builder.build_view(turn, budget, summarize="auto" if may_compact else "never")
        if not smaller.plan.fits:
            raise make_context_length_error(smaller)
        if may_compact and smaller.plan.to_summarize and turn.resolved_request.storage.is_stored:
            compacted_turn, compacted = await self._turn_compactor.compact(turn, smaller)
            # If the store went away, the compacted view is one of another log: this turn cannot be finished with it.
            if compacted_turn is turn:
                smaller = compacted
        log.info(
            "the prompt was too long; sending a smaller view: window %d, view of %d tokens",
            window,
            smaller.plan.prompt_tokens,
        )
        return replace(
            smaller,
            is_overflow_recovered=True,
            compaction=smaller.compaction if may_compact else view.compaction,
            refused_size=_describe_refused_size(turn, view, refusal, limit or window),
        )

    def _lower_output_limit(self, turn: Turn, view: View, overflow: ContextOverflow) -> View | None:
        """Returns the same view with a lower limit for the answer.

        Returns None if that would leave less room than is kept free for an answer, or if it did not help before.
        """
        limit, prompt = overflow.limit_tokens, overflow.prompt_tokens
        assert limit is not None
        assert prompt is not None
        # vLLM from 0.20 stops counting at the first token too many. Such a number is believed once (decision 40).
        if overflow.is_lower_bound and view.provider_output_limit is not None:
            return None
        ratio = max(view.budget.calibration_ratio, prompt / max(1, view.plan.prompt_tokens))
        budget = self._view_builder.compute_budget(turn, window=min(limit, view.budget.window), slope=ratio)
        if overflow.is_lower_bound:
            output_room = limit - max(prompt, view.prompt_tokens) - budget.reserve_tokens
        else:
            output_room = limit - prompt - OUTPUT_MARGIN_TOKENS
        if output_room < max(1, budget.output):
            return None
        return replace(view, budget=budget, provider_output_limit=output_room, is_overflow_recovered=True)


def _describe_refused_size(turn: Turn, view: View, refusal: PromptOverflow, tokens: int | None) -> RefusedSize | None:
    """Describes what the refusal of a view teaches; None if that is no less than the window that is known.

    Args:
        tokens: the stated limit, or the window that is tried next.
    """
    overflow, deployment = refusal.reported, refusal.deployment
    is_stated = overflow.limit_tokens is not None
    passed = turn.calibration.ceiling
    if tokens is not None and not is_stated and overflow.excess_tokens is None and passed is not None:
        # The window is at least what passed in an earlier turn, and less than what was refused now.
        tokens = max(tokens, passed.reported_tokens) if passed.reported_tokens < view.prompt_tokens else tokens
    if tokens is None or tokens >= view.budget.window:
        return None
    is_of_deployment = is_stated and not overflow.is_rate_limit and deployment.context_window is None
    return RefusedSize(deployment.key, tokens, is_stated=is_stated, is_of_deployment=is_of_deployment)
