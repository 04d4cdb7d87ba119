"""However clients come and go at one answer: it is asked for once, whoever stays gets it all, nothing is left open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.dialects.chat.stream_frames import DONE_FRAME
from app.errors import GatewayError, IdempotencyKeyInUse, StoreUnavailable, UpstreamUnavailable
from app.pipeline.admission.admission import Admission, AdmissionBounds
from app.pipeline.admission.shared_attempts import (
    FRAME_RESERVATION_BYTES,
    MAX_FRAMES_BYTES,
    AttemptWaiter,
    SharedAttempts,
)
from app.pipeline.resolve.answer_replay import StoredAnswers
from app.pipeline.turn.answer_types import Answer, StreamedAnswer, WholeAnswer
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.chat_request import Caller, ChatRequest, DeliveryOptions, RetryOptions, StoringOptions

FRAMES = [b"data: %d\n\n" % number for number in range(5)] + [DONE_FRAME]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTLING_STEPS = 20


def asked(
    *, stream: bool = True, retry: bool = True, body: bytes = b"{}", store: bool = True, key: str | None = None
) -> ChatRequest:
    caller = Caller(tenant="t")
    return ChatRequest(
        caller=caller,
        request_id="r",
        body=body,
        raw_fields={},
        raw_messages=[],
        model="m",
        delivery=DeliveryOptions(stream),
        retry=RetryOptions(retry, idempotency_key=key),
        storing=StoringOptions(store),
    )


class Upstream:
    """What stands behind the attempts: answers in steps that a test lets happen."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        self.calls = 0
        self._headers = headers or {}
        self.opened = self.closed = 0
        self.failure: Exception | None = None
        self.store_delay_seconds = 0.0
        """How long the last frame takes after the answer is complete."""
        self.failure_after_store: Exception | None = None
        self.given = 0
        """How many frames were read of streams."""
        self._steps = asyncio.Semaphore(0)

    def step(self) -> None:
        self._steps.release()

    async def answer(self, request: ChatRequest) -> Answer:
        self.calls += 1
        await self._steps.acquire()
        if self.failure is not None:
            raise self.failure
        if request.delivery.stream:
            return StreamedAnswer(self._headers, self._frames(request))
        return WholeAnswer(b"{}", self._headers)

    async def _frames(self, request: ChatRequest) -> AsyncGenerator[bytes, None]:
        self.opened += 1
        try:
            for frame in FRAMES:
                if frame is DONE_FRAME and request.on_answer is not None:
                    await request.on_answer(None)
                    await asyncio.sleep(self.store_delay_seconds)
                    if self.failure_after_store is not None:
                        raise self.failure_after_store
                self.given += 1
                yield frame
                await self._steps.acquire()
                if self.failure is not None:
                    raise self.failure
        finally:
            await asyncio.sleep(0)
            self.closed += 1


class Client:
    """One client and the task that serves it."""

    def __init__(self, attempts: SharedAttempts, request: ChatRequest) -> None:
        self.got: list[bytes] = []
        self.has_left = False
        self.reads = asyncio.Event()
        self.reads.set()
        self.waiter: AttemptWaiter | None = None
        self.serving = asyncio.ensure_future(self._serve(attempts, request))

    async def _serve(self, attempts: SharedAttempts, request: ChatRequest) -> None:
        self.waiter = attempts.join_or_start(request, lambda: self.has_left)
        answer = await self.waiter.wait_for_answer()
        if isinstance(answer, WholeAnswer):
            self.got.append(answer.body)
            return
        async with aclosing(answer.frames) as frames:
            async for frame in frames:
                await self.reads.wait()
                if not self.has_left:
                    self.got.append(frame)

    def leave(self) -> None:
        self.has_left = True
        self.serving.cancel()


async def settled() -> None:
    for _ in range(SETTLING_STEPS):
        await asyncio.sleep(0)


def attempts_at(
    upstream: Upstream,
    clock: Callable[[], float] = lambda: 0.0,
    frames_bytes: int = MAX_FRAMES_BYTES,
    answers: Any = None,
    tasks: BackgroundTasks | None = None,
) -> SharedAttempts:
    keys: Any = None
    return SharedAttempts(
        pipeline=upstream,
        stored_answers=answers,
        idempotency_keys=keys,
        tasks=tasks or BackgroundTasks(),
        admission=Admission(AdmissionBounds(), clock=clock),
        clock=clock,
        now=lambda: NOW,
        free_frames_bytes=frames_bytes,
    )


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(["join", "leave", "step", "stall", "read"]), st.integers(0, 4)), max_size=30))
def test_whoever_stays_gets_all_of_it(moves: list[tuple[str, int]]) -> None:
    async def run() -> None:
        upstream = Upstream()
        attempts = attempts_at(upstream)
        clients = [Client(attempts, asked(retry=False))]
        await settled()
        for move, which in moves:
            client = clients[which % len(clients)]
            if move == "join":
                clients.append(Client(attempts, asked()))
            elif move == "leave":
                client.leave()
            elif move == "step":
                upstream.step()
            elif move == "stall":
                client.reads.clear()
            else:
                client.reads.set()
            await settled()
        for client in clients:
            client.reads.set()
        for _ in range(2 * len(FRAMES) * len(clients)):
            upstream.step()
            await settled()
        await asyncio.wait([client.serving for client in clients], timeout=1)
        for client in clients:
            assert client.serving.done()
            if not client.has_left:
                assert client.got == FRAMES
            assert client.got == FRAMES[: len(client.got)]
        assert upstream.opened == upstream.closed
        assert attempts._running_attempts == {}

    asyncio.run(run())


async def test_one_attempt_serves_all_who_join_it() -> None:
    upstream = Upstream()
    attempts = attempts_at(upstream)
    clients = [Client(attempts, asked()) for _ in range(5)]
    for _ in range(20):
        upstream.step()
        await settled()
    assert [client.got for client in clients] == [FRAMES] * 5
    assert (upstream.calls, upstream.opened, upstream.closed) == (1, 1, 1)


@pytest.mark.parametrize("failure", [UpstreamUnavailable("away"), ValueError("a fault of ours")])
@pytest.mark.parametrize("steps", [0, 2])
async def test_a_failure_reaches_everybody_and_the_next_asks_again(failure: Exception, steps: int) -> None:
    upstream = Upstream()
    attempts = attempts_at(upstream)
    clients = [Client(attempts, asked()) for _ in range(3)]
    for _ in range(steps):
        await settled()
        upstream.step()
    await settled()
    upstream.failure = failure
    upstream.step()
    await settled()
    assert [client.serving.exception() for client in clients] == [failure] * 3
    assert attempts._running_attempts == {}
    upstream.failure = None
    again = Client(attempts, asked())
    for _ in range(20):
        upstream.step()
        await settled()
    assert again.got == FRAMES
    assert upstream.calls == 2


async def test_a_waiter_that_is_cancelled_takes_nothing_from_the_others() -> None:
    upstream = Upstream()
    attempts = attempts_at(upstream)
    clients = [Client(attempts, asked()) for _ in range(3)]
    await settled()
    clients[0].leave()
    upstream.step()
    await settled()
    clients[1].leave()
    for _ in range(20):
        upstream.step()
        await settled()
    assert [client.got for client in clients] == [[], FRAMES[:1], FRAMES]
    assert (upstream.calls, upstream.opened, upstream.closed) == (1, 1, 1)


@pytest.mark.parametrize("steps", [0, 2])
async def test_a_server_that_stops_tells_whoever_waits(steps: int) -> None:
    upstream, tasks = Upstream(), BackgroundTasks()
    attempts = attempts_at(upstream, tasks=tasks)
    clients = [Client(attempts, asked()) for _ in range(2)]
    await settled()
    for _ in range(steps):
        upstream.step()
        await settled()
    await tasks.aclose(0)
    await settled()
    for client in clients:
        error = client.serving.exception()
        assert isinstance(error, GatewayError)
        assert (error.status, error.retryable) == (503, True)
    assert upstream.opened == upstream.closed


async def test_an_error_before_the_last_frame_is_told_to_all_clients() -> None:
    """Also if the answer is stored by then: its end is missing."""
    upstream = Upstream()
    attempts = attempts_at(upstream)
    clients = [Client(attempts, asked()) for _ in range(2)]
    upstream.store_delay_seconds = 0.01
    upstream.failure_after_store = ValueError("a fault of ours")
    for _ in FRAMES:
        upstream.step()
    await asyncio.wait([client.serving for client in clients])
    assert [client.got for client in clients] == [FRAMES[:-1]] * 2
    assert [client.serving.exception() for client in clients] == [upstream.failure_after_store] * 2


async def test_an_error_after_the_last_frame_concerns_no_client(caplog: pytest.LogCaptureFixture) -> None:
    """It is in the log."""
    upstream = Upstream()
    attempts = attempts_at(upstream)
    clients = [Client(attempts, asked()) for _ in range(2)]
    for _ in FRAMES:
        upstream.step()
    await settled()
    upstream.failure = ValueError("a fault of ours")
    upstream.step()
    await asyncio.wait([client.serving for client in clients])
    assert [client.got for client in clients] == [FRAMES] * 2
    assert [record.exc_info and record.exc_info[1] for record in caplog.records] == [upstream.failure]


async def test_no_more_than_one_frame_is_read_ahead_of_the_fastest_client() -> None:
    upstream = Upstream()
    attempts = attempts_at(upstream)
    clients = [Client(attempts, asked()) for _ in range(2)]
    for client in clients:
        client.reads.clear()
    for _ in range(10):
        upstream.step()
    await settled()
    assert upstream.given == 2
    clients[1].reads.set()
    await settled()
    assert clients[1].got == FRAMES
    assert clients[0].got == []


async def test_a_client_that_is_cut_off_alone_has_its_answer_finished_and_not_kept() -> None:
    upstream, answers = Upstream({"x-conversation-id": "c"}), OneStoredAnswer()
    attempts = attempts_at(upstream, frames_bytes=0, answers=answers)
    slow = Client(attempts, asked(retry=False))
    slow.reads.clear()
    upstream.step()
    await settled()
    assert slow.waiter is not None
    slow.waiter.cut_off()
    slow.leave()
    (attempt,) = attempts._running_attempts[next(iter(attempts._running_attempts))]
    await settled()
    assert not slow.serving.done(), "its log line comes with the end of its attempt"
    for _ in range(20):
        upstream.step()
        await settled()
        assert len(attempt.frames) <= 1
    assert slow.serving.done()
    assert (upstream.given, attempts._running_attempts) == (len(FRAMES), {})
    Client(attempts, asked(retry=False))
    await settled()
    assert (upstream.calls, answers.asked_for) == (1, ["c"])


async def test_an_answer_is_delivered_if_anybody_was_there_for_it() -> None:
    upstream = Upstream()
    attempts = attempts_at(upstream)
    first, second = (Client(attempts, asked(stream=False)) for _ in range(2))
    await settled()
    first.has_left = True
    upstream.step()
    await settled()
    assert second.got == [b"{}"]
    Client(attempts, asked(stream=False, retry=False))
    await settled()
    assert upstream.calls == 2


class OneStoredAnswer(StoredAnswers):
    """The log ends with the answer to each request."""

    def __init__(self) -> None:
        self.asked_for: list[str] = []

    async def replay_answer(self, request: ChatRequest, conversation_id: str, seq: int | None = None) -> Answer | None:
        self.asked_for.append(conversation_id)
        return WholeAnswer(b"{}", {})


class AwayAnswers(StoredAnswers):
    """The store cannot be read."""

    def __init__(self) -> None:
        pass

    async def replay_answer(self, request: ChatRequest, conversation_id: str, seq: int | None = None) -> Answer | None:
        raise StoreUnavailable("The database is away.")


async def test_a_retry_whose_stored_answer_cannot_be_read_is_answered_anew() -> None:
    upstream = Upstream({"x-conversation-id": "c"})
    attempts = attempts_at(upstream, answers=AwayAnswers())
    for _ in range(2):
        client = Client(attempts, asked(stream=False))
        upstream.step()
        await settled()
        assert client.got == [b"{}"]
    assert upstream.calls == 2


@pytest.mark.parametrize(
    ("headers", "has_last_frame", "calls", "replays"),
    [
        ({"x-conversation-id": "c"}, False, 1, ["c"]),
        ({"x-conversation-id": "c"}, True, 2, []),
        ({}, False, 2, []),
        ({}, True, 2, []),
    ],
)
async def test_a_complete_stream_whose_client_left_before_its_last_frame_is_given_again_if_it_is_stored(
    headers: dict[str, str], has_last_frame: bool, calls: int, replays: list[str]
) -> None:
    upstream, answers = Upstream(headers), OneStoredAnswer()
    upstream.store_delay_seconds = 0.0 if has_last_frame else 60.0
    attempts = attempts_at(upstream, answers=answers)
    first = Client(attempts, asked(retry=False))
    for _ in FRAMES:
        upstream.step()
    await settled()
    assert (DONE_FRAME in first.got) == has_last_frame
    assert not first.serving.done()
    first.leave()
    await settled()
    Client(attempts, asked(retry=False))
    await settled()
    assert (upstream.calls, answers.asked_for) == (calls, replays)


@pytest.mark.parametrize(("waited_seconds", "replays"), [(599.0, ["c"]), (601.0, [])])
async def test_a_first_turn_that_was_lost_behind_us_is_given_again_for_a_while(
    waited_seconds: float, replays: list[str]
) -> None:
    now = [0.0]
    upstream, answers = Upstream({"x-conversation-id": "c"}), OneStoredAnswer()
    attempts = attempts_at(upstream, lambda: now[0], answers=answers)
    Client(attempts, asked(stream=False, retry=False))
    upstream.step()
    await settled()
    now[0] = waited_seconds
    Client(attempts, asked(stream=False))
    await settled()
    assert (upstream.calls, answers.asked_for) == (2 - len(replays), replays)


async def test_a_delivered_answer_that_is_not_stored_is_not_kept() -> None:
    upstream = Upstream()
    attempts = attempts_at(upstream)
    for _ in range(2):
        Client(attempts, asked(stream=False))
        upstream.step()
        await settled()
    assert upstream.calls == 2


async def test_of_two_at_once_nobody_knows_which_was_lost() -> None:
    upstream, answers = Upstream({"x-conversation-id": "c"}), OneStoredAnswer()
    attempts = attempts_at(upstream, answers=answers)
    for _ in range(2):
        Client(attempts, asked(stream=False, retry=False))
    await settled()
    for _ in range(2):
        upstream.step()
    await settled()
    Client(attempts, asked(stream=False))
    await settled()
    assert (upstream.calls, answers.asked_for) == (3, [])


async def test_a_new_request_ends_what_was_remembered_of_the_one_before() -> None:
    """It fails, and is retried: the retry is not given the answer of the same question that was asked earlier."""
    upstream, answers = Upstream({"x-conversation-id": "c"}), OneStoredAnswer()
    attempts = attempts_at(upstream, answers=answers)
    Client(attempts, asked(stream=False, retry=False))
    upstream.step()
    await settled()
    upstream.failure = UpstreamUnavailable("away")
    failed = Client(attempts, asked(stream=False, retry=False))
    upstream.step()
    await settled()
    assert failed.serving.exception() is upstream.failure
    upstream.failure = None
    Client(attempts, asked(stream=False))
    await settled()
    assert (upstream.calls, answers.asked_for) == (3, [])


@pytest.mark.parametrize("end_bytes", [1_000, 100_000])
async def test_bodies_that_end_alike_are_told_apart(end_bytes: int) -> None:
    upstream = Upstream()
    attempts = attempts_at(upstream)
    for first in (b"a", b"b"):
        Client(attempts, asked(stream=False, body=first + b"x" * end_bytes))
    await settled()
    assert upstream.calls == 2


async def test_equal_requests_with_other_keys_of_a_tenant_are_told_apart() -> None:
    upstream = Upstream()
    attempts = attempts_at(upstream)
    for key_id in ("one", "two"):
        Client(attempts, replace(asked(stream=False), caller=Caller(tenant="t", api_key_id=key_id)))
    await settled()
    assert upstream.calls == 2


async def test_a_stream_that_there_is_no_room_for_is_delivered_and_not_joined() -> None:
    upstream = Upstream()
    attempts = attempts_at(upstream, frames_bytes=0)
    first = Client(attempts, asked())
    for _ in range(3):
        upstream.step()
        await settled()
    second = Client(attempts, asked())
    for _ in range(20):
        upstream.step()
        await settled()
    assert [first.got, second.got] == [FRAMES] * 2
    assert upstream.calls == 2
    assert upstream.opened == upstream.closed


async def test_a_key_whose_stream_cannot_be_joined_is_in_use() -> None:
    upstream = Upstream()
    attempts = attempts_at(upstream, frames_bytes=0)
    Client(attempts, asked(store=False, key="k"))
    for _ in range(3):
        upstream.step()
        await settled()
    again = Client(attempts, asked(store=False, key="k"))
    await settled()
    assert isinstance(again.serving.exception(), IdempotencyKeyInUse)
    assert upstream.calls == 1


async def test_those_who_joined_in_time_get_all_of_it() -> None:
    upstream = Upstream()
    attempts = attempts_at(upstream, frames_bytes=0)
    first, second = Client(attempts, asked()), Client(attempts, asked())
    second.reads.clear()
    await settled()
    for _ in range(20):
        upstream.step()
        await settled()
    second.reads.set()
    await settled()
    assert [first.got, second.got] == [FRAMES] * 2
    assert upstream.calls == 1


async def test_room_for_frames_is_given_back_however_a_stream_ends() -> None:
    upstream = Upstream()
    attempts = attempts_at(upstream, frames_bytes=FRAME_RESERVATION_BYTES)
    for leaves in (False, True, False):
        client = Client(attempts, asked(retry=False))
        upstream.step()
        await settled()
        upstream.step()
        await settled()
        assert attempts.free_frames_bytes == 0
        if leaves:
            client.leave()
        for _ in range(20):
            upstream.step()
            await settled()
        upstream._steps = asyncio.Semaphore(0)
        assert attempts.free_frames_bytes == FRAME_RESERVATION_BYTES
