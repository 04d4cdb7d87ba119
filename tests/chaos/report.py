"""What a long run came to, as JSON and for people."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.chaos.breaking import Broken
from tests.faults.checking import Verdict
from tests.faults.journal import Journal
from tests.faults.load import Load
from tests.faults.verification import VerificationReport

FLAT_GROWTH: Final = 0.05
"""Memory counts as flat while its last quarter is at most so much above its first."""
NAMED: Final = 20


def of(
    options: argparse.Namespace,
    load: Load,
    broken: Broken,
    verdict: Verdict,
    verified: VerificationReport,
    leaks: dict[str, Any],
    samples: dict[str, Any],
    journal: Journal,
) -> dict[str, Any]:
    """All figures of a run."""
    figures = load.figures
    growth = [one["memory_growth"] or 0.0 for one in samples["processes"].values()]
    is_flat = options.what == "chaos" or max(growth, default=0.0) <= FLAT_GROWTH
    return {
        "what": options.what,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": options.seed,
        "minutes": options.minutes,
        "database": options.database,
        "gateways": options.gateways,
        "talks": options.talks,
        "is_clean": verdict.is_clean and not verified.faults and not any(leaks["tasks"].values()) and is_flat,
        "kills": broken.kills,
        "other_faults": broken.others,
        "restart_seconds": _spread(broken.restart_seconds),
        "turns": {"acknowledged": figures.acknowledged, "given_up": figures.given_up},
        "attempts": journal.attempts,
        "outcomes": dict(sorted(journal.outcomes.items(), key=lambda one: -one[1])),
        "seconds_at_first_try": _spread(figures.seconds),
        "seconds_after_retries": _spread(figures.late_seconds),
        "checked": {"conversations": verdict.conversations, "messages": verdict.messages},
        "lost": verdict.lost,
        "doubled": verdict.doubled,
        "moved": verdict.moved,
        "stuck": verdict.stuck,
        "stored": asdict(verified),
        "left_open": leaks,
        "memory_is_flat": is_flat,
        "samples": samples,
        "verdict": asdict(verdict),
    }


def write(path: Path, result: dict[str, Any]) -> None:
    """Beside each other: `.json` with everything, `.md` for people."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(result, indent=1, default=str))
    path.with_suffix(".md").write_text(markdown(result))


def markdown(result: dict[str, Any]) -> str:
    first, late = result["seconds_at_first_try"], result["seconds_after_retries"]
    lines = [
        f"# {result['what'].capitalize()}: {'clean' if result['is_clean'] else 'NOT CLEAN'}",
        "",
        (
            f"{result['minutes']:g} minutes on {result['database']}, {result['gateways']} gateways, "
            f"{result['talks']} conversations at a time, seed {result['seed']}, {result['at']}."
        ),
        "",
        "| | |",
        "| --- | --- |",
        f"| kills of a gateway | {result['kills']} |",
        f"| other faults | {_pairs(result['other_faults'])} |",
        f"| turns acknowledged / given up | {result['turns']['acknowledged']} / {result['turns']['given_up']} |",
        f"| attempts | {result['attempts']}: {_pairs(result['outcomes'])} |",
        f"| seconds, answered at first try | {_pairs(first)} |",
        f"| seconds, answered after retries | {_pairs(late)} |",
        f"| seconds until a gateway is back | {_pairs(result['restart_seconds'])} |",
        f"| read back | {_pairs(result['checked'])} |",
        f"| **lost** | {len(result['lost'])} |",
        f"| **doubled** | {len(result['doubled'])} |",
        f"| moved | {len(result['moved'])} |",
        f"| stuck | {len(result['stuck'])} |",
        f"| **faults in what is stored** | {len(result['stored']['faults'])} |",
        f"| notices of what is stored | {len(result['stored']['notices'])} |",
        f"| left open | {_pairs(result['left_open'])} |",
        f"| database, MB at first and last | {result['samples']['database_mb']} |",
    ]
    for name, one in result["samples"]["processes"].items():
        told = f"{one['memory_mb']} MB by quarters, files {one['files']}, most tasks {one['tasks']}"
        lines.append(f"| {name} | {told} |")
    for kind in ("lost", "doubled", "moved", "stuck"):
        lines += _named(kind, result[kind])
    lines += _named("faults in what is stored", [str(one) for one in result["stored"]["faults"]])
    return "\n".join(lines) + "\n"


def _named(kind: str, found: Sequence[str]) -> list[str]:
    return ["", f"## {kind}", "", *(f"- {one}" for one in found[:NAMED])] if found else []


def _pairs(told: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in told.items()) or "none"


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    ordered = sorted(seconds)
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    told = {name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 3) for name, share in at.items()}
    return {**told, "max": round(ordered[-1], 3), "mean": round(statistics.fmean(ordered), 3)}
