"""Medians over the rounds, ratios to the floor of the same run, tables and the JSON file."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.benchmarks.processes import ROOT
from tests.benchmarks.scenarios import BURST_CHUNKS, HISTORIES, PACED_CHUNKS, PACED_MILLISECONDS, TURNS

Figures = dict[str, float]
Rounds = Mapping[str, Sequence[Mapping[str, Any]]]
"""For each target what was measured in each round."""

DIRECT: Final = "direct"
PARTS: Final = ("first", "later")
STARTING: Final = ("start_seconds", "start_cpu_seconds", "idle_mb", "loaded_mb")
TARGET_JSON_RATIO: Final = {"gateway sqlite": 2.5, "gateway postgres": 5.0}
TARGET_ADDED_P50_MS, TARGET_ADDED_P99_MS = 0.4, 2.0
TARGET_PACED_US, TARGET_BURST_US, TARGET_2M_MS = 25.0, 5.0, 8.0
TARGET_FIRST_BYTE_RATIO: Final = 5.0
TARGET_START_SECONDS, TARGET_IDLE_MB = 1.0, 100.0
PACKAGES: Final = ("aiohttp", "fastapi", "httptools", "orjson", "uvicorn", "uvloop", "tiktoken", "toktok-rs", "asyncpg")


def figures(rounds: Rounds, floor: str) -> dict[str, Figures]:
    """The figures of each target, medians of what each round gave. Ratios and differences are taken within a round, to
    what the `floor` and the bare upstream took right then, and their medians after that."""
    by_round = {name: [_figures_of(measured) for measured in taken] for name, taken in rounds.items()}
    for taken in by_round.values():
        for figure in ("json_us", "paced_us", "history_2m_ms", "first_byte_p99_ms"):
            for one, base in _side_by_side(taken, by_round.get(floor, []), figure):
                one[f"{figure}_ratio"] = one[figure] / base[figure]
        for percentile in ("p50", "p99"):
            latency = f"json_c1_{percentile}_ms"
            for one, direct in _side_by_side(taken, by_round.get(DIRECT, []), latency):
                one[f"added_{percentile}_ms"] = one[latency] - direct[latency]
    summary = {name: _medians(taken) for name, taken in by_round.items()}
    for name, taken in by_round.items():
        ratios = [one["json_us_ratio"] for one in taken if "json_us_ratio" in one]
        if len(ratios) > 1:
            summary[name]["json_spread"] = (max(ratios) - min(ratios)) / statistics.median(ratios)
    return {name: found for name, found in summary.items() if found}


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    processor = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.partition(":")[2].strip()
            break
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "-"
    revision = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": processor,
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory.split()[1]) / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": versions,
        "revision": revision.stdout.strip() or None,
        "load_average": os.getloadavg(),
    }


def told(facts: Mapping[str, Any]) -> str:
    """The facts of a machine in two lines."""
    load = ", ".join(f"{one:.2f}" for one in facts["load_average"])
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    return (
        f"{facts['at']}, revision {facts['revision']}: {facts['processor']}, {facts['cores']} cores, "
        f"{facts['memory_gib']} GiB, Linux {facts['kernel']}, load {load}\nPython {facts['python']}, {packages}"
    )


def show(console: Console, summary: Mapping[str, Figures]) -> None:
    """Print the tables, the targets beside them."""
    shown = {name: found for name, found in summary.items() if name != DIRECT}
    plain = Table(title="One question of 1 KB, whole answer of 1 KB", title_justify="left")
    _columns(plain, "", "CPU µs, c=32", "× floor", "CPU µs, c=1", "requests/s", "added p50 ms", "p99 ms", "spread")
    streams = Table(title=f"Streams, c=8: CPU µs a chunk ({PACED_MILLISECONDS} ms apart; {BURST_CHUNKS} at once)")
    _columns(streams, "", "paced", "× floor", "burst", "stream of one chunk")
    first_bytes = Table(title="Streams of one chunk, c=8: ms to the first byte", title_justify="left")
    _columns(first_bytes, "", "p50", "p99", "× floor", "longest")
    history = Table(title=f"Histories re-sent each turn, c=2: CPU ms of a first turn / a later one / mean of {TURNS}")
    _columns(history, "", *HISTORIES, "2m mean", "× floor")
    resources = Table(title="Resources", title_justify="left")
    _columns(resources, "", "start s", "of it CPU s", "idle MB", "after load MB", "database µs a question")
    for name, f in shown.items():
        plain.add_row(
            name,
            _judged(f, "json_us", "{:,.0f}"),
            _judged(f, "json_us_ratio", "{:.2f}", TARGET_JSON_RATIO.get(name)),
            *(_judged(f, key, "{:,.0f}") for key in ("json_c1_us", "json_rps")),
            _judged(f, "added_p50_ms", "{:.2f}", TARGET_ADDED_P50_MS),
            _judged(f, "added_p99_ms", "{:.2f}", TARGET_ADDED_P99_MS),
            _judged(f, "json_spread", "{:.0%}"),
        )
        streams.add_row(
            name,
            _judged(f, "paced_us", "{:.1f}", TARGET_PACED_US),
            _judged(f, "paced_us_ratio", "{:.2f}"),
            _judged(f, "burst_us", "{:.2f}", TARGET_BURST_US),
            _judged(f, "one_chunk_us", "{:,.0f}"),
        )
        first_bytes.add_row(
            name,
            *(_judged(f, f"first_byte_{percentile}_ms", "{:.1f}") for percentile in ("p50", "p99")),
            _judged(f, "first_byte_p99_ms_ratio", "{:.1f}", TARGET_FIRST_BYTE_RATIO),
            _judged(f, "first_byte_max_ms", "{:.1f}"),
        )
        history.add_row(
            name,
            *(" / ".join(_history(f, size, part) for part in PARTS) for size in HISTORIES),
            _judged(f, "history_2m_ms", "{:,.1f}"),
            _judged(f, "history_2m_ms_ratio", "{:.1f}"),
        )
        resources.add_row(
            name,
            _judged(f, "start_seconds", "{:.2f}", TARGET_START_SECONDS),
            _judged(f, "start_cpu_seconds", "{:.2f}"),
            _judged(f, "idle_mb", "{:,.0f}", TARGET_IDLE_MB),
            *(_judged(f, key, "{:,.0f}") for key in ("loaded_mb", "database_us")),
        )
    for table in (plain, streams, first_bytes, history, resources):
        if any(_has_figures(table)):
            console.print(table)
    sqlite, postgres = TARGET_JSON_RATIO.values()
    console.print(
        f"Targets: a question ≤ {sqlite:g} × floor on SQLite, {postgres:g} × on PostgreSQL, adding "
        f"{TARGET_ADDED_P50_MS:g} ms at p50 and {TARGET_ADDED_P99_MS:g} at p99 · a chunk ≤ {TARGET_PACED_US:g} µs "
        f"paced, {TARGET_BURST_US:g} in bursts · first byte at p99 ≤ "
        f"{TARGET_FIRST_BYTE_RATIO:g} × floor · a later turn of 2 MB ≤ {TARGET_2M_MS:g} ms · start ≤ "
        f"{TARGET_START_SECONDS:g} s, at rest ≤ {TARGET_IDLE_MB:g} MB. CPU time and ratios of one run can be compared; "
        "latencies are noise on a busy machine."
    )


def _history(found: Figures, size: str, part: str) -> str:
    target = TARGET_2M_MS if (size, part) == ("2m", "later") else None
    return _judged(found, f"history_{size}_{part}_ms", "{:,.2f}", target)


def _figures_of(measured: Mapping[str, Any]) -> Figures:
    """The numbers of one round that are worth a median."""
    found: Figures = {name: measured[name] for name in STARTING if name in measured}
    if "json_c32" in measured:
        found["json_us"] = measured["json_c32"]["cpu_us"]
        found["json_rps"] = measured["json_c32"]["requests_per_second"]
        if "database_cpu_us" in measured["json_c32"]:
            found["database_us"] = measured["json_c32"]["database_cpu_us"]
    if "json_c1" in measured:
        one = measured["json_c1"]
        found |= {f"json_c1_{name}_ms": value for name, value in one["latency_ms"].items()}
        if "cpu_us" in one:
            found["json_c1_us"] = one["cpu_us"]
    if "one_chunk" in measured:
        short = found["one_chunk_us"] = measured["one_chunk"]["cpu_us"]
        found |= {f"first_byte_{name}_ms": value for name, value in measured["one_chunk"]["first_byte_ms"].items()}
        for name, chunks in (("paced", PACED_CHUNKS), ("burst", BURST_CHUNKS)):
            if name in measured:
                found[f"{name}_us"] = (measured[name]["cpu_us"] - short) / (chunks - 1)
    for size in HISTORIES:
        if f"history_{size}_us" in measured:
            found[f"history_{size}_ms"] = measured[f"history_{size}_us"] / 1000
            for part in PARTS:
                found[f"history_{size}_{part}_ms"] = measured[f"history_{size}_{part}"]["cpu_us"] / 1000
    return found


def _side_by_side(taken: Sequence[Figures], others: Sequence[Figures], figure: str) -> list[tuple[Figures, Figures]]:
    """Those rounds in which both have a figure, counted from the last: only some have one before the first round."""
    pairs = zip(reversed(taken), reversed(others), strict=False)
    return [(one, other) for one, other in pairs if figure in one and other.get(figure, 0) > 0]


def _medians(taken: Sequence[Figures]) -> Figures:
    names = {name: None for one in taken for name in one}
    return {name: statistics.median(one[name] for one in taken if name in one) for name in names}


def _columns(table: Table, first: str, *others: str) -> None:
    table.title_justify = "left"
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")


def _judged(found: Figures, name: str, form: str, target: float | None = None) -> str:
    """A figure as it is shown: green within its target, red beyond it."""
    if name not in found:
        return "–"
    shown = form.format(found[name])
    if target is None:
        return shown
    return f"[green]{shown}[/]" if found[name] <= target else f"[red]{shown}[/]"


def _has_figures(table: Table) -> list[bool]:
    return [str(cell).strip("–/ ") != "" for column in table.columns[1:] for cell in column.cells]
