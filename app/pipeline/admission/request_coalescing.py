"""Who waits for which answer. A retry joins its first attempt, or gets its answer, instead of being answered twice.

In one process attempts are known by what they ask for: those in flight, and for ten minutes how the newest of each
request has ended. Answers that are stored are read from the log, by the digest of their request (`replay`). Among
processes a client's `Idempotency-Key` is claimed in the store (`idempotency_keys`). docs/decisions/0036 says what a
retry is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from datetime import datetime
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from app.pipeline.admission.admission import Admission, AdmissionBounds
from app.pipeline.admission.answer_replay import StoredAnswers
from app.pipeline.admission.idempotency_keys import (
    IdempotencyClaim,
    IdempotencyKeys,
    make_key_in_use_error,
    make_key_reused_error,
)
from app.pipeline.admission.request_digest import TAIL_BYTES, are_same_request, make_coalescing_key
from app.pipeline.admission.shared_attempt import AttemptWaiter, SharedAttempt
from app.pipeline.background_tasks import BackgroundTasks
from app.pipeline.chat_request import RETRY_MAX_AGE_SECONDS, ChatRequest
from app.pipeline.respond.answer import Answer

MAX_UNDELIVERED_BYTES: Final = 64 * 1024 * 1024
MAX_DELIVERED_BYTES: Final = 16 * 1024 * 1024
MAX_OUTCOMES: Final = 1_000
MAX_FRAMES_BYTES: Final = 32 * 1024 * 1024
"""Of all streams in flight, kept for who may yet join them."""


class ChatAnswerer(Protocol):
    """What answers a request that is not a retry."""

    async def answer(self, request: ChatRequest) -> Answer: ...


class AttemptOutcome(msgspec.Struct, frozen=True):
    """What the newest attempt at a request came to. With neither of the last two: to no answer that is known here."""

    first_attempt_at: datetime
    """When the first of its attempts began. An older answer in the log is none to a retry of it."""
    conversation_id: str | None = None
    """The conversation that its answer is stored in."""
    attempt: SharedAttempt | None = None
    """The attempt itself, if its answer is nowhere else."""


class OutcomeCache:
    """A bounded memory of how attempts have ended, by the name of their request. The oldest is forgotten first.

    Args:
        clock: monotonic seconds.
        max_bytes: of all of them together.
    """

    def __init__(self, clock: Callable[[], float], *, max_bytes: int) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._entries: dict[Hashable, tuple[AttemptOutcome, int, float]] = {}
        """Each with its size and the second until which it is kept."""
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, coalescing_key: Hashable, outcome: AttemptOutcome) -> None:
        """Keep an outcome, in place of one of the same name; not if it is too large."""
        self.evict(coalescing_key)
        size_bytes = TAIL_BYTES + (outcome.attempt.size_bytes if outcome.attempt is not None else 0)
        if size_bytes > self._max_bytes:
            return
        entries = self._entries
        entries[coalescing_key] = outcome, size_bytes, self._clock() + RETRY_MAX_AGE_SECONDS
        self._size_bytes += size_bytes
        while len(entries) > MAX_OUTCOMES or self._size_bytes > self._max_bytes:
            self.evict(next(iter(entries)))

    def get(self, coalescing_key: Hashable) -> AttemptOutcome | None:
        """The outcome of this name, if its time is not over."""
        if not self._entries:
            return None
        now = self._clock()
        while self._entries and (oldest := next(iter(self._entries.items())))[1][2] <= now:
            self.evict(oldest[0])
        entry = self._entries.get(coalescing_key)
        return None if entry is None else entry[0]

    def evict(self, coalescing_key: Hashable) -> None:
        """Forget the outcome of this name, if there is one."""
        entry = self._entries.pop(coalescing_key, None)
        if entry is not None:
            self._size_bytes -= entry[1]


class RequestCoalescing:
    """The requests that are being answered, each with everybody who waits for it.

    Args:
        stored_answers: finds the answers that are in the log.
        clock: monotonic seconds.
        now: the time of day.
        admission: the places of those that ask for an answer; None: as many as come.
        max_frames_bytes: how much of the streams in flight is kept for who may yet join them.
    """

    def __init__(
        self,
        *,
        pipeline: ChatAnswerer,
        stored_answers: StoredAnswers,
        idempotency_keys: IdempotencyKeys,
        tasks: BackgroundTasks,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        admission: Admission | None = None,
        max_frames_bytes: int = MAX_FRAMES_BYTES,
    ) -> None:
        self._pipeline = pipeline
        self._now = now
        self._stored_answers = stored_answers
        self._admission = admission or Admission(AdmissionBounds(), clock=clock)
        self._idempotency_keys = idempotency_keys
        self._tasks = tasks
        self._max_frames_bytes = max_frames_bytes
        self._frames_bytes = 0
        self._running_attempts: dict[Hashable, list[SharedAttempt]] = {}
        self._undelivered_outcomes = OutcomeCache(clock, max_bytes=MAX_UNDELIVERED_BYTES)
        """Of attempts that failed, or whose client had left before the answer was there."""
        self._delivered_outcomes = OutcomeCache(clock, max_bytes=MAX_DELIVERED_BYTES)

    async def join_attempt(self, request: ChatRequest, is_disconnected: Callable[[], bool]) -> AttemptWaiter:
        """A place at the attempt that this request repeats, else at one of its own.

        Args:
            is_disconnected: whether the request's client is known to be gone; must not wait.

        Raises:
            IdempotencyKeyReused: its key belongs to another request in this process.
            IdempotencyKeyInUse: it cannot join the attempt of its key, whose first frames are gone.
        """
        coalescing_key = make_coalescing_key(request)
        running = self._running_attempts.get(coalescing_key)
        joined_attempt = None if running is None else self._find_joinable_attempt(running, request)
        replayed_answer = None
        if joined_attempt is None and (outcome := self._find_outcome(coalescing_key, request)) is not None:
            request = replace(
                request,
                is_retry=request.is_retry or outcome.conversation_id is not None,
                first_attempt_at=outcome.first_attempt_at,
            )
            if outcome.attempt is not None:
                joined_attempt = self._take_cached_attempt(coalescing_key, outcome.attempt, request)
            elif outcome.conversation_id is not None:
                replayed_answer = await self._stored_answers.replay_answer(request, outcome.conversation_id)
                if (running := self._running_attempts.get(coalescing_key)) is not None:  # others have come meanwhile
                    joined_attempt = self._find_joinable_attempt(running, request)
            if joined_attempt is None:
                self._undelivered_outcomes.evict(coalescing_key)
        if joined_attempt is not None:
            return AttemptWaiter(joined_attempt, request, is_disconnected, starts_attempt=False)
        first_attempt_at = request.first_attempt_at if request.is_retry else None
        attempt = SharedAttempt(self, coalescing_key, request, replayed_answer, first_attempt_at or self._now())
        self._delivered_outcomes.evict(coalescing_key)
        if running is None:
            self._running_attempts[coalescing_key] = [attempt]
        else:
            running.append(attempt)
            for other in running:
                other.is_only_attempt = False
        return AttemptWaiter(attempt, request, is_disconnected, starts_attempt=True)

    def _find_joinable_attempt(self, attempts: list[SharedAttempt], request: ChatRequest) -> SharedAttempt | None:
        """The attempt in flight that this request repeats: its key says so, or its client's count of retries, or that
        nobody waits for that attempt any more."""
        joinable = [attempt for attempt in attempts if attempt.can_be_joined]
        if not joinable:
            if (
                request.idempotency_key is not None
                and not request.store
                and any(one.has_discarded_frames for one in attempts)
            ):
                raise make_key_in_use_error()  # what is stored is waited for in the store
            return None
        same_requests = [one for one in joinable if are_same_request(one.request, request)]
        if request.idempotency_key is not None and not same_requests:
            raise make_key_reused_error()
        abandoned = [one for one in same_requests if one.is_abandoned]
        if abandoned:
            return abandoned[0]
        if same_requests and (request.is_retry or request.idempotency_key is not None):
            return min(same_requests, key=lambda one: len(one.waiters))
        return None

    def _find_outcome(self, coalescing_key: Hashable, request: ChatRequest) -> AttemptOutcome | None:
        """How the newest attempt ended, if its client did not get its answer: as far as we know, or as a retry says."""
        outcome = self._undelivered_outcomes.get(coalescing_key)
        return self._delivered_outcomes.get(coalescing_key) if outcome is None and request.is_retry else outcome

    def _take_cached_attempt(
        self, coalescing_key: Hashable, attempt: SharedAttempt, request: ChatRequest
    ) -> SharedAttempt | None:
        """The attempt whose answer is kept here, if this request repeats it; once, unless a key leads to it."""
        if not are_same_request(attempt.request, request):
            if request.idempotency_key is not None:
                raise make_key_reused_error()
            return None
        if not attempt.is_only_in_memory:
            self._undelivered_outcomes.evict(coalescing_key)
        return attempt

    async def run_attempt(self, attempt: SharedAttempt) -> Answer:
        """Answer an attempt's request."""
        request = attempt.request
        if attempt.replayed_answer is not None:
            return attempt.replayed_answer
        if request.idempotency_key is None and not request.stream:
            return await self._answer_when_admitted(attempt, request)
        if request.idempotency_key is not None and request.store:
            claim_or_answer = await self._idempotency_keys.claim_key(request)
            if isinstance(claim_or_answer, IdempotencyClaim):
                attempt.claim = claim_or_answer
            elif claim_or_answer is not None:
                attempt.replayed_answer, attempt.is_complete, attempt.is_recorded_by_key = claim_or_answer, True, True
                return claim_or_answer
        return await self._answer_when_admitted(attempt, replace(request, on_answer=attempt.record_answer))

    async def _answer_when_admitted(self, attempt: SharedAttempt, request: ChatRequest) -> Answer:
        """Once there is a place for it. The attempt has one, however many wait for what it brings."""
        tenant = request.caller.tenant
        if not self._admission.try_acquire_slot(tenant):
            await self._admission.wait_for_slot(tenant, lambda: attempt.is_abandoned)
        attempt.has_slot = True
        return await self._pipeline.answer(request)

    def finish_attempt(self, attempt: SharedAttempt) -> None:
        """Nothing more comes of an attempt."""
        if attempt.has_slot:
            attempt.has_slot = False
            self._admission.release_slot(attempt.request.caller.tenant)
        running = self._running_attempts[attempt.coalescing_key]
        running.remove(attempt)
        if not running:
            del self._running_attempts[attempt.coalescing_key]
        if not attempt.is_complete:
            self._undelivered_outcomes.put(attempt.coalescing_key, AttemptOutcome(attempt.first_attempt_at))

    async def release_claim(self, claim: IdempotencyClaim) -> None:
        """Let the next claim a key, unless it was settled; whoever is cancelled meanwhile."""
        await self._tasks.run_shielded(claim.release())

    def reserve_frame_bytes(self, more_bytes: int) -> bool:
        """Whether there is room for more frames among those of all attempts; it is taken then."""
        if self._frames_bytes + more_bytes > self._max_frames_bytes:
            return False
        self._frames_bytes += more_bytes
        return True

    def cache_outcome(self, attempt: SharedAttempt) -> None:
        """Nobody is at an attempt any more: note where its answer is, for who asks again."""
        attempt.claim = None
        self._frames_bytes -= attempt.reserved_frame_bytes
        attempt.reserved_frame_bytes = 0
        if not attempt.is_complete or attempt.is_recorded_by_key:  # the store knows the answer of a key
            return
        if attempt.is_only_in_memory or not attempt.is_delivered:
            self._undelivered_outcomes.put(attempt.coalescing_key, _build_outcome(attempt))
        else:
            # Of two at once nobody knows which is repeated.
            self._delivered_outcomes.put(
                attempt.coalescing_key,
                _build_outcome(attempt) if attempt.is_only_attempt else AttemptOutcome(self._now()),
            )


def _build_outcome(attempt: SharedAttempt) -> AttemptOutcome:
    assert attempt.answer is not None
    conversation_id = attempt.answer.headers.get("x-conversation-id")
    if conversation_id is not None and not attempt.is_only_in_memory:
        return AttemptOutcome(attempt.first_attempt_at, conversation_id)
    return AttemptOutcome(attempt.first_attempt_at, attempt=None if attempt.has_discarded_frames else attempt)
