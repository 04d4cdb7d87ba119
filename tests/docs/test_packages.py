"""The page of packages names what the gateway needs, and where it is used."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ROW = re.compile(r"^\| (`[^|]+) \| [^|]+ \| (`[^|]+) \|", re.MULTILINE)


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def places_by_package() -> dict[str, list[str]]:
    """The files and folders that the page names, for each package."""
    rows = ROW.findall((ROOT / "docs" / "packages.md").read_text())
    return {
        name: re.findall(r"`([^`]+)`", where)
        for names, where in rows
        for name in re.findall(r"`([a-z][\w-]{3,})`", names)
    }


REQUIREMENTS = [
    *PROJECT["dependencies"],
    *(entry for extra in PROJECT["optional-dependencies"].values() for entry in extra),
]
PACKAGES = [re.split(r"[\[<>=~! ]", requirement)[0] for requirement in REQUIREMENTS]
PLACES = places_by_package()
DISTRIBUTIONS = packages_distributions()


def modules_imported(file: Path) -> set[str]:
    """The modules that a file imports, also by `import_module` with a constant."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {str(name.value) for name in node.args if isinstance(name, ast.Constant)}
    return {module.split(".")[0] for module in found}


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_is_named_and_used_where_the_page_says(package: str) -> None:
    modules = {module for module, names in DISTRIBUTIONS.items() if normalized(package) in map(normalized, names)}
    assert package in PLACES
    for place in PLACES[package]:
        path = ROOT / place
        files = [path] if path.is_file() else list(path.rglob("*.py"))
        assert any(modules & modules_imported(file) for file in files), f"{place} does not import {package}"
