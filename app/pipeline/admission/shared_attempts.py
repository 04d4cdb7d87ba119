"""Runs each request once, whoever waits for its answer, and gives a retry the answer of its first attempt.

An attempt runs in a task of its own and collects the frames of its answer; each client reads them at its own pace. A
process knows its attempts by what they ask for: those that run, and for ten minutes how the newest attempt at each
request has ended. Stored answers are found in the log by the digest of their request (`answer_replay`). Across
processes, a client's `Idempotency-Key` is claimed in the store (`idempotency_keys`). docs/decisions/0036 defines a
retry, docs/decisions/0058 says what is remembered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from app.conversation.conversation_types import Conversation
from app.dialects.answer_format import AnswerFormat
from app.errors import StoreUnavailable, UpstreamUnavailable, drop_tracebacks
from app.observability.request_record import timed_step
from app.pipeline.admission.admission import Admission, CallLimits
from app.pipeline.admission.idempotency_keys import (
    IdempotencyClaim,
    IdempotencyKeys,
    make_key_in_use_error,
    make_key_reused_error,
)
from app.pipeline.resolve.answer_replay import (
    REPLAY_HEADERS,
    TAIL_BYTES,
    StoredAnswers,
    are_same_request,
    make_coalescing_key,
)
from app.pipeline.turn.answer_types import Answer, StreamedAnswer, WholeAnswer
from app.pipeline.turn.background_tasks import BackgroundTasks, wait_until_done
from app.pipeline.turn.chat_request import RETRY_MAX_AGE_SECONDS, ChatRequest

log = logging.getLogger(__name__)

MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""For the answers that are only in memory, and that a retry may still ask for."""
MAX_ENDED_ATTEMPTS: Final = 1_000
"""The most ended attempts that are remembered: delivered ones, and others, each."""
MAX_FRAMES_BYTES: Final = 32 * 1024 * 1024
"""For the frames of all running streams, which are kept for clients that may still join."""
FRAME_RESERVATION_BYTES: Final = 8192
"""How many more bytes an attempt reserves at a time for its frames."""
FRAME_OVERHEAD_BYTES: Final = 64
"""Memory that a frame takes besides its bytes."""


class ChatAnswerer(Protocol):
    """Answers a request that is not a retry. The pipeline implements it."""

    async def answer(self, request: ChatRequest) -> Answer: ...


class SharedAttempt(msgspec.Struct, eq=False):
    """One run of a request through the pipeline.

    Attributes:
        first_attempt_at: when this attempt, or the first one that it repeats, began.
        replayed_conversation_id: the conversation that may end with the answer already.
        is_only_attempt: whether no attempt at the same request ran at the same time.
        is_complete: whether the answer is complete.
        is_delivered: whether a client was connected to receive the answer, of a stream the last frame, too.
        claim: what the request has of its idempotency key in the store.
        is_unread: whether the stream is finished for the store alone.
        has_ended: whether nothing more comes.
        has_last_frame: whether `frames` ends with the last frame of a complete answer.
        has_discarded_frames: whether its first frames have been discarded, so that nobody can join.
        answer: the answer, as soon as it has begun.
        failure: why there is no answer, or no more of it.
        taken_count: how many of `frames` the fastest client has taken.
    """

    key: Hashable
    request: ChatRequest
    first_attempt_at: datetime
    replayed_conversation_id: str | None = None
    is_only_attempt: bool = True
    is_complete: bool = False
    is_delivered: bool = False
    is_unread: bool = False
    has_ended: bool = False
    has_last_frame: bool = False
    has_discarded_frames: bool = False
    answer: Answer | None = None
    failure: Exception | None = None
    claim: IdempotencyClaim | None = None
    task: asyncio.Task[None] | None = None
    waiters: list[AttemptWaiter] = []
    frames: list[bytes] = []
    frames_bytes: int = 0
    reserved_bytes: int = 0
    taken_count: int = 0
    _change_futures: list[asyncio.Future[None]] = []

    @property
    def can_be_joined(self) -> bool:
        """Whether another client can get all of its answer. A stream that all clients have left is being closed."""
        return (self.has_ended or bool(self.waiters)) and self.failure is None and not self.has_discarded_frames

    @property
    def is_abandoned(self) -> bool:
        return all(waiter.is_gone() for waiter in self.waiters)

    @property
    def has_whole_answer(self) -> bool:
        """Whether it holds all that is sent of its answer, so that it can be sent again."""
        return isinstance(self.answer, WholeAnswer) or (self.has_last_frame and not self.has_discarded_frames)

    @property
    def size_bytes(self) -> int:
        body = self.answer.body if isinstance(self.answer, WholeAnswer) else b""
        return len(self.request.body) + len(body) + sum(map(len, self.frames))

    async def wait_until_begun(self) -> Answer:
        """Returns the answer as soon as it is whole, or has a first frame."""
        while self.answer is None:
            if self.failure is not None:
                raise self.failure
            await self.wait_for_change()
        return self.answer

    async def record_complete_answer(self, conversation: Conversation | None) -> None:
        """Records that the answer is complete. If it is stored, it is the last message of `conversation`."""
        self.is_complete = True
        if conversation is not None and self.claim is not None:
            await self.claim.record_answer(conversation)

    async def wait_for_change(self) -> None:
        change_future = asyncio.get_running_loop().create_future()
        self._change_futures.append(change_future)
        await change_future

    def wake_all(self) -> None:
        """Wakes the clients and the task: there is a new frame, room for one, or an end."""
        if futures := self._change_futures:
            self._change_futures = []
            for future in futures:
                if not future.done():
                    future.set_result(None)


class AttemptWaiter(msgspec.Struct, eq=False):
    """One client that waits for an attempt's answer.

    Attributes:
        has_joined: whether the attempt was made for an earlier request.
        is_gone: returns whether the client is known to have disconnected; does not wait.
        taken_count: how many of the attempt's frames it has taken.
    """

    attempts: SharedAttempts
    attempt: SharedAttempt
    request_id: str
    is_gone: Callable[[], bool]
    has_joined: bool
    taken_count: int = 0

    @property
    def answer_format(self) -> AnswerFormat:
        """Writes the attempt's answer."""
        return self.attempt.request.delivery.answer_format

    async def wait_for_answer(self) -> Answer:
        """Returns the attempt's answer. To be called once; of a stream, all frames are to be read, or closed.

        Raises:
            GatewayError: as the pipeline raises it; all waiters get the same error.
        """
        attempt = self.attempt
        try:
            answer = await (self._join() if self.has_joined else attempt.wait_until_begun())
        except BaseException:
            await self._leave()
            raise
        headers = answer.headers
        if self.has_joined:
            headers = {**headers, "x-request-id": self.request_id, **REPLAY_HEADERS}
        if isinstance(answer, StreamedAnswer):
            return StreamedAnswer(headers, self._stream_frames())
        attempt.is_delivered = attempt.is_delivered or not self.is_gone()
        await self._leave()
        return replace(answer, headers=headers) if self.has_joined else answer

    def cut_off(self) -> None:
        """Records that the client does not read, before its task is cancelled. If nobody else waits, the answer is
        finished for the store: nobody has said that it is not wanted, and it is paid for."""
        attempt = self.attempt
        if attempt.waiters == [self]:
            attempt.is_unread = attempt.has_discarded_frames = True

    @timed_step("join")
    async def _join(self) -> Answer:
        return await self.attempt.wait_until_begun()

    async def _stream_frames(self) -> AsyncGenerator[bytes, None]:
        """Yields all frames of the stream, those that came before the client joined included."""
        attempt, frames = self.attempt, self.attempt.frames
        try:
            while True:
                if self.taken_count < len(frames):
                    yield frames[self.taken_count]
                    self.taken_count += 1
                    if self.taken_count > attempt.taken_count:
                        attempt.taken_count = self.taken_count
                        attempt.wake_all()
                elif attempt.has_ended:
                    if attempt.failure is not None:
                        raise attempt.failure
                    return
                else:
                    await attempt.wait_for_change()
        finally:
            if attempt.has_last_frame and self.taken_count == len(frames):
                attempt.is_delivered = True
            await self._leave()

    async def _leave(self) -> None:
        """Ends the attempt if nobody waits for it any more. Whole answers come here only when they have ended, or when
        the server stops: a disconnect does not end them (docs/decisions/0007)."""
        attempt = self.attempt
        attempt.waiters.remove(self)
        if attempt.waiters:
            return
        if attempt.has_ended:
            if attempt.failure is None:
                self.attempts.remember(attempt)
            return
        assert attempt.task is not None
        if attempt.is_unread:
            attempt.wake_all()
        else:
            attempt.task.cancel()
        # The request's log line has what the attempt's end brings.
        await wait_until_done(attempt.task)


class EndedAttempt(msgspec.Struct, frozen=True):
    """How the newest attempt at a request ended. Without conversation and attempt: there is no answer that this process
    knows."""

    first_attempt_at: datetime
    """When the first attempt at the request began. An older answer in the log does not answer a retry of it."""
    conversation_id: str | None = None
    """The conversation in which the answer is stored."""
    attempt: SharedAttempt | None = None
    """The attempt itself, if its answer is stored nowhere else."""


@dataclass(eq=False)
class EndedAttempts:
    """Remembers how attempts have ended, by their coalescing key, for `RETRY_MAX_AGE_SECONDS`. The oldest is forgotten
    first.

    Args:
        clock: returns monotonic seconds.
    """

    clock: Callable[[], float]
    max_bytes: int = MAX_KEPT_BYTES
    _entries: dict[Hashable, tuple[EndedAttempt, int, float]] = field(default_factory=dict, init=False)
    """Each with its size in bytes and the time until which it is kept."""
    _size_bytes: int = field(default=0, init=False)

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: Hashable, ended: EndedAttempt) -> None:
        """Stores an attempt, in the place of one with the same key. One that is too large is not stored."""
        self.forget(key)
        size_bytes = TAIL_BYTES + (ended.attempt.size_bytes if ended.attempt is not None else 0)
        if size_bytes > self.max_bytes:
            return
        self._entries[key] = ended, size_bytes, self.clock() + RETRY_MAX_AGE_SECONDS
        self._size_bytes += size_bytes
        while len(self._entries) > MAX_ENDED_ATTEMPTS or self._size_bytes > self.max_bytes:
            self.forget(next(iter(self._entries)))

    def get(self, key: Hashable) -> EndedAttempt | None:
        """Returns the attempt of a key, unless it has expired."""
        if not self._entries:
            return None
        now = self.clock()
        # All are kept for the same time, so the expired ones are the first.
        while self._entries and (oldest := next(iter(self._entries.items())))[1][2] <= now:
            self.forget(oldest[0])
        return self._entries.get(key, (None, 0, 0.0))[0]

    def forget(self, key: Hashable) -> None:
        """Removes the attempt of a key, if there is one."""
        _, size_bytes, _ = self._entries.pop(key, (None, 0, 0.0))
        self._size_bytes -= size_bytes


@dataclass(eq=False, kw_only=True)
class SharedAttempts:
    """The attempts of this process.

    Args:
        clock: returns monotonic seconds.
        now: returns the time of day.
        limits: the budgets and rates of callers; None: nothing is limited.
        free_frames_bytes: how many bytes of the frames of running streams may be kept for clients that may still join.
    """

    pipeline: ChatAnswerer
    stored_answers: StoredAnswers
    idempotency_keys: IdempotencyKeys
    admission: Admission
    tasks: BackgroundTasks
    clock: Callable[[], float]
    now: Callable[[], datetime]
    limits: CallLimits | None = None
    free_frames_bytes: int = MAX_FRAMES_BYTES
    _running_attempts: dict[Hashable, list[SharedAttempt]] = field(default_factory=dict, init=False)
    """Attempts that run, or whose answer is being read."""

    def __post_init__(self) -> None:
        self._undelivered_attempts = EndedAttempts(self.clock)
        """Attempts that failed or whose client had disconnected before, and answers that only a key's retries get."""
        self._delivered_attempts = EndedAttempts(self.clock)

    def join_or_start(self, request: ChatRequest, is_disconnected: Callable[[], bool]) -> AttemptWaiter:
        """Returns a waiter for the attempt that this request repeats, or for a new attempt.

        Args:
            is_disconnected: returns whether the request's client is known to be gone; must not wait.

        Raises:
            IdempotencyKeyReused: the request's key belongs to another request in this process.
            IdempotencyKeyInUse: the request cannot join the attempt with its key, because the attempt's first frames
                are discarded.
        """
        key = make_coalescing_key(request)
        attempts = self._running_attempts.get(key, [])
        ended = self._undelivered_attempts.get(key)
        if ended is None and request.retry.is_retry:
            ended = self._delivered_attempts.get(key)
        if ended is not None and ended.attempt is not None:
            attempts = [*attempts, ended.attempt]
        attempt = self._find_joinable_attempt(request, attempts) if attempts else None
        has_joined = attempt is not None
        if attempt is None:
            attempt = self._start_attempt(key, request, ended)
        elif attempt.has_ended and request.retry.idempotency_key is None:
            # It is given once, or several times if a key leads to it.
            self._undelivered_attempts.forget(key)
        waiter = AttemptWaiter(self, attempt, request.request_id, is_disconnected, has_joined)
        attempt.waiters.append(waiter)
        return waiter

    def _find_joinable_attempt(self, request: ChatRequest, attempts: Sequence[SharedAttempt]) -> SharedAttempt | None:
        """Returns the attempt that this request repeats. There must be evidence that it does: the same
        idempotency key, a retry count above 0, or that all clients of the attempt are gone. Without evidence, two equal
        requests are two (for example two samples of one prompt)."""
        joinable = [one for one in attempts if one.can_be_joined]
        same_requests = [one for one in joinable if are_same_request(one.request, request)]
        if request.retry.idempotency_key is not None:
            if joinable and not same_requests:
                raise make_key_reused_error()
            # A request that is stored is not refused: it waits for the key's answer in the store.
            if not joinable and not request.storing.is_kept and any(one.has_discarded_frames for one in attempts):
                raise make_key_in_use_error()
        # An attempt whose clients are all gone is taken first: this request most likely repeats one that hung up.
        if abandoned := [one for one in same_requests if one.is_abandoned]:
            return abandoned[0]
        if same_requests and (request.retry.is_retry or request.retry.idempotency_key is not None):
            # Several attempts may be meant; retries are spread over them evenly.
            return min(same_requests, key=lambda one: len(one.waiters))
        return None

    def _start_attempt(self, key: Hashable, request: ChatRequest, ended: EndedAttempt | None) -> SharedAttempt:
        first_attempt_at = self.now()
        if ended is not None:
            # An attempt that failed is evidence, too: the store may have kept its answer without confirming the write.
            retry = replace(request.retry, is_retry=True, first_attempt_at=ended.first_attempt_at)
            request = replace(request, retry=retry)
        if request.retry.is_retry or request.retry.idempotency_key is not None:
            # Another process may have made the first attempt, and may have stored its answer.
            first_attempt_at = request.retry.first_attempt_at or first_attempt_at - timedelta(
                seconds=RETRY_MAX_AGE_SECONDS
            )
        replayed_conversation_id = None if ended is None else ended.conversation_id
        attempt = SharedAttempt(key, request, first_attempt_at, replayed_conversation_id)
        # The end of the attempt before is no longer the newest.
        self._undelivered_attempts.forget(key)
        self._delivered_attempts.forget(key)
        running = self._running_attempts.setdefault(key, [])
        running.append(attempt)
        # Of two equal attempts at once, nobody can tell later which one a retry repeats.
        for one in running if len(running) > 1 else ():
            one.is_only_attempt = False
        attempt.task = self.tasks.spawn(self._run(attempt))
        return attempt

    async def _run(self, attempt: SharedAttempt) -> None:
        """Runs an attempt to its end. One attempt takes one slot, however many clients wait for it."""
        try:
            await self._answer(attempt)
        except asyncio.CancelledError:
            attempt.failure = UpstreamUnavailable("The attempt that this request waited for was ended.", status=503)
        except Exception as error:  # noqa: BLE001 - all waiters raise it
            _fail_attempt(attempt, error)
        attempt.has_ended = True
        if attempt.failure is not None or not attempt.waiters:
            self.remember(attempt)
        attempt.wake_all()
        if attempt.claim is not None:
            await attempt.claim.release()

    async def _answer(self, attempt: SharedAttempt) -> None:
        """Answers an attempt's request: by its stored answer, or when the fair queue admits it."""
        request = attempt.request
        answer: Answer | None = None
        if attempt.replayed_conversation_id is not None:
            try:
                answer = await self.stored_answers.replay_answer(request, attempt.replayed_conversation_id)
            except StoreUnavailable as error:
                # Without the store, the retry is answered anew instead of refused.
                drop_tracebacks(error)
        elif request.retry.idempotency_key is not None and request.storing.is_kept:
            attempt.claim = IdempotencyClaim(self.idempotency_keys, request)
            answer = await attempt.claim.acquire_or_replay()
        if answer is not None:
            attempt.is_complete = True
            await self._collect_answer(attempt, answer)
            return
        # After the replays, which cost nothing.
        allowance = None
        if self.limits is not None and self.limits.is_limited(request.caller):
            allowance = await self.limits.admit(
                request.caller,
                body_bytes=len(request.body),
                answer_tokens=self.limits.compute_answer_tokens(request.max_output_tokens, request.choice_count),
            )
            request = replace(request, allowance=allowance)
        # Without a stream and a key, the answer is complete when it is here. Without `on_answer`, the pipeline may
        # store question and answer in one write.
        if request.retry.idempotency_key is not None or request.delivery.stream:
            request = replace(request, on_answer=attempt.record_complete_answer)
        try:
            async with self.admission.hold_slot(request.caller.tenant, lambda: attempt.is_abandoned):
                answer = await self.pipeline.answer(request)
                if allowance is not None and (headers := allowance.headers):
                    answer = replace(answer, headers={**answer.headers, **headers})
                await self._collect_answer(attempt, answer)
        finally:
            if allowance is not None:
                allowance.finish()

    async def _collect_answer(self, attempt: SharedAttempt, answer: Answer) -> None:
        """Takes a whole answer, or collects the frames of a stream, at most one ahead of the fastest client."""
        if isinstance(answer, WholeAnswer):
            attempt.answer, attempt.is_complete = answer, True
            return
        frames = attempt.frames
        async with aclosing(answer.frames) as upstream_frames:
            async for frame in upstream_frames:
                # A complete answer is not waited with: what follows is its end, or an answer that was stored before.
                while attempt.taken_count < len(frames) and attempt.waiters and not attempt.is_complete:
                    await attempt.wait_for_change()
                attempt.frames_bytes += len(frame) + FRAME_OVERHEAD_BYTES
                if attempt.frames_bytes > attempt.reserved_bytes:
                    self._reserve_or_discard_frames(attempt)
                frames.append(frame)
                # An answer is complete when it is stored, right before its last frame.
                attempt.has_last_frame = attempt.is_complete
                attempt.answer = answer
                attempt.wake_all()

    def _reserve_or_discard_frames(self, attempt: SharedAttempt) -> None:
        """Reserves memory for a further frame. If all attempts together have reached the limit, the frames that every
        client has taken are discarded, and nobody can join any more."""
        missing_bytes = max(FRAME_RESERVATION_BYTES, attempt.frames_bytes - attempt.reserved_bytes)
        if missing_bytes <= self.free_frames_bytes and not attempt.has_discarded_frames:
            self.free_frames_bytes -= missing_bytes
            attempt.reserved_bytes += missing_bytes
        elif attempt.frames and all(one.taken_count == len(attempt.frames) for one in attempt.waiters):
            attempt.has_discarded_frames = True
            attempt.frames.clear()
            attempt.taken_count = 0
            for waiter in attempt.waiters:
                waiter.taken_count = 0

    def remember(self, attempt: SharedAttempt) -> None:
        """Remembers for later retries how an attempt has ended. To be called when nobody waits for its answer."""
        self.free_frames_bytes += attempt.reserved_bytes
        # The task is forgotten, too: it keeps the context of its request.
        attempt.reserved_bytes, attempt.task = 0, None
        running = self._running_attempts.get(attempt.key, [])
        if attempt in running:
            running.remove(attempt)
            if not running:
                del self._running_attempts[attempt.key]
        if attempt.claim is not None and attempt.claim.is_recorded:
            return
        answer = attempt.answer if attempt.is_complete else None
        has_key = attempt.request.retry.idempotency_key is not None
        conversation_id = None if answer is None or has_key else answer.headers.get("x-conversation-id")
        kept_attempt = attempt if conversation_id is None and attempt.has_whole_answer else None
        # Of two equal attempts at once, the other one's answer does not answer this one's retry.
        began_at = self.now() if answer is None and not attempt.is_only_attempt else attempt.first_attempt_at
        ended = EndedAttempt(began_at, conversation_id, kept_attempt)
        if has_key or not attempt.is_delivered:
            self._undelivered_attempts.put(attempt.key, ended)
        elif conversation_id is not None and attempt.is_only_attempt:
            self._delivered_attempts.put(attempt.key, ended)


def _fail_attempt(attempt: SharedAttempt, error: Exception) -> None:
    """Tells the clients of an attempt about an error, unless they get all of their answer."""
    if not attempt.has_last_frame:
        attempt.failure = error
    if attempt.failure is None or not attempt.waiters:
        log.error("an attempt failed, and no client is told of it", exc_info=error)
        drop_tracebacks(error)
