"""Put a view to the upstream, and get over an answer that says it is too long."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from app.context.calibration import Calibration
from app.conversation.messages import Conversation
from app.errors import GatewayError, UpstreamRefused
from app.pipeline.background_tasks import BackgroundTasks
from app.pipeline.call.field_restorer import FieldRestorer
from app.pipeline.call.first_event import StreamReply, build_bad_answer_error, is_expected_reply, read_first_event
from app.pipeline.call.upstream_body import build_upstream_body
from app.pipeline.persist.completion_writer import NUL_CHARACTER
from app.pipeline.resolve.model_context import CalibrationSlopes
from app.pipeline.respond.context_status import select_forwarded_headers
from app.pipeline.respond.stream_relay import BAD_GATEWAY
from app.pipeline.view.view_builder import Turn, View, ViewBuilder, make_context_length_error
from app.pipeline.view.view_state import read_calibration
from app.store.contract import Store
from app.upstream.protocols.overflow_detection import ContextOverflow, detect_overflow
from app.upstream.provider import ModelDeployment
from app.upstream.routing.context_windows import ContextWindows
from app.upstream.routing.router import STATUS_OK, BufferedReply, Router

log = logging.getLogger(__name__)

MAX_OVERFLOW_RECOVERIES: Final = 2
"""After an overflow: once without any model call, once more with compaction."""
UNSTATED_OVERFLOW_SHARE: Final = 0.75
"""Where an overflow does not state its limit, the next view is this share of the one that was refused."""
DOUBTFUL_OVERFLOW_SHARE: Final = 0.5
"""An answer that may mean an overflow is taken for one if the prompt is above this share of the window."""
OUTPUT_MARGIN_TOKENS: Final = 64
REDIRECT_STATUSES: Final = frozenset({300, 301, 302, 303, 307, 308})


class UpstreamAnswer(msgspec.Struct, frozen=True):
    """An upstream that has begun to answer with success: with a stream, or whole."""

    reply: StreamReply | BufferedReply
    deployment: ModelDeployment
    sent_view: View
    """What the deployment got: a smaller view than was planned, where its window is smaller."""


class ViewCompactor(Protocol):
    """Makes room by summarizing (the exchange)."""

    async def compact(self, turn: Turn, view: View, *, on_start: Callable[[], None] | None = None) -> View: ...


class UpstreamCaller:
    """Sends a view to the first deployment that answers, and learns from what it answers."""

    def __init__(
        self,
        *,
        router: Router,
        windows: ContextWindows,
        view_builder: ViewBuilder,
        store: Store,
        tasks: BackgroundTasks,
        calibration_slopes: CalibrationSlopes,
    ) -> None:
        self._router = router
        self._windows = windows
        self._view_builder = view_builder
        self._store = store
        self._tasks = tasks
        self._calibration_slopes = calibration_slopes
        self._field_restorer = FieldRestorer(store=store)

    async def call_with_overflow_recovery(
        self, turn: Turn, view: View, compactor: ViewCompactor
    ) -> tuple[UpstreamAnswer, View]:
        """Ask; on an overflow answer learn its limit, plan again and ask again, at most twice.

        Raises:
            UpstreamRefused: the upstream's own error, as it came.
            UpstreamUnavailable: no deployment answered.
        """
        for attempt in range(MAX_OVERFLOW_RECOVERIES + 1):
            sent_views: dict[str, View] = {}
            opened = await self._router.send(
                turn.target,
                self._make_body_builder(turn, view, sent_views),
                client_key=turn.client_key,
                headers=turn.request.forwarded_headers,
            )
            reply, error_body = await read_first_event(
                opened.reply, stream=turn.request.stream, source=opened.deployment.key
            )
            if error_body is None:
                return UpstreamAnswer(reply, opened.deployment, sent_views[opened.deployment.key]), view
            overflow = _recognise_overflow(reply.status, error_body, view)
            if overflow is None or attempt == MAX_OVERFLOW_RECOVERIES:
                sent_view = sent_views[opened.deployment.key]
                return await _accept_reply(
                    reply, error_body, opened.deployment, sent_view, stream=turn.request.stream
                ), view
            await reply.aclose()
            view = await self._shrink_after_overflow(turn, view, overflow, opened.deployment, compactor, attempt)
        raise AssertionError("unreachable")

    async def continue_answer(
        self,
        deployment: ModelDeployment,
        turn: Turn,
        sent_view: View,
        added_messages: Sequence[bytes],
        added_tokens: int,
    ) -> UpstreamAnswer:
        """Ask the deployment that has begun an answer to go on with it.

        Args:
            turn: whose request may differ in anything but its messages.
            sent_view: the view that was sent.
            added_messages: JSON text of each message after it.
            added_tokens: their raw count.

        Raises:
            UpstreamRefused: the upstream's own error, as it came.
            UpstreamUnavailable: it did not answer.
        """
        restored_messages = await self._restore_messages(deployment, turn, sent_view)
        messages = [*(turn.request.raw_messages if restored_messages is None else restored_messages), *added_messages]
        body = build_upstream_body(turn.request, messages, deployment, sent_view.compute_output_limit(added_tokens))

        async def body_for(_: ModelDeployment) -> bytes:
            return body

        opened = await self._router.send(
            dataclasses.replace(turn.target, deployments=(deployment,)),
            body_for,
            client_key=turn.client_key,
            headers=turn.request.forwarded_headers,
        )
        reply, error_body = await read_first_event(opened.reply, stream=turn.request.stream, source=deployment.key)
        if error_body is None:
            return UpstreamAnswer(reply, deployment, sent_view)
        return await _accept_reply(reply, error_body, deployment, sent_view, stream=turn.request.stream)

    async def _fit_view_to_deployment(self, deployment: ModelDeployment, turn: Turn, view: View) -> View:
        """The view as a deployment gets it: a smaller one, made without a model, where its window is smaller."""
        if deployment is turn.target.deployments[0]:
            return view
        window = await self._windows.find_window(deployment, turn.client_key)
        if window.tokens >= view.budget.window:
            return view
        turn = replace(turn, window=window, calibration=self.find_calibration(deployment, turn))
        smaller = await self._view_builder.build_view(turn, self._view_builder.compute_budget(turn), summarize="never")
        return replace(smaller, compaction=view.compaction, is_overflow_recovered=view.is_overflow_recovered)

    def find_calibration(self, deployment: ModelDeployment, turn: Turn) -> Calibration:
        """What the turn's conversation has learned of a deployment, with the attachments that the turn shows."""
        if deployment.key == turn.model_key:
            return turn.calibration
        conversation = turn.resolved_request.conversation
        start_slope = self._calibration_slopes.find_start_slope(deployment.key, conversation.tenant)
        learned = read_calibration(conversation.state, deployment.key, start_slope)
        costs = {attachment.seq: attachment for attachment in learned.attachments}
        attachments = (costs.get(one.seq, replace(one, cost_tokens=None)) for one in turn.calibration.attachments)
        return replace(learned, attachments=tuple(attachments))

    def learn_slope(self, model_key: str, conversation: Conversation, calibration: Calibration) -> None:
        """Take note of how a model counts; new conversations start with it, here and on other replicas."""
        facts = self._calibration_slopes.learn_slope(model_key, conversation.tenant, conversation.id, calibration)
        if facts is not None:
            self._start_fact_write(model_key, facts)

    def learn_window(self, model_key: str, tokens: int) -> None:
        """Take note of a window that a provider has shown."""
        if self._windows.learn_limit(model_key, tokens):
            self._start_fact_write(model_key, {"window": tokens})

    def _make_body_builder(
        self, turn: Turn, view: View, sent_views: dict[str, View]
    ) -> Callable[[ModelDeployment], Awaitable[bytes]]:
        async def body_for(deployment: ModelDeployment) -> bytes:
            is_planned_for = deployment is turn.target.deployments[0]
            sent_view = view if is_planned_for else await self._fit_view_to_deployment(deployment, turn, view)
            sent_views[deployment.key] = sent_view
            messages = sent_view.messages
            if deployment.quirks.restore_fields:
                messages = await self._restore_messages(deployment, turn, sent_view)
            return build_upstream_body(turn.request, messages, deployment, sent_view.compute_output_limit())

        return body_for

    async def _restore_messages(
        self, deployment: ModelDeployment, turn: Turn, sent_view: View
    ) -> Sequence[bytes] | None:
        """The messages of a view with what this deployment wants back of them."""
        return await self._field_restorer.restore_fields(
            deployment.quirks, turn.resolved_request, sent_view.messages, turn.request.raw_messages
        )

    async def _shrink_after_overflow(
        self,
        turn: Turn,
        view: View,
        overflow: ContextOverflow,
        deployment: ModelDeployment,
        compactor: ViewCompactor,
        attempt: int,
    ) -> View:
        """A smaller view, or a lower limit for its answer, after an upstream said that this one is too long."""
        refused_tokens, limit = view.prompt_tokens, overflow.limit_tokens
        if limit is not None and limit < view.budget.window:
            self._windows.learn_limit(deployment.key, limit)
            self._start_fact_write(deployment.key, {"window": limit})
        if overflow.is_output_too_long and (lowered_view := self._lower_output_limit(turn, view, overflow)) is not None:
            return lowered_view
        window = min(limit or view.budget.window, view.budget.window)
        ratio = view.budget.calibration_ratio
        if overflow.prompt_tokens is not None and not overflow.is_lower_bound and view.plan.prompt_tokens:
            ratio = max(ratio, overflow.prompt_tokens / view.plan.prompt_tokens)
        elif limit is None or refused_tokens < limit:
            window = max(1, int(min(window, refused_tokens) * UNSTATED_OVERFLOW_SHARE))
        budget = self._view_builder.compute_budget(turn, window=window, slope=ratio)
        smaller = await self._view_builder.build_view(turn, budget, summarize="never" if attempt == 0 else "auto")
        if not smaller.plan.fits:
            raise make_context_length_error(smaller)
        if smaller.plan.to_summarize and attempt > 0 and turn.resolved_request.is_stored:
            smaller = await compactor.compact(turn, smaller)
        log.info("recovering from an overflow: window %d, view of %d tokens", window, smaller.plan.prompt_tokens)
        return replace(
            smaller, is_overflow_recovered=True, compaction=smaller.compaction if attempt else view.compaction
        )

    def _lower_output_limit(self, turn: Turn, view: View, overflow: ContextOverflow) -> View | None:
        """The same messages with a lower limit for the answer; None where that would leave less room than is kept free
        for an answer, or did not help before."""
        limit, prompt = overflow.limit_tokens, overflow.prompt_tokens
        assert limit is not None
        assert prompt is not None
        if overflow.is_lower_bound and view.provider_output_limit is not None:
            return None
        ratio = max(view.budget.calibration_ratio, prompt / max(1, view.plan.prompt_tokens))
        budget = self._view_builder.compute_budget(turn, window=min(limit, view.budget.window), slope=ratio)
        if overflow.is_lower_bound:
            output_room = limit - max(prompt, view.prompt_tokens) - budget.reserve_tokens
        else:
            output_room = limit - prompt - OUTPUT_MARGIN_TOKENS
        if output_room < max(1, budget.output):
            return None
        return replace(view, budget=budget, provider_output_limit=output_room, is_overflow_recovered=True)

    def _start_fact_write(self, model_key: str, facts: dict[str, object]) -> None:
        if NUL_CHARACTER not in model_key:  # which no database can keep
            self._tasks.spawn(self._write_learned_facts(model_key, facts))

    async def _write_learned_facts(self, model_key: str, facts: dict[str, object]) -> None:
        try:
            await self._store.merge_model_facts(model=model_key, facts=facts)
        except GatewayError as error:
            log.warning("what was learned of %s could not be stored: %s", model_key, error.message)


def _recognise_overflow(status: int, body: bytes, view: View) -> ContextOverflow | None:
    overflow = detect_overflow(status, body)
    if overflow is None or overflow.is_certain:
        return overflow
    return (
        overflow
        if view.budget.calibrate_tokens(view.plan.prompt_tokens) > DOUBTFUL_OVERFLOW_SHARE * view.budget.window
        else None
    )


async def _accept_reply(
    reply: StreamReply | BufferedReply, body: bytes, deployment: ModelDeployment, sent_view: View, *, stream: bool
) -> UpstreamAnswer:
    """Take an answer that says something else than a completion, if its client is to see that all the same.

    Raises:
        UpstreamRefused: it is the upstream's own error.
        UpstreamUnavailable: it is of no use.
    """
    if reply.status == STATUS_OK and is_expected_reply(reply, stream=stream):
        return UpstreamAnswer(reply, deployment, sent_view)
    await reply.aclose()
    raise _build_refusal_error(reply, body, deployment)


def _build_refusal_error(reply: StreamReply | BufferedReply, body: bytes, deployment: ModelDeployment) -> GatewayError:
    """What the client gets for an answer that is of no use."""
    status = reply.status
    if 400 <= status < 600:
        content_type = reply.headers.get("content-type", "application/json")
        return UpstreamRefused(status, body, {"content-type": content_type, **select_forwarded_headers(reply.headers)})
    if 200 <= status < 300 and body.lstrip()[:1] == b"{" and b'"error"' in body:
        return UpstreamRefused(BAD_GATEWAY, body, {"content-type": "application/json"})
    if status in REDIRECT_STATUSES:
        return build_bad_answer_error(deployment, f"answered with status {status}. Redirects are not followed")
    if status != STATUS_OK:
        return build_bad_answer_error(deployment, f"answered with status {status}, which no chat completion has")
    return build_bad_answer_error(deployment, "did not answer in the form that was asked for")
