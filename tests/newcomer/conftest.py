"""A newcomer who has followed the README's first screen, and the browser of the console's tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.console.conftest import browser, page, watched
from tests.newcomer.following import ROOT, Newcomer

__all__ = ["browser", "page", "watched"]

ASKED_FOR = "CONCERTINA_TEST_NEWCOMER"
NEEDED = ("bash", "curl", "git", "make")


@pytest.fixture(scope="session")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Newcomer]:
    """Follows the README once for all tests. The gateway runs until the last of them is over."""
    if not os.environ.get(ASKED_FOR):
        pytest.skip("takes minutes by itself: `make newcomer` does it")
    if not (ROOT / ".git").exists():
        pytest.skip("there is nothing to clone")
    if any(shutil.which(name) is None for name in NEEDED):
        pytest.skip(f"needs {', '.join(NEEDED)}")
    somebody = Newcomer(tmp_path_factory.mktemp("newcomer"))
    try:
        somebody.follow()
        yield somebody
    finally:
        somebody.stop()
