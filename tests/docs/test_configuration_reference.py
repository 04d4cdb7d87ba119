"""The settings, `config/default.yaml` and `docs/configuration.md` say the same."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from app.settings import Settings, load_settings
from app.settings.providers_and_models import Model, Provider
from app.settings.settings_tree import list_setting_paths

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs/configuration.md").read_text()
WRITER = "tools/configuration_reference.py"


def test_the_reference_is_what_the_settings_say() -> None:
    """Where this fails, run the tool without `--check`, or `make docs`."""
    ended = subprocess.run([sys.executable, WRITER, "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


class Unexplained(BaseModel):
    port: int = 0


def test_a_setting_that_nothing_explains_is_refused() -> None:
    told = importlib.util.spec_from_file_location("configuration_reference", ROOT / WRITER)
    assert told is not None
    assert told.loader is not None
    tool = importlib.util.module_from_spec(told)
    told.loader.exec_module(tool)
    with pytest.raises(SystemExit, match=r"Unexplained\.port has no docstring"):
        list(tool._of_section(Unexplained, ("unexplained",)))


def test_each_setting_has_one_row_with_its_variable() -> None:
    rows = re.findall(r"^\| `([^`]+)`<br>`(CONCERTINA_[^`]+)` \| .+? \| .*? \| (.+) \|$", REFERENCE, re.MULTILINE)
    assert ("server.port", "CONCERTINA_SERVER__PORT") in [(name, variable) for name, variable, _ in rows]
    assert len({name for name, _, _ in rows}) == len(rows) > 100


def test_each_section_has_a_heading() -> None:
    assert [name for name in Settings.model_fields if f"\n## {name}\n" not in REFERENCE] == []


def test_the_default_file_changes_nothing() -> None:
    assert load_settings(str(ROOT / "config/default.yaml"), environ={}) == Settings()


def test_what_the_default_file_shows_commented_out_are_defaults_too(tmp_path: Path) -> None:
    text = re.sub(r"^(providers|models): \{\}$", r"\1:", (ROOT / "config/default.yaml").read_text(), flags=re.MULTILINE)
    file = tmp_path / "uncommented.yaml"
    file.write_text(re.sub(r"^#  ", "  ", text, flags=re.MULTILINE))
    settings = load_settings(str(file), environ={})
    assert settings.providers == {"openai": Provider(base_url="https://api.openai.com/v1")}
    assert settings.models == {"some-model": Model(provider="openai")}


def test_the_default_file_names_every_setting() -> None:
    text = re.sub(r"^#", " ", (ROOT / "config/default.yaml").read_text(), flags=re.MULTILINE)
    named = set(re.findall(r"^ *(\w+):", text, re.MULTILINE))
    assert {last_name(path) for path in list_setting_paths()} - named == set()


def last_name(path: tuple[str, ...]) -> str:
    return next(name for name in reversed(path) if name not in {"<name>", "[]"})


@pytest.mark.parametrize("file", sorted((ROOT / "config").glob("*.yaml")), ids=lambda file: file.name)
def test_each_example_can_be_used_as_it_is(file: Path) -> None:
    load_settings(str(file), environ={})


def snippets() -> Iterator[Any]:
    fenced = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
    for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        for number, snippet in enumerate(fenced.findall(page.read_text())):
            if isinstance(parsed := yaml.safe_load(snippet), dict) and parsed.keys() & Settings.model_fields.keys():
                yield pytest.param(snippet, id=f"{page.name}-{number}")


@pytest.mark.parametrize("snippet", list(snippets()))
def test_each_configuration_in_the_docs_can_be_used(snippet: str, tmp_path: Path) -> None:
    file = tmp_path / "snippet.yaml"
    file.write_text(snippet)
    load_settings(str(file), environ={})
