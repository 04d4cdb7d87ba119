"""Each contract has a suite, and each suite asks for every method of its contract."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.store.contract.conversations import ConversationStore
from app.store.contract.keys import KeyStore
from app.store.contract.leases import LeaseStore
from app.store.contract.limits import LimitStore
from app.store.contract.requests import RequestStore
from app.store.contract.store import Store
from app.store.contract.summaries import SummaryStore
from app.store.contract.usage import UsageStore

HERE = Path(__file__).parent
SUITES: dict[str, type] = {
    "conversations": ConversationStore,
    "summaries": SummaryStore,
    "leases": LeaseStore,
    "keys": KeyStore,
    "usage": UsageStore,
    "limits": LimitStore,
    "requests": RequestStore,
    "test_whole_store.py": Store,
}
"""Folder or file of a suite, and its contract. The last has only what `Store` adds to the other seven."""


def used_names(file: Path) -> Iterator[str]:
    """Names that a file reads from `store` in tests and in functions that tests hand it to."""
    for function in ast.walk(ast.parse(file.read_text())):
        if isinstance(function, ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "store":
                    yield node.attr


def declared_names(contract: type) -> set[str]:
    return {name for name in vars(contract) if not name.startswith("_")}


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_uses_every_method_of_its_contract(suite: str) -> None:
    files = [HERE / suite] if suite.endswith(".py") else sorted((HERE / suite).glob("test_*.py"))
    assert declared_names(SUITES[suite]) - {name for file in files for name in used_names(file)} == set()


def test_each_method_belongs_to_one_contract() -> None:
    names = sorted(name for contract in SUITES.values() for name in declared_names(contract))
    assert names == sorted(name for name in dir(Store) if not name.startswith("_"))
