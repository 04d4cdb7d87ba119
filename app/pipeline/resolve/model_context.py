"""What planning needs of a request besides its conversation: policy, model, window and calibration. Nothing is
written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from app.compaction.summarizer.summary_request import SAME_MODEL
from app.context.calibration import AttachmentCost
from app.context.count.token_counter import choose_token_counter_name
from app.context.plan.budget import compute_max_input_tokens
from app.context.plan.outline import SummarizeMode
from app.context.plan.policy import ContextPolicy
from app.dialects.body.message_fields import ATTACHMENT_MARKERS
from app.errors import PolicyNotFound
from app.pipeline.turn.chat_request import ChatRequest, CompactionOptions
from app.pipeline.turn.last_view_and_calibration import CalibrationSlopes, read_calibration
from app.pipeline.turn.resolved_request import ResolvedRequest
from app.pipeline.turn.token_counting import MessageCounter
from app.pipeline.turn.turn import Turn, edits_context, read_context_edits
from app.upstream.provider_contract import ClientKey, ContextWindow, RouteTarget
from app.upstream.routing.context_windows import ContextWindows
from app.upstream.routing.routes import Routes


class ModelContext(msgspec.Struct, frozen=True):
    """The model that is to answer a request, and the policy to plan with."""

    policy: ContextPolicy
    target: RouteTarget
    window: ContextWindow
    summarizer_input_tokens: int
    """The most tokens of a log that one summarizer call can read."""
    encoding: str
    """The tokenizer's name for a new conversation."""


@dataclass(eq=False, kw_only=True)
class ModelContexts:
    """Finds the policy, the model and the window of requests."""

    routes: Routes
    windows: ContextWindows
    policies: Mapping[str, ContextPolicy]
    default_policy: str
    model_policies: Mapping[str, str]
    calibration_slopes: CalibrationSlopes
    message_counter: MessageCounter

    async def find_model_context(self, request: ChatRequest) -> ModelContext:
        """Finds a request's policy, model and window.

        Raises:
            PolicyNotFound: there is no policy of that name.
            ModelNotFound: no provider has that model.
        """
        # The policy that the request names, or else that of its API key, of its model, or the default.
        model_policy = self.model_policies.get(request.model, self.default_policy)
        policy_name = request.context.policy or request.caller.default_policy or model_policy
        policy = self.policies.get(policy_name)
        if policy is None:
            raise PolicyNotFound(
                f"Unknown context policy {policy_name!r}; known are {', '.join(sorted(self.policies))}.",
                param="context.policy",
            )
        target = self.routes.resolve(request.model)
        deployment = target.deployments[0]
        authorization = request.caller.authorization
        client_key = None if authorization is None else ClientKey(authorization, deployment.provider.name)
        window = summarizer_window = await self.windows.find_window(deployment, client_key)
        if policy.summarizer.model != SAME_MODEL:
            summarizer = self.routes.resolve(policy.summarizer.model).deployments[0]
            summarizer_window = await self.windows.find_window(summarizer, client_key)
        return ModelContext(
            policy=policy,
            target=target,
            window=window,
            summarizer_input_tokens=compute_max_input_tokens(policy, summarizer_window.tokens),
            encoding=choose_token_counter_name(deployment.upstream_model, deployment.encoding),
        )

    def build_turn(self, request: ChatRequest, model_context: ModelContext, resolved_request: ResolvedRequest) -> Turn:
        """Returns the turn of a resolved request, ready for planning.

        Raises:
            InvalidRequest: the request asks for a context edit that its provider does not do, and the gateway neither.
        """
        conversation, deployment = resolved_request.conversation, model_context.target.deployments[0]
        if request.compaction.capsule_format is not None and edits_context(deployment, request):
            request = leave_compaction(request)
        calibration = read_calibration(
            conversation.state,
            deployment.key,
            self.calibration_slopes.find_start_slope(deployment.key, conversation.tenant),
        )
        attachments = self._count_new_attachments(resolved_request)
        return Turn(
            request=request,
            target=model_context.target,
            policy=model_context.policy,
            window=model_context.window,
            calibration=calibration.add_attachments(attachments, head_seq=conversation.head_seq),
            summarizer_input_tokens=model_context.summarizer_input_tokens,
            resolved_request=resolved_request,
            context_edits=read_context_edits(request, deployment),
        )

    def _count_new_attachments(self, resolved_request: ResolvedRequest) -> Iterator[AttachmentCost]:
        """Yields the cost of each new message with images, audio or files."""
        for entry in resolved_request.new_messages:
            if any(map(entry.message.raw.__contains__, ATTACHMENT_MARKERS)):
                counter = self.message_counter.find_token_counter(resolved_request.conversation.token_counter_name)
                if tokens := counter.count_attachments(entry.message):
                    yield AttachmentCost(entry.seq, tokens)


def leave_compaction(request: ChatRequest) -> ChatRequest:
    """Returns a request without the compaction that it asks for, which is its provider's to make."""
    asked = request.compaction
    summarize: SummarizeMode = "auto" if asked.is_alone else asked.summarize
    return replace(request, compaction=CompactionOptions(summarize, asked.through_seq, instructions=asked.instructions))
