"""Decide what the model sees: `plan(outline, budget, policy) → Plan`. Pure: same input, same plan.

The view takes the fewest chunks that bring it under the soft line, so it is stable while it grows and regrows when the
window does. That decision is arithmetic on stored totals; only where no view is under the line are messages looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from app.context.budget import Budget
from app.context.chain import fold_at, shown_at, totals_by_end
from app.context.draft import Draft, Scene
from app.context.fold import Folding
from app.context.outline import Note, Outline, Plan, Range, Status, Summarize
from app.context.partition import Anchor, tail_of
from app.context.policy import Policy
from app.context.stages import trim
from app.context.view import Counter, empty_section_tokens, frame_tokens
from app.context.zone import Proposal, Zoning, zone_before_the_buffer, zone_that_pays
from app.conversation.messages import Chunk

__all__ = ["Note", "Outline", "Plan", "Range", "Status", "Summarize", "plan"]

UNFOLDED_SHARE = 0.75
"""Of what chunks may weigh before they are folded; below it, a fold that another window needed is left aside."""


def plan(
    outline: Outline,
    budget: Budget,
    policy: Policy,
    *,
    count: Counter,
    summarizer_input_tokens: int,
    summarize: Summarize = "auto",
) -> Plan:
    """The view to send, the reasons for it, and the ranges whose summaries would make a better one.

    The view is always sendable as it is (`fits` says otherwise): `to_summarize` may be ignored or fail.

    Args:
        count: counts in the conversation's encoding.
        summarizer_input_tokens: the most that one summary call may read, as its provider counts.
        summarize: `auto` when the view is over the soft line; `never`; `now` whatever there is before the buffer zone,
            with every chunk shown.
    """
    planner = _Planner(outline, budget, policy, count, summarizer_input_tokens, summarize)
    if summarize == "now":
        return planner.compact_now()
    return planner.under_the_line() or planner.over_the_line()


class _View(msgspec.Struct, frozen=True):
    """A view that shows the first `chunk_count` chunks and all of the log after them."""

    chunk_count: int
    boundary_seq: int
    anchor: Anchor | None
    tokens: int
    fold: Chunk | None = None
    """Stands for the chunks that it folds."""


@dataclass(frozen=True, slots=True)
class _Planner:
    outline: Outline
    budget: Budget
    policy: Policy
    count: Counter
    summarizer_input_tokens: int
    summarize: Summarize

    def under_the_line(self) -> Plan | None:
        """The first view within the soft line; behind the last view's boundary only where that leaves much room.

        Views that fold no more than this window asks for come first, then those that fold all they can.
        """
        chunks = self.outline.chunks
        last_boundary_seq = min(self.outline.last_boundary_seq, chunks[-1].to_seq if chunks else 0)
        regrow_tokens = self.budget.window * self.policy.regrow_ratio
        kept_back = 0
        for view in (*self._views(self._unfolded_limit_tokens), *self._views(0)):
            tokens = self.budget.calibrated(view.tokens)
            if tokens > self.budget.soft:
                continue
            if view.boundary_seq < last_boundary_seq and tokens >= regrow_tokens:
                kept_back += 1
                continue
            chosen = self._plan_of(view, Note("view_fits", {"tokens": tokens, "soft": self.budget.soft}))
            if kept_back:
                chosen = _noted(chosen, Note("boundary_kept", {"boundary_seq": view.boundary_seq}))
            return self.with_fold(chosen, view)
        return None

    def over_the_line(self) -> Plan:
        """No view is under the soft line: every chunk is shown, and more is summarized where that gains something."""
        view = self._views(0)[-1]
        tokens = self.budget.calibrated(view.tokens)
        over = Note("over_soft", {"tokens": tokens, "soft": self.budget.soft, "hard": self.budget.hard})
        as_it_is = self._plan_of(view, over)
        may_gain = self.summarize != "never" and self._log_tokens_after(view) >= self._least_gain_tokens(view)
        if as_it_is.fits and not may_gain:
            return self._with_proposal(as_it_is, view, None)
        if self.outline.tail is None:
            return replace(as_it_is, needs_tail=True)
        proposal = zone_that_pays(self._zoning(view)) if may_gain else None
        return self._with_proposal(as_it_is if as_it_is.fits else self._trimmed(view, over), view, proposal)

    def compact_now(self) -> Plan:
        """Every chunk is shown, and whatever lies before the buffer zone is to be summarized."""
        view = self._views(self._unfolded_limit_tokens)[-1]
        as_it_is = self._plan_of(view, Note("compaction_asked_for", {"tokens": self.budget.calibrated(view.tokens)}))
        if self.outline.tail is None and view.boundary_seq < self.outline.next_seq:
            return replace(as_it_is, needs_tail=True)
        proposal = zone_before_the_buffer(self._zoning(view))
        return self._with_proposal(as_it_is if as_it_is.fits else self._trimmed(view, *as_it_is.notes), view, proposal)

    def with_fold(self, chosen: Plan, view: _View) -> Plan:
        """The plan, asking for a fold where the chunks of its view weigh too much."""
        folding = Folding(
            shown=self._shown(view),
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

    def _views(self, limit_tokens: int) -> list[_View]:
        """The view after each number of chunks, fewest first, folded where its chunks weigh more than a limit."""
        outline, chunks = self.outline, self.outline.chunks
        frame = frame_tokens(self.count) if chunks else 0
        views = [_View(0, 0, None, outline.instructions_tokens + outline.log_tokens)]
        totals = totals_by_end(chunks)
        for shown, chunk in enumerate(chunks, start=1):
            fold = fold_at(outline.folds, totals, chunk.to_seq, limit_tokens)
            sections = totals[chunk.to_seq] - (totals[fold.to_seq] - fold.tokens if fold else 0)
            anchor = None if chunk.anchor_seq is None else Anchor(chunk.anchor_seq, chunk.anchor_tokens)
            verbatim = outline.log_tokens - chunk.tokens_total + (anchor.tokens if anchor else 0)
            tokens = outline.instructions_tokens + frame + sections + verbatim
            views.append(_View(shown, chunk.to_seq, anchor, tokens, fold))
        return views

    @property
    def _unfolded_limit_tokens(self) -> int:
        """What chunks may weigh before their folds stand for them: well below where a fold is made, so that a
        calibration that moves a little does not unfold it again."""
        return self.budget.raw(int(self.budget.window * self.policy.fold_ratio * UNFOLDED_SHARE))

    def _plan_of(self, view: _View, *notes: Note) -> Plan:
        shown = self._shown(view)
        return Plan(
            status=_status(shown, changed=False),
            chunks=shown,
            boundary_seq=view.boundary_seq,
            anchor_seq=view.anchor.seq if view.anchor else None,
            prompt_tokens=view.tokens,
            fits=self.budget.calibrated(view.tokens) <= self.budget.hard,
            notes=notes,
        )

    def _trimmed(self, view: _View, *notes: Note) -> Plan:
        scene = Scene(
            instructions_tokens=self.outline.instructions_tokens,
            tail=tail_of(self.outline),
            limit_tokens=self.budget.raw(self.budget.hard),
            count=self.count,
            last_boundary_seq=self.outline.last_boundary_seq,
            regrow_tokens=self.budget.raw(int(self.budget.window * self.policy.regrow_ratio)),
        )
        draft = trim(Draft(scene, self._shown(view), view.boundary_seq, view.anchor, notes=notes))
        if not draft.fits:
            draft = self._why_it_does_not_fit(draft)
        return Plan(
            status=_status(draft.chunks, changed=bool(draft.replaced or draft.dropped)),
            chunks=draft.chunks,
            boundary_seq=draft.boundary_seq,
            anchor_seq=draft.anchor.seq if draft.anchor else None,
            prompt_tokens=draft.tokens,
            fits=draft.fits,
            replaced={seq: shortened.message for seq, shortened in sorted(draft.replaced.items())},
            dropped=draft.dropped,
            notes=draft.notes,
        )

    def _why_it_does_not_fit(self, draft: Draft) -> Draft:
        return draft.noted(
            "does_not_fit",
            instructions_tokens=self.budget.calibrated(self.outline.instructions_tokens),
            newest_message_tokens=self.budget.calibrated(draft.verbatim_tokens),
            notice_tokens=self.budget.calibrated(draft.summary_tokens),
            limit_tokens=self.budget.hard,
        )

    def _with_proposal(self, chosen: Plan, view: _View, proposal: Proposal | None) -> Plan:
        if proposal is None:
            asked = self.summarize != "never"
            return self.with_fold(_noted(chosen, Note("nothing_to_gain")) if asked else chosen, view)
        facts = {
            "ranges": len(proposal.ranges),
            "zone_tokens": proposal.zone_tokens,
            "kept_tokens": proposal.kept_tokens,
            "expected_tokens": proposal.after_tokens,
        }
        needed = replace(chosen, to_summarize=proposal.ranges)
        return self.with_fold(_noted(needed, Note("compaction_needed", facts)), view)

    def _zoning(self, view: _View) -> Zoning:
        return Zoning(
            outline=self.outline,
            tail=tail_of(self.outline),
            shown=self._shown(view),
            view_tokens=view.tokens,
            budget=self.budget,
            policy=self.policy,
            count=self.count,
            summarizer_input_tokens=self.budget.raw(self.summarizer_input_tokens),
        )

    def _log_tokens_after(self, view: _View) -> int:
        chunks = self.outline.chunks[: view.chunk_count]
        return self.outline.log_tokens - (chunks[-1].tokens_total if chunks else 0)

    def _least_gain_tokens(self, view: _View) -> int:
        """What a compaction must remove at least: the gain that is asked for and the section that it adds."""
        return int(self.policy.min_gain_ratio * view.tokens) + empty_section_tokens(self.count)

    def _shown(self, view: _View) -> tuple[Chunk, ...]:
        return shown_at(self.outline.chunks, view.fold, view.chunk_count)


def _status(shown: tuple[Chunk, ...], *, changed: bool) -> Status:
    if changed or (shown and all(chunk.kind == "mechanical" for chunk in shown)):
        return "trimmed"
    return "summarized" if shown else "full"


def _noted(chosen: Plan, note: Note) -> Plan:
    return replace(chosen, notes=(*chosen.notes, note))
