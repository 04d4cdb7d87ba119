"""When the chunks themselves weigh too much: which of the shown ones are to be folded into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from app.context.plan.budget import Budget, summary_limit
from app.context.plan.outline import Note, Range
from app.context.plan.policy import Policy
from app.context.view.view_messages import Counter, empty_section_tokens
from app.conversation.messages import Chunk

LEAST_FOLDED = 5
"""Of so many chunks a fold takes in all, even where one call cannot read them at once: it reads them in parts. With
two at a time the oldest summary would be rewritten for each of the others."""


@dataclass(frozen=True, slots=True)
class Folding:
    """The question that a fold answers. `view_tokens` and `summarizer_input_tokens` are raw counts."""

    shown: Sequence[Chunk]
    view_tokens: int
    budget: Budget
    policy: Policy
    count: Counter
    summarizer_input_tokens: int

    def is_needed(self) -> bool:
        weight = self.budget.calibrated(self._weight)
        return len(self.shown) >= 2 and weight > int(self.budget.window * self.policy.fold_ratio)

    def decide(self) -> tuple[Range | None, Note]:
        """A fold over a prefix of the shown chunks; none where it would gain too little."""
        folded = self._readable_prefix()
        section = self.budget.raw(summary_limit(self.policy, self.budget.window)) + empty_section_tokens(self.count)
        gain = sum(chunk.tokens for chunk in folded) - section
        facts = {"chunks": len(folded), "chunk_tokens": self._weight, "gain_tokens": gain}
        if gain < self.policy.min_gain_ratio * min(self.view_tokens, self.budget.raw(self.budget.window)):
            return None, Note("fold_gains_nothing", facts)
        wanted = Range(folded[0].from_seq, folded[-1].to_seq, tuple(chunk.id for chunk in folded))
        return wanted, Note("fold_needed", facts)

    @property
    def _weight(self) -> int:
        return sum(chunk.tokens for chunk in self.shown)

    def _readable_prefix(self) -> Sequence[Chunk]:
        """The chunks that one call can read, oldest first, but `LEAST_FOLDED` if there are as many.

        None behind a stretch that no chunk tells of: a fold stands for all of its range.
        """
        gaps = (place for place, (one, other) in enumerate(pairwise(self.shown), 1) if one.to_seq != other.from_seq)
        shown = self.shown[: next(gaps, len(self.shown))]
        tokens = 0
        for place, chunk in enumerate(shown):
            tokens += chunk.tokens
            if tokens > self.summarizer_input_tokens and place >= LEAST_FOLDED:
                return shown[:place]
        return shown
