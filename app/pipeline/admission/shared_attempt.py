"""One run of a request through the pipeline, and the clients that wait for its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from app.conversation.conversation_types import Conversation
from app.dialects.answer_format import AnswerFormat
from app.errors import GatewayError, UpstreamUnavailable
from app.observability.request_facts import record_error
from app.observability.request_record import timed_step
from app.pipeline.admission.answer_replay import REPLAY_HEADERS
from app.pipeline.admission.call_allowance import CallAllowance
from app.pipeline.admission.idempotency_keys import IdempotencyClaim
from app.pipeline.chat_request import ChatRequest
from app.pipeline.respond.answer_types import Answer, StreamedAnswer, WholeAnswer

if TYPE_CHECKING:
    from app.pipeline.admission.request_coalescing import RequestCoalescer

FRAME_RESERVATION_BYTES: Final = 8192
"""How many more bytes an attempt reserves at a time for its frames."""
FRAME_OVERHEAD_BYTES: Final = 64
"""Memory that a frame takes besides its bytes."""


class AttemptWaiter:
    """One client that waits for an attempt's answer."""

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
        """`has_disconnected`: the client is known to be gone, and its task ends. `is_cut_off`: the only client does not
        read; the stream is finished for the store, and its frames are discarded."""
        self.task = asyncio.current_task() if request.stream else None
        """The task to cancel when the client disconnects. Whole answers are finished anyway (docs/decisions/0007), so
        they have none."""
        attempt.waiters.append(self)

    @property
    def answer_format(self) -> AnswerFormat:
        """Writes the attempt's answer."""
        return self._attempt.request.answer_format

    @property
    def accepts_events(self) -> bool:
        """Whether the client takes events besides the answer."""
        return self._request.event_style != "off"

    @property
    def is_gone(self) -> bool:
        return self.has_disconnected or self._is_disconnected()

    async def wait_for_answer(self) -> Answer:
        """Returns the attempt's answer. The first waiter runs the attempt, the others wait for it.

        Raises:
            GatewayError: as the pipeline raises it; all waiters get the same error.
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
            # The answer has the headers of another request: this client gets its own request id, and learns that it got
            # a replay.
            headers = {**headers, "x-request-id": self._request.request_id, **REPLAY_HEADERS}
        if isinstance(answer, StreamedAnswer):
            return StreamedAnswer(headers, attempt.stream_frames(self))
        return answer if headers is answer.headers else replace(answer, headers=headers)

    def record_delivery(self) -> None:
        """Records whether the client is still connected, right before a whole answer is sent."""
        attempt = self._attempt
        attempt.is_delivered = attempt.is_delivered or not self._is_disconnected()
        attempt.waiters.remove(self)
        if not attempt.waiters:
            attempt.coalescing.cache_outcome(attempt)

    def disconnect(self) -> None:
        """Records that the client is gone, and ends its task unless other clients need it."""
        self._attempt.disconnect_waiter(self)

    def cut_off_slow_client(self) -> None:
        """Stops sending to a client that does not read. The answer is finished for the store: nobody has said that it
        is not wanted, and it is paid for."""
        # Other clients see to it that the stream is finished.
        if any(other is not self and not other.has_disconnected for other in self._attempt.waiters):
            self.disconnect()
        else:
            self.is_cut_off = True


class SharedAttempt(msgspec.Struct, eq=False):
    """One run of a request through the pipeline.

    An attempt has no task of its own: the waiter that needs the next frame fetches it, and the others read the frames
    that have come. So a slow client delays no other, and an attempt with one client costs hardly more than the list of
    its frames. If all attempts together have no room for that list, the frames that have been sent are discarded, and
    no further client can join.

    Attributes:
        first_attempt_at: when this attempt, or the first one that it repeats, began.
        reserved_frame_bytes: bytes reserved for its frames.
        has_discarded_frames: whether its first frames have been discarded.
        has_slot: whether it holds a slot of the admission.
        is_only_attempt: whether no attempt at the same request ran at the same time.
        replayed_answer: the answer, if it was made for an earlier request.
        is_complete: whether the answer is complete.
        is_recorded_by_key: whether the store leads from the client's key to the answer.
        is_delivered: whether a client was connected to receive the answer, of a stream the last frame, too.
    """

    coalescing: RequestCoalescer
    coalescing_key: Hashable
    request: ChatRequest
    replayed_answer: Answer | None
    first_attempt_at: datetime
    is_complete: bool = False
    is_delivered: bool = False
    is_only_attempt: bool = True
    is_recorded_by_key: bool = False
    has_slot: bool = False
    has_discarded_frames: bool = False
    reserved_frame_bytes: int = 0
    answer: Answer | None = None
    claim: IdempotencyClaim | None = None
    allowance: CallAllowance | None = None
    waiters: list[AttemptWaiter] = []
    _change_futures: list[asyncio.Future[None]] = []
    _failure: Exception | None = None
    _fetching_waiter: AttemptWaiter | None = None
    _frames: list[bytes] = []
    _has_last_frame: bool = False
    _has_ended: bool = False
    _upstream_frames: AsyncGenerator[bytes, None] | None = None

    @property
    def can_be_joined(self) -> bool:
        """Whether another client can wait for this attempt. A stream that all clients have left is being closed and
        cannot be joined; a whole answer is finished anyway."""
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
        """Whether the request has an idempotency key and the store does not lead from the key to the answer."""
        return self.request.idempotency_key is not None and not self.is_recorded_by_key

    @property
    def has_whole_answer(self) -> bool:
        """Whether it holds all that is sent of its answer, so that it can be sent again."""
        return isinstance(self.answer, WholeAnswer) or (self._has_last_frame and not self.has_discarded_frames)

    @property
    def size_bytes(self) -> int:
        body = self.answer.body if isinstance(self.answer, WholeAnswer) else b""
        return len(self.request.body) + len(body) + sum(map(len, self._frames))

    async def start(self, waiter: AttemptWaiter) -> None:
        """Runs the attempt: until the whole answer, or until the first frame of a stream."""
        self._fetching_waiter = waiter
        try:
            answer = await self.coalescing.run_attempt(self)
            if isinstance(answer, StreamedAnswer):
                self._upstream_frames = answer.frames
                # An async generator that has not begun runs no `finally` when it is closed: leases and connections
                # would stay open.
                was_complete = self.is_complete
                self._frames.append(await anext(answer.frames))
                self._has_last_frame = self.is_complete and not was_complete
            else:
                self.is_complete = True
        except BaseException as error:
            # BaseException: whatever ends this run, the other waiters must learn that it has ended.
            self.waiters.remove(waiter)
            await self._finish(error)
            raise
        self.answer = answer
        if self._upstream_frames is None:
            await self._finish()
            return
        self._fetching_waiter = None
        if self._change_futures:
            self._wake_waiters()

    @timed_step("join")
    async def wait_until_started(self, waiter: AttemptWaiter) -> None:
        """Waits for the answer that another waiter requests."""
        try:
            while self.answer is None:
                if self._failure is not None:
                    raise self._failure
                await self._wait_for_change()
        except BaseException:
            self.waiters.remove(waiter)
            raise

    async def record_complete_answer(self, conversation: Conversation | None) -> None:
        """Records that the answer is complete. If it is stored, it is the last message of `conversation`."""
        self.is_complete = True
        if conversation is not None and self.claim is not None:
            self.is_recorded_by_key = await self.claim.record_answer(conversation)

    async def stream_frames(self, waiter: AttemptWaiter) -> AsyncGenerator[bytes, None]:
        """Yields all frames of a stream to one waiter, those that came before the waiter joined included."""
        frames, sent_count, size_bytes = self._frames, 0, 0
        try:
            while not waiter.has_disconnected:
                if sent_count < len(frames):
                    frame = frames[sent_count]
                elif self._failure is not None:
                    failure = _to_gateway_error(self._failure)
                    record_error(failure)
                    yield self.request.answer_format.render_error_frames(failure)
                    return
                elif self._has_ended:
                    # An error after the complete answer has cut the stream off before its end marker, which clients
                    # wait for.
                    if self.is_complete and (end := self.request.answer_format.complete_frames(frames[-1])):
                        yield end
                        self._has_last_frame = True
                    return
                elif self._fetching_waiter is not None:
                    await self._wait_for_change()
                    continue
                else:
                    # Nobody fetches, so this waiter fetches the next frame. The code is not a method of its own,
                    # because it runs for each frame of each stream.
                    self._fetching_waiter = waiter
                    was_complete = self.is_complete
                    try:
                        frame = await anext(self._upstream_frames)  # type: ignore[arg-type]  # has not ended
                    except StopAsyncIteration:
                        self._has_last_frame = True
                        await self._finish()
                        continue
                    except BaseException as error:
                        await self._finish(error)
                        raise
                    frames.append(frame)
                    # An answer is complete when it is stored, right before its last frame.
                    if self.is_complete and not was_complete:
                        self._has_last_frame = True
                    self._fetching_waiter = None
                    if self._change_futures:
                        self._wake_waiters()
                yield frame
                sent_count += 1
                size_bytes += len(frame) + FRAME_OVERHEAD_BYTES
                # Frames that have been sent are discarded as soon as they cannot be kept for clients that may join.
                if waiter.is_cut_off or (size_bytes > self.reserved_frame_bytes and not self._reserve_frame_bytes()):
                    sent_count = self._discard_sent_frames(sent_count)
        finally:
            self.has_discarded_frames = self.has_discarded_frames or waiter.is_cut_off
            self.is_delivered = self.is_delivered or (self._has_last_frame and sent_count == len(frames))
            await self._remove_waiter(waiter)

    def _reserve_frame_bytes(self) -> bool:
        """Returns whether more frames may be kept for clients that may still join."""
        if self.has_discarded_frames or not self.coalescing.reserve_frame_bytes(FRAME_RESERVATION_BYTES):
            return False
        self.reserved_frame_bytes += FRAME_RESERVATION_BYTES
        return True

    def _discard_sent_frames(self, sent_count: int) -> int:
        """Discards the frames that have been sent, if every waiter has got them. The last frame stays, because it shows
        how the stream ended.

        Returns:
            How many of the remaining frames have been sent.
        """
        if len(self.waiters) > 1 or sent_count < len(self._frames):
            return sent_count
        self.has_discarded_frames = True
        del self._frames[:-1]
        return 1

    def disconnect_waiter(self, waiter: AttemptWaiter) -> None:
        """Ends the task of a client that is gone. If the task is fetching the next frame for other clients, it ends
        after the fetch."""
        waiter.has_disconnected = True
        for leaving in self._find_waiters_to_cancel(waiter):
            if leaving.task is not None:
                leaving.task.cancel()

    def _find_waiters_to_cancel(self, waiter: AttemptWaiter) -> list[AttemptWaiter]:
        """Returns the waiters whose tasks must end, now that the client of `waiter` is gone."""
        if all(other.has_disconnected for other in self.waiters):
            return self.waiters
        return [] if self._fetching_waiter is waiter else [waiter]

    async def _remove_waiter(self, waiter: AttemptWaiter) -> None:
        self.waiters.remove(waiter)
        if self.waiters:
            return
        # The last client has left: closing the stream ends the upstream call, and `_finish` runs even if closing fails.
        try:
            if self._upstream_frames is not None:
                await self._upstream_frames.aclose()
        finally:
            await self._finish()
        self.coalescing.cache_outcome(self)

    async def _finish(self, error: BaseException | None = None) -> None:
        """Records the end of the attempt, and wakes its waiters."""
        if self._has_ended:
            return
        self._has_ended = True
        # An error after a complete answer does not concern the clients. The cancellation of one client's task is not
        # shown to the others as such, but as an error of ours.
        if error is not None and not (self.is_complete and self.answer is not None):
            self._failure = error if isinstance(error, Exception) else _make_attempt_ended_error()
        self._upstream_frames = self._fetching_waiter = None
        if self._change_futures:
            self._wake_waiters()
        self.coalescing.finish_attempt(self)
        if self.claim is not None:
            await self.coalescing.release_claim(self.claim)

    def _wake_waiters(self) -> None:
        """Wakes the waiting clients: a new frame is there, or the attempt has ended. Any waiter may fetch the next
        frame."""
        futures, self._change_futures = self._change_futures, []
        for future in futures:
            if not future.done():
                future.set_result(None)

    async def _wait_for_change(self) -> None:
        change_future = asyncio.get_running_loop().create_future()
        self._change_futures.append(change_future)
        await change_future


def _make_attempt_ended_error() -> GatewayError:
    return UpstreamUnavailable("The attempt that this request waited for was ended.", status=503)


def _to_gateway_error(error: Exception) -> GatewayError:
    return error if isinstance(error, GatewayError) else _make_attempt_ended_error()
