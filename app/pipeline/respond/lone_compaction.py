"""Answers requests that ask for a compaction and for no answer.

The conversation is compacted, the request's messages are stored without an answer, and the client gets a capsule. There
is always a capsule, however little there is to compact."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from typing import Any

from msgspec.structs import replace

from app.context.plan.outline import make_last_view
from app.dialects.answer_format import LoneCompaction
from app.dialects.usage import NO_USAGE
from app.errors import GatewayError, StoreUnavailable, drop_tracebacks
from app.observability.request_facts import record_error
from app.pipeline.compact.capsule_builder import CapsuleBuilder
from app.pipeline.compact.turn_compaction import TurnCompactionTask, TurnCompactor, must_compact
from app.pipeline.persist.turn_writer import TurnWriter
from app.pipeline.resolve.resolved_request import mark_unstored
from app.pipeline.respond.answer_types import Answer, StreamedAnswer, WholeAnswer
from app.pipeline.respond.response_delivery import build_compaction_status, build_context_report
from app.pipeline.respond.turn_telemetry import log_and_trace_report
from app.pipeline.turn import Turn, View
from app.pipeline.view.last_view_and_calibration import LAST_VIEWS, add_last_view, read_last_view


def build_start_event(view: View) -> dict[str, Any]:
    """Builds the progress event that a compaction has started."""
    return {
        "type": "compaction_started",
        "input_tokens": view.tokens_before_compaction,
        "context_window": view.budget.window,
    }


@dataclasses.dataclass(frozen=True, slots=True)
class LoneCompactions:
    """Answers requests with `compacts_only`."""

    turn_compactor: TurnCompactor
    turn_writer: TurnWriter
    capsule_builder: CapsuleBuilder
    unix_seconds: Callable[[], float]
    heartbeat_seconds: float

    async def answer(self, turn: Turn, view: View, held_leases: AsyncExitStack) -> Answer:
        """Compacts the conversation of a turn, and answers with its capsule.

        Args:
            view: the view of the turn; its plan names the ranges to summarize.
            held_leases: the leases of the turn; released with the answer.

        Raises:
            GatewayError: as `Pipeline.answer`.
        """
        request = turn.request
        compaction = self.turn_compactor.start_compaction(turn, view) if must_compact(turn, view) else None
        if request.stream:
            headers = build_context_report(turn, view).build_headers(request.request_id, is_summarizing=True)
            return StreamedAnswer(headers, self._stream(turn, view, compaction, held_leases))
        assert request.capsule_format is not None
        if compaction is not None:
            view = await compaction.wait_for_view()
        turn, result = await self._finish(turn, view)
        await held_leases.aclose()
        headers = build_context_report(turn, view).build_headers(request.request_id)
        return WholeAnswer(request.capsule_format.render_whole_compaction(result), headers)

    async def _stream(
        self, turn: Turn, view: View, compaction: TurnCompactionTask | None, held_leases: AsyncExitStack
    ) -> AsyncGenerator[bytes, None]:
        """Streams the progress of a compaction, then its capsule."""
        request, answer_format, capsule_format = turn.request, turn.request.answer_format, turn.request.capsule_format
        assert capsule_format is not None
        answer_format.begin_progress(
            completion_id=request.request_id,
            created=int(self.unix_seconds()),
            model=request.model,
            style=request.event_style,
            fields=build_context_report(turn, view).render_status_fields(),
        )
        try:
            yield (
                answer_format.render_progress_start(build_start_event(view)) + capsule_format.render_compaction_begin()
            )
            if compaction is not None:
                while not await compaction.finishes_within(self.heartbeat_seconds):
                    yield answer_format.render_heartbeat()
                view = await compaction.wait_for_view()
            _, result = await self._finish(turn, view)
            if request.on_answer is not None:
                await request.on_answer(None)
        except GatewayError as error:
            await held_leases.aclose()
            record_error(error)
            drop_tracebacks(error)
            yield answer_format.render_error_frames(error)
            return
        except BaseException:
            await held_leases.aclose()
            raise
        await held_leases.aclose()
        yield capsule_format.render_compaction_end(result)

    async def _finish(self, turn: Turn, view: View) -> tuple[Turn, LoneCompaction]:
        """Stores the question and the view after the compaction, and returns what the client gets."""
        resolved_request = turn.resolved_request
        conversation, window = resolved_request.conversation, view.budget.window
        # A view that a client asked for is not undone, even if the log would fit again.
        last_view = make_last_view(
            view.plan,
            read_last_view(conversation.state, turn.policy, window),
            was_requested=bool(view.plan.summaries),
        )
        last_view = resolved_request.client_versions.recount_view_for_originals(last_view)
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
            if resolved_request.needs_store:
                raise
            drop_tracebacks(unavailable)
            resolved_request = mark_unstored(resolved_request)
        turn = replace(turn, resolved_request=resolved_request)
        report = build_context_report(turn, view)
        log_and_trace_report(turn.request, report)
        capsule, said = await self.capsule_builder.build(turn, view)
        usage = build_compaction_status(view).get("usage") or NO_USAGE
        return turn, LoneCompaction(capsule, usage, said, report.render_all_fields())
