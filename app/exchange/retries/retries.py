"""Who waits for which answer. A retry joins its first attempt, or gets its answer, instead of being answered twice.

In one process attempts are known by what they ask for: those in flight, and for ten minutes how the newest of each
request has ended. Answers that are stored are read from the log, by the digest of their request (`replay`). Among
processes a client's `Idempotency-Key` is claimed in the store (`idempotency_keys`). docs/decisions/0036 says what a
retry is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from datetime import datetime, timedelta
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from app.exchange.admission import Admission
from app.exchange.answer import Answer
from app.exchange.line import Bounds
from app.exchange.request import RETRY_SECONDS, ChatRequest
from app.exchange.retries.attempt import Attempt, Seat
from app.exchange.retries.idempotency_keys import Claim, RequestKeys, key_in_use, key_reused
from app.exchange.retries.identity import TAIL_BYTES, are_same, name_of
from app.exchange.retries.replay import StoredAnswers
from app.exchange.tasks import Tasks

UNHEARD_BYTES: Final = 64 * 1024 * 1024
HEARD_BYTES: Final = 16 * 1024 * 1024
MOST_OUTCOMES: Final = 1_000
FRAMES_BYTES: Final = 32 * 1024 * 1024
"""Of all streams in flight, kept for who may yet join them."""


class Answers(Protocol):
    """What answers a request that is not a retry."""

    async def answer(self, request: ChatRequest) -> Answer: ...


class Outcome(msgspec.Struct, frozen=True):
    """What the newest attempt at a request came to. With neither of the last two: to no answer that is known here."""

    since: datetime
    """When the first of its attempts began. An older answer in the log is none to a retry of it."""
    conversation_id: str | None = None
    """The conversation that its answer is stored in."""
    attempt: Attempt | None = None
    """The attempt itself, if its answer is nowhere else."""


class Outcomes:
    """A bounded memory of how attempts have ended, by the name of their request. The oldest is forgotten first.

    Args:
        clock: monotonic seconds.
        most_bytes: of all of them together.
    """

    def __init__(self, clock: Callable[[], float], *, most_bytes: int) -> None:
        self._clock = clock
        self._most_bytes = most_bytes
        self._entries: dict[Hashable, tuple[Outcome, int, float]] = {}
        """Each with its size and the second until which it is kept."""
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, name: Hashable, outcome: Outcome) -> None:
        """Keep an outcome, in place of one of the same name; not if it is too large."""
        self.drop(name)
        size_bytes = TAIL_BYTES + (outcome.attempt.size_bytes if outcome.attempt is not None else 0)
        if size_bytes > self._most_bytes:
            return
        entries = self._entries
        entries[name] = outcome, size_bytes, self._clock() + RETRY_SECONDS
        self._size_bytes += size_bytes
        while len(entries) > MOST_OUTCOMES or self._size_bytes > self._most_bytes:
            self.drop(next(iter(entries)))

    def get(self, name: Hashable) -> Outcome | None:
        """The outcome of this name, if its time is not over."""
        if not self._entries:
            return None
        now = self._clock()
        while self._entries and (oldest := next(iter(self._entries.items())))[1][2] <= now:
            self.drop(oldest[0])
        entry = self._entries.get(name)
        return None if entry is None else entry[0]

    def drop(self, name: Hashable) -> None:
        """Forget the outcome of this name, if there is one."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._size_bytes -= entry[1]


class Retries:
    """The requests that are being answered, each with everybody who waits for it.

    Args:
        answers: finds the answers that are in the log.
        clock: monotonic seconds.
        now: the time of day.
        admission: the places of those that ask for an answer; None: as many as come.
        frames_bytes: how much of the streams in flight is kept for who may yet join them.
    """

    def __init__(
        self,
        *,
        exchange: Answers,
        answers: StoredAnswers,
        keys: RequestKeys,
        tasks: Tasks,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        admission: Admission | None = None,
        frames_bytes: int = FRAMES_BYTES,
    ) -> None:
        self._exchange = exchange
        self._now = now
        self._answers = answers
        self._admission = admission or Admission(Bounds(), clock=clock)
        self._keys = keys
        self._tasks = tasks
        self._most_kept_bytes = frames_bytes
        self._kept_bytes = 0
        self._in_flight: dict[Hashable, list[Attempt]] = {}
        self._unheard = Outcomes(clock, most_bytes=UNHEARD_BYTES)
        """Of attempts that failed, or whose client had left before the answer was there."""
        self._heard = Outcomes(clock, most_bytes=HEARD_BYTES)

    async def seat(self, request: ChatRequest, has_left: Callable[[], bool]) -> Seat:
        """A place at the attempt that this request repeats, else at one of its own.

        Args:
            has_left: whether the request's client is known to be gone; must not wait.

        Raises:
            IdempotencyKeyReused: its key belongs to another request in this process.
            IdempotencyKeyInUse: it cannot join the attempt of its key, whose first frames are gone.
        """
        name = name_of(request)
        at_once = self._in_flight.get(name)
        repeated = None if at_once is None else self._find_running(at_once, request)
        replay = None
        if repeated is None and (outcome := self._find_outcome(name, request)) is not None:
            request = replace(
                request,
                retry=request.retry or outcome.conversation_id is not None,
                first_attempt_at=outcome.since,
            )
            if outcome.attempt is not None:
                repeated = self._take(name, outcome.attempt, request)
            elif outcome.conversation_id is not None:
                replay = await self._answers.replay(request, outcome.conversation_id)
                if (at_once := self._in_flight.get(name)) is not None:  # others have come meanwhile
                    repeated = self._find_running(at_once, request)
            if repeated is None:
                self._unheard.drop(name)
        if repeated is not None:
            return Seat(repeated, request, has_left, is_first=False)
        first = self._now()
        if request.retry or request.idempotency_key is not None:
            # Another process may have made the first attempt, and may have stored its answer.
            first = request.first_attempt_at or first - timedelta(seconds=RETRY_SECONDS)
        attempt = Attempt(self, name, request, replay, first)
        self._heard.drop(name)
        if at_once is None:
            self._in_flight[name] = [attempt]
        else:
            at_once.append(attempt)
            for one in at_once:
                one.is_alone = False
        return Seat(attempt, request, has_left, is_first=True)

    def _find_running(self, at_once: list[Attempt], request: ChatRequest) -> Attempt | None:
        """The attempt in flight that this request repeats: its key says so, or its client's count of retries, or that
        nobody waits for that attempt any more."""
        running = [one for one in at_once if one.can_be_joined]
        if not running:
            if request.idempotency_key is not None and not request.store and any(one.has_forgotten for one in at_once):
                raise key_in_use()  # what is stored is waited for in the store
            return None
        same = [one for one in running if are_same(one.request, request)]
        if request.idempotency_key is not None and not same:
            raise key_reused()
        left = [one for one in same if one.is_left]
        if left:
            return left[0]
        if same and (request.retry or request.idempotency_key is not None):
            return min(same, key=lambda one: len(one.seats))
        return None

    def _find_outcome(self, name: Hashable, request: ChatRequest) -> Outcome | None:
        """How the newest attempt ended, if its client did not get its answer: as far as we know, or as a retry says."""
        outcome = self._unheard.get(name)
        return self._heard.get(name) if outcome is None and request.retry else outcome

    def _take(self, name: Hashable, attempt: Attempt, request: ChatRequest) -> Attempt | None:
        """The attempt whose answer is kept here, if this request repeats it; once, unless a key leads to it."""
        if not are_same(attempt.request, request):
            if request.idempotency_key is not None:
                raise key_reused()
            return None
        if not attempt.is_only_here:
            self._unheard.drop(name)
        return attempt

    async def run(self, attempt: Attempt) -> Answer:
        """Answer an attempt's request."""
        request = attempt.request
        if attempt.replay is not None:
            return attempt.replay
        if request.idempotency_key is None and not request.stream:
            return await self._ask(attempt, request)
        if request.idempotency_key is not None and request.store:
            claimed = await self._keys.claim(request)
            if isinstance(claimed, Claim):
                attempt.claim = claimed
            elif claimed is not None:
                attempt.replay, attempt.is_complete, attempt.is_settled = claimed, True, True
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
        if not attempt.is_complete:
            self._unheard.keep(attempt.name, Outcome(attempt.began))

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
        """Nobody is at an attempt any more: note where its answer is, for who asks again."""
        attempt.claim = None
        self._kept_bytes -= attempt.kept_bytes
        attempt.kept_bytes = 0
        if not attempt.is_complete or attempt.is_settled:  # the store knows the answer of a key
            return
        if attempt.is_only_here or not attempt.is_delivered:
            self._unheard.keep(attempt.name, _outcome_of(attempt))
        else:
            # Of two at once nobody knows which is repeated.
            self._heard.keep(attempt.name, _outcome_of(attempt) if attempt.is_alone else Outcome(self._now()))


def _outcome_of(attempt: Attempt) -> Outcome:
    assert attempt.answer is not None
    conversation_id = attempt.answer.headers.get("x-conversation-id")
    if conversation_id is not None and not attempt.is_only_here:
        return Outcome(attempt.began, conversation_id)
    return Outcome(attempt.began, attempt=None if attempt.has_forgotten else attempt)
