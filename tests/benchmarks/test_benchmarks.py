"""The instrument itself: histories grow as clients grow them, and the load generator notices what is not whole."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import msgspec
import orjson
import pytest

from app.pipeline.turn.background_tasks import wait_until_done
from app.store.sql.rows import encode_time
from tests.benchmarks.load import Job, percentiles, question_numbers, run
from tests.benchmarks.messages import History, question
from tests.benchmarks.processes import BenchmarkFailed, Cpu
from tests.benchmarks.report import figures
from tests.benchmarks.scenarios import LONGEST_SECONDS, MOST_SALTS, SALTS_PER_JOB, Bench
from tests.benchmarks.stations import Profiler
from tests.benchmarks.upstream import Counters, ScriptedModel


async def _served(protocol: Callable[[], asyncio.BaseProtocol], job: Job) -> dict[str, object]:
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    async with server:
        job.port = server.sockets[0].getsockname()[1]
        return await run(job, {})


class Breaking(asyncio.Protocol):
    """Answers everything with the same bytes, then hangs up."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(self._answer)
        self._transport.close()


def test_a_question_differs_only_in_its_number() -> None:
    before, after = question(model="m", stream=True)
    body = orjson.loads(before + b"00000017" + after)
    assert "00000017" in body["messages"][1]["content"]
    assert body["stream"] is True
    assert 900 < len(before + after) < 1_200


@pytest.mark.parametrize("size_bytes", [1_000, 50_000])
def test_a_history_grows_by_the_answer_as_it_came(size_bytes: int) -> None:
    history = History(model="m", size_bytes=size_bytes, salt=3)
    first = orjson.loads(history.body())
    answer = {"role": "assistant", "content": "so it is", "refusal": None}
    history.answered(orjson.dumps({"choices": [{"message": answer}]}))
    later = orjson.loads(history.body())
    assert later["messages"][: len(first["messages"])] == first["messages"]
    assert later["messages"][-2] == answer
    assert later["messages"][-1]["role"] == "user"


def test_a_long_history_has_its_size_answers_and_whole_tool_calls() -> None:
    body = History(model="m", size_bytes=100_000, salt=3).body()
    messages = orjson.loads(body)["messages"]
    called = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert 90_000 < len(body) <= 100_000
    assert called
    assert called == [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert sum(message["role"] == "assistant" for message in messages) > 20


def test_conversations_differ_from_their_first_message_on() -> None:
    first, second = (orjson.loads(History(model="m", size_bytes=5_000, salt=salt).body()) for salt in (1, 2))
    assert first["messages"][1] != second["messages"][1]


@pytest.mark.parametrize("stream", [False, True])
async def test_questions_are_answered_and_counted(stream: bool) -> None:
    counters = Counters()
    job = Job(0, 2, 0, "scripted-5-1", stream=stream, chunks=5, seconds=0.1)
    result = await _served(lambda: ScriptedModel(counters), job)
    assert result["first_fault"] is None
    assert result["requests"] == counters.requests
    assert counters.connections == 2


async def test_each_conversation_is_sent_for_its_turns() -> None:
    counters = Counters()
    job = Job(0, 2, 0, conversations=3, size_bytes=20_000, turns=4)
    result = await _served(lambda: ScriptedModel(counters), job)
    assert result["first_fault"] is None
    assert result["requests"] == counters.requests == 12


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nno",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
        b'HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{"choices":[]}',
        b"",
    ],
    ids=["an error", "cut off", "no answer inside", "nothing"],
)
async def test_an_answer_that_is_not_whole_is_a_fault(answer: bytes) -> None:
    result = await _served(lambda: Breaking(answer), Job(0, 1, 0, seconds=5))
    assert result["requests"] == 0
    assert result["faults"] == 1


async def test_a_stream_without_its_end_is_a_fault() -> None:
    answer = b'HTTP/1.1 200 OK\r\ncontent-length: 32\r\n\r\ndata: {"choices":[{"delta":{}}]}'
    result = await _served(lambda: Breaking(answer), Job(0, 1, 0, stream=True, seconds=5))
    assert result["faults"] == 1


def test_cpu_time_of_work_is_seen() -> None:
    before = Cpu.of(os.getpid())
    sum(range(3_000_000))
    assert Cpu.of(os.getpid()).since(before) > 0.01


def test_threads_that_ended_are_still_charged() -> None:
    before = Cpu({(1, 1): 0, (1, 2): 500_000_000}, ticks=100)
    after = Cpu({(1, 1): 0}, ticks=300)
    assert after.since(before) == pytest.approx(200 / os.sysconf("SC_CLK_TCK"))


def test_ratios_are_taken_within_a_round() -> None:
    def taken(microseconds: float) -> dict[str, Any]:
        return {
            "json_c32": {"cpu_us": microseconds, "requests_per_second": 1.0},
            "one_chunk": {"cpu_us": 1.0, "first_byte_ms": percentiles([1.0] * 98 + [microseconds] * 2)},
        }

    floor: list[dict[str, Any]] = [{"start_seconds": 1.0}, taken(100), taken(200), taken(100)]
    gateway: list[dict[str, Any]] = [{"start_seconds": 2.0}, taken(300), taken(600), taken(500)]
    found = figures({"floor": floor, "gateway": gateway}, "floor")
    assert found["floor"]["json_us"] == 100
    assert found["gateway"]["json_us_ratio"] == pytest.approx(3)
    assert found["gateway"]["first_byte_p99_ms_ratio"] == pytest.approx(3)
    assert (found["gateway"]["first_byte_p50_ms"], found["gateway"]["first_byte_max_ms"]) == (1, 500)
    assert found["gateway"]["start_seconds"] == 2.0


def test_no_two_jobs_of_a_run_share_a_question() -> None:
    sent: list[Job] = []

    class Recording:
        def send_line(self, line: bytes) -> None:
            sent.append(msgspec.json.decode(line, type=Job))

        def read_line(self) -> bytes:
            return b'{"faults": 0, "requests": 1}'

    bench = Bench(Recording(), 1.0)  # type: ignore[arg-type]
    for _ in range(MOST_SALTS // SALTS_PER_JOB):
        bench.send(Job(port=1, connections=1, salt=0, seconds=LONGEST_SECONDS))
    numbers = [question_numbers(job) for job in sent]
    assert all(before.stop <= after.start for before, after in pairwise(numbers))
    assert numbers[-1].stop <= MOST_SALTS
    with pytest.raises(BenchmarkFailed, match="fewer rounds"):
        bench.send(Job(port=1, connections=1, salt=0))


def test_stations_are_calls_in_the_app_and_no_resumed_coroutines() -> None:
    async def encode_and_wait() -> None:
        await asyncio.sleep(0)
        encode_time(datetime(2026, 1, 1, tzinfo=UTC))
        await wait_until_done(asyncio.ensure_future(asyncio.sleep(0)))

    profiler = Profiler()
    with profiler.count() as stations:
        asyncio.run(encode_and_wait())
    names = {code.co_qualname: count for code, count in stations.calls.items() if "<lambda>" not in code.co_qualname}
    assert names == {"encode_time": 1, "wait_until_done": 1}
    assert (stations.file_jumps, stations.room_jumps) == (0, 0)
