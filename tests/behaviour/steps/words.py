"""How steps are worded: numbers as people write them, tables and lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import parse  # type: ignore[import-untyped]  # it ships no types
import yaml
from pytest_bdd import parsers

Table = Sequence[Sequence[str]]


def _with_pattern(pattern: str) -> Callable[[Callable[[str], Any]], Callable[[str], Any]]:
    decorator: Callable[[Callable[[str], Any]], Callable[[str], Any]] = parse.with_pattern(pattern)
    return decorator


@_with_pattern(r"\d[\d,]*")
def _number(text: str) -> int:
    return int(text.replace(",", ""))


@_with_pattern(r"\d+(?:\.\d+)?")
def _ratio(text: str) -> float:
    return float(text)


def step(text: str) -> parsers.parse:
    """A step with `{name:N}` for whole numbers such as 8,192 and `{name:R}` for ratios."""
    return parsers.parse(text, extra_types={"N": _number, "R": _ratio})


def value(cell: str) -> Any:
    """A cell of a table as YAML reads it; whole numbers may have thousands separators."""
    plain = cell.replace(",", "")
    return int(plain) if plain.isdigit() and "," in cell else yaml.safe_load(cell)


def nested(table: Table) -> dict[str, Any]:
    """Rows of dotted names and values as the sections they mean."""
    found: dict[str, Any] = {}
    for name, cell in table:
        *sections, last = name.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value(cell)
    return found
