"""`make screens` takes all pictures of the console that the documents show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.console.browser import MISSING, REQUIRED, ROOT
from tests.console.screens import PICTURES

MAX_BYTES = 1_000_000
SECONDS = 170


def names_in(folder: Path) -> set[str]:
    return {file.name for file in folder.glob("console-*")}


def test_the_documents_show_every_picture_and_all_are_small() -> None:
    texts = [(ROOT / "README.md").read_text(), *(file.read_text() for file in (ROOT / "docs").glob("*.md"))]
    shown = {name for text in texts for name in re.findall(r"pictures/(console-[a-z-]+\.\w+)", text)}
    assert shown == names_in(PICTURES)
    assert sum(file.stat().st_size for file in PICTURES.glob("console-*")) < MAX_BYTES


@pytest.mark.timeout(SECONDS + 10)
def test_the_command_takes_the_pictures_that_are_shown(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.console.screens", "--folder", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS)
    if MISSING in ended.stderr and REQUIRED not in os.environ:
        pytest.skip(MISSING)
    assert ended.returncode == 0, ended.stderr
    assert names_in(tmp_path) == names_in(PICTURES)
    for file in tmp_path.iterdir():
        before = (PICTURES / file.name).stat().st_size
        assert file.read_bytes()[8:12] == b"WEBP"
        assert before / 2 < file.stat().st_size < before * 2, "the page looks otherwise: make screens"
