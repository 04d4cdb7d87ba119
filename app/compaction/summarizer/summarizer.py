"""One summary, written by the first model that can: the one that is meant, then its fallbacks."""

from __future__ import annotations

import time
from collections.abc import Callable

from app.compaction.compaction_job import summed
from app.compaction.summarizer.prompts import prompt_version
from app.compaction.summarizer.request_body import input_tokens
from app.compaction.summarizer.summarizer_call import Calls, Windows
from app.compaction.summarizer.summary_request import SAME_MODEL, Summary, SummaryRefused, SummaryRequest
from app.compaction.summarizer.summary_writer import Writing
from app.context.view.view_messages import Counter
from app.errors import GatewayError, UpstreamRefused, release_frames
from app.observability.metrics import SILENT, Metrics
from app.upstream.routing.circuit_breaker import Breaker
from app.upstream.routing.router import Router

__all__ = ["SAME_MODEL", "Summarizer", "Summary", "SummaryRefused", "SummaryRequest", "Windows", "input_tokens"]


class Summarizer:
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
        windows: Windows,
        counter_for: Callable[[str], Counter],
        monotonic: Callable[[], float] = time.monotonic,
        metrics: Metrics = SILENT,
    ) -> None:
        self._router = router
        self._windows = windows
        self._counter_for = counter_for
        self._monotonic = monotonic
        self._metrics = metrics
        self._pauses = Pauses(monotonic)

    async def summarize(self, request: SummaryRequest) -> Summary:
        """A summary of what the request names, with the values that its writer left out.

        Raises:
            SummaryRefused: the answer is blank, calls a tool, was filtered, does not end, or gains too little; or no
                model is to be asked just now.
            UpstreamRefused: the summarizer's own error answer.
            UpstreamUnavailable: it could not be reached, did not answer in time, or answered nonsense.
        """
        if not request.policy.summarizer.enabled:
            raise SummaryRefused("summaries are switched off")
        failures: list[SummaryRefused | GatewayError] = []
        for model in _models(request):
            try:
                return await self._by(model, request)
            except (SummaryRefused, GatewayError) as error:
                release_frames(error)
                failures.append(error)
        raise failures.pop(0)  # the list is a variable of this frame, which the traceback keeps

    def rests(self, request: SummaryRequest) -> bool:
        """Whether every model that could be asked is left alone just now."""
        return self.resting_seconds(request) > 0

    def resting_seconds(self, request: SummaryRequest) -> float:
        """For how long every model that could be asked is left alone."""
        return min(self._pauses.of(model, request.tenant, request.root).wait_seconds for model in _models(request))

    async def _by(self, model: str, request: SummaryRequest) -> Summary:
        """A summary by one model, unless it rests."""
        pause = self._pauses.of(model, request.tenant, request.root)
        if not pause.enter():
            raise SummaryRefused(f"the summarizer has failed too often and rests for {pause.wait_seconds:.0f} s")
        is_settled = False
        try:
            summary = await self._written(model, request)
            pause.succeeded()
            is_settled = True
        except (SummaryRefused, GatewayError) as error:
            pause.failed(error)
            is_settled = True
            raise
        finally:
            if not is_settled:
                pause.gave_up()
        return summary

    async def _written(self, model: str, request: SummaryRequest) -> Summary:
        began = self._monotonic()
        writing = Writing(request, self._calls(model, request), self._counter_for(request.encoding))
        text = await _text(writing, model)
        return Summary(
            text=text,
            model=writing.model,
            prompt_version=prompt_version(request.policy.summarizer, request.wish),
            duration_ms=round((self._monotonic() - began) * 1000),
            usage=summed(writing.usages),
        )

    def _calls(self, model: str, request: SummaryRequest) -> Calls:
        """
        Raises:
            ModelNotFound: no such model is configured.
        """
        return Calls(
            request,
            self._router.resolve(model),
            router=self._router,
            windows=self._windows,
            counter_for=self._counter_for,
            metrics=self._metrics,
        )


async def _text(writing: Writing, model: str) -> str:
    """The summary: from the conversation itself where this model has just read it, else, or where that is refused or
    no use, from a transcript."""
    request = writing.request
    is_known = bool(request.prefix) and bool(request.messages or request.folded) and model == request.model
    if is_known and request.policy.summarizer.form != "transcript":
        try:
            return await writing.from_conversation()
        except SummaryRefused:
            pass
        except UpstreamRefused as refusal:
            if refusal.status not in UNPROCESSABLE:
                raise
    return await writing.from_transcript()


def _models(request: SummaryRequest) -> list[str]:
    """Whom to ask, in order, each once."""
    named = request.policy.summarizer
    told = [named.model, *named.fallbacks]
    return list(dict.fromkeys(request.model if model == SAME_MODEL else model for model in told))


FAILURES = 3
"""So many in a row begin a pause …"""
FIRST_SECONDS, LONGEST_SECONDS = 30.0, 600.0
"""… of this length; each failure after a pause doubles it."""
REMEMBERED = 2_048
UNPROCESSABLE = frozenset({400, 413, 422})
"""Refusals that say something about what was asked, not about who answers."""


class Pauses:
    """Remembers failures in this process.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._breakers: dict[tuple[str, ...], Breaker] = {}

    def of(self, model: str, tenant: str, root: str) -> Pause:
        return Pause(self._breaker(model, tenant), self._breaker(model, tenant, root))

    def _breaker(self, *key: str) -> Breaker:
        """The breaker of a key; the one that was asked for longest ago is forgotten when there are too many."""
        breaker = self._breakers.pop(key, None) or Breaker(FAILURES, FIRST_SECONDS, LONGEST_SECONDS, self._clock)
        self._breakers[key] = breaker
        while len(self._breakers) > REMEMBERED:
            del self._breakers[next(iter(self._breakers))]
        return breaker


class Pause:
    """Whether a model is asked for one tenant's conversation."""

    def __init__(self, of_tenant: Breaker, of_conversation: Breaker) -> None:
        self._of_tenant = of_tenant
        self._of_conversation = of_conversation

    @property
    def wait_seconds(self) -> float:
        return max(self._of_tenant.wait_seconds, self._of_conversation.wait_seconds)

    def enter(self) -> bool:
        """Whether to ask; then `succeeded`, `failed` or `gave_up` must follow."""
        if not self._of_tenant.enter():
            return False
        if self._of_conversation.enter():
            return True
        self._of_tenant.gave_up()
        return False

    def succeeded(self) -> None:
        self._of_tenant.succeeded()
        self._of_conversation.succeeded()

    def failed(self, error: Exception) -> None:
        """An answer that is of no use counts for the conversation, no answer for whoever asks that model."""
        if isinstance(error, SummaryRefused) or (isinstance(error, UpstreamRefused) and error.status in UNPROCESSABLE):
            self._of_tenant.succeeded()
            self._of_conversation.failed()
        else:
            self._of_tenant.failed()
            self._of_conversation.gave_up()

    def gave_up(self) -> None:
        self._of_tenant.gave_up()
        self._of_conversation.gave_up()
