"""Decides what a view shows: `plan_view(outline, budget, policy) → Plan`. Pure: same input, same plan.

Under a policy that summarizes, the view shows the fewest summaries that bring it under its threshold. So the view is
stable while the log grows, and shows more of the log again if the window grows. The decision is arithmetic on stored
totals; messages are loaded only if no view is under the threshold. The other policies shorten the log by stages
(`context.stages.shortening_planner`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from msgspec.structs import replace

from app.context.plan.budget import (
    Budget,
    compute_fold_tokens,
    compute_planned_window,
    compute_summary_token_limit,
)
from app.context.plan.checkpoint_planner import CheckpointPlanner
from app.context.plan.outline import LOG_START, Outline, Plan, PlanNote, SummarizeMode, SummaryRange
from app.context.plan.policy import ContextPolicy
from app.context.plan.summary_range_finder import (
    SummaryProposal,
    SummaryRangeFinder,
    propose_gainful_ranges,
    propose_ranges_before_buffer,
    propose_ranges_through,
)
from app.context.plan.view_candidates import ViewCandidate
from app.context.stages.shortening_planner import ShorteningPlanner
from app.context.view.view_rendering import ViewTokenCounter, count_empty_summary_tokens
from app.conversation.conversation_types import Summary


def plan_view(
    outline: Outline,
    budget: Budget,
    policy: ContextPolicy,
    *,
    counter: ViewTokenCounter,
    summarizer_input_tokens: int,
    summarize: SummarizeMode = "auto",
    through_seq: int | None = None,
) -> Plan:
    """Returns the view to send, the reasons for it, and the ranges whose summaries would make a better view.

    The view can be sent as it is, unless `fits` is false: `to_summarize` may be ignored, and summaries may fail.

    Args:
        counter: counts in the conversation's encoding.
        summarizer_input_tokens: the most that one summary call may read, as its provider counts.
        summarize: `auto`: summarize if the view is over its threshold. `never`. `now`: summarize everything before the
            buffer and show every summary. `ahead`: return what would be summarized if the threshold were passed now.
        through_seq: with `now`, summarize the messages before this seq, whatever the buffer is.
    """
    if policy.compaction.threshold_tokens is not None:
        budget = replace(budget, window=compute_planned_window(policy, budget.window))
    # Most turns end here. The shortcut skips all candidates, since this runs on each request.
    if summarize == "auto" and (whole := _plan_whole_log(outline, budget, policy)) is not None:
        return whole

    def plan_log(outline: Outline) -> Plan:
        mode: SummarizeMode = summarize if policy.may_summarize else "never"
        if policy.kind == "checkpoint":
            return CheckpointPlanner(outline, budget, policy, counter, through_seq).plan(mode)
        if policy.kind != "additive":
            return _plan_shortened_log(outline, budget, policy, counter)
        planner = _AdditivePlanner(outline, budget, policy, counter, summarizer_input_tokens, mode)
        if mode == "now":
            return planner.plan_requested_compaction(through_seq)
        if mode == "ahead":
            return planner.plan_over_threshold()
        # Views from stored summaries are free; only if none is under the threshold is a new summary considered.
        return planner.plan_under_threshold() or planner.plan_over_threshold()

    chosen = plan_log(outline)
    if chosen.needs_tail or not chosen.user_text:
        return chosen
    # User text never makes a view too long that would fit without it, nor longer than the log. Where a long history
    # comes at once, it waits until a fold makes room for it. An unfinished plan does not tell yet.
    is_short = chosen.fits and chosen.prompt_tokens <= outline.instructions_tokens + outline.log_tokens
    is_first_contact = outline.new_from_seq == 0 and bool(chosen.summaries)
    if is_short and not (is_first_contact and chosen.is_cut_to_fit):
        return chosen
    without = plan_log(replace(outline, user_texts=()))
    return chosen if is_short and without.is_cut_to_fit else without


def _plan_whole_log(outline: Outline, budget: Budget, policy: ContextPolicy) -> Plan | None:
    """Plans the whole log if it fits and no earlier view or stage changed anything; else returns None."""
    last = outline.last_view
    # An earlier summary, cut, edit or requested compaction must be honoured, so that the view does not jump back and
    # forth; stages of a policy may want the view shorter even below the threshold.
    if (
        outline.summaries
        or last.boundary.to_seq
        or last.edits
        or last.asked_seq
        or not policy.is_additive_without_stages
    ):
        return None
    raw_tokens = outline.instructions_tokens + outline.log_tokens
    tokens = budget.calibrate_tokens(raw_tokens)
    if tokens > budget.compaction_threshold:
        return None
    fits = PlanNote("view_fits", {"tokens": tokens, "soft": budget.compaction_threshold})
    return Plan("full", (), LOG_START, raw_tokens, fits=True, notes=(fits,))


def _plan_shortened_log(outline: Outline, budget: Budget, policy: ContextPolicy, count: ViewTokenCounter) -> Plan:
    """Plans the log from the last cut on. If the view passes a threshold, it is cut again."""
    shortening_planner = ShorteningPlanner(outline, budget, policy, count)
    candidates = shortening_planner.candidates
    view = candidates.build_last_boundary_view()
    fits = PlanNote("view_fits", {"tokens": budget.calibrate_tokens(view.tokens), "limit": budget.limit})
    if not shortening_planner.must_shorten(view):
        dropped = candidates.count_dropped_messages()
        return shortening_planner.build_unchanged_plan(view, fits, dropped=dropped)
    if not shortening_planner.has_loaded_tail(view):
        return replace(shortening_planner.build_unchanged_plan(view), needs_tail=view.boundary)
    draft = shortening_planner.shorten_view(view)
    return shortening_planner.build_plan(draft if draft.fits_limit else shortening_planner.trim_to_fit(draft))


SHORT_TAIL_SHARE, MIN_FOLD_SHARE = 0.5, 0.18
"""A view that is too long folds its summaries if that frees the second share of the window, rather than shorten a tail
of at most the first."""


@dataclass(frozen=True)
class _AdditivePlanner(ShorteningPlanner):
    """The planner of policy `additive`, and of its strategy `recursive`."""

    summarizer_input_tokens: int
    summarize: SummarizeMode

    def plan_under_threshold(self) -> Plan | None:
        """Plans the first view that is under its threshold; None if there is none.

        A view from before the last view's boundary is chosen only if it leaves much room. If the boundary must move
        forward, it moves to where there is room for several turns. Views that fold no more than the window needs are
        tried first, then those with all folds.
        """
        summaries, last = self.outline.summaries, self.outline.last_view
        end_seq = summaries[-1].to_seq if summaries else 0
        # Summaries may have been deleted since: a view cannot begin after the last summary that exists.
        last_boundary_seq = min(last.boundary.to_seq, end_seq)
        asked_seq = min(last.asked_seq, end_seq)
        regrow_tokens = self.budget.window * self.policy.cut.regrow_ratio
        candidates = self.candidates
        for views in (candidates.list_with_needed_folds(), candidates.list_with_all_folds()):
            short = [view for view in views if self._is_under_threshold(view) and view.boundary.to_seq >= asked_seq]
            usable = [
                view
                for view in short
                if view.boundary.to_seq >= last_boundary_seq
                or self.budget.calibrate_tokens(view.tokens) < regrow_tokens
            ]
            if not usable:
                continue
            view = usable[0]
            # The boundary moves anyway, and the prompt cache is lost. Move it far enough that it can stay.
            if 0 < last_boundary_seq < view.boundary.to_seq:
                view = self._choose_view_with_room(usable)
            fits = PlanNote(
                "view_fits",
                {"tokens": self.budget.calibrate_tokens(view.tokens), "soft": self._compute_threshold(view)},
            )
            chosen = self._plan_edited_view(view, fits)
            usual_threshold = self.budget.compaction_threshold + self.budget.user_text_tokens
            if view.summaries and self.budget.calibrate_tokens(view.tokens) > usual_threshold:
                chosen = _add_note(chosen, PlanNote("put_off", {"price": self.budget.compaction_price}))
            if usable[0] is not short[0] and not chosen.needs_tail:
                chosen = _add_note(chosen, PlanNote("boundary_kept", {"boundary_seq": view.boundary.to_seq}))
            return self.add_fold_if_needed(chosen, view)
        return None

    def _is_under_threshold(self, view: ViewCandidate) -> bool:
        return self.budget.calibrate_tokens(view.tokens) <= self._compute_threshold(view)

    def _choose_view_with_room(self, views: Sequence[ViewCandidate]) -> ViewCandidate:
        """Returns the first view that leaves room to grow, so that the boundary stays where it is for several turns;
        the first view of all if none does.
        """
        regrow_tokens = self.budget.window * self.policy.cut.regrow_ratio
        goals = (
            (view, max(self._compute_goal_threshold(view) * self.policy.cut.target_ratio, regrow_tokens))
            for view in views
        )
        return next((view for view, goal in goals if self.budget.calibrate_tokens(view.tokens) <= goal), views[0])

    def plan_over_threshold(self) -> Plan:
        """Plans a view when no candidate is under its threshold: every summary is shown, and more is summarized if that
        gains something.
        """
        view = self.candidates.list_with_all_folds()[-1]
        tokens, line = self.budget.calibrate_tokens(view.tokens), self._compute_threshold(view)
        prepare = self.budget.compute_precompaction_threshold(line)
        if self.summarize == "ahead" and tokens <= min(prepare, self.budget.limit):
            prepared = PlanNote("prepared", {"tokens": tokens, "line": prepare})
            return self.add_fold_if_needed(self.build_unchanged_plan(view, prepared), view)
        over = PlanNote("over_soft", {"tokens": tokens, "soft": line, "hard": self.budget.limit})
        as_it_is = self.build_unchanged_plan(view, over)
        may_gain = self.summarize != "never" and self._count_log_tokens_after(view) >= self._compute_min_gain_tokens(
            view
        )
        # There are too few tokens after the summaries to gain anything: do not load messages.
        if as_it_is.fits and not may_gain:
            return self._add_proposed_ranges(as_it_is, view, None)
        if self.outline.tail is None:
            return replace(as_it_is, needs_tail=view.boundary)
        if self.must_shorten(view):
            draft = self.shorten_view(view, over)
            # Stages that do nothing add no note: the unchanged plan then stands.
            if draft.notes != (over,):
                as_it_is = self.build_plan(draft)
                view = replace(view, tokens=draft.tokens)
                if self.budget.calibrate_tokens(draft.tokens) <= line and self.summarize != "ahead":
                    return self.add_fold_if_needed(as_it_is, view)
        needs_ranges = may_gain and not self._is_fold_enough(view)
        proposal = propose_gainful_ranges(self._build_range_finder(view)) if needs_ranges else None
        return self._add_proposed_ranges(
            as_it_is if as_it_is.fits else self._plan_trimmed_view(view, over), view, proposal
        )

    def plan_requested_compaction(self, through_seq: int | None) -> Plan:
        """Plans a view with every summary, and asks for a summary of everything before the buffer, or before
        `through_seq`.
        """
        view = self.candidates.list_with_needed_folds()[-1]
        request_note = PlanNote("compaction_asked_for", {"tokens": self.budget.calibrate_tokens(view.tokens)})
        as_it_is = self.build_unchanged_plan(view, request_note)
        if self.outline.tail is None and view.boundary.to_seq < self.outline.next_seq:
            return replace(as_it_is, needs_tail=view.boundary)
        zoning = self._build_range_finder(view)
        proposal = (
            propose_ranges_before_buffer(zoning) if through_seq is None else propose_ranges_through(zoning, through_seq)
        )
        return self._add_proposed_ranges(
            as_it_is if as_it_is.fits else self._plan_trimmed_view(view, request_note), view, proposal
        )

    def add_fold_if_needed(self, chosen: Plan, view: ViewCandidate) -> Plan:
        """Adds a fold to the plan if the summaries of its view are too large."""
        # An unfinished plan is planned again and gets its fold then.
        if chosen.needs_tail or (fold := self._choose_fold(view)) is None:
            return chosen
        fold_range, note = fold
        ranges = chosen.to_summarize if fold_range is None else (*chosen.to_summarize, fold_range)
        return _add_note(replace(chosen, to_summarize=ranges), note)

    def _choose_fold(self, view: ViewCandidate) -> tuple[SummaryRange | None, PlanNote] | None:
        """Returns the fold for a view's summaries with a note; None if they need none.

        They need one if they are too large, or if the view is too long though its tail is as short as that of a first
        contact. Summaries that replace each other are never merged.
        """
        if self.policy.has_replacing_summaries or self.summarize == "never" or len(view.summaries) < 2:
            return None
        weight = self.budget.calibrate_tokens(_sum_tokens(view.summaries))
        is_heavy = weight > compute_fold_tokens(self.policy, self.budget, self.outline.user_text_tokens)
        if not (is_heavy or self._is_long_with_short_tail(view)):
            return None
        input_tokens = self.budget.compute_raw_tokens(self.summarizer_input_tokens)
        return choose_fold_range(view, self.budget, self.policy, self.counter, input_tokens)

    def _is_long_with_short_tail(self, view: ViewCandidate) -> bool:
        tail_tokens = self.outline.instructions_tokens + self._count_log_tokens_after(view)
        summaries_tokens = self.budget.calibrate_tokens(_sum_tokens(view.summaries))
        freed_tokens = summaries_tokens - compute_summary_token_limit(self.policy, self.budget.window)
        return (
            not self._is_under_threshold(view)
            and self.budget.calibrate_tokens(tail_tokens) <= SHORT_TAIL_SHARE * self.budget.window
            and freed_tokens >= MIN_FOLD_SHARE * self.budget.window
        )

    def _is_fold_enough(self, view: ViewCandidate) -> bool:
        """Says whether a view that folds its summaries is under its threshold, so that its messages need none yet."""
        fold = self._choose_fold(view)
        if fold is None or fold[0] is None:
            return False
        largest = compute_summary_token_limit(self.policy, self.budget.window)
        folded = self.budget.calibrate_tokens(view.tokens - _sum_tokens(view.summaries)) + largest
        return folded <= self._compute_threshold(view)

    def _compute_goal_threshold(self, view: ViewCandidate) -> int:
        """Returns the threshold that leaves room to grow: user text does not raise it."""
        return replace(self.budget, user_text_tokens=0).compute_threshold(has_summaries=bool(view.summaries))

    def _compute_threshold(self, view: ViewCandidate) -> int:
        return self.budget.compute_threshold(has_summaries=bool(view.summaries))

    def _plan_edited_view(self, view: ViewCandidate, note: PlanNote) -> Plan:
        """Plans a view that is under its threshold, after context editing if that is due."""
        if not self.must_shorten(view):
            return self.build_unchanged_plan(view, note)
        if not self.has_loaded_tail(view):
            return replace(self.build_unchanged_plan(view, note), needs_tail=view.boundary)
        return self.build_plan(self.shorten_view(view, note))

    def _plan_trimmed_view(self, view: ViewCandidate, *notes: PlanNote) -> Plan:
        """Plans the view cut where the last view was cut, and cut again if that is still too large."""
        draft = self.resume_last_cut(view, *notes)
        if not draft.fits_limit:
            return self.build_plan(self.trim_to_fit(draft), is_cut_to_fit=True)
        chosen = self.build_plan(draft, is_cut_to_fit=True)
        # The cut is the old one, so the size after the last shortening is still the last view's.
        return replace(chosen, shortened_tokens=min(chosen.shortened_tokens, self.outline.last_view.tokens))

    def _add_proposed_ranges(self, chosen: Plan, view: ViewCandidate, proposal: SummaryProposal | None) -> Plan:
        if proposal is None:
            is_requested = self.summarize != "never"
            return self.add_fold_if_needed(
                _add_note(chosen, PlanNote("nothing_to_gain")) if is_requested else chosen, view
            )
        facts = {
            "ranges": len(proposal.ranges),
            "zone_tokens": proposal.summarized_tokens,
            "kept_tokens": proposal.kept_tokens,
            "expected_tokens": proposal.expected_tokens,
        }
        needed = replace(chosen, to_summarize=self._merge_ranges_if_recursive(proposal.ranges))
        return self.add_fold_if_needed(_add_note(needed, PlanNote("compaction_needed", facts)), view)

    def _merge_ranges_if_recursive(self, ranges: tuple[SummaryRange, ...]) -> tuple[SummaryRange, ...]:
        """Returns the ranges, or, with strategy `recursive`, one range of everything: its rolling summary replaces the
        last one.
        """
        if self.policy.compaction.strategy == "additive":
            return ranges
        base = self.outline.summaries[-1].id if self.outline.summaries else ""
        return (SummaryRange(0, ranges[-1].to_seq, style="recursive", base=base),)

    def _build_range_finder(self, view: ViewCandidate) -> SummaryRangeFinder:
        return SummaryRangeFinder(
            self,
            view,
            self.budget.compute_raw_tokens(self.summarizer_input_tokens),
            buffer_turns=self._count_buffer_turns(view),
            keeps_short_turns=self.summarize != "now",
        )

    def _count_buffer_turns(self, view: ViewCandidate) -> int:
        """Returns how many of the last complete turns stay verbatim at most.

        A summary made ahead keeps fewer: the turns that fit before the threshold is passed, and the one that passes it,
        are the last turns by then (decision 47). It keeps half of the buffer at least, since the next turn may be long.
        """
        turns = self.policy.verbatim.buffer_turns
        if self.summarize != "ahead" or not turns:
            return turns
        openings = self.log_tail.turn_seqs[-turns:]
        tokens = self.log_tail.count_tokens_from(openings[0]) if openings else 0
        room = self._compute_threshold(view) - self.budget.calibrate_tokens(view.tokens)
        further = max(0, room) * len(openings) // max(1, self.budget.calibrate_tokens(tokens))
        return turns - min(1 + further, max(1, turns // 2))

    def _count_log_tokens_after(self, view: ViewCandidate) -> int:
        return self.outline.log_tokens - view.boundary.tokens_total

    def _compute_min_gain_tokens(self, view: ViewCandidate) -> int:
        """Returns the tokens that must follow a view's summaries for a compaction to pay: the smallest gain and the
        frame of the new summary.
        """
        return int(self.policy.compaction.min_gain_ratio * view.tokens) + count_empty_summary_tokens(self.counter)


def _add_note(chosen: Plan, note: PlanNote) -> Plan:
    return replace(chosen, notes=(*chosen.notes, note))


MIN_FOLDED_SUMMARIES = 5
"""A fold merges at least this many summaries, even if one call cannot read them all: it reads them in parts. With
two at a time, the oldest summary would be rewritten for each of the others."""


def choose_fold_range(
    view: ViewCandidate, budget: Budget, policy: ContextPolicy, counter: ViewTokenCounter, summarizer_input_tokens: int
) -> tuple[SummaryRange | None, PlanNote]:
    """Returns a fold over a prefix of a view's summaries, or None if it would gain too little; and a note with the
    reason.

    Args:
        summarizer_input_tokens: a raw count.
    """
    folded = _select_readable_prefix(view.summaries, summarizer_input_tokens)
    section = budget.compute_raw_tokens(
        compute_summary_token_limit(policy, budget.window)
    ) + count_empty_summary_tokens(counter)
    gain = _sum_tokens(folded) - section
    facts = {"chunks": len(folded), "chunk_tokens": _sum_tokens(view.summaries), "gain_tokens": gain}
    # At most a share of the window: a view far above it would otherwise demand more than summaries can give.
    if gain < policy.compaction.min_gain_ratio * min(view.tokens, budget.compute_raw_tokens(budget.window)):
        return None, PlanNote("fold_gains_nothing", facts)
    wanted = SummaryRange(folded[0].from_seq, folded[-1].to_seq, tuple(summary.id for summary in folded))
    return wanted, PlanNote("fold_needed", facts)


def _sum_tokens(summaries: Sequence[Summary]) -> int:
    return sum(summary.tokens for summary in summaries)


def _select_readable_prefix(summaries: Sequence[Summary], summarizer_input_tokens: int) -> Sequence[Summary]:
    """Returns the summaries that one call can read, oldest first, but at least `MIN_FOLDED_SUMMARIES` of them.

    The prefix ends at the first gap in the chain (messages that the client leaves out): a fold stands for its whole
    range.
    """
    gaps = (index for index, (one, other) in enumerate(pairwise(summaries), 1) if one.to_seq != other.from_seq)
    shown = summaries[: next(gaps, len(summaries))]
    tokens = 0
    for index, summary in enumerate(shown):
        tokens += summary.tokens
        if tokens > summarizer_input_tokens and index >= MIN_FOLDED_SUMMARIES:
            return shown[:index]
    return shown
