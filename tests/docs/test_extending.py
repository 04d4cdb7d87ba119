"""Pages for those who change the code name files and symbols that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "docs/extending.md",
    ROOT / "docs/adding-a-protocol.md",
    ROOT / "docs/kubernetes.md",
    ROOT / "docs/operations.md",
    ROOT / "CONTRIBUTING.md",
]
NAMED_FILE = re.compile(r"`((?:app|tests|config|migrations|tools|docs)/[\w./-]*[\w/])`")
NAMED_SYMBOL = re.compile(r"`([\w.]+)` (?:of|in) `((?:app|tests)/[\w./]+\.py)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_named_file_exists(page: Path) -> None:
    named = NAMED_FILE.findall(page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_a_named_symbol_is_in_the_file_that_is_named_with_it() -> None:
    named = [found for page in PAGES for found in NAMED_SYMBOL.findall(page.read_text())]
    assert len(named) > 15
    assert [found for found in named if not defines(*found)] == []


def defines(symbol: str, file: str) -> bool:
    """Whether each part of a dotted name is a class, function, field or constant there."""
    text = (ROOT / file).read_text()
    parts = symbol.split(".")
    return all(re.search(rf"^\s*(?:class |(?:async )?def )?{part}\b\s*[(:=]", text, re.MULTILINE) for part in parts)


def test_every_kind_of_change_has_a_section() -> None:
    text = PAGES[0].read_text()
    wanted = {
        "A trimming stage",
        "A store backend",
        "A vendor that speaks OpenAI's protocol",
        "Another protocol upstream",
        "Another protocol for clients",
        "An endpoint for operators",
        "A setting",
        "A column",
    }
    assert wanted - set(re.findall(r"^## (.+)$", text, re.MULTILINE)) == set()
