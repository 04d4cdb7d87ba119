"""What there is to know of a request besides its place: policy, model, window, calibration. Nothing is written."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, Final

import msgspec

from app.compaction.summarizer.summarizer import SAME_MODEL, compute_max_input_tokens
from app.context.calibration import HIGHEST_SLOPE, LOWEST_SLOPE, AttachmentCost, Calibration
from app.context.count.token_counter import choose_counter_name
from app.context.plan.policy import ContextPolicy
from app.errors import PolicyNotFound
from app.pipeline.chat_request import ChatRequest
from app.pipeline.resolve.resolved_request import ResolvedRequest
from app.pipeline.token_counting import MessageCounter
from app.pipeline.view.view_builder import Turn
from app.pipeline.view.view_state import read_calibration
from app.upstream.provider import ClientKey, ContextWindow, RouteTarget, bind_client_key
from app.upstream.routing.context_windows import ContextWindows
from app.upstream.routing.router import Router

ATTACHMENT_MARKERS: Final = (b'"image_url"', b'"input_audio"', b'"file"')
"""One of these stands in the JSON of every message with an attachment (`tokens.ATTACHED`)."""
MAX_MODEL_CONTEXTS: Final = 1_000
"""Of so many pairs of policy and model it is remembered what they come to."""


class ModelContext(msgspec.Struct, frozen=True):
    """Who is to answer a request, and under which policy."""

    policy: ContextPolicy
    target: RouteTarget
    window: ContextWindow
    summarizer_input_tokens: int
    """How much of a log one summary call may read."""

    model_key: str
    """`provider/model` of the first deployment."""
    encoding: str
    """Of token counts, where a conversation is to begin."""

    def is_current(self, policy: ContextPolicy, target: RouteTarget, window: ContextWindow) -> bool:
        """Whether these are what they were made of."""
        return self.policy is policy and self.target is target and self.window == window


class ModelContexts:
    """Finds policies, models and windows as they are configured, or known by now."""

    def __init__(
        self,
        *,
        router: Router,
        windows: ContextWindows,
        policies: Mapping[str, ContextPolicy],
        default_policy: str,
        model_policies: Mapping[str, str],
        calibration_slopes: CalibrationSlopes,
        message_counter: MessageCounter,
    ) -> None:
        self._router = router
        self._windows = windows
        self.policies = policies
        self._default_policy = default_policy
        self._model_policies = model_policies
        self._calibration_slopes = calibration_slopes
        self._message_counter = message_counter
        self._model_contexts: dict[tuple[str, str], ModelContext] = {}
        """By policy and model, what they came to last: most turns come to the same."""

    async def find_model_context(self, request: ChatRequest) -> ModelContext:
        """
        Raises:
            PolicyNotFound: there is no policy of that name.
            ModelNotFound: no provider has that model.
        """
        policy = self.find_policy(request)
        target = self._router.resolve(request.model)
        deployment = target.deployments[0]
        client_key = bind_client_key(request.caller.authorization, deployment.provider)
        window = await self._windows.find_window(deployment, client_key)
        cached_context = self._model_contexts.get((policy.name, request.model))
        if (
            cached_context is not None
            and cached_context.is_current(policy, target, window)
            and policy.summarizer.model == SAME_MODEL
        ):
            return cached_context
        model_context = ModelContext(
            policy=policy,
            target=target,
            window=window,
            summarizer_input_tokens=await self._find_summarizer_input_tokens(policy, window, client_key),
            model_key=deployment.key,
            encoding=choose_counter_name(deployment.upstream_model, deployment.encoding),
        )
        if len(self._model_contexts) >= MAX_MODEL_CONTEXTS:
            self._model_contexts.clear()
        self._model_contexts[policy.name, request.model] = model_context
        return model_context

    def build_turn(self, request: ChatRequest, model_context: ModelContext, resolved_request: ResolvedRequest) -> Turn:
        """A request in its place, ready to be planned."""
        model_key, conversation = model_context.model_key, resolved_request.conversation
        calibration = read_calibration(
            conversation.state, model_key, self._calibration_slopes.find_start_slope(model_key, conversation.tenant)
        )
        attachments = self._find_new_attachments(resolved_request)
        return Turn(
            request=request,
            target=model_context.target,
            policy=model_context.policy,
            window=model_context.window,
            calibration=calibration.add_attachments(attachments, head_seq=conversation.head_seq),
            summarizer_input_tokens=model_context.summarizer_input_tokens,
            resolved_request=resolved_request,
        )

    def find_policy(self, request: ChatRequest) -> ContextPolicy:
        """The policy that the request names, or its key's, or its model's, or the general one.

        Raises:
            PolicyNotFound: there is none of that name.
        """
        model_policy = self._model_policies.get(request.model, self._default_policy)
        name = request.policy or request.caller.default_policy or model_policy
        policy = self.policies.get(name)
        if policy is None:
            raise PolicyNotFound(
                f"Unknown context policy {name!r}; known are {', '.join(sorted(self.policies))}.",
                param="context.policy",
            )
        return policy

    def _find_new_attachments(self, resolved_request: ResolvedRequest) -> Iterator[AttachmentCost]:
        """The new messages with images, audio or files."""
        for entry in resolved_request.new_messages:
            if any(name in entry.message.raw for name in ATTACHMENT_MARKERS):
                counter = self._message_counter.find_token_counter(resolved_request.conversation.counter_name)
                if tokens := counter.count_attachments(entry.message.body):
                    yield AttachmentCost(entry.seq, tokens)

    async def _find_summarizer_input_tokens(
        self, policy: ContextPolicy, window: ContextWindow, client_key: ClientKey | None
    ) -> int:
        summarizer_model = policy.summarizer.model
        if summarizer_model != SAME_MODEL:
            deployment = self._router.resolve(summarizer_model).deployments[0]
            window = await self._windows.find_window(deployment, client_key)
        return compute_max_input_tokens(policy, window.tokens)


MIN_EVIDENCE_TOKENS: Final = 500
"""A conversation counts once so many tokens were compared."""
MIN_TENANTS: Final = 3
"""So many other tenants' slopes say something of a model; fewer may say something of what one tenant sends."""
MAX_CONVERSATIONS_PER_TENANT: Final = 9
"""Of each tenant and model: those that learned last."""
MAX_TENANTS_PER_MODEL: Final = 64
"""Of each model: those that learned last."""
MAX_MODELS: Final = 1_000
MIN_SLOPE_DRIFT: Final = 0.02
"""A tenant's median that moved by more than this is stored."""
SLOPES_FACT: Final = "slopes"
"""Of the facts of a model: the median of each tenant, by the digest of its name."""
STORED_SLOPE_KEY: Final = ""
"""In the place of a conversation's id: what was stored for a tenant."""


class CalibrationSlopes:
    """Remembers the slopes of recent conversations by model and tenant. Offsets are never borrowed."""

    def __init__(self) -> None:
        self._slopes: OrderedDict[str, OrderedDict[str, OrderedDict[str, float]]] = OrderedDict()
        """By model, tenant (digest) and conversation."""
        self._stored_slopes: dict[str, dict[str, float]] = {}
        """What is stored, by model and tenant."""

    def find_start_slope(self, model_key: str, tenant: str) -> float:
        """The slope of a new conversation: the median of its own tenant's, or that of three other tenants' at least."""
        tenants = self._slopes.get(model_key)
        if tenants is None:
            return 1.0
        if tenant_slopes := tenants.get(_digest_tenant(tenant)):
            return median(tenant_slopes.values())
        return median(median(one.values()) for one in tenants.values()) if len(tenants) >= MIN_TENANTS else 1.0

    def learn_slope(
        self, model_key: str, tenant: str, conversation_id: str, calibration: Calibration
    ) -> dict[str, Any] | None:
        """Take note of what a conversation has learned. Gives facts to store, where they changed."""
        if calibration.changed_estimated < MIN_EVIDENCE_TOKENS:
            return None
        tenant_slopes = self._open_tenant_slopes(model_key, _digest_tenant(tenant))
        tenant_slopes.pop(STORED_SLOPE_KEY, None)
        tenant_slopes[conversation_id] = calibration.slope
        tenant_slopes.move_to_end(conversation_id)
        while len(tenant_slopes) > MAX_CONVERSATIONS_PER_TENANT:
            tenant_slopes.popitem(last=False)
        stored_slopes, tenant_median = self._stored_slopes.setdefault(model_key, {}), median(tenant_slopes.values())
        if abs(stored_slopes.get(_digest_tenant(tenant), 1.0) - tenant_median) <= MIN_SLOPE_DRIFT:
            return None
        stored_slopes = {name: slope for name, slope in stored_slopes.items() if name in self._slopes[model_key]}
        stored_slopes[_digest_tenant(tenant)] = round(tenant_median, 4)
        self._stored_slopes[model_key] = stored_slopes
        return {SLOPES_FACT: stored_slopes}

    def restore_slopes(self, model_key: str, facts: object) -> None:
        """Read what was stored; anything else is passed over."""
        for tenant, slope in facts.items() if isinstance(facts, Mapping) else ():
            if isinstance(slope, int | float) and LOWEST_SLOPE <= slope <= HIGHEST_SLOPE:
                self._open_tenant_slopes(model_key, str(tenant))[STORED_SLOPE_KEY] = float(slope)
                self._stored_slopes.setdefault(model_key, {})[str(tenant)] = float(slope)

    def _open_tenant_slopes(self, model_key: str, tenant: str) -> OrderedDict[str, float]:
        """The slopes of a tenant, which becomes the one that learned last."""
        tenants = self._slopes.setdefault(model_key, OrderedDict())
        self._slopes.move_to_end(model_key)
        tenant_slopes = tenants.setdefault(tenant, OrderedDict())
        tenants.move_to_end(tenant)
        if len(tenants) > MAX_TENANTS_PER_MODEL:
            tenants.popitem(last=False)
        if len(self._slopes) > MAX_MODELS:
            evicted_model, _ = self._slopes.popitem(last=False)
            self._stored_slopes.pop(evicted_model, None)
        return tenant_slopes


def _digest_tenant(tenant: str) -> str:
    return hashlib.blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
