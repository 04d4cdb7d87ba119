"""The JSON schema for editors says what the settings say, and accepts every configuration in the repository."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from app.__main__ import main
from app.commands.init import PROVIDERS
from app.settings.settings_tree import list_setting_paths
from tests.commands.test_init import options_for
from tests.docs.test_configuration_reference import last_name, snippets

ROOT = Path(__file__).parents[2]
FILE = ROOT / "config/concertina.schema.json"
SCHEMA = json.loads(FILE.read_text())
VALIDATOR = jsonschema_rs.Draft7Validator(SCHEMA)
EXAMPLES = [
    *sorted((ROOT / "config").glob("*.yaml")),
    ROOT / "config/integrations/open-webui/gateway.yaml",
    ROOT / "config/kubernetes/concertina.yaml",
    ROOT / "config/kubernetes/sidecar/concertina.yaml",
]


def faults(text: str) -> list[str]:
    # YAML 1.1 of PyYAML reads a bare `off` as false; editors read YAML 1.2, in which it is text.
    value = yaml.safe_load(re.sub(r"recall: off\b", "recall: 'off'", text))
    return [error.message for error in VALIDATOR.iter_errors(value)]


def test_the_schema_is_what_the_settings_say() -> None:
    """Where this fails, run the tool without `--check`, or `make docs`."""
    command = [sys.executable, "tools/configuration_schema.py", "--check"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_every_setting_is_in_it_with_its_meaning() -> None:
    described = {
        name
        for section in (SCHEMA, *SCHEMA["definitions"].values())
        for name, field in section["properties"].items()
        if field.get("description")
    }
    assert {last_name(path) for path in list_setting_paths()} - described <= {"input", "output"}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: str(file.relative_to(ROOT / "config")))
def test_each_example_is_accepted(file: Path) -> None:
    assert faults(file.read_text()) == []


@pytest.mark.parametrize("snippet", list(snippets()))
def test_each_configuration_in_the_docs_is_accepted(snippet: str) -> None:
    assert faults(snippet) == []


@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_init_writes_is_accepted_and_names_the_schema(
    provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # no terminal: nothing is asked
    file = tmp_path / "c.yaml"
    assert main(["init", str(file), *options_for(provider)]) == 0
    text = file.read_text()
    assert faults(text) == []
    assert text.splitlines()[0] == f"# yaml-language-server: $schema={FILE.as_uri()}"


@pytest.mark.parametrize(
    "text",
    [
        "server:",
        "server: {port: '${PORT:-8000}', console: '${CONSOLE}', log_level: '${LEVEL}'}",
        "auth: {pepper: null}",
        "policies: {mine: {fold_ratio: 0.2, summarizer:}}",
    ],
)
def test_what_the_file_allows_besides_is_accepted(text: str) -> None:
    assert faults(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "sever: {}",
        "server: {prot: 1}",
        "server: {port: eighty}",
        "server: {port: 70000}",
        "server: 8000",
        "auth: {mode: locked}",
        "providers: {a b: {base_url: 'http://a'}}",
        "providers: {a: {base_url: 'http://a', quirks: {merge: true}}}",
        "models: {m: {provider: a, context_window: 0}}",
        "policies: {mine: {stages: [mask]}}",
    ],
)
def test_what_is_wrong_is_refused(text: str) -> None:
    assert faults(text) != []


def test_every_definition_is_used() -> None:
    def references(node: Any) -> set[str]:
        if isinstance(node, dict):
            return {node["$ref"]} if "$ref" in node else set().union(*map(references, node.values()))
        return set().union(*map(references, node)) if isinstance(node, list) else set()

    assert references(SCHEMA) == {f"#/definitions/{name}" for name in SCHEMA["definitions"]}
