"""Calls of providers: counted, timed, and traced where their request is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from app.errors import UpstreamUnavailable
from app.observability import metric_families
from app.observability.metrics import MAX_MODEL_LABELS, Metrics
from app.upstream.provider import (
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
RATE_LIMITED_STATUS: Final = 429


class MeasuredCalls:
    """Sends calls for one purpose, `answer` or `summary`.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, metrics: Metrics, purpose: str, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._purpose = purpose
        self._clock = clock
        self._open_breakers: set[str] = set()
        self._success_series: dict[tuple[str, str], _SuccessSeries] = {}

    async def send(
        self, deployment: ModelDeployment, request: UpstreamRequest, body: bytes, *, retries: int = 0
    ) -> UpstreamReply:
        """Send a call.

        Args:
            request: but for its body.
            retries: how many tries of the same request there were before.

        Raises:
            UpstreamUnavailable: as `Provider.send`.
        """
        provider, span, times = deployment.provider, start_chat_span(deployment, retries), None
        if self._metrics.is_on:
            times = CallTimes(self._clock())
        request = UpstreamRequest(
            request.path, body, authorization=request.authorization, headers=request.headers, times=times
        )
        try:
            reply = await (provider.send(request) if span is None else span.send(provider, request))
        except UpstreamUnavailable as error:
            self._count_outcome(deployment, _failure_outcome(error))
            raise
        if reply.status >= 400:
            self._count_outcome(deployment, _status_outcome(reply.status))
        elif times is not None:
            series = self._find_success_series(deployment)
            series.request_count.add()
            return MeasuredReply(reply, span, lambda: self._observe_durations(series, times))
        return reply if span is None else MeasuredReply(reply, span)

    def count_retry(self, deployment: ModelDeployment) -> None:
        self._metrics.counter_series(
            metric_families.UPSTREAM_RETRIES, *self._deployment_labels(deployment, is_served=False)
        ).add()

    def count_fallback(self, deployment: ModelDeployment) -> None:
        """It has answered in another's place."""
        self._metrics.counter_series(
            metric_families.UPSTREAM_FALLBACKS, *self._deployment_labels(deployment, is_served=False)
        ).add()

    def record_breaker_state(self, deployment: ModelDeployment, *, is_open: bool) -> None:
        """Note whether a deployment's breaker is open."""
        if is_open == (deployment.key in self._open_breakers):
            return
        (self._open_breakers.add if is_open else self._open_breakers.discard)(deployment.key)
        labels = self._deployment_labels(deployment, is_served=False)
        self._metrics.counter_series(metric_families.BREAKER_OPEN, *labels, self._purpose).set(float(is_open))

    def _observe_durations(self, series: _SuccessSeries, times: CallTimes) -> None:
        """An answer has come to its end, or is let go."""
        ended_at = self._clock() if times.ended_at is None else times.ended_at
        series.call_seconds.observe(ended_at - times.started_at)
        series.first_byte_seconds.observe(
            (ended_at if times.first_byte_at is None else times.first_byte_at) - times.started_at
        )

    def _find_success_series(self, deployment: ModelDeployment) -> _SuccessSeries:
        key = (deployment.provider.name, deployment.upstream_model)
        series = self._success_series.get(key)
        if series is None:
            series = _SuccessSeries(self._metrics, self._deployment_labels(deployment, is_served=True), self._purpose)
            if len(self._success_series) < MAX_MODEL_LABELS:
                self._success_series[key] = series
        return series

    def _count_outcome(self, deployment: ModelDeployment, outcome: str) -> None:
        labels = self._deployment_labels(deployment, is_served=False)
        self._metrics.counter_series(metric_families.UPSTREAM_REQUESTS, *labels, self._purpose, outcome).add()

    def _deployment_labels(self, deployment: ModelDeployment, *, is_served: bool) -> tuple[str, str]:
        model = self._metrics.model_label(deployment.upstream_model, is_served=is_served)
        return deployment.provider.name, model


class _SuccessSeries:
    """The series that each good answer of one deployment adds to."""

    __slots__ = ("call_seconds", "first_byte_seconds", "request_count")

    def __init__(self, metrics: Metrics, labels: tuple[str, str], purpose: str) -> None:
        self.request_count = metrics.counter_series(
            metric_families.UPSTREAM_REQUESTS, *labels, purpose, SUCCESS_OUTCOME
        )
        self.call_seconds = metrics.histogram_series(metric_families.UPSTREAM_SECONDS, *labels, purpose)
        self.first_byte_seconds = metrics.histogram_series(
            metric_families.UPSTREAM_FIRST_BYTE_SECONDS, *labels, purpose
        )


async def send_passthrough(provider: UpstreamProvider, request: UpstreamRequest) -> UpstreamReply:
    """Send a call that nothing is known of; it is traced where its request is, and not counted.

    Raises:
        UpstreamUnavailable: as `Provider.send`.
    """
    span = start_passthrough_span(provider, request)
    return await provider.send(request) if span is None else MeasuredReply(await span.send(provider, request), span)


class MeasuredReply:
    """An answer whose course and end are noted, the end once; `upstream.provider.Reply`.

    Args:
        span: None while nothing is traced.
        on_end: called when the body has been read, or is let go.
    """

    __slots__ = ("_on_end", "_reply", "_span", "headers", "status")

    def __init__(self, reply: UpstreamReply, span: CallSpan | None, on_end: Callable[[], None] | None = None) -> None:
        self._reply = reply
        self._span = span
        self._on_end = on_end
        self.status = reply.status
        self.headers: Mapping[str, str] = reply.headers

    async def read(self) -> bytes:
        body = await (self._reply.read() if self._span is None else self._span.read(self._reply))
        self._call_on_end()
        return body

    def iter_bytes(self) -> AsyncIterator[bytes]:
        return self._reply.iter_bytes() if self._span is None else self._span.iter_bytes(self._reply)

    async def aclose(self) -> None:
        self._call_on_end()
        await self._reply.aclose()
        if self._span is not None:
            self._span.close()

    def _call_on_end(self) -> None:
        if (on_end := self._on_end) is not None:
            self._on_end = None
            on_end()


def _failure_outcome(error: UpstreamUnavailable) -> str:
    """How a call failed that nothing answered."""
    if isinstance(error, AnswerTimedOut):
        return "timeout"
    return "dropped" if isinstance(error, ConnectionDropped) else "unreachable"


def _status_outcome(status: int) -> str:
    if status == RATE_LIMITED_STATUS:
        return "rate_limited"
    return "server_error" if status >= 500 else "refused"
