"""What planning needs of a request besides its conversation: policy, model, window and calibration. Nothing is
written."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, Final

import msgspec

from app.compaction.summarizer.summary_generator import SAME_MODEL, compute_max_input_tokens
from app.context.calibration import HIGHEST_SLOPE, LOWEST_SLOPE, AttachmentCost, Calibration
from app.context.count.token_counter import choose_token_counter_name
from app.context.plan.policy import ContextPolicy
from app.errors import PolicyNotFound
from app.pipeline.chat_request import ChatRequest
from app.pipeline.resolve.resolved_request import ResolvedRequest
from app.pipeline.token_counting import MessageCounter
from app.pipeline.turn import Turn
from app.pipeline.view.last_view_and_calibration import read_calibration
from app.upstream.provider_contract import ClientKey, ContextWindow, RouteTarget, bind_client_key
from app.upstream.routing.context_windows import ContextWindows
from app.upstream.routing.router import Router

ATTACHMENT_MARKERS: Final = (b'"image_url"', b'"input_audio"', b'"file"')
"""The JSON of every message with an attachment contains one of these (`app.context.count`)."""
MAX_MODEL_CONTEXTS: Final = 1_000
"""How many pairs of policy and model are cached."""


class ModelContext(msgspec.Struct, frozen=True):
    """The model that is to answer a request, and the policy to plan with."""

    policy: ContextPolicy
    target: RouteTarget
    window: ContextWindow
    summarizer_input_tokens: int
    """The most tokens of a log that one summarizer call can read."""

    model_key: str
    """`provider/model` of the first deployment."""
    encoding: str
    """The tokenizer's name for a new conversation."""

    def is_current(self, policy: ContextPolicy, target: RouteTarget, window: ContextWindow) -> bool:
        """Returns whether this context was built from the same policy, route and window."""
        return self.policy is policy and self.target is target and self.window == window


class ModelContexts:
    """Finds the policy, the model and the window of requests."""

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
        """The last context of each policy and model. Most turns can use it again."""

    async def find_model_context(self, request: ChatRequest) -> ModelContext:
        """Finds a request's policy, model and window.

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
            # Another summarizer model has a window of its own, which may have changed since.
            and policy.summarizer.model == SAME_MODEL
        ):
            return cached_context
        model_context = ModelContext(
            policy=policy,
            target=target,
            window=window,
            summarizer_input_tokens=await self._find_summarizer_input_tokens(policy, window, client_key),
            model_key=deployment.key,
            encoding=choose_token_counter_name(deployment.upstream_model, deployment.encoding),
        )
        if len(self._model_contexts) >= MAX_MODEL_CONTEXTS:
            # The names of models come from clients, so the cache is bounded; to fill it again is cheap.
            self._model_contexts.clear()
        self._model_contexts[policy.name, request.model] = model_context
        return model_context

    def build_turn(self, request: ChatRequest, model_context: ModelContext, resolved_request: ResolvedRequest) -> Turn:
        """Returns the turn of a resolved request, ready for planning."""
        model_key, conversation = model_context.model_key, resolved_request.conversation
        calibration = read_calibration(
            conversation.state, model_key, self._calibration_slopes.find_start_slope(model_key, conversation.tenant)
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
        )

    def find_policy(self, request: ChatRequest) -> ContextPolicy:
        """Returns the policy that the request names, or else that of its API key, of its model, or the default.

        Raises:
            PolicyNotFound: there is no policy of that name.
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

    def _count_new_attachments(self, resolved_request: ResolvedRequest) -> Iterator[AttachmentCost]:
        """Yields the cost of each new message with images, audio or files."""
        for entry in resolved_request.new_messages:
            if any(name in entry.message.raw for name in ATTACHMENT_MARKERS):
                counter = self._message_counter.find_token_counter(resolved_request.conversation.token_counter_name)
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
"""A conversation's slope counts after this many tokens have been compared with the provider's reports."""
MIN_TENANTS: Final = 3
"""With this many tenants, their slopes say something about a model. Fewer may only say what one tenant sends."""
MAX_CONVERSATIONS_PER_TENANT: Final = 9
"""For each tenant and model, the slopes of this many conversations are remembered: those that learned last."""
MAX_TENANTS_PER_MODEL: Final = 64
"""For each model, the slopes of this many tenants are remembered: those that learned last."""
MAX_MODELS: Final = 1_000
MIN_SLOPE_DRIFT: Final = 0.02
"""A tenant's median is stored when it differs from the stored one by more than this."""
SLOPES_FACT: Final = "slopes"
"""A key of the stored facts of a model: the median slope of each tenant, by the digest of the tenant's name."""
STORED_SLOPE_KEY: Final = ""
"""Stands in the place of a conversation's id for the slope that was stored for a tenant."""


class CalibrationSlopes:
    """Remembers the slopes of recent conversations by model and tenant, as a start for new conversations. Offsets are
    not shared: an offset depends on the instructions of one application."""

    def __init__(self) -> None:
        self._slopes: OrderedDict[str, OrderedDict[str, OrderedDict[str, float]]] = OrderedDict()
        """By model, digest of the tenant, and conversation."""
        self._stored_slopes: dict[str, dict[str, float]] = {}
        """The stored slopes, by model and digest of the tenant."""

    def find_start_slope(self, model_key: str, tenant: str) -> float:
        """Returns the slope for a new conversation: the median of the tenant's own slopes; else the median over the
        other tenants, if there are at least three; else 1."""
        tenants = self._slopes.get(model_key)
        if tenants is None:
            return 1.0
        if tenant_slopes := tenants.get(_digest_tenant(tenant)):
            return median(tenant_slopes.values())
        return median(median(one.values()) for one in tenants.values()) if len(tenants) >= MIN_TENANTS else 1.0

    def learn_slope(
        self, model_key: str, tenant: str, conversation_id: str, calibration: Calibration
    ) -> dict[str, Any] | None:
        """Records the slope that a conversation has learned.

        Returns:
            The facts to store for the model; None if they have not changed enough.
        """
        if calibration.changed_estimated < MIN_EVIDENCE_TOKENS:
            return None
        tenant_slopes = self._touch_tenant_slopes(model_key, _digest_tenant(tenant))
        # A slope from this process's own traffic replaces the one that was read from the store.
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
        """Takes over slopes from the stored facts of a model. Anything that is not a plausible slope is ignored."""
        for tenant, slope in facts.items() if isinstance(facts, Mapping) else ():
            if isinstance(slope, int | float) and LOWEST_SLOPE <= slope <= HIGHEST_SLOPE:
                self._touch_tenant_slopes(model_key, str(tenant))[STORED_SLOPE_KEY] = float(slope)
                self._stored_slopes.setdefault(model_key, {})[str(tenant)] = float(slope)

    def _touch_tenant_slopes(self, model_key: str, tenant: str) -> OrderedDict[str, float]:
        """Returns the slopes of a tenant, and makes the tenant the one that learned last."""
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
