"""Lists the views that stored summaries allow, fewest summaries first, with their sizes. Arithmetic on stored totals.

A view is skipped if far more log follows its summaries than any threshold allows. So there are few candidates, however
long the log is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from app.context.plan.budget import Budget, compute_fold_tokens
from app.context.plan.log_rounds import build_boundary_after
from app.context.plan.outline import LOG_START, Boundary, Outline
from app.context.plan.policy import ContextPolicy
from app.context.plan.summary_chain import accumulate_chain_tokens, choose_fold, list_shown_summaries
from app.context.stages.draft import count_tokens_shown_before, sum_saved_tokens_from
from app.context.view.message_edits import Edit
from app.context.view.view_rendering import ViewTokenCounter, count_summary_frame_tokens, count_summary_message_tokens
from app.conversation.conversation_types import Summary

MAX_UNFOLDED_SHARE = 0.75
"""A fold is used if the summaries are above this share of the size from which on a fold is made. Below it, a fold
that another window needed is not used."""


class ViewCandidate(msgspec.Struct, frozen=True):
    """A view that shows some summaries and all of the log after them."""

    summaries: tuple[Summary, ...]
    """The summaries that are shown, with folds in place of the summaries that they merge."""
    boundary: Boundary
    tokens: int


@dataclass(frozen=True, slots=True)
class ViewCandidates:
    """Builds the candidates for a window."""

    outline: Outline
    budget: Budget
    policy: ContextPolicy
    counter: ViewTokenCounter
    edits: Mapping[int, Edit]

    def list_with_needed_folds(self) -> list[ViewCandidate]:
        """Returns the views with no more folds than the window needs.

        Folds are used well below the size at which they are made, so that a small change of the calibration does not
        undo them.
        """
        fold_tokens = compute_fold_tokens(self.policy, self.budget, self.outline.user_text_tokens)
        return self._list_views(self.budget.compute_raw_tokens(int(fold_tokens * MAX_UNFOLDED_SHARE)))

    def list_with_all_folds(self) -> list[ViewCandidate]:
        """Returns the views with every fold that exists."""
        return self._list_views(0)

    def build_whole_log_view(self) -> ViewCandidate:
        """Returns the view that shows the whole log."""
        return self._build_candidate((), LOG_START, 0)

    def build_last_boundary_view(self) -> ViewCandidate:
        """Returns the view that shows the log from the last view's boundary on, with a notice for the messages before
        it.
        """
        boundary = self.outline.last_view.boundary
        if not boundary.to_seq:
            return self.build_whole_log_view()
        return self._build_candidate(
            (), boundary, count_summary_message_tokens((), self.count_dropped_messages(), self.counter)
        )

    def count_dropped_messages(self) -> int:
        """Returns how many messages before the last view's boundary are not shown."""
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
                    self._build_candidate((summary,), build_boundary_after(summary), frame + summary.tokens)
                    for summary in summaries
                ),
            ]
        totals = accumulate_chain_tokens(summaries)
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
        """Returns how many summaries a view needs at least: with fewer, the log after them alone is above every
        threshold. Never more than exist.
        """
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
        before = count_tokens_shown_before(boundary, outline)
        return ViewCandidate(summaries, boundary, outline.instructions_tokens + summary_tokens + before + verbatim)
