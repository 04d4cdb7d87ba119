"""The table of integrations tells what is there, and what is tested."""

from __future__ import annotations

import re

import pytest

from tests.integrations import (
    test_chat_uis,
    test_claude_code,
    test_codex,
    test_javascript_clients,
    test_providers,
    test_python_clients,
)
from tests.integrations.pages import FOLDER, Page

LONGEST_PAGE_LINES = 110
NAMES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "index")
ROW = re.compile(r"^\| \[[^]]+\]\(([\w-]+)\.md\) \|(?:.*\|)? ([\w ]+) \|$", re.MULTILINE)


def test_each_page_has_one_row_with_its_status() -> None:
    status = ROW.findall(Page("index").text)
    assert sorted(name for name, _ in status) == NAMES
    run = {
        *test_python_clients.FRAMEWORKS,
        *test_javascript_clients.PAGES,
        test_claude_code.PAGE.name,
        test_codex.PAGE.name,
        "curl",
    }
    assert {name for name, said in status if said == "run in CI"} == run
    assert {name for name, said in status if said == "checked"} == {*test_providers.PAGES, *test_chat_uis.PAGES}


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_short(name: str) -> None:
    assert len(Page(name).text.splitlines()) <= LONGEST_PAGE_LINES


@pytest.mark.parametrize("name", [*test_python_clients.FRAMEWORKS, *test_javascript_clients.PAGES, "curl"])
def test_pages_about_clients_have_the_same_shape(name: str) -> None:
    headings = re.findall(r"^## (.+)$", Page(name).text, re.MULTILINE)
    assert headings[:4] == [
        "Ask, and see what the model saw",
        "Stream",
        "Tools",
        "A conversation longer than the window",
    ]
    assert headings[4] in {"Or send only what is new", "Or send the whole history"}
    assert headings[5:] == ["Worth knowing"]


@pytest.mark.parametrize("name", test_providers.PAGES)
def test_pages_about_providers_have_the_same_five_steps(name: str) -> None:
    assert re.findall(r"^## (.+)$", Page(name).text, re.MULTILINE) == [
        "1. Key",
        "2. Configuration",
        "3. Check",
        "4. First request",
        "5. What is special",
    ]
    assert re.search(r"^concertina doctor .*--ask$", Page(name).text, re.MULTILINE)
