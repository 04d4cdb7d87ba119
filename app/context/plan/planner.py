"""Decide what the model sees: `plan(outline, budget, policy) → Plan`. Pure: same input, same plan.

Under a policy that summarizes, the view takes the fewest chunks that bring it under its line, so it is stable while it
grows and regrows when the window does. That decision is arithmetic on stored totals; only where no view is under the
line are messages looked at. The other policies shorten the log by stages (`context.stages.shortening`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from msgspec.structs import replace

from app.context.plan.budget import Budget, summary_limit
from app.context.plan.checkpoint import Checkpointing
from app.context.plan.outline import START, Note, Outline, Plan, Range, Status, Summarize
from app.context.plan.policy import Policy
from app.context.plan.summary_range import Proposal, Zoning, zone_before_the_buffer, zone_that_pays, zone_through
from app.context.plan.view_candidates import Candidate, Candidates
from app.context.stages.shortening import Shortening
from app.context.view.view_messages import Counter, empty_section_tokens
from app.conversation.messages import Chunk

__all__ = ["Note", "Outline", "Plan", "Range", "Status", "Summarize", "plan"]


def plan(
    outline: Outline,
    budget: Budget,
    policy: Policy,
    *,
    count: Counter,
    summarizer_input_tokens: int,
    summarize: Summarize = "auto",
    through_seq: int | None = None,
) -> Plan:
    """The view to send, the reasons for it, and the ranges whose summaries would make a better one.

    The view is always sendable as it is (`fits` says otherwise): `to_summarize` may be ignored or fail.

    Args:
        count: counts in the conversation's encoding.
        summarizer_input_tokens: the most that one summary call may read, as its provider counts.
        summarize: `auto` when the view is over its line; `never`; `now` whatever there is before the buffer zone, with
            every chunk shown; `ahead` what would be summarized if the line were passed now.
        through_seq: with `now`, the messages before this seq are what is summarized, the buffer zone or not.
    """
    if summarize == "auto" and (whole := _whole(outline, budget, policy)) is not None:
        return whole
    if not policy.summarizes:
        summarize = "never"
    if policy.kind == "checkpoint":
        return Checkpointing(outline, budget, policy, count, through_seq).plan(summarize)
    if policy.kind != "additive":
        return _shortened(outline, budget, policy, count)
    planner = _Planner(outline, budget, policy, count, summarizer_input_tokens, summarize)
    if summarize == "now":
        return planner.compact_now(through_seq)
    if summarize == "ahead":
        return planner.over_the_line()
    return planner.under_the_line() or planner.over_the_line()


def _whole(outline: Outline, budget: Budget, policy: Policy) -> Plan | None:
    """The whole log, where it fits, nothing was ever done to it and no stage could want to: what most turns come to."""
    last = outline.last
    if outline.chunks or last.boundary.to_seq or last.edits or last.asked_seq or not policy.is_additive_alone:
        return None
    raw_tokens = outline.instructions_tokens + outline.log_tokens
    tokens = budget.calibrated(raw_tokens)
    if tokens > budget.soft:
        return None
    fits = Note("view_fits", {"tokens": tokens, "soft": budget.soft})
    return Plan("full", (), START, raw_tokens, fits=True, notes=(fits,))


def _shortened(outline: Outline, budget: Budget, policy: Policy, count: Counter) -> Plan:
    """The log from the last cut on, cut once more where it passes a line."""
    shortening = Shortening(outline, budget, policy, count)
    candidates = Candidates(outline, budget, policy, count, shortening.edits)
    view = candidates.cut()
    fits = Note("view_fits", {"tokens": budget.calibrated(view.tokens), "limit": budget.hard})
    if not shortening.is_due(view):
        dropped = candidates.dropped_by_the_cut()
        return shortening.as_it_is(view, fits, dropped=dropped)
    if not shortening.has_tail(view):
        return replace(shortening.as_it_is(view), needs_tail=view.boundary)
    draft = shortening.step(view)
    return shortening.plan_of(draft if draft.fits else shortening.last_resort(draft))


@dataclass(frozen=True)
class _Planner:
    """Policy `additive`, and its strategy `recursive`."""

    outline: Outline
    budget: Budget
    policy: Policy
    count: Counter
    summarizer_input_tokens: int
    summarize: Summarize

    def under_the_line(self) -> Plan | None:
        """The first view within its line; behind the last view's boundary only where that leaves much room, and past
        it, once it will not do, to where there is room for a while.

        Views that fold no more than this window asks for come first, then those that fold all they can.
        """
        chunks, last = self.outline.chunks, self.outline.last
        end_seq = chunks[-1].to_seq if chunks else 0
        last_boundary_seq = min(last.boundary.to_seq, end_seq)
        asked_seq = min(last.asked_seq, end_seq)
        regrow_tokens = self.budget.window * self.policy.regrow_ratio
        for views in (self._candidates.unfolded(), self._candidates.folded()):
            short = [view for view in views if self._is_short(view) and view.boundary.to_seq >= asked_seq]
            usable = [
                view
                for view in short
                if view.boundary.to_seq >= last_boundary_seq or self.budget.calibrated(view.tokens) < regrow_tokens
            ]
            if not usable:
                continue
            view = usable[0]
            if 0 < last_boundary_seq < view.boundary.to_seq:
                view = self._with_room(usable)
            fits = Note("view_fits", {"tokens": self.budget.calibrated(view.tokens), "soft": self._line(view)})
            chosen = self._edited(view, fits)
            if usable[0] is not short[0] and not chosen.needs_tail:
                chosen = _noted(chosen, Note("boundary_kept", {"boundary_seq": view.boundary.to_seq}))
            return self.with_fold(chosen, view)
        return None

    def _is_short(self, view: Candidate) -> bool:
        return self.budget.calibrated(view.tokens) <= self._line(view)

    def _with_room(self, views: Sequence[Candidate]) -> Candidate:
        """The first of some views that leaves room to grow, so that the boundary, once it moves, then stays for a
        while; the first of all where none does."""
        regrow_tokens = self.budget.window * self.policy.regrow_ratio
        goals = ((view, max(self._line(view) * self.policy.target_ratio, regrow_tokens)) for view in views)
        return next((view for view, goal in goals if self.budget.calibrated(view.tokens) <= goal), views[0])

    def over_the_line(self) -> Plan:
        """No view is under its line: every chunk is shown, and more is summarized where that gains something."""
        view = self._candidates.folded()[-1]
        tokens, line = self.budget.calibrated(view.tokens), self._line(view)
        prepare = self.budget.prepare_below(line)
        if self.summarize == "ahead" and tokens <= min(prepare, self.budget.hard):
            prepared = Note("prepared", {"tokens": tokens, "line": prepare})
            return self.with_fold(self._shortening.as_it_is(view, prepared), view)
        over = Note("over_soft", {"tokens": tokens, "soft": line, "hard": self.budget.hard})
        as_it_is = self._shortening.as_it_is(view, over)
        may_gain = self.summarize != "never" and self._log_tokens_after(view) >= self._least_gain_tokens(view)
        if as_it_is.fits and not may_gain:
            return self._with_proposal(as_it_is, view, None)
        if self.outline.tail is None:
            return replace(as_it_is, needs_tail=view.boundary)
        if self._shortening.is_due(view):
            draft = self._shortening.step(view, over)
            if draft.notes != (over,):
                as_it_is = self._shortening.plan_of(draft)
                view = replace(view, tokens=draft.tokens)
                if self.budget.calibrated(draft.tokens) <= line and self.summarize != "ahead":
                    return self.with_fold(as_it_is, view)
        proposal = zone_that_pays(self._zoning(view)) if may_gain else None
        return self._with_proposal(as_it_is if as_it_is.fits else self._trimmed(view, over), view, proposal)

    def compact_now(self, through_seq: int | None) -> Plan:
        """Every chunk is shown, and whatever lies before the buffer zone, or before `through_seq`, is to be
        summarized."""
        view = self._candidates.unfolded()[-1]
        asked = Note("compaction_asked_for", {"tokens": self.budget.calibrated(view.tokens)})
        as_it_is = self._shortening.as_it_is(view, asked)
        if self.outline.tail is None and view.boundary.to_seq < self.outline.next_seq:
            return replace(as_it_is, needs_tail=view.boundary)
        zoning = self._zoning(view)
        proposal = zone_before_the_buffer(zoning) if through_seq is None else zone_through(zoning, through_seq)
        return self._with_proposal(as_it_is if as_it_is.fits else self._trimmed(view, asked), view, proposal)

    def with_fold(self, chosen: Plan, view: Candidate) -> Plan:
        """The plan, asking for a fold where the chunks of its view weigh too much."""
        if self.policy.replaces or chosen.needs_tail:
            return chosen
        folding = Folding(
            shown=view.chunks,
            view_tokens=view.tokens,
            budget=self.budget,
            policy=self.policy,
            count=self.count,
            summarizer_input_tokens=self.budget.raw(self.summarizer_input_tokens),
        )
        if self.summarize == "never" or not folding.is_needed():
            return chosen
        fold, note = folding.decide()
        ranges = chosen.to_summarize if fold is None else (*chosen.to_summarize, fold)
        return _noted(replace(chosen, to_summarize=ranges), note)

    def _line(self, view: Candidate) -> int:
        return self.budget.line(folded=bool(view.chunks))

    def _edited(self, view: Candidate, note: Note) -> Plan:
        """A view under its line, after context editing where that is due."""
        if not self._shortening.is_due(view):
            return self._shortening.as_it_is(view, note)
        if not self._shortening.has_tail(view):
            return replace(self._shortening.as_it_is(view, note), needs_tail=view.boundary)
        return self._shortening.plan_of(self._shortening.step(view, note))

    def _trimmed(self, view: Candidate, *notes: Note) -> Plan:
        """The view cut where the last one was, and further where that is too much."""
        draft = self._shortening.resumed(view, *notes)
        if not draft.fits:
            return self._shortening.plan_of(self._shortening.last_resort(draft))
        chosen = self._shortening.plan_of(draft)
        return replace(chosen, shortened_tokens=min(chosen.shortened_tokens, self.outline.last.tokens))

    def _with_proposal(self, chosen: Plan, view: Candidate, proposal: Proposal | None) -> Plan:
        if proposal is None:
            asked = self.summarize != "never"
            return self.with_fold(_noted(chosen, Note("nothing_to_gain")) if asked else chosen, view)
        facts = {
            "ranges": len(proposal.ranges),
            "zone_tokens": proposal.zone_tokens,
            "kept_tokens": proposal.kept_tokens,
            "expected_tokens": proposal.after_tokens,
        }
        needed = replace(chosen, to_summarize=self._styled(proposal.ranges))
        return self.with_fold(_noted(needed, Note("compaction_needed", facts)), view)

    def _styled(self, ranges: tuple[Range, ...]) -> tuple[Range, ...]:
        """The ranges as the strategy wants them: one rolling summary over all there is takes the last one's place."""
        if self.policy.strategy == "additive":
            return ranges
        base = self.outline.chunks[-1].id if self.outline.chunks else ""
        return (Range(0, ranges[-1].to_seq, style="recursive", base=base),)

    def _zoning(self, view: Candidate) -> Zoning:
        return Zoning(
            outline=self.outline,
            tail=self._shortening.tail,
            shown=view.chunks,
            view_tokens=view.tokens,
            budget=self.budget,
            policy=self.policy,
            count=self.count,
            summarizer_input_tokens=self.budget.raw(self.summarizer_input_tokens),
            edits=self._shortening.edits,
            buffer_turns=max(0, self.policy.buffer_turns - (self.summarize == "ahead")),
        )

    def _log_tokens_after(self, view: Candidate) -> int:
        return self.outline.log_tokens - view.boundary.tokens_total

    def _least_gain_tokens(self, view: Candidate) -> int:
        """What a compaction must remove at least: the gain that is asked for and the section that it adds."""
        return int(self.policy.min_gain_ratio * view.tokens) + empty_section_tokens(self.count)

    @cached_property
    def _shortening(self) -> Shortening:
        return Shortening(self.outline, self.budget, self.policy, self.count)

    @property
    def _candidates(self) -> Candidates:
        return Candidates(self.outline, self.budget, self.policy, self.count, self._shortening.edits)


def _noted(chosen: Plan, note: Note) -> Plan:
    return replace(chosen, notes=(*chosen.notes, note))


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
