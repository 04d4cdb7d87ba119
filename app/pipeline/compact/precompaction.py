"""The next summary, made in the background after an answer, so that the turn which needs it does not wait for it.

A summary made ahead is stored like any other and used by nobody before the line is crossed: a view always takes the
fewest summaries that do. Work is bounded in number, one piece for each conversation, and ends with the process.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from msgspec.structs import replace

from app.compaction.compactor import Compactor
from app.conversation.messages import Conversation, Summary
from app.errors import GatewayError
from app.observability.tracing import current_span
from app.pipeline.background_tasks import BackgroundTasks
from app.pipeline.compact.turn_compaction import TurnCompactor
from app.pipeline.view.quotations import MessageSearch
from app.pipeline.view.view_builder import Turn, View, ViewBuilder

log = logging.getLogger(__name__)

MAX_CONVERSATIONS: Final = 16
"""Conversations that are prepared at the same time, in one process; what comes on top waits for its next answer."""
MAX_PASSES: Final = 4
"""Of summaries and folds, for one answer."""
GROWTH_FACTOR, MIN_GROWTH_SHARE = 2, 0.05
"""A turn may be this many times as long as the last one, or take this share of the window, and still find its summary
made."""


class Precompactor:
    """Prepares conversations for their next turns."""

    def __init__(
        self,
        *,
        view_builder: ViewBuilder,
        turn_compactor: TurnCompactor,
        compactor: Compactor,
        message_search: MessageSearch,
        tasks: BackgroundTasks,
    ) -> None:
        self._view_builder = view_builder
        self._turn_compactor = turn_compactor
        self._compactor = compactor
        self._message_search = message_search
        self._tasks = tasks
        self._running_tasks: dict[str, asyncio.Task[None]] = {}

    def start_if_needed(self, turn: Turn, view: View, conversation: Conversation) -> None:
        """Start what an answered turn calls for, if anything.

        Args:
            conversation: as it stands with the answer.
        """
        resolved_request = turn.resolved_request
        if (
            not turn.policy.may_summarize
            or not resolved_request.is_stored
            or resolved_request.is_degraded
            or turn.request.summarize == "never"
        ):
            return
        if _has_client_sliding_window(view):
            return
        if conversation.id in self._running_tasks or len(self._running_tasks) >= MAX_CONVERSATIONS:
            return
        is_near = _is_near_compaction(
            view, resolved_request.new_messages_tokens, conversation.head_tokens_total - resolved_request.log_tokens
        )
        summaries = view.plan.summaries
        if not is_near and not (summaries and any(summary.kind == "mechanical" for summary in summaries)):
            return
        task = self._tasks.spawn(self._run_traced(turn, view, conversation, is_near=is_near))
        self._running_tasks[conversation.id] = task
        task.add_done_callback(lambda _: self._running_tasks.pop(conversation.id, None))

    async def aclose(self) -> None:
        """Leave off. Whoever needs a summary next asks for it then."""
        for task in list(self._running_tasks.values()):
            task.cancel()
        if self._running_tasks:
            await asyncio.wait(list(self._running_tasks.values()))

    async def _run_traced(self, turn: Turn, view: View, conversation: Conversation, *, is_near: bool) -> None:
        """In a trace of its own: the request whose answer calls for this may be over long before it is."""
        with current_span().start_linked_trace("prepare"):
            await self._precompact(turn, view, conversation, is_near=is_near)

    async def _precompact(self, turn: Turn, view: View, conversation: Conversation, *, is_near: bool) -> None:
        try:
            resolved_request = await self._view_builder.advance_past_answer(turn.resolved_request, conversation)
            turn = replace(turn, resolved_request=resolved_request)
            if is_near:
                await self._precompact_ranges(turn, view)
            await self._replace_mechanical_summary(turn, view)
        except GatewayError as error:
            log.info("nothing could be prepared for the next turn: %s", error.message)

    async def _precompact_ranges(self, turn: Turn, view: View) -> None:
        """The summaries that the line will call for, and folds of them, while it is not crossed yet."""
        new_summaries: list[Summary] = []
        for _ in range(MAX_PASSES):
            next_view = await self._view_builder.build_view(
                turn, view.budget, summarize="ahead", new_summaries=new_summaries
            )
            if not next_view.plan.to_summarize:
                break
            result = await self._compactor.precompact(await self._turn_compactor.build_job(turn, next_view))
            if not result.summaries:
                break
            new_summaries.extend(result.summaries)
        if new_summaries and turn.policy.recall_mode != "off":
            await self._message_search.index_messages(
                turn.resolved_request.conversation, max(summary.to_seq for summary in new_summaries)
            )

    async def _replace_mechanical_summary(self, turn: Turn, view: View) -> None:
        """Ask the model again for the oldest range that had to be told without one."""
        mechanical_summary = next((summary for summary in view.plan.summaries if summary.kind == "mechanical"), None)
        if (
            mechanical_summary is not None
            and (job := await self._turn_compactor.build_remake_job(turn, view, mechanical_summary)) is not None
        ):
            await self._compactor.remake_mechanical(job)


def _has_client_sliding_window(view: View) -> bool:
    """Whether the client leaves out the oldest messages itself and all that it sends is shown. It will leave out more
    with the next turn: a summary of that would be made for nothing."""
    return 0 in view.outline.omitted_seqs and view.plan.shows_log_unchanged


def _is_near_compaction(view: View, asked_tokens: int, answer_tokens: int) -> bool:
    """Whether the next turns may cross the line: past the policy's share, and near enough by how fast the log grows.

    A summary that is made as late as possible covers most.
    """
    budget, plan = view.budget, view.plan
    quoted_tokens = sum(quotation.tokens for quotation in plan.quotations) if plan.quotations else 0
    tokens = budget.calibrate_tokens(plan.prompt_tokens - quoted_tokens + answer_tokens)
    threshold = budget.compute_threshold(has_summaries=bool(plan.summaries))
    if tokens <= budget.compute_precompaction_threshold(threshold):
        return False
    growth = GROWTH_FACTOR * budget.calibrate_tokens(asked_tokens + answer_tokens)
    return tokens + max(growth, int(budget.window * MIN_GROWTH_SHARE)) > threshold
