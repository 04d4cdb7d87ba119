"""What there is to know of a request besides its place: policy, model, window, calibration. Nothing is written."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, Final

import msgspec

from app.compaction.summarizer.summarizer import SAME_MODEL, input_tokens
from app.context.calibration import HIGHEST_SLOPE, LOWEST_SLOPE, Attachment, Calibration
from app.context.count.token_counter import counter_name
from app.context.plan.policy import Policy
from app.errors import PolicyNotFound
from app.pipeline.chat_request import ChatRequest
from app.pipeline.resolve.resolved_request import Recollection
from app.pipeline.token_counting import Counting
from app.pipeline.view.view_builder import Turn
from app.pipeline.view.view_state import calibration_of
from app.upstream.provider import ClientKey, Target, Window, bind_client_key
from app.upstream.routing.router import Router
from app.upstream.routing.windows import Windows

ATTACHED: Final = (b'"image_url"', b'"input_audio"', b'"file"')
"""One of these stands in the JSON of every message with an attachment (`tokens.ATTACHED`)."""
MOST_MEANS: Final = 1_000
"""Of so many pairs of policy and model it is remembered what they come to."""


class Means(msgspec.Struct, frozen=True):
    """Who is to answer a request, and under which policy."""

    policy: Policy
    target: Target
    window: Window
    summarizer_input_tokens: int
    """How much of a log one summary call may read."""

    model_key: str
    """`provider/model` of the first deployment."""
    encoding: str
    """Of token counts, where a conversation is to begin."""

    def is_of(self, policy: Policy, target: Target, window: Window) -> bool:
        """Whether these are what they were made of."""
        return self.policy is policy and self.target is target and self.window == window


class Turns:
    """Finds policies, models and windows as they are configured, or known by now."""

    def __init__(
        self,
        *,
        router: Router,
        windows: Windows,
        policies: Mapping[str, Policy],
        default_policy: str,
        model_policies: Mapping[str, str],
        slopes: Slopes,
        counting: Counting,
    ) -> None:
        self._router = router
        self._windows = windows
        self.policies = policies
        self._default_policy = default_policy
        self._model_policies = model_policies
        self._slopes = slopes
        self._counting = counting
        self._means: dict[tuple[str, str], Means] = {}
        """By policy and model, what they came to last: most turns come to the same."""

    async def means(self, request: ChatRequest) -> Means:
        """
        Raises:
            PolicyNotFound: there is no policy of that name.
            ModelNotFound: no provider has that model.
        """
        policy = self.policy(request)
        target = self._router.resolve(request.model)
        deployment = target.deployments[0]
        client_key = bind_client_key(request.caller.authorization, deployment.provider)
        window = await self._windows.of(deployment, client_key)
        known = self._means.get((policy.name, request.model))
        if known is not None and known.is_of(policy, target, window) and policy.summarizer.model == SAME_MODEL:
            return known
        means = Means(
            policy=policy,
            target=target,
            window=window,
            summarizer_input_tokens=await self._summarizer_input_tokens(policy, window, client_key),
            model_key=deployment.key,
            encoding=counter_name(deployment.upstream_model, deployment.encoding),
        )
        if len(self._means) >= MOST_MEANS:
            self._means.clear()
        self._means[policy.name, request.model] = means
        return means

    def turn(self, request: ChatRequest, means: Means, place: Recollection) -> Turn:
        """A request in its place, ready to be planned."""
        key, conversation = means.model_key, place.conversation
        calibration = calibration_of(conversation.state, key, self._slopes.start(key, conversation.tenant))
        attachments = self._attachments(place)
        return Turn(
            request=request,
            target=means.target,
            policy=means.policy,
            window=means.window,
            calibration=calibration.with_attachments(attachments, head_seq=conversation.head_seq),
            summarizer_input_tokens=means.summarizer_input_tokens,
            place=place,
        )

    def policy(self, request: ChatRequest) -> Policy:
        """The policy that the request names, or its key's, or its model's, or the general one.

        Raises:
            PolicyNotFound: there is none of that name.
        """
        of_model = self._model_policies.get(request.model, self._default_policy)
        name = request.policy or request.caller.policy or of_model
        found = self.policies.get(name)
        if found is None:
            raise PolicyNotFound(
                f"Unknown context policy {name!r}; known are {', '.join(sorted(self.policies))}.",
                param="context.policy",
            )
        return found

    def _attachments(self, place: Recollection) -> Iterator[Attachment]:
        """The new messages with images, audio or files."""
        for entry in place.new:
            if any(name in entry.message.raw for name in ATTACHED):
                counter = self._counting.counter(place.conversation.counter)
                if tokens := counter.attachments(entry.message.body):
                    yield Attachment(entry.seq, tokens)

    async def _summarizer_input_tokens(self, policy: Policy, window: Window, client_key: ClientKey | None) -> int:
        named = policy.summarizer.model
        if named != SAME_MODEL:
            deployment = self._router.resolve(named).deployments[0]
            window = await self._windows.of(deployment, client_key)
        return input_tokens(policy, window.tokens)


LEAST_EVIDENCE_TOKENS: Final = 500
"""A conversation counts once so many tokens were compared."""
LEAST_TENANTS: Final = 3
"""So many other tenants' slopes say something of a model; fewer may say something of what one tenant sends."""
KEPT_CONVERSATIONS: Final = 9
"""Of each tenant and model: those that learned last."""
KEPT_TENANTS: Final = 64
"""Of each model: those that learned last."""
KEPT_MODELS: Final = 1_000
SLOPE_DRIFT: Final = 0.02
"""A tenant's median that moved by more than this is stored."""
SLOPES: Final = "slopes"
"""Of the facts of a model: the median of each tenant, by the digest of its name."""
STORED: Final = ""
"""In the place of a conversation's id: what was stored for a tenant."""


class Slopes:
    """Remembers the slopes of recent conversations by model and tenant. Offsets are never borrowed."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, OrderedDict[str, OrderedDict[str, float]]] = OrderedDict()
        """By model, tenant (digest) and conversation."""
        self._stored: dict[str, dict[str, float]] = {}
        """What is stored, by model and tenant."""

    def start(self, model_key: str, tenant: str) -> float:
        """The slope of a new conversation: the median of its own tenant's, or that of three other tenants' at least."""
        tenants = self._known.get(model_key)
        if tenants is None:
            return 1.0
        if own := tenants.get(_digest(tenant)):
            return median(own.values())
        return median(median(one.values()) for one in tenants.values()) if len(tenants) >= LEAST_TENANTS else 1.0

    def learn(
        self, model_key: str, tenant: str, conversation_id: str, calibration: Calibration
    ) -> dict[str, Any] | None:
        """Take note of what a conversation has learned. Gives facts to store, where they changed."""
        if calibration.changed_estimated < LEAST_EVIDENCE_TOKENS:
            return None
        own = self._of(model_key, _digest(tenant))
        own.pop(STORED, None)
        own[conversation_id] = calibration.slope
        own.move_to_end(conversation_id)
        while len(own) > KEPT_CONVERSATIONS:
            own.popitem(last=False)
        stored, now = self._stored.setdefault(model_key, {}), median(own.values())
        if abs(stored.get(_digest(tenant), 1.0) - now) <= SLOPE_DRIFT:
            return None
        stored = {name: slope for name, slope in stored.items() if name in self._known[model_key]}
        stored[_digest(tenant)] = round(now, 4)
        self._stored[model_key] = stored
        return {SLOPES: stored}

    def restore(self, model_key: str, facts: object) -> None:
        """Read what was stored; anything else is passed over."""
        for tenant, slope in facts.items() if isinstance(facts, Mapping) else ():
            if isinstance(slope, int | float) and LOWEST_SLOPE <= slope <= HIGHEST_SLOPE:
                self._of(model_key, str(tenant))[STORED] = float(slope)
                self._stored.setdefault(model_key, {})[str(tenant)] = float(slope)

    def _of(self, model_key: str, tenant: str) -> OrderedDict[str, float]:
        """The slopes of a tenant, which becomes the one that learned last."""
        tenants = self._known.setdefault(model_key, OrderedDict())
        self._known.move_to_end(model_key)
        own = tenants.setdefault(tenant, OrderedDict())
        tenants.move_to_end(tenant)
        if len(tenants) > KEPT_TENANTS:
            tenants.popitem(last=False)
        if len(self._known) > KEPT_MODELS:
            gone, _ = self._known.popitem(last=False)
            self._stored.pop(gone, None)
        return own


def _digest(tenant: str) -> str:
    return hashlib.blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
