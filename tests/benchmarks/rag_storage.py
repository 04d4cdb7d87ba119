"""What retrieved text costs: `python -m tests.benchmarks.rag_storage [--turns 100] [--chars 4000]`.

One client puts retrieved text around its newest question only, as Open WebUI does; a plain client sends the same texts
and leaves them as they are. Each has a gateway on SQLite to itself. Bytes are those of the database's pages that hold
something; the bound is 1.5 times those of the plain client.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from rich.console import Console
from rich.table import Table

from tests.benchmarks.messages import words
from tests.benchmarks.processes import Cores
from tests.benchmarks.storage import Talker, count_conversations, count_messages, count_stored_bytes, start_model
from tests.benchmarks.targets import SQLITE, running
from tests.scenarios.rewriting import Body, Tell

QUESTION_CHARS: Final = 200
MOST_TIMES: Final = 1.5
TABLE_COLUMNS: Final = 120


def wrap(text: str, number: int, chars: int) -> str:
    """A question with retrieved text around it."""
    return f"### Task:\n<context>\n{words(chars, seed=10_000 + number)}\n</context>\n\n<query>{text}</query>"


def retrieve(chars: int) -> Tell:
    """A client that wraps its newest question and sends the others plain."""

    def tell(messages: list[Body]) -> list[Body]:
        *before, newest = messages
        return [*before, newest | {"content": wrap(str(newest["content"]), len(before), chars)}]

    return tell  # type: ignore[return-value]  # it takes the list that a talker has


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.rag_storage", description=__doc__)
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--chars", type=int, default=4_000, help="of retrieved text for each question")
    options = parser.parse_args()
    port = start_model()
    table = Table(title=f"Retrieved text, {options.turns} turns", title_justify="left")
    columns = ("client", "stored bytes", "×", "messages", "conversations")
    for column in columns:
        table.add_column(column, justify="left" if column == "client" else "right")
    plain = None
    for name in ("plain", "retrieves"):
        stored, *others = _measure(port, name == "retrieves", options.turns, options.chars)
        plain = plain or stored
        table.add_row(name, f"{stored:,}", f"{stored / plain:.2f}", *others)
    console = Console()
    (console if console.is_terminal else Console(width=TABLE_COLUMNS)).print(table)
    console.print(f"The bound is {MOST_TIMES} × the plain client.")
    return 0


def _measure(port: int, retrieves: bool, turns: int, chars: int) -> tuple[int, str, str]:
    with running(SQLITE, port, Cores.of_this_machine()) as gateway:
        empty = count_stored_bytes(gateway)
        talker = Talker(gateway, retrieve(chars) if retrieves else list)
        for turn in range(turns):
            text = f"Question {turn}: {words(QUESTION_CHARS, seed=turn)}"
            talker.say(text if retrieves else wrap(text, len(talker.messages), chars))
        counts = f"{count_messages(gateway):,}", str(count_conversations(gateway))
        return count_stored_bytes(gateway) - empty, *counts


if __name__ == "__main__":
    sys.exit(main())
