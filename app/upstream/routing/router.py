"""Calls the first deployment that answers: retries, then the next deployment, then the fallbacks.

All of this happens before the first byte of an answer is passed on. After that nothing is retried.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Final

import msgspec

from app.conversation.api_keys import extract_application_tenant
from app.errors import ClientKeyWithheld, ContextLengthExceeded, UpstreamUnavailable, drop_tracebacks
from app.observability import metric_families
from app.observability.metrics import NO_METRICS, Metrics
from app.observability.tracing import current_span
from app.upstream.protocols.overflow_detection import detect_overflow
from app.upstream.provider_contract import (
    CALL_PATHS,
    AnswerTimedOut,
    CallTimes,
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
from app.upstream.routing.deployment_breaker import DeploymentBreaker
from app.upstream.routing.measured_calls import MeasuredCalls
from app.upstream.routing.routes import ModelRoute, Routes

log = logging.getLogger(__name__)

BuildBody = Callable[[ModelDeployment], Awaitable[bytes]]

STATUS_OK = 200
STATUS_UNAUTHORIZED = 401
MAX_BREAKERS: Final = 1_000
"""Clients may make up names of models."""
_QUOTA_WORDS = (b"insufficient_quota", b"current quota", b"billing", b"credit balance", b"quota_exceeded")
"""Words in a 429 that waiting does not help."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long one call is tried.

    `attempts` is the number at each deployment, the first one included. Before each retry there is a pause:
    `base_seconds`, doubled each time up to `max_seconds`, less up to half at random; or what ``Retry-After`` says. If
    that is more than `retry_after_max_seconds`, the next deployment is called, or the client gets the answer. All
    pauses together take at most `total_wait_seconds`. After `breaker_failures` in a row, of several prompts, a
    deployment is not called for `breaker_seconds`, then twice as long each time up to `breaker_max_seconds`: by the
    tenant whose calls fail, or by all if those of several tenants do.
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
    """Routes calls to deployments, with a circuit breaker for each.

    Args:
        models: see `Routes`.
        providers: see `Routes`.
        policy: see `RetryPolicy`.
        sleep: such as `asyncio.sleep`.
        clock: monotonic seconds.
        random: uniform in [0, 1).
        metrics: receives counts and durations.
        purpose: a label of the metrics.
        max_breakers: above this number the oldest breaker is removed.
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
        max_breakers: int = MAX_BREAKERS,
    ) -> None:
        self.routes = Routes(models, providers)
        self._policy = policy or RetryPolicy()
        self._sleep = sleep
        self._clock = clock
        self._random = random
        self._new_breaker = partial(
            CircuitBreaker,
            self._policy.breaker_failures,
            self._policy.breaker_seconds,
            self._policy.breaker_max_seconds,
            clock,
        )
        self._breakers: dict[str, DeploymentBreaker] = {}
        self._max_breakers = max_breakers
        self._calls = MeasuredCalls(metrics, purpose, clock)

    def resolve(self, model: str) -> RouteTarget:
        """Returns the deployments for a requested model name.

        Raises:
            ModelNotFound: the name is unknown.
        """
        return self.routes.resolve(model)

    async def send(
        self,
        target: RouteTarget,
        build_body: BuildBody,
        *,
        tenant: str = "",
        client_key: ClientKey | None = None,
        headers: Mapping[str, str] | None = None,
        queries: Mapping[str, str] | None = None,
    ) -> RoutedReply:
        """Makes a call. The answer may be an error that a retry does not help, or, if every deployment failed, the last
        error answer with its status and body: the caller judges it.

        Args:
            target: the deployments to try.
            build_body: builds the request body for a deployment, in its provider's protocol; called once for each that
                is tried.
            tenant: whose call it is.
            client_key: the client's own credential.
            headers: further headers to send.
            queries: the query to send, by the protocol of the provider.

        Raises:
            UpstreamUnavailable: no deployment answered at all.
            ClientKeyWithheld: a deployment answered 401, and the client's key is not meant for it.
            GatewayError: whatever `build_body` raises for the first deployment.
        """
        # Failures that follow one client's key are that key's, whichever end user sends it.
        tenant = tenant if client_key is None else extract_application_tenant(tenant)
        call = _RoutedCall(target, headers or {}, queries or {}, tenant, client_key)
        for deployment in target.deployments:
            breaker = self._breakers.get(deployment.key) or self._add_breaker(deployment)
            is_trial = breaker.is_open_for(tenant)
            if is_trial and not breaker.try_enter(tenant):
                call.breaker_pauses.append(breaker.seconds_until_trial(tenant))
                continue
            try:
                reply = await self._try_deployment(call, deployment, build_body, breaker)
            finally:
                # Also on cancellation: otherwise the breaker would wait for this trial for another pause. After a
                # result this changes nothing.
                if is_trial:
                    breaker.cancel_trial(tenant)
                if breaker.is_open != (deployment.key in self._calls.open_breakers):
                    self._calls.record_breaker_state(deployment, is_open=breaker.is_open)
            if reply is not None:
                if deployment is not target.deployments[0]:
                    self._calls.count(metric_families.UPSTREAM_FALLBACKS, deployment)
                return reply
            self._log_failed_deployment(call, deployment, breaker)
        return call.return_or_raise_last()

    async def _try_deployment(
        self, call: _RoutedCall, deployment: ModelDeployment, build_body: BuildBody, breaker: DeploymentBreaker
    ) -> RoutedReply | None:
        """Calls one deployment until it answers or must not be called again; returns None in the latter case."""
        try:
            body = await build_body(deployment)
        except ContextLengthExceeded:
            # Nothing was sent yet, so the client must hear of it. A later deployment with a smaller window is merely
            # skipped.
            if call.attempt_count == 0:
                raise
            call.failure_text = "The prompt does not fit into its window."
            return None
        was_dropped = False
        for retry in range(self._policy.attempts):
            call.attempt_count += 1
            failure = await self._send_once(call, deployment, body, breaker)
            if isinstance(failure, RoutedReply):
                return failure
            is_last = retry + 1 == self._policy.attempts
            # An open breaker asks for a longer pause than a retry makes.
            if is_last or not failure.may_retry or breaker.is_open_for(call.tenant):
                return None
            # A kept connection that the server has closed meanwhile says nothing about the server: retry at once, but
            # only once.
            pause = 0.0 if failure.is_dropped and not was_dropped else self._choose_retry_pause(retry, failure)
            was_dropped = was_dropped or failure.is_dropped
            # The next deployment may answer at once: waiting longer here helps nobody.
            if pause is None or call.waited_seconds + pause > self._policy.total_wait_seconds:
                return None
            call.waited_seconds += pause
            current_span().add_event(
                "retry", {"concertina.pause_seconds": pause, "concertina.deployment": deployment.key}
            )
            await self._sleep(pause)
            self._calls.count(metric_families.UPSTREAM_RETRIES, deployment)
        return None

    async def _send_once(
        self, call: _RoutedCall, deployment: ModelDeployment, body: bytes, breaker: DeploymentBreaker
    ) -> RoutedReply | _FailedAttempt:
        key = call.client_key
        request = UpstreamRequest(
            CALL_PATHS[deployment.provider.protocol],
            body,
            authorization=None if key is None else key.disclose_to_provider(deployment.provider),
            headers=call.headers,
            query=call.queries.get(deployment.provider.protocol, ""),
            times=CallTimes(self._clock()),
        )
        try:
            reply = await self._calls.send(deployment, request, retries=call.attempt_count - 1)
        except UpstreamUnavailable as error:
            breaker.record_failure(call.tenant, body)
            call.record_error(error)
            return _FailedAttempt(
                may_retry=not isinstance(error, AnswerTimedOut), is_dropped=isinstance(error, ConnectionDropped)
            )
        if _is_retryable(reply.status):
            return await self._judge_retryable_reply(call, deployment, body, reply, breaker)
        breaker.record_success(call.tenant)
        try:
            raise_if_key_withheld(reply.status, deployment.provider, key)
        except ClientKeyWithheld:
            await reply.aclose()
            raise
        return RoutedReply(reply, deployment, call.attempt_count)

    async def _judge_retryable_reply(
        self,
        call: _RoutedCall,
        deployment: ModelDeployment,
        sent_body: bytes,
        reply: UpstreamReply,
        breaker: DeploymentBreaker,
    ) -> RoutedReply | _FailedAttempt:
        """Judges an error answer that may pass by itself. The answer is kept: it is returned if no later attempt does
        better.
        """
        try:
            body = await reply.read()
        except UpstreamUnavailable as error:
            breaker.record_failure(call.tenant, sent_body)
            call.record_error(error)
            return _FailedAttempt(may_retry=True)
        finally:
            await reply.aclose()
        answer = RoutedReply(BufferedReply(reply.status, reply.headers, body), deployment, call.attempt_count)
        overflow = detect_overflow(reply.status, body)
        # Some servers answer an overflow with 5xx. It is no failure of the server, and a retry would not help.
        if overflow is not None and overflow.is_certain:
            breaker.record_success(call.tenant)
            return answer
        if reply.status >= 500:
            breaker.record_failure(call.tenant, sent_body)
        else:
            breaker.record_success(call.tenant)
        call.last_reply = answer
        call.failure_text = f"It answered {reply.status}."
        # OpenAI's and Anthropic's servers send `x-should-retry: false` if a retry cannot succeed.
        retry_forbidden = reply.headers.get("x-should-retry") == "false"
        quota_exhausted = reply.status == 429 and any(word in body for word in _QUOTA_WORDS)
        return _FailedAttempt(
            may_retry=not (retry_forbidden or quota_exhausted), retry_after_seconds=parse_retry_after(reply.headers)
        )

    def _log_failed_deployment(
        self, call: _RoutedCall, deployment: ModelDeployment, breaker: DeploymentBreaker
    ) -> None:
        pause_seconds = breaker.seconds_until_trial(call.tenant)
        breaker_text = f" It gets no calls of this tenant for {pause_seconds:.0f} s." if pause_seconds else ""
        log.warning(
            "%s gave no usable answer, tries so far: %d. %s%s",
            deployment.key,
            call.attempt_count,
            call.failure_text,
            breaker_text,
        )

    def _choose_retry_pause(self, retry: int, failure: _FailedAttempt) -> float | None:
        """Returns seconds before the next attempt at the same deployment; None if the provider asks for a longer pause
        than the policy allows.
        """
        jitter = self._random()
        retry_after = failure.retry_after_seconds
        if retry_after is not None:
            # Never less than asked; up to 10 % more, so that clients do not all return at the same moment.
            return retry_after * (1 + 0.1 * jitter) if retry_after <= self._policy.retry_after_max_seconds else None
        pause: float = min(self._policy.base_seconds * 2**retry, self._policy.max_seconds)
        return pause * (1 - 0.5 * jitter)

    def _add_breaker(self, deployment: ModelDeployment) -> DeploymentBreaker:
        if len(self._breakers) >= self._max_breakers:
            del self._breakers[next(iter(self._breakers))]
        breaker = self._breakers[deployment.key] = DeploymentBreaker(self._new_breaker)
        return breaker


@dataclass(slots=True)
class BufferedReply:
    """An answer whose body has been read already. Implements `upstream.provider_contract.UpstreamReply`."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    protocol: str = "openai"
    """The protocol of the body, if it is an answer."""

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
    is_dropped: bool = False
    retry_after_seconds: float | None = None


class _RoutedCall(msgspec.Struct):
    """The state of one call."""

    target: RouteTarget
    headers: Mapping[str, str]
    queries: Mapping[str, str]
    tenant: str
    """Whose failures the call's are."""
    client_key: ClientKey | None = None
    attempt_count: int = 0
    waited_seconds: float = 0.0
    last_reply: RoutedReply | None = None
    """The last error answer."""
    last_error: UpstreamUnavailable | None = None
    failure_text: str = ""
    """How the last attempt failed, without any content."""
    breaker_pauses: list[float] = msgspec.field(default_factory=list)

    def record_error(self, error: UpstreamUnavailable) -> None:
        """Keeps an error, to be raised if no later attempt does better. Its tracebacks are dropped, since they would
        keep the request in memory (decision 29).
        """
        drop_tracebacks(error)
        self.last_error = error
        self.failure_text = error.message

    def return_or_raise_last(self) -> RoutedReply:
        # An error that a provider answered tells the client more than a failed connection.
        if self.last_reply is not None:
            return RoutedReply(self.last_reply.reply, self.last_reply.deployment, self.attempt_count)
        if self.last_error is not None:
            raise self.last_error
        raise UpstreamUnavailable(
            f"Every deployment of {self.target.model!r} has failed repeatedly and gets no calls for a while.",
            status=503,
            retry_after_seconds=max(1.0, min(self.breaker_pauses, default=1.0)),
        )


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Returns the seconds that ``retry-after-ms`` or ``retry-after`` asks for; None without either. A date is compared
    with the answer's own ``date``, so that clocks may differ.
    """
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


def raise_if_key_withheld(status: int, provider: UpstreamProvider, client_key: ClientKey | None) -> None:
    """Raises an error that explains a 401 if the client's key was withheld from the provider.

    Raises:
        ClientKeyWithheld: the provider wants a key, and the client's is not meant for it.
    """
    if status == STATUS_UNAUTHORIZED and client_key is not None and client_key.is_withheld_from(provider):
        raise ClientKeyWithheld(
            f"Provider {provider.name!r} needs a key and was called without one: no key is configured for it, and a "
            "client's key goes only to the first provider of the model that the client asked for.",
            hint=f"Set `providers.{provider.name}.api_key`, or `providers.{provider.name}.pass_client_key: true`.",
        )


def _is_retryable(status: int) -> bool:
    """Says whether an error may pass by itself: request timeout, rate limit, server error."""
    return status in (408, 429) or status >= 500
