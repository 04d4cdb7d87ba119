"""Answers requests that ask for a compaction and for no answer.

The conversation is compacted, the request's messages are stored without an answer, and the client gets a capsule. There
is always a capsule, however little there is to compact."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

from msgspec.structs import replace

from app.context.plan.outline import make_last_view
from app.dialects.answer_format import NewCompaction
from app.errors import StoreUnavailable, drop_tracebacks
from app.pipeline.compact.capsule_builder import CapsuleBuilder
from app.pipeline.persist.turn_writer import TurnWriter
from app.pipeline.respond.context_status import ContextReport, build_context_report, log_and_trace_report
from app.pipeline.turn.answer_types import WholeAnswer
from app.pipeline.turn.last_view_and_calibration import LAST_VIEWS, add_last_view, read_last_view
from app.pipeline.turn.resolved_request import mark_unstored
from app.pipeline.turn.turn import Turn, View


@dataclass(frozen=True, slots=True)
class LoneCompactions:
    """Ends requests that get no answer, after the compaction."""

    turn_writer: TurnWriter
    capsule_builder: CapsuleBuilder

    async def answer_whole(self, turn: Turn, view: View, held_leases: AsyncExitStack) -> WholeAnswer:
        """Returns the answer of a turn. Releases its leases.

        Args:
            view: the view after the compaction.

        Raises:
            GatewayError: the messages of the request cannot be stored.
        """
        request = turn.request
        assert request.compaction.capsule_format is not None
        compaction, report = await self._finish(turn, view)
        await held_leases.aclose()
        body = request.compaction.capsule_format.render_whole_compaction(compaction, report.render_all_fields())
        return WholeAnswer(body, report.build_headers(request.request_id))

    async def render_end(self, turn: Turn, view: View, held_leases: AsyncExitStack) -> bytes:
        """Returns the last frames of a streamed answer. Arguments and exceptions as of `answer_whole`."""
        request = turn.request
        assert request.compaction.capsule_format is not None
        compaction, report = await self._finish(turn, view)
        if request.on_answer is not None:
            await request.on_answer(None)
        await held_leases.aclose()
        return request.compaction.capsule_format.render_compaction_end(compaction, report.render_all_fields())

    async def _finish(self, turn: Turn, view: View) -> tuple[NewCompaction, ContextReport]:
        """Stores the question and the view after the compaction. Returns the compaction, and the turn's report."""
        resolved_request = turn.resolved_request
        conversation, window = resolved_request.conversation, view.budget.window
        # A view that a client asked for is not undone, even if the log would fit again.
        last_view = make_last_view(
            view.plan,
            read_last_view(conversation.state, turn.policy, window),
            was_requested=bool(view.plan.summaries),
        )
        last_view = resolved_request.shown.client_versions.recount_view_for_originals(last_view)
        views = add_last_view(conversation.state, turn.policy, window, last_view)
        conversation = replace(
            conversation,
            state={**conversation.state, LAST_VIEWS: views} if views else conversation.state,
            chunk_count=max(conversation.chunk_count, len(view.outline.summaries)),
        )
        try:
            resolved_request = await self.turn_writer.store_compacted_question(
                replace(resolved_request, conversation=conversation)
            )
        except StoreUnavailable as unavailable:
            if resolved_request.storage.needs_store:
                raise
            drop_tracebacks(unavailable)
            resolved_request = mark_unstored(resolved_request)
        turn = replace(turn, resolved_request=resolved_request)
        report = build_context_report(turn, view)
        log_and_trace_report(turn.request, report)
        return await self.capsule_builder.build(turn, view), report
