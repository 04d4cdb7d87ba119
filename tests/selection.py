"""What `make test` leaves to `make test-full`: tests that need much time, other packages, several processes or a second
look at what others guard.

A path that is named on the command line is always run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent
FULL_RUN_VARIABLE: Final = "CONCERTINA_TEST_FULL"
IS_FULL_RUN: Final = FULL_RUN_VARIABLE in os.environ
LEFT_TO_FULL_RUN: Final = frozenset(
    {"benchmarks", "chaos", "faults", "integrations", "mutants", "newcomer", "node", "optional", "packaging"}
    | {"replicas", "scenarios", "docs/test_snippets.py"}
)
"""Folders and files of `tests`."""
MAIN_PATH_IN_BROWSER: Final = frozenset(
    {"test_browser.py", "test_console.py", "test_explorer_scopes.py", "test_live_chat.py"}
)
"""The files of `tests/console` that `make test` runs."""


def is_left_out(path: Path, arguments: Sequence[str]) -> bool:
    """Says whether a run leaves out a folder or file of tests.

    Args:
        arguments: the paths that the run was asked for.
    """
    if os.environ.get(FULL_RUN_VARIABLE) or not path.is_relative_to(TESTS):
        return False
    place = path.relative_to(TESTS)
    is_left = place.as_posix() in LEFT_TO_FULL_RUN or (
        place.parts[0] == "console" and path.name.startswith("test_") and path.name not in MAIN_PATH_IN_BROWSER
    )
    return is_left and not any(_names(argument, path) for argument in arguments)


def _names(argument: str, path: Path) -> bool:
    """Says whether an argument names a path below `tests`, or a file or folder in it."""
    named = Path(argument.partition("::")[0]).resolve()
    return named != TESTS and (named == path or named.is_relative_to(path) or path.is_relative_to(named))
