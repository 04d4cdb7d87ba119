"""One run of a request through the exchange, and the places of those who wait for what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable
from datetime import datetime
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from app.conversation.messages import Conversation
from app.errors import GatewayError, UpstreamUnavailable
from app.observability.request_facts import note_error
from app.pipeline.admission.answer_replay import REPLAYED
from app.pipeline.admission.idempotency_keys import Claim
from app.pipeline.chat_request import ChatRequest
from app.pipeline.respond.answer import Answer, StreamedAnswer, WholeAnswer
from app.pipeline.respond.stream_frames import DONE_FRAME, error_frames

if TYPE_CHECKING:
    from app.pipeline.admission.request_coalescing import Retries

BLOCK_BYTES: Final = 8192
"""How much more an attempt asks for at a time to keep its frames in."""
FRAME_BYTES: Final = 64
"""What a frame takes beside its text."""


class Seat:
    """One client's place at an attempt."""

    __slots__ = ("_attempt", "_has_left", "_is_first", "_request", "has_hung_up", "is_cut", "task")

    def __init__(self, attempt: Attempt, request: ChatRequest, has_left: Callable[[], bool], *, is_first: bool) -> None:
        self._attempt = attempt
        self._request = request
        self._has_left = has_left
        self._is_first = is_first
        self.has_hung_up = self.is_cut = False
        """Known to be gone, and no longer waited for; or alone, and no longer sent to since it did not read: what comes
        of its stream is kept in the store only."""
        self.task = asyncio.current_task() if request.stream else None
        """What ends when its client hangs up: of whole answers none does."""
        attempt.seats.append(self)

    @property
    def is_left(self) -> bool:
        return self.has_hung_up or self._has_left()

    async def answer(self) -> Answer:
        """The attempt's answer. Whoever has the first seat asks for it.

        Raises:
            GatewayError: as the exchange says; to everybody at the attempt.
        """
        attempt = self._attempt
        if self._is_first:
            await attempt.open(self)
        else:
            await attempt.opened(self)
        answer = attempt.answer
        assert answer is not None
        headers = answer.headers
        if not self._is_first or attempt.replay is not None:
            headers = {**headers, "x-request-id": self._request.request_id, **REPLAYED}
        if isinstance(answer, StreamedAnswer):
            return StreamedAnswer(headers, attempt.frames_for(self))
        return answer if headers is answer.headers else replace(answer, headers=headers)

    def hand_over(self) -> None:
        """A whole answer is about to be sent: note whether there is anybody to receive it."""
        self._attempt.handed_over(self, is_delivered=not self._has_left())

    def hang_up(self) -> None:
        """The client is gone. Ends its task, unless that is what brings others their answer."""
        self._attempt.hung_up(self)

    def be_cut(self) -> None:
        """The client does not read what it is sent. The answer is finished for the store, unless others wait for it and
        see to that."""
        if any(one is not self and not one.has_hung_up for one in self._attempt.seats):
            self.hang_up()
        else:
            self.is_cut = True


class Attempt:
    """One run of a request through the exchange.

    It has no task of its own: who needs the next piece of a stream fetches it, and the others read what has come. So a
    slow client holds up nobody, and one alone costs hardly more than the list of what it was sent. Where all attempts
    together have no room for that list, whoever is there gets the rest, and nobody joins any more.

    Attributes:
        began: when it began, or the first of those that it repeats.
        kept_bytes: room that its frames have among those of all attempts.
        has_forgotten: its first frames are no longer there.
        has_place: it is among the requests that may ask a model.
        is_alone: no other attempt at the very same ran beside it.
        replay: the answer, if it was given before.
        is_complete: the answer is whole, and here.
        is_settled: its client's key leads to it in the store.
        is_delivered: somebody was there to receive it.
    """

    __slots__ = (
        "_driver",
        "_failure",
        "_frames",
        "_has_ended",
        "_retries",
        "_source",
        "_waiting",
        "answer",
        "began",
        "claim",
        "has_forgotten",
        "has_place",
        "is_alone",
        "is_complete",
        "is_delivered",
        "is_settled",
        "kept_bytes",
        "name",
        "replay",
        "request",
        "seats",
    )

    def __init__(
        self, retries: Retries, name: Hashable, request: ChatRequest, replay: Answer | None, began: datetime
    ) -> None:
        self._retries = retries
        self._driver: Seat | None = None
        self._failure: Exception | None = None
        self._frames: list[bytes] = []
        self._has_ended = False
        self._source: AsyncGenerator[bytes, None] | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self.answer: Answer | None = None
        self.began = began
        self.claim: Claim | None = None
        self.has_forgotten = self.has_place = False
        self.kept_bytes = 0
        self.is_alone = True
        self.is_complete, self.is_delivered, self.is_settled = replay is not None, False, False
        self.name = name
        self.replay = replay
        self.request = request
        self.seats: list[Seat] = []

    @property
    def can_be_joined(self) -> bool:
        """A stream that everybody has left is being closed; a whole answer is finished all the same."""
        if self._has_ended or self.has_forgotten:
            return False
        return not (self.request.stream and all(seat.has_hung_up or seat.is_cut for seat in self.seats))

    @property
    def is_left(self) -> bool:
        return all(seat.is_left for seat in self.seats)

    @property
    def is_only_here(self) -> bool:
        """Its client's key is to lead to it, and in the store it does not."""
        return self.request.idempotency_key is not None and not self.is_settled

    @property
    def size_bytes(self) -> int:
        body = self.answer.body if isinstance(self.answer, WholeAnswer) else b""
        return len(self.request.body) + len(body) + sum(map(len, self._frames))

    async def open(self, seat: Seat) -> None:
        """Ask for the answer; of a stream, until it has begun: only then does closing it clean up behind it."""
        self._driver = seat
        try:
            answer = await self._retries.run(self)
            if isinstance(answer, StreamedAnswer):
                self._source = answer.frames
                self._frames.append(await anext(answer.frames))
            else:
                self.is_complete = True
        except BaseException as error:
            self.seats.remove(seat)
            await self._end(error)
            raise
        self.answer = answer
        if self._source is None:
            await self._end()
        elif self._waiting:
            self._let_go()
        else:
            self._driver = None

    async def opened(self, seat: Seat) -> None:
        """Wait for the answer that another asks for."""
        try:
            while self.answer is None:
                if self._failure is not None:
                    raise self._failure
                await self._changed()
        except BaseException:
            self.seats.remove(seat)
            raise

    async def answered(self, conversation: Conversation | None) -> None:
        """The answer is whole, and if it is stored, is the last message of this conversation."""
        self.is_complete = True
        if conversation is not None and self.claim is not None:
            self.is_settled = await self.claim.settle(conversation)

    async def frames_for(self, seat: Seat) -> AsyncGenerator[bytes, None]:
        """All frames of a stream, those that came before this seat was taken included."""
        frames, sent, size_bytes = self._frames, 0, 0
        try:
            while not seat.has_hung_up:
                if sent < len(frames):
                    frame = frames[sent]
                elif self._failure is not None:
                    failure = _told(self._failure)
                    note_error(failure)
                    yield error_frames(failure)
                    return
                elif self._has_ended:
                    if self.is_complete and not frames[-1].endswith(DONE_FRAME):
                        yield DONE_FRAME
                    return
                elif self._driver is not None:
                    await self._changed()
                    continue
                else:
                    # Here rather than in a method: each piece of each stream comes by.
                    self._driver = seat
                    try:
                        frame = await anext(self._source)  # type: ignore[arg-type]  # has not ended
                    except StopAsyncIteration:
                        await self._end()
                        continue
                    except BaseException as error:
                        await self._end(error)
                        raise
                    frames.append(frame)
                    self._driver = None
                    if self._waiting:
                        self._let_go()
                yield frame
                sent += 1
                size_bytes += len(frame) + FRAME_BYTES
                if seat.is_cut or (size_bytes > self.kept_bytes and not self._has_room()):
                    sent = self._forget(sent)
        finally:
            self.has_forgotten = self.has_forgotten or seat.is_cut
            self.is_delivered = self.is_delivered or (self.is_complete and sent == len(frames))
            await self._leave(seat)

    def _has_room(self) -> bool:
        """Whether more frames may be kept, for who may yet join."""
        if self.has_forgotten or not self._retries.may_keep(BLOCK_BYTES):
            return False
        self.kept_bytes += BLOCK_BYTES
        return True

    def _forget(self, sent: int) -> int:
        """Let go of what was sent, if there is nobody who has not got it; how many of the frames there are were sent
        then. The last one stays: it tells how the stream ended."""
        if len(self.seats) > 1 or sent < len(self._frames):
            return sent
        self.has_forgotten = True
        del self._frames[:-1]
        return 1

    def handed_over(self, seat: Seat, *, is_delivered: bool) -> None:
        self.is_delivered = self.is_delivered or is_delivered
        self.seats.remove(seat)
        if not self.seats:
            self._retries.left_behind(self)

    def hung_up(self, seat: Seat) -> None:
        """Let a client's task end; if others are there and it fetches for them, when it has fetched."""
        seat.has_hung_up = True
        for one in self._leaving(seat):
            if one.task is not None:
                one.task.cancel()

    def _leaving(self, seat: Seat) -> list[Seat]:
        """Whose tasks end now that the client of `seat` is gone."""
        if all(one.has_hung_up for one in self.seats):
            return self.seats
        return [] if self._driver is seat else [seat]

    async def _leave(self, seat: Seat) -> None:
        self.seats.remove(seat)
        if self.seats:
            return
        try:
            if self._source is not None:
                await self._source.aclose()
        finally:
            await self._end()
        self._retries.left_behind(self)

    async def _end(self, error: BaseException | None = None) -> None:
        """Nothing more comes: all is there, or this error."""
        if self._has_ended:
            return
        self._has_ended = True
        if error is not None and not (self.is_complete and self.answer is not None):
            self._failure = error if isinstance(error, Exception) else _stopped()
        self._source = None
        self._let_go()
        self._retries.ended(self)
        if self.claim is not None:
            await self._retries.give_up(self.claim)

    def _let_go(self) -> None:
        """The next may fetch, and whoever waits has something to see."""
        self._driver = None
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                if not one.done():
                    one.set_result(None)

    async def _changed(self) -> None:
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting


def _stopped() -> GatewayError:
    return UpstreamUnavailable("The attempt that this request had joined was ended.", status=503)


def _told(error: Exception) -> GatewayError:
    return error if isinstance(error, GatewayError) else _stopped()
