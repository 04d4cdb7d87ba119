"""Each page begins with one sentence that says what it helps to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "decisions" not in page.parts and page != DOCS / "index.md"]
BEGINNING = re.compile(r"# [^\n]+\n\nThis page helps you to [a-z][^\n]{20,200}\n(\n|$)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_begins_with_what_it_helps_to_do(page: Path) -> None:
    assert BEGINNING.match(page.read_text()), "after the title: 'This page helps you to …', in a line of its own"


def test_there_are_pages() -> None:
    assert len(PAGES) > 40
