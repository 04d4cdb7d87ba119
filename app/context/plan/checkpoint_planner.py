"""Plans under policy `checkpoint`: tool results are shortened first; when messages still overflow, one summary of
the whole log replaces them.

Each checkpoint is written from the whole log, not from the checkpoint before it. A view shows one checkpoint, in front
of the newest turns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from app.context.plan.budget import (
    SUMMARY_INSTRUCTION_TOKENS,
    compute_checkpoint_trigger_tokens,
    compute_summary_token_limit,
)
from app.context.plan.log_rounds import LogTail, find_round_start
from app.context.plan.outline import LOG_START, Plan, PlanNote, SummarizeMode, SummaryRange
from app.context.plan.view_candidates import ViewCandidate
from app.context.stages.draft import Draft
from app.context.stages.mask_results import mask_read_results_fully
from app.context.stages.shortening_planner import ShorteningPlanner
from app.context.view.view_rendering import count_empty_summary_tokens, count_summary_frame_tokens

GENTLE_STAGES: Final = ("mask_results", "cap_messages", "clear_tool_results", "clear_reasoning")
"""The stages that lose least. They run before a checkpoint is written; the other stages run only if no checkpoint
helps."""


@dataclass(frozen=True)
class CheckpointPlanner(ShorteningPlanner):
    """The planner of the policy. All summaries in `Outline.summaries` are checkpoints: each begins at the log's start,
    and they are ordered by their ends.
    """

    through_seq: int | None = None
    """Where a requested checkpoint ends; None: the policy decides."""

    def plan(self, summarize: SummarizeMode) -> Plan:
        is_requested = summarize in {"now", "ahead"}
        # A checkpoint on request or ahead of need starts from the view with the newest checkpoint. Otherwise the view
        # with the fewest summarized messages is best.
        view = None if is_requested else self._find_fitting_view()
        view = view or self.candidates.list_with_needed_folds()[-1]
        if is_requested or not view.summaries:
            return self._plan_from_view(view, summarize)
        # Before a first checkpoint is shown, masking alone may keep the whole log within the limit, and loses less.
        whole_plan, tail = self._plan_masked_log(), self.outline.tail
        if whole_plan is not None:
            return whole_plan
        # Either the messages must still be loaded (the plan then asks for them), or the right ones are loaded already.
        if tail is None or self.has_loaded_tail(view):
            return self._plan_from_view(view, summarize)
        # `_plan_masked_log` loaded the whole log, and it does not fit. The view needs only the messages after its
        # boundary.
        behind = tail[view.boundary.to_seq - (self.outline.tail_start or LOG_START).to_seq :]
        outline = replace(self.outline, tail=behind, tail_start=view.boundary)
        return dataclasses.replace(self, outline=outline)._plan_from_view(view, summarize)

    def _plan_from_view(self, view: ViewCandidate, summarize: SummarizeMode) -> Plan:
        is_requested = summarize in {"now", "ahead"}
        fits = PlanNote("view_fits", {"tokens": self.budget.calibrate_tokens(view.tokens), "limit": self.budget.limit})
        if not self._is_shortening_due(view, summarize):
            return self.build_unchanged_plan(view, fits)
        if not self.has_loaded_tail(view):
            return replace(self.build_unchanged_plan(view, fits), needs_tail=view.boundary)
        whole = self.build_draft(view)
        decided, left = self._shorten_draft(
            whole if whole.fits_limit else self.resume_last_cut(view), is_requested=is_requested
        )
        is_cut = decided is not left or left.boundary != whole.boundary
        chosen = self.build_plan(decided, is_cut_to_fit=is_cut)
        # A checkpoint is written ahead only if masking does not make room: it costs a call, masking does not.
        if summarize == "never" or (summarize == "ahead" and self._is_masking_enough(whole)):
            return chosen
        # A view that was cut looks short. Whether a checkpoint is needed is judged by the view before the cut.
        return self._add_checkpoint_if_due(chosen, left if left.boundary == whole.boundary else whole, summarize)

    def _is_masking_enough(self, draft: Draft) -> bool:
        """Says whether masking the results of a view brings it under the precompaction threshold."""
        return self.budget.calibrate_tokens(mask_read_results_fully(draft).tokens) <= self._precompaction_threshold

    def _plan_masked_log(self) -> Plan | None:
        """Plans the whole log with its results masked, in place of the first checkpoint.

        Returns None if that does not fit, if the trigger is reached, or if a view with a checkpoint was sent before.
        """
        last, view = self.outline.last_view, self.candidates.build_whole_log_view()
        if last.boundary.to_seq or last.asked_seq or self._reaches_token_trigger(view.tokens):
            return None
        if not self.has_loaded_tail(view):
            return replace(self.build_unchanged_plan(view), needs_tail=view.boundary)
        _, left = self._shorten_draft(self.build_draft(view), is_requested=False)
        return self.build_plan(left) if left.fits_limit else None

    def _is_shortening_due(self, view: ViewCandidate, summarize: SummarizeMode) -> bool:
        if summarize == "ahead":
            return self.budget.calibrate_tokens(view.tokens) > self._precompaction_threshold
        reached = summarize == "auto" and self._reaches_token_trigger(view.tokens)
        return summarize == "now" or reached or self.must_shorten(view)

    def _find_fitting_view(self) -> ViewCandidate | None:
        """Returns the first view, fewest messages summarized, that fits and does not reach the trigger.

        A view whose boundary is before the last view's boundary is chosen only if it leaves much room: going back
        breaks the prompt cache.
        """
        last = self.outline.last_view
        for view in self.candidates.list_with_needed_folds():
            tokens = self.budget.calibrate_tokens(view.tokens)
            is_short = tokens <= self.budget.limit and not self._reaches_token_trigger(view.tokens)
            goes_back = view.boundary.to_seq < last.boundary.to_seq
            # A compaction that a client asked for is never undone, even if the log would fit again.
            if view.boundary.to_seq < last.asked_seq or not is_short:
                continue
            if not goes_back or tokens < self.budget.window * self.policy.cut.regrow_ratio:
                return view
        return None

    def _shorten_draft(self, before: Draft, *, is_requested: bool) -> tuple[Draft, Draft]:
        """Returns two drafts: the view to send until there is a checkpoint, and the view that decides whether a
        checkpoint is needed.

        The second one is the result of the gentle stages if they pay. The first one has the other stages, too, if it
        would not fit otherwise.
        """
        view = ViewCandidate(before.summaries, before.boundary, before.tokens)
        if before.fits_limit and (is_requested or not self.must_shorten(view)):
            return before, before
        gentle = [name for name in self.policy.stage_names if name in GENTLE_STAGES]
        draft = before if is_requested else self.apply_policy_stages(before, gentle)
        # Edits break the prompt cache. They count only if they free enough, if a stage's own rule is due, or if they
        # alone make the view fit and spare the whole log a cut.
        pays = self.pays_for_cache(before, draft, view)
        is_saved = draft.fits_limit and not before.fits_limit and not draft.boundary_seq
        left = draft if pays or is_saved else before
        if left.fits_limit:
            return left, left
        rest = [name for name in self.policy.stage_names if name not in GENTLE_STAGES]
        final = self.apply_policy_stages(draft, rest)
        return (final if final.fits_limit else self.trim_to_fit(final)), left

    def _add_checkpoint_if_due(self, decided: Plan, draft: Draft, summarize: SummarizeMode) -> Plan:
        """Adds a checkpoint to the plan if the trigger is reached and the checkpoint gains enough."""
        tail = draft.context.tail
        cut = (
            self._choose_checkpoint_end(tail, is_ahead=summarize == "ahead")
            if self.through_seq is None
            else self.through_seq
        )
        # Nothing lies between the last checkpoint and the turns that stay verbatim.
        if cut is None or cut <= tail.start_seq:
            return replace(decided, notes=(*decided.notes, PlanNote("nothing_to_gain")))
        overflow = self._count_overflowing_messages(draft)
        if summarize == "auto" and not self._is_triggered(draft, overflow):
            return replace(decided, notes=(*decided.notes, PlanNote("not_triggered", {"messages": overflow})))
        after = self._estimate_tokens_after(draft, cut)
        facts = {"messages": overflow, "expected_tokens": after, "tokens": draft.tokens}
        if draft.tokens - after < self.policy.compaction.min_gain_ratio * draft.tokens:
            return replace(decided, notes=(*decided.notes, PlanNote("nothing_to_gain", facts)))
        before = self.outline.summaries[-1].id if self.outline.summaries else ""
        wanted = SummaryRange(0, cut, style="checkpoint", base=before)
        return replace(decided, to_summarize=(wanted,), notes=(*decided.notes, PlanNote("compaction_needed", facts)))

    def _choose_checkpoint_end(self, tail: LogTail, *, is_ahead: bool) -> int | None:
        """Returns where a checkpoint ends: before the last `keep_turns` turns and the current one.

        Fewer turns are kept if they would take more than `buffer_max_ratio`. The checkpoint ends inside the current
        turn if that turn is too long by itself. None if no place is possible.
        """
        first_new_seq = self.first_new_seq
        last_seq = find_round_start(tail, first_new_seq)
        allowed = self.budget.compute_raw_tokens(int(self.budget.window * self.policy.verbatim.buffer_max_ratio))
        # Messages before the question open turns of their own: the current turn begins with the first new one.
        openings = [seq for seq in tail.turn_seqs if seq <= last_seq]
        if first_new_seq < tail.end_seq and tail.find_message(last_seq).message.role != "assistant":
            openings = [*(seq for seq in openings if seq < last_seq), last_seq]
        kept = openings[-self.policy.checkpoint_keep_turns - 1 :]
        if is_ahead and tail.ends_with_final_answer:  # the turn that needs it is still to come
            kept = [*kept[1:], *([] if self.policy.checkpoint_keep_turns else [tail.end_seq])]
        # What is new stays whole, and so does a current turn that is a single round: neither counts.
        for seq in kept:
            if tail.count_tokens_from(seq) - tail.count_tokens_from(last_seq) <= allowed:
                return self._find_readable_end(tail, openings, seq, allowed)
        inside = [
            entry.from_seq for entry in tail.rounds[1:] if not openings or last_seq >= entry.from_seq > openings[-1]
        ]
        return next((seq for seq in inside if tail.count_tokens_from(seq) <= allowed), inside[-1] if inside else None)

    def _find_readable_end(self, tail: LogTail, openings: Sequence[int], seq: int, allowed_tokens: int) -> int:
        """Returns where a first checkpoint ends whose call can go on from the prompts that were sent.

        That is `seq`, or the last turn before it at which such a prompt leaves room for instruction and summary. A log
        that has just overflowed fills the window. A checkpoint of all of it would be written from transcripts, which no
        cache holds, in several calls (decision 47). Returns `seq`, too, if the turns from an earlier end on would take
        more than `allowed_tokens`.
        """
        summarizer = self.policy.summarizer
        was_sent_whole = self.outline.new_from_seq > 0 and not self.outline.summaries
        reads_last_prompt = summarizer.model == "same" and summarizer.form != "transcript"
        if not (was_sent_whole and reads_last_prompt and self.policy.checkpoint_keep_turns):
            return seq
        limit = compute_summary_token_limit(self.policy, self.budget.window)
        room = self.budget.compute_raw_tokens(self.budget.window - limit - SUMMARY_INSTRUCTION_TOKENS)
        readable = [
            end
            for end in openings
            if end <= seq and self.outline.instructions_tokens + tail.count_tokens_before(end) <= room
        ]
        return readable[-1] if readable and tail.count_tokens_from(readable[-1]) <= allowed_tokens else seq

    def _count_overflowing_messages(self, draft: Draft) -> int:
        """Returns how many messages do not fit, counted from the newest message back. The checkpoint is to replace
        them.
        """
        tail = draft.context.tail
        room = draft.context.limit_tokens - self.outline.instructions_tokens - draft.summary_tokens
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
        return self._reaches_token_trigger(draft.tokens)

    def _reaches_token_trigger(self, view_tokens: int) -> bool:
        """Says whether a trigger in tokens is reached. It may be reached before anything overflows."""
        trigger = compute_checkpoint_trigger_tokens(self.policy, self.budget.window)
        return trigger is not None and self.budget.calibrate_tokens(view_tokens) >= trigger

    def _estimate_tokens_after(self, draft: Draft, cut: int) -> int:
        scene = draft.context
        summary = self.budget.compute_raw_tokens(
            compute_summary_token_limit(self.policy, self.budget.window)
        ) + count_empty_summary_tokens(self.counter)
        anchor = scene.tail.build_boundary(cut).anchor_tokens
        kept = scene.tail.count_tokens_from(cut) + anchor
        return self.outline.instructions_tokens + count_summary_frame_tokens(self.counter) + summary + kept

    @property
    def _precompaction_threshold(self) -> int:
        """Returns the tokens above which a checkpoint is made ahead; at most the limit, also where the policy switches
        precompaction off.
        """
        return min(self.budget.compute_precompaction_threshold(self.budget.limit), self.budget.limit)
