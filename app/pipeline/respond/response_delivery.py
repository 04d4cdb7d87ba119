"""Delivers an answer to the client, whole or as a stream. The turn is finished before the last byte is sent."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from app.dialects.answer_decoding import Answer
from app.dialects.provider_dialects import PROVIDER_DIALECTS
from app.dialects.search_rounds import JoinedEvents
from app.dialects.sse import SseEvent
from app.dialects.stream_relay import RelayOptions, StreamRelay
from app.dialects.usage import read_usage
from app.errors import GatewayError, StoreUnavailable, UpstreamUnavailable, drop_tracebacks
from app.observability.request_record import record_error
from app.pipeline.call.search_tool_loop import SearchToolLoop
from app.pipeline.call.upstream_call import UpstreamAnswer
from app.pipeline.call.upstream_reply import StreamReply, parse_whole_answer, select_forwarded_headers
from app.pipeline.persist.turn_writer import TurnWriter
from app.pipeline.respond.answer_learning import describe_provider_truncation
from app.pipeline.respond.context_status import ContextReport, build_context_report, log_and_trace_report
from app.pipeline.respond.turn_end import TurnEnd, select_planned_prompt_usage
from app.pipeline.respond.turn_finisher import TurnFinisher
from app.pipeline.turn.answer_types import WholeAnswer
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.turn import SearchToolSession, Turn, View
from app.upstream.provider_contract import ModelDeployment
from app.upstream.routing.router import BufferedReply

UNSTORED_ANSWER: Final = "The answer could not be stored."

log = logging.getLogger(__name__)

FinishTurn = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseDelivery:
    """Delivers answers. A turn is finished even if its client disconnects, so that the next request can continue it."""

    turn_finisher: TurnFinisher
    turn_writer: TurnWriter
    search_tool_loop: SearchToolLoop
    tasks: BackgroundTasks

    async def deliver_whole_answer(
        self, turn: Turn, view: View, upstream_answer: UpstreamAnswer, leases: AsyncExitStack
    ) -> WholeAnswer:
        """Finishes the turn of a whole answer and adds our fields to the answer. Releases the leases of the turn."""
        # It runs to its end even if the client leaves (decision 7).
        return await self.tasks.run_shielded(self._deliver_whole_answer(turn, view, upstream_answer, leases.pop_all()))

    async def _deliver_whole_answer(
        self, turn: Turn, view: View, upstream_answer: UpstreamAnswer, leases: AsyncExitStack
    ) -> WholeAnswer:
        async with leases:
            answer_format = turn.request.delivery.answer_format
            answer, reply = await self._read_whole_answer(turn, upstream_answer)
            answer, body = answer_format.translate_whole_answer(answer, reply.body)
            answer.id = answer_format.answer_id or answer.id
            report = build_context_report(turn, upstream_answer.sent_view)
            message = answer_format.build_answer_message(answer)
            end = TurnEnd(turn, view, upstream_answer, report, answer, message)
            if truncation_warning := describe_provider_truncation(report, end.planned_prompt_usage):
                end = replace(end, report=report.add_warning(truncation_warning))
            log_and_trace_report(turn.request, end.report)
            try:
                conversation = await self.turn_finisher.finish(end)
                if end.report.conversation_id not in (None, conversation.id):
                    end = replace(end, report=replace(end.report, conversation_id=conversation.id))
            except StoreUnavailable as unavailable:
                if turn.resolved_request.storage.needs_store:
                    raise
                drop_tracebacks(unavailable)
                end = replace(end, report=end.report.add_warning(UNSTORED_ANSWER, status="degraded"))
        headers = {
            **select_forwarded_headers(upstream_answer.reply.headers),
            **end.report.build_headers(turn.request.request_id),
        }
        fields = end.report.render_all_fields(end.context)
        return WholeAnswer(answer_format.render_whole_answer(answer, body, fields), headers)

    async def _read_whole_answer(self, turn: Turn, upstream_answer: UpstreamAnswer) -> tuple[Answer, BufferedReply]:
        """Reads an answer that is not streamed, after the last round of the search tool; returns its content and the
        reply."""
        try:
            if turn.search_tool_session is not None:
                return await self.search_tool_loop.run_whole_rounds(turn, upstream_answer)
            assert isinstance(upstream_answer.reply, BufferedReply)
            reply = upstream_answer.reply
            return parse_whole_answer(reply.body, upstream_answer.deployment, reply.protocol), reply
        # A client that got no answer does not know the id of a conversation that began here: its retry would begin
        # another.
        except GatewayError:
            await self.turn_writer.erase_unanswered_conversation(turn.resolved_request)
            raise

    async def deliver_stream(
        self,
        turn: Turn,
        view: View,
        upstream_answer: UpstreamAnswer,
        leases: AsyncExitStack,
        report: ContextReport,
    ) -> AsyncGenerator[bytes, None]:
        """Relays the upstream's stream, and finishes the turn before the last frame, even if the client disconnects.

        Releases the leases of the turn.
        """
        reply = upstream_answer.reply
        assert isinstance(reply, StreamReply)
        log_and_trace_report(turn.request, report)
        source = upstream_answer.deployment.key
        relay = turn.request.delivery.answer_format.build_relay(
            PROVIDER_DIALECTS[reply.protocol].make_decoder(source),
            RelayOptions(
                report.render_status_fields(),
                functools.partial(_render_last_fields, report, upstream_answer.deployment, turn.search_tool_session),
                source,
                turn.request.delivery.wants_usage,
            ),
        )
        finish_turn = functools.partial(self._finish_turn, turn, view, relay, report, upstream_answer)
        is_over = False
        try:
            if frames := _relay_events(relay, reply.first_events):
                yield frames
            try:
                if not relay.has_ended:
                    async for events in reply.iter_events():
                        if frames := _relay_events(relay, events):
                            yield frames
                        if relay.has_ended:
                            break
                if relay.is_upstream_done:
                    await reply.drain()
                relay.record_stream_end()
            except UpstreamUnavailable as broken:
                relay.record_stream_end(broken)
            # Set before the last await: if the client leaves during `_finish_stream`, that call still finishes the
            # turn, and `_finish_after_disconnect` must not finish it a second time.
            is_over = True
            yield await self._finish_stream(turn, relay, report, finish_turn)
        finally:
            if is_over:
                await upstream_answer.reply.aclose()
                await leases.aclose()
            else:
                # A plain await is cancelled together with the request, and the part of the answer that was sent would
                # be lost.
                await self.tasks.run_shielded(_finish_after_disconnect(reply, leases.pop_all(), finish_turn))

    async def _finish_stream(
        self, turn: Turn, relay: StreamRelay, report: ContextReport, finish_turn: FinishTurn
    ) -> bytes:
        """Finishes the turn, and returns the last frames."""
        error, changed_fields = relay.stream_failure, None
        try:
            await self.tasks.run_shielded_to_end(finish_turn())
        except StoreUnavailable as unavailable:
            drop_tracebacks(unavailable)
            # A client that appends relies on the stored log, so its answer fails. A client that resends its history
            # loses nothing: its answer stands, and the last frames say that it was not stored.
            if turn.resolved_request.storage.needs_store:
                error = unavailable
            else:
                log.warning("could not store an answer: %s", unavailable.message)
                changed_fields = report.add_warning(UNSTORED_ANSWER, status="degraded").render_all_fields()
        except GatewayError as refused:
            drop_tracebacks(refused)
            error = refused
        if error is None:
            return relay.render_end(changed_fields)
        record_error(error)
        return turn.request.delivery.answer_format.render_error_frames(error)

    async def _finish_turn(
        self, turn: Turn, view: View, relay: StreamRelay, report: ContextReport, upstream_answer: UpstreamAnswer
    ) -> None:
        answer, failure = relay.answer, relay.stream_failure
        answer.id = relay.answer_id
        is_whole = answer.is_complete and failure is None
        if answer.has_content or is_whole:
            message = relay.build_answer_message()
            await self.turn_finisher.finish(TurnEnd(turn, view, upstream_answer, report, answer, message, is_whole))
        else:
            # If the client left before the first word, the provider has read the prompt.
            end = TurnEnd(turn, view, upstream_answer, report, answer, None, is_whole)
            await self.turn_finisher.finish_without_answer(end, is_billed=failure is None)


async def _finish_after_disconnect(reply: StreamReply, leases: AsyncExitStack, finish_turn: FinishTurn) -> None:
    """Closes the upstream's stream after the client disconnected, and finishes the turn with what has come of the
    answer."""
    async with leases:
        # Closed first, so that the provider stops generating tokens that nobody reads.
        await reply.aclose()
        try:
            await finish_turn()
        except GatewayError as error:
            drop_tracebacks(error)
            log.warning("could not store the partial answer of a disconnected client: %s", error.message)


def _relay_events(relay: StreamRelay, events: Sequence[SseEvent]) -> bytes:
    """Renders the frames for events, and for what is said in their place."""
    frames = relay.relay_events(events) if events else b""
    if isinstance(events, JoinedEvents) and events.values and not relay.has_ended:
        frames += relay.relay_values(events.values)
    return frames


def _render_last_fields(
    report: ContextReport,
    deployment: ModelDeployment,
    session: SearchToolSession | None,
    reported_usage: Mapping[str, Any] | None,
) -> bytes:
    """Renders all our fields for the end of a stream.

    Args:
        reported_usage: the usage of the answer; None if the provider reports it later, or not at all.
    """
    usage = read_usage(reported_usage)
    cost = report.build_cost_object(deployment, usage)
    return report.render_all_fields(report.build_context_object(select_planned_prompt_usage(session, usage), cost))
