"""`make test-quick` chooses tests by rules that hold for new tests, too."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.harness import Gateway
from tests.quick import LEFT_OUT, TESTS, WHOLE, choose, is_left_out


def item(
    path: str,
    name: str,
    *,
    fixtures: tuple[str, ...] = (),
    timeout: bool = False,
    starts_gateway: bool = False,
    **params: str,
) -> pytest.Item:
    """A collected test, with what the rules look at."""
    marker = object() if timeout else None
    stand_in: Any = SimpleNamespace(
        path=TESTS / path,
        name=name,
        module=SimpleNamespace(Gateway=Gateway if starts_gateway else None),
        fixturenames=fixtures,
        get_closest_marker=lambda _: marker,
    )
    if params:
        stand_in.callspec = SimpleNamespace(params=params)
    return cast(pytest.Item, stand_in)


def names(*items: Any) -> list[str]:
    return [one.name for one in choose(items)]


@pytest.mark.parametrize(
    "path", ["context/test_new.py", "dialects/chat/test_new.py", "store/contract/keys/test_new.py"]
)
def test_what_is_pure_or_the_contract_is_chosen_whole(path: str) -> None:
    assert names(item(path, "one"), item(path, "two")) == ["one", "two"]


@pytest.mark.parametrize(
    "path", ["api/test_new.py", "a_new_room/test_new.py", "test_new.py", "store/sqlite/test_new.py"]
)
def test_of_every_other_file_the_first_test_is_chosen_that_is_not_slow(path: str) -> None:
    slow = item(path, "slow", timeout=True)
    postgres = item(path, "postgres", fixtures=("postgres_url",))
    process = item(path, "process", starts_gateway=True)
    assert names(slow, postgres, process, item(path, "first"), item(path, "second"), item("api/other.py", "third")) == [
        "first",
        "third",
    ]


def test_the_contract_is_tried_on_memory_and_sqlite_only() -> None:
    path = "store/contract/keys/test_keys.py"
    variants = ["memory", "sqlite", "postgresql", "encrypted memory", "encrypted sqlite"]
    assert names(*(item(path, variant, backend=variant) for variant in variants)) == ["memory", "sqlite"]


@pytest.mark.parametrize("path", ["console/test_new.py", "faults", "replicas/test_turns.py", "test_demo.py"])
def test_what_needs_browsers_processes_or_time_is_left_out(path: str) -> None:
    assert is_left_out(TESTS / path)


@pytest.mark.parametrize("path", [".", "api", "context/plan", "docs/test_site.py", "test_cli.py"])
def test_nothing_else_is_left_out(path: str) -> None:
    assert not is_left_out(TESTS / path)


def test_the_rules_name_what_exists() -> None:
    assert [name for name in {*LEFT_OUT, *WHOLE} if not (TESTS / name).exists()] == []


def test_no_file_of_another_folder_needs_a_browser() -> None:
    """A browser takes most of the two minutes."""
    imports = {}
    for file in TESTS.rglob("test_*.py"):
        if "node_modules" in file.parts or is_left_out(file):
            continue
        nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
        imports[file] = {str(node.module).partition(".")[0] for node in nodes}
    assert [str(Path(file).relative_to(TESTS)) for file, found in imports.items() if "playwright" in found] == []
