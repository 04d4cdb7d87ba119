"""Pages about JavaScript clients: what they show is run as it stands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integrations.pages import Page, run
from tests.node.packages import HERE, node_with_packages

PAGES = ("langchain-js", "openai-agents-js", "openai-node", "vercel-ai-sdk")


@pytest.fixture(scope="session")
def node() -> str:
    return node_with_packages()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_does_what_it_says(name: str, node: str, address: str, tmp_path: Path) -> None:
    program = tmp_path / "program.mjs"
    program.write_text(Page(name).program("javascript", address))
    (tmp_path / "node_modules").symlink_to(HERE / "node_modules", target_is_directory=True)
    run([node, str(program)], cwd=tmp_path, environ={"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
