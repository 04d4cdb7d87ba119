"""The table of mutations is current: each text and each test that it names is there."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter

import pytest
from pytest_bdd.scenario import make_python_name

from tests.mutants.copies import ROOT, mutate
from tests.mutants.mutations import MUTATIONS, Mutation

FEATURES = "tests/behaviour/test_features.py"

each = pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)


@functools.cache
def names_of_tests(file: str) -> frozenset[str]:
    """The names of the tests of a file; those of the features are made of the scenarios' titles."""
    if file == FEATURES:
        texts = [feature.read_text() for feature in (ROOT / FEATURES).parent.glob("*.feature")]
        titles = re.findall(r"^\s*Scenario(?: Outline)?: (.+)$", "\n".join(texts), re.MULTILINE)
        return frozenset(f"test_{make_python_name(title)}" for title in titles)
    nodes = ast.walk(ast.parse((ROOT / file).read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@each
def test_a_mutation_changes_one_line_of_its_file(mutation: Mutation) -> None:
    before = (ROOT / mutation.file).read_text()
    after = mutate(before, mutation)
    assert before != after
    assert before.count("\n") == after.count("\n")
    if mutation.file.endswith(".py"):
        assert ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))


@each
def test_the_tests_of_a_mutation_exist(mutation: Mutation) -> None:
    assert mutation.tests
    for test in mutation.tests:
        file, _, name = test.partition("::")
        assert name.rpartition("::")[2].partition("[")[0] in names_of_tests(file)


def test_each_mutation_has_a_name_of_its_own() -> None:
    assert [name for name, count in Counter(one.name for one in MUTATIONS).items() if count > 1] == []


def test_a_text_that_is_not_there_once_is_refused() -> None:
    mutation = Mutation("twice", "file.py", "limit", "bound", ("tests/x.py::test_x",), "nothing")
    for text in ("no such line\n", "limit = limit\n"):
        with pytest.raises(ValueError, match=r"'twice': 'limit' occurs [02] times in file\.py, not once"):
            mutate(text, mutation)
