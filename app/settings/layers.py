"""One source of settings: its nested values, the place of each value, and the faults that were found while reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.settings.configuration_errors import ConfigurationFault, SettingPath


@dataclass(slots=True)
class SettingsLayer:
    """The settings of one source, or of several merged ones. `sources` gives the line or variable of each path that is
    set.
    """

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[SettingPath, str] = field(default_factory=dict)
    faults: list[ConfigurationFault] = field(default_factory=list)
    referenced_variables: set[str] = field(default_factory=set)
    """The environment variables that values refer to with `${NAME}`."""

    def set_value(self, path: SettingPath, value: Any, source: str) -> None:
        """Sets the value at a path. A section is merged into what is set below the path already."""
        self.values = merge_values(self.values, nest_value(path, value))
        self.sources[path] = source

    def merge_over(self, lower: SettingsLayer) -> SettingsLayer:
        """Returns a layer with the values of both; where both set a value, this layer wins."""
        return SettingsLayer(
            merge_values(lower.values, self.values),
            lower.sources | self.sources,
            lower.faults + self.faults,
            lower.referenced_variables | self.referenced_variables,
        )


def merge_values(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of both; where both set a value, `upper` wins. Sections are merged key by key; lists are not.
    A section of `upper` that is empty changes nothing, as YAML has it when all lines of the section are commented out.
    """
    merged = dict(lower)
    for key, value in upper.items():
        section = lower.get(key)
        if isinstance(section, dict) and isinstance(value, dict):
            merged[key] = merge_values(section, value)
        elif value is not None or not isinstance(section, dict):
            merged[key] = value
    return merged


def nest_value(path: SettingPath, value: Any) -> dict[str, Any]:
    """Returns nested sections with one value: ``("server", "port"), 8001`` gives ``{"server": {"port": 8001}}``."""
    for key in reversed(path):
        value = {key: value}
    return dict(value)
