"""What there is to know of a request besides its place: policy, model, window, calibration. Nothing is written."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from app.compaction.summarizer import SAME_MODEL, input_tokens
from app.context.calibration import Calibration
from app.context.policy import Policy
from app.context.vocabulary import encoding_for
from app.errors import PolicyNotFound
from app.exchange.placement import Recollection
from app.exchange.request import ChatRequest
from app.exchange.views import Turn, calibration_of
from app.upstream.base import Deployment, Target, Window
from app.upstream.router import Router
from app.upstream.windows import Windows


class Means(msgspec.Struct, frozen=True):
    """Who is to answer a request, and under which policy."""

    policy: Policy
    target: Target
    window: Window
    summarizer_input_tokens: int
    """How much of a log one summary call may read."""

    @property
    def deployment(self) -> Deployment:
        return self.target.deployments[0]

    @property
    def encoding(self) -> str:
        """Of token counts, where a conversation is to begin."""
        return self.deployment.encoding or encoding_for(self.deployment.upstream_model)


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
        calibration_seeds: Mapping[str, Calibration],
    ) -> None:
        self._router = router
        self._windows = windows
        self.policies = policies
        self._default_policy = default_policy
        self._model_policies = model_policies
        self._calibration_seeds = calibration_seeds

    async def means(self, request: ChatRequest) -> Means:
        """
        Raises:
            PolicyNotFound: there is no policy of that name.
            ModelNotFound: no provider has that model.
        """
        policy = self.policy(request)
        target = self._router.resolve(request.model)
        window = await self._windows.of(target.deployments[0], request.caller.authorization)
        return Means(policy, target, window, await self._summarizer_input_tokens(policy, window, request))

    def turn(self, request: ChatRequest, means: Means, place: Recollection) -> Turn:
        """A request in its place, ready to be planned."""
        key = means.deployment.key
        seed = self._calibration_seeds.get(key, Calibration())
        return Turn(
            request=request,
            target=means.target,
            policy=means.policy,
            window=means.window,
            calibration=calibration_of(place.conversation.state, key, seed),
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

    async def _summarizer_input_tokens(self, policy: Policy, window: Window, request: ChatRequest) -> int:
        named = policy.summarizer.model
        if named != SAME_MODEL:
            deployment = self._router.resolve(named).deployments[0]
            window = await self._windows.of(deployment, request.caller.authorization)
        return input_tokens(policy, window.tokens)
