"""Sends a view upstream, with what a deployment needs of stored answers and the client leaves out of its history:
fields that its quirks name, and encrypted reasoning. Windows and slopes that answers reveal are learned."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence, Set
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from app.context.calibration import Calibration
from app.conversation.conversation_types import LogMessage
from app.dialects.answer_decoding import BAD_GATEWAY
from app.dialects.provider_dialect import ProviderDialect
from app.dialects.provider_dialects import PROVIDER_DIALECTS, select_queries
from app.dialects.sealed_parts import list_sealed_parts
from app.dialects.usage import TokenUsage
from app.errors import ContextLengthExceeded, GatewayError, StoreUnavailable, UpstreamRefused, UpstreamUnavailable
from app.pipeline.call.upstream_reply import (
    StreamReply,
    build_bad_answer_error,
    is_expected_reply,
    read_first_event_or_body,
    select_forwarded_headers,
)
from app.pipeline.call.upstream_request_body import UpstreamBody, build_upstream_body
from app.pipeline.call.window_learning import WindowLearner, replace_window
from app.pipeline.turn.chat_request import ChatRequest
from app.pipeline.turn.last_view_and_calibration import CalibrationSlopes, read_calibration
from app.pipeline.turn.resolved_request import OPAQUE_ORIGIN, OPAQUE_ORIGINS, ResolvedRequest
from app.pipeline.turn.turn import Turn, View, build_cache_key, read_context_edits, speaks_protocol
from app.pipeline.view.view_builder import ViewBuilder
from app.store.contract.conversations import ConversationStore
from app.upstream.protocols.overflow_detection import ContextOverflow, detect_overflow
from app.upstream.provider_contract import COUNT_PATHS, ClientKey, ModelDeployment, ProviderQuirks, UpstreamRequest
from app.upstream.quirks.field_restoration import find_messages_missing_fields, restore_missing_fields
from app.upstream.routing.context_windows import ContextWindows
from app.upstream.routing.measured_calls import send_passthrough
from app.upstream.routing.prices import compute_call_cost_usd
from app.upstream.routing.router import STATUS_OK, BufferedReply, Router

DOUBTFUL_OVERFLOW_SHARE: Final = 0.5
"""An ambiguous error is taken for an overflow if the prompt is above this share of the window."""
COUNT_SECONDS: Final = 10.0
"""The longest time for a provider's count of tokens. Clients count before they send, so a late count is worth less than
an estimate."""
REDIRECT_STATUSES: Final = frozenset({300, 301, 302, 303, 307, 308})


class UpstreamAnswer(msgspec.Struct, frozen=True):
    """A successful reply of a deployment: a stream that has begun, or a whole body."""

    reply: StreamReply | BufferedReply
    deployment: ModelDeployment
    sent_view: View
    """The view that the deployment got; smaller than the planned view if the deployment's window is smaller."""


class PromptOverflow(Exception):
    """The upstream refused a view as too long.

    Attributes:
        reported: what the upstream said about it.
        deployment: the deployment that refused.
    """

    def __init__(self, reported: ContextOverflow, deployment: ModelDeployment) -> None:
        super().__init__()
        self.reported = reported
        self.deployment = deployment


@dataclasses.dataclass(eq=False, kw_only=True)
class UpstreamCaller:
    """Sends a view to the first deployment that answers, and stores the windows and slopes that answers reveal."""

    router: Router
    windows: ContextWindows
    view_builder: ViewBuilder
    store: ConversationStore
    window_learner: WindowLearner
    calibration_slopes: CalibrationSlopes

    async def call(self, turn: Turn, view: View, *, can_recover: bool = True) -> UpstreamAnswer:
        """Calls the upstream.

        Args:
            can_recover: whether the caller plans a smaller view after an overflow. If not, an overflow is a refusal
                like any other.

        Raises:
            PromptOverflow: the upstream refused the view as too long. A limit that it stated is learned.
            UpstreamRefused: the upstream's own error, unchanged.
            UpstreamUnavailable: no deployment answered.
            ContextLengthExceeded: no view fits the window of the deployment.
        """
        await self._reserve_cost(turn, view)
        sent_views: dict[str, View] = {}

        async def body_for(deployment: ModelDeployment) -> bytes:
            sent_view = view
            # The view was planned for the first deployment; the others are its fallbacks.
            if deployment is not turn.target.deployments[0]:
                sent_view = await self._fit_view_to_deployment(deployment, turn, view)
                sent_view = replace(sent_view, fallback=deployment.key)
            sent_views[deployment.key] = sent_view
            built = await self._build_body(deployment, turn, sent_view)
            if built.warnings:
                sent_views[deployment.key] = replace(sent_view, warnings=(*sent_view.warnings, *built.warnings))
            return built.body

        opened = await self.router.send(
            turn.target,
            body_for,
            tenant=turn.request.caller.tenant,
            client_key=turn.client_key,
            headers=turn.request.forwarded.headers,
            queries=select_queries(turn.request.protocol, turn.request.forwarded.query),
        )
        deployment = opened.deployment
        reply, error_body = await read_first_event_or_body(
            opened.reply, deployment, stream=turn.request.delivery.stream
        )
        sent_view = sent_views[deployment.key]
        if error_body is None:
            return UpstreamAnswer(reply, deployment, sent_view)
        overflow = _recognise_overflow(reply.status, error_body, view) if can_recover else None
        if overflow is None:
            return await _accept_reply_or_raise(
                reply, error_body, deployment, sent_view, stream=turn.request.delivery.stream
            )
        await reply.aclose()
        if overflow.limit_tokens is not None and overflow.limit_tokens < sent_view.budget.window:
            self.window_learner.learn_from_refusal(deployment, overflow)
        raise PromptOverflow(overflow, deployment)

    async def ask_for_token_count(self, request: ChatRequest) -> bytes | None:
        """Returns the body with which a provider answers how many tokens a request has. None if it speaks another
        protocol than the client, refuses to count, or is away: then the gateway counts.

        Raises:
            ModelNotFound: no provider has the model.
        """
        deployment = self.router.resolve(request.model).deployments[0]
        provider, authorization = deployment.provider, request.caller.authorization
        path = COUNT_PATHS.get(provider.protocol)
        if path is None or not speaks_protocol(deployment, request):
            return None
        body = build_upstream_body(request, None, deployment).body
        key = authorization and ClientKey(authorization, provider.name).disclose_to_provider(provider)
        call = UpstreamRequest(path, body, authorization=key, headers=request.forwarded.headers)
        try:
            async with asyncio.timeout(COUNT_SECONDS), aclosing(await send_passthrough(provider, call)) as reply:
                count = await reply.read()
        except (UpstreamUnavailable, TimeoutError):
            return None
        return count if reply.status == STATUS_OK and b'"input_tokens"' in count else None

    async def call_next_round(
        self,
        deployment: ModelDeployment,
        turn: Turn,
        sent_view: View,
        added_messages: Sequence[bytes],
        added_tokens: int,
    ) -> UpstreamAnswer:
        """Calls the same deployment for the next round of an answer.

        Args:
            deployment: the deployment of the first round.
            turn: the turn; its request may differ from the first round's in everything but its messages.
            sent_view: the view of the first round.
            added_messages: JSON text of each message after the view.
            added_tokens: raw token count of `added_messages`.

        Raises:
            UpstreamRefused: the upstream's own error, unchanged.
            UpstreamUnavailable: the deployment did not answer.
        """
        await self._reserve_cost(turn, sent_view, deployment, added_tokens)
        built = await self._build_body(deployment, turn, sent_view, added_messages, added_tokens)

        async def body_for(_: ModelDeployment) -> bytes:
            return built.body

        opened = await self.router.send(
            dataclasses.replace(turn.target, deployments=(deployment,)),
            body_for,
            tenant=turn.request.caller.tenant,
            client_key=turn.client_key,
            headers=turn.request.forwarded.headers,
            queries=select_queries(turn.request.protocol, turn.request.forwarded.query),
        )
        reply, error_body = await read_first_event_or_body(
            opened.reply, deployment, stream=turn.request.delivery.stream
        )
        if error_body is None:
            return UpstreamAnswer(reply, deployment, sent_view)
        return await _accept_reply_or_raise(
            reply, error_body, deployment, sent_view, stream=turn.request.delivery.stream
        )

    async def _build_body(
        self,
        deployment: ModelDeployment,
        turn: Turn,
        sent_view: View,
        added_messages: Sequence[bytes] = (),
        added_tokens: int = 0,
    ) -> UpstreamBody:
        """Builds the body for a deployment, with what it needs of the stored answers. Arguments as of
        `call_next_round`."""
        request, resolved_request = turn.request, turn.resolved_request
        state, client_messages = resolved_request.conversation.state, request.raw_messages
        messages, restorer = sent_view.messages, FieldRestorer(self.store)
        if OPAQUE_ORIGINS in state:
            messages = await restorer.restore_answers(
                PROVIDER_DIALECTS[deployment.provider.protocol],
                request.protocol,
                resolved_request,
                messages,
                client_messages,
            )
        if deployment.quirks.restore_fields:
            messages = await restorer.restore_fields(deployment.quirks, resolved_request, messages, client_messages)
        own_contents = await self._find_own_contents(deployment, turn, messages)
        if added_messages:
            messages = [*(client_messages if messages is None else messages), *added_messages]
            if own_contents is not None:  # those of the rounds before come from this deployment
                own_contents |= {content for raw in added_messages for content in list_sealed_parts(raw)}
        return build_upstream_body(
            request,
            messages,
            deployment,
            sent_view.compute_lowered_output_limit(added_tokens),
            own_contents=own_contents,
            # Other messages may stand before an answer than when it was written: the gateway has shortened them, or the
            # client has changed them.
            is_edited=sent_view.plan.status != "full" or bool(resolved_request.shown.client_versions),
            cache_key=build_cache_key(turn, deployment),
        )

    async def _reserve_cost(
        self, turn: Turn, view: View, deployment: ModelDeployment | None = None, added_tokens: int = 0
    ) -> None:
        """Reserves what a call may cost at the most expensive of its deployments, if the caller's key has a budget.

        Args:
            deployment: of a further round of an answer; its cost comes on top of what is reserved.
            added_tokens: raw tokens of messages after the view.

        Raises:
            BudgetExceeded: the budget has not so much left.
        """
        allowance, request = turn.request.allowance, turn.request
        if allowance is None or not allowance.has_budget:
            return
        limit = view.compute_lowered_output_limit(added_tokens) or request.max_output_tokens
        prompt_tokens = view.prompt_tokens + view.budget.calibrate_tokens(added_tokens)
        # Where writing to the cache has a price, a prompt that is written as a whole is the dearest.
        usage = TokenUsage(
            prompt_tokens,
            output_tokens=allowance.compute_answer_tokens(limit, request.choice_count),
            written_tokens=prompt_tokens,
        )
        deployments = turn.target.deployments if deployment is None else (deployment,)
        cost_usd = max(compute_call_cost_usd(one, usage) or 0.0 for one in deployments)
        await allowance.reserve(cost_usd if deployment is None else allowance.reserved_usd + cost_usd)

    async def _fit_view_to_deployment(self, deployment: ModelDeployment, turn: Turn, view: View) -> View:
        """Returns the view for a deployment: another one, planned without a model call, if its window is smaller, or if
        only one of both providers does the context edits that the client asks for."""
        window = self.window_learner.limit_window(
            await self.windows.find_window(deployment, turn.client_key),
            turn.resolved_request.conversation.state,
            deployment.key,
        )
        context_edits = read_context_edits(turn.request, deployment)
        if window.tokens >= view.budget.window and context_edits == turn.context_edits:
            return view
        turn = replace(turn, calibration=self.find_calibration(deployment, turn), context_edits=context_edits)
        turn = replace_window(turn, window)
        try:
            smaller = await self._build_view_without_summaries(turn)
        except ContextLengthExceeded:
            # A learned limit never refuses a request: the provider decides.
            if window.without_limit is None:
                raise
            smaller = await self._build_view_without_summaries(replace_window(turn, window.without_limit))
        return replace(
            smaller,
            compaction=view.compaction,
            is_overflow_recovered=view.is_overflow_recovered,
            refused_size=view.refused_size,
        )

    async def _build_view_without_summaries(self, turn: Turn) -> View:
        return await self.view_builder.build_view(turn, self.view_builder.compute_budget(turn), summarize="never")

    def select_view_to_continue(self, turn: Turn, view: View, upstream_answer: UpstreamAnswer) -> tuple[Turn, View]:
        """Returns the view that the next turn is expected to continue, and its turn: with a smaller window than
        planned if a fallback has answered, or after an overflow. Otherwise nothing would be summarized for that window.
        """
        sent_view, deployment = upstream_answer.sent_view, upstream_answer.deployment
        if sent_view.budget.window >= turn.window.tokens:
            return turn, view
        if deployment is not turn.target.deployments[0]:
            turn = replace(turn, calibration=self.find_calibration(deployment, turn))
        return replace_window(turn, replace(turn.window, tokens=sent_view.budget.window)), sent_view

    def find_calibration(self, deployment: ModelDeployment, turn: Turn) -> Calibration:
        """Finds the conversation's calibration for a fallback, with costs for the attachments that the turn shows."""
        conversation = turn.resolved_request.conversation
        start_slope = self.calibration_slopes.find_start_slope(deployment.key, conversation.tenant)
        learned = read_calibration(conversation.state, deployment.key, start_slope)
        costs = {attachment.seq: attachment for attachment in learned.attachments}
        attachments = (costs.get(one.seq, replace(one, cost_tokens=None)) for one in turn.calibration.attachments)
        return replace(learned, attachments=tuple(attachments))

    async def _find_own_contents(
        self, deployment: ModelDeployment, turn: Turn, messages: Sequence[bytes] | None
    ) -> Set[str] | None:
        """Returns the encrypted contents that go to a deployment, because they come from there; None: all.

        If no answer of the log has such contents, the client brought them, and asks the model that they come from.
        """
        resolved_request = turn.resolved_request
        origins = resolved_request.conversation.state.get(OPAQUE_ORIGINS) or [turn.model_key]
        if deployment.provider.protocol == "openai" or deployment.key not in origins:
            return frozenset()
        if len(origins) == 1:
            return None
        count = len(turn.request.raw_messages if messages is None else messages)
        return await FieldRestorer(self.store).read_own_contents(resolved_request, deployment.key, count)


def _recognise_overflow(status: int, body: bytes, view: View) -> ContextOverflow | None:
    overflow = detect_overflow(status, body)
    is_long = view.prompt_tokens > DOUBTFUL_OVERFLOW_SHARE * view.budget.window
    return overflow if is_long or (overflow is not None and overflow.is_certain) else None


async def _accept_reply_or_raise(
    reply: StreamReply | BufferedReply, body: bytes, deployment: ModelDeployment, sent_view: View, *, stream: bool
) -> UpstreamAnswer:
    """Passes on a reply that has the expected form but no `choices`; raises for any other.

    Raises:
        UpstreamRefused: the reply is the upstream's own error.
        UpstreamUnavailable: the reply is neither an answer nor an error.
    """
    if reply.status == STATUS_OK and is_expected_reply(reply, stream=stream):
        return UpstreamAnswer(reply, deployment, sent_view)
    await reply.aclose()
    raise _build_refusal_error(reply, body, deployment)


def _build_refusal_error(reply: StreamReply | BufferedReply, body: bytes, deployment: ModelDeployment) -> GatewayError:
    """Builds the client's error for a reply that is not an answer."""
    status = reply.status
    if 400 <= status < 600:
        content_type = reply.headers.get("content-type", "application/json")
        return UpstreamRefused(status, body, {"content-type": content_type, **select_forwarded_headers(reply.headers)})
    # Some gateways report their errors with status 200.
    if 200 <= status < 300 and body.lstrip()[:1] == b"{" and b'"error"' in body:
        return UpstreamRefused(BAD_GATEWAY, body, {"content-type": "application/json"})
    if status in REDIRECT_STATUSES:
        return build_bad_answer_error(deployment, f"answered with status {status}. Redirects are not followed")
    if status != STATUS_OK:
        return build_bad_answer_error(
            deployment, f"answered with status {status}, which is not a status of a chat completion"
        )
    return build_bad_answer_error(deployment, "did not answer in the form that the request asks for")


_READ_BACK_FACTOR = 2
"""How many log messages to read for each message of a client history that leaves out some of the log."""


@dataclass(frozen=True, slots=True)
class FieldRestorer:
    """Reads stored answers to fill in what is missing. If nothing is missing, it reads nothing."""

    store: ConversationStore

    async def restore_fields(
        self,
        quirks: ProviderQuirks,
        resolved_request: ResolvedRequest,
        view_messages: Sequence[bytes] | None,
        client_messages: Sequence[bytes],
    ) -> Sequence[bytes] | None:
        """Adds the fields that the provider requires to the messages of a view, as far as they are stored.

        Args:
            quirks: the quirks of the deployment that gets the messages.
            resolved_request: the request whose conversation holds the stored answers.
            view_messages: JSON text of each message of the view; None for the client's messages, unchanged.
            client_messages: JSON text of each of the client's messages.

        Returns:
            `view_messages` itself if no field is missing or none is found. If the store is away, none is found, and the
            provider decides whether the messages will do.
        """
        # A view from the store has all fields. Without a log there is nothing to restore from.
        if not quirks.restore_fields or resolved_request.client_messages is None or resolved_request.is_log_unstored:
            return view_messages
        messages = [bytes(raw) for raw in (client_messages if view_messages is None else view_messages)]
        missing = find_messages_missing_fields(messages, quirks.restore_fields, quirks.restore_scope)
        if not missing:
            return view_messages
        stored_answers = await self._read_stored_answers(resolved_request, len(messages) - missing[0])
        raw_answers = [entry.message.raw for entry in stored_answers]
        filled = restore_missing_fields(messages, raw_answers, quirks.restore_fields, quirks.restore_scope)
        return view_messages if filled == messages else filled

    async def restore_answers(
        self,
        dialect: ProviderDialect,
        client: str,
        resolved_request: ResolvedRequest,
        view_messages: Sequence[bytes] | None,
        client_messages: Sequence[bytes],
    ) -> Sequence[bytes] | None:
        """Adds what providers of a protocol need of stored answers and the client could not send back, such as
        encrypted reasoning. Other arguments and result as of `restore_fields`.

        Args:
            client: the protocol of the client.
        """
        if resolved_request.client_messages is None:
            return view_messages
        messages = [bytes(raw) for raw in (client_messages if view_messages is None else view_messages)]
        first_bare = dialect.find_bare_answer(client, messages)
        if first_bare is None:
            return view_messages
        stored_answers = await self._read_stored_answers(resolved_request, len(messages) - first_bare)
        restored = dialect.restore_answers(messages, [entry.message for entry in stored_answers])
        return view_messages if restored == messages else restored

    async def read_own_contents(
        self, resolved_request: ResolvedRequest, deployment_key: str, message_count: int
    ) -> Set[str]:
        """Returns the encrypted contents of stored answers of one deployment.

        Args:
            message_count: how many messages to cover, counted from the end of the log.
        """
        answers = await self._read_stored_answers(resolved_request, message_count)
        own_answers = [entry for entry in answers if (entry.meta or {}).get(OPAQUE_ORIGIN) == deployment_key]
        return {content for entry in own_answers for content in list_sealed_parts(entry.message.raw)}

    async def _read_stored_answers(self, resolved_request: ResolvedRequest, message_count: int) -> list[LogMessage]:
        """Reads the stored answers among the last messages of the log.

        Args:
            message_count: how many messages of the client history to cover, counted from its end.
        """
        end = resolved_request.conversation.head_seq + 1
        read_back_count = message_count if resolved_request.is_aligned_by_index else message_count * _READ_BACK_FACTOR
        try:
            entries = await self.store.read_log(
                resolved_request.conversation, max(0, resolved_request.next_seq - read_back_count), end
            )
        except StoreUnavailable:
            return []
        return [entry for entry in entries if entry.message.role == "assistant"]
