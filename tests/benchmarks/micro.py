"""What the parts cost by themselves: `python -m tests.benchmarks.micro [--only WORD]`.

Planning, counting tokens, recognising a history, reading a stream. Each figure is the best of several runs: noise only
ever adds.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final
from unittest import mock

import orjson
from fastapi import FastAPI
from prometheus_client import values
from rich.console import Console
from rich.table import Table
from starlette.types import Receive, Scope, Send

from app.api.edge.header_checks import HeaderCheckMiddleware, HostRules
from app.api.edge.request_telemetry import RequestTelemetry
from app.api.edge.unknown_paths import CHAT_PATH
from app.api.model_calls import build_model_call_routes
from app.context.count.token_counter import TokenCounter
from app.context.count.tokenizers import TiktokenTokenizer, load_tokenizer
from app.context.plan.budget import compute_budget
from app.context.plan.outline import Outline
from app.context.plan.planner import plan_view
from app.context.plan.policy import ContextPolicy
from app.conversation.conversation_types import Summary
from app.conversation.identity import compute_links_after_messages, compute_prefix_digests, compute_start_position
from app.dialects.body.message import ChatMessage
from app.dialects.chat.stream_decoder import ChatStreamDecoder
from app.dialects.sse import DONE_DATA, SseDecoder
from app.dialects.usage import TokenUsage
from app.observability.metric_families import REQUEST_SECONDS, REQUESTS
from app.observability.metrics import Metrics, TurnFacts
from app.observability.request_record import EndedRequest, begin_request_record, record_caller, record_parsed_request
from app.observability.tracing import Tracing
from app.observability.worker_metric_files import FOLDER_VARIABLE
from app.store.contract.requests import RequestQuery
from app.store.contract.store import Store
from app.store.measured_store import WriteHealth, measure_store
from app.store.request_history import RequestHistory
from app.upstream.provider_contract import ModelDeployment, TokenPrice
from app.upstream.routing.prices import compute_call_cost_usd
from tests.benchmarks.messages import History, words
from tests.benchmarks.processes import ROOT
from tests.benchmarks.telling import CHUNKS as CHUNKS_OF_STREAM
from tests.benchmarks.telling import costs
from tests.benchmarks.upstream import stream_frames
from tests.context.planned_conversation import assistant, chunk_of, log_of, user
from tests.support.memory_store import MemoryStore
from tests.upstream.scripted_provider import ScriptedProvider

RUNS: Final = 5
LEAST_SECONDS: Final = 0.02
MEGABYTE: Final = 1_000_000
LOG_MESSAGES: Final = 10_000
CHUNKS: Final = 100
EVENTS: Final = 2_000
OPERATIONS: Final = 10_000
TURN_INCREMENTS: Final = 20
TURN_OBSERVATIONS: Final = 8
"""How many counters and gauges a turn that fits adds to, over SQLite with a priced model, and how many histograms."""
ANSWER_SECONDS: Final = 0.4
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to time. `amount` is how many of `unit` a call handles."""

    group: str
    name: str
    unit: str
    amount: float
    call: Callable[[], object]

    @property
    def microseconds(self) -> float:
        return best_seconds(self.call) / self.amount * 1e6


@dataclass(frozen=True, slots=True)
class Known:
    """A figure that is measured otherwise: microseconds, or function calls where the unit says so."""

    group: str
    name: str
    unit: str
    microseconds: float


def best_seconds(call: Callable[[], object]) -> float:
    """Seconds of one call: the best of `RUNS`, each long enough for the clock."""
    begun = time.perf_counter()
    call()
    repeats = max(1, int(LEAST_SECONDS / max(1e-7, time.perf_counter() - begun)))
    taken = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        for _ in range(repeats):
            call()
        taken.append((time.perf_counter() - begun) / repeats)
    return min(taken)


def planning() -> Iterator[Case]:
    """A log of 10,000 messages: untouched, behind chunks, and trimmed from nothing."""
    count = TokenCounter(load_tokenizer("o200k_base"))
    text = words(400, seed=1)
    bodies = [user(f"{number} {text}") if number % 2 == 0 else assistant(text) for number in range(LOG_MESSAGES)]
    log = log_of([*bodies, user(text)])
    total = log[-1].tokens_total
    policy = ContextPolicy()

    def planned(window: int, chunks: Sequence[Summary] = (), *, loaded: bool) -> Callable[[], object]:
        start = chunks[-1].to_seq if chunks else 0
        outline = Outline(
            instructions_tokens=200,
            log_tokens=total,
            next_seq=len(log),
            summaries=tuple(chunks),
            tail=log[start:] if loaded else None,
            new_from_seq=len(log) - 1,
        )
        budget = compute_budget(policy, window=window, requested_output=512, calibration_ratio=1.0)
        return lambda: plan_view(outline, budget, policy, counter=count, summarizer_input_tokens=window // 2)

    step = LOG_MESSAGES // CHUNKS
    chunks = [
        chunk_of(end, from_seq=end - step, tokens_total=log[end - 1].tokens_total, text=text)
        for end in range(step, LOG_MESSAGES - step + 1, step)
    ]
    wide, narrow = 2 * total, max(32_000, total // 20)
    yield Case("planning", "everything fits", "plan", 1, planned(wide, loaded=False))
    yield Case("planning", f"behind {len(chunks)} chunks", "plan", 1, planned(narrow, chunks, loaded=True))
    yield Case("planning", "first contact, trimmed and zoned", "plan", 1, planned(narrow, loaded=True))


def counting() -> Iterator[Case]:
    """A megabyte of each kind of text, with the fastest tokenizer there is and with the reference."""
    fastest = load_tokenizer("o200k_base")
    reference = TiktokenTokenizer("o200k_base")
    tokenizers = [fastest] if isinstance(fastest, TiktokenTokenizer) else [fastest, reference]
    noise = random.Random(1)
    texts = {
        "prose": words(MEGABYTE, seed=1),
        "JSON": orjson.dumps([{"id": i, "name": words(20, seed=i), "ok": i % 2 == 0} for i in range(12_000)]).decode(),
        "base64": base64.b64encode(noise.randbytes(MEGABYTE * 3 // 4)).decode(),
        "Chinese": "数据上下文模型的窗口很窄所以要压缩" * (MEGABYTE // 51),
        "emoji": "😀" * (MEGABYTE // 4),
        "one letter": "a" * MEGABYTE,
        "spaces": " " * MEGABYTE,
        "line breaks": "\n" * MEGABYTE,
        "special tokens": "<|endoftext|>" * (MEGABYTE // 13),
    }
    for tokenizer in tokenizers:
        group = "tokens" if tokenizer is fastest else "tiktoken"
        for name, text in texts.items():
            yield Case(group, name, "MB", len(text.encode()) / MEGABYTE, partial(tokenizer.count, text))
        yield Case(group, "a text of 200 characters", "text", 1, partial(tokenizer.count, words(200, seed=9)))


def recognising() -> Iterator[Case]:
    """The messages of a 2 MB history, decoded and hashed, and the fast path over the same bytes."""
    body = orjson.loads(History(model="m", size_bytes=2 * MEGABYTE, salt=1).body())
    raws = [orjson.dumps(message) for message in body["messages"][1:]]
    start = compute_start_position("tenant")

    def walked() -> object:
        return [position.link for position in compute_links_after_messages([ChatMessage(raw) for raw in raws], start)]

    yield Case("identity", "canonical chain, 2 MB", "message", len(raws), walked)
    yield Case(
        "identity", "raw prefix digests, 2 MB", "message", len(raws), lambda: compute_prefix_digests(raws, "tenant")
    )
    yield Case("identity", "raw prefix digests, 2 MB", "MB", 2, lambda: compute_prefix_digests(raws, "tenant"))


def reading() -> Iterator[Case]:
    """A stream of 2,000 events, as it comes in one piece and in one piece an event."""
    frames = [frame.partition(b"\r\n")[2][:-2] for frame in stream_frames(EVENTS, with_usage=True)]
    whole = b"".join(frames)

    def read(pieces: Sequence[bytes], *, collects: bool) -> object:
        decoder, collector = SseDecoder(), ChatStreamDecoder()
        for piece in pieces:
            for event in decoder.feed(piece):
                if collects and event.data is not None and event.data != DONE_DATA:
                    collector.add_chunk(event.data)
        return collector.build_message()

    yield Case("stream", "decode, one piece", "event", EVENTS, lambda: read([whole], collects=False))
    yield Case("stream", "decode, a piece an event", "event", EVENTS, lambda: read(frames, collects=False))
    yield Case("stream", "decode and collect, a piece an event", "event", EVENTS, lambda: read(frames, collects=True))


def _turns() -> Iterator[Known]:
    """With telemetry as it is by default, without it, and the difference."""
    with_it, without = costs(streams=False)
    for which, cost in (("with it", with_it), ("without", without), ("for it", with_it.beyond(without))):
        yield Known("telling", f"a turn, {which}", "turn", cost.seconds * 1e6)
        yield Known("telling", f"a turn, {which}", "turn: calls", cost.calls)
    streamed, unwatched = costs(streams=True)
    calls = streamed.beyond(unwatched).beyond(with_it.beyond(without)).calls
    yield Known("telling", "a piece of a stream, for it", "piece: calls", calls / CHUNKS_OF_STREAM)


async def _stream(scope: Scope, receive: Receive, send: Send) -> None:
    """An ASGI application."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for _ in range(OPERATIONS):
        await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _sent(message: object) -> None:
    return None


def telling() -> Iterator[Case | Known]:
    """What whole turns and pieces of streams pay for being counted and told of, some parts of that by themselves, and
    what a reading of everything costs."""
    metrics, deployment = Metrics(), ModelDeployment(ScriptedProvider("p"), "gpt-4o", price=TokenPrice(2.0, 1.0, 8.0))
    facts = TurnFacts("p", "gpt-4o", "additive", "full", 1000, 2000, 0.5, 990, 10, 100, 0.01, 0.01)
    idle = MemoryStore(clock=lambda: NOW)
    store = measure_store(idle, metrics, WriteHealth(lambda: 0.0))

    def counted() -> None:
        compute_call_cost_usd(deployment, TokenUsage(prompt_tokens=990, cached_tokens=10, output_tokens=100))
        metrics.count_turn(facts)

    async def ask(asked: Store) -> None:
        for _ in range(OPERATIONS):
            await asked.check()

    yield from _turns()
    yield Case("telling", "the facts of a turn", "turn", 1, counted)
    for name, asked in (("measured", store), ("not measured", idle)):
        run = partial(lambda one: asyncio.run(ask(one)), asked)
        yield Case("telling", f"an operation of a store, {name}", "operation", OPERATIONS, run)
    application = FastAPI()
    application.router.routes.insert(0, build_model_call_routes(_stream, _stream, _stream, _stream)[0])
    application.add_middleware(HeaderCheckMiddleware, hosts=HostRules())
    watched = RequestTelemetry(application, metrics, Tracing(), seconds=time.monotonic, logs_requests=False)
    scope = {"type": "http", "method": "POST", "path": CHAT_PATH, "headers": []}
    for name, app in (("watched", watched), ("not watched", application)):
        stream = partial(lambda one: asyncio.run(one(scope, None, _sent)), app)
        yield Case("telling", f"a piece of a stream, {name}", "piece", OPERATIONS, stream)
    yield Case("telling", "/metrics", "reading", 1, lambda: metrics.render(""))
    yield from _recent_requests(facts)


def _recent_requests(turn: TurnFacts) -> Iterator[Case]:
    """What the list of recent requests adds to a turn."""
    numbers = itertools.count()
    kept = RequestHistory(1000, None)

    def record() -> None:
        running = begin_request_record(time.monotonic, time.time())
        record_caller("0" * 32, None, None)
        record_parsed_request("gpt-4o", stream=False)
        running.facts.conversation_id, running.facts.context_status = "conv_" + "0" * 32, "full"
        for name in ("resolve", "recall", "plan", "store"):
            running.end_step(running.begin_step(name))
        running.begin_step("attempt", {"provider": "p", "model": "gpt-4o", "status": 200, "error": None}).end(
            time.monotonic()
        )
        times = (running.started_unix, running.started_at, 0.5, 0.4)
        ended = (*times, running.facts.tenant, None, running.facts, turn, running.steps)
        kept.add(EndedRequest(f"req_{next(numbers):032}", CHAT_PATH, 200, True, *ended))

    yield Case("telling", "a recent request", "turn", 1, record)
    read = partial(kept.list_requests, RequestQuery(limit=1000))
    yield Case("telling", "the list of 1,000", "reading", 1, lambda: asyncio.run(read()))


def numbers() -> Iterator[Case]:
    """What the numbers of one turn cost, whose series are looked up before (decision 23)."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {FOLDER_VARIABLE: folder}):
        for processes, shared in (("one process", None), ("several processes", Path(folder))):
            with mock.patch.object(values, "ValueClass", values.MutexValue):
                metrics = Metrics(shared)
                counter = metrics.counter_series(REQUESTS, "/v1/chat/completions", "200")
                histogram = metrics.histogram_series(REQUEST_SECONDS, "/v1/chat/completions", "false")
                yield Case("numbers", processes, "turn", 1, partial(_count_turn, counter.inc, histogram.observe))


def _count_turn(add: Callable[[], None], observe: Callable[[float], None]) -> None:
    for _ in range(TURN_INCREMENTS):
        add()
    for _ in range(TURN_OBSERVATIONS):
        observe(ANSWER_SECONDS)


GROUPS: Final[dict[str, Callable[[], Iterator[Case | Known]]]] = {
    "planning": planning,
    "tokens": counting,
    "identity": recognising,
    "stream": reading,
    "telling": telling,
    "numbers": numbers,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.micro", description=__doc__)
    parser.add_argument("--only", choices=GROUPS, help="one group")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "micro.json", help="the JSON file")
    options = parser.parse_args()
    table = Table("", "", "µs", "per", title="Parts by themselves", title_justify="left")
    table.columns[2].justify = "right"
    found = []
    for group in [options.only] if options.only else GROUPS:
        for case in GROUPS[group]():
            microseconds = case.microseconds
            found.append({"group": case.group, "name": case.name, "per": case.unit, "us": microseconds})
            table.add_row(case.group, case.name, f"{microseconds:,.2f}", case.unit)
    Console().print(table)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
