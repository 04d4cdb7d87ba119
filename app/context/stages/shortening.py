"""When a view is shortened by a policy's stages, and what comes of it. Steps, not a bit with every message.

A view begins as the last one was sent: same boundary, same edits. Only when it passes a line that the last one had not
passed do the stages run again, on top of what was done before, and what they do counts only where it frees a share that
is worth it. Between two steps each view begins with the bytes of the one before, and the provider's prompt cache keeps
working.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from app.context.plan.budget import Budget
from app.context.plan.log_cuts import Tail, tail_of, tail_start
from app.context.plan.outline import Note, Outline, Plan, Status
from app.context.plan.policy import Policy
from app.context.plan.view_candidates import Candidate
from app.context.stages.draft import Draft, Scene, pins_before
from app.context.stages.mask_results import give_room, mask_more
from app.context.stages.stages import apply, trim
from app.context.view.message_edits import Edit
from app.context.view.view_messages import Counter
from app.conversation.messages import Chunk

LEAST_GROWTH_RATIO = 0.05
"""Context editing waits until a view has grown by this share of the window since it was last shortened."""
FULL = 1.0
"""The highest line: what fits no more."""


@dataclass(frozen=True)
class Shortening:
    """The stages of a policy, for one outline and budget: made for one plan, and what it works out is kept for that."""

    outline: Outline
    budget: Budget
    policy: Policy
    count: Counter

    @cached_property
    def tail(self) -> Tail:
        """The messages that are loaded."""
        return tail_of(self.outline)

    @cached_property
    def edits(self) -> Mapping[int, Edit]:
        """Those of the last view."""
        pinned = {seq for pin in self.outline.pins for seq in range(pin.from_seq, pin.to_seq)}
        return {edit.seq: edit for edit in self.outline.last.edits if edit.seq not in pinned}

    def is_due(self, view: Candidate) -> bool:
        """Whether a view passes a line that the last one had not passed, or a rule of its own wants it shorter."""
        tokens = self.budget.calibrated(view.tokens)
        is_past = tokens > self.budget.hard or self.level(view.tokens) > self.outline.last.level
        return is_past or self.is_ruled(view)

    def has_tail(self, view: Candidate) -> bool:
        """Whether the messages behind a view's boundary are loaded, and no others."""
        return self.outline.tail is not None and tail_start(self.outline).to_seq == view.boundary.to_seq

    def step(self, view: Candidate, *notes: Note) -> Draft:
        """The view after the policy's stages, or as it was where passing a line frees too little."""
        before = self.draft(view, *notes)
        after = self.shortened(before)
        if not before.fits or self.pays(before, after) or self.is_ruled(view):
            return after
        return before.noted("left_as_it_was", tokens=before.tokens, gain_tokens=before.tokens - after.tokens)

    def pays(self, before: Draft, after: Draft) -> bool:
        """Whether a step frees enough to be worth the prompt cache that it breaks."""
        return before.tokens - after.tokens >= self.policy.min_gain_ratio * before.tokens

    def is_ruled(self, view: Candidate) -> bool:
        """Whether a sliding window has to move on, or context editing is due."""
        names = self.policy.stage_names
        if "keep_last" in names and self._keeps_less(view):
            return True
        tokens = self.budget.calibrated(view.tokens)
        grown = tokens - self.outline.last.tokens
        rule = self.policy.clear_tool_results
        if "clear_tool_results" in names and rule.trigger_tokens is not None and tokens > rule.trigger_tokens:
            return grown >= max(rule.clear_at_least_tokens, self._least_growth_tokens)
        clears_reasoning = "clear_reasoning" in names and self.policy.clear_reasoning.keep_turns is not None
        return clears_reasoning and grown >= self._least_growth_tokens

    def level(self, view_tokens: int) -> float:
        """The highest line that a view is at or above; 0 for none."""
        pressure = self._pressure(view_tokens)
        return max((line for line in self._lines() if pressure >= line), default=0.0)

    def draft(self, view: Candidate, *notes: Note, afresh: bool = False) -> Draft:
        """A view to be shortened, with the edits of the last one.

        Args:
            afresh: without them.
        """
        over = self.budget.calibrated(view.tokens) > self.budget.hard
        scene = Scene(
            instructions_tokens=self.outline.instructions_tokens,
            tail=self.tail,
            budget=self.budget,
            policy=self.policy,
            count=self.count,
            goal_ratio=self.policy.target_ratio if over else FULL,
            pins=self.outline.pins,
            omitted=self.outline.omitted,
        )
        kept = {} if afresh else {at: edit for at, edit in self.edits.items() if at >= view.boundary.to_seq}
        return Draft(scene, view.chunks, view.boundary, kept, notes)

    def resumed(self, view: Candidate, *notes: Note) -> Draft:
        """A view that is too long, cut where the last one was; afresh where that would leave much room."""
        draft = self._cut_as_before(self.draft(view, *notes))
        least = min(self.budget.window * self.policy.regrow_ratio, self.outline.last.tokens)
        if draft is None or self.budget.calibrated(draft.tokens) < least:
            return self.draft(view, *notes, afresh=True)
        return draft

    def _cut_as_before(self, draft: Draft) -> Draft | None:
        """A view with its verbatim part beginning where that of the last one did; None where no round does."""
        last = self.outline.last.boundary
        if last.to_seq <= draft.boundary_seq:
            return draft
        if all(last.to_seq != one.from_seq for one in draft.scene.tail.rounds):
            return None
        cut = draft.cut_at(last.to_seq)
        return cut.noted("dropped", messages=cut.dropped, from_seq=last.to_seq, tokens=draft.tokens - cut.tokens)

    def shortened(self, draft: Draft, names: Sequence[str] | None = None) -> Draft:
        """The view after the policy's stages, or after some of them.

        Where the view did not fit, nothing was dropped, and the stages free too little, results are masked further: the
        next step is then far away. Policy `additive` summarizes instead.
        """
        after = apply(draft, self.policy.stage_names if names is None else names)
        if draft.fits:
            return after
        is_enough = after.fits and self.pays(draft, after)
        if not (is_enough or after.boundary_seq or self.policy.kind == "additive"):
            after = mask_more(after)
        return give_room(draft, after) if after.fits else after

    def last_resort(self, draft: Draft) -> Draft:
        """The view cut until it fits; with a note of what does not fit where nothing helps."""
        trimmed = trim(draft)
        if not trimmed.fits:
            return self._why_it_does_not_fit(trimmed)
        return trimmed if draft.fits else give_room(draft, trimmed)

    def plan_of(self, draft: Draft) -> Plan:
        return Plan(
            status=status(draft.chunks, changed=bool(draft.edits or draft.dropped)),
            chunks=draft.chunks,
            boundary=draft.boundary,
            prompt_tokens=draft.tokens,
            fits=draft.fits,
            pins=draft.pins,
            edits=dict(sorted(draft.edits.items())),
            dropped=draft.dropped,
            level=self.level(draft.tokens),
            shortened_tokens=self.budget.calibrated(draft.tokens),
            notes=draft.notes,
        )

    def as_it_is(self, view: Candidate, *notes: Note, dropped: int = 0) -> Plan:
        """A candidate with the edits of the last view, as a plan."""
        edits = {at: edit for at, edit in sorted(self.edits.items()) if at >= view.boundary.to_seq}
        last = self.outline.last
        return Plan(
            status=status(view.chunks, changed=bool(edits or dropped)),
            chunks=view.chunks,
            boundary=view.boundary,
            prompt_tokens=view.tokens,
            fits=self.budget.calibrated(view.tokens) <= self.budget.hard,
            pins=pins_before(view.boundary, self.outline.pins),
            edits=edits,
            dropped=dropped,
            level=min(last.level, self.level(view.tokens)),
            shortened_tokens=min(last.tokens, self.budget.calibrated(view.tokens)),
            notes=notes,
        )

    def _pressure(self, view_tokens: int) -> float:
        message_tokens = view_tokens - self.outline.instructions_tokens
        return self.budget.pressure(self.budget.calibrated(message_tokens))

    def _lines(self) -> list[float]:
        names = self.policy.stage_names
        lines = [self.policy.mask_pressure] if {"mask_results", "cap_messages", "prune_by_position"} & {*names} else []
        if "fade_results" in names:
            lines += [threshold for threshold, _ in self.policy.fade_bands]
        return lines

    def _keeps_less(self, view: Candidate) -> bool:
        """Whether a sliding window has to move on. Turns are counted in the tail, once that is loaded."""
        policy = self.policy
        message_tokens = self.budget.calibrated(view.tokens - self.outline.instructions_tokens)
        if policy.keep_tokens is not None and message_tokens > policy.keep_tokens:
            return True
        if policy.keep_turns is None:
            return False
        if self.outline.tail is None:
            return True
        openings = [entry for entry in self.tail.rounds if entry.opens_turn]
        return len(openings) > policy.keep_turns

    @property
    def _least_growth_tokens(self) -> int:
        return int(self.budget.window * LEAST_GROWTH_RATIO)

    def _why_it_does_not_fit(self, draft: Draft) -> Draft:
        return draft.noted(
            "does_not_fit",
            instructions_tokens=self.budget.calibrated(self.outline.instructions_tokens),
            newest_message_tokens=self.budget.calibrated(draft.verbatim_tokens),
            notice_tokens=self.budget.calibrated(draft.summary_tokens),
            limit_tokens=self.budget.hard,
        )


def status(shown: tuple[Chunk, ...], *, changed: bool) -> Status:
    """`trimmed` where messages are shortened or left out, or told without a model; `summarized` by a model's chunk."""
    if changed or (shown and all(chunk.kind == "mechanical" for chunk in shown)):
        return "trimmed"
    return "summarized" if shown else "full"
