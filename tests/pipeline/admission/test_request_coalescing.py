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
from app.errors import GatewayError, IdempotencyKeyInUse, UpstreamUnavailable
from app.observability.request_facts import ErrorFacts, RequestFacts, begin_request_facts
from app.pipeline.admission.answer_replay import StoredAnswers
from app.pipeline.admission.request_coalescing import MAX_FRAMES_BYTES, RequestCoalescer
from app.pipeline.admission.shared_attempt import FRAME_RESERVATION_BYTES, AttemptWaiter
from app.pipeline.background_tasks import BackgroundTasks
from app.pipeline.chat_request import Caller, ChatRequest
from app.pipeline.respond.answer_types import Answer, StreamedAnswer, WholeAnswer

FRAMES = [b"data: %d\n\n" % number for number in range(5)] + [DONE_FRAME]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTLING_STEPS = 20


def asked(*, stream: bool = True, retry: bool = True, body: bytes = b"{}", **fields: Any) -> ChatRequest:
    caller = Caller(tenant="t")
    return ChatRequest(
        caller=caller,
        request_id="r",
        body=body,
        raw_fields={},
        raw_messages=[],
        model="m",
        stream=stream,
        is_retry=retry,
        **fields,
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
        self._steps = asyncio.Semaphore(0)

    def step(self) -> None:
        self._steps.release()

    async def answer(self, request: ChatRequest) -> Answer:
        self.calls += 1
        await self._steps.acquire()
        if self.failure is not None:
            raise self.failure
        return StreamedAnswer(self._headers, self._frames(request)) if request.stream else WholeAnswer(b"{}", {})

    async def _frames(self, request: ChatRequest) -> AsyncGenerator[bytes, None]:
        self.opened += 1
        try:
            for frame in FRAMES:
                if frame is DONE_FRAME and request.on_answer is not None:
                    await request.on_answer(None)
                    await asyncio.sleep(self.store_delay_seconds)
                yield frame
                await self._steps.acquire()
                if self.failure is not None:
                    raise self.failure
        finally:
            await asyncio.sleep(0)
            self.closed += 1


class Client:
    """One client and the task that serves it."""

    def __init__(self, attempts: RequestCoalescer, request: ChatRequest) -> None:
        self.got: list[bytes] = []
        self.has_left = False
        self.reads = asyncio.Event()
        self.reads.set()
        self.seat: AttemptWaiter | None = None
        self.facts: RequestFacts | None = None
        self.serving = asyncio.ensure_future(self._serve(attempts, request))

    async def _serve(self, attempts: RequestCoalescer, request: ChatRequest) -> None:
        self.facts = begin_request_facts()
        self.seat = await attempts.join_or_create_attempt(request, lambda: self.has_left)
        answer = await self.seat.wait_for_answer()
        if isinstance(answer, WholeAnswer):
            self.seat.record_delivery()
            self.got.append(answer.body)
            return
        async with aclosing(answer.frames) as frames:
            async for frame in frames:
                await self.reads.wait()
                if not self.has_left:
                    self.got.append(frame)

    def leave(self) -> None:
        self.has_left = True
        if self.seat is not None and not self.serving.done():
            self.seat.disconnect()


async def settled() -> None:
    for _ in range(SETTLING_STEPS):
        await asyncio.sleep(0)


def attempts_at(
    upstream: Upstream,
    clock: Callable[[], float] = lambda: 0.0,
    frames_bytes: int = MAX_FRAMES_BYTES,
    answers: Any = None,
) -> RequestCoalescer:
    keys: Any = None
    return RequestCoalescer(
        pipeline=upstream,
        stored_answers=answers,
        idempotency_keys=keys,
        tasks=BackgroundTasks(),
        clock=clock,
        now=lambda: NOW,
        max_frames_bytes=frames_bytes,
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
    told = [client.serving.exception() or client.got[-1] for client in clients]
    assert [isinstance(one, type(failure)) or b'"error"' in one for one in told] == [True] * 3  # type: ignore[operator]
    assert attempts._running_attempts == {}
    upstream.failure = None
    again = Client(attempts, asked())
    for _ in range(20):
        upstream.step()
        await settled()
    assert again.got == FRAMES
    assert upstream.calls == 2


async def test_a_failure_is_noted_for_each_request_whose_stream_ends_with_it() -> None:
    upstream = Upstream()
    attempts = attempts_at(upstream)
    clients = [Client(attempts, asked()) for _ in range(3)]
    for _ in range(2):
        await settled()
        upstream.step()
    await settled()
    upstream.failure = UpstreamUnavailable("away")
    upstream.step()
    await settled()
    told = [client for client in clients if client.got and b'"error"' in client.got[-1]]
    assert len(told) == 2
    noted = ErrorFacts("upstream_unavailable", "upstream_unavailable", 502)
    assert [client.facts and client.facts.error for client in told] == [noted] * 2
    assert [client.serving.exception() for client in clients if client not in told] == [upstream.failure]


async def test_a_server_that_stops_tells_whoever_has_joined() -> None:
    upstream = Upstream()
    attempts = attempts_at(upstream)
    first, second = Client(attempts, asked()), Client(attempts, asked())
    await settled()
    first.serving.cancel()
    await settled()
    error = second.serving.exception()
    assert isinstance(error, GatewayError)
    assert (error.status, error.retryable) == (503, True)


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

    async def replay_answer(self, request: ChatRequest, conversation_id: str) -> Answer | None:
        self.asked_for.append(conversation_id)
        return WholeAnswer(b"{}", {})


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


@pytest.mark.parametrize(("waited_seconds", "calls"), [(599.0, 1), (601.0, 2)])
async def test_a_first_turn_that_was_lost_behind_us_is_given_again_for_a_while(
    waited_seconds: float, calls: int
) -> None:
    now = [0.0]
    upstream = Upstream()
    attempts = attempts_at(upstream, lambda: now[0])
    Client(attempts, asked(stream=False, retry=False))
    upstream.step()
    await settled()
    now[0] = waited_seconds
    Client(attempts, asked(stream=False))
    await settled()
    assert upstream.calls == calls


async def test_of_two_at_once_nobody_knows_which_was_lost() -> None:
    upstream = Upstream()
    attempts = attempts_at(upstream)
    for _ in range(2):
        Client(attempts, asked(stream=False, retry=False))
    await settled()
    for _ in range(2):
        upstream.step()
    await settled()
    Client(attempts, asked(stream=False))
    await settled()
    assert upstream.calls == 3


async def test_a_new_request_ends_what_was_remembered_of_the_one_before() -> None:
    """It fails, and is retried: the retry is not given the answer of the same question that was asked earlier."""
    upstream = Upstream()
    attempts = attempts_at(upstream)
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
    assert upstream.calls == 3


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
    Client(attempts, asked(store=False, idempotency_key="k"))
    for _ in range(3):
        upstream.step()
        await settled()
    again = Client(attempts, asked(store=False, idempotency_key="k"))
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
        assert not attempts.reserve_frame_bytes(1)
        if leaves:
            client.leave()
        for _ in range(20):
            upstream.step()
            await settled()
        upstream._steps = asyncio.Semaphore(0)
        assert attempts.reserve_frame_bytes(FRAME_RESERVATION_BYTES)
        attempts._frames_bytes = 0
