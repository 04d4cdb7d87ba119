"""How many tokens a view may have. All numbers are tokens as the provider counts them (calibrated)."""

from __future__ import annotations

import msgspec

from app.context.policy import Policy

MAX_OUTPUT_SHARE = 0.5
"""A request may reserve at most this share of the window for its answer: a `max_tokens` as large as the window
would otherwise leave no room for a prompt at all."""

SMALLEST_SUMMARY_TOKENS = 256
"""Below this a summary keeps hardly a fact, however small the window."""

SUMMARY_WINDOW_DIVISOR = 16
"""A summary takes at most this fraction of the window, so that a dozen of them leave room to work."""


NEVER_TOKENS = 1 << 62
"""A line that no view passes."""


class Budget(msgspec.Struct, frozen=True):
    """The lines that a view is held against.

    `hard` is never passed: window − reserve − requested output. `soft` is the policy's trigger, at most `hard`.
    `ratio` turns a raw count into the provider's (`context.calibration`).
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
    output = min(requested_output or 0, int(window * MAX_OUTPUT_SHARE))
    hard = max(1, window - reserve - output)
    soft = min(hard, max(policy.token_floor, int(window * policy.threshold_ratio)))
    prepare = int(soft * min(1, policy.prepare_ratio / policy.threshold_ratio))
    if policy.prepare_ratio == 1:
        prepare = NEVER_TOKENS
    recall = 0 if policy.recalls == "off" else int(window * policy.recall_ratio)
    return Budget(window, reserve, output, hard, soft, ratio, prepare, recall)


def summary_limit(policy: Policy, window: int) -> int:
    """The most tokens that one summary may have: what is planned for, and `max_tokens` of the summary call."""
    return min(policy.summarizer.max_summary_tokens, max(SMALLEST_SUMMARY_TOKENS, window // SUMMARY_WINDOW_DIVISOR))
