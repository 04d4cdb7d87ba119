"""The page of error codes has a heading for each code that a client can meet, and for no other."""

from __future__ import annotations

import re
from pathlib import Path

import app.errors
from app.errors import GatewayError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/errors.md").read_text()
OF_CLIENTS, _, AT_START = PAGE.partition("## Refused at start")
PROVIDERS_OWN = ROOT / "app/simulator"


def codes_of_the_tree() -> set[str]:
    classes = [one for one in vars(app.errors).values() if isinstance(one, type) and issubclass(one, GatewayError)]
    return {one.code for one in classes if one.code is not None}


def codes_given_where_they_are_raised() -> set[str]:
    files = [file for file in (ROOT / "app").rglob("*.py") if PROVIDERS_OWN not in file.parents]
    return {code for file in files for code in re.findall(r'\bcode="(\w+)"', file.read_text())}


def test_each_code_has_a_heading_and_each_heading_a_code() -> None:
    headings = re.findall(r"^### (\w+)$", OF_CLIENTS, re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert set(headings) == codes_of_the_tree() | codes_given_where_they_are_raised()


def test_each_code_is_told_with_the_status_it_has() -> None:
    classes = [one for one in vars(app.errors).values() if isinstance(one, type) and issubclass(one, GatewayError)]
    told = dict(re.findall(r"^### (\w+)\n\n((?:\d{3}(?:, | or )?)+)", OF_CLIENTS, re.MULTILINE))
    assert [one.code for one in classes if one.code and str(one.status) not in told[one.code]] == []


def test_no_status_is_taken_for_the_first_item_of_a_numbered_list() -> None:
    assert re.findall(r"^\d{3}\. ", PAGE, re.MULTILINE) == []


def test_what_the_page_says_of_refusals_at_start_is_said_at_start() -> None:
    said = re.findall(r"^\| `([^`]+)` \| ", AT_START, re.MULTILINE)
    sources = [
        *(ROOT / "app/settings").glob("*.py"),
        *(ROOT / "migrations").glob("*.py"),
        *(ROOT / "app/store").rglob("*.py"),
    ]
    text = "\n".join(file.read_text() for file in sources)
    assert len(said) > 10
    assert [words for words in said if words not in text] == []
