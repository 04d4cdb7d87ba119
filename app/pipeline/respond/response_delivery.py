"""Delivers an answer to the client, whole or as a stream, and stores it before the last byte is sent."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from msgspec.structs import replace

from app.context.calibration import HIGHEST_SLOPE
from app.context.count.token_counter import must_count_off_event_loop
from app.context.plan.budget import Budget, compute_compaction_threshold
from app.context.plan.outline import make_last_view
from app.context.plan.policy import ContextPolicy
from app.conversation.conversation_types import Conversation
from app.conversation.item import Item
from app.dialects.answer_decoding import PROTOCOL_FACTS, Answer
from app.dialects.provider_dialects import make_decoder
from app.dialects.sealed_parts import has_sealed_parts
from app.dialects.search_rounds import JoinedEvents
from app.dialects.sse import SseEvent
from app.dialects.stream_relay import RelayOptions, StreamRelay
from app.dialects.usage import TokenUsage, read_usage
from app.errors import GatewayError, StoreUnavailable, UpstreamUnavailable, drop_tracebacks
from app.observability.metrics import NO_METRICS, Metrics
from app.observability.request_facts import record_error
from app.pipeline.admission.answer_replay import REQUEST_DIGEST
from app.pipeline.background_tasks import BackgroundTasks, wait_until_done
from app.pipeline.call.search_tool_definition import SearchToolSession
from app.pipeline.call.search_tool_loop import SearchToolLoop
from app.pipeline.call.upstream_call import UpstreamAnswer, UpstreamCaller
from app.pipeline.call.upstream_reply import StreamReply, parse_whole_answer
from app.pipeline.call.window_learning import WindowLearner
from app.pipeline.compact.compaction_status import build_compaction_status
from app.pipeline.compact.precompaction import Precompactor
from app.pipeline.persist.completion_writer import CompletionWriter
from app.pipeline.persist.turn_writer import AnswerToStore, TurnWriter
from app.pipeline.resolve.resolved_request import OPAQUE_ORIGIN, OPAQUE_ORIGINS, PendingWrite
from app.pipeline.respond.answer_types import WholeAnswer
from app.pipeline.respond.cache_loss import learn_cached_prompt
from app.pipeline.respond.context_status import ContextReport, choose_context_status, select_forwarded_headers
from app.pipeline.respond.turn_telemetry import build_turn_facts, log_and_trace_report, record_turn
from app.pipeline.token_counting import MessageCounter
from app.pipeline.turn import Turn, View
from app.pipeline.view.last_view_and_calibration import CALIBRATIONS, LAST_VIEWS, add_last_view
from app.pipeline.view.view_restoration import REQUEST_FACTS, VIEW_FACTS, build_request_facts, build_view_facts
from app.store.usage_recorder import UsageRecorder
from app.upstream.provider_contract import ModelDeployment
from app.upstream.routing.prices import compute_call_cost_usd
from app.upstream.routing.router import BufferedReply

MIN_TRUNCATED_PROMPT_TOKENS: Final = 2048
"""Shorter prompts are not checked for truncation: servers are not started with a smaller window."""
UNSTORED_ANSWER: Final = "The answer could not be stored."
TRUNCATED_SHARE: Final = 0.5
"""A provider that counts less than this share of our count has probably cut the prompt: tokenizers hardly differ by
more."""

log = logging.getLogger(__name__)


class ResponseDelivery:
    """Delivers answers. Stores an answer even if the client disconnects, so that the next request can continue it."""

    def __init__(
        self,
        *,
        turn_writer: TurnWriter,
        upstream_caller: UpstreamCaller,
        window_learner: WindowLearner,
        search_tool_loop: SearchToolLoop,
        precompactor: Precompactor,
        completion_writer: CompletionWriter,
        tasks: BackgroundTasks,
        message_counter: MessageCounter,
        usage: UsageRecorder,
        unix_seconds: Callable[[], float],
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._turn_writer = turn_writer
        self._search_tool_loop = search_tool_loop
        self._precompactor = precompactor
        self._completion_writer = completion_writer
        self._upstream_caller = upstream_caller
        self._window_learner = window_learner
        self._tasks = tasks
        self._models_warned_of: set[str] = set()
        """Keys of the deployments about which the log already warns that they may cut prompts: one warning is
        enough."""
        self._message_counter = message_counter
        self._usage = usage
        self._unix_seconds = unix_seconds
        self._metrics = metrics

    def deliver_whole_answer(
        self, turn: Turn, view: View, upstream_answer: UpstreamAnswer, leases: AsyncExitStack
    ) -> Coroutine[Any, Any, WholeAnswer]:
        """Stores a whole answer and adds our fields to it. Releases the leases of the turn."""
        # Without the search tool the body has been read: only its write is left, and that is shielded on its own.
        # With the tool, more rounds follow upstream. They run to their end even if the client leaves (decision 7).
        if turn.search_tool_session is None:
            return self._deliver_whole_answer(turn, view, upstream_answer, leases)
        return self._tasks.run_shielded(self._deliver_whole_answer(turn, view, upstream_answer, leases.pop_all()))

    async def _deliver_whole_answer(
        self, turn: Turn, view: View, upstream_answer: UpstreamAnswer, leases: AsyncExitStack
    ) -> WholeAnswer:
        try:
            answer_format = turn.request.answer_format
            answer, reply = await self._read_whole_answer(turn, upstream_answer)
            answer, body = answer_format.translate_whole_answer(answer, reply.body)
            answer.id = answer_format.answer_id or answer.id
            usage = read_usage(answer.usage)
            report = build_context_report(turn, upstream_answer.sent_view)
            reported = _select_planned_prompt_usage(turn.search_tool_session, usage)
            if truncation_warning := _describe_provider_truncation(report, reported):
                report = report.add_warning(truncation_warning)
            log_and_trace_report(turn.request, report)
            cost = report.build_cost_object(upstream_answer.deployment, usage)
            context = report.build_context_object(reported, cost)
            message: Item | None = None
            try:
                message = answer_format.build_answer_message(answer)
                conversation = await self._store_answer(
                    turn, view, upstream_answer, answer, message, report, context, reported
                )
                if report.conversation_id not in (None, conversation.id):
                    report = replace(report, conversation_id=conversation.id)
            except StoreUnavailable as unavailable:
                if turn.resolved_request.needs_store:
                    raise
                drop_tracebacks(unavailable)
                report = report.add_warning(UNSTORED_ANSWER, status="degraded")
                context = report.build_context_object(reported, cost)
            finally:
                # In `finally`: the answer cost tokens, whether or not the store took it.
                self._record_answer(turn, upstream_answer, report, usage, message)
        finally:
            await leases.aclose()
        headers = {
            **select_forwarded_headers(upstream_answer.reply.headers),
            **report.build_headers(turn.request.request_id),
        }
        return WholeAnswer(answer_format.render_whole_answer(answer, body, report.render_all_fields(context)), headers)

    async def _read_whole_answer(self, turn: Turn, upstream_answer: UpstreamAnswer) -> tuple[Answer, BufferedReply]:
        """Reads an answer that is not streamed, after the last round of the search tool; returns its content and the
        reply."""
        try:
            if turn.search_tool_session is not None:
                return await self._search_tool_loop.run_whole_rounds(turn, upstream_answer)
            assert isinstance(upstream_answer.reply, BufferedReply)
            reply = upstream_answer.reply
            return parse_whole_answer(reply.body, upstream_answer.deployment, reply.protocol), reply
        # A client that got no answer does not know the id of a conversation that began here: its retry would begin
        # another.
        except GatewayError:
            await self._tasks.run_shielded(self._turn_writer.erase_unanswered_conversation(turn.resolved_request))
            raise

    async def deliver_stream(
        self,
        turn: Turn,
        view: View,
        upstream_answer: UpstreamAnswer,
        leases: AsyncExitStack,
        report: ContextReport,
    ) -> AsyncGenerator[bytes, None]:
        """Relays the upstream's stream, and stores the answer before the last frame, even if the client disconnects.

        Releases the leases of the turn.
        """
        reply = upstream_answer.reply
        assert isinstance(reply, StreamReply)
        log_and_trace_report(turn.request, report)
        source = upstream_answer.deployment.key
        relay = turn.request.answer_format.build_relay(
            make_decoder(reply.protocol, source),
            RelayOptions(
                report.render_status_fields(),
                functools.partial(_render_last_fields, report, upstream_answer.deployment, turn.search_tool_session),
                source,
                turn.request.wants_usage,
            ),
        )
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
            # Set before the last await: if the client leaves during `_finish_stream`, that call still stores the
            # answer, and `_finish_after_disconnect` must not store it a second time.
            is_over = True
            yield await self._finish_stream(turn, view, relay, report, upstream_answer)
        finally:
            if is_over:
                await upstream_answer.reply.aclose()
                await leases.aclose()
            else:
                # A plain await is cancelled together with the request, and the part of the answer that was sent would
                # be lost.
                await self._tasks.run_shielded(
                    self._finish_after_disconnect(turn, view, relay, report, upstream_answer, leases.pop_all())
                )

    async def _finish_stream(
        self, turn: Turn, view: View, relay: StreamRelay, report: ContextReport, upstream_answer: UpstreamAnswer
    ) -> bytes:
        """Stores the answer that the stream brought, and returns the last frames."""
        error, changed_fields = relay.stream_failure, None
        try:
            await self._store_streamed_answer(turn, view, relay, report, upstream_answer)
        except StoreUnavailable as unavailable:
            drop_tracebacks(unavailable)
            # A client that appends relies on the stored log, so its answer fails. A client that resends its history
            # loses nothing: its answer stands, and the last frames say that it was not stored.
            if turn.resolved_request.needs_store:
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
        return turn.request.answer_format.render_error_frames(error)

    async def _finish_after_disconnect(
        self,
        turn: Turn,
        view: View,
        relay: StreamRelay,
        report: ContextReport,
        upstream_answer: UpstreamAnswer,
        leases: AsyncExitStack,
    ) -> None:
        """Closes the upstream's stream after the client disconnected, and stores the part of the answer that has
        come."""
        # Closed first, so that the provider stops generating tokens that nobody reads.
        await upstream_answer.reply.aclose()
        try:
            await self._store_streamed_answer(turn, view, relay, report, upstream_answer)
        except GatewayError as error:
            drop_tracebacks(error)
            log.warning("could not store the partial answer of a disconnected client: %s", error.message)
        finally:
            await leases.aclose()

    async def _store_streamed_answer(
        self, turn: Turn, view: View, relay: StreamRelay, report: ContextReport, upstream_answer: UpstreamAnswer
    ) -> None:
        answer = relay.answer
        answer.id = relay.answer_id
        if answer.has_content or (answer.is_complete and relay.stream_failure is None):
            incomplete = not answer.is_complete or relay.stream_failure is not None
            usage = read_usage(answer.usage)
            message = relay.build_answer_message()
            self._record_answer(turn, upstream_answer, report, usage, message, is_whole=not incomplete)
            reported = _select_planned_prompt_usage(turn.search_tool_session, usage)
            cost = report.build_cost_object(upstream_answer.deployment, usage)
            context = report.build_context_object(reported, cost)
            await self._store_answer(
                turn, view, upstream_answer, answer, message, report, context, reported, incomplete=incomplete
            )
        else:
            if relay.stream_failure is None:
                # The client left before the first word, but the provider has read the prompt.
                self._record_usage(turn, upstream_answer, report, read_usage(answer.usage), None)
            await self._tasks.run_shielded_to_end(
                self._turn_writer.erase_unanswered_conversation(turn.resolved_request)
            )

    def _record_answer(
        self,
        turn: Turn,
        upstream_answer: UpstreamAnswer,
        report: ContextReport,
        usage: TokenUsage | None,
        message: Item | None,
        *,
        is_whole: bool = True,
    ) -> None:
        """Counts an answer in the metrics, in the request's record, in its log line and in the usage of its key: once
        for each answer, stored or not."""
        facts = build_turn_facts(upstream_answer.deployment, report, usage, is_whole=is_whole)
        self._metrics.count_turn(facts)
        record_turn(facts)
        self._record_usage(turn, upstream_answer, report, usage, message)

    def _record_usage(
        self,
        turn: Turn,
        upstream_answer: UpstreamAnswer,
        report: ContextReport,
        usage: TokenUsage | None,
        message: Item | None,
    ) -> None:
        """Adds the tokens and the cost of an answer to the usage of its key.

        Args:
            usage: as reported. A stream that broke off has no report; then our own counts are used.
            message: the answer, as far as it came.
        """
        if usage is not None:
            self._record_call(turn, upstream_answer.deployment, usage)
        else:
            if turn.request.allowance is not None:
                turn.request.allowance.keep_open()
            # In the background: nothing that follows may be lost if the request is cancelled meanwhile.
            self._tasks.spawn(self._record_estimated_usage(turn, upstream_answer, report.prompt_tokens, message))

    async def _record_estimated_usage(
        self, turn: Turn, upstream_answer: UpstreamAnswer, prompt_tokens: int, message: Item | None
    ) -> None:
        encoding = turn.resolved_request.conversation.token_counter_name
        messages = [] if message is None else [message]
        try:
            output_tokens = sum(await self._message_counter.count_message_tokens(messages, encoding))
            usage = TokenUsage(prompt_tokens, output_tokens=output_tokens)
            self._record_call(turn, upstream_answer.deployment, usage)
        finally:
            if turn.request.allowance is not None:
                turn.request.allowance.finish()

    def _record_call(self, turn: Turn, deployment: ModelDeployment, usage: TokenUsage) -> None:
        caller = turn.request.caller
        if turn.request.allowance is not None:
            turn.request.allowance.record_usage(usage)
        self._usage.record_call(
            caller.tenant,
            caller.api_key_id,
            deployment.upstream_model,
            usage,
            compute_call_cost_usd(deployment, usage),
        )

    async def _store_answer(
        self,
        turn: Turn,
        view: View,
        upstream_answer: UpstreamAnswer,
        provider_answer: Answer,
        message: Item,
        report: ContextReport,
        context: Mapping[str, Any],
        reported: TokenUsage | None,
        *,
        incomplete: bool = False,
    ) -> Conversation:
        """Stores an answer with its facts, and starts the work that follows.

        If the task is cancelled during the write, the cancellation is raised after the write.
        """
        # A conversation's log has one answer for each turn: choice 0. The other choices are kept in its facts.
        alternatives = provider_answer.build_alternatives()
        meta: dict[str, Any] = {
            **turn.request.answer_format.build_facts(provider_answer),
            "context_status": report.status,
            "context": context,
            VIEW_FACTS: build_view_facts(
                upstream_answer.sent_view, turn.resolved_request, log_tokens=report.log_tokens
            ),
            REQUEST_FACTS: build_request_facts(turn.request),
            REQUEST_DIGEST: turn.resolved_request.request_digest,
            **({PROTOCOL_FACTS: report.protocol_fields} if report.protocol_fields else {}),
        }
        if alternatives:
            meta["alternatives"] = alternatives
        if has_sealed_parts(message.raw, upstream_answer.deployment.provider.protocol):
            meta[OPAQUE_ORIGIN] = upstream_answer.deployment.key
        answer = AnswerToStore(
            message=message,
            incomplete=incomplete,
            meta=meta,
            state={
                **self._build_learned_state(turn, upstream_answer, report, reported),
                **_add_opaque_origin(turn, upstream_answer.deployment, message),
            },
            chunk_count=len(view.outline.summaries),
            is_streamed=turn.request.stream,
        )
        # Most answers are one write, which a cancellation cannot split. A task for each would only cost time.
        turn, view = self._upstream_caller.select_view_to_continue(turn, view, upstream_answer)
        work = self._write_answer(turn, view, answer)
        return await (work if _is_single_write(turn, message) else self._tasks.run_shielded_to_end(work))

    async def _write_answer(self, turn: Turn, view: View, answer: AnswerToStore) -> Conversation:
        pending_write = await self._turn_writer.start_answer_write(turn.resolved_request, answer)
        follow_up = self._finish_write_and_follow_up(turn, view, answer, pending_write)
        if pending_write.write_future is None:
            return await follow_up
        try:
            await wait_until_done(pending_write.write_future)
        except asyncio.CancelledError:
            # The write goes on without its waiter. What follows from it must still run, or anchors and completion are
            # lost.
            await self._tasks.run_shielded_to_end(follow_up)
            raise
        return await (
            follow_up if _has_succeeded(pending_write.write_future) else self._tasks.run_shielded_to_end(follow_up)
        )

    async def _finish_write_and_follow_up(
        self, turn: Turn, view: View, answer: AnswerToStore, pending_write: PendingWrite
    ) -> Conversation:
        """Waits for an answer's write, stores the completion, tells the waiting retries, and starts precompaction."""
        request, resolved_request = turn.request, turn.resolved_request
        conversation = await self._turn_writer.finish_answer_write(pending_write)
        if request.stores_completion and resolved_request.is_stored and not answer.incomplete:
            await self._completion_writer.write_completion(
                request, resolved_request, conversation, answer.meta["id"], answer.message
            )
        if request.on_answer is not None and not answer.incomplete:
            await request.on_answer(conversation if resolved_request.is_stored else None)
        # Last: precompaction reads the log with this answer, and must not delay what the client waits for.
        self._precompactor.start_if_needed(turn, view, conversation)
        return conversation

    def _build_learned_state(
        self, turn: Turn, upstream_answer: UpstreamAnswer, report: ContextReport, reported: TokenUsage | None
    ) -> dict[str, Any]:
        """Builds the members of the conversation's state that change with this answer: last view and calibration.

        Args:
            reported: the provider's usage for the view's prompt; None if there is none to learn from.
        """
        state, view = turn.resolved_request.conversation.state, upstream_answer.sent_view
        window = view.budget.window
        stored_view = make_last_view(
            view.plan,
            view.outline.last_view,
            was_requested=turn.request.summarize == "now" and bool(view.plan.summaries),
            user_texts=view.outline.user_texts,
        )
        stored_view = turn.resolved_request.client_versions.recount_view_for_originals(stored_view)
        learned: dict[str, Any] = (
            {LAST_VIEWS: views} if (views := add_last_view(state, turn.policy, window, stored_view)) else {}
        )
        if reported is None:
            return learned | self._window_learner.learn_from_answer(
                state, upstream_answer.deployment, refused=view.refused_size
            )
        model_key = upstream_answer.deployment.key
        if model_key not in self._models_warned_of and (
            truncation_warning := _describe_provider_truncation(report, reported)
        ):
            self._models_warned_of.add(model_key)
            log.warning("%s: %s", model_key, truncation_warning)
        calibration_before, prompt = turn.calibration, turn.build_counted_prompt(view)
        # The turn's calibration is that of the first deployment; the others are its fallbacks.
        if upstream_answer.deployment is not turn.target.deployments[0]:
            calibration_before = self._upstream_caller.find_calibration(upstream_answer.deployment, turn)
        learned |= self._window_learner.learn_from_answer(
            state,
            upstream_answer.deployment,
            refused=view.refused_size,
            prompt_tokens=reported.sent_tokens,
            truncated_at=calibration_before.find_silent_truncation_window(prompt, reported.sent_tokens),
        )
        learned |= learn_cached_prompt(
            turn, view, upstream_answer.deployment, reported, self._unix_seconds(), self._metrics
        )
        calibration = calibration_before.learn_from_report(prompt, reported.sent_tokens)
        self._upstream_caller.learn_slope(model_key, turn.resolved_request.conversation, calibration)
        learned[CALIBRATIONS] = {**state.get(CALIBRATIONS, {}), model_key: calibration.to_dict()}
        return learned


def _add_opaque_origin(turn: Turn, deployment: ModelDeployment, message: Item) -> dict[str, Any]:
    """Builds the member of the conversation's state that names the origins of encrypted parts, if it changes."""
    origins: list[str] = turn.resolved_request.conversation.state.get(OPAQUE_ORIGINS, [])
    if not has_sealed_parts(message.raw, deployment.provider.protocol) or deployment.key in origins:
        return {}
    return {OPAQUE_ORIGINS: [*origins, deployment.key]}


def build_context_report(turn: Turn, view: View) -> ContextReport:
    """Builds the facts about the context of an answer to this turn."""
    resolved_request, plan, outline, budget = turn.resolved_request, view.plan, view.outline, view.budget
    pins, output_limit = outline.pins, view.compute_lowered_output_limit()
    # After an overflow the ratio comes from the provider's count of the whole prompt, offset included. It may be higher
    # than a slope can be; the part above HIGHEST_SLOPE is reported as offset below.
    slope, added_tokens = (
        min(budget.calibration_ratio, HIGHEST_SLOPE),
        outline.instructions_tokens - resolved_request.instructions_tokens,
    )
    return ContextReport(
        status=choose_context_status(
            resolved_request, plan, is_stateless=not resolved_request.is_stored and turn.request.store
        ),
        conversation_id=resolved_request.conversation.id if resolved_request.is_stored else None,
        policy=turn.policy.name,
        plan=plan,
        budget=budget,
        prompt_tokens=budget.calibrate_tokens(plan.prompt_tokens),
        next_seq=outline.next_seq,
        compaction_status=build_compaction_status(view),
        log_tokens=budget.calibrate_tokens(outline.instructions_tokens + outline.log_tokens),
        pinned_messages=sum(pin.to_seq - pin.from_seq for pin in pins) if pins else 0,
        compacts_above=_compute_threshold_with_quotations(turn.policy, view),
        max_output_tokens=output_limit,
        recovered=view.is_overflow_recovered,
        fallback=view.fallback,
        warnings=(
            *view.warnings,
            *(() if view.fallback is None else (f"{view.fallback!r} answered in place of the first deployment.",)),
            *(() if output_limit is None else (_describe_lowered_output_limit(view.budget, output_limit),)),
            *resolved_request.warnings,
        ),
        detail=turn.request.context_detail,
        searches=turn.search_tool_session.searches if turn.search_tool_session is not None else (),
        protocol_fields=view.protocol_fields,
        slope=slope,
        offset_tokens=budget.calibrate_tokens(added_tokens)
        + round((budget.calibration_ratio - slope) * (plan.prompt_tokens - added_tokens)),
    )


def _is_single_write(turn: Turn, message: Item) -> bool:
    """Whether one write stores the answer. Such a write needs no task of its own to survive a cancellation."""
    request, resolved_request = turn.request, turn.resolved_request
    has_more = request.stores_completion or resolved_request.assigns_external_id or request.idempotency_key is not None
    return not (has_more or must_count_off_event_loop(len(message.raw)))


def _has_succeeded(work: asyncio.Future[None]) -> bool:
    return not work.cancelled() and work.exception() is None


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
    return report.render_all_fields(report.build_context_object(_select_planned_prompt_usage(session, usage), cost))


def _select_planned_prompt_usage(session: SearchToolSession | None, usage: TokenUsage | None) -> TokenUsage | None:
    """Returns the usage of the view's own prompt, without the further rounds of the search tool."""
    return read_usage(session.first_usage) if session is not None and session.rounds else usage


def _describe_provider_truncation(report: ContextReport, reported: TokenUsage | None) -> str | None:
    """Describes a prompt of which the provider seems to have cut most; None if there is no such sign.

    Ollama cuts prompts without an error.
    """
    sent_tokens = report.prompt_tokens
    if (
        reported is None
        or sent_tokens < MIN_TRUNCATED_PROMPT_TOKENS
        or reported.sent_tokens >= TRUNCATED_SHARE * sent_tokens
    ):
        return None
    return (
        f"The provider counted {reported.prompt_tokens} tokens in a prompt of {sent_tokens}. If it cut the "
        "prompt, its window is "
        "smaller than the one that is configured here."
    )


def _compute_threshold_with_quotations(policy: ContextPolicy, view: View) -> int:
    """Computes the compaction threshold in tokens that compare with this view's prompt.

    The planner compares a prompt without quotations, so the quotations' tokens are added.
    """
    budget, plan = view.budget, view.plan
    threshold = compute_compaction_threshold(policy, budget, has_summaries=bool(plan.summaries))
    if not plan.quotations:
        return threshold
    quoted_tokens = sum(quotation.tokens for quotation in plan.quotations)
    return min(budget.limit, threshold + budget.calibrate_tokens(quoted_tokens))


def _describe_lowered_output_limit(budget: Budget, limit: int) -> str:
    change = f"from {budget.requested_output} to {limit}" if budget.requested_output else f"to {limit}"
    return f"The answer's limit was lowered {change} tokens: prompt and answer share a window of {budget.window}."
