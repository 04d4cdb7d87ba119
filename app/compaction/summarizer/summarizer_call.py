"""One call of a summarizer through the router, within its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from app.compaction.acceptance.summary_acceptance import decode_answer
from app.compaction.summarizer.summarizer_request_body import CallBudget, SummaryPrompt, build_summarizer_body
from app.compaction.summarizer.summary_request import SummaryRequest
from app.context.count.provider_usage import read_output_tokens, read_prompt_usage
from app.context.count.token_counter import choose_counter_name
from app.context.view.view_messages import ViewTokenCounter
from app.errors import UpstreamRefused, UpstreamUnavailable
from app.observability.metrics import NO_METRICS, Metrics, SummaryFacts
from app.upstream.provider import ClientKey, ContextWindow, ModelDeployment, RouteTarget
from app.upstream.routing.prices import compute_cost_usd, find_price
from app.upstream.routing.router import Router

CHAT_PATH = "/chat/completions"


class SummarizerWindows(Protocol):
    """The part of `upstream.routing.context_windows` that a summary call needs."""

    async def find_window(self, deployment: ModelDeployment, client_key: ClientKey | None) -> ContextWindow: ...


@dataclass(frozen=True, slots=True)
class SummarizerAttempt:
    """How one attempt differs from the first: a share of the input, a multiple of the allowance."""

    input_share: float = 1.0
    """Of the room that the window leaves for material, how much is used."""
    output_factor: int = 1
    """Multiple of the summary's limit that is granted for the answer."""


FIRST_ATTEMPT = SummarizerAttempt()


@dataclass(frozen=True, slots=True)
class SummarizerAnswer:
    """What came back; `model` by its provider's name."""

    body: Mapping[str, Any]
    model: str

    @property
    def usage(self) -> Mapping[str, Any] | None:
        usage = self.body.get("usage")
        return usage if isinstance(usage, dict) else None


class SummarizerClient:
    """Calls one model for one summary.

    Args:
        target: the model's deployments.
        counter_for: the token counter of an encoding.
    """

    def __init__(
        self,
        request: SummaryRequest,
        target: RouteTarget,
        *,
        router: Router,
        windows: SummarizerWindows,
        counter_for: Callable[[str], ViewTokenCounter],
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._request = request
        self._target = target
        self._router = router
        self._windows = windows
        self._counter_for = counter_for
        self._metrics = metrics

    async def compute_first_budget(self, limit_tokens: int) -> CallBudget:
        """What a first attempt may take at the deployment that is tried first."""
        return await self._build_call_budget(self._target.deployments[0], limit_tokens, FIRST_ATTEMPT)

    async def call_model(self, prompt: SummaryPrompt, attempt: SummarizerAttempt = FIRST_ATTEMPT) -> SummarizerAnswer:
        """Ask once.

        Raises:
            SummaryRefused: the prompt cannot be made to fit.
            UpstreamRefused: the summarizer's own error answer.
            UpstreamUnavailable: it could not be reached, did not answer in time, or answered nonsense.
        """
        timeout_seconds = self._request.policy.summarizer.timeout_seconds
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._call_router(prompt, attempt)
        except TimeoutError as error:
            raise UpstreamUnavailable(
                f"The summarizer did not answer within {timeout_seconds:g} s.", status=504
            ) from error

    async def _call_router(self, prompt: SummaryPrompt, attempt: SummarizerAttempt) -> SummarizerAnswer:
        async def body_for(deployment: ModelDeployment) -> bytes:
            call_budget = await self._build_call_budget(deployment, prompt.limit_tokens, attempt)
            return await asyncio.to_thread(build_summarizer_body, prompt, self._request.policy, deployment, call_budget)

        routed_reply = await self._router.send(
            self._target, body_for, path=CHAT_PATH, client_key=self._request.client_key
        )
        reply = routed_reply.reply
        try:
            raw = await reply.read()
            if reply.status != 200:
                raise UpstreamRefused(reply.status, raw, reply.headers)
        finally:
            await reply.aclose()
        answer = SummarizerAnswer(decode_answer(raw), routed_reply.deployment.upstream_model)
        if self._metrics.is_on:
            self._metrics.count_summary_call(_build_summary_facts(answer, routed_reply.deployment))
        return answer

    async def _build_call_budget(
        self, deployment: ModelDeployment, limit_tokens: int, attempt: SummarizerAttempt
    ) -> CallBudget:
        window = await self._windows.find_window(deployment, self._request.client_key)
        return CallBudget(
            window_tokens=window.tokens,
            output_tokens=max(1, min(limit_tokens * attempt.output_factor, window.tokens // 4)),
            counter=self._counter_for(choose_counter_name(deployment.upstream_model, deployment.encoding)),
            input_share=attempt.input_share,
        )


def _build_summary_facts(answer: SummarizerAnswer, deployment: ModelDeployment) -> SummaryFacts:
    """What a call came to, whether its answer is used or not."""
    prompt, completion_tokens = read_prompt_usage(answer.usage), read_output_tokens(answer.usage)
    provider, model = deployment.provider.name, deployment.upstream_model
    if prompt is None:
        return SummaryFacts(provider, model, is_reported=False)
    cost = compute_cost_usd(
        find_price(deployment),
        prompt_tokens=prompt.tokens,
        cached_tokens=prompt.cached_tokens,
        completion_tokens=completion_tokens,
    )
    return SummaryFacts(provider, model, prompt.tokens, completion_tokens, cost_usd=cost)
