"""One source of settings: nested values, where each came from, and what was wrong while reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.settings.configuration_errors import ConfigurationFault, SettingPath


@dataclass(slots=True)
class SettingsLayer:
    """What one source says. `sources` names the line or variable of each path that it sets."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[SettingPath, str] = field(default_factory=dict)
    faults: list[ConfigurationFault] = field(default_factory=list)
    referenced_variables: set[str] = field(default_factory=set)
    """Environment variables that values refer to."""

    def set_value(self, path: SettingPath, value: Any, source: str) -> None:
        self.values = merge_values(self.values, nest_value(path, value))
        self.sources[path] = source

    def merge_over(self, lower: SettingsLayer) -> SettingsLayer:
        """This layer on top of another."""
        return SettingsLayer(
            merge_values(lower.values, self.values),
            lower.sources | self.sources,
            lower.faults + self.faults,
            lower.referenced_variables | self.referenced_variables,
        )


def merge_values(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """`upper` over `lower`, section by section. A section left empty (all its lines commented out) changes nothing."""
    merged = dict(lower)
    for key, value in upper.items():
        section = lower.get(key)
        if isinstance(section, dict) and isinstance(value, dict):
            merged[key] = merge_values(section, value)
        elif value is not None or not isinstance(section, dict):
            merged[key] = value
    return merged


def nest_value(path: SettingPath, value: Any) -> dict[str, Any]:
    """``("server", "port"), 8001`` as ``{"server": {"port": 8001}}``."""
    for key in reversed(path):
        value = {key: value}
    return dict(value)
