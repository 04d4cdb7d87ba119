"""Generates a summary by the first model that succeeds: the configured one, then its fallbacks."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from app.compaction.summarizer.prompts import compute_prompt_version
from app.compaction.summarizer.summarizer_call import SummarizerClient
from app.compaction.summarizer.summary_request import (
    SAME_MODEL,
    EmptySummary,
    GeneratedSummary,
    NoUsableSummary,
    SummaryRequest,
)
from app.compaction.summarizer.summary_writer import SummaryWriter
from app.context.view.client_words import mark_instructions
from app.context.view.view_rendering import ViewTokenCounter
from app.dialects.usage import sum_usages
from app.errors import GatewayError, UpstreamRefused, drop_tracebacks
from app.observability.metrics import NO_METRICS, Metrics
from app.store.key_budgets import KeyBudgets
from app.store.usage_recorder import UsageRecorder
from app.upstream.routing.circuit_breaker import CircuitBreaker
from app.upstream.routing.context_windows import ContextWindows
from app.upstream.routing.router import Router

MAX_FAILURES: Final = 3
"""How many failures in a row begin a backoff of a model for a conversation."""
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 30.0, 600.0
"""The first backoff, and the longest. Each failure after a backoff doubles it."""
MAX_BREAKERS: Final = 2_048
UNPROCESSABLE_STATUSES: Final = frozenset({400, 413, 422})
"""Statuses of refusals that are about the prompt, not about the model or its provider."""


@dataclass(eq=False, kw_only=True)
class SummaryGenerator:
    """Generates summaries through the router. After three failures in a row a model is not called for a while, for that
    conversation. (A provider that fails for all of them has the breaker of its deployment.)

    Args:
        router: finds the deployments of a model and falls back from one to the next.
        windows: finds the context window of a deployment.
        counter_for: returns the token counter of an encoding.
        monotonic: returns seconds, for durations and backoffs.
        usage: adds up tokens and costs for the API keys of the requests.
        key_budgets: reserves what calls may cost.
        metrics: counts summarizer calls.
    """

    router: Router
    windows: ContextWindows
    counter_for: Callable[[str], ViewTokenCounter]
    monotonic: Callable[[], float] = time.monotonic
    usage: UsageRecorder | None = None
    key_budgets: KeyBudgets | None = None
    metrics: Metrics = NO_METRICS

    _breakers: OrderedDict[tuple[str, str, str], CircuitBreaker] = field(default_factory=OrderedDict, init=False)

    async def generate_summary(self, request: SummaryRequest) -> GeneratedSummary:
        """Generates a summary, and appends the values that the model left out.

        Raises:
            NoUsableSummary: the answer is blank, calls a tool, was filtered, has no finish reason, is too long, or says
                nothing; or every model is backing off.
            UpstreamRefused: the summarizer's own error.
            UpstreamUnavailable: the summarizer could not be reached, did not answer in time, or sent an invalid answer.
        """
        if not request.job.policy.summarizer.enabled:
            raise NoUsableSummary("summaries are switched off")
        failures: list[NoUsableSummary | GatewayError] = []
        for model in _list_models(request):
            try:
                return await self._generate_with_model(model, request)
            except (NoUsableSummary, GatewayError) as error:
                drop_tracebacks(error)
                failures.append(error)
        # The first failure is that of the configured model. `pop`: the traceback keeps this frame and its list, so an
        # error in the list would be part of a reference cycle.
        raise failures.pop(0)

    def compute_backoff_seconds(self, request: SummaryRequest) -> float:
        """Computes the seconds until one of the request's models may be called again; 0 if one may be called now."""
        return min(self._find_breaker(model, request).seconds_until_trial for model in _list_models(request))

    def _find_breaker(self, model: str, request: SummaryRequest) -> CircuitBreaker:
        """Returns the breaker of a model for a conversation. Above `MAX_BREAKERS`, the one used longest ago goes."""
        key = model, request.job.tenant, request.job.root
        if key not in self._breakers:
            self._breakers[key] = CircuitBreaker(
                MAX_FAILURES, FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, self.monotonic
            )
        self._breakers.move_to_end(key)
        while len(self._breakers) > MAX_BREAKERS:
            self._breakers.popitem(last=False)
        return self._breakers[key]

    async def _generate_with_model(self, model: str, request: SummaryRequest) -> GeneratedSummary:
        """Generates a summary by one model, unless the model is backing off."""
        breaker = self._find_breaker(model, request)
        if not breaker.try_enter():
            raise NoUsableSummary(
                f"the summarizer has failed too often and gets no calls for {breaker.seconds_until_trial:.0f} s"
            )
        try:
            summary = await self._write_summary(model, request)
            breaker.record_success()
        except (NoUsableSummary, GatewayError):
            breaker.record_failure()
            raise
        finally:
            # A cancellation says nothing about the model, so the trial that it took is given back.
            breaker.cancel_trial()
        return summary

    async def _write_summary(self, model: str, request: SummaryRequest) -> GeneratedSummary:
        started_at = self.monotonic()
        client = SummarizerClient(
            request,
            self.router.resolve(model),
            router=self.router,
            windows=self.windows,
            counter_for=self.counter_for,
            usage=self.usage,
            key_budgets=self.key_budgets,
            metrics=self.metrics,
        )
        writer = SummaryWriter(request, client, self.counter_for(request.job.encoding))
        text = await _write_summary_text(writer, model)
        return GeneratedSummary(
            text=text,
            model=writer.model,
            prompt_version=mark_instructions(
                compute_prompt_version(request.job.policy.summarizer, request.prompt_variant), request.job.focus
            ),
            duration_ms=round((self.monotonic() - started_at) * 1000),
            usage=sum_usages(writer.usages),
        )


async def _write_summary_text(writer: SummaryWriter, model: str) -> str:
    """Writes the summary from the conversation itself if this model has just read it, otherwise from a transcript.

    The transcript is also used if the answer to the first form is refused or not usable.
    """
    request, source = writer.request, writer.request.source
    has_material = bool(source.view_prefix) and bool(request.messages or source.folded_summaries)
    if has_material and model == request.job.model and request.job.policy.summarizer.form != "transcript":
        try:
            return await writer.write_from_cached_view()
        except EmptySummary:
            writer.may_repeat = False  # the transcript is the second request
        except NoUsableSummary:
            pass
        except UpstreamRefused as refusal:
            # Any other refusal would meet the transcript, too.
            if refusal.status not in UNPROCESSABLE_STATUSES:
                raise
    return await writer.write_from_transcript()


def _list_models(request: SummaryRequest) -> list[str]:
    """Lists the models to call, in order, each once."""
    summarizer_policy = request.job.policy.summarizer
    names = [summarizer_policy.model, *summarizer_policy.fallbacks]
    return list(dict.fromkeys(request.job.model if model == SAME_MODEL else model for model in names))
