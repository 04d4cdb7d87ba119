"""`python -m tests.simulation --seed 1 --seconds 60`: runs scripts by seed; prints the shortest that fails."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.simulation.clients import KINDS
from tests.simulation.scenario import Statistics, make_script, run_script, shorten


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long new seeds are begun; 0: one seed")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of clients, by commas")
    parser.add_argument("--keep-going", action="store_true", help="count failures by invariant and shorten one of each")
    parser.add_argument("--faults", choices=("some", "all", "none"), default="some")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began, seed, statistics, busy_seconds = time.perf_counter(), options.seed, Statistics(), 0.0
    examples: dict[str, str] = {}
    faults = {"some": None, "all": True, "none": False}[options.faults]
    while True:
        script = make_script(seed, options.kinds.split(","), faults)
        busy_since = time.process_time()
        failure = run_script(script, statistics)
        busy_seconds += time.process_time() - busy_since
        statistics["scripts"] += 1
        if failure is not None:
            statistics[f"failures of {failure.invariant}"] += 1
            print(f"seed {seed}: {failure.invariant}: {failure.text}", flush=True)
            if failure.invariant not in examples:
                shortest = shorten(script, failure)
                examples[failure.invariant] = f"{failure.invariant}: {run_script(shortest).text}\n{shortest}"  # type: ignore[union-attr]
                print(examples[failure.invariant], flush=True)
            if not options.keep_going:
                break
        seed += 1
        if time.perf_counter() - began >= options.seconds:
            break
    rate = statistics["requests"] / busy_seconds
    print(f"{rate:.0f} requests in a second of processor time; seeds {options.seed} to {seed - 1}")
    for name, count in sorted(statistics.items()):
        print(f"  {count:7} {name}")
    return 1 if examples else 0


if __name__ == "__main__":
    sys.exit(main())
