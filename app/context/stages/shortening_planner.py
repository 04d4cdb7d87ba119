"""Decides when a policy's stages shorten a view, and builds the plan. Views are shortened in steps, not a little with
every message.

A view begins as the last one was sent: same boundary, same edits. The stages run again only if the view passes a
pressure level that the last one had not passed, on top of what was done before, and their result counts only if it
frees enough. Between two steps each view begins with the bytes of the one before, so the provider's prompt cache is
used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from app.context.plan.budget import Budget
from app.context.plan.log_rounds import LogTail, build_log_tail, find_first_new_seq, find_tail_start
from app.context.plan.outline import Outline, Plan, PlanNote, ViewStatus
from app.context.plan.policy import ContextPolicy
from app.context.plan.view_candidates import ViewCandidate, ViewCandidates
from app.context.stages.cap_messages import restore_new_messages
from app.context.stages.draft import (
    Draft,
    DraftContext,
    select_pins_before,
    select_user_text,
    sum_saved_tokens_from,
)
from app.context.stages.mask_results import mask_results_further
from app.context.stages.stage_registry import apply_last_resort_stages, apply_stages
from app.context.view.message_edits import Edit, select_whole_edits
from app.context.view.view_rendering import ViewTokenCounter, count_summary_message_tokens
from app.conversation.conversation_types import Summary

MIN_GROWTH_RATIO = 0.05
"""Context editing waits until a view has grown by this share of the window since it was last shortened."""
MIN_FREED_SHARE = 0.5
"""Under policy `additive`, an edit of a view within its limit must free at least this share of the tokens that follow
the first edited message: these are sent anew, since the provider's cache ends there (measured in decision 47)."""
FULL_PRESSURE = 1.0
"""The goal of a view within its limit: all of the limit."""


@dataclass(frozen=True)
class ShorteningPlanner:
    """Runs the stages of a policy for one outline and budget. One instance serves one plan; results are
    cached in it. The planners of policies that summarize extend it.
    """

    outline: Outline
    budget: Budget
    policy: ContextPolicy
    counter: ViewTokenCounter

    @cached_property
    def log_tail(self) -> LogTail:
        """Returns the loaded messages."""
        return build_log_tail(self.outline)

    @cached_property
    def first_new_seq(self) -> int:
        """Returns the first message of the loaded tail that the model has not answered yet."""
        return find_first_new_seq(
            self.log_tail, known_to_seq=self.outline.new_from_seq, room_tokens=self.new_message_room_tokens
        )

    @cached_property
    def new_message_room_tokens(self) -> int:
        """Returns the raw tokens that new messages may take beside the shortest form of the rest: instructions, pins,
        and a notice.
        """
        notice = count_summary_message_tokens((), self.outline.next_seq, self.counter)
        fixed = self.outline.instructions_tokens + notice + sum(pin.tokens for pin in self.outline.pins)
        return self.budget.compute_raw_tokens(self.budget.limit) - fixed

    @cached_property
    def last_edits(self) -> Mapping[int, Edit]:
        """Returns the edits of the last view, without those of messages that are pinned since."""
        pinned = {seq for pin in self.outline.pins for seq in range(pin.from_seq, pin.to_seq)}
        edits = select_whole_edits(self.outline.last_view.edits, lambda seq: seq not in pinned)
        return {edit.seq: edit for edit in edits}

    @property
    def candidates(self) -> ViewCandidates:
        """Returns the views that stored summaries allow."""
        return ViewCandidates(self.outline, self.budget, self.policy, self.counter, self.last_edits)

    def must_shorten(self, view: ViewCandidate) -> bool:
        """Says whether a view passes a level that the last one had not passed, or a stage's own rule is due."""
        tokens = self.budget.calibrate_tokens(view.tokens)
        is_past = tokens > self.budget.limit or self.find_pressure_level(view.tokens) > self.outline.last_view.level
        return is_past or self.is_stage_rule_due(view)

    def has_loaded_tail(self, view: ViewCandidate) -> bool:
        """Says whether exactly the messages after a view's boundary are loaded."""
        return self.outline.tail is not None and find_tail_start(self.outline).to_seq == view.boundary.to_seq

    def shorten_view(self, view: ViewCandidate, *notes: PlanNote) -> Draft:
        """Returns the view after the policy's stages, or unchanged if they free too little."""
        before = self.build_draft(view, *notes)
        after = self.apply_policy_stages(before)
        if not before.fits_limit or self.pays_for_cache(before, after, view):
            return after
        return before.add_note("left_as_it_was", tokens=before.tokens, gain_tokens=before.tokens - after.tokens)

    def frees_enough(self, before: Draft, after: Draft) -> bool:
        """Says whether a step frees enough to be worth the prompt cache that it breaks."""
        return before.tokens - after.tokens >= self.policy.compaction.min_gain_ratio * before.tokens

    def pays_for_cache(self, before: Draft, after: Draft, view: ViewCandidate) -> bool:
        """Says whether edits that a view within its limit could do without are worth what they make the provider read
        anew.

        Under policy `additive` a summary makes room anyway. The other policies mask results so that they lose less, or
        later. A sliding window moves on, and reasoning is cleared, whatever they free.
        """
        is_rule_due = self.is_stage_rule_due(view)
        if not (is_rule_due or self.frees_enough(before, after)):
            return False
        if self.policy.kind != "additive" or self.policy.clear_reasoning.keep_turns is not None:
            return True
        if after.boundary != before.boundary:
            return True
        changed = [seq for seq, edit in after.edits.items() if before.edits.get(seq) != edit]
        first_seq = min(changed, default=self.outline.next_seq)
        rewritten = self.log_tail.count_tokens_from(first_seq) - sum_saved_tokens_from(first_seq, after.edits)
        return before.tokens - after.tokens >= MIN_FREED_SHARE * rewritten

    def is_stage_rule_due(self, view: ViewCandidate) -> bool:
        """Says whether a sliding window must move on, or context editing is due."""
        names = self.policy.stage_names
        if "keep_last" in names and self._must_sliding_window_move(view):
            return True
        tokens = self.budget.calibrate_tokens(view.tokens)
        grown = tokens - self.outline.last_view.tokens
        rule = self.policy.clear_tool_results
        if "clear_tool_results" in names and rule.trigger_tokens is not None and tokens > rule.trigger_tokens:
            return grown >= max(rule.clear_at_least_tokens, self._min_growth_tokens)
        clears_reasoning = "clear_reasoning" in names and self.policy.clear_reasoning.keep_turns is not None
        return clears_reasoning and grown >= self._min_growth_tokens

    def find_pressure_level(self, view_tokens: int) -> float:
        """Returns the highest level that a view is at or above; 0 if there is none."""
        message_tokens = view_tokens - self.outline.instructions_tokens
        pressure = self.budget.compute_pressure(self.budget.calibrate_tokens(message_tokens))
        return max((line for line in self._list_pressure_levels() if pressure >= line), default=0.0)

    def build_draft(self, view: ViewCandidate, *notes: PlanNote, ignore_last_edits: bool = False) -> Draft:
        """Returns the draft of a view, with the edits of the last view.

        Args:
            ignore_last_edits: leave those edits out.
        """
        over = self.budget.calibrate_tokens(view.tokens) > self.budget.limit
        scene = DraftContext(
            outline=self.outline,
            tail=self.log_tail,
            budget=self.budget,
            policy=self.policy,
            counter=self.counter,
            # A view over the limit is cut to a target well below it, so that the next cut is many turns away (decision
            # 16).
            goal_ratio=self.policy.cut.target_ratio if over else FULL_PRESSURE,
            first_new_seq=self.first_new_seq,
            new_excess_tokens=max(
                0, self.log_tail.count_tokens_from(self.first_new_seq) - self.new_message_room_tokens
            ),
        )
        kept = (
            {}
            if ignore_last_edits
            else {seq: edit for seq, edit in self.last_edits.items() if seq >= view.boundary.to_seq}
        )
        return Draft(scene, view.summaries, view.boundary, kept, notes)

    def resume_last_cut(self, view: ViewCandidate, *notes: PlanNote) -> Draft:
        """Returns a view that is too long, cut where the last view was cut; without old cuts and edits if the old ones
        would leave much room.
        """
        draft = self._cut_at_last_boundary(self.build_draft(view, *notes))
        least = min(self.budget.window * self.policy.cut.regrow_ratio, self.outline.last_view.tokens)
        if draft is None or self.budget.calibrate_tokens(draft.tokens) < least:
            return self.build_draft(view, *notes, ignore_last_edits=True)
        return draft

    def _cut_at_last_boundary(self, draft: Draft) -> Draft | None:
        """Returns a view whose verbatim part begins where that of the last view did; None if no round begins there."""
        last = self.outline.last_view.boundary
        if last.to_seq <= draft.boundary_seq:
            return draft
        if all(last.to_seq != one.from_seq for one in draft.context.tail.rounds):
            return None
        cut = draft.cut_before(last.to_seq)
        return cut.add_note(
            "dropped", messages=cut.dropped_message_count, from_seq=last.to_seq, tokens=draft.tokens - cut.tokens
        )

    def apply_policy_stages(self, draft: Draft, names: Sequence[str] | None = None) -> Draft:
        """Returns the view after the policy's stages, or after the stages in `names`.

        If the view did not fit, nothing was dropped, and the stages free too little, results are masked further: the
        next step is then far away. Policy `additive` writes summaries instead.
        """
        after = apply_stages(draft, self.policy.stage_names if names is None else names)
        if draft.fits_limit:
            return after
        is_enough = after.fits_limit and self.frees_enough(draft, after)
        if not (is_enough or after.boundary_seq or self.policy.kind == "additive"):
            after = mask_results_further(after)
        return restore_new_messages(draft, after) if after.fits_limit else after

    def trim_to_fit(self, draft: Draft) -> Draft:
        """Returns the view cut until it fits; with a note of what does not fit if no stage helps."""
        trimmed = apply_last_resort_stages(draft)
        if not trimmed.fits_limit:
            return self._add_overflow_note(trimmed)
        return trimmed if draft.fits_limit else restore_new_messages(draft, trimmed)

    def build_plan(self, draft: Draft, *, is_cut_to_fit: bool = False) -> Plan:
        return Plan(
            status=compute_view_status(draft.summaries, changed=bool(draft.edits or draft.dropped_message_count)),
            summaries=draft.summaries,
            boundary=draft.boundary,
            prompt_tokens=draft.tokens,
            fits=draft.fits_limit,
            pins=draft.pins,
            user_text=draft.user_text,
            edits=dict(sorted(draft.edits.items())),
            dropped_message_count=draft.dropped_message_count,
            is_cut_to_fit=is_cut_to_fit,
            level=self.find_pressure_level(draft.tokens),
            shortened_tokens=self.budget.calibrate_tokens(draft.tokens),
            notes=draft.notes,
        )

    def build_unchanged_plan(self, view: ViewCandidate, *notes: PlanNote, dropped: int = 0) -> Plan:
        """Returns the plan of a candidate with the edits of the last view."""
        edits = {seq: edit for seq, edit in sorted(self.last_edits.items()) if seq >= view.boundary.to_seq}
        last = self.outline.last_view
        return Plan(
            status=compute_view_status(view.summaries, changed=bool(edits or dropped)),
            summaries=view.summaries,
            boundary=view.boundary,
            prompt_tokens=view.tokens,
            fits=self.budget.calibrate_tokens(view.tokens) <= self.budget.limit,
            pins=select_pins_before(view.boundary, self.outline.pins),
            user_text=select_user_text(view.boundary, self.outline),
            edits=edits,
            dropped_message_count=dropped,
            # The view was not shortened: a level that it passed is not settled, and one that it fell below may be
            # passed again.
            level=min(last.level, self.find_pressure_level(view.tokens)),
            shortened_tokens=min(last.tokens, self.budget.calibrate_tokens(view.tokens)),
            notes=notes,
        )

    def _list_pressure_levels(self) -> list[float]:
        names = self.policy.stage_names
        lines = (
            [self.policy.trimming.mask_pressure]
            if {"mask_results", "cap_messages", "prune_by_position"} & {*names}
            else []
        )
        if "fade_results" in names:
            lines += [threshold for threshold, _ in self.policy.trimming.fade_bands]
        return lines

    def _must_sliding_window_move(self, view: ViewCandidate) -> bool:
        """Says whether a sliding window must move on. Turns can be counted only in a loaded tail."""
        policy = self.policy
        message_tokens = self.budget.calibrate_tokens(view.tokens - self.outline.instructions_tokens)
        if policy.verbatim.keep_tokens is not None and message_tokens > policy.verbatim.keep_tokens:
            return True
        if policy.verbatim.keep_turns is None:
            return False
        # Turns are not counted in the stored totals: answer yes, so that the messages are loaded and planned again.
        if self.outline.tail is None:
            return True
        return len(self.log_tail.turn_seqs) > policy.verbatim.keep_turns

    @property
    def _min_growth_tokens(self) -> int:
        return int(self.budget.window * MIN_GROWTH_RATIO)

    def _add_overflow_note(self, draft: Draft) -> Draft:
        return draft.add_note(
            "does_not_fit",
            instructions_tokens=self.budget.calibrate_tokens(self.outline.instructions_tokens),
            newest_message_tokens=self.budget.calibrate_tokens(draft.verbatim_tokens),
            notice_tokens=self.budget.calibrate_tokens(draft.summary_tokens),
            limit_tokens=self.budget.limit,
        )


def compute_view_status(summaries: tuple[Summary, ...], *, changed: bool) -> ViewStatus:
    """Returns `trimmed` if messages are shortened or left out, or all summaries are mechanical; `summarized` if a
    model's summary is shown; else `full`.
    """
    if changed or (summaries and all(summary.kind == "mechanical" for summary in summaries)):
        return "trimmed"
    return "summarized" if summaries else "full"
