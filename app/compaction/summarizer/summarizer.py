"""One summary, written by the first model that can: the one that is meant, then its fallbacks."""

from __future__ import annotations

import time
from collections.abc import Callable

from app.compaction.compaction_job import sum_usages
from app.compaction.summarizer.prompts import compute_prompt_version
from app.compaction.summarizer.summarizer_call import SummarizerClient, SummarizerWindows
from app.compaction.summarizer.summarizer_request_body import compute_max_input_tokens
from app.compaction.summarizer.summary_request import SAME_MODEL, GeneratedSummary, NoUsableSummary, SummaryRequest
from app.compaction.summarizer.summary_writer import SummaryWriter
from app.context.view.view_messages import ViewTokenCounter
from app.errors import GatewayError, UpstreamRefused, drop_tracebacks
from app.observability.metrics import NO_METRICS, Metrics
from app.upstream.routing.circuit_breaker import CircuitBreaker
from app.upstream.routing.router import Router

__all__ = [
    "SAME_MODEL",
    "GeneratedSummary",
    "NoUsableSummary",
    "SummarizerWindows",
    "SummaryGenerator",
    "SummaryRequest",
    "compute_max_input_tokens",
]


class SummaryGenerator:
    """Writes summaries through the router. A model that fails three times in a row is left alone for a while.

    Args:
        router: finds the deployments of a model and falls over between them.
        windows: knows the context window of a deployment.
        counter_for: the token counter of an encoding.
        monotonic: seconds, for durations and pauses.
    """

    def __init__(
        self,
        *,
        router: Router,
        windows: SummarizerWindows,
        counter_for: Callable[[str], ViewTokenCounter],
        monotonic: Callable[[], float] = time.monotonic,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._router = router
        self._windows = windows
        self._counter_for = counter_for
        self._monotonic = monotonic
        self._metrics = metrics
        self._backoffs = SummarizerBackoffs(monotonic)

    async def generate_summary(self, request: SummaryRequest) -> GeneratedSummary:
        """A summary of what the request names, with the values that its writer left out.

        Raises:
            SummaryRefused: the answer is blank, calls a tool, was filtered, does not end, or gains too little; or no
                model is to be asked just now.
            UpstreamRefused: the summarizer's own error answer.
            UpstreamUnavailable: it could not be reached, did not answer in time, or answered nonsense.
        """
        if not request.policy.summarizer.enabled:
            raise NoUsableSummary("summaries are switched off")
        failures: list[NoUsableSummary | GatewayError] = []
        for model in _list_models(request):
            try:
                return await self._generate_with_model(model, request)
            except (NoUsableSummary, GatewayError) as error:
                drop_tracebacks(error)
                failures.append(error)
        raise failures.pop(0)  # the list is a variable of this frame, which the traceback keeps

    def is_backing_off(self, request: SummaryRequest) -> bool:
        """Whether every model that could be asked is left alone just now."""
        return self.compute_backoff_seconds(request) > 0

    def compute_backoff_seconds(self, request: SummaryRequest) -> float:
        """For how long every model that could be asked is left alone."""
        return min(
            self._backoffs.find_backoff(model, request.tenant, request.root).seconds_until_trial
            for model in _list_models(request)
        )

    async def _generate_with_model(self, model: str, request: SummaryRequest) -> GeneratedSummary:
        """A summary by one model, unless it rests."""
        backoff = self._backoffs.find_backoff(model, request.tenant, request.root)
        if not backoff.try_enter():
            raise NoUsableSummary(
                f"the summarizer has failed too often and rests for {backoff.seconds_until_trial:.0f} s"
            )
        is_settled = False
        try:
            summary = await self._write_summary(model, request)
            backoff.record_success()
            is_settled = True
        except (NoUsableSummary, GatewayError) as error:
            backoff.record_failure(error)
            is_settled = True
            raise
        finally:
            if not is_settled:
                backoff.cancel_trial()
        return summary

    async def _write_summary(self, model: str, request: SummaryRequest) -> GeneratedSummary:
        started_at = self._monotonic()
        writer = SummaryWriter(request, self._build_client(model, request), self._counter_for(request.encoding))
        text = await _write_text(writer, model)
        return GeneratedSummary(
            text=text,
            model=writer.model,
            prompt_version=compute_prompt_version(request.policy.summarizer, request.prompt_variant),
            duration_ms=round((self._monotonic() - started_at) * 1000),
            usage=sum_usages(writer.usages),
        )

    def _build_client(self, model: str, request: SummaryRequest) -> SummarizerClient:
        """
        Raises:
            ModelNotFound: no such model is configured.
        """
        return SummarizerClient(
            request,
            self._router.resolve(model),
            router=self._router,
            windows=self._windows,
            counter_for=self._counter_for,
            metrics=self._metrics,
        )


async def _write_text(writer: SummaryWriter, model: str) -> str:
    """The summary: from the conversation itself where this model has just read it, else, or where that is refused or
    no use, from a transcript."""
    request = writer.request
    has_read_conversation = (
        bool(request.view_prefix) and bool(request.messages or request.folded_summaries) and model == request.model
    )
    if has_read_conversation and request.policy.summarizer.form != "transcript":
        try:
            return await writer.write_from_conversation()
        except NoUsableSummary:
            pass
        except UpstreamRefused as refusal:
            if refusal.status not in UNPROCESSABLE_STATUSES:
                raise
    return await writer.write_from_transcript()


def _list_models(request: SummaryRequest) -> list[str]:
    """Whom to ask, in order, each once."""
    summarizer_policy = request.policy.summarizer
    names = [summarizer_policy.model, *summarizer_policy.fallbacks]
    return list(dict.fromkeys(request.model if model == SAME_MODEL else model for model in names))


MAX_FAILURES = 3
"""So many in a row begin a pause …"""
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 30.0, 600.0
"""… of this length; each failure after a pause doubles it."""
MAX_BREAKERS = 2_048
UNPROCESSABLE_STATUSES = frozenset({400, 413, 422})
"""Refusals that say something about what was asked, not about who answers."""


class SummarizerBackoffs:
    """Remembers failures in this process.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._breakers: dict[tuple[str, ...], CircuitBreaker] = {}

    def find_backoff(self, model: str, tenant: str, root: str) -> SummarizerBackoff:
        return SummarizerBackoff(self._find_breaker(model, tenant), self._find_breaker(model, tenant, root))

    def _find_breaker(self, *key: str) -> CircuitBreaker:
        """The breaker of a key; the one that was asked for longest ago is forgotten when there are too many."""
        breaker = self._breakers.pop(key, None) or CircuitBreaker(
            MAX_FAILURES, FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, self._clock
        )
        self._breakers[key] = breaker
        while len(self._breakers) > MAX_BREAKERS:
            del self._breakers[next(iter(self._breakers))]
        return breaker


class SummarizerBackoff:
    """Whether a model is asked for one tenant's conversation."""

    def __init__(self, tenant_breaker: CircuitBreaker, conversation_breaker: CircuitBreaker) -> None:
        self._tenant_breaker = tenant_breaker
        self._conversation_breaker = conversation_breaker

    @property
    def seconds_until_trial(self) -> float:
        return max(self._tenant_breaker.seconds_until_trial, self._conversation_breaker.seconds_until_trial)

    def try_enter(self) -> bool:
        """Whether to ask; then `record_success`, `failed` or `cancel_trial` must follow."""
        if not self._tenant_breaker.try_enter():
            return False
        if self._conversation_breaker.try_enter():
            return True
        self._tenant_breaker.cancel_trial()
        return False

    def record_success(self) -> None:
        self._tenant_breaker.record_success()
        self._conversation_breaker.record_success()

    def record_failure(self, error: Exception) -> None:
        """An answer that is of no use counts for the conversation, no answer for whoever asks that model."""
        if isinstance(error, NoUsableSummary) or (
            isinstance(error, UpstreamRefused) and error.status in UNPROCESSABLE_STATUSES
        ):
            self._tenant_breaker.record_success()
            self._conversation_breaker.record_failure()
        else:
            self._tenant_breaker.record_failure()
            self._conversation_breaker.cancel_trial()

    def cancel_trial(self) -> None:
        self._tenant_breaker.cancel_trial()
        self._conversation_breaker.cancel_trial()
