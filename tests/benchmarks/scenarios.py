"""What is sent to a target, and what it cost: CPU time of its whole process tree, background work included."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import orjson

from tests.benchmarks.load import Job
from tests.benchmarks.processes import BenchmarkFailed, Cpu, Process, resident_mb, settled
from tests.benchmarks.targets import Running

SALTS_PER_JOB: Final = 100_000
MOST_SALTS: Final = 100_000_000
"""They are written with eight digits."""
LONGEST_SECONDS: Final = 2.0
PACED_CHUNKS, PACED_MILLISECONDS, BURST_CHUNKS = 100, 5, 200
TURNS: Final = 10
"""Of each re-sent conversation: the first, which the target has never seen, and those that continue it."""
HISTORIES: Final = {"1k": (1_000, 60), "50k": (50_000, 12), "500k": (500_000, 4), "2m": (2_000_000, 2)}
"""Bytes of the first request, and how many conversations."""
WARMING_BYTES: Final = 200_000
"""Of a text that is long enough to have loaded whatever is loaded with the first one that is."""
SCENARIOS: Final = ("json", "paced", "burst", "history")

Measured = dict[str, Any]


@dataclass
class Bench:
    """The load generator, and how much of everything is sent. `scale` shortens it all alike."""

    load: Process
    scale: float
    jobs: int = 0

    def send(self, job: Job) -> Measured:
        """
        Raises:
            BenchmarkFailed: an answer was not what it must be.
        """
        job.salt = self.jobs * SALTS_PER_JOB
        self.jobs += 1
        if self.jobs * SALTS_PER_JOB > MOST_SALTS:
            raise BenchmarkFailed("one run has no more questions of its own: measure fewer rounds or scenarios")
        self.load.send_line(msgspec.json.encode(job))
        result: Measured = orjson.loads(self.load.read_line())
        if result["faults"] or not result["requests"]:
            raise BenchmarkFailed(f"{result['faults']} connections failed: {result['first_fault']}")
        return result

    def forget(self) -> None:
        """Let go of the conversations that were kept."""
        self.load.send_line(b"null")

    def seconds(self, full: float) -> float:
        return max(0.3, full * self.scale)

    def cost(self, running: Running, job: Job) -> Measured:
        """Send, and read what it took."""
        job.headers = dict(running.headers)
        before = settled(running.process.pid)
        database_before = Cpu.of(running.database_pid) if running.database_pid else None
        result = self.send(job)
        spent = settled(running.process.pid).since(before)
        result["cpu_us"] = spent / result["requests"] * 1e6
        if running.database_pid and database_before:
            result["database_cpu_us"] = Cpu.of(running.database_pid).since(database_before) / result["requests"] * 1e6
        return result


def direct(bench: Bench, port: int) -> Measured:
    """The upstream without anything before it, for latency."""
    return {"json_c1": bench.send(Job(port, 1, 0, seconds=bench.seconds(0.5)))}


def warmed(bench: Bench, running: Running) -> Measured:
    """What a start takes, and memory before and after the first second of load."""
    time.sleep(0.5)
    idle_mb = resident_mb(running.process.pid)
    headers = dict(running.headers)
    bench.send(Job(running.port, 1, 0, key="warming", conversations=1, size_bytes=WARMING_BYTES, headers=headers))
    bench.forget()
    bench.send(Job(running.port, 8, 0, seconds=bench.seconds(1), headers=headers))
    return {
        "start_seconds": running.start_seconds,
        "start_cpu_seconds": running.start_cpu_seconds,
        "idle_mb": idle_mb,
    }


def measure(bench: Bench, running: Running, scenario: str, so_far: Measured) -> Measured:
    """One scenario, once.

    Args:
        so_far: what was measured on this target in this round.

    Returns:
        For each measurement what the load generator saw, and `cpu_us` per request; memory afterwards.
    """
    measured = _MEASURES[scenario](bench, running, so_far)
    running.process.check()
    return {**measured, "loaded_mb": resident_mb(running.process.pid)}


def _json(bench: Bench, running: Running, _: Measured) -> Measured:
    many = bench.cost(running, Job(running.port, 32, 0, seconds=bench.seconds(1)))
    return {"json_c32": many, "json_c1": bench.cost(running, Job(running.port, 1, 0, seconds=bench.seconds(0.7)))}


def _paced(bench: Bench, running: Running, so_far: Measured) -> Measured:
    model = f"scripted-{PACED_CHUNKS}-{PACED_MILLISECONDS}"
    job = Job(running.port, 8, 0, model, stream=True, chunks=PACED_CHUNKS, seconds=bench.seconds(LONGEST_SECONDS))
    return {**_one_chunk(bench, running, so_far), "paced": bench.cost(running, job)}


def _burst(bench: Bench, running: Running, so_far: Measured) -> Measured:
    model = f"scripted-{BURST_CHUNKS}-0"
    job = Job(running.port, 8, 0, model, stream=True, chunks=BURST_CHUNKS, seconds=bench.seconds(1))
    return {**_one_chunk(bench, running, so_far), "burst": bench.cost(running, job)}


def _one_chunk(bench: Bench, running: Running, so_far: Measured) -> Measured:
    """A stream as short as can be: what is not the chunks' doing. Once a round is enough."""
    if "one_chunk" in so_far:
        return {}
    job = Job(running.port, 8, 0, "scripted-1-0", stream=True, seconds=bench.seconds(0.7))
    return {"one_chunk": bench.cost(running, job)}


def _history(bench: Bench, running: Running, _: Measured) -> Measured:
    measured: Measured = {}
    for size, (size_bytes, full) in HISTORIES.items():
        conversations = max(2, round(full * min(1.0, bench.scale)))
        key = f"{size} of {bench.jobs}"
        job = Job(running.port, 2, 0, key=key, conversations=conversations, size_bytes=size_bytes)
        first = bench.cost(running, job)
        job.turns = TURNS - 1
        later = bench.cost(running, job)
        mean = (first["cpu_us"] + (TURNS - 1) * later["cpu_us"]) / TURNS
        measured |= {f"history_{size}_first": first, f"history_{size}_later": later, f"history_{size}_us": mean}
    bench.forget()
    return measured


_MEASURES: Final[Mapping[str, Callable[[Bench, Running, Measured], Measured]]] = {
    "json": _json,
    "paced": _paced,
    "burst": _burst,
    "history": _history,
}
