"""Open a call at the first deployment that answers: retries, then the next deployment, then the fallbacks.

All of it happens before the first byte of an answer is passed on; after that nothing is retried.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import msgspec
from msgspec.structs import replace

from app.errors import ClientKeyWithheld, ContextLengthExceeded, UpstreamUnavailable, release_frames
from app.observability.metrics import SILENT, Metrics
from app.observability.tracing import current_span
from app.upstream.protocols.overflow import recognise
from app.upstream.provider import (
    AnswerTimedOut,
    Call,
    ClientKey,
    ConnectionDropped,
    Deployment,
    Opened,
    Provider,
    Reply,
    Target,
)
from app.upstream.routing.circuit_breaker import Breaker
from app.upstream.routing.measured_calls import Calls
from app.upstream.routing.routes import ModelRoute, Place, Routes

__all__ = ["ModelRoute", "Place", "RetryPolicy", "Router"]

log = logging.getLogger(__name__)

BodyFor = Callable[[Deployment], Awaitable[bytes]]

OK = 200
UNAUTHORIZED = 401
MOST_BREAKERS = 1_000
"""Clients may make up names of models; the oldest is forgotten then."""
_QUOTA = (b"insufficient_quota", b"current quota", b"billing", b"credit balance", b"quota_exceeded")
"""In a 429 that waiting does not mend."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long one call is tried.

    `attempts` at each deployment, the first included. Before each further one: `base_seconds`, doubled each time up to
    `max_seconds`, less up to half at random; or what ``Retry-After`` says, unless that is more than
    `retry_after_max_seconds`, which sends the call to the next deployment, or the answer to the client. Waiting adds
    up to at most `total_wait_seconds`. A deployment with `breaker_failures` in a row rests for `breaker_seconds`,
    then twice as long each time up to `breaker_max_seconds`.
    """

    attempts: int = 3
    base_seconds: float = 0.5
    max_seconds: float = 8.0
    retry_after_max_seconds: float = 20.0
    total_wait_seconds: float = 60.0
    breaker_failures: int = 5
    breaker_seconds: float = 30.0
    breaker_max_seconds: float = 600.0


class Router:
    """Model names, deployments and their breakers.

    Args:
        models, providers: see `Routes`, whose `ValueError`s it passes on.
        policy: see `RetryPolicy`.
        sleep: such as `asyncio.sleep`.
        clock: monotonic seconds.
        random: uniform in [0, 1).
        purpose: what calls are counted as.
    """

    def __init__(
        self,
        models: Mapping[str, ModelRoute],
        providers: Mapping[str, Provider],
        policy: RetryPolicy | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]],
        clock: Callable[[], float],
        random: Callable[[], float],
        metrics: Metrics = SILENT,
        purpose: str = "answer",
    ) -> None:
        self.routes = Routes(models, providers)
        self._policy = policy or RetryPolicy()
        self._sleep = sleep
        self._clock = clock
        self._random = random
        self._breakers: dict[str, Breaker] = {}
        self._calls = Calls(metrics, purpose, clock)

    def resolve(self, model: str) -> Target:
        """What a requested model name stands for.

        Raises:
            ModelNotFound: nothing.
        """
        return self.routes.resolve(model)

    def is_available(self, deployment: Deployment) -> bool:
        """Whether its breaker lets calls through."""
        breaker = self._breakers.get(deployment.key)
        return breaker is None or breaker.wait_seconds == 0

    @property
    def has_upstream(self) -> bool:
        """Whether some deployment that is configured by name, or was ever asked, may be called now."""
        named = (place for name in self.routes.names for place in self.resolve(name).deployments)
        if any(self.is_available(place) for place in named) or not self._breakers:
            return True
        return any(breaker.wait_seconds == 0 for breaker in self._breakers.values())

    async def open(
        self,
        target: Target,
        body_for: BodyFor,
        *,
        path: str = "/chat/completions",
        client_key: ClientKey | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Opened:
        """Make a call. The answer may be an error that retrying does not mend, or, when every deployment failed, the
        last error answered, status and body as they were: the caller judges it.

        Args:
            body_for: makes the request body for a deployment; asked once for each that is tried.

        Raises:
            UpstreamUnavailable: no deployment answered at all.
            ClientKeyWithheld: a deployment answered 401, and the client's key is not meant for it.
            GatewayError: whatever `body_for` raises for the first deployment.
        """
        attempt = _Attempt(target, Call(path, headers=headers or {}), client_key)
        for deployment in target.deployments:
            breaker = self._breakers.get(deployment.key) or self._new_breaker(deployment)
            if breaker.is_open and not breaker.enter():
                attempt.resting(breaker.wait_seconds)
                continue
            on_trial = breaker.is_open
            try:
                opened = await self._try(attempt, deployment, body_for, breaker)
            finally:
                if on_trial:
                    breaker.gave_up()
                self._calls.rests(deployment, is_open=breaker.is_open)
            if opened is not None:
                if deployment is not target.deployments[0]:
                    self._calls.fell_back(deployment)
                return opened
            self._tell(attempt, deployment, breaker)
        return attempt.outcome()

    async def _try(
        self, attempt: _Attempt, deployment: Deployment, body_for: BodyFor, breaker: Breaker
    ) -> Opened | None:
        """Ask one deployment until it answers or is not to be asked again."""
        try:
            body = await body_for(deployment)
        except ContextLengthExceeded:
            if attempt.number == 0:
                raise
            attempt.failing = "The prompt does not fit into its window."
            return None
        for turn in range(self._policy.attempts):
            attempt.number += 1
            failure = await self._ask(attempt, deployment, body, breaker)
            if isinstance(failure, Opened):
                return failure
            last = turn + 1 == self._policy.attempts
            if last or not failure.again or breaker.is_open:
                return None
            pause = self._pause(turn, failure)
            if pause is None or attempt.waited_seconds + pause > self._policy.total_wait_seconds:
                return None
            attempt.waited_seconds += pause
            current_span().event("retry", {"concertina.pause_seconds": pause, "concertina.deployment": deployment.key})
            await self._sleep(pause)
            self._calls.tried_again(deployment)
        return None

    async def _ask(self, attempt: _Attempt, deployment: Deployment, body: bytes, breaker: Breaker) -> Opened | _Failure:
        try:
            reply = await self._calls.send(deployment, attempt.make_call(deployment), body, resends=attempt.number - 1)
        except UpstreamUnavailable as error:
            breaker.failed()
            attempt.keep(error)
            dropped = isinstance(error, ConnectionDropped) and not attempt.dropped_before(deployment)
            return _Failure(again=not isinstance(error, AnswerTimedOut), at_once=dropped)
        if reply.status == OK or not _is_passing(reply.status):
            breaker.succeeded()
            try:
                check_client_key(reply.status, deployment.provider, attempt.client_key)
            except ClientKeyWithheld:
                await reply.aclose()
                raise
            return Opened(reply, deployment, attempt.number)
        return await self._refused(attempt, deployment, reply, breaker)

    async def _refused(
        self, attempt: _Attempt, deployment: Deployment, reply: Reply, breaker: Breaker
    ) -> Opened | _Failure:
        """Judge an answer that may pass by itself; it is kept, in case that it is the last."""
        try:
            body = await reply.read()
        except UpstreamUnavailable as error:
            breaker.failed()
            attempt.keep(error)
            return _Failure(again=True)
        finally:
            await reply.aclose()
        answer = Opened(ReadReply(reply.status, reply.headers, body), deployment, attempt.number)
        overflow = recognise(reply.status, body)
        if overflow is not None and overflow.certain:
            breaker.succeeded()
            return answer
        if reply.status >= 500:
            breaker.failed()
        else:
            breaker.succeeded()
        attempt.answer = answer
        attempt.failing = f"It answered {reply.status}."
        forbidden = reply.headers.get("x-should-retry") == "false"
        spent = reply.status == 429 and any(word in body for word in _QUOTA)
        return _Failure(again=not (forbidden or spent), retry_after_seconds=retry_after_seconds(reply.headers))

    def _tell(self, attempt: _Attempt, deployment: Deployment, breaker: Breaker) -> None:
        resting = f" It is left alone for {breaker.wait_seconds:.0f} s." if breaker.is_open else ""
        log.warning(
            "%s gave no usable answer, tries so far: %d. %s%s",
            deployment.key,
            attempt.number,
            attempt.failing,
            resting,
        )

    def _pause(self, turn: int, failure: _Failure) -> float | None:
        """Seconds before the next try of the same deployment; None where it asks for more patience than there is."""
        if failure.at_once:
            return 0.0
        jitter = self._random()
        asked = failure.retry_after_seconds
        if asked is not None:
            return asked * (1 + 0.1 * jitter) if asked <= self._policy.retry_after_max_seconds else None
        pause: float = min(self._policy.base_seconds * 2**turn, self._policy.max_seconds)
        return pause * (1 - 0.5 * jitter)

    def _new_breaker(self, deployment: Deployment) -> Breaker:
        if len(self._breakers) >= MOST_BREAKERS:
            del self._breakers[next(iter(self._breakers))]
        policy = self._policy
        breaker = self._breakers[deployment.key] = Breaker(
            policy.breaker_failures, policy.breaker_seconds, policy.breaker_max_seconds, self._clock
        )
        return breaker


@dataclass(slots=True)
class ReadReply:
    """An answer whose body has been read already; `upstream.provider.Reply`."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    async def read(self) -> bytes:
        return self.body

    async def chunks(self) -> AsyncIterator[bytes]:
        if self.body:
            yield self.body

    async def aclose(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class _Failure:
    again: bool
    """Whether the same deployment may be asked again."""
    at_once: bool = False
    retry_after_seconds: float | None = None


class _Attempt(msgspec.Struct):
    """What has happened so far to one call."""

    target: Target
    call: Call
    client_key: ClientKey | None = None
    number: int = 0
    waited_seconds: float = 0.0
    answer: Opened | None = None
    """The last error that an upstream answered."""
    error: UpstreamUnavailable | None = None
    failing: str = ""
    """How the last try failed, in a sentence without anything that was said."""
    _dropped: set[str] = msgspec.field(default_factory=set)
    _resting: list[float] = msgspec.field(default_factory=list)

    def keep(self, error: UpstreamUnavailable) -> None:
        """Take note of an error, in case that it is the last."""
        release_frames(error)
        self.error = error
        self.failing = error.message

    def make_call(self, deployment: Deployment) -> Call:
        """The call, with the client's key if the deployment's provider may see it."""
        shown = None if self.client_key is None else self.client_key.show_to(deployment.provider)
        return self.call if shown is None else replace(self.call, authorization=shown)

    def dropped_before(self, deployment: Deployment) -> bool:
        """Whether a connection to it was dropped before; the first time costs no pause."""
        before = deployment.key in self._dropped
        self._dropped.add(deployment.key)
        return before

    def resting(self, seconds: float) -> None:
        self._resting.append(seconds)

    def outcome(self) -> Opened:
        if self.answer is not None:
            return Opened(self.answer.reply, self.answer.deployment, self.number)
        if self.error is not None:
            raise self.error
        raise UpstreamUnavailable(
            f"Every deployment of {self.target.model!r} has failed repeatedly and is left alone for a while.",
            status=503,
            retry_after_seconds=max(1.0, min(self._resting, default=1.0)),
        )


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """What ``retry-after-ms`` or ``retry-after`` asks for; a date is taken against the answer's own ``date``."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    try:
        wait = parsedate_to_datetime(headers["retry-after"]) - parsedate_to_datetime(headers["date"])
    except (KeyError, ValueError, TypeError):
        return None
    return max(0.0, wait.total_seconds())


def check_client_key(status: int, provider: Provider, client_key: ClientKey | None) -> None:
    """
    Raises:
        ClientKeyWithheld: the provider wants a key, and the client's is not meant for it.
    """
    if status == UNAUTHORIZED and client_key is not None and client_key.is_withheld_from(provider):
        raise ClientKeyWithheld(
            f"Provider {provider.name!r} wants a key and was called without one: it has none of its own, and a "
            "client's key goes only to the first provider of the model that the client asked for.",
            hint=f"Set `providers.{provider.name}.api_key`, or `providers.{provider.name}.pass_client_key: true`.",
        )


def _is_passing(status: int) -> bool:
    """Whether an error may pass by itself: request time-out, rate limit, server error."""
    return status in (408, 429) or status >= 500
