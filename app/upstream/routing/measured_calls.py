"""Calls of providers: counted, timed, and traced where their request is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from app.errors import UpstreamUnavailable
from app.observability import metric_families
from app.observability.metrics import MOST_MODELS, Metrics
from app.upstream.provider import AnswerTimedOut, Call, ConnectionDropped, Deployment, Provider, Reply, Times
from app.upstream.routing.traced_calls import CallSpan, span_of, span_of_unknown

GOOD: Final = "ok"
RATE_LIMITED: Final = 429


class Calls:
    """Sends calls for one purpose, `answer` or `summary`.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, metrics: Metrics, purpose: str, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._purpose = purpose
        self._clock = clock
        self._resting: set[str] = set()
        self._good: dict[tuple[str, str], _Good] = {}

    async def send(self, deployment: Deployment, call: Call, body: bytes, *, resends: int = 0) -> Reply:
        """Send a call.

        Args:
            call: but for its body.
            resends: how many tries of the same request there were before.

        Raises:
            UpstreamUnavailable: as `Provider.send`.
        """
        provider, span, times = deployment.provider, span_of(deployment, resends), None
        if self._metrics.is_on:
            times = Times(self._clock())
        call = Call(call.path, body, authorization=call.authorization, headers=call.headers, times=times)
        try:
            reply = await (provider.send(call) if span is None else span.send(provider, call))
        except UpstreamUnavailable as error:
            self._count(deployment, _failure(error))
            raise
        if reply.status >= 400:
            self._count(deployment, _refusal(reply.status))
        elif times is not None:
            good = self._good_of(deployment)
            good.requests.add()
            return WatchedReply(reply, span, lambda: self._ended(good, times))
        return reply if span is None else WatchedReply(reply, span)

    def tried_again(self, deployment: Deployment) -> None:
        self._metrics.counted(metric_families.UPSTREAM_RETRIES, *self._of(deployment, is_served=False)).add()

    def fell_back(self, deployment: Deployment) -> None:
        """It has answered in another's place."""
        self._metrics.counted(metric_families.UPSTREAM_FALLBACKS, *self._of(deployment, is_served=False)).add()

    def rests(self, deployment: Deployment, *, is_open: bool) -> None:
        """Note whether a deployment's breaker is open."""
        if is_open == (deployment.key in self._resting):
            return
        (self._resting.add if is_open else self._resting.discard)(deployment.key)
        of = self._of(deployment, is_served=False)
        self._metrics.counted(metric_families.BREAKER_OPEN, *of, self._purpose).set(float(is_open))

    def _ended(self, good: _Good, times: Times) -> None:
        """An answer has come to its end, or is let go."""
        ended = self._clock() if times.ended is None else times.ended
        good.seconds.add(ended - times.began)
        good.first_byte.add((ended if times.first_byte is None else times.first_byte) - times.began)

    def _good_of(self, deployment: Deployment) -> _Good:
        named = (deployment.provider.name, deployment.upstream_model)
        good = self._good.get(named)
        if good is None:
            good = _Good(self._metrics, self._of(deployment, is_served=True), self._purpose)
            if len(self._good) < MOST_MODELS:
                self._good[named] = good
        return good

    def _count(self, deployment: Deployment, outcome: str) -> None:
        of = self._of(deployment, is_served=False)
        self._metrics.counted(metric_families.UPSTREAM_REQUESTS, *of, self._purpose, outcome).add()

    def _of(self, deployment: Deployment, *, is_served: bool) -> tuple[str, str]:
        model = self._metrics.model(deployment.upstream_model, is_served=is_served)
        return deployment.provider.name, model


class _Good:
    """The series that each good answer of one deployment adds to."""

    __slots__ = ("first_byte", "requests", "seconds")

    def __init__(self, metrics: Metrics, of: tuple[str, str], purpose: str) -> None:
        self.requests = metrics.counted(metric_families.UPSTREAM_REQUESTS, *of, purpose, GOOD)
        self.seconds = metrics.observed(metric_families.UPSTREAM_SECONDS, *of, purpose)
        self.first_byte = metrics.observed(metric_families.UPSTREAM_FIRST_BYTE_SECONDS, *of, purpose)


async def passed_on(provider: Provider, call: Call) -> Reply:
    """Send a call that nothing is known of; it is traced where its request is, and not counted.

    Raises:
        UpstreamUnavailable: as `Provider.send`.
    """
    span = span_of_unknown(provider, call)
    return await provider.send(call) if span is None else WatchedReply(await span.send(provider, call), span)


class WatchedReply:
    """An answer whose course and end are noted, the end once; `upstream.provider.Reply`.

    Args:
        span: None while nothing is traced.
        on_end: called when the body has been read, or is let go.
    """

    __slots__ = ("_on_end", "_reply", "_span", "headers", "status")

    def __init__(self, reply: Reply, span: CallSpan | None, on_end: Callable[[], None] | None = None) -> None:
        self._reply = reply
        self._span = span
        self._on_end = on_end
        self.status = reply.status
        self.headers: Mapping[str, str] = reply.headers

    async def read(self) -> bytes:
        body = await (self._reply.read() if self._span is None else self._span.read(self._reply))
        self._end()
        return body

    def chunks(self) -> AsyncIterator[bytes]:
        return self._reply.chunks() if self._span is None else self._span.chunks(self._reply)

    async def aclose(self) -> None:
        self._end()
        await self._reply.aclose()
        if self._span is not None:
            self._span.let_go()

    def _end(self) -> None:
        if (on_end := self._on_end) is not None:
            self._on_end = None
            on_end()


def _failure(error: UpstreamUnavailable) -> str:
    """How a call failed that nothing answered."""
    if isinstance(error, AnswerTimedOut):
        return "timeout"
    return "dropped" if isinstance(error, ConnectionDropped) else "unreachable"


def _refusal(status: int) -> str:
    if status == RATE_LIMITED:
        return "rate_limited"
    return "server_error" if status >= 500 else "refused"
