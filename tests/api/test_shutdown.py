"""A server that has to stop while requests still run tells their clients, in the form that each answer has by then."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import pytest

from app.api.answer_endpoint import AnswerEndpoint, RequestListLimits
from app.api.chat_request_parser import parse_chat_request
from app.api.edge.auth import Authenticator, AuthRules
from app.api.edge.headers import RequestIdMiddleware
from app.api.edge.request_reader import BodyBudget, BodyLimitMiddleware
from app.pipeline.admission.admission import Admission, AdmissionBounds
from app.pipeline.admission.idempotency_keys import IdempotencyKeys
from app.pipeline.admission.shared_attempts import SharedAttempts
from app.pipeline.resolve.answer_replay import StoredAnswers
from app.pipeline.turn.answer_types import Answer, StreamedAnswer
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.chat_request import ChatRequest
from tests.support.memory_store import MemoryStore

FRAME = b'data: {"choices":[]}\n\n'


class Unfinished:
    """An exchange that never comes to an end; a stream begins."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.let_go = False

    async def answer(self, request: ChatRequest) -> Answer:
        if request.delivery.stream:
            return StreamedAnswer({}, self._frames())
        self.running.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def _frames(self) -> AsyncGenerator[bytes, None]:
        try:
            yield FRAME
            self.running.set()
            await asyncio.Event().wait()
        finally:
            self.let_go = True


def now() -> datetime:
    return datetime.now(UTC)


async def stopped(exchange: Unfinished, *, stream: bool) -> list[dict[str, Any]]:
    """What a client is sent whose request is cancelled by the server."""
    store, tasks = MemoryStore(clock=now), BackgroundTasks()
    answers = StoredAnswers(store, now=now)
    keys = IdempotencyKeys(
        store=store,
        stored_answers=answers,
        tasks=tasks,
        new_holder=lambda: "this one",
        wait_seconds=1,
        clock=time.monotonic,
        sleep=asyncio.sleep,
        random=lambda: 0.5,
    )
    endpoint = AnswerEndpoint(
        SharedAttempts(
            pipeline=exchange,
            stored_answers=answers,
            idempotency_keys=keys,
            admission=Admission(AdmissionBounds(), clock=time.monotonic),
            tasks=tasks,
            clock=time.monotonic,
            now=now,
        ),
        Authenticator(
            store,
            AuthRules(),
            conversations=store,
            now=now,
            seconds=time.monotonic,
            random_bytes=secrets.token_bytes,
        ),
        parse_chat_request,
        RequestListLimits(),
        extra_headers={},
    )
    application = RequestIdMiddleware(BodyLimitMiddleware(endpoint, 10_000, BodyBudget(0, 1000)), lambda: "req_1")
    body = json.dumps({"model": "m", "stream": stream, "messages": [{"role": "user", "content": "Hi"}]}).encode()
    arrived = [{"type": "http.request", "body": body}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if arrived:
            return arrived.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    running = asyncio.ensure_future(
        application({"type": "http", "path": "/v1/chat/completions", "headers": []}, receive, send)
    )
    await exchange.running.wait()
    running.cancel()
    await running
    return sent


async def test_a_whole_answer_that_cannot_be_finished_is_an_error_worth_a_retry() -> None:
    head, body = await stopped(Unfinished(), stream=False)
    headers = dict(head["headers"])
    assert (head["status"], headers[b"retry-after"], headers[b"x-request-id"]) == (503, b"1", b"req_1")
    assert b"x-should-retry" not in headers
    assert json.loads(body["body"])["error"].keys() == {"message", "type", "param", "code"}


async def test_a_stream_that_cannot_be_finished_ends_with_an_error() -> None:
    exchange = Unfinished()
    head, frame, end = await stopped(exchange, stream=True)
    assert (head["status"], frame["body"]) == (200, FRAME)
    error, done, rest = end["body"].split(b"\n\n")
    assert json.loads(error.removeprefix(b"data: ")).keys() == {"error"}
    assert (done, rest) == (b"data: [DONE]", b"")
    assert not end.get("more_body")
    assert exchange.let_go


@pytest.mark.parametrize("stream", [False, True])
async def test_stopping_is_no_fault_of_the_gateways(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    await stopped(Unfinished(), stream=stream)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
