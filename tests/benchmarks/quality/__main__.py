"""Measure what a gateway shows its model, and for how many tokens: `python -m tests.benchmarks.quality NAME`.

Exit status 0 unless something failed to run: an instrument is no test, its targets are printed and nothing more.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import sys
import time
from pathlib import Path
from typing import Final

import orjson
from rich.console import Console

from tests.benchmarks.processes import ROOT

INSTRUMENTS: Final = {
    "facts": "facts of long chats that the model is shown when asked (needs recordings)",
    "monologues": "short facts in long monologues",
    "dialogues": "dialogues of two speakers over many sessions",
    "multi_hop": "questions that need several turns of a dialogue",
    "paraphrases": "short facts that are asked for in other words",
    "user_text": "what the user said long ago, and nobody else's words as the user's",
    "late_use": "values that agents need late (needs recordings)",
    "economy": "tokens, cache hits, summary calls and stalls over 300 turns, for several kinds of talk",
    "bill": "what a provider bills, by the rule of its prompt cache, with marks and without",
    "cost": "tokens of the demo beside sending everything",
    "stall": "time to the first byte of turns that compact",
    "planning": "CPU time of a plan",
    "poc": "input and facts after each compaction",
}
TABLE_COLUMNS: Final = 190


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.quality", description=__doc__)
    chosen = parser.add_subparsers(dest="name", required=True)
    modules = {}
    for name, told in INSTRUMENTS.items():
        modules[name] = importlib.import_module(f"tests.benchmarks.quality.{name}")
        instrument = chosen.add_parser(name, help=told, description=modules[name].__doc__)
        instrument.add_argument("--out", type=Path, help="a JSON file (default build/NAME.json)")
        modules[name].add_options(instrument)
    options = parser.parse_args()
    logging.getLogger().setLevel(logging.CRITICAL)
    data = getattr(options, "data", None)
    console = Console() if Console().is_terminal else Console(width=TABLE_COLUMNS)
    if data is not None and not data.is_dir():
        console.print(
            f"{options.name} needs recorded conversations, which are not part of the repository: --data FOLDER"
        )
        return 2
    began = time.monotonic()
    results = asyncio.run(modules[options.name].run(options, console))
    out = options.out or ROOT / "build" / f"{options.name}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))
    console.print(f"{time.monotonic() - began:.0f} s, written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
