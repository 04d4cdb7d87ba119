"""Who waits for which answer. A request that comes again joins its first attempt instead of being answered twice.

In one process the attempts in flight are known by what they ask for; among processes a client's `Idempotency-Key` is
claimed in the store (`request_keys`). What counts as coming again is decided here: docs/decisions/0020.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Protocol

from msgspec.structs import replace

from app.exchange.admission import Admission
from app.exchange.answer import Answer
from app.exchange.attempt import Attempt, Seat
from app.exchange.kept_answers import KeptAnswers
from app.exchange.line import Bounds
from app.exchange.request import ChatRequest
from app.exchange.request_keys import Claim, RequestKeys, key_in_use, key_reused, meaning_of
from app.exchange.tasks import Tasks

TAIL_BYTES: Final = 4096
"""How much of a body's end tells requests apart before whole bodies are compared: the newest words stand there."""
UNDELIVERED_SECONDS: Final = 600.0
"""An SDK has given up by then: its next attempt begins some ten minutes after the last at the latest."""
UNDELIVERED_BYTES: Final = 64 * 1024 * 1024
DELIVERED_SECONDS: Final = 30.0
"""After an answer that was lost behind us, a client comes again within 8 s, as far as it is up to its SDK."""
DELIVERED_BYTES: Final = 16 * 1024 * 1024
FRAMES_BYTES: Final = 32 * 1024 * 1024
"""Of all streams in flight, kept for who may yet join them."""


class Answers(Protocol):
    """What answers a request that is not a repetition."""

    async def answer(self, request: ChatRequest) -> Answer: ...


class Attempts:
    """The requests that are being answered, each with everybody who waits for it.

    Args:
        clock: monotonic seconds.
        admission: the places of those that ask for an answer; None: as many as come.
        frames_bytes: how much of the streams in flight is kept for who may yet join them.
    """

    def __init__(
        self,
        *,
        exchange: Answers,
        keys: RequestKeys,
        tasks: Tasks,
        clock: Callable[[], float],
        admission: Admission | None = None,
        frames_bytes: int = FRAMES_BYTES,
    ) -> None:
        self._exchange = exchange
        self._admission = admission or Admission(Bounds(), clock=clock)
        self._keys = keys
        self._tasks = tasks
        self._most_kept_bytes = frames_bytes
        self._kept_bytes = 0
        self._in_flight: dict[Hashable, list[Attempt]] = {}
        self._undelivered: KeptAnswers[Attempt] = KeptAnswers(
            clock, seconds=UNDELIVERED_SECONDS, most_bytes=UNDELIVERED_BYTES
        )
        self._delivered: KeptAnswers[Attempt] = KeptAnswers(
            clock, seconds=DELIVERED_SECONDS, most_bytes=DELIVERED_BYTES
        )

    def seat(self, request: ChatRequest, has_left: Callable[[], bool]) -> Seat:
        """A place at the attempt that this request repeats, else at one of its own.

        Args:
            has_left: whether the request's client is known to be gone; must not wait.

        Raises:
            IdempotencyKeyReused: its key belongs to another request in this process.
            IdempotencyKeyInUse: it cannot join the attempt of its key, whose first frames are gone.
        """
        name = _name_of(request)
        at_once = self._in_flight.get(name)
        attempt = (at_once and self._joined(at_once, request)) or self._kept(name, request)
        if attempt is not None:
            return Seat(attempt, request, has_left, is_first=False)
        attempt = Attempt(self, name, request)
        self._delivered.drop(name)
        if at_once is None:
            self._in_flight[name] = [attempt]
        else:
            at_once.append(attempt)
            for one in at_once:
                one.is_alone = False
        return Seat(attempt, request, has_left, is_first=True)

    def _joined(self, at_once: list[Attempt], request: ChatRequest) -> Attempt | None:
        """The attempt in flight that this request repeats: its key says so, or its client's count of retries, or that
        nobody waits for that attempt any more."""
        running = [one for one in at_once if one.can_be_joined]
        if not running:
            if request.idempotency_key is not None and not request.store and any(one.has_forgotten for one in at_once):
                raise key_in_use()  # what is stored is waited for in the store
            return None
        same = [one for one in running if _same(one.request, request)]
        if request.idempotency_key is not None and not same:
            raise key_reused()
        left = [one for one in same if one.is_left]
        if left:
            return left[0]
        if same and (request.retry or request.idempotency_key is not None):
            return min(same, key=lambda one: len(one.seats))
        return None

    def _kept(self, name: Hashable, request: ChatRequest) -> Attempt | None:
        """An attempt that is over, and whose answer did not reach its client: as far as we know, or as a retry says."""
        attempt = self._undelivered.get(name)
        if attempt is None and request.retry:
            attempt = self._delivered.get(name)
        if attempt is None:
            return None
        if not _same(attempt.request, request):
            if request.idempotency_key is not None:
                raise key_reused()
            return None
        if not attempt.is_only_here:
            self._undelivered.drop(name)
        return attempt

    async def run(self, attempt: Attempt) -> Answer:
        """Answer an attempt's request."""
        request = attempt.request
        if request.idempotency_key is None and not request.stream:
            return await self._ask(attempt, request)
        if request.idempotency_key is not None and request.store:
            claimed = await self._keys.claim(request)
            if isinstance(claimed, Claim):
                attempt.claim = claimed
            elif claimed is not None:
                attempt.repeats = attempt.is_complete = attempt.is_settled = True
                return claimed
        return await self._ask(attempt, replace(request, on_answer=attempt.answered))

    async def _ask(self, attempt: Attempt, request: ChatRequest) -> Answer:
        """Once there is a place for it. The attempt has one, however many wait for what it brings."""
        tenant = request.caller.tenant
        if not self._admission.take(tenant):
            await self._admission.wait(tenant, lambda: attempt.is_left)
        attempt.has_place = True
        return await self._exchange.answer(request)

    def ended(self, attempt: Attempt) -> None:
        """Nothing more comes of an attempt."""
        if attempt.has_place:
            attempt.has_place = False
            self._admission.give_back(attempt.request.caller.tenant)
        others = self._in_flight[attempt.name]
        others.remove(attempt)
        if not others:
            del self._in_flight[attempt.name]

    async def give_up(self, claim: Claim) -> None:
        """Let the next claim a key, unless it was settled; whoever is cancelled meanwhile."""
        await self._tasks.finish(claim.give_up())

    def may_keep(self, more_bytes: int) -> bool:
        """Whether there is room for more frames among those of all attempts; it is taken then."""
        if self._kept_bytes + more_bytes > self._most_kept_bytes:
            return False
        self._kept_bytes += more_bytes
        return True

    def left_behind(self, attempt: Attempt) -> None:
        """Nobody is at an attempt any more: keep what it came to for who asks again, where that is owed to them."""
        attempt.claim = None
        self._kept_bytes -= attempt.kept_bytes
        attempt.kept_bytes = 0
        if not attempt.is_complete or attempt.has_forgotten:
            return
        if attempt.is_only_here or not attempt.is_delivered:
            self._undelivered.keep(attempt.name, attempt, attempt.size_bytes)
        elif attempt.is_lost_without_trace:
            self._delivered.keep(attempt.name, attempt, attempt.size_bytes)


def _name_of(request: ChatRequest) -> Hashable:
    """What a request is looked for by: its client's key for it, or what tells nearly all bodies apart."""
    tenant = request.caller.tenant
    if request.idempotency_key is not None:
        return tenant, request.idempotency_key
    body = request.body
    return tenant, request.caller.key_id, meaning_of(request), len(body), body[-TAIL_BYTES:]


def _same(one: ChatRequest, other: ChatRequest) -> bool:
    """Whether two requests of the same name are one and the same."""
    return one.body == other.body and meaning_of(one) == meaning_of(other)
