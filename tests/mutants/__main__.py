"""`python -m tests.mutants [--only NAME] [--list]`: change one line, run the tests that must notice, for each mutation.

Exit status 0 if each mutation was caught, 1 if one survived, 2 if the table itself is at fault: a test that fails
without a mutation, a text that is not in its file, a run that ended without a failed test.
"""

from __future__ import annotations

import argparse
import queue
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.mutants.copies import ROOT, Copy, Run, mutate
from tests.mutants.mutations import MUTATIONS, Mutation

SURVIVED: Final = 1
TABLE_AT_FAULT: Final = 2


def main() -> int:
    options = _parse_options()
    mutations = [one for one in MUTATIONS if not options.only or one.name in options.only]
    unknown = set(options.only) - {one.name for one in mutations}
    if unknown:
        print(f"no mutation is named {', '.join(sorted(unknown))}: see --list", file=sys.stderr)
        return TABLE_AT_FAULT
    if options.list:
        for one in mutations:
            print(f"{one.name}\n    {one.file}: {one.old!r} becomes {one.new!r}\n    {one.loss}")
        return 0
    try:
        _check_texts(mutations)
    except ValueError as fault:
        print(fault, file=sys.stderr)
        return TABLE_AT_FAULT
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        count = min(options.copies, len(mutations))
        copies = [Copy(Path(folder) / str(number)) for number in range(count)]
        if not _pass_unmutated(copies, mutations):
            return TABLE_AT_FAULT
        print(f"unmutated: passed  {time.monotonic() - began:.0f} s", flush=True)
        verdicts = _try_all(copies, mutations)
    print(
        f"{len(mutations)} mutations: {verdicts.count('caught')} caught, {verdicts.count('survived')} survived, "
        f"{verdicts.count('fault')} at fault; {time.monotonic() - began:.0f} s"
    )
    if "fault" in verdicts:
        return TABLE_AT_FAULT
    return SURVIVED if "survived" in verdicts else 0


def _check_texts(mutations: Sequence[Mutation]) -> None:
    for one in mutations:
        mutate((ROOT / one.file).read_text(), one)


def _pass_unmutated(copies: Sequence[Copy], mutations: Sequence[Mutation]) -> bool:
    """Run all named tests on the files as they are, a part in each copy."""
    tests = sorted({test for one in mutations for test in one.tests})
    parts = [tests[number :: len(copies)] for number in range(len(copies))]
    with ThreadPoolExecutor(len(copies)) as pool:
        runs = list(pool.map(lambda copy, part: copy.run_unmutated(part), copies, parts))
    for run in runs:
        if not run.passed:
            print(
                f"{run.output}\nwithout any mutation the tests do not pass: exit code {run.exit_code}", file=sys.stderr
            )
    return all(run.passed for run in runs)


def _try_all(copies: Sequence[Copy], mutations: Sequence[Mutation]) -> list[str]:
    """Try each mutation in the next free copy, and print its verdict."""
    free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def try_one(mutation: Mutation) -> str:
        copy = free.get()
        try:
            run = copy.run_mutated(mutation)
        finally:
            free.put(copy)
        verdict = _judge(run)
        print(f"{verdict:8}  {run.seconds:5.1f} s  {mutation.name}", flush=True)
        if verdict == "survived":
            print(f"{'':20}{mutation.loss}\n{'':20}no failure in {', '.join(mutation.tests)}", flush=True)
        if verdict == "fault":
            print(f"{'':20}exit code {run.exit_code}: {run.reason}", flush=True)
        return verdict

    with ThreadPoolExecutor(len(copies)) as pool:
        return list(pool.map(try_one, mutations))


def _judge(run: Run) -> str:
    if run.passed:
        return "survived"
    return "caught" if run.failed else "fault"


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="try this mutation; may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="print the mutations and try none")
    parser.add_argument("--copies", type=int, default=2, help="copies of the project that are used at a time (2)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
