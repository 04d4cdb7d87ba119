"""Computes how many tokens a view may have. All numbers are tokens as the provider counts them (calibrated)."""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

from app.context.plan.policy import ContextPolicy

MAX_OUTPUT_RESERVE_SHARE = 0.125
"""The largest share of the window that is kept free for the answer that a request asks for. If prompt and answer do
not fit together, the answer's limit is lowered to what is left. The prompt is shortened only if the answer would get
less than this share (decision 40)."""

MIN_SUMMARY_TOKENS = 256
"""The smallest limit for one summary. A shorter summary keeps hardly any fact, however small the window is."""

SUMMARY_WINDOW_DIVISOR = 16
"""One summary takes at most window ÷ 16 tokens, so that a dozen summaries leave room for verbatim messages."""


SUMMARY_INSTRUCTION_TOKENS = 400
"""Tokens of the instruction for a summary and of the fence, rounded up. Used while ranges are planned, before there is
a prompt to count."""

SUMMARY_CALL_MARGIN_RATIO = 0.06
"""The share of a summarizer's window that is left free, because our count of the prompt is an estimate."""
MIN_SUMMARY_INPUT_TOKENS = 128
SUMMARY_MATERIAL_SHARE = 0.85
"""The share of a transcript that its messages take; the rest is lines that name speakers."""

UNREACHABLE_TOKENS = 1 << 62
"""A threshold that no view reaches."""


class Budget(msgspec.Struct, frozen=True):
    """The thresholds that the tokens of a view are compared with.

    `limit` is never exceeded. It is window − reserve − `output`; `output` is the part of the requested answer that is
    kept free. `compaction_threshold` is the policy's threshold, at most `limit`. `calibration_ratio` turns a raw count
    into the provider's count (`context.calibration`).
    """

    window: int
    reserve_tokens: int
    output: int
    limit: int
    compaction_threshold: int
    calibration_ratio: float = 1.0
    precompaction_threshold: int = 0
    """Above this, the next summary is made ahead of need. It is to `compaction_threshold` as the policy's
    `prepare_ratio` is to its `threshold_ratio`."""
    quotation_reserve: int = 0
    """Kept free below `limit` once summaries stand for part of the log, for quotations from that part or searches in
    it."""
    user_text_tokens: int = 0
    """What user text takes of a view with summaries. No compaction can free it, so the threshold of such a view is
    higher by it: otherwise each compaction would bring the next one nearer. The quotation reserve stays free."""
    requested_output: int = 0
    """The answer's limit in the request; 0 if the request has none, or if the window is a guess."""
    further_threshold: int = 0
    """The compaction threshold of a view with summaries, if a further compaction pays only above it
    (`context.plan.compaction_price`)."""
    compaction_price: int = 0
    """What that compaction costs, in new tokens of the prompt."""

    @property
    def window_without_reserve(self) -> int:
        """Returns the window less the reserve. Pressure is a share of this."""
        return self.window - self.reserve_tokens

    def compute_threshold(self, *, has_summaries: bool) -> int:
        """Returns the compaction threshold of a view. With summaries it is at least where a further compaction pays,
        higher by the user text, and at most the limit less the quotation reserve.
        """
        further = max(self.compaction_threshold, self.further_threshold) + self.user_text_tokens
        return min(further, self.limit - self.quotation_reserve) if has_summaries else self.compaction_threshold

    def compute_precompaction_threshold(self, threshold: int) -> int:
        """Returns the precompaction threshold that belongs to another compaction threshold, in the same proportion."""
        # The threshold may be 0 for a tiny window without a token floor.
        return threshold * self.precompaction_threshold // (self.compaction_threshold or 1)

    def replace_threshold(self, threshold: int) -> Budget:
        """Returns the budget with another compaction threshold, at most `limit`, and the precompaction threshold that
        belongs to it."""
        threshold = min(threshold, self.limit)
        prepare = self.precompaction_threshold
        if prepare != UNREACHABLE_TOKENS:
            prepare = self.compute_precompaction_threshold(threshold)
        return replace(self, compaction_threshold=threshold, precompaction_threshold=prepare)

    def compute_pressure(self, tokens: int) -> float:
        """Returns the share of the window without its reserve that `tokens` take: 1 if only the reserve is left."""
        return tokens / (self.window_without_reserve or 1)

    def compute_limit_pressure(self, tokens: int) -> float:
        """Returns the share of `limit` that a prompt takes: `context.pressure` of an answer."""
        return tokens / self.limit

    def render_tokens(self, prompt_tokens: int) -> str:
        """Renders `X-Context-Tokens`: prompt tokens, a slash, the limit."""
        return f"{prompt_tokens}/{self.limit}"

    def compute_output_limit(self, prompt_tokens: int) -> int | None:
        """Returns the answer's limit that leaves room for a prompt of `prompt_tokens`; None if the requested limit
        does.

        The reserve stays free, since the prompt's size is an estimate.
        """
        if prompt_tokens + self.requested_output <= self.window:
            return None
        # The view was planned with `output` kept free, so the answer gets that much even where the estimate leaves
        # less.
        limit = max(self.output, self.window - self.reserve_tokens - prompt_tokens)
        return limit if limit < self.requested_output else None

    def calibrate_tokens(self, raw_tokens: int) -> int:
        ratio = self.calibration_ratio
        return raw_tokens if ratio == 1 else round(raw_tokens * ratio)

    def compute_raw_tokens(self, tokens: int) -> int:
        """Returns the largest raw count that is at most `tokens` after calibration."""
        return int(tokens / self.calibration_ratio)


def compute_budget(
    policy: ContextPolicy, *, window: int, requested_output: int | None = None, calibration_ratio: float = 1.0
) -> Budget:
    """Computes the budget of a request.

    Args:
        policy: gives reserve, threshold and floor.
        window: context window of the model: tokens of prompt and answer together.
        requested_output: the request's `max_tokens` or `max_completion_tokens`.
        calibration_ratio: calibration of raw counts.
    """
    reserve = round(window * policy.reserve_ratio)
    requested = requested_output or 0
    output = min(requested, int(window * MAX_OUTPUT_RESERVE_SHARE))
    # At least 1: `limit` is a divisor in `compute_limit_pressure`.
    hard = max(1, window - reserve - output)
    limits = policy.compaction
    soft = min(hard, max(limits.token_floor, int(compute_planned_window(policy, window) * limits.threshold_ratio)))
    prepare = int(soft * min(1, limits.prepare_ratio / limits.threshold_ratio))
    # A `prepare_ratio` of 1 switches precompaction off.
    if limits.prepare_ratio == 1:
        prepare = UNREACHABLE_TOKENS
    recall = 0 if policy.recall_mode == "off" else int(window * policy.quotations.recall_ratio)
    return Budget(window, reserve, output, hard, soft, calibration_ratio, prepare, recall, requested_output=requested)


def compute_fold_tokens(policy: ContextPolicy, budget: Budget, user_text_tokens: int) -> int:
    """Returns how many calibrated tokens the summaries of a view may take before they are folded. They share that room
    with user text, and have at least half of it.

    Args:
        user_text_tokens: what user text takes of the view, in raw tokens.
    """
    room = int(budget.window * policy.compaction.fold_ratio)
    return room - min(budget.calibrate_tokens(user_text_tokens), room // 2)


def compute_planned_window(policy: ContextPolicy, window: int) -> int:
    """Returns the window of which a policy's shares are taken: that of `threshold_tokens`, if the model's is larger."""
    if policy.compaction.threshold_tokens is None or policy.kind != "additive":
        return window
    return min(window, math.ceil(policy.compaction.threshold_tokens / policy.compaction.threshold_ratio))


def compute_compaction_threshold(policy: ContextPolicy, budget: Budget, *, has_summaries: bool) -> int:
    """Returns the threshold, in calibrated tokens, above which a view is compacted, or shortened if the policy writes
    no summaries.

    Args:
        has_summaries: whether summaries stand for part of the log in the view.
    """
    if not policy.may_summarize:
        return budget.limit
    if policy.kind == "additive":
        return budget.compute_threshold(has_summaries=has_summaries)
    trigger = compute_checkpoint_trigger_tokens(policy, budget.window)
    # A view that reaches the trigger is due; callers compare with `>`, hence one token less.
    return budget.limit if trigger is None else min(budget.limit, trigger - 1)


def compute_checkpoint_trigger_tokens(policy: ContextPolicy, window: int) -> int | None:
    """Returns the number of tokens from which on a view triggers a checkpoint (policy `checkpoint`); None if the
    trigger is not in tokens.
    """
    trigger = policy.trigger
    if trigger.value is None or trigger.type not in {"token_ratio", "remaining_tokens"}:
        return None
    return math.ceil(window * trigger.value if trigger.type == "token_ratio" else window - trigger.value)


def compute_summary_token_limit(policy: ContextPolicy, window: int) -> int:
    """Returns the most tokens that one summary may have. Plans expect this size, and the summary call sends it as
    `max_tokens`.
    """
    share = compute_planned_window(policy, window) // SUMMARY_WINDOW_DIVISOR
    return min(policy.summarizer.max_summary_tokens, max(MIN_SUMMARY_TOKENS, share))


def compute_max_input_tokens(policy: ContextPolicy, window_tokens: int) -> int:
    """Returns how many tokens of the log one summarizer call can read, as the provider counts. Ranges are cut to this.

    Args:
        policy: the policy with the summary's limit.
        window_tokens: context window of the summarizer.
    """
    output_tokens = min(compute_summary_token_limit(policy, window_tokens), window_tokens // 4)
    margin = round(window_tokens * SUMMARY_CALL_MARGIN_RATIO)
    room_tokens = window_tokens - output_tokens - margin - SUMMARY_INSTRUCTION_TOKENS
    return max(MIN_SUMMARY_INPUT_TOKENS, int(room_tokens * SUMMARY_MATERIAL_SHARE))
