"""Measure Concertina beside other gateways: `python -m tests.benchmarks.compare [--quick] [--only …] [--parts …]`.

It installs them from PyPI and npm, each in an environment of its own below `build/compare`, runs all on this machine
against scripted providers, and writes the tables and charts of `docs/comparison.md`. About forty minutes; nothing else
should run meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import orjson
from rich.console import Console

from app.assembly.telemetry import VERSION
from tests.benchmarks import report
from tests.benchmarks.compare.conversations import CONCERTINA, FACTS_WINDOW, NO_GATEWAY, ask_facts, hold_growth
from tests.benchmarks.compare.install import install_peer
from tests.benchmarks.compare.page import NEWEST_ONLY, list_versions, order_names, update_page
from tests.benchmarks.peers import PEERS
from tests.benchmarks.processes import ROOT, BenchmarkFailed
from tests.benchmarks.quality.monologues import build_talk
from tests.benchmarks.quality.talks import keep_newest

FOLDER: Final = ROOT / "build" / "compare"
RESULTS: Final = FOLDER / "results.json"
PARTS: Final = ("overhead", "growth", "facts")
MEASURED: Final = tuple(name for name, peer in PEERS.items() if peer.registry)
TURNS, QUICK_TURNS = 300, 60
CONVERSATION_SECONDS: Final = 900.0
"""A gateway that has not held a conversation by then is named as not measured."""


def main() -> int:
    options = _parse_options()
    console = Console(width=120)
    logging.getLogger().setLevel(logging.CRITICAL)
    failures: dict[str, str] = {}
    names = []
    for name in options.only:
        told = install_peer(PEERS[name], console.print)
        if told is None:
            names.append(name)
        else:
            failures[name] = told
    FOLDER.mkdir(parents=True, exist_ok=True)
    results = {
        **_read_earlier_parts(),
        "machine": report.machine(),
        "versions": list_versions(names, VERSION),
        "turns": QUICK_TURNS if options.quick else TURNS,
        "failures": failures,
    }
    if "overhead" in options.parts:
        results["overhead"], faults = _measure_overhead(names, quick=options.quick)
        failures |= faults
    for part in ("growth", "facts"):
        if part in options.parts:
            results[part] = _measure_conversations(part, names, options, results, console)
    RESULTS.write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2))
    update_page(options.page, options.page.parent / "pictures", results)
    console.print(f"written to {options.page}, its pictures, and {RESULTS}")
    for name, told in failures.items():
        console.print(f"FAILED {name}: {told}", markup=False, style="red")
    return 1 if failures else 0


def _read_earlier_parts() -> dict[str, Any]:
    """Returns the parts that an earlier run has measured, for a run with `--parts`."""
    earlier = orjson.loads(RESULTS.read_bytes()) if RESULTS.exists() else {}
    return {part: earlier[part] for part in PARTS if part in earlier}


def _measure_overhead(names: Sequence[str], *, quick: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """Runs `python -m tests.benchmarks`; returns its summary, and why a gateway failed in a scenario. Of gateways that
    differ only in their settings one is measured."""
    chosen = ["pass", "gateway sqlite", *(name for name in names if not PEERS[name].installation)]
    out = FOLDER / "overhead.json"
    command = [sys.executable, "-m", "tests.benchmarks", "--only", ",".join(chosen), "--out", str(out), "--rests"]
    rounds = ["--quick"] if quick else ["--rounds", "3"]
    subprocess.run([*command, *rounds, "--scenarios", "json,paced,history"], cwd=ROOT, check=False)
    measured = orjson.loads(out.read_bytes())
    summary: dict[str, Any] = measured["summary"]
    faults = dict(failure.split(": ", 1) for failure in measured["failures"])
    return {name: summary[name] for name in [*chosen[1:], chosen[0]] if name in summary}, faults


def _measure_conversations(
    part: str, names: Sequence[str], options: argparse.Namespace, results: dict[str, Any], console: Console
) -> dict[str, list[dict[str, Any]]]:
    """Holds a kind of conversation through each gateway, once for each seed."""
    rows: dict[str, list[dict[str, Any]]] = {}
    if part == "facts":
        rows[NEWEST_ONLY] = [_keep_newest(seed) for seed in options.seeds]
    for name in [CONCERTINA, *names, NO_GATEWAY]:
        for seed in options.seeds:
            if part == "growth":
                held = hold_growth(name, turns=results["turns"], seed=seed)
            else:
                held = ask_facts(name, build_talk(seed))
            began = time.monotonic()
            try:
                figures = asyncio.run(asyncio.wait_for(held, CONVERSATION_SECONDS))
            except (BenchmarkFailed, TimeoutError, httpx.HTTPError) as error:
                told = str(error) or f"not done within {CONVERSATION_SECONDS:.0f} s"
                results["failures"][f"{name}, {part}"] = told
                break
            rows.setdefault(name, []).append(figures)
            console.print(f"{part}, seed {seed}: {name}, {time.monotonic() - began:.0f} s: {figures}", highlight=False)
    return {name: rows[name] for name in order_names(list(rows))}


def _keep_newest(seed: int) -> dict[str, Any]:
    """What a client that keeps its newest messages would show the model."""
    outcome = keep_newest(build_talk(seed), window=FACTS_WINDOW)
    share = outcome.compute_share()
    questions = len(outcome.verdicts)
    tokens = sum(verdict.prompt_tokens for verdict in outcome.verdicts) / questions
    unknown = {"failed_requests": 0, "requests": 74 + questions, "summary_calls": 0}
    return {"questions": questions, "share": share, "prompt_tokens": tokens, **unknown}


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.compare", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"a few short rounds, {QUICK_TURNS} turns")
    parser.add_argument("--only", nargs="+", choices=MEASURED, default=list(MEASURED), help="these gateways")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="measure these, and keep the others"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[300, 301, 302], help="of conversations")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "comparison.md", help="the page to change")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
