"""What one answer costs that many are given at once: `python -m tests.benchmarks.hot_fingerprint [--requests 200]`.

The requests are all the same short greeting, so that all of them write the same fingerprint; then the same number of
greetings that differ. The gateway is on PostgreSQL, or on SQLite with `--sqlite`. The bound: the slowest of the equal
ones takes at most twice as long as the slowest of those that differ.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Final

import aiohttp
from rich.console import Console
from rich.table import Table

from tests.benchmarks.processes import Cores
from tests.benchmarks.storage import KEY, start_model
from tests.benchmarks.targets import POSTGRES, SQLITE, running
from tests.scenarios.rewriting import SYSTEM

MOST_TIMES: Final = 2.0
ROUNDS: Final = 5
TABLE_COLUMNS: Final = 120


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.hot_fingerprint", description=__doc__)
    parser.add_argument("--requests", type=int, default=200, help="at once")
    parser.add_argument("--sqlite", action="store_true")
    options = parser.parse_args()
    target = SQLITE if options.sqlite else POSTGRES
    table = Table(title=f"{options.requests} greetings at once, {target.name}", title_justify="left")
    for column in ("greetings", "answered", "median, ms", "slowest, ms"):
        table.add_column(column, justify="left" if column == "greetings" else "right")
    slowest: dict[str, float] = {}
    with running(target, start_model(), Cores.of_this_machine()) as gateway:
        asyncio.run(_send(gateway.port, [f"Warm {number}" for number in range(options.requests)]))
        for name in ("differ", "equal"):
            seconds: list[float] = []
            for turn in range(ROUNDS):
                equal = name == "equal"
                texts = [f"Hello {turn}" + ("" if equal else f" {number}") for number in range(options.requests)]
                seconds += asyncio.run(_send(gateway.port, texts))
            seconds.sort()
            slowest[name] = seconds[-1]
            median, most = seconds[len(seconds) // 2] * 1000, seconds[-1] * 1000
            table.add_row(name, str(len(seconds)), f"{median:.0f}", f"{most:.0f}")
    console = Console()
    (console if console.is_terminal else Console(width=TABLE_COLUMNS)).print(table)
    console.print(f"Equal ones take {slowest['equal'] / slowest['differ']:.2f} ×; the bound is {MOST_TIMES:.0f} ×.")
    return 0


async def _send(port: int, texts: Sequence[str]) -> list[float]:
    """Seconds of each request. One that is not answered with 200 fails the benchmark."""
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    connector = aiohttp.TCPConnector(limit=len(texts))
    async with aiohttp.ClientSession(connector=connector, headers={"authorization": f"Bearer {KEY}"}) as session:

        async def ask(text: str) -> float:
            begun = time.perf_counter()
            body = {"model": "m", "messages": [SYSTEM, {"role": "user", "content": text}]}
            async with session.post(url, json=body) as answer:
                await answer.read()
                answer.raise_for_status()
            return time.perf_counter() - begun

        return list(await asyncio.gather(*map(ask, texts)))


if __name__ == "__main__":
    sys.exit(main())
