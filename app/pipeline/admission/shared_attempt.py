"""One run of a request through the exchange, and the places of those who wait for what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable
from datetime import datetime
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from app.conversation.messages import Conversation
from app.errors import GatewayError, UpstreamUnavailable
from app.observability.request_facts import record_error
from app.pipeline.admission.answer_replay import REPLAY_HEADERS
from app.pipeline.admission.idempotency_keys import IdempotencyClaim
from app.pipeline.chat_request import ChatRequest
from app.pipeline.respond.answer import Answer, StreamedAnswer, WholeAnswer
from app.pipeline.respond.stream_frames import DONE_FRAME, render_error_frames

if TYPE_CHECKING:
    from app.pipeline.admission.request_coalescing import RequestCoalescing

FRAME_RESERVATION_BYTES: Final = 8192
"""How much more an attempt asks for at a time to keep its frames in."""
FRAME_OVERHEAD_BYTES: Final = 64
"""What a frame takes beside its text."""


class AttemptWaiter:
    """One client's place at an attempt."""

    __slots__ = (
        "_attempt",
        "_is_disconnected",
        "_request",
        "_starts_attempt",
        "has_disconnected",
        "is_cut_off",
        "task",
    )

    def __init__(
        self, attempt: SharedAttempt, request: ChatRequest, is_disconnected: Callable[[], bool], *, starts_attempt: bool
    ) -> None:
        self._attempt = attempt
        self._request = request
        self._is_disconnected = is_disconnected
        self._starts_attempt = starts_attempt
        self.has_disconnected = self.is_cut_off = False
        """Known to be gone, and no longer waited for; or alone, and no longer sent to since it did not read: what comes
        of its stream is kept in the store only."""
        self.task = asyncio.current_task() if request.stream else None
        """What ends when its client hangs up: of whole answers none does."""
        attempt.waiters.append(self)

    @property
    def is_gone(self) -> bool:
        return self.has_disconnected or self._is_disconnected()

    async def wait_for_answer(self) -> Answer:
        """The attempt's answer. Whoever has the first seat asks for it.

        Raises:
            GatewayError: as the exchange says; to everybody at the attempt.
        """
        attempt = self._attempt
        if self._starts_attempt:
            await attempt.start(self)
        else:
            await attempt.wait_until_started(self)
        answer = attempt.answer
        assert answer is not None
        headers = answer.headers
        if not self._starts_attempt or attempt.replayed_answer is not None:
            headers = {**headers, "x-request-id": self._request.request_id, **REPLAY_HEADERS}
        if isinstance(answer, StreamedAnswer):
            return StreamedAnswer(headers, attempt.stream_frames(self))
        return answer if headers is answer.headers else replace(answer, headers=headers)

    def record_delivery(self) -> None:
        """A whole answer is about to be sent: note whether there is anybody to receive it."""
        self._attempt.record_delivery(self, is_delivered=not self._is_disconnected())

    def disconnect(self) -> None:
        """The client is gone. Ends its task, unless that is what brings others their answer."""
        self._attempt.disconnect_waiter(self)

    def cut_off_slow_client(self) -> None:
        """The client does not read what it is sent. The answer is finished for the store, unless others wait for it and
        see to that."""
        if any(other is not self and not other.has_disconnected for other in self._attempt.waiters):
            self.disconnect()
        else:
            self.is_cut_off = True


class SharedAttempt:
    """One run of a request through the exchange.

    It has no task of its own: who needs the next piece of a stream fetches it, and the others read what has come. So a
    slow client holds up nobody, and one alone costs hardly more than the list of what it was sent. Where all attempts
    together have no room for that list, whoever is there gets the rest, and nobody joins any more.

    Attributes:
        first_attempt_at: when it began, or the first of those that it repeats.
        reserved_frame_bytes: room that its frames have among those of all attempts.
        has_discarded_frames: its first frames are no longer there.
        has_slot: it is among the requests that may ask a model.
        is_only_attempt: no other attempt at the very same ran beside it.
        replayed_answer: the answer, if it was given before.
        is_complete: the answer is whole, and here.
        is_recorded_by_key: its client's key leads to it in the store.
        is_delivered: somebody was there to receive it.
    """

    __slots__ = (
        "_change_futures",
        "_coalescing",
        "_failure",
        "_fetching_waiter",
        "_frames",
        "_has_ended",
        "_upstream_frames",
        "answer",
        "claim",
        "coalescing_key",
        "first_attempt_at",
        "has_discarded_frames",
        "has_slot",
        "is_complete",
        "is_delivered",
        "is_only_attempt",
        "is_recorded_by_key",
        "replayed_answer",
        "request",
        "reserved_frame_bytes",
        "waiters",
    )

    def __init__(
        self,
        coalescing: RequestCoalescing,
        coalescing_key: Hashable,
        request: ChatRequest,
        replayed_answer: Answer | None,
        first_attempt_at: datetime,
    ) -> None:
        self._coalescing = coalescing
        self._fetching_waiter: AttemptWaiter | None = None
        self._failure: Exception | None = None
        self._frames: list[bytes] = []
        self._has_ended = False
        self._upstream_frames: AsyncGenerator[bytes, None] | None = None
        self._change_futures: list[asyncio.Future[None]] = []
        self.answer: Answer | None = None
        self.first_attempt_at = first_attempt_at
        self.claim: IdempotencyClaim | None = None
        self.has_discarded_frames = self.has_slot = False
        self.reserved_frame_bytes = 0
        self.is_only_attempt = True
        self.is_complete, self.is_delivered, self.is_recorded_by_key = replayed_answer is not None, False, False
        self.coalescing_key = coalescing_key
        self.replayed_answer = replayed_answer
        self.request = request
        self.waiters: list[AttemptWaiter] = []

    @property
    def can_be_joined(self) -> bool:
        """A stream that everybody has left is being closed; a whole answer is finished all the same."""
        if self._has_ended or self.has_discarded_frames:
            return False
        return not (
            self.request.stream and all(waiter.has_disconnected or waiter.is_cut_off for waiter in self.waiters)
        )

    @property
    def is_abandoned(self) -> bool:
        return all(waiter.is_gone for waiter in self.waiters)

    @property
    def is_only_in_memory(self) -> bool:
        """Its client's key is to lead to it, and in the store it does not."""
        return self.request.idempotency_key is not None and not self.is_recorded_by_key

    @property
    def size_bytes(self) -> int:
        body = self.answer.body if isinstance(self.answer, WholeAnswer) else b""
        return len(self.request.body) + len(body) + sum(map(len, self._frames))

    async def start(self, waiter: AttemptWaiter) -> None:
        """Ask for the answer; of a stream, until it has begun: only then does closing it clean up behind it."""
        self._fetching_waiter = waiter
        try:
            answer = await self._coalescing.run_attempt(self)
            if isinstance(answer, StreamedAnswer):
                self._upstream_frames = answer.frames
                self._frames.append(await anext(answer.frames))
            else:
                self.is_complete = True
        except BaseException as error:
            self.waiters.remove(waiter)
            await self._finish(error)
            raise
        self.answer = answer
        if self._upstream_frames is None:
            await self._finish()
        elif self._change_futures:
            self._wake_waiters()
        else:
            self._fetching_waiter = None

    async def wait_until_started(self, waiter: AttemptWaiter) -> None:
        """Wait for the answer that another asks for."""
        try:
            while self.answer is None:
                if self._failure is not None:
                    raise self._failure
                await self._wait_for_change()
        except BaseException:
            self.waiters.remove(waiter)
            raise

    async def record_answer(self, conversation: Conversation | None) -> None:
        """The answer is whole, and if it is stored, is the last message of this conversation."""
        self.is_complete = True
        if conversation is not None and self.claim is not None:
            self.is_recorded_by_key = await self.claim.record_answer(conversation)

    async def stream_frames(self, waiter: AttemptWaiter) -> AsyncGenerator[bytes, None]:
        """All frames of a stream, those that came before this seat was taken included."""
        frames, sent_count, size_bytes = self._frames, 0, 0
        try:
            while not waiter.has_disconnected:
                if sent_count < len(frames):
                    frame = frames[sent_count]
                elif self._failure is not None:
                    failure = _to_gateway_error(self._failure)
                    record_error(failure)
                    yield render_error_frames(failure)
                    return
                elif self._has_ended:
                    if self.is_complete and not frames[-1].endswith(DONE_FRAME):
                        yield DONE_FRAME
                    return
                elif self._fetching_waiter is not None:
                    await self._wait_for_change()
                    continue
                else:
                    # Here rather than in a method: each piece of each stream comes by.
                    self._fetching_waiter = waiter
                    try:
                        frame = await anext(self._upstream_frames)  # type: ignore[arg-type]  # has not ended
                    except StopAsyncIteration:
                        await self._finish()
                        continue
                    except BaseException as error:
                        await self._finish(error)
                        raise
                    frames.append(frame)
                    self._fetching_waiter = None
                    if self._change_futures:
                        self._wake_waiters()
                yield frame
                sent_count += 1
                size_bytes += len(frame) + FRAME_OVERHEAD_BYTES
                if waiter.is_cut_off or (size_bytes > self.reserved_frame_bytes and not self._reserve_frame_bytes()):
                    sent_count = self._discard_sent_frames(sent_count)
        finally:
            self.has_discarded_frames = self.has_discarded_frames or waiter.is_cut_off
            self.is_delivered = self.is_delivered or (self.is_complete and sent_count == len(frames))
            await self._remove_waiter(waiter)

    def _reserve_frame_bytes(self) -> bool:
        """Whether more frames may be kept, for who may yet join."""
        if self.has_discarded_frames or not self._coalescing.reserve_frame_bytes(FRAME_RESERVATION_BYTES):
            return False
        self.reserved_frame_bytes += FRAME_RESERVATION_BYTES
        return True

    def _discard_sent_frames(self, sent_count: int) -> int:
        """Let go of what was sent, if there is nobody who has not got it; how many of the frames there are were sent
        then. The last one stays: it tells how the stream ended."""
        if len(self.waiters) > 1 or sent_count < len(self._frames):
            return sent_count
        self.has_discarded_frames = True
        del self._frames[:-1]
        return 1

    def record_delivery(self, waiter: AttemptWaiter, *, is_delivered: bool) -> None:
        self.is_delivered = self.is_delivered or is_delivered
        self.waiters.remove(waiter)
        if not self.waiters:
            self._coalescing.cache_outcome(self)

    def disconnect_waiter(self, waiter: AttemptWaiter) -> None:
        """Let a client's task end; if others are there and it fetches for them, when it has fetched."""
        waiter.has_disconnected = True
        for leaving in self._find_waiters_to_cancel(waiter):
            if leaving.task is not None:
                leaving.task.cancel()

    def _find_waiters_to_cancel(self, waiter: AttemptWaiter) -> list[AttemptWaiter]:
        """Whose tasks end now that the client of `waiter` is gone."""
        if all(other.has_disconnected for other in self.waiters):
            return self.waiters
        return [] if self._fetching_waiter is waiter else [waiter]

    async def _remove_waiter(self, waiter: AttemptWaiter) -> None:
        self.waiters.remove(waiter)
        if self.waiters:
            return
        try:
            if self._upstream_frames is not None:
                await self._upstream_frames.aclose()
        finally:
            await self._finish()
        self._coalescing.cache_outcome(self)

    async def _finish(self, error: BaseException | None = None) -> None:
        """Nothing more comes: all is there, or this error."""
        if self._has_ended:
            return
        self._has_ended = True
        if error is not None and not (self.is_complete and self.answer is not None):
            self._failure = error if isinstance(error, Exception) else _make_attempt_ended_error()
        self._upstream_frames = None
        self._wake_waiters()
        self._coalescing.finish_attempt(self)
        if self.claim is not None:
            await self._coalescing.release_claim(self.claim)

    def _wake_waiters(self) -> None:
        """The next may fetch, and whoever waits has something to see."""
        self._fetching_waiter = None
        if self._change_futures:
            futures, self._change_futures = self._change_futures, []
            for future in futures:
                if not future.done():
                    future.set_result(None)

    async def _wait_for_change(self) -> None:
        change_future = asyncio.get_running_loop().create_future()
        self._change_futures.append(change_future)
        await change_future


def _make_attempt_ended_error() -> GatewayError:
    return UpstreamUnavailable("The attempt that this request had joined was ended.", status=503)


def _to_gateway_error(error: Exception) -> GatewayError:
    return error if isinstance(error, GatewayError) else _make_attempt_ended_error()
