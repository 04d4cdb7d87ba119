"""What the pages show can be done: each `bash` and `python` block runs against a gateway, page by page, in order.

Blocks marked `sh` and `yml` are for reading: they start servers, name ids that do not exist, or need a container. They
are read all the same: shell is shell, our commands take the options they are given, and JSON is JSON.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from app.__main__ import build_parser, main
from app.settings import Settings
from tests.harness import Gateway

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ABOUT_CLIENTS = ROOT / "docs" / "integrations"
"""Their pages are one program each, and need the clients: `tests/integrations` runs them."""
WRITTEN_ADDRESS = "http://127.0.0.1:8000"
RUNNABLE = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^ *```([a-z]+)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
RUN_BY_THEIR_PAGE = {"javascript", "toml"}
OUR_COMMAND = re.compile(r"^(?:\w+=\S+ +)*(?:kubectl .* -- )?(?:\.venv/bin/)?concertina (.*)$", re.MULTILINE)
SETTINGS = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL_PRELUDE = 'set -euo pipefail\ncurl() { command curl --fail-with-body --silent --show-error "$@"; }\n'
SNIPPET_SECONDS = 60


def pages_that_run() -> Iterator[object]:
    for page in (page for page in PAGES if ABOUT_CLIENTS not in page.parents):
        if blocks_that_run := RUNNABLE.findall(page.read_text()):
            yield pytest.param(blocks_that_run, id=page.stem)


def configurations() -> Iterator[object]:
    for page in PAGES:
        for number, text in enumerate(SETTINGS.findall(page.read_text()), 1):
            yield pytest.param(text, id=f"{page.stem}-{number}")


@pytest.mark.timeout(SNIPPET_SECONDS * 5)
@pytest.mark.parametrize("blocks_that_run", list(pages_that_run()))
def test_the_snippets_of_a_page_do_what_they_say(blocks_that_run: list[tuple[str, str]], tmp_path: Path) -> None:
    """A later snippet of a page may need what an earlier one made, so one test runs them all."""
    if shutil.which("curl") is None and any(language == "bash" for language, _ in blocks_that_run):
        pytest.skip("there is no curl")
    with Gateway(tmp_path, {"database": {"url": f"sqlite:///{tmp_path}/kept.db"}}) as running:
        for number, (language, code) in enumerate(blocks_that_run, 1):
            here = code.replace(WRITTEN_ADDRESS, running.address)
            command = ["bash", "-c", SHELL_PRELUDE + here] if language == "bash" else [sys.executable, "-c", here]
            ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SNIPPET_SECONDS)
            assert ended.returncode == 0, f"{language} block {number}: {code}{ended.stdout}{ended.stderr}"


@pytest.mark.parametrize("text", list(configurations()))
def test_a_configuration_passes_check_config(text: str, tmp_path: Path) -> None:
    assert yaml.safe_load(text).keys() <= Settings.model_fields.keys()
    file = tmp_path / "snippet.yaml"
    file.write_text(text)
    assert main(["check-config", str(file)]) == 0


def blocks(*languages: str) -> Iterator[object]:
    for page in PAGES:
        for number, (language, code) in enumerate(BLOCK.findall(page.read_text()), 1):
            if language in languages:
                yield pytest.param(textwrap.dedent(code), id=f"{page.stem}-{number}-{language}")


@pytest.mark.parametrize("code", list(blocks("sh", "bash")))
def test_shell_can_be_read_by_a_shell(code: str) -> None:
    read = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr


@pytest.mark.parametrize("code", list(blocks("sh", "bash")))
def test_our_commands_take_what_they_are_given(code: str) -> None:
    for given in OUR_COMMAND.findall(code.replace("\\\n", " ")):
        words = shlex.split(re.split(r" [|<>&] ?|\)| && ", given)[0], comments=True)
        build_parser().parse_args(words)  # exits where the command does not take them


@pytest.mark.parametrize("code", list(blocks("python")))
def test_python_can_be_read(code: str) -> None:
    compile(code, "snippet", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("code", list(blocks("json", "yml")))
def test_data_can_be_read(code: str) -> None:
    yaml.safe_load(code)


@pytest.mark.parametrize("code", list(blocks("json")))
def test_json_is_json(code: str) -> None:
    json.loads(code)


def test_every_marked_block_is_of_a_kind_that_somebody_reads() -> None:
    known = {"bash", "json", "python", "sh", "yaml", "yml"}
    kinds = [(page, language) for page in PAGES for language, _ in BLOCK.findall(page.read_text())]
    allowed = {page: known | (RUN_BY_THEIR_PAGE if ABOUT_CLIENTS in page.parents else set()) for page, _ in kinds}
    assert [(page.name, language) for page, language in kinds if language not in allowed[page]] == []


def test_every_page_that_is_run_names_the_address_that_is_served_by_default() -> None:
    assert f"{Settings().server.host}:{Settings().server.port}" in WRITTEN_ADDRESS
    named = {page.name for page in PAGES if RUNNABLE.search(page.read_text())}
    assert named >= {"README.md", "quickstart.md", "wire-contract.md"}
