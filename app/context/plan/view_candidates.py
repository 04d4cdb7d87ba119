"""The views that there are chunks for, fewest chunks first, with what each would take. Arithmetic on stored totals.

Where much more log follows than any line has room for, a view is passed over: there are few others, however long the
log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from app.context.plan.budget import Budget
from app.context.plan.log_cuts import boundary_after
from app.context.plan.outline import START, Boundary, Outline
from app.context.plan.policy import Policy
from app.context.plan.summary_chain import fold_at, shown_at, totals_by_end
from app.context.stages.draft import saved_from, tokens_before
from app.context.view.message_edits import Edit
from app.context.view.view_messages import Counter, frame_tokens, summary_message_tokens
from app.conversation.messages import Chunk

UNFOLDED_SHARE = 0.75
"""Of what chunks may weigh before they are folded; below it, a fold that another window needed is left aside."""


class Candidate(msgspec.Struct, frozen=True):
    """A view that shows some chunks and all of the log after them."""

    chunks: tuple[Chunk, ...]
    """Shown, folds in place of what they fold."""
    boundary: Boundary
    tokens: int


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates for a window."""

    outline: Outline
    budget: Budget
    policy: Policy
    count: Counter
    edits: Mapping[int, Edit]

    def unfolded(self) -> list[Candidate]:
        """With no more folds than the window asks for.

        Chunks may weigh well below where a fold is made before their folds stand for them, so that a calibration that
        moves a little does not unfold them again.
        """
        return self._with_folds(self.budget.raw(int(self.budget.window * self.policy.fold_ratio * UNFOLDED_SHARE)))

    def folded(self) -> list[Candidate]:
        """With all the folds that there are."""
        return self._with_folds(0)

    def whole(self) -> Candidate:
        """The whole log."""
        return self._of((), START, 0)

    def cut(self) -> Candidate:
        """The log from the last view's boundary on, a notice for what is left out."""
        boundary = self.outline.last.boundary
        if not boundary.to_seq:
            return self.whole()
        return self._of((), boundary, summary_message_tokens((), self.dropped_by_the_cut(), self.count))

    def dropped_by_the_cut(self) -> int:
        """Messages before the last view's boundary that are not shown."""
        boundary = self.outline.last.boundary
        pinned = {seq for pin in self.outline.pins for seq in range(pin.from_seq, pin.to_seq)}
        shown = pinned | {boundary.anchor_seq}
        elsewhere = {seq for seq in shown if seq is not None} | self.outline.omitted
        return boundary.to_seq - sum(1 for seq in elsewhere if seq < boundary.to_seq)

    def _with_folds(self, limit_tokens: int) -> list[Candidate]:
        chunks = self.outline.chunks
        views = [self.whole()]
        frame = frame_tokens(self.count) if chunks else 0
        if self.policy.replaces:
            return [*views, *(self._of((chunk,), boundary_after(chunk), frame + chunk.tokens) for chunk in chunks)]
        totals = totals_by_end(chunks)
        for count in range(self._first_count(), len(chunks) + 1):
            chunk = chunks[count - 1]
            fold = fold_at(self.outline.folds, totals, chunk.to_seq, limit_tokens)
            sections = totals[chunk.to_seq] - (totals[fold.to_seq] - fold.tokens if fold else 0)
            views.append(self._of(shown_at(chunks, fold, count), boundary_after(chunk), frame + sections))
        return views

    def _first_count(self) -> int:
        """With fewer chunks than this, what follows them is over every line already; never more than there are."""
        outline, budget = self.outline, self.budget
        most = max(budget.line(folded=True), budget.line(folded=False), budget.hard)
        saved = sum(edit.saved_tokens for edit in self.edits.values())
        least = outline.instructions_tokens + outline.log_tokens - saved
        return min(
            1 + bisect_left(outline.chunks, True, key=lambda one: budget.calibrated(least - one.tokens_total) <= most),
            max(1, len(outline.chunks)),
        )

    def _of(self, chunks: tuple[Chunk, ...], boundary: Boundary, summary_tokens: int) -> Candidate:
        outline = self.outline
        verbatim = outline.log_tokens - boundary.tokens_total - saved_from(boundary.to_seq, self.edits)
        before = tokens_before(boundary, outline.pins)
        return Candidate(chunks, boundary, outline.instructions_tokens + summary_tokens + before + verbatim)
