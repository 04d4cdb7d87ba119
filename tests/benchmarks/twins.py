"""What equal conversations cost: `python -m tests.benchmarks.twins [--runs 20] [--turns 200]`.

A script runs again and again under one key, without ids, as an evaluation does at temperature 0: all words are equal.
One gateway on SQLite keeps a single run, another all of them. Bytes are those of the database's pages that hold
something; the bound is twice those of the single run.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Final

from rich.console import Console
from rich.table import Table

from tests.benchmarks.messages import words
from tests.benchmarks.processes import Cores
from tests.benchmarks.storage import Talker, count_conversations, count_messages, count_stored_bytes, start_model
from tests.benchmarks.targets import SQLITE, running

QUESTION_CHARS: Final = 200
MOST_TIMES: Final = 2.0
TABLE_COLUMNS: Final = 120


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.twins", description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--turns", type=int, default=200)
    options = parser.parse_args()
    port = start_model()
    table = Table(title=f"Runs of one script, {options.turns} turns each", title_justify="left")
    for column in ("runs", "stored bytes", "×", "messages", "conversations", "ms a turn"):
        table.add_column(column, justify="right")
    single = None
    for runs in (1, options.runs):
        stored, *others = _measure(port, runs, options.turns)
        single = single or stored
        table.add_row(str(runs), f"{stored:,}", f"{stored / single:.2f}", *others)
    console = Console()
    (console if console.is_terminal else Console(width=TABLE_COLUMNS)).print(table)
    console.print(f"The bound is {MOST_TIMES:.0f} × the single run.")
    return 0


def _measure(port: int, runs: int, turns: int) -> tuple[int, str, str, str]:
    with running(SQLITE, port, Cores.of_this_machine()) as gateway:
        empty, begun = count_stored_bytes(gateway), time.perf_counter()
        for _ in range(runs):
            talker = Talker(gateway)
            for turn in range(turns):
                talker.say(f"Question {turn}: {words(QUESTION_CHARS, seed=turn)}")
        milliseconds = (time.perf_counter() - begun) / (runs * turns) * 1000
        counts = f"{count_messages(gateway):,}", str(count_conversations(gateway)), f"{milliseconds:.1f}"
        return count_stored_bytes(gateway) - empty, *counts


if __name__ == "__main__":
    sys.exit(main())
