"""Policy `checkpoint`: shorten tool results first; once messages overflow, one summary of everything takes their place.

Each checkpoint is written from the whole log, not from the one before, and stands alone in front of the newest turns.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from msgspec.structs import replace

from app.context.plan.budget import Budget, summary_limit, trigger_tokens
from app.context.plan.log_cuts import Tail
from app.context.plan.outline import START, Note, Outline, Plan, Range, Summarize
from app.context.plan.policy import Policy
from app.context.plan.view_candidates import Candidate, Candidates
from app.context.stages.draft import Draft
from app.context.stages.mask_results import least_masked, unread_results
from app.context.stages.shortening import Shortening
from app.context.view.view_messages import Counter, empty_section_tokens, frame_tokens

CHEAP_STAGES: Final = ("mask_results", "cap_messages", "clear_tool_results", "clear_reasoning")
"""Stages that lose least; a checkpoint is preferred to the others."""


@dataclass(frozen=True)
class Checkpointing:
    """The planner of the policy. Checkpoints in `Outline.chunks` all begin at the log's start, by reach."""

    outline: Outline
    budget: Budget
    policy: Policy
    count: Counter
    through_seq: int | None = None
    """Where a checkpoint that is asked for ends, instead of where the policy says."""

    def plan(self, summarize: Summarize) -> Plan:
        asked = summarize in {"now", "ahead"}
        view = (None if asked else self._fitting_view()) or self._candidates.unfolded()[-1]
        if asked or not view.chunks:
            return self._plan_from(view, summarize)
        whole_plan, tail = self._masked_whole(), self.outline.tail
        if whole_plan is not None:
            return whole_plan
        if tail is None or self._shortening.has_tail(view):
            return self._plan_from(view, summarize)
        # The whole log was read and does not fit: go on with its end.
        behind = tail[view.boundary.to_seq - (self.outline.tail_start or START).to_seq :]
        outline = replace(self.outline, tail=behind, tail_start=view.boundary)
        return dataclasses.replace(self, outline=outline)._plan_from(view, summarize)

    def _plan_from(self, view: Candidate, summarize: Summarize) -> Plan:
        asked = summarize in {"now", "ahead"}
        fits = Note("view_fits", {"tokens": self.budget.calibrated(view.tokens), "limit": self.budget.hard})
        if not self._is_due(view, summarize):
            return self._shortening.as_it_is(view, fits)
        if not self._shortening.has_tail(view):
            return replace(self._shortening.as_it_is(view, fits), needs_tail=view.boundary)
        whole = self._shortening.draft(view)
        decided, left = self._shortened(whole if whole.fits else self._shortening.resumed(view), asked=asked)
        chosen = self._shortening.plan_of(decided)
        if summarize == "never" or (summarize == "ahead" and self._may_be_masked(whole)):
            return chosen
        return self._with_checkpoint(chosen, left if left.boundary == whole.boundary else whole, summarize)

    def _may_be_masked(self, draft: Draft) -> bool:
        """Whether masking its results is enough for now."""
        return self.budget.calibrated(least_masked(draft).tokens) <= self._prepare_tokens

    def _masked_whole(self) -> Plan | None:
        """The whole log with its results masked, instead of the first checkpoint; None where that does not fit, where
        the trigger is reached or where a checkpoint was shown before."""
        last, view = self.outline.last, self._candidates.whole()
        if last.boundary.to_seq or last.asked_seq or self._reaches_the_trigger(view.tokens):
            return None
        if not self._shortening.has_tail(view):
            return replace(self._shortening.as_it_is(view), needs_tail=view.boundary)
        _, left = self._shortened(self._shortening.draft(view), asked=False)
        return self._shortening.plan_of(left) if left.fits else None

    def _is_due(self, view: Candidate, summarize: Summarize) -> bool:
        if summarize == "ahead":
            return self.budget.calibrated(view.tokens) > self._prepare_tokens
        reached = summarize == "auto" and self._reaches_the_trigger(view.tokens)
        return summarize == "now" or reached or self._shortening.is_due(view)

    def _fitting_view(self) -> Candidate | None:
        """The first view that fits and does not reach the trigger, fewest messages folded; behind the last one's
        boundary only with much room."""
        last = self.outline.last
        for view in self._candidates.unfolded():
            tokens = self.budget.calibrated(view.tokens)
            is_short = tokens <= self.budget.hard and not self._reaches_the_trigger(view.tokens)
            goes_back = view.boundary.to_seq < last.boundary.to_seq
            if view.boundary.to_seq < last.asked_seq or not is_short:
                continue
            if not goes_back or tokens < self.budget.window * self.policy.regrow_ratio:
                return view
        return None

    def _shortened(self, before: Draft, *, asked: bool) -> tuple[Draft, Draft]:
        """The view to send until there is a checkpoint, and the one that tells whether there should be: what gentle
        stages made of it where that pays, and the others where it still does not fit or soon would not again."""
        view = Candidate(before.chunks, before.boundary, before.tokens)
        if before.fits and (asked or not self._shortening.is_due(view)):
            return before, before
        gentle = [name for name in self.policy.stage_names if name in CHEAP_STAGES]
        draft = before if asked else self._shortening.shortened(before, gentle)
        pays = self._shortening.pays(before, draft) or self._shortening.is_ruled(view)
        cuts_unread = any(entry.seq in draft.edits for entry in unread_results(draft))
        is_saved = draft.fits and not before.fits and (cuts_unread or not draft.boundary_seq)
        left = draft if pays or is_saved else before
        if left.fits:
            return left, left
        rest = [name for name in self.policy.stage_names if name not in CHEAP_STAGES]
        final = self._shortening.shortened(draft, rest)
        return (final if final.fits else self._shortening.last_resort(final)), left

    def _with_checkpoint(self, decided: Plan, draft: Draft, summarize: Summarize) -> Plan:
        """The plan, asking for a checkpoint where the trigger says so and it gains enough."""
        tail = draft.scene.tail
        cut = self._cut(tail, is_ahead=summarize == "ahead") if self.through_seq is None else self.through_seq
        if cut is None or cut <= tail.start_seq:
            return replace(decided, notes=(*decided.notes, Note("nothing_to_gain")))
        overflow = self._overflowing(draft)
        if summarize == "auto" and not self._is_triggered(draft, overflow):
            return replace(decided, notes=(*decided.notes, Note("not_triggered", {"messages": overflow})))
        after = self._expected_tokens(draft, cut)
        facts = {"messages": overflow, "expected_tokens": after, "tokens": draft.tokens}
        if draft.tokens - after < self.policy.min_gain_ratio * draft.tokens:
            return replace(decided, notes=(*decided.notes, Note("nothing_to_gain", facts)))
        before = self.outline.chunks[-1].id if self.outline.chunks else ""
        wanted = Range(0, cut, style="checkpoint", base=before)
        return replace(decided, to_summarize=(wanted,), notes=(*decided.notes, Note("compaction_needed", facts)))

    def _cut(self, tail: Tail, *, is_ahead: bool) -> int | None:
        """Where the turns begin that stay verbatim: the last `keep_turns` before the current one, fewer where they
        would take more than `buffer_max_ratio`; inside the current turn where that is too long by itself."""
        rounds = tail.rounds
        openings = [entry.from_seq for entry in rounds if entry.opens_turn]
        allowed = self.budget.raw(int(self.budget.window * self.policy.buffer_max_ratio))
        kept = openings[-self.policy.turns_kept - 1 :]
        if is_ahead and tail.ends_with_an_answer:  # the turn that needs it is still to come
            kept = [*kept[1:], *([] if self.policy.turns_kept else [tail.end_seq])]
        for seq in kept:
            if tail.tokens_from(seq) <= allowed or seq == openings[-1] == rounds[-1].from_seq:
                return seq
        inside = [entry.from_seq for entry in rounds[1:] if not openings or entry.from_seq > openings[-1]]
        return next((seq for seq in inside if tail.tokens_from(seq) <= allowed), inside[-1] if inside else None)

    def _overflowing(self, draft: Draft) -> int:
        """How many messages do not fit, counted from the newest back: those are to be refined."""
        tail = draft.scene.tail
        room = draft.scene.limit_tokens - draft.scene.instructions_tokens - draft.summary_tokens
        for number, entry in enumerate(reversed(tail.messages)):
            edit = draft.edits.get(entry.seq)
            room -= entry.tokens if edit is None else edit.tokens
            if room < 0:
                return len(tail.messages) - number
        return 0

    def _is_triggered(self, draft: Draft, overflow: int) -> bool:
        trigger = self.policy.trigger
        if trigger.type is None or trigger.value is None:
            return overflow > 0
        if trigger.type == "messages_to_refine":
            return overflow >= trigger.value
        return self._reaches_the_trigger(draft.tokens)

    def _reaches_the_trigger(self, view_tokens: int) -> bool:
        """Whether a trigger that is told in tokens is reached, be it before anything overflows."""
        trigger = trigger_tokens(self.policy, self.budget.window)
        return trigger is not None and self.budget.calibrated(view_tokens) >= trigger

    def _expected_tokens(self, draft: Draft, cut: int) -> int:
        scene = draft.scene
        summary = self.budget.raw(summary_limit(self.policy, self.budget.window)) + empty_section_tokens(self.count)
        anchor = scene.tail.boundary(cut).anchor_tokens
        kept = scene.tail.tokens_from(cut) + anchor
        return scene.instructions_tokens + frame_tokens(self.count) + summary + kept

    @property
    def _prepare_tokens(self) -> int:
        """Above this a checkpoint is made ahead."""
        return min(self.budget.prepare_below(self.budget.hard), self.budget.hard)

    @cached_property
    def _shortening(self) -> Shortening:
        return Shortening(self.outline, self.budget, self.policy, self.count)

    @property
    def _candidates(self) -> Candidates:
        return Candidates(self.outline, self.budget, self.policy, self.count, self._shortening.edits)
