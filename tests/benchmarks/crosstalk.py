"""Many tenants at once, none of whom may meet: `python -m tests.benchmarks.crosstalk [--requests N] [--database URL]`.

Exit status 1 if anybody saw a word of somebody else's.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from tests.scenarios.crosstalk import run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--tenants", type=int, default=50)
    parser.add_argument("--database", metavar="URL", help="an empty one; without it SQLite in a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = options.database or f"sqlite+aiosqlite:///{Path(folder) / 'kept.db'}"
        began = time.monotonic()
        outcome = asyncio.run(run(database, tenants=options.tenants, requests=options.requests))
        seconds = time.monotonic() - began
    conversations = sum(map(len, outcome.conversations.values()))
    print(
        f"{outcome.requests} requests of {options.tenants} tenants in {conversations} conversations, "
        f"{outcome.summaries} summaries, {seconds:.0f} s: {len(outcome.faults)} faults"
    )
    for fault in outcome.faults[:20]:
        print(f"  {fault}")
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
