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

from app.errors import ClientKeyWithheld, ContextLengthExceeded, UpstreamUnavailable, drop_tracebacks
from app.observability.metrics import NO_METRICS, Metrics
from app.observability.tracing import current_span
from app.upstream.protocols.overflow_detection import detect_overflow
from app.upstream.provider import (
    AnswerTimedOut,
    ClientKey,
    ConnectionDropped,
    ModelDeployment,
    RoutedReply,
    RouteTarget,
    UpstreamProvider,
    UpstreamReply,
    UpstreamRequest,
)
from app.upstream.routing.circuit_breaker import CircuitBreaker
from app.upstream.routing.measured_calls import MeasuredCalls
from app.upstream.routing.routes import ConfiguredDeployment, ModelRoute, Routes

__all__ = ["ConfiguredDeployment", "ModelRoute", "RetryPolicy", "Router"]

log = logging.getLogger(__name__)

BuildBody = Callable[[ModelDeployment], Awaitable[bytes]]

STATUS_OK = 200
STATUS_UNAUTHORIZED = 401
MOST_BREAKERS = 1_000
"""Clients may make up names of models; the oldest is forgotten then."""
_QUOTA_WORDS = (b"insufficient_quota", b"current quota", b"billing", b"credit balance", b"quota_exceeded")
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
        providers: Mapping[str, UpstreamProvider],
        policy: RetryPolicy | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]],
        clock: Callable[[], float],
        random: Callable[[], float],
        metrics: Metrics = NO_METRICS,
        purpose: str = "answer",
    ) -> None:
        self.routes = Routes(models, providers)
        self._policy = policy or RetryPolicy()
        self._sleep = sleep
        self._clock = clock
        self._random = random
        self._breakers: dict[str, CircuitBreaker] = {}
        self._calls = MeasuredCalls(metrics, purpose, clock)

    def resolve(self, model: str) -> RouteTarget:
        """What a requested model name stands for.

        Raises:
            ModelNotFound: nothing.
        """
        return self.routes.resolve(model)

    def is_available(self, deployment: ModelDeployment) -> bool:
        """Whether its breaker lets calls through."""
        breaker = self._breakers.get(deployment.key)
        return breaker is None or breaker.seconds_until_trial == 0

    @property
    def has_available_deployment(self) -> bool:
        """Whether some deployment that is configured by name, or was ever asked, may be called now."""
        configured = (deployment for name in self.routes.names for deployment in self.resolve(name).deployments)
        if any(self.is_available(place) for place in configured) or not self._breakers:
            return True
        return any(breaker.seconds_until_trial == 0 for breaker in self._breakers.values())

    async def send(
        self,
        target: RouteTarget,
        build_body: BuildBody,
        *,
        path: str = "/chat/completions",
        client_key: ClientKey | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> RoutedReply:
        """Make a call. The answer may be an error that retrying does not mend, or, when every deployment failed, the
        last error answered, status and body as they were: the caller judges it.

        Args:
            build_body: makes the request body for a deployment; asked once for each that is tried.

        Raises:
            UpstreamUnavailable: no deployment answered at all.
            ClientKeyWithheld: a deployment answered 401, and the client's key is not meant for it.
            GatewayError: whatever `build_body` raises for the first deployment.
        """
        call = _RoutedCall(target, UpstreamRequest(path, headers=headers or {}), client_key)
        for deployment in target.deployments:
            breaker = self._breakers.get(deployment.key) or self._add_breaker(deployment)
            if breaker.is_open and not breaker.try_enter():
                call.record_open_breaker(breaker.seconds_until_trial)
                continue
            is_trial = breaker.is_open
            try:
                reply = await self._try_deployment(call, deployment, build_body, breaker)
            finally:
                if is_trial:
                    breaker.cancel_trial()
                self._calls.record_breaker_state(deployment, is_open=breaker.is_open)
            if reply is not None:
                if deployment is not target.deployments[0]:
                    self._calls.count_fallback(deployment)
                return reply
            self._log_failed_deployment(call, deployment, breaker)
        return call.return_or_raise_last()

    async def _try_deployment(
        self, call: _RoutedCall, deployment: ModelDeployment, build_body: BuildBody, breaker: CircuitBreaker
    ) -> RoutedReply | None:
        """Ask one deployment until it answers or is not to be asked again."""
        try:
            body = await build_body(deployment)
        except ContextLengthExceeded:
            if call.attempt_count == 0:
                raise
            call.failure_text = "The prompt does not fit into its window."
            return None
        for retry in range(self._policy.attempts):
            call.attempt_count += 1
            failure = await self._send_once(call, deployment, body, breaker)
            if isinstance(failure, RoutedReply):
                return failure
            is_last = retry + 1 == self._policy.attempts
            if is_last or not failure.may_retry or breaker.is_open:
                return None
            pause = self._choose_retry_pause(retry, failure)
            if pause is None or call.waited_seconds + pause > self._policy.total_wait_seconds:
                return None
            call.waited_seconds += pause
            current_span().add_event(
                "retry", {"concertina.pause_seconds": pause, "concertina.deployment": deployment.key}
            )
            await self._sleep(pause)
            self._calls.count_retry(deployment)
        return None

    async def _send_once(
        self, call: _RoutedCall, deployment: ModelDeployment, body: bytes, breaker: CircuitBreaker
    ) -> RoutedReply | _FailedAttempt:
        try:
            reply = await self._calls.send(
                deployment, call.build_request(deployment), body, retries=call.attempt_count - 1
            )
        except UpstreamUnavailable as error:
            breaker.record_failure()
            call.record_error(error)
            is_first_drop = isinstance(error, ConnectionDropped) and not call.record_drop(deployment)
            return _FailedAttempt(may_retry=not isinstance(error, AnswerTimedOut), retry_at_once=is_first_drop)
        if reply.status == STATUS_OK or not _is_retryable(reply.status):
            breaker.record_success()
            try:
                check_client_key(reply.status, deployment.provider, call.client_key)
            except ClientKeyWithheld:
                await reply.aclose()
                raise
            return RoutedReply(reply, deployment, call.attempt_count)
        return await self._judge_error_reply(call, deployment, reply, breaker)

    async def _judge_error_reply(
        self, call: _RoutedCall, deployment: ModelDeployment, reply: UpstreamReply, breaker: CircuitBreaker
    ) -> RoutedReply | _FailedAttempt:
        """Judge an answer that may pass by itself; it is kept, in case that it is the last."""
        try:
            body = await reply.read()
        except UpstreamUnavailable as error:
            breaker.record_failure()
            call.record_error(error)
            return _FailedAttempt(may_retry=True)
        finally:
            await reply.aclose()
        answer = RoutedReply(BufferedReply(reply.status, reply.headers, body), deployment, call.attempt_count)
        overflow = detect_overflow(reply.status, body)
        if overflow is not None and overflow.is_certain:
            breaker.record_success()
            return answer
        if reply.status >= 500:
            breaker.record_failure()
        else:
            breaker.record_success()
        call.last_reply = answer
        call.failure_text = f"It answered {reply.status}."
        retry_forbidden = reply.headers.get("x-should-retry") == "false"
        quota_exhausted = reply.status == 429 and any(word in body for word in _QUOTA_WORDS)
        return _FailedAttempt(
            may_retry=not (retry_forbidden or quota_exhausted), retry_after_seconds=parse_retry_after(reply.headers)
        )

    def _log_failed_deployment(self, call: _RoutedCall, deployment: ModelDeployment, breaker: CircuitBreaker) -> None:
        breaker_text = f" It is left alone for {breaker.seconds_until_trial:.0f} s." if breaker.is_open else ""
        log.warning(
            "%s gave no usable answer, tries so far: %d. %s%s",
            deployment.key,
            call.attempt_count,
            call.failure_text,
            breaker_text,
        )

    def _choose_retry_pause(self, retry: int, failure: _FailedAttempt) -> float | None:
        """Seconds before the next try of the same deployment; None where it asks for more patience than there is."""
        if failure.retry_at_once:
            return 0.0
        jitter = self._random()
        retry_after = failure.retry_after_seconds
        if retry_after is not None:
            return retry_after * (1 + 0.1 * jitter) if retry_after <= self._policy.retry_after_max_seconds else None
        pause: float = min(self._policy.base_seconds * 2**retry, self._policy.max_seconds)
        return pause * (1 - 0.5 * jitter)

    def _add_breaker(self, deployment: ModelDeployment) -> CircuitBreaker:
        if len(self._breakers) >= MOST_BREAKERS:
            del self._breakers[next(iter(self._breakers))]
        policy = self._policy
        breaker = self._breakers[deployment.key] = CircuitBreaker(
            policy.breaker_failures, policy.breaker_seconds, policy.breaker_max_seconds, self._clock
        )
        return breaker


@dataclass(slots=True)
class BufferedReply:
    """An answer whose body has been read already; `upstream.provider.Reply`."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    async def read(self) -> bytes:
        return self.body

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        if self.body:
            yield self.body

    async def aclose(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class _FailedAttempt:
    may_retry: bool
    """Whether the same deployment may be asked again."""
    retry_at_once: bool = False
    retry_after_seconds: float | None = None


class _RoutedCall(msgspec.Struct):
    """What has happened so far to one call."""

    target: RouteTarget
    request: UpstreamRequest
    client_key: ClientKey | None = None
    attempt_count: int = 0
    waited_seconds: float = 0.0
    last_reply: RoutedReply | None = None
    """The last error that an upstream answered."""
    last_error: UpstreamUnavailable | None = None
    failure_text: str = ""
    """How the last try failed, in a sentence without anything that was said."""
    _dropped_deployments: set[str] = msgspec.field(default_factory=set)
    _breaker_pauses: list[float] = msgspec.field(default_factory=list)

    def record_error(self, error: UpstreamUnavailable) -> None:
        """Take note of an error, in case that it is the last."""
        drop_tracebacks(error)
        self.last_error = error
        self.failure_text = error.message

    def build_request(self, deployment: ModelDeployment) -> UpstreamRequest:
        """The call, with the client's key if the deployment's provider may see it."""
        authorization = None if self.client_key is None else self.client_key.show_to(deployment.provider)
        return self.request if authorization is None else replace(self.request, authorization=authorization)

    def record_drop(self, deployment: ModelDeployment) -> bool:
        """Whether a connection to it was dropped before; the first time costs no pause."""
        was_dropped = deployment.key in self._dropped_deployments
        self._dropped_deployments.add(deployment.key)
        return was_dropped

    def record_open_breaker(self, seconds: float) -> None:
        self._breaker_pauses.append(seconds)

    def return_or_raise_last(self) -> RoutedReply:
        if self.last_reply is not None:
            return RoutedReply(self.last_reply.reply, self.last_reply.deployment, self.attempt_count)
        if self.last_error is not None:
            raise self.last_error
        raise UpstreamUnavailable(
            f"Every deployment of {self.target.model!r} has failed repeatedly and is left alone for a while.",
            status=503,
            retry_after_seconds=max(1.0, min(self._breaker_pauses, default=1.0)),
        )


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
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


def check_client_key(status: int, provider: UpstreamProvider, client_key: ClientKey | None) -> None:
    """
    Raises:
        ClientKeyWithheld: the provider wants a key, and the client's is not meant for it.
    """
    if status == STATUS_UNAUTHORIZED and client_key is not None and client_key.is_withheld_from(provider):
        raise ClientKeyWithheld(
            f"Provider {provider.name!r} wants a key and was called without one: it has none of its own, and a "
            "client's key goes only to the first provider of the model that the client asked for.",
            hint=f"Set `providers.{provider.name}.api_key`, or `providers.{provider.name}.pass_client_key: true`.",
        )


def _is_retryable(status: int) -> bool:
    """Whether an error may pass by itself: request time-out, rate limit, server error."""
    return status in (408, 429) or status >= 500
