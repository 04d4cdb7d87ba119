"""The threat model names tests and modules that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/threat-model.md").read_text()


def test_what_it_says_is_tested_in_is_there() -> None:
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ") and line.count(" | ") == 4]
    named = {name for row in rows[1:] for name in re.findall(r"`([a-z0-9_/]+(?:\.py)?)`", row[3])}
    assert len(named) > 15
    assert [name for name in named if not (ROOT / "tests" / name).exists()] == []


def test_modules_that_it_names_are_there() -> None:
    rooms = "|".join(folder.name for folder in (ROOT / "app").iterdir() if folder.is_dir())
    found = re.findall(rf"`((?:{rooms})(?:/[a-z_0-9]+)+)`", PAGE)
    named = {name for name in found if not (ROOT / "tests" / name).exists()}
    assert len(named) > 8
    assert [name for name in named if not any((ROOT / "app" / f"{name}{end}").exists() for end in ("", ".py"))] == []
