"""What a request leaves in memory when it is refused, fails or is cancelled: its body is freed with the answer.

The garbage collector is off, so only reference counting frees memory. A reference cycle, such as an exception whose
traceback leads back to whoever keeps the exception, holds the whole request and fails the test of its case.
"""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.benchmarks.refusals import (
    BEGUN_STREAM,
    FINE,
    HALF,
    REFUSAL,
    RUNS,
    STREAM_HEAD,
    answer,
    chat,
    measure,
    refusing,
    send,
)
from tests.live import gateway

BODY_BYTES: Final = 1_000_000
REQUESTS: Final = 3
TEXT: Final = "word " * (BODY_BYTES // 5)
RESPONSES_PATH: Final = "/v1/responses"


def respond(size_bytes: int, **fields: Any) -> bytes:
    """The body of a Responses request whose one message is so long."""
    return json.dumps({"model": "m", "input": "word " * (size_bytes // 5), **fields}).encode()


@contextmanager
def uncollected() -> Iterator[None]:
    """Only reference counting frees memory within."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


@dataclass(frozen=True)
class Case:
    """A way in which a request ends without a whole answer.

    Attributes:
        body: what is sent.
        status: of the answer.
        reply: what the upstream answers each call.
        settings: sections of the gateway's configuration.
        options: see `send`.
    """

    status: int
    body: bytes
    reply: bytes = FINE
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_cancelled(self) -> bool:
        return "leave_after" in self.options


def case(status: int, body: bytes, reply: bytes = FINE, settings: Any = None, **options: Any) -> Case:
    return Case(status, body, reply, settings or {}, options)


SETTINGS: Final = {
    "retries": {"base_seconds": 0.01, "breaker_failures": 1000},
}
NOBODY = {"base_url": "http://127.0.0.1:9/v1", "api_key": "sk-nobody"}
UNREACHABLE = {"providers": {"upstream": NOBODY}}
BODY = chat(BODY_BYTES)
STREAMED = chat(BODY_BYTES, stream=True)
NO_MODEL = {"models": {"known": {"provider": "upstream", "context_window": 8192}}}
WIDE = {"models": {"*": {"provider": "upstream", "context_window": 2_000_000}}}
FALLBACK = {
    "models": {
        "m": {"provider": "upstream", "context_window": 2_000_000, "fallbacks": ["n"]},
        "*": {"provider": "upstream", "context_window": 2_000_000},
    },
}
"""Both of them at the upstream."""

CASES = {
    "bad JSON": case(400, BODY[:-1]),
    "invalid JSON encoding": case(400, BODY[:-3] + b"\xff\xff\xff"),
    "no messages": case(400, chat(BODY_BYTES, messages=[], metadata={"a": TEXT})),
    "an invalid message": case(400, chat(BODY_BYTES, messages=[{"role": "user", "content": TEXT}, {"content": 5}])),
    "an invalid parameter": case(400, chat(BODY_BYTES, stream="yes")),
    "an unknown model": case(404, BODY, settings=NO_MODEL),
    "an unknown policy": case(400, BODY, settings=WIDE, headers={"x-context-policy": "none"}),
    "a context too long": case(400, BODY),
    "a body too large": case(413, BODY, settings={"server": {"body_limit_bytes": BODY_BYTES // 2}}, is_chunked=True),
    "a key without rights": case(401, BODY, settings={"auth": {"mode": "keys"}}),
    "an upstream's 400": case(400, BODY, answer(400, REFUSAL), WIDE),
    "an upstream's 500": case(500, BODY, answer(500, REFUSAL), WIDE),
    "an upstream's 429": case(429, BODY, answer(429, REFUSAL), WIDE),
    "an answer that is no answer": case(502, BODY, answer(200, b"<html>"), WIDE),
    "an upstream that breaks off": case(502, BODY, BEGUN_STREAM, WIDE),
    "an unreachable upstream": case(502, BODY, settings={**WIDE, **UNREACHABLE}),
    "a fallback that fails too": case(500, BODY, answer(500, REFUSAL), FALLBACK),
    "a stream refused": case(400, STREAMED, answer(400, REFUSAL), WIDE),
    "a stream refused by all": case(500, STREAMED, answer(500, REFUSAL), FALLBACK),
    "a stream that breaks off": case(200, STREAMED, BEGUN_STREAM, WIDE),
    "a stream that never begins": case(502, STREAMED, STREAM_HEAD, WIDE),
    "a stream cancelled": case(0, STREAMED, BEGUN_STREAM, WIDE, leave_after=HALF),
    "a response too long": case(400, respond(BODY_BYTES), path=RESPONSES_PATH),
    "a response after an unknown one": case(
        400, respond(BODY_BYTES, previous_response_id=f"resp_{'0' * 48}"), path=RESPONSES_PATH
    ),
    "a response refused": case(400, respond(BODY_BYTES), answer(400, REFUSAL), WIDE, path=RESPONSES_PATH),
    "a streamed response refused": case(
        400, respond(BODY_BYTES, stream=True), answer(400, REFUSAL), WIDE, path=RESPONSES_PATH
    ),
    "a streamed response that breaks off": case(
        200, respond(BODY_BYTES, stream=True), BEGUN_STREAM, WIDE, path=RESPONSES_PATH
    ),
    "a streamed response cancelled": case(
        0, respond(BODY_BYTES, stream=True), BEGUN_STREAM, WIDE, path=RESPONSES_PATH, leave_after=HALF
    ),
    "passed through, 400": case(400, BODY, answer(400, REFUSAL), path="/v1/embeddings"),
    "passed through, unreachable": case(502, BODY, settings=UNREACHABLE, path="/v1/embeddings"),
    "passed through, breaks off": case(0, BODY, BEGUN_STREAM, path="/v1/embeddings"),
    "an unknown path": case(404, BODY, path="/nothing/here"),
    "an invalid conversation": case(400, BODY[:-1], path="/v1/conversations"),
    "invalid items": case(400, chat(BODY_BYTES, items=[{"type": "nothing"}]), path="/v1/conversations"),
    "context count, bad": case(400, BODY[:-1], path="/v1/context/count"),
}


@pytest.mark.parametrize("name", CASES)
async def test_the_body_is_freed_with_the_answer(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    async with (
        refusing(case.reply, is_open=case.is_cancelled) as address,
        gateway(
            address, database=f"sqlite+aiosqlite:///{tmp_path}/refusals.db", **{**SETTINGS, **case.settings}
        ) as base_url,
    ):

        async def run() -> None:
            assert await send(base_url, case.body, **case.options) == case.status

        await run()  # what is loaded and made once
        with uncollected():
            await run()
            await asyncio.sleep(0.05)
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(REQUESTS):
                await run()
            kept = BODY_BYTES
            for _ in range(500):  # up to ten seconds, for a loaded machine
                kept = tracemalloc.get_traced_memory()[0] - before
                if kept < BODY_BYTES / 2:
                    break
                await asyncio.sleep(0.02)
    assert kept < BODY_BYTES / 2


async def test_a_process_has_given_back_what_25_refused_requests_of_12_mb_took() -> None:
    run = next(run for run in RUNS if run.size_bytes == 12_000_000)
    growth = await measure(run)
    assert growth.is_bounded, growth
