"""How many tokens a view may have. All numbers are tokens as the provider counts them (calibrated)."""

from __future__ import annotations

import math

import msgspec

from app.context.plan.policy import Policy

KEPT_OUTPUT_SHARE = 0.125
"""At most this share of the window is kept free for the answer that a request asks for. Where prompt and answer do not
fit together, the answer's limit is lowered to what is left; the prompt is shortened only below this share."""

SMALLEST_SUMMARY_TOKENS = 256
"""Below this a summary keeps hardly a fact, however small the window."""

SUMMARY_WINDOW_DIVISOR = 16
"""A summary takes at most this fraction of the window, so that a dozen of them leave room to work."""


NEVER_TOKENS = 1 << 62
"""A line that no view passes."""


class Budget(msgspec.Struct, frozen=True):
    """The lines that a view is held against.

    `hard` is never passed: window − reserve − `output`, the part of the requested answer that is kept free. `soft` is
    the policy's trigger, at most `hard`. `ratio` turns a raw count into the provider's (`context.calibration`).
    """

    window: int
    reserve: int
    output: int
    hard: int
    soft: int
    ratio: float = 1.0
    prepare: int = 0
    """Above this the next summary is made ahead: as far below `soft` as the policy's ratios are apart."""
    recall: int = 0
    """Kept free below `hard`, once part of the log is folded, to quote or search what is folded."""
    requested_output: int = 0
    """The answer's limit as the request has it; 0 where it has none, or where the window is a guess."""

    @property
    def pruning(self) -> int:
        """The window without the reserve: what pressure is measured against."""
        return self.window - self.reserve

    def line(self, *, folded: bool) -> int:
        """The soft line of a view of which part is folded, or nothing."""
        return min(self.soft, self.hard - self.recall) if folded else self.soft

    def prepare_below(self, line: int) -> int:
        """`prepare` for another line than `soft`, as far below it."""
        return line * self.prepare // (self.soft or 1)

    def pressure(self, tokens: int) -> float:
        """How full a view of so many tokens makes the window: 1 where only the reserve is left."""
        return tokens / (self.pruning or 1)

    def limit_pressure(self, tokens: int) -> float:
        """The share of `hard` that a prompt takes: `context.pressure` of an answer."""
        return tokens / self.hard

    def output_limit(self, prompt_tokens: int) -> int | None:
        """The answer's limit that leaves room for a prompt of so many tokens; None where the requested one does.

        The reserve stays free, since the prompt is an estimate.
        """
        if prompt_tokens + self.requested_output <= self.window:
            return None
        limit = max(self.output, self.window - self.reserve - prompt_tokens)
        return limit if limit < self.requested_output else None

    def calibrated(self, raw_tokens: int) -> int:
        ratio = self.ratio
        return raw_tokens if ratio == 1 else round(raw_tokens * ratio)

    def raw(self, tokens: int) -> int:
        """The largest raw count that stays within `tokens` once it is calibrated."""
        return int(tokens / self.ratio)


def budget_for(policy: Policy, *, window: int, requested_output: int | None = None, ratio: float = 1.0) -> Budget:
    """The budget of a request.

    Args:
        policy: gives reserve, threshold and floor.
        window: context window of the model, tokens, prompt and answer together.
        requested_output: the request's `max_tokens` or `max_completion_tokens`.
        ratio: calibration of raw counts.
    """
    reserve = round(window * policy.reserve_ratio)
    requested = requested_output or 0
    output = min(requested, int(window * KEPT_OUTPUT_SHARE))
    hard = max(1, window - reserve - output)
    soft = min(hard, max(policy.token_floor, int(window * policy.threshold_ratio)))
    prepare = int(soft * min(1, policy.prepare_ratio / policy.threshold_ratio))
    if policy.prepare_ratio == 1:
        prepare = NEVER_TOKENS
    recall = 0 if policy.recalls == "off" else int(window * policy.recall_ratio)
    return Budget(window, reserve, output, hard, soft, ratio, prepare, recall, requested)


def compaction_line(policy: Policy, budget: Budget, *, folded: bool) -> int:
    """Above so many calibrated tokens a view is compacted, or shortened where its policy writes no summaries.

    Args:
        folded: whether summaries stand for part of the log in the view.
    """
    if not policy.summarizes:
        return budget.hard
    if policy.kind == "additive":
        return budget.line(folded=folded)
    trigger = trigger_tokens(policy, budget.window)
    return budget.hard if trigger is None else min(budget.hard, trigger - 1)


def trigger_tokens(policy: Policy, window: int) -> int | None:
    """From so many tokens on a view reaches the trigger of policy `checkpoint`; None for triggers of other kinds."""
    trigger = policy.trigger
    if trigger.value is None or trigger.type not in {"token_ratio", "remaining_tokens"}:
        return None
    return math.ceil(window * trigger.value if trigger.type == "token_ratio" else window - trigger.value)


def summary_limit(policy: Policy, window: int) -> int:
    """The most tokens that one summary may have: what is planned for, and `max_tokens` of the summary call."""
    return min(policy.summarizer.max_summary_tokens, max(SMALLEST_SUMMARY_TOKENS, window // SUMMARY_WINDOW_DIVISOR))
