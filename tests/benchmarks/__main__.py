"""Measure what the gateway costs beside bare proxies: `python -m tests.benchmarks [--quick] [--only …]`.

Exit status 0 unless something failed to run: a benchmark is no test, its targets are printed and nothing more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from tests.benchmarks import report
from tests.benchmarks.processes import ROOT, BenchmarkFailed, Cores, Process
from tests.benchmarks.scenarios import SCENARIOS, Bench, direct, measure, warmed
from tests.benchmarks.targets import PASS, TARGETS, Running, Target, free_port, is_available, running

QUICK_ROUNDS, QUICK_SCALE = 2, 0.5
FULL_ROUNDS = 5
TABLE_COLUMNS = 120
Results = dict[str, list[dict[str, Any]]]


def main() -> int:
    options = _options()
    console = Console(record=True)
    if not console.is_terminal:
        console = Console(width=TABLE_COLUMNS, record=True)
    if sys.platform != "linux":
        console.print("CPU time is read from Linux's /proc; there is none here.")
        return 1
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else FULL_ROUNDS)
    targets = [target for target in TARGETS if _is_chosen(target, options.only)]
    if not targets:
        console.print(f"--only names none of {', '.join(target.name for target in TARGETS)}")
        return 2
    facts = report.machine()
    console.print(report.told(facts))
    results, failures = _run(
        console, targets, tuple(options.scenarios), rounds, QUICK_SCALE if options.quick else 1.0, rests=options.rests
    )
    summary = report.figures(results, floor=PASS.name)
    report.show(console, summary)
    for failure in failures:
        console.print(f"FAILED {failure}", markup=False, style="red")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    written = {"machine": facts, "summary": summary, "rounds": results, "failures": failures}
    options.out.write_bytes(orjson.dumps(written, option=orjson.OPT_INDENT_2))
    readable = options.out.with_suffix(".txt")
    readable.write_text(console.export_text())
    console.print(f"written to {options.out} and {readable}")
    return 1 if failures else 0


def _run(
    console: Console, targets: list[Target], scenarios: tuple[str, ...], rounds: int, scale: float, *, rests: bool
) -> tuple[Results, list[str]]:
    """All targets are up all the time and take turns, scenario by scenario, in reverse order in every second round: a
    busy neighbour hits all of them alike. One that fails in a scenario is left out of it from then on."""
    results: Results = {report.DIRECT: [], **{target.name: [] for target in targets}}
    failures: dict[str, str] = {}
    cores = Cores.of_this_machine()
    with ExitStack() as stack, console.status("starting") as status:
        for core in () if rests else (cores.measured, cores.driving):
            if core is not None:
                stack.enter_context(Process(["tests.benchmarks.spin"], core=core))
        port = free_port()
        upstream = stack.enter_context(Process(["tests.benchmarks.upstream", str(port)], core=cores.driving))
        upstream.read_line()
        load = stack.enter_context(Process(["tests.benchmarks.load"], core=cores.driving))
        load.read_line()
        bench = Bench(load, scale)
        started: dict[str, Running] = {}
        for target in targets:
            with _noting(failures, target.name):
                started[target.name] = stack.enter_context(running(target, port, cores))
                results[target.name].append(warmed(bench, started[target.name]))
        for number in range(rounds):
            results[report.DIRECT].append(direct(bench, port))
            for taken in results.values():
                taken.append({})
            for scenario in scenarios:
                for name in [*started][:: -1 if number % 2 else 1]:
                    place = f"{name}, {scenario}"
                    if place in failures:
                        continue
                    status.update(f"round {number + 1} of {rounds}, {scenario}: {name}")
                    so_far = results[name][-1]
                    with _noting(failures, place):
                        so_far |= measure(bench, started[name], scenario, so_far)
    return results, [f"{name}: {failure}" for name, failure in failures.items()]


@contextmanager
def _noting(failures: dict[str, str], name: str) -> Iterator[None]:
    try:
        yield
    except BenchmarkFailed as failure:
        failures[name] = str(failure)


def _is_chosen(target: Target, only: list[str]) -> bool:
    if not only:
        return is_available(target)
    return any(word in target.name.split() or word == target.name for word in only)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few short rounds")
    names = ", ".join(repr(target.name) for target in TARGETS)
    parser.add_argument("--only", type=_words, default=[], help=f"of {names}, or words of these; commas between")
    parser.add_argument("--scenarios", type=_scenarios, default=list(SCENARIOS), help=", ".join(SCENARIOS))
    parser.add_argument("--rests", action="store_true", help="let cores sleep: for latencies, which spinning disturbs")
    parser.add_argument("--rounds", type=int, help=f"{FULL_ROUNDS} unless --quick")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench.json", help="the JSON file")
    return parser.parse_args()


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _scenarios(text: str) -> list[str]:
    words = _words(text)
    unknown = [word for word in words if word not in SCENARIOS]
    if unknown or not words:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(SCENARIOS)}")
    return words


if __name__ == "__main__":
    sys.exit(main())
