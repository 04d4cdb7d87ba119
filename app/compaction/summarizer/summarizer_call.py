"""Calls a summarizer model through the router, as a stream, with a limit for its silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.compaction.summarizer.summarizer_reply import read_completion
from app.compaction.summarizer.summarizer_request_body import CallBudget, SummaryPrompt, build_summarizer_body
from app.compaction.summarizer.summary_request import SummaryRequest
from app.context.count.token_counter import choose_token_counter_name
from app.context.view.view_rendering import ViewTokenCounter
from app.dialects.first_choice import FirstChoice
from app.dialects.usage import TokenUsage, read_usage
from app.errors import UpstreamUnavailable
from app.observability.metrics import NO_METRICS, Metrics, SummaryFacts
from app.store.key_budgets import KeyBudgets
from app.store.usage_recorder import UsageRecorder
from app.upstream.provider_contract import ModelDeployment, RouteTarget
from app.upstream.routing.context_windows import ContextWindows
from app.upstream.routing.prices import LEAST_BYTES_PER_TOKEN, SUMMARY_COST, compute_call_cost_usd
from app.upstream.routing.router import Router


@dataclass(frozen=True, slots=True)
class SummarizerAttempt:
    """How an attempt differs from the first one: less input, or a higher limit for the answer."""

    input_share: float = 1.0
    """The share of the room for material that is used."""
    output_factor: int = 1
    """The answer's limit as a multiple of the summary's limit."""


FIRST_ATTEMPT = SummarizerAttempt()


@dataclass(frozen=True, slots=True)
class SummarizerAnswer:
    """The answer of a model; `model` is the provider's name of the model."""

    completion: FirstChoice
    model: str
    usage: Mapping[str, Any] | None = None
    """As the provider reported it, and what the call cost, if that is known (`prices.SUMMARY_COST`)."""


@dataclass(eq=False)
class SummarizerClient:
    """Calls one model for one summary.

    Args:
        request: the summary to write.
        target: the model's deployments.
        router: sends the calls.
        windows: finds the context window of a deployment.
        counter_for: returns the token counter of an encoding.
        usage: adds up tokens and costs for the API key of the request.
        key_budgets: reserves what calls may cost.
        metrics: counts the calls.
    """

    request: SummaryRequest
    target: RouteTarget
    router: Router
    windows: ContextWindows
    counter_for: Callable[[str], ViewTokenCounter]
    usage: UsageRecorder | None = None
    key_budgets: KeyBudgets | None = None
    metrics: Metrics = NO_METRICS

    async def compute_first_call_budget(self, limit_tokens: int) -> CallBudget:
        """Computes the budget of a first attempt at the deployment that is tried first."""
        return await self._build_call_budget(self.target.deployments[0], limit_tokens, FIRST_ATTEMPT)

    async def call_model(self, prompt: SummaryPrompt, attempt: SummarizerAttempt = FIRST_ATTEMPT) -> SummarizerAnswer:
        """Calls the model once.

        Raises:
            NoUsableSummary: the prompt cannot be made to fit.
            UpstreamRefused: the summarizer's own error.
            UpstreamUnavailable: the summarizer could not be reached, did not answer in time, or sent an invalid answer.
        """
        timeout_seconds = self.request.job.policy.summarizer.timeout_seconds
        try:
            # Up to the first byte it is one limit over retries and fallbacks of the router too: a client may be waiting
            # for the summary. After it each piece of the answer starts the limit anew.
            async with asyncio.timeout(timeout_seconds) as silence:
                return await self._call_router(prompt, attempt, silence)
        except TimeoutError as error:
            raise UpstreamUnavailable(f"The summarizer was silent for {timeout_seconds:g} s.", status=504) from error

    async def _call_router(
        self, prompt: SummaryPrompt, attempt: SummarizerAttempt, silence: asyncio.Timeout
    ) -> SummarizerAnswer:
        reservation_ids: list[str] = []

        async def body_for(deployment: ModelDeployment) -> bytes:
            call_budget = await self._build_call_budget(deployment, prompt.limit_tokens, attempt)
            # Counting and cutting a long transcript would block the event loop.
            body = await asyncio.to_thread(
                build_summarizer_body, prompt, self.request.job.policy, deployment, call_budget
            )
            await self._reserve_cost(deployment, len(body), call_budget.output_tokens, reservation_ids)
            return body

        try:
            routed_reply = await self.router.send(
                self.target, body_for, tenant=self.request.job.tenant, client_key=self.request.job.client_key
            )
            deployment, now = routed_reply.deployment, asyncio.get_running_loop().time
            timeout_seconds = self.request.job.policy.summarizer.timeout_seconds
            try:
                completion = await read_completion(
                    routed_reply.reply, deployment, lambda: silence.reschedule(now() + timeout_seconds)
                )
            finally:
                await routed_reply.reply.aclose()
            cost_usd = self._record_call(completion, deployment)
        finally:
            for reservation_id in reservation_ids:
                assert self.key_budgets is not None
                self.key_budgets.release(reservation_id)
        usage = completion.usage
        if usage is not None and cost_usd is not None:
            usage = {**usage, SUMMARY_COST: cost_usd}
        return SummarizerAnswer(completion, deployment.upstream_model, usage)

    async def _reserve_cost(
        self, deployment: ModelDeployment, body_bytes: int, output_tokens: int, reservation_ids: list[str]
    ) -> None:
        """Reserves what a call may cost, and adds the reservation's id to `reservation_ids`.

        Raises:
            BudgetExceeded: the key's budget has not so much left.
        """
        budget = self.request.job.budget
        if budget is None or self.key_budgets is None:
            return
        usage = TokenUsage(body_bytes // LEAST_BYTES_PER_TOKEN, output_tokens=output_tokens)
        cost_usd = compute_call_cost_usd(deployment, usage)
        if cost_usd and (reservation_id := await self.key_budgets.reserve(budget, cost_usd)) is not None:
            reservation_ids.append(reservation_id)

    def _record_call(self, completion: FirstChoice, deployment: ModelDeployment) -> float | None:
        """Counts a call and its cost, whether its answer is used or not. Returns the cost, None if it is not known."""
        usage = read_usage(completion.usage)
        model = deployment.upstream_model
        cost_usd = None if usage is None else compute_call_cost_usd(deployment, usage)
        if self.usage is not None:
            request = self.request
            self.usage.record_call(request.job.tenant, request.job.api_key_id, model, usage, cost_usd, is_answer=False)
        if self.metrics.is_on:
            self.metrics.count_summary_call(
                SummaryFacts(
                    deployment.provider.name,
                    model,
                    0 if usage is None else usage.prompt_tokens,
                    0 if usage is None else usage.output_tokens,
                    is_reported=usage is not None,
                    cost_usd=cost_usd,
                )
            )
        return cost_usd

    async def _build_call_budget(
        self, deployment: ModelDeployment, limit_tokens: int, attempt: SummarizerAttempt
    ) -> CallBudget:
        window = await self.windows.find_window(deployment, self.request.job.client_key)
        return CallBudget(
            window_tokens=window.tokens,
            # At most a quarter of the window: the rest must hold the material.
            output_tokens=max(1, min(limit_tokens * attempt.output_factor, window.tokens // 4)),
            counter=self.counter_for(choose_token_counter_name(deployment.upstream_model, deployment.encoding)),
            input_share=attempt.input_share,
        )
