"""One source of settings: nested values, where each came from, and what was wrong while reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.settings.configuration_errors import Fault, Path


@dataclass(slots=True)
class Layer:
    """What one source says. `sources` names the line or variable of each path that it sets."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[Path, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    references: set[str] = field(default_factory=set)
    """Environment variables that values refer to."""

    def put(self, path: Path, value: Any, source: str) -> None:
        self.values = overlaid(self.values, nested(path, value))
        self.sources[path] = source

    def over(self, below: Layer) -> Layer:
        """This layer on top of another."""
        return Layer(
            overlaid(below.values, self.values),
            below.sources | self.sources,
            below.faults + self.faults,
            below.references | self.references,
        )


def overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`, section by section. A section left empty (all its lines commented out) changes nothing."""
    merged = dict(below)
    for key, value in above.items():
        section = below.get(key)
        if isinstance(section, dict) and isinstance(value, dict):
            merged[key] = overlaid(section, value)
        elif value is not None or not isinstance(section, dict):
            merged[key] = value
    return merged


def nested(path: Path, value: Any) -> dict[str, Any]:
    """``("server", "port"), 8001`` as ``{"server": {"port": 8001}}``."""
    for key in reversed(path):
        value = {key: value}
    return dict(value)
