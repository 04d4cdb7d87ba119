"""How many tokens a view may have. All numbers are tokens as the provider counts them (calibrated)."""

from __future__ import annotations

import math

import msgspec

from app.context.plan.policy import ContextPolicy

MAX_OUTPUT_RESERVE_SHARE = 0.125
"""At most this share of the window is kept free for the answer that a request asks for. Where prompt and answer do not
fit together, the answer's limit is lowered to what is left; the prompt is shortened only below this share."""

MIN_SUMMARY_TOKENS = 256
"""Below this a summary keeps hardly a fact, however small the window."""

SUMMARY_WINDOW_DIVISOR = 16
"""A summary takes at most this fraction of the window, so that a dozen of them leave room to work."""


UNREACHABLE_TOKENS = 1 << 62
"""A line that no view passes."""


class Budget(msgspec.Struct, frozen=True):
    """The lines that a view is held against.

    `limit` is never passed: window − reserve − `output`, the part of the requested answer that is kept free.
    `compaction_threshold` is
    the policy's trigger, at most `limit`. `calibration_ratio` turns a raw count into the provider's
    (`context.calibration`).
    """

    window: int
    reserve_tokens: int
    output: int
    limit: int
    compaction_threshold: int
    calibration_ratio: float = 1.0
    precompaction_threshold: int = 0
    """Above this the next summary is made ahead: as far below `soft` as the policy's ratios are apart."""
    quotation_reserve: int = 0
    """Kept free below `hard`, once part of the log is folded, to quote or search what is folded."""
    requested_output: int = 0
    """The answer's limit as the request has it; 0 where it has none, or where the window is a guess."""

    @property
    def window_without_reserve(self) -> int:
        """The window without the reserve: what pressure is measured against."""
        return self.window - self.reserve_tokens

    def compute_threshold(self, *, has_summaries: bool) -> int:
        """The soft line of a view of which part is folded, or nothing."""
        return (
            min(self.compaction_threshold, self.limit - self.quotation_reserve)
            if has_summaries
            else self.compaction_threshold
        )

    def compute_precompaction_threshold(self, threshold: int) -> int:
        """`prepare` for another line than `soft`, as far below it."""
        return threshold * self.precompaction_threshold // (self.compaction_threshold or 1)

    def compute_pressure(self, tokens: int) -> float:
        """How full a view of so many tokens makes the window: 1 where only the reserve is left."""
        return tokens / (self.window_without_reserve or 1)

    def compute_limit_pressure(self, tokens: int) -> float:
        """The share of `hard` that a prompt takes: `context.pressure` of an answer."""
        return tokens / self.limit

    def compute_output_limit(self, prompt_tokens: int) -> int | None:
        """The answer's limit that leaves room for a prompt of so many tokens; None where the requested one does.

        The reserve stays free, since the prompt is an estimate.
        """
        if prompt_tokens + self.requested_output <= self.window:
            return None
        limit = max(self.output, self.window - self.reserve_tokens - prompt_tokens)
        return limit if limit < self.requested_output else None

    def calibrate_tokens(self, raw_tokens: int) -> int:
        ratio = self.calibration_ratio
        return raw_tokens if ratio == 1 else round(raw_tokens * ratio)

    def compute_raw_tokens(self, tokens: int) -> int:
        """The largest raw count that stays within `tokens` once it is calibrated."""
        return int(tokens / self.calibration_ratio)


def compute_budget(
    policy: ContextPolicy, *, window: int, requested_output: int | None = None, calibration_ratio: float = 1.0
) -> Budget:
    """The budget of a request.

    Args:
        policy: gives reserve, threshold and floor.
        window: context window of the model, tokens, prompt and answer together.
        requested_output: the request's `max_tokens` or `max_completion_tokens`.
        calibration_ratio: calibration of raw counts.
    """
    reserve = round(window * policy.reserve_ratio)
    requested = requested_output or 0
    output = min(requested, int(window * MAX_OUTPUT_RESERVE_SHARE))
    hard = max(1, window - reserve - output)
    soft = min(hard, max(policy.token_floor, int(window * policy.threshold_ratio)))
    prepare = int(soft * min(1, policy.prepare_ratio / policy.threshold_ratio))
    if policy.prepare_ratio == 1:
        prepare = UNREACHABLE_TOKENS
    recall = 0 if policy.recall_mode == "off" else int(window * policy.recall_ratio)
    return Budget(window, reserve, output, hard, soft, calibration_ratio, prepare, recall, requested)


def compute_compaction_threshold(policy: ContextPolicy, budget: Budget, *, has_summaries: bool) -> int:
    """Above so many calibrated tokens a view is compacted, or shortened where its policy writes no summaries.

    Args:
        has_summaries: whether summaries stand for part of the log in the view.
    """
    if not policy.may_summarize:
        return budget.limit
    if policy.kind == "additive":
        return budget.compute_threshold(has_summaries=has_summaries)
    trigger = compute_checkpoint_trigger_tokens(policy, budget.window)
    return budget.limit if trigger is None else min(budget.limit, trigger - 1)


def compute_checkpoint_trigger_tokens(policy: ContextPolicy, window: int) -> int | None:
    """From so many tokens on a view reaches the trigger of policy `aligned_prefix`; None for triggers of other
    kinds."""
    trigger = policy.trigger
    if trigger.value is None or trigger.type not in {"token_ratio", "remaining_tokens"}:
        return None
    return math.ceil(window * trigger.value if trigger.type == "token_ratio" else window - trigger.value)


def compute_summary_token_limit(policy: ContextPolicy, window: int) -> int:
    """The most tokens that one summary may have: what is planned for, and `max_tokens` of the summary call."""
    return min(policy.summarizer.max_summary_tokens, max(MIN_SUMMARY_TOKENS, window // SUMMARY_WINDOW_DIVISOR))
