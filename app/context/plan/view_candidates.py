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
from app.context.plan.log_rounds import build_boundary_after
from app.context.plan.outline import LOG_START, Boundary, Outline
from app.context.plan.policy import ContextPolicy
from app.context.plan.summary_chain import choose_fold, list_shown_summaries, sum_tokens_by_end
from app.context.stages.draft import count_tokens_shown_before, sum_saved_tokens_from
from app.context.view.message_edits import Edit
from app.context.view.view_messages import ViewTokenCounter, count_summary_frame_tokens, count_summary_message_tokens
from app.conversation.messages import Summary

MAX_UNFOLDED_SHARE = 0.75
"""Of what chunks may weigh before they are folded; below it, a fold that another window needed is left aside."""


class ViewCandidate(msgspec.Struct, frozen=True):
    """A view that shows some chunks and all of the log after them."""

    summaries: tuple[Summary, ...]
    """Shown, folds in place of what they fold."""
    boundary: Boundary
    tokens: int


@dataclass(frozen=True, slots=True)
class ViewCandidates:
    """The candidates for a window."""

    outline: Outline
    budget: Budget
    policy: ContextPolicy
    counter: ViewTokenCounter
    edits: Mapping[int, Edit]

    def list_with_needed_folds(self) -> list[ViewCandidate]:
        """With no more folds than the window asks for.

        Chunks may weigh well below where a fold is made before their folds stand for them, so that a calibration that
        moves a little does not unfold them again.
        """
        return self._list_views(
            self.budget.compute_raw_tokens(int(self.budget.window * self.policy.fold_ratio * MAX_UNFOLDED_SHARE))
        )

    def list_with_all_folds(self) -> list[ViewCandidate]:
        """With all the folds that there are."""
        return self._list_views(0)

    def build_whole_log_view(self) -> ViewCandidate:
        """The whole log."""
        return self._build_candidate((), LOG_START, 0)

    def build_cut_view(self) -> ViewCandidate:
        """The log from the last view's boundary on, a notice for what is left out."""
        boundary = self.outline.last_view.boundary
        if not boundary.to_seq:
            return self.build_whole_log_view()
        return self._build_candidate(
            (), boundary, count_summary_message_tokens((), self.count_dropped_messages(), self.counter)
        )

    def count_dropped_messages(self) -> int:
        """Messages before the last view's boundary that are not shown."""
        boundary = self.outline.last_view.boundary
        pinned = {seq for pin in self.outline.pins for seq in range(pin.from_seq, pin.to_seq)}
        shown = pinned | {boundary.anchor_seq}
        elsewhere = {seq for seq in shown if seq is not None} | self.outline.omitted_seqs
        return boundary.to_seq - sum(1 for seq in elsewhere if seq < boundary.to_seq)

    def _list_views(self, limit_tokens: int) -> list[ViewCandidate]:
        summaries = self.outline.summaries
        views = [self.build_whole_log_view()]
        frame = count_summary_frame_tokens(self.counter) if summaries else 0
        if self.policy.has_replacing_summaries:
            return [
                *views,
                *(
                    self._build_candidate((chunk,), build_boundary_after(chunk), frame + chunk.tokens)
                    for chunk in summaries
                ),
            ]
        totals = sum_tokens_by_end(summaries)
        for count in range(self._compute_min_summary_count(), len(summaries) + 1):
            summary = summaries[count - 1]
            fold = choose_fold(self.outline.folds, totals, summary.to_seq, limit_tokens)
            sections = totals[summary.to_seq] - (totals[fold.to_seq] - fold.tokens if fold else 0)
            views.append(
                self._build_candidate(
                    list_shown_summaries(summaries, fold, count), build_boundary_after(summary), frame + sections
                )
            )
        return views

    def _compute_min_summary_count(self) -> int:
        """With fewer chunks than this, what follows them is over every line already; never more than there are."""
        outline, budget = self.outline, self.budget
        most = max(
            budget.compute_threshold(has_summaries=True), budget.compute_threshold(has_summaries=False), budget.limit
        )
        saved = sum(edit.saved_tokens for edit in self.edits.values())
        least = outline.instructions_tokens + outline.log_tokens - saved
        return min(
            1
            + bisect_left(
                outline.summaries, True, key=lambda one: budget.calibrate_tokens(least - one.tokens_total) <= most
            ),
            max(1, len(outline.summaries)),
        )

    def _build_candidate(
        self, summaries: tuple[Summary, ...], boundary: Boundary, summary_tokens: int
    ) -> ViewCandidate:
        outline = self.outline
        verbatim = outline.log_tokens - boundary.tokens_total - sum_saved_tokens_from(boundary.to_seq, self.edits)
        before = count_tokens_shown_before(boundary, outline.pins)
        return ViewCandidate(summaries, boundary, outline.instructions_tokens + summary_tokens + before + verbatim)
