"""What a second worker brings: `python -m tests.benchmarks.workers [--only sqlite,postgres] [--rounds N]`.

One worker and two, in turns, with the same load. What drives them runs on the same cores, so requests a second
understate a second worker wherever there are not cores to spare; CPU time per request does not, but it is blind to
waiting. Both are printed, with what the driving itself takes and how busy the processors were.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from tests.benchmarks.load import Job
from tests.benchmarks.processes import Cores, Cpu, Process, settled, tree
from tests.benchmarks.scenarios import Bench
from tests.benchmarks.targets import POSTGRES, SQLITE, Running, Target, free_port, running

STORES: Final = {"sqlite": SQLITE, "postgres": POSTGRES}
CONNECTIONS: Final = 64
WARM_SECONDS: Final = 3.0
COLUMNS: Final = (
    "", "CPU µs a question, one", "two", "2 × one / two", "requests/s, one", "two", "two / one", "driving µs",
    "processors busy", "busier worker",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Taken:
    """What a second of load on one gateway came to."""

    cpu_us: float
    driving_us: float
    requests_per_second: float
    busy: float
    """Share of the processors' time, whoever used it."""
    busier: float
    """Share of the worker that did most."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.workers", description=__doc__)
    parser.add_argument("--only", default=",".join(STORES), help="of sqlite, postgres; commas between")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load")
    options = parser.parse_args()
    console = Console(width=160)
    table = Table(title=f"A second worker, c={CONNECTIONS}, questions of 1 KB; medians", title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for name in options.only.split(","):
        table.add_row(name, *_told(_compared(STORES[name], options.rounds, options.seconds)))
    console.print(table)
    return 0


def _compared(target: Target, rounds: int, seconds: float) -> list[tuple[Taken, Taken]]:
    """One worker and two, round by round; in reverse order in every second one."""
    pairs: list[tuple[Taken, Taken]] = []
    with ExitStack() as stack:
        port = free_port()
        upstream = stack.enter_context(Process(["tests.benchmarks.upstream", str(port)], core=None))
        upstream.read_line()
        load = stack.enter_context(Process(["tests.benchmarks.load"], core=None))
        load.read_line()
        bench = Bench(load, 1.0)
        one, two = (stack.enter_context(_warm(replace(target, workers=workers), port, bench)) for workers in (1, 2))
        for number in range(rounds):
            driving = (upstream, load)
            if number % 2:
                second, first = _taken(bench, two, driving, seconds), _taken(bench, one, driving, seconds)
            else:
                first, second = _taken(bench, one, driving, seconds), _taken(bench, two, driving, seconds)
            pairs.append((first, second))
    return pairs


@contextmanager
def _warm(target: Target, port: int, bench: Bench) -> Iterator[Running]:
    with running(target, port, Cores(None, None)) as started:
        bench.send(Job(started.port, CONNECTIONS, 0, seconds=WARM_SECONDS))
        yield started


def _taken(bench: Bench, gateway: Running, driving: tuple[Process, ...], seconds: float) -> Taken:
    database = [gateway.database_pid] if gateway.database_pid else []
    beside = [*(process.pid for process in driving), *database]
    before, beside_before = settled(gateway.process.pid), [Cpu.of(pid) for pid in beside]
    each_before = _of_each(gateway)
    idle_before = _idle_seconds()
    result = bench.send(Job(gateway.port, CONNECTIONS, 0, seconds=seconds))
    idle = _idle_seconds() - idle_before
    spent = settled(gateway.process.pid).since(before)
    each = [now - was for now, was in zip(_of_each(gateway), each_before, strict=True)]
    beside_spent = sum(Cpu.of(pid).since(was) for pid, was in zip(beside, beside_before, strict=True))
    return Taken(
        cpu_us=spent / result["requests"] * 1e6,
        driving_us=beside_spent / result["requests"] * 1e6,
        requests_per_second=result["requests_per_second"],
        busy=1 - idle / (result["wall_seconds"] * (os.cpu_count() or 1)),
        busier=max(each) / sum(each),
    )


def _of_each(gateway: Running) -> list[float]:
    """Seconds of CPU time of each process of a gateway."""
    return [sum(Cpu.of(pid).nanoseconds.values()) / 1e9 for pid in sorted(tree(gateway.process.pid))]


def _idle_seconds() -> float:
    """Of all processors together, since the machine began."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")


def _told(pairs: list[tuple[Taken, Taken]]) -> list[str]:
    def median(values: Iterator[float]) -> float:
        return statistics.median(values)

    return [
        f"{median(one.cpu_us for one, _ in pairs):,.0f}",
        f"{median(two.cpu_us for _, two in pairs):,.0f}",
        f"{median(2 * one.cpu_us / two.cpu_us for one, two in pairs):.2f}",
        f"{median(one.requests_per_second for one, _ in pairs):,.0f}",
        f"{median(two.requests_per_second for _, two in pairs):,.0f}",
        f"{median(two.requests_per_second / one.requests_per_second for one, two in pairs):.2f}",
        f"{median(two.driving_us for _, two in pairs):,.0f}",
        f"{median(two.busy for _, two in pairs):.0%}",
        f"{median(two.busier for _, two in pairs):.0%}",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
