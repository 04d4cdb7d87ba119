"""Makes the next summary in the background after an answer, so that the turn that needs it does not wait.

The summary is stored like any other. No view uses it before the compaction threshold is passed, because a view takes
the fewest summaries that do. One task runs for each conversation, for at most `MAX_CONVERSATIONS`; all end with the
process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from app.compaction.compactor import Compactor
from app.context.plan.budget import UNREACHABLE_TOKENS
from app.conversation.conversation_types import Conversation, Summary
from app.errors import GatewayError
from app.observability.request_record import leave_request_record
from app.observability.tracing import run_in_linked_trace
from app.pipeline.compact.turn_compaction import TurnCompactor, has_folds_to_precompact, may_compact
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.turn import Turn, View
from app.pipeline.view.message_search import MessageSearch
from app.pipeline.view.view_builder import ViewBuilder
from app.store.contract.conversations import WriteConflict

log = logging.getLogger(__name__)

MAX_CONVERSATIONS: Final = 16
"""How many conversations one process precompacts at a time. Any other gets its next chance after its next answer."""
MAX_PASSES: Final = 4
"""How many plans with summaries or folds to make may follow one answer."""
GROWTH_FACTOR, MIN_GROWTH_SHARE = 2, 0.05
"""The next request is expected to bring up to this many times the tokens that the last one brought, and at least this
share of the window (decision 47)."""


@dataclass(eq=False, kw_only=True)
class Precompactor:
    """Precompacts conversations for their next turns."""

    view_builder: ViewBuilder
    turn_compactor: TurnCompactor
    compactor: Compactor
    message_search: MessageSearch
    tasks: BackgroundTasks
    _running_tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)

    def start_due_summaries(self, turn: Turn, view: View) -> None:
        """Starts to write the summaries of a view's plan, while the turn is answered without them.

        A new conversation or branch waits for its answer: if there is none, the conversation is erased.
        """
        conversation = turn.resolved_request.conversation
        if not may_compact(turn) or turn.resolved_request.creates_conversation or not self._has_room_for(conversation):
            return
        self._start(conversation, self._write_summaries(turn, view))

    def start_if_needed(self, turn: Turn, view: View, conversation: Conversation) -> None:
        """Starts a precompaction after an answered turn, if the next request may need a summary.

        Also starts if the view shows a mechanical summary, which a model should replace, or lacks a fold.

        Args:
            turn: the answered turn.
            view: the view of that turn.
            conversation: the conversation with the answer.
        """
        resolved_request = turn.resolved_request
        if (
            not turn.policy.may_summarize
            or not resolved_request.storage.is_stored
            or resolved_request.storage.is_degraded
            or turn.request.compaction.summarize == "never"
        ):
            return
        # The client leaves out the oldest messages itself, and more with each turn. If it does not name the
        # conversation, no summary of what it leaves out is shown to it; otherwise none is needed while the view shows
        # all that the client sends.
        if 0 in view.outline.omitted_seqs and (view.plan.shows_log_unchanged or not resolved_request.is_named):
            return
        if not self._has_room_for(conversation):
            return
        is_near = has_folds_to_precompact(view) or _is_near_compaction(
            view, resolved_request.new_messages_tokens, conversation.head_tokens_total - resolved_request.log_tokens
        )
        summaries = view.plan.summaries
        if not is_near and not (summaries and any(summary.kind == "mechanical" for summary in summaries)):
            return
        self._start(conversation, self._precompact(turn, view, conversation, is_near=is_near))

    def _has_room_for(self, conversation: Conversation) -> bool:
        return conversation.id not in self._running_tasks and len(self._running_tasks) < MAX_CONVERSATIONS

    def _start(self, conversation: Conversation, work: Coroutine[Any, Any, None]) -> None:
        task = self.tasks.spawn(self._run_traced(work))
        self._running_tasks[conversation.id] = task
        task.add_done_callback(lambda _: self._running_tasks.pop(conversation.id, None))

    async def aclose(self) -> None:
        """Cancels all precompactions. The next turn that needs a summary makes it itself."""
        for task in list(self._running_tasks.values()):
            task.cancel()
        if self._running_tasks:
            await asyncio.wait(list(self._running_tasks.values()))

    async def _run_traced(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs in a trace of its own, because the request may end long before the precompaction does."""
        leave_request_record()
        with run_in_linked_trace("prepare"):
            try:
                await work
            # Nobody waits for this work. The next turn compacts for itself.
            except GatewayError as error:
                log.info("could not make a summary ahead of the next turn: %s", error.message)
            except WriteConflict:
                log.info("a mechanical summary was changed or deleted before a model could replace it")

    async def _write_summaries(self, turn: Turn, view: View) -> None:
        """Makes the summaries of a view's plan, and the fold that these need, so that the beginning of the view changes
        once for both."""
        result = await self.compactor.compact(await self.turn_compactor.build_job(turn, view), is_ahead=True)
        await self._index_summarized_messages(turn, result.summaries)
        if result.summaries:
            await self._precompact_ranges(turn, view, result.summaries)

    async def _precompact(self, turn: Turn, view: View, conversation: Conversation, *, is_near: bool) -> None:
        resolved_request = await self.view_builder.advance_past_answer(turn.resolved_request, conversation)
        turn = replace(turn, resolved_request=resolved_request)
        if is_near:
            await self._precompact_ranges(turn, view)
        await self._replace_mechanical_summary(turn, view)

    async def _precompact_ranges(self, turn: Turn, view: View, made_summaries: Sequence[Summary] = ()) -> None:
        """Makes the summaries and folds that a view above the threshold will need.

        Args:
            made_summaries: summaries that were made for the turn already.
        """
        new_summaries = [*made_summaries]
        for _ in range(MAX_PASSES):
            next_view = await self.view_builder.build_view(
                turn, view.budget, summarize="ahead", new_summaries=new_summaries
            )
            if not next_view.plan.to_summarize:
                break
            result = await self.compactor.compact(await self.turn_compactor.build_job(turn, next_view), is_ahead=True)
            if not result.summaries:
                break
            new_summaries.extend(result.summaries)
        await self._index_summarized_messages(turn, new_summaries)

    async def _index_summarized_messages(self, turn: Turn, new_summaries: Sequence[Summary]) -> None:
        if new_summaries and turn.policy.recall_mode != "off":
            await self.message_search.index_messages(
                turn.resolved_request.conversation, max(summary.to_seq for summary in new_summaries)
            )

    async def _replace_mechanical_summary(self, turn: Turn, view: View) -> None:
        """Writes the oldest mechanical summary of the view again, by a model. The new text is its next revision."""
        mechanical = next((summary for summary in view.plan.summaries if summary.kind == "mechanical"), None)
        if mechanical is None:
            return
        folded = [summary for summary in view.outline.summaries if summary.id in mechanical.folds]
        if len(folded) == len(mechanical.folds):
            await self.turn_compactor.rewrite_summary(turn, view, mechanical, folded)


def _is_near_compaction(view: View, asked_tokens: int, answer_tokens: int) -> bool:
    """Whether the next request may pass the compaction threshold, judged by what the last one brought (decision 47).

    A summary covers most if it is made as late as possible. The answer to the next request does not count: if that
    answer brings the view near the threshold, the summary is made after it.

    Args:
        view: the view of the last turn.
        asked_tokens: raw tokens of its new messages.
        answer_tokens: raw tokens of its answer.
    """
    budget, plan = view.budget, view.plan
    if budget.precompaction_threshold == UNREACHABLE_TOKENS:
        return False
    # The view had to do without messages for which no summary stands. It may be short because of that.
    if plan.dropped_message_count:
        return True
    quoted_tokens = sum(quotation.tokens for quotation in plan.quotations) if plan.quotations else 0
    tokens = budget.calibrate_tokens(plan.prompt_tokens - quoted_tokens + answer_tokens)
    threshold = budget.compute_threshold(has_summaries=bool(plan.summaries))
    if tokens <= budget.compute_precompaction_threshold(threshold):
        return False
    growth = GROWTH_FACTOR * budget.calibrate_tokens(asked_tokens)
    return tokens + max(growth, int(budget.window * MIN_GROWTH_SHARE)) > threshold
