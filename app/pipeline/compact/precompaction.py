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
from app.conversation.messages import Chunk, Conversation
from app.errors import GatewayError
from app.observability.tracing import current_span
from app.pipeline.background_tasks import Tasks
from app.pipeline.compact.turn_compaction import Compacting
from app.pipeline.view.quotations import Finding
from app.pipeline.view.view_builder import Turn, View, Views

log = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 16
"""Conversations that are prepared at the same time, in one process; what comes on top waits for its next answer."""
MOST_ROUNDS: Final = 4
"""Of summaries and folds, for one answer."""
GROWTH_FACTOR, LEAST_GROWTH_SHARE = 2, 0.05
"""A turn may be this many times as long as the last one, or take this share of the window, and still find its summary
made."""


class Preparing:
    """Prepares conversations for their next turns."""

    def __init__(
        self, *, views: Views, compacting: Compacting, compactor: Compactor, finding: Finding, tasks: Tasks
    ) -> None:
        self._views = views
        self._compacting = compacting
        self._compactor = compactor
        self._finding = finding
        self._tasks = tasks
        self._at_work: dict[str, asyncio.Task[None]] = {}

    def after(self, turn: Turn, view: View, conversation: Conversation) -> None:
        """Start what an answered turn calls for, if anything.

        Args:
            conversation: as it stands with the answer.
        """
        place = turn.place
        if not turn.policy.summarizes or not place.keeps or place.degraded or turn.request.summarize == "never":
            return
        if _slides(view):
            return
        if conversation.id in self._at_work or len(self._at_work) >= MOST_AT_ONCE:
            return
        is_near = _is_near(view, place.asked_tokens, conversation.head_tokens_total - place.log_tokens)
        chunks = view.plan.chunks
        if not is_near and not (chunks and any(chunk.kind == "mechanical" for chunk in chunks)):
            return
        task = self._tasks.spawn(self._prepare(turn, view, conversation, is_near=is_near))
        self._at_work[conversation.id] = task
        task.add_done_callback(lambda _: self._at_work.pop(conversation.id, None))

    async def aclose(self) -> None:
        """Leave off. Whoever needs a summary next asks for it then."""
        for task in list(self._at_work.values()):
            task.cancel()
        if self._at_work:
            await asyncio.wait(list(self._at_work.values()))

    async def _prepare(self, turn: Turn, view: View, conversation: Conversation, *, is_near: bool) -> None:
        """In a trace of its own: the request whose answer calls for this may be over long before it is."""
        with current_span().follower("prepare"):
            await self._all(turn, view, conversation, is_near=is_near)

    async def _all(self, turn: Turn, view: View, conversation: Conversation, *, is_near: bool) -> None:
        try:
            place = await self._views.answered(turn.place, conversation)
            turn = replace(turn, place=place)
            if is_near:
                await self._make_ahead(turn, view)
            await self._replace_mechanical(turn, view)
        except GatewayError as error:
            log.info("nothing could be prepared for the next turn: %s", error.message)

    async def _make_ahead(self, turn: Turn, view: View) -> None:
        """The summaries that the line will call for, and folds of them, while it is not crossed yet."""
        made: list[Chunk] = []
        for _ in range(MOST_ROUNDS):
            ahead = await self._views.make(turn, view.budget, summarize="ahead", more_chunks=made)
            if not ahead.plan.to_summarize:
                break
            result = await self._compactor.prepare(await self._compacting.job(turn, ahead))
            if not result.chunks:
                break
            made.extend(result.chunks)
        if made and turn.policy.recalls != "off":
            await self._finding.catch_up(turn.place.conversation, max(chunk.to_seq for chunk in made))

    async def _replace_mechanical(self, turn: Turn, view: View) -> None:
        """Ask the model again for the oldest range that had to be told without one."""
        told = next((chunk for chunk in view.plan.chunks if chunk.kind == "mechanical"), None)
        if told is not None and (job := await self._compacting.job_again(turn, view, told)) is not None:
            await self._compactor.refresh(job)


def _slides(view: View) -> bool:
    """Whether the client leaves out the oldest messages itself and all that it sends is shown. It will leave out more
    with the next turn: a summary of that would be made for nothing."""
    return 0 in view.outline.omitted and view.plan.is_untouched


def _is_near(view: View, asked_tokens: int, answer_tokens: int) -> bool:
    """Whether the next turns may cross the line: past the policy's share, and near enough by how fast the log grows.

    A summary that is made as late as possible covers most.
    """
    budget, plan = view.budget, view.plan
    quoted_tokens = sum(one.tokens for one in plan.quotations) if plan.quotations else 0
    tokens = budget.calibrated(plan.prompt_tokens - quoted_tokens + answer_tokens)
    line = budget.line(folded=bool(plan.chunks))
    if tokens <= budget.prepare_below(line):
        return False
    growth = GROWTH_FACTOR * budget.calibrated(asked_tokens + answer_tokens)
    return tokens + max(growth, int(budget.window * LEAST_GROWTH_SHARE)) > line
