"""Counts, times and traces calls to providers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Final

from app.errors import UpstreamUnavailable
from app.observability import metric_families
from app.observability.metric_families import MetricFamily
from app.observability.metrics import Metrics
from app.observability.request_record import RequestStep, current_request_record
from app.observability.tracing import is_traced
from app.upstream.provider_contract import (
    AnswerTimedOut,
    CallTimes,
    ConnectionDropped,
    ModelDeployment,
    UpstreamProvider,
    UpstreamReply,
    UpstreamRequest,
)
from app.upstream.routing.traced_calls import CallSpan, start_chat_span, start_passthrough_span

SUCCESS_OUTCOME: Final = "ok"
INTERRUPTED_OUTCOME: Final = "interrupted"
"""In a request's timeline: the answer began and was left before its end, by the provider or by the client."""
RATE_LIMITED_STATUS: Final = 429


class MeasuredCalls:
    """Sends calls for one purpose, `answer` or `summary`.

    Args:
        metrics: receives counts and durations.
        purpose: a label of the metrics.
        clock: monotonic seconds.
    """

    def __init__(self, metrics: Metrics, purpose: str, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._purpose = purpose
        self._clock = clock
        self.open_breakers: set[str] = set()
        """The keys of the deployments whose breaker was recorded as open."""

    async def send(self, deployment: ModelDeployment, request: UpstreamRequest, *, retries: int = 0) -> UpstreamReply:
        """Sends a call.

        Args:
            deployment: where to.
            request: the call, with the time of its start.
            retries: how many attempts at the same request there were before.

        Raises:
            UpstreamUnavailable: as `UpstreamProvider.send`.
        """
        provider = deployment.provider
        span = start_chat_span(deployment, retries) if is_traced() else None
        step = None
        if (record := current_request_record()) is not None:
            detail = {"provider": provider.name, "model": deployment.upstream_model, "status": None, "error": None}
            step = record.begin_step("attempt" if self._purpose == "answer" else "summary", detail)
        try:
            reply = await (provider.send(request) if span is None else span.send(provider, request))
        except UpstreamUnavailable as error:
            # A failed call is counted but not timed: durations are those of answers.
            self._record_failure(deployment, step, _failure_outcome(error))
            raise
        if step is not None:
            step.detail["status"] = reply.status
        if reply.status >= 400:
            self._record_failure(deployment, step, _status_outcome(reply.status))
            return reply if span is None else MeasuredReply(reply, span)
        assert request.times is not None
        labels = (*self._deployment_labels(deployment, is_served=True), self._purpose)
        self._metrics.counter_series(metric_families.UPSTREAM_REQUESTS, *labels, SUCCESS_OUTCOME).inc()
        return MeasuredReply(reply, span, partial(self._record_end, labels, step, request.times))

    def count(self, family: MetricFamily, deployment: ModelDeployment) -> None:
        """Counts a retry (`UPSTREAM_RETRIES`), or an answer of a deployment in place of the first one
        (`UPSTREAM_FALLBACKS`)."""
        self._metrics.counter_series(family, *self._deployment_labels(deployment, is_served=False)).inc()

    def record_breaker_state(self, deployment: ModelDeployment, *, is_open: bool) -> None:
        """Records that a deployment's breaker is now open, or no longer."""
        (self.open_breakers.add if is_open else self.open_breakers.discard)(deployment.key)
        labels = self._deployment_labels(deployment, is_served=False)
        self._metrics.gauge_series(metric_families.BREAKER_OPEN, *labels, self._purpose).set(float(is_open))

    def _record_failure(self, deployment: ModelDeployment, step: RequestStep | None, outcome: str) -> None:
        labels = (*self._deployment_labels(deployment, is_served=False), self._purpose)
        self._metrics.counter_series(metric_families.UPSTREAM_REQUESTS, *labels, outcome).inc()
        if step is not None:
            step.end(self._clock(), error=outcome)

    def _record_end(self, labels: tuple[str, ...], step: RequestStep | None, times: CallTimes) -> None:
        """Records the durations of an answer that has ended, or is released. `labels` are those of the metrics."""
        ended_at = self._clock() if times.ended_at is None else times.ended_at
        if step is not None:
            step.end(ended_at, error=None if times.ended_at is not None else INTERRUPTED_OUTCOME)
        first_byte_at = ended_at if times.first_byte_at is None else times.first_byte_at
        for family, at in (
            (metric_families.UPSTREAM_SECONDS, ended_at),
            (metric_families.UPSTREAM_FIRST_BYTE_SECONDS, first_byte_at),
        ):
            self._metrics.histogram_series(family, *labels).observe(at - times.started_at)

    def _deployment_labels(self, deployment: ModelDeployment, *, is_served: bool) -> tuple[str, str]:
        model = self._metrics.model_label(deployment.upstream_model, is_served=is_served)
        return deployment.provider.name, model


async def send_passthrough(provider: UpstreamProvider, request: UpstreamRequest) -> UpstreamReply:
    """Sends a call of unknown content. It is traced if its request is, and not counted.

    Raises:
        UpstreamUnavailable: as `UpstreamProvider.send`.
    """
    span = start_passthrough_span(provider, request) if is_traced() else None
    return await provider.send(request) if span is None else MeasuredReply(await span.send(provider, request), span)


class MeasuredReply:
    """An answer whose end is recorded once. Implements `upstream.provider_contract.UpstreamReply`.

    Args:
        reply: the answer.
        span: None if the request is not traced.
        on_end: called when the body has been read, or the answer is released.
    """

    def __init__(self, reply: UpstreamReply, span: CallSpan | None, on_end: Callable[[], None] | None = None) -> None:
        self._reply = reply
        self._span = span
        self._on_end = on_end
        self.status = reply.status
        self.headers: Mapping[str, str] = reply.headers

    async def read(self) -> bytes:
        # The end is not recorded if reading fails: `aclose`, which must follow, does that.
        body = await (self._reply.read() if self._span is None else self._span.read(self._reply))
        self._record_end()
        return body

    def iter_bytes(self) -> AsyncIterator[bytes]:
        return self._reply.iter_bytes() if self._span is None else self._span.iter_bytes(self._reply)

    async def aclose(self) -> None:
        self._record_end()
        await self._reply.aclose()
        if self._span is not None:
            self._span.close()

    def _record_end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()


def _failure_outcome(error: UpstreamUnavailable) -> str:
    """Returns the metric label for a call without an answer."""
    if isinstance(error, AnswerTimedOut):
        return "timeout"
    return "dropped" if isinstance(error, ConnectionDropped) else "unreachable"


def _status_outcome(status: int) -> str:
    if status == RATE_LIMITED_STATUS:
        return "rate_limited"
    return "server_error" if status >= 500 else "refused"
