"""Pages about Python clients: what they show is run as it stands."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.integrations.pages import Page, run

FRAMEWORKS = ("langchain", "llamaindex", "openai-agents", "openai-python", "pydantic-ai")
PLAIN_CURL = 'set -euo pipefail\ncurl() { command curl --fail-with-body --silent --show-error "$@"; }\n'


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_page_does_what_it_says(name: str, frameworks: str, address: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(Page(name).program("python", address))
    run([frameworks, str(program)], cwd=tmp_path, environ=environment(tmp_path))


@pytest.mark.timeout(240)
def test_pydantic_ais_page_holds_over_the_responses_api_too(frameworks: str, address: str, tmp_path: Path) -> None:
    text = Page("pydantic-ai").program("python", address)
    assert "OpenAIChatModel" in text
    program = tmp_path / "program.py"
    program.write_text(text.replace("OpenAIChatModel", "OpenAIResponsesModel"))
    run([frameworks, str(program)], cwd=tmp_path, environ=environment(tmp_path))


def test_the_clients_own_page_holds_for_the_newest_version_too(address: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(Page("openai-python").program("python", address))
    run([sys.executable, str(program)], cwd=tmp_path, environ=environment(tmp_path))


def test_the_page_about_curl_does_what_it_says(address: str, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    run(["bash", "-c", PLAIN_CURL + Page("curl").program("bash", address)], cwd=tmp_path, environ=environment(tmp_path))


def environment(home: Path) -> dict[str, str]:
    """No key and no proxy of this machine; libraries that want to keep something do it here."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONUTF8": "1", "PYTHONWARNINGS": "ignore"}
