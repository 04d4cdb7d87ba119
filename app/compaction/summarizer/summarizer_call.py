"""One call of a summarizer through the router, within its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from app.compaction.acceptance.acceptance import decoded
from app.compaction.summarizer.request_body import Prompt, Room, body_of
from app.compaction.summarizer.summary_request import SummaryRequest
from app.context.count.provider_usage import input_of, output_of
from app.context.count.token_counter import counter_name
from app.context.view.view_messages import Counter
from app.errors import UpstreamRefused, UpstreamUnavailable
from app.observability.metrics import SILENT, Metrics, SummaryFacts
from app.upstream.provider import ClientKey, Deployment, Target, Window
from app.upstream.routing.prices import cost_usd, price_of
from app.upstream.routing.router import Router

CHAT_PATH = "/chat/completions"


class Windows(Protocol):
    """The part of `upstream.routing.windows` that a summary call needs."""

    async def of(self, deployment: Deployment, client_key: ClientKey | None) -> Window: ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one attempt differs from the first: a share of the input, a multiple of the allowance."""

    input_share: float = 1.0
    """Of the room that the window leaves for material, how much is used."""
    allowance: int = 1
    """Multiple of the summary's limit that is granted for the answer."""


FIRST = Attempt()


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; `model` by its provider's name."""

    body: Mapping[str, Any]
    model: str

    @property
    def usage(self) -> Mapping[str, Any] | None:
        usage = self.body.get("usage")
        return usage if isinstance(usage, dict) else None


class Calls:
    """Calls one model for one summary.

    Args:
        target: the model's deployments.
        counter_for: the token counter of an encoding.
    """

    def __init__(
        self,
        request: SummaryRequest,
        target: Target,
        *,
        router: Router,
        windows: Windows,
        counter_for: Callable[[str], Counter],
        metrics: Metrics = SILENT,
    ) -> None:
        self._request = request
        self._target = target
        self._router = router
        self._windows = windows
        self._counter_for = counter_for
        self._metrics = metrics

    async def room(self, limit_tokens: int) -> Room:
        """What a first attempt may take at the deployment that is tried first."""
        return await self._room(self._target.deployments[0], limit_tokens, FIRST)

    async def put(self, prompt: Prompt, attempt: Attempt = FIRST) -> Answer:
        """Ask once.

        Raises:
            SummaryRefused: the prompt cannot be made to fit.
            UpstreamRefused: the summarizer's own error answer.
            UpstreamUnavailable: it could not be reached, did not answer in time, or answered nonsense.
        """
        seconds = self._request.policy.summarizer.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._put(prompt, attempt)
        except TimeoutError as error:
            raise UpstreamUnavailable(f"The summarizer did not answer within {seconds:g} s.", status=504) from error

    async def _put(self, prompt: Prompt, attempt: Attempt) -> Answer:
        async def body_for(deployment: Deployment) -> bytes:
            room = await self._room(deployment, prompt.limit_tokens, attempt)
            return await asyncio.to_thread(body_of, prompt, self._request.policy, deployment, room)

        opened = await self._router.open(self._target, body_for, path=CHAT_PATH, client_key=self._request.client_key)
        reply = opened.reply
        try:
            raw = await reply.read()
            if reply.status != 200:
                raise UpstreamRefused(reply.status, raw, reply.headers)
        finally:
            await reply.aclose()
        answer = Answer(decoded(raw), opened.deployment.upstream_model)
        if self._metrics.is_on:
            self._metrics.summarized(_facts_of(answer, opened.deployment))
        return answer

    async def _room(self, deployment: Deployment, limit_tokens: int, attempt: Attempt) -> Room:
        window = await self._windows.of(deployment, self._request.client_key)
        return Room(
            window_tokens=window.tokens,
            output_tokens=max(1, min(limit_tokens * attempt.allowance, window.tokens // 4)),
            count=self._counter_for(counter_name(deployment.upstream_model, deployment.encoding)),
            input_share=attempt.input_share,
        )


def _facts_of(answer: Answer, deployment: Deployment) -> SummaryFacts:
    """What a call came to, whether its answer is used or not."""
    prompt, completion_tokens = input_of(answer.usage), output_of(answer.usage)
    provider, model = deployment.provider.name, deployment.upstream_model
    if prompt is None:
        return SummaryFacts(provider, model, is_reported=False)
    cost = cost_usd(
        price_of(deployment),
        prompt_tokens=prompt.tokens,
        cached_tokens=prompt.cached_tokens,
        completion_tokens=completion_tokens,
    )
    return SummaryFacts(provider, model, prompt.tokens, completion_tokens, cost_usd=cost)
