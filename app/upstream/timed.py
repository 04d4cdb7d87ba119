"""Calls of providers, counted and timed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from app.errors import UpstreamUnavailable
from app.observability import families
from app.observability.metrics import MOST_MODELS, Metrics
from app.upstream.base import AnswerTimedOut, ConnectionDropped, Deployment, Reply, Times

GOOD: Final = "ok"
RATE_LIMITED: Final = 429


class Calls:
    """Counts calls for one purpose, `answer` or `summary`.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, metrics: Metrics, purpose: str, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._purpose = purpose
        self._clock = clock
        self._resting: set[str] = set()
        self._good: dict[tuple[str, str], Good] = {}

    def timed(self, deployment: Deployment, reply: Reply, times: Times | None) -> Reply:
        """Count a call whose answer has begun; its reply, which tells when it has ended."""
        if times is None:
            return reply
        if reply.status >= 400:
            self._count(deployment, _outcome(reply.status))
            return reply
        good = self.good(deployment)
        good.requests.add()
        return TimedReply(reply, self, good, times)

    def failed(self, deployment: Deployment, error: UpstreamUnavailable) -> None:
        """Count a call without an answer."""
        if isinstance(error, AnswerTimedOut):
            outcome = "timeout"
        else:
            outcome = "dropped" if isinstance(error, ConnectionDropped) else "unreachable"
        self._count(deployment, outcome)

    def tried_again(self, deployment: Deployment) -> None:
        self._metrics.counted(families.UPSTREAM_RETRIES, *self._of(deployment, is_served=False)).add()

    def fell_back(self, deployment: Deployment) -> None:
        """It has answered in another's place."""
        self._metrics.counted(families.UPSTREAM_FALLBACKS, *self._of(deployment, is_served=False)).add()

    def rests(self, deployment: Deployment, *, is_open: bool) -> None:
        """Note whether a deployment's breaker is open."""
        if is_open == (deployment.key in self._resting):
            return
        (self._resting.add if is_open else self._resting.discard)(deployment.key)
        of = self._of(deployment, is_served=False)
        self._metrics.counted(families.BREAKER_OPEN, *of, self._purpose).set(float(is_open))

    def times(self) -> Times | None:
        """What a provider notes its progress in; None: nobody wants to know."""
        return Times(self._clock()) if self._metrics.is_on else None

    def ended(self, good: Good, times: Times) -> None:
        """An answer has come to its end, or is let go."""
        ended = self._clock() if times.ended is None else times.ended
        good.seconds.add(ended - times.began)
        good.first_byte.add((ended if times.first_byte is None else times.first_byte) - times.began)

    def good(self, deployment: Deployment) -> Good:
        """What a deployment's good answers add to."""
        named = (deployment.provider.name, deployment.upstream_model)
        good = self._good.get(named)
        if good is None:
            good = Good(self._metrics, self._of(deployment, is_served=True), self._purpose)
            if len(self._good) < MOST_MODELS:
                self._good[named] = good
        return good

    def _count(self, deployment: Deployment, outcome: str) -> None:
        of = self._of(deployment, is_served=False)
        self._metrics.counted(families.UPSTREAM_REQUESTS, *of, self._purpose, outcome).add()

    def _of(self, deployment: Deployment, *, is_served: bool) -> tuple[str, str]:
        model = self._metrics.model(deployment.upstream_model, is_served=is_served)
        return deployment.provider.name, model


class Good:
    """The series that each good answer of one deployment adds to."""

    __slots__ = ("first_byte", "requests", "seconds")

    def __init__(self, metrics: Metrics, of: tuple[str, str], purpose: str) -> None:
        self.requests = metrics.counted(families.UPSTREAM_REQUESTS, *of, purpose, GOOD)
        self.seconds = metrics.observed(families.UPSTREAM_SECONDS, *of, purpose)
        self.first_byte = metrics.observed(families.UPSTREAM_FIRST_BYTE_SECONDS, *of, purpose)


class TimedReply:
    """Implements `upstream.base.Reply`: another one's, whose end is noted once."""

    __slots__ = ("_calls", "_good", "_has_ended", "_reply", "_times", "headers", "status")

    def __init__(self, reply: Reply, calls: Calls, good: Good, times: Times) -> None:
        self._reply = reply
        self._calls = calls
        self._good = good
        self._times = times
        self._has_ended = False
        self.status = reply.status
        self.headers: Mapping[str, str] = reply.headers

    async def read(self) -> bytes:
        body = await self._reply.read()
        self._end()
        return body

    def chunks(self) -> AsyncIterator[bytes]:
        return self._reply.chunks()

    async def aclose(self) -> None:
        self._end()
        await self._reply.aclose()

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._calls.ended(self._good, self._times)


def _outcome(status: int) -> str:
    if status == RATE_LIMITED:
        return "rate_limited"
    return "server_error" if status >= 500 else "refused"
