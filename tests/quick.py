"""The choice of `make test-quick`, as a plugin of pytest (`-p tests.quick`): two minutes instead of the whole suite.

The choice is made by rules, so a new test falls under them by itself:

1. Folders and files in `LEFT_OUT` need a browser, Node, other packages, several processes or much time: none of
   their tests.
2. What `WHOLE` names is pure, or the contract of the store, or the shape of the code: all of its tests.
3. Of every other file, the first test: one path through each part.
4. No test that needs PostgreSQL or starts a gateway as a process (`tests.harness`), no encrypted variant of the
   contract, and none that may take longer than others (`pytest.mark.timeout`).

Properties get few examples (the profile `few` of `tests/conftest.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parent
LEFT_OUT: Final = frozenset(
    {"behaviour", "benchmarks", "chaos", "console", "faults", "integrations", "mutants", "newcomer", "node"}
    | {"optional", "packaging", "replicas", "scenarios", "test_demo.py"}
)
WHOLE: Final = ("context/", "conversation/", "dialects/", "store/contract/", "test_layering.py")
POSTGRES_FIXTURES: Final = frozenset({"databases", "empty_postgres_url", "migrated_template", "postgres_url"})
PROCESSES: Final = "tests.harness"
OTHER_BACKENDS: Final = ("postgresql", "encrypted memory", "encrypted sqlite")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leaves folders out before their files are imported."""
    return True if is_left_out(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = list(choose(items))
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen


def is_left_out(path: Path) -> bool:
    return bool(LEFT_OUT & set(_room(path).split("/")[:1]))


def choose(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """The tests that rules 2 to 4 leave, in their order."""
    begun: set[Path] = set()
    for item in items:
        if _is_slow(item):
            continue
        is_first = item.path not in begun
        begun.add(item.path)
        if is_first or _room(item.path).startswith(WHOLE):
            yield item


def _room(path: Path) -> str:
    """The place of a file or folder below `tests`, as `store/contract/leases/test_leases.py`."""
    return path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else ""


def _is_slow(item: pytest.Item) -> bool:
    if item.get_closest_marker("timeout") or POSTGRES_FIXTURES & set(getattr(item, "fixturenames", ())):
        return True
    module = vars(getattr(item, "module", object))
    if any(getattr(value, "__module__", None) == PROCESSES for value in module.values()):
        return True
    variant = getattr(item, "callspec", None)
    return variant is not None and any(
        value in OTHER_BACKENDS for value in variant.params.values() if isinstance(value, str)
    )
