"""Copies of the project, in which a mutation is tried: the working tree is never touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.mutations import Mutation

ROOT: Final = Path(__file__).resolve().parents[2]
LEFT_OUT: Final = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "build", "node_modules"
)
TESTS_FAILED: Final = 1
"""pytest's exit code when tests ran and some failed; 2 to 5 are interruptions, usage errors and "no tests"."""
TEST_SECONDS: Final = 30
"""A test that a mutation makes wait for ever fails after so long."""
RUN_SECONDS: Final = 600.0
"""A run of pytest is ended after so long."""
LATER_SECONDS: Final = 10
"""A mutated file is dated so much later: Python compares date and size to decide whether compiled code is current."""


@dataclass(frozen=True, slots=True)
class Run:
    """What pytest said."""

    exit_code: int
    output: str
    seconds: float

    @property
    def passed(self) -> bool:
        return self.exit_code == 0

    @property
    def failed(self) -> bool:
        """A test failed by itself; where a fixture could not be built, pytest says ERROR."""
        return self.exit_code == TESTS_FAILED and any(line.startswith("FAILED ") for line in self.output.splitlines())

    @property
    def reason(self) -> str:
        """The line that tells most of a run that did not pass."""
        lines = self.output.strip().splitlines() or ["no output"]
        return next((line for line in lines if line.startswith("ERROR ")), lines[-1])


class Copy:
    """One copy of the project's files; it shares `.venv` with the working tree."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT, folder, ignore=LEFT_OUT, symlinks=True)
        (folder / ".venv").symlink_to(ROOT / ".venv")

    def run_unmutated(self, tests: Sequence[str]) -> Run:
        """Run tests on the files as they are. Compiled code is kept: the later runs start faster."""
        return self._run_pytest(tests, {"PYTHONDONTWRITEBYTECODE": ""})

    def run_mutated(self, mutation: Mutation) -> Run:
        """Run a mutation's tests with its one line changed, and change the line back."""
        file = self.folder / mutation.file
        before, dates = file.read_text(), file.stat()
        try:
            file.write_text(mutate(before, mutation))
            os.utime(file, (dates.st_atime, dates.st_mtime + LATER_SECONDS))
            return self._run_pytest(mutation.tests, {"PYTHONDONTWRITEBYTECODE": "1"})
        finally:
            file.write_text(before)
            os.utime(file, ns=(dates.st_atime_ns, dates.st_mtime_ns))

    def _run_pytest(self, tests: Sequence[str], environment: dict[str, str]) -> Run:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            "--tb=no",
            "-rfE",
            *tests,
        ]
        began = time.monotonic()
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                # `.venv` leads to the working tree: the copy has to come first, in child processes too.
                env={**os.environ, "PYTHONPATH": str(self.folder), **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=RUN_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Run(-1, f"ended after {RUN_SECONDS:g} s", time.monotonic() - began)
        return Run(done.returncode, done.stdout, time.monotonic() - began)


def mutate(text: str, mutation: Mutation) -> str:
    """The text with the mutation's line changed.

    Raises:
        ValueError: the old text does not occur exactly once, so nobody knows what would be mutated.
    """
    found = text.count(mutation.old)
    if found != 1:
        raise ValueError(
            f"mutation {mutation.name!r}: {mutation.old!r} occurs {found} times in {mutation.file}, not once"
        )
    return text.replace(mutation.old, mutation.new)
