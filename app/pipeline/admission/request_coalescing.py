"""Gives a retry the answer of its first attempt, so that no request is answered twice.

A process knows its attempts by what they ask for: those that run, and for ten minutes the outcome of the newest attempt
at each request. Stored answers are found in the log by the digest of their request (`answer_replay`). Across processes,
a client's `Idempotency-Key` is claimed in the store (`idempotency_keys`). docs/decisions/0036 defines a retry.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from datetime import datetime, timedelta
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from app.pipeline.admission.admission import Admission, AdmissionBounds
from app.pipeline.admission.answer_replay import StoredAnswers
from app.pipeline.admission.call_limits import CallLimits
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
from app.pipeline.respond.answer_types import Answer

MAX_UNDELIVERED_BYTES: Final = 64 * 1024 * 1024
"""For the outcomes of attempts whose client did not receive the answer."""
MAX_DELIVERED_BYTES: Final = 16 * 1024 * 1024
"""For the outcomes of attempts whose answer was delivered."""
MAX_OUTCOMES: Final = 1_000
"""The most outcomes in each of the two caches."""
MAX_FRAMES_BYTES: Final = 32 * 1024 * 1024
"""For the frames of all running streams, which are kept for clients that may still join."""


class ChatAnswerer(Protocol):
    """Answers a request that is not a retry. The pipeline implements it."""

    async def answer(self, request: ChatRequest) -> Answer: ...


class AttemptOutcome(msgspec.Struct, frozen=True):
    """How the newest attempt at a request ended. Without conversation and attempt: there is no answer that this process
    knows."""

    first_attempt_at: datetime
    """When the first attempt at the request began. An older answer in the log does not answer a retry of it."""
    conversation_id: str | None = None
    """The conversation in which the answer is stored."""
    attempt: SharedAttempt | None = None
    """The attempt itself, if its answer is stored nowhere else."""


class OutcomeCache:
    """Remembers how attempts have ended, by their coalescing key. The oldest outcome is evicted first.

    Args:
        clock: returns monotonic seconds.
        max_bytes: the most bytes of all outcomes together.
    """

    def __init__(self, clock: Callable[[], float], *, max_bytes: int) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._entries: dict[Hashable, tuple[AttemptOutcome, int, float]] = {}
        """Each outcome with its size in bytes and the time until which it is kept."""
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, coalescing_key: Hashable, outcome: AttemptOutcome) -> None:
        """Stores an outcome, in the place of one with the same key. An outcome that is too large is not stored."""
        if coalescing_key in self._entries:
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
        """Returns the outcome of a key, unless it has expired."""
        if not self._entries:
            return None
        now = self._clock()
        # All outcomes are kept for the same time, so the expired ones are the first.
        while self._entries and (oldest := next(iter(self._entries.items())))[1][2] <= now:
            self.evict(oldest[0])
        entry = self._entries.get(coalescing_key)
        return None if entry is None else entry[0]

    def evict(self, coalescing_key: Hashable) -> None:
        """Removes the outcome of a key, if there is one."""
        entry = self._entries.pop(coalescing_key, None)
        if entry is not None:
            self._size_bytes -= entry[1]


class RequestCoalescer:
    """The attempts that run at present, each with all clients that wait for its answer.

    Args:
        stored_answers: finds answers in the log.
        clock: returns monotonic seconds.
        now: returns the time of day.
        admission: limits how many requests run at once; None: no limit.
        limits: the budgets and rates of callers; None: nothing is limited.
        max_frames_bytes: how many bytes of the frames of running streams are kept for clients that may still join.
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
        limits: CallLimits | None = None,
        max_frames_bytes: int = MAX_FRAMES_BYTES,
    ) -> None:
        self._pipeline = pipeline
        self._now = now
        self._stored_answers = stored_answers
        self._admission = admission or Admission(AdmissionBounds(), clock=clock)
        self._limits = limits
        self._idempotency_keys = idempotency_keys
        self._tasks = tasks
        self._max_frames_bytes = max_frames_bytes
        self._frames_bytes = 0
        self._running_attempts: dict[Hashable, list[SharedAttempt]] = {}
        self._undelivered_outcomes = OutcomeCache(clock, max_bytes=MAX_UNDELIVERED_BYTES)
        """Outcomes of attempts that failed, or whose client had disconnected before the answer was complete."""
        self._delivered_outcomes = OutcomeCache(clock, max_bytes=MAX_DELIVERED_BYTES)

    async def join_or_create_attempt(self, request: ChatRequest, is_disconnected: Callable[[], bool]) -> AttemptWaiter:
        """Returns a waiter for the attempt that this request repeats, or for a new attempt.

        Args:
            is_disconnected: returns whether the request's client is known to be gone; must not wait.

        Raises:
            IdempotencyKeyReused: the request's key belongs to another request in this process.
            IdempotencyKeyInUse: the request cannot join the attempt with its key, because the attempt's first frames
                are discarded.
        """
        coalescing_key = make_coalescing_key(request)
        outcome = self._undelivered_outcomes.get(coalescing_key)
        if outcome is None and request.is_retry:
            outcome = self._delivered_outcomes.get(coalescing_key)
        joined_attempt, replayed_answer = None, None
        if outcome is not None or coalescing_key in self._running_attempts:
            request, joined_attempt, replayed_answer = await self._find_earlier_attempt(
                coalescing_key, outcome, request
            )
        if joined_attempt is not None:
            return AttemptWaiter(joined_attempt, request, is_disconnected, starts_attempt=False)
        first_attempt_at = self._now()
        if request.is_retry or request.idempotency_key is not None:
            # Another process may have made the first attempt, and may have stored its answer.
            first_attempt_at = request.first_attempt_at or first_attempt_at - timedelta(seconds=RETRY_MAX_AGE_SECONDS)
        attempt = SharedAttempt(
            self,
            coalescing_key,
            request,
            replayed_answer,
            first_attempt_at,
            is_complete=replayed_answer is not None,
        )
        self._delivered_outcomes.evict(coalescing_key)
        running = self._running_attempts.get(coalescing_key)
        if running is None:
            self._running_attempts[coalescing_key] = [attempt]
        else:
            running.append(attempt)
            # Of two equal attempts at once, nobody can tell later which one a retry repeats.
            for other in running:
                other.is_only_attempt = False
        return AttemptWaiter(attempt, request, is_disconnected, starts_attempt=True)

    async def _find_earlier_attempt(
        self, coalescing_key: Hashable, outcome: AttemptOutcome | None, request: ChatRequest
    ) -> tuple[ChatRequest, SharedAttempt | None, Answer | None]:
        """Finds out whether a request repeats an attempt of this process.

        Args:
            outcome: how the newest attempt ended, if its client did not get the answer: either this process knows it,
                or the request says that it is a retry.

        Returns:
            The request, with what is known of its first attempt; the attempt to join, if there is one; the stored
            answer, if there is one.
        """
        joined_attempt = self._find_joinable_attempt(coalescing_key, request)
        if joined_attempt is not None or outcome is None:
            return request, joined_attempt, None
        # An attempt that failed is evidence, too: the store may have kept its answer without confirming the write.
        request = replace(request, is_retry=True, first_attempt_at=outcome.first_attempt_at)
        replayed_answer = None
        if outcome.attempt is not None:
            joined_attempt = self._take_cached_attempt(coalescing_key, outcome.attempt, request)
        elif outcome.conversation_id is not None:
            replayed_answer = await self._stored_answers.replay_answer(request, outcome.conversation_id)
            # During the read, another request may have started an attempt.
            joined_attempt = self._find_joinable_attempt(coalescing_key, request)
        if joined_attempt is None:
            # A new attempt begins, so the outcome of the last one is no longer the newest.
            self._undelivered_outcomes.evict(coalescing_key)
        return request, joined_attempt, replayed_answer

    def _find_joinable_attempt(self, coalescing_key: Hashable, request: ChatRequest) -> SharedAttempt | None:
        """Returns the running attempt that this request repeats. There must be evidence that it does: the same
        idempotency key, a retry count above 0, or that all clients of the attempt are gone. Without evidence, two equal
        requests are two (for example two samples of one prompt)."""
        attempts = self._running_attempts.get(coalescing_key, ())
        joinable = [attempt for attempt in attempts if attempt.can_be_joined]
        if not joinable:
            if (
                request.idempotency_key is not None
                and not request.is_kept
                and any(one.has_discarded_frames for one in attempts)
            ):
                # A request that is stored is not refused: it waits for the key's answer in the store.
                raise make_key_in_use_error()
            return None
        same_requests = [one for one in joinable if are_same_request(one.request, request)]
        if request.idempotency_key is not None and not same_requests:
            raise make_key_reused_error()
        # An attempt whose clients are all gone is taken first: this request most likely repeats one that hung up.
        abandoned = [one for one in same_requests if one.is_abandoned]
        if abandoned:
            return abandoned[0]
        if same_requests and (request.is_retry or request.idempotency_key is not None):
            # Several attempts may be meant; retries are spread over them evenly.
            return min(same_requests, key=lambda one: len(one.waiters))
        return None

    def _take_cached_attempt(
        self, coalescing_key: Hashable, attempt: SharedAttempt, request: ChatRequest
    ) -> SharedAttempt | None:
        """Returns the attempt whose answer is only in memory, if this request repeats it. The answer is given once, or
        several times if a key leads to it."""
        if not are_same_request(attempt.request, request):
            if request.idempotency_key is not None:
                raise make_key_reused_error()
            return None
        if not attempt.is_only_in_memory:
            self._undelivered_outcomes.evict(coalescing_key)
        return attempt

    async def run_attempt(self, attempt: SharedAttempt) -> Answer:
        """Answers an attempt's request when the fair queue admits it. One attempt takes one slot, however many clients
        wait for it."""
        request = attempt.request
        if attempt.replayed_answer is not None:
            return attempt.replayed_answer
        if request.idempotency_key is not None and request.is_kept:
            claim_or_answer = await self._idempotency_keys.claim_key_or_replay(request)
            if isinstance(claim_or_answer, IdempotencyClaim):
                attempt.claim = claim_or_answer
            elif claim_or_answer is not None:
                attempt.replayed_answer, attempt.is_complete, attempt.is_recorded_by_key = claim_or_answer, True, True
                return claim_or_answer
        # After the replays, which cost nothing.
        if self._limits is not None and self._limits.is_limited(request.caller):
            attempt.allowance = await self._limits.admit(
                request.caller,
                body_bytes=len(request.body),
                answer_tokens=self._limits.compute_answer_tokens(request.max_output_tokens, request.choice_count),
            )
            request = replace(request, allowance=attempt.allowance)
        # Without a stream and a key, `SharedAttempt.start` sees itself when the answer is complete. Without
        # `on_answer`, the pipeline may store question and answer in one write.
        if request.idempotency_key is not None or request.stream:
            request = replace(request, on_answer=attempt.record_complete_answer)
        tenant = request.caller.tenant
        if not self._admission.try_acquire_slot(tenant):
            await self._admission.wait_for_slot(tenant, lambda: attempt.is_abandoned)
        attempt.has_slot = True
        answer = await self._pipeline.answer(request)
        if attempt.allowance is None or not (headers := attempt.allowance.headers):
            return answer
        return replace(answer, headers={**answer.headers, **headers})

    def finish_attempt(self, attempt: SharedAttempt) -> None:
        """Removes an attempt that has ended from the running ones, and gives its slot back."""
        if attempt.has_slot:
            attempt.has_slot = False
            self._admission.release_slot(attempt.request.caller.tenant)
        if attempt.allowance is not None:
            attempt.allowance.finish()
        running = self._running_attempts[attempt.coalescing_key]
        running.remove(attempt)
        if not running:
            del self._running_attempts[attempt.coalescing_key]
        if not attempt.is_complete:
            # Of two equal attempts at once, the other one's answer does not answer this one's retry.
            began_at = attempt.first_attempt_at if attempt.is_only_attempt else self._now()
            self._undelivered_outcomes.put(attempt.coalescing_key, AttemptOutcome(began_at))

    async def release_claim(self, claim: IdempotencyClaim) -> None:
        """Releases a claim that has no recorded answer, even if the caller is cancelled meanwhile."""
        await self._tasks.run_shielded(claim.release())

    def reserve_frame_bytes(self, more_bytes: int) -> bool:
        """Reserves bytes for the frames of an attempt. Returns False if all attempts together have reached the
        limit."""
        if self._frames_bytes + more_bytes > self._max_frames_bytes:
            return False
        self._frames_bytes += more_bytes
        return True

    def cache_outcome(self, attempt: SharedAttempt) -> None:
        """Records where an attempt's answer is, for a later retry. To be called when the attempt's last client has
        left."""
        attempt.claim = None
        self._frames_bytes -= attempt.reserved_frame_bytes
        attempt.reserved_frame_bytes = 0
        # The store knows the answer of a recorded key, and `finish_attempt` has recorded the failure of an attempt.
        if not attempt.is_complete or attempt.is_recorded_by_key:
            return
        assert attempt.answer is not None
        is_only_in_memory, outcomes = attempt.request.idempotency_key is not None, self._undelivered_outcomes
        conversation_id = attempt.answer.headers.get("x-conversation-id")
        if conversation_id is None or is_only_in_memory:
            kept_attempt = attempt if attempt.has_whole_answer else None
            outcome = AttemptOutcome(attempt.first_attempt_at, attempt=kept_attempt)
        else:
            outcome = AttemptOutcome(attempt.first_attempt_at, conversation_id)
        if attempt.is_delivered and not is_only_in_memory:
            outcomes = self._delivered_outcomes
            # After two equal attempts at once, a retry is a request of its own: nobody knows which one it repeats.
            if not attempt.is_only_attempt:
                outcome = AttemptOutcome(self._now())
        outcomes.put(attempt.coalescing_key, outcome)
