"""Answers one chat completion: resolve → plan → compact → call the upstream, while the question is written → respond →
write the answer. This module is the only one that knows the order of the steps.

Where failures are handled. Paths begin at `app`:

- Too many requests at once: `pipeline/admission/admission.py`. A rate is passed: `pipeline/admission/admission.py`. A
  budget is used up: the same, and `pipeline/call/upstream_call.py` before each call.
- A client sends the same request again: `pipeline/admission/shared_attempts.py` while this process remembers the first;
  `pipeline/resolve/answer_replay.py` finds its stored answer. A key's request on two replicas:
  `pipeline/admission/idempotency_keys.py`.
- The client disconnects: `pipeline/admission/shared_attempts.py` ends a stream for which nobody else waits;
  `pipeline/respond/response_delivery.py` closes it upstream and stores what has come. Whole answers are finished.
- Another request or replica has the conversation: `pipeline/resolve/conversation_resolver.py` waits for the lease, or
  refuses. The log has moved on meanwhile: `pipeline/persist/turn_writer.py` makes a branch; it refuses an append.
- The store is away. While the conversation is looked up: `pipeline/resolve/conversation_resolver.py`; while the view is
  planned: `_plan_view` here; both go on with the client history, and nothing is stored. While the question is written:
  `_finish_question_write` here; while the answer is: `pipeline/respond/response_delivery.py`; both deliver the answer,
  and say that it is not stored. Requests that need the store (appends) get an error in all four places.
- A summary fails or is refused: `compaction/summary_maker.py` falls back; `pipeline/compact/turn_compaction.py` goes on
  without it.
- The provider fails before its answer begins: `upstream/routing/router.py` retries and falls back. If nothing helps,
  the client gets an HTTP error, and `pipeline/persist/turn_writer.py` erases a conversation that begins here.
- The provider says that the prompt is too long: `pipeline/call/overflow_recovery.py`. It cuts prompts silently, or
  counts otherwise than the gateway: `pipeline/respond/answer_learning.py`.
- The provider dies in the middle of a stream: `pipeline/respond/response_delivery.py` ends it with an error event.
- A fault of our own, once a stream has begun: `api/answer_endpoint.py` makes an error event of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from app.context.plan.budget import compute_compaction_threshold
from app.context.plan.outline import SummarizeMode
from app.conversation.conversation_types import LogMessage
from app.dialects.answer_format import Progress
from app.errors import ContextLengthExceeded, GatewayError, StoreUnavailable, UpstreamRefused, drop_tracebacks
from app.observability.log import set_log_conversation
from app.observability.request_record import record_error, timed_step
from app.observability.tracing import (
    COMPACTED_ATTRIBUTE,
    CONVERSATION_ATTRIBUTE,
    STREAMED_ATTRIBUTE,
    current_span,
    share_attributes,
)
from app.pipeline.call.overflow_recovery import MAX_OVERFLOW_RECOVERIES, OverflowRecovery
from app.pipeline.call.search_tool_loop import (
    SearchToolLoop,
    may_have_refused_tool,
    remove_search_tool,
)
from app.pipeline.call.upstream_call import PromptOverflow, UpstreamAnswer, UpstreamCaller
from app.pipeline.call.upstream_reply import select_forwarded_headers
from app.pipeline.call.window_learning import WindowLearner, replace_window
from app.pipeline.compact.capsule_builder import CapsuleBuilder
from app.pipeline.compact.precompaction import Precompactor
from app.pipeline.compact.turn_compaction import (
    TurnCompactionTask,
    TurnCompactor,
    may_compact,
    must_compact,
)
from app.pipeline.persist.turn_writer import TurnWriter
from app.pipeline.resolve.answer_replay import render_stored_answer
from app.pipeline.resolve.conversation_resolver import ConversationResolver
from app.pipeline.resolve.model_context import ModelContexts
from app.pipeline.respond.context_status import ContextReport, build_context_report, log_and_trace_report
from app.pipeline.respond.lone_compaction import LoneCompactions
from app.pipeline.respond.response_delivery import ResponseDelivery
from app.pipeline.turn.answer_types import Answer, StreamedAnswer
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.chat_request import ChatRequest
from app.pipeline.turn.resolved_request import PendingWrite, mark_unstored
from app.pipeline.turn.turn import Turn, View
from app.pipeline.view.pins import PinUpdater, check_pin_share, decode_pins
from app.pipeline.view.quotations import QuotationBuilder
from app.pipeline.view.view_builder import ViewBuilder

HEARTBEAT_SECONDS: Final = 5.0
"""Seconds between two heartbeat frames while a compaction runs. The shortest read timeout seen in a client is 60 s."""


@dataclass(frozen=True, slots=True)
class ClockAndIds:
    """The sources of time and of ids. They are arguments, so that tests control them."""

    unix_seconds: Callable[[], float]
    new_completion_id: Callable[[], str]
    heartbeat_seconds: float = HEARTBEAT_SECONDS


@dataclass(eq=False, kw_only=True)
class Pipeline:
    """Answers chat completions. A pipeline keeps no state between requests."""

    conversation_resolver: ConversationResolver
    view_builder: ViewBuilder
    turn_compactor: TurnCompactor
    precompactor: Precompactor
    turn_writer: TurnWriter
    response_delivery: ResponseDelivery
    upstream_caller: UpstreamCaller
    window_learner: WindowLearner
    overflow_recovery: OverflowRecovery
    search_tool_loop: SearchToolLoop
    quotation_builder: QuotationBuilder
    pin_updater: PinUpdater
    capsule_builder: CapsuleBuilder
    lone_compactions: LoneCompactions
    model_contexts: ModelContexts
    tasks: BackgroundTasks
    clock_and_ids: ClockAndIds

    async def answer(self, request: ChatRequest) -> Answer:
        """Answers a chat completion.

        A streamed answer is returned when the upstream has begun to answer, or when a compaction has begun to run.
        Until then every failure is raised, so that the client gets an HTTP status, and releases the leases of the turn.
        From then on the answer's frames release them.

        Raises:
            GatewayError: any class of the tree in `app.errors`, with the context headers that are known by then.
        """
        held_leases = AsyncExitStack()
        turn: Turn | None = None
        view: View | None = None
        try:
            turn = await self._resolve_turn(request, held_leases)
            if request.storing.finds_either_tenant and turn.resolved_request.is_first_request:
                turn = await self._resolve_turn(request.keep_less(), held_leases)
            request = turn.request
            if turn.resolved_request.stored_answer is not None and not request.compaction.is_alone:
                return await self._replay_stored_answer(turn, turn.resolved_request.stored_answer, held_leases)
            turn, view = await self._plan_view(turn)
            if must_compact(turn, view) or _ends_with_compaction(request, view):
                compaction = TurnCompactionTask(self.turn_compactor, turn, view, self.tasks)
                # Only a client that accepts progress events gets a stream before the answer. If the store can serve the
                # summary at once, `wait_for_start` is false and the client gets a normal answer.
                if request.delivery.stream and (
                    request.compaction.is_alone
                    or request.compaction.pauses
                    or (request.delivery.event_style != "off" and await compaction.wait_for_start())
                ):
                    return self._build_compaction_progress_answer(turn, view, compaction, held_leases)
                turn, view = await compaction.wait_for_result()
                if _ends_with_compaction(request, view):
                    return await self.lone_compactions.answer_whole(turn, view, held_leases)
            elif view.plan.to_summarize:  # the view is over its threshold, and within its limit
                self.precompactor.start_due_summaries(turn, view)
            turn, view = await self._complete_view(turn, view)
            if request.compaction.capsule_format is not None and view.shows_new_compaction:
                with suppress(StoreUnavailable):  # an answer without its compaction is better than none
                    request.compaction.capsule_format.add_compaction(await self.capsule_builder.build(turn, view))
            upstream_answer, turn, view = await self._call_upstream_and_write_question(turn, view)
            if not request.delivery.stream:
                return await self.response_delivery.deliver_whole_answer(turn, view, upstream_answer, held_leases)
            return self._build_streamed_answer(turn, view, upstream_answer, held_leases)
        except BaseException as error:
            # BaseException, because a cancelled request must release its lease, too. Without the release, the next
            # append to the conversation would wait until the lease expires.
            await held_leases.aclose()
            if isinstance(error, GatewayError) and turn is not None:
                error.context_headers.update(self._build_error_headers(turn, view))
            raise

    @timed_step("resolve")
    async def _resolve_turn(self, request: ChatRequest, held_leases: AsyncExitStack) -> Turn:
        """Finds everything that planning needs: model, policy, window, conversation and pins. Writes nothing."""
        model_context = await self.model_contexts.find_model_context(request)
        resolved_request = await self.conversation_resolver.resolve(request, model_context.encoding, held_leases)
        if resolved_request.expanded_messages is not None:
            request = replace(request, raw_messages=resolved_request.expanded_messages)
        if request.context.pin_indexes or resolved_request.conversation.marks:
            resolved_request = await self.pin_updater.apply_request_pins(request, resolved_request)
        if resolved_request.storage.is_stored:
            set_log_conversation(resolved_request.conversation.id)
            share_attributes({CONVERSATION_ATTRIBUTE: resolved_request.conversation.id})
        turn = self.model_contexts.build_turn(request, model_context, resolved_request)
        # At most what the conversation has learned of the model.
        window = self.window_learner.limit_window(turn.window, resolved_request.conversation.state, turn.model_key)
        return turn if window is turn.window else replace_window(turn, window)

    async def _replay_stored_answer(self, turn: Turn, stored_answer: LogMessage, held_leases: AsyncExitStack) -> Answer:
        """Returns the stored answer of a retry. It adds nothing to the log, so the lease is released before."""
        await held_leases.aclose()
        request, conversation = turn.request, turn.resolved_request.conversation
        # Reports the answer as complete to the request's attempt, as for a new answer.
        if request.on_answer is not None:
            await request.on_answer(conversation)
        return render_stored_answer(stored_answer, conversation.id, request)

    @timed_step("plan", span="plan")
    async def _plan_view(self, turn: Turn) -> tuple[Turn, View]:
        """Plans the view with the summaries that exist now. If the store is unavailable, the view is built from the
        client history alone, unless the request needs the store."""
        budget = self.view_builder.compute_budget(turn)
        if turn.request.context.pin_indexes:
            pins = decode_pins(turn.resolved_request.conversation.marks)
            check_pin_share(pins, turn.policy, budget, param="context.pin")
        summarize: SummarizeMode = turn.request.compaction.summarize if may_compact(turn) else "never"
        try:
            if (turn.request.context.recall or turn.policy.recall_mode) == "tool":
                return await self.search_tool_loop.plan_view_with_tool(turn, budget, summarize)
            return turn, await self.view_builder.build_view(turn, budget, summarize=summarize)
        except ContextLengthExceeded:
            # A learned limit never refuses a request: the provider decides.
            if turn.window.without_limit is None:
                raise
        except StoreUnavailable:
            if turn.resolved_request.storage.needs_store:
                raise
            turn = await self.conversation_resolver.resolve_turn_without_store(turn)
            return turn, await self.view_builder.build_view(turn, budget, summarize="never")
        return await self._plan_view(replace_window(turn, turn.window.without_limit))

    async def _complete_view(self, turn: Turn, view: View) -> tuple[Turn, View]:
        """Adds quotations to a view that hides a part of the log; removes the search tool if it hides nothing."""
        if view.plan.boundary_seq:
            view = await self.quotation_builder.add_quotations(turn, view)
        elif turn.search_tool_session is not None:
            turn = remove_search_tool(turn)
        share_attributes(
            {COMPACTED_ATTRIBUTE: bool(view.plan.summaries), STREAMED_ATTRIBUTE: turn.request.delivery.stream}
        )
        return turn, view

    async def _call_upstream_and_write_question(self, turn: Turn, view: View) -> tuple[UpstreamAnswer, Turn, View]:
        """Calls the upstream while the new messages of the request are written to the store: the model's latency hides
        the write.

        If one of the two fails or is cancelled, a conversation that begins with this request is erased: its client does
        not know the id, and its retry would begin another one. Any other conversation keeps the new messages.

        Returns:
            The upstream's answer, with the view that was sent; the turn with its stored question; the view that was
            planned last.
        """
        question = self.turn_writer.start_question_write(turn.resolved_request)
        try:
            if turn.search_tool_session is None:
                upstream_answer, view = await self._call_upstream_with_recovery(turn, view)
            else:
                upstream_answer, turn, view = await self._call_upstream_with_search_tool(turn, view)
            turn = await self._finish_question_write(question, turn, upstream_answer)
            if turn.request.delivery.stream and turn.search_tool_session is not None:
                # The model may run searches before the stream has something to show, and these may fail.
                upstream_answer = await self.search_tool_loop.start_streamed_rounds(turn, upstream_answer)
        except BaseException:
            # Shielded: if the client has disconnected, this task is cancelled, and a conversation of one unanswered
            # question would stay in the store.
            await self.tasks.run_shielded(self.turn_writer.erase_unanswered_question(question))
            raise
        return upstream_answer, turn, view

    async def _finish_question_write(self, question: PendingWrite, turn: Turn, upstream_answer: UpstreamAnswer) -> Turn:
        """Waits until the new messages are stored.

        Args:
            turn: the turn that the upstream has answered.

        Returns:
            The turn with its conversation after the new messages. If the store is unavailable and the request does not
            need it, the turn is marked as not stored: the model has answered already.

        Raises:
            ConversationBusy: an append lost its lease to another request.
            StoreUnavailable: nothing was stored, and the request needs the store.
        """
        try:
            resolved_request = await self.turn_writer.finish_question_write(question)
        except BaseException as error:
            if not isinstance(error, StoreUnavailable) or turn.resolved_request.storage.needs_store:
                await upstream_answer.reply.aclose()  # nobody will read the reply
                raise
            drop_tracebacks(error)
            resolved_request = mark_unstored(turn.resolved_request)
        # If the provider has refused the search tool, the tool is gone since the write began.
        if (instructions_tokens := turn.resolved_request.instructions_tokens) != resolved_request.instructions_tokens:
            resolved_request = replace(resolved_request, instructions_tokens=instructions_tokens)
        return replace(turn, resolved_request=resolved_request)

    async def _call_upstream_with_recovery(self, turn: Turn, view: View) -> tuple[UpstreamAnswer, View]:
        """Calls the upstream. If the provider says that the prompt overflows its window, a smaller view is planned and
        sent.

        Returns:
            The answer, and the view planned last.
        """
        for _ in range(MAX_OVERFLOW_RECOVERIES):
            try:
                return await self.upstream_caller.call(turn, view), view
            except PromptOverflow as overflow:
                refusal = overflow
            view = await self.overflow_recovery.plan_smaller_view(turn, view, refusal)
        return await self.upstream_caller.call(turn, view, can_recover=False), view

    async def _call_upstream_with_search_tool(self, turn: Turn, view: View) -> tuple[UpstreamAnswer, Turn, View]:
        """Calls the upstream with the search tool; if it refuses the tool, calls again without it."""
        try:
            upstream_answer, sent_view = await self._call_upstream_with_recovery(turn, view)
            return upstream_answer, turn, sent_view
        except UpstreamRefused as refused:
            if not may_have_refused_tool(turn, refused):
                raise
        turn_without_tool = remove_search_tool(turn)
        upstream_answer, sent_view = await self._call_upstream_with_recovery(turn_without_tool, view)
        # Only now: the call without the tool was answered, so the tool was indeed the reason.
        self.search_tool_loop.record_model_without_tools(turn.model_key)
        return upstream_answer, turn_without_tool, sent_view

    def _build_streamed_answer(
        self, turn: Turn, view: View, upstream_answer: UpstreamAnswer, held_leases: AsyncExitStack
    ) -> StreamedAnswer:
        context_report = build_context_report(turn, upstream_answer.sent_view)
        headers = {
            **select_forwarded_headers(upstream_answer.reply.headers),
            **context_report.build_headers(turn.request.request_id),
        }
        return StreamedAnswer(
            headers, self.response_delivery.deliver_stream(turn, view, upstream_answer, held_leases, context_report)
        )

    def _build_compaction_progress_answer(
        self, turn: Turn, view: View, compaction: TurnCompactionTask, held_leases: AsyncExitStack
    ) -> StreamedAnswer:
        context_report = build_context_report(turn, view)
        frames = self._stream_progress_then_answer(turn, view, compaction, held_leases, context_report)
        return StreamedAnswer(context_report.build_headers(turn.request.request_id, is_summarizing=True), frames)

    async def _stream_progress_then_answer(
        self,
        turn: Turn,
        view: View,
        compaction: TurnCompactionTask,
        held_leases: AsyncExitStack,
        context_report: ContextReport,
    ) -> AsyncGenerator[bytes, None]:
        """Streams progress events while the compaction runs, then the answer."""
        answer_format, capsule_format = turn.request.delivery.answer_format, turn.request.compaction.capsule_format
        answer_format.begin_progress(
            Progress(
                completion_id=self.clock_and_ids.new_completion_id(),
                created=int(self.clock_and_ids.unix_seconds()),
                model=turn.request.model,
                style=turn.request.delivery.event_style,
                fields=context_report.render_status_fields(),
            )
        )
        try:
            current_span().add_event("compaction_started")
            begin = answer_format.render_progress_start(
                {
                    "type": "compaction_started",
                    "input_tokens": view.tokens_before_compaction,
                    "context_window": view.budget.window,
                }
            )
            yield begin if capsule_format is None else begin + capsule_format.render_compaction_begin()
            while not await compaction.finishes_within(self.clock_and_ids.heartbeat_seconds):
                yield answer_format.render_heartbeat()
            turn, view = await compaction.wait_for_result()
            outcome = "compaction_failed" if view.compaction.get("outcome") == "failed" else "compaction_completed"
            current_span().add_event(outcome)
            event = {"type": outcome, "duration_ms": view.compaction["duration_ms"]}
            fields = build_context_report(turn, view).render_status_fields()
            yield answer_format.render_progress_outcome(event, fields)
            if _ends_with_compaction(turn.request, view):
                yield await self.lone_compactions.render_end(turn, view, held_leases)
                return
            turn, view = await self._complete_view(turn, view)
            if capsule_format is not None:
                yield capsule_format.add_compaction(await self.capsule_builder.build(turn, view))
            upstream_answer, turn, view = await self._call_upstream_and_write_question(turn, view)
        except GatewayError as error:
            # The response has begun, so the status code is sent already: the error becomes an error event at the end of
            # the stream.
            await held_leases.aclose()
            record_error(error)
            drop_tracebacks(error)
            yield answer_format.render_error_frames(error)
            return
        except BaseException:
            await held_leases.aclose()
            raise
        context_report = build_context_report(turn, upstream_answer.sent_view)
        async with aclosing(
            self.response_delivery.deliver_stream(turn, view, upstream_answer, held_leases, context_report)
        ) as frames:
            async for frame in frames:
                yield frame

    def _build_error_headers(self, turn: Turn, view: View | None) -> dict[str, str]:
        """Returns the context headers of an error response: tokens, status and conversation id, as far as they are
        known."""
        headers = {}
        if view is not None:
            context_report = build_context_report(turn, view)
            log_and_trace_report(turn.request, context_report)
            headers = context_report.build_headers(turn.request.request_id)
        # The id of a conversation that this request was to create is withheld: its first write may not have happened,
        # and the client would get "not found" for that id.
        if turn.resolved_request.storage.is_stored and not turn.resolved_request.creates_conversation:
            return {**headers, "x-conversation-id": turn.resolved_request.conversation.id}
        return {name: value for name, value in headers.items() if name != "x-conversation-id"}

    async def measure_context(self, request: ChatRequest) -> dict[str, Any]:
        """Returns the tokens of a request with its history as sent, the model's window, and the pressure (tokens
        divided by the limit); with `context_edits` also how many tokens they clear. Tokens are our calibrated estimate.
        Stores nothing."""
        # A response that names its conversation brings new items only, so those of the conversation are counted, too.
        if request.protocol != "responses" or request.context.mode != "append":
            request = replace(request, context=replace(request.context, mode="stateless"))
        async with AsyncExitStack() as held_leases:
            turn = await self._resolve_turn(request, held_leases)
        budget = self.view_builder.compute_budget(turn)
        tokens = budget.calibrate_tokens(turn.planned_instructions_tokens + turn.resolved_request.log_tokens)
        cleared_tokens = await self.view_builder.count_cleared_tokens(turn)
        return {
            **({} if cleared_tokens is None else {"cleared_tokens": cleared_tokens}),
            "object": "context.count",
            "model": request.model,
            "prompt_tokens": tokens,
            "window": budget.window,
            "limit": budget.limit,
            "pressure": round(budget.compute_limit_pressure(tokens), 4),
            "compacts_above": compute_compaction_threshold(turn.policy, budget, has_summaries=False),
        }


def _ends_with_compaction(request: ChatRequest, view: View) -> bool:
    """Returns whether a request gets a compaction and no answer."""
    return request.compaction.is_alone or (request.compaction.pauses and view.shows_new_compaction)
