"""Keep a core from halting: a loop of the lowest priority, which gives way to everything else.

    python -m tests.benchmarks.spin

On virtual machines a core that has gone to sleep makes every wake-up look several times dearer than it is under load:
CPU time is measured beside it. Latencies are not: now and then, and beside PostgreSQL mostly, the scheduler lets it end
its turn of some milliseconds first. Ends with its parent.
"""

from __future__ import annotations

import os

LAPS = 1_000_000


def main() -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    parent = os.getppid()
    while os.getppid() == parent:
        for _ in range(LAPS):
            pass


if __name__ == "__main__":
    main()
