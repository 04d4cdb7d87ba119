"""The settings of one source, such as a file or an environment variable. pydantic-settings merges the sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from app.settings.configuration_errors import ConfigurationFault, SettingPath
from app.settings.sections import Settings
from app.settings.settings_tree import find_child_type, is_map_type, list_child_keys


@dataclass(eq=False)
class SettingsSource(PydanticBaseSettingsSource):
    """The nested values of one source, and what messages about them need."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[SettingPath, str] = field(default_factory=dict)
    """The file and line, the variable or the argument of each path that is set."""
    faults: list[ConfigurationFault] = field(default_factory=list)
    referenced_variables: set[str] = field(default_factory=set)
    """The environment variables that values refer to with `${NAME}`."""
    empty_variables: dict[SettingPath, str] = field(default_factory=dict)
    """For each value that its references left empty: the variable that is unset or empty."""

    def __post_init__(self) -> None:
        super().__init__(BaseSettings)

    def __call__(self) -> dict[str, Any]:
        """Returns the values, as pydantic-settings merges them."""
        _replace_null_sections(self.values, Settings)
        return self.values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The base class demands this method; only the library's own sources call theirs."""
        return self.values.get(field_name), field_name, False


def build_value_source(path: SettingPath, value: Any, place: str) -> SettingsSource:
    """Returns a source with one value: ``("server", "port"), 8001`` gives ``{"server": {"port": 8001}}``."""
    for key in reversed(path):
        value = {key: value}
    return SettingsSource(value, {path: place})


def merge_sources(sources: Sequence[SettingsSource]) -> dict[str, Any]:
    """Returns the values of all sources; each source wins over the ones before it. Sections are merged key by key,
    lists are not.
    """

    class MergedValues(BaseSettings, extra="allow"):
        @classmethod
        def settings_customise_sources(cls, *_: Any, **__: Any) -> tuple[PydanticBaseSettingsSource, ...]:
            return tuple(reversed(sources))  # for pydantic-settings, the first source wins

    return MergedValues().model_extra or {}


def _replace_null_sections(values: dict[str, Any], node: Any) -> None:
    """Turns null sections into empty ones, which change nothing. YAML reads a section whose lines are all commented out
    as null.
    """
    for key, value in values.items():
        value_type = find_child_type(node, key)
        if value is None and (list_child_keys(value_type) or is_map_type(value_type)):
            values[key] = {}
        elif isinstance(value, dict):
            _replace_null_sections(value, value_type)
