"""The settings, `config/default.yaml` and `docs/configuration.md` say the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import SecretStr

from app.settings import Settings, load
from app.settings.schema import known_paths
from app.settings.sections import Deployment, Model, Policy, Provider

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs/configuration.md").read_text()
ROW = re.compile(r"^\| `([^`]+)` \| (?:`(.*?)`)? ?\| (.+) \|$", re.MULTILINE)
OF_A_NAME = {"providers": Provider(), "models": Model(deployments=(Deployment(),)), "policies": Policy()}


def written(path: tuple[str, ...]) -> str:
    return ".".join(path).replace(".[]", "[]")


def default_of(path: tuple[str, ...]) -> Any:
    section, *rest = path
    value: Any = getattr(Settings(), section)
    if rest and rest[0] == "<name>":
        value, rest = OF_A_NAME[section], rest[1:]
    for key in rest:
        value = value[0] if key == "[]" else getattr(value, key)
    value = value.get_secret_value() if isinstance(value, SecretStr) else value
    return listed(value)


def listed(value: Any) -> Any:
    return [listed(entry) for entry in value] if isinstance(value, tuple) else value


def test_each_setting_is_documented_once_and_in_order() -> None:
    assert [name for name, _, _ in ROW.findall(REFERENCE)] == [written(path) for path in known_paths()]


@pytest.mark.parametrize("path", known_paths(), ids=written)
def test_the_documented_default_is_the_default(path: tuple[str, ...]) -> None:
    documented = {name: default for name, default, _ in ROW.findall(REFERENCE)}
    assert yaml.safe_load(documented[written(path)]) == (default_of(path) if default_of(path) != "" else None)


def test_each_section_has_a_heading() -> None:
    assert [name for name in Settings.model_fields if f"\n## {name}\n" not in REFERENCE] == []


def test_the_default_file_changes_nothing() -> None:
    assert load(str(ROOT / "config/default.yaml"), environ={}) == Settings()


def test_what_the_default_file_shows_commented_out_are_defaults_too(tmp_path: Path) -> None:
    text = re.sub(r"^(providers|models): \{\}$", r"\1:", (ROOT / "config/default.yaml").read_text(), flags=re.MULTILINE)
    file = tmp_path / "uncommented.yaml"
    file.write_text(re.sub(r"^#  ", "  ", text, flags=re.MULTILINE))
    settings = load(str(file), environ={})
    assert settings.providers == {"openai": Provider(base_url="https://api.openai.com/v1")}
    assert settings.models == {"some-model": Model(provider="openai")}


def test_the_default_file_names_every_setting() -> None:
    text = re.sub(r"^#", " ", (ROOT / "config/default.yaml").read_text(), flags=re.MULTILINE)
    named = set(re.findall(r"^ *(\w+):", text, re.MULTILINE))
    assert {last_name(path) for path in known_paths()} - named == set()


def last_name(path: tuple[str, ...]) -> str:
    return next(name for name in reversed(path) if name not in {"<name>", "[]"})


@pytest.mark.parametrize("file", sorted((ROOT / "config").glob("*.yaml")), ids=lambda file: file.name)
def test_each_example_can_be_used_as_it_is(file: Path) -> None:
    load(str(file), environ={})


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
    load(str(file), environ={})
