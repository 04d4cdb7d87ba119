"""Faults of a configuration. Their messages say where the fault is, what was expected, and which name was meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic_core import ErrorDetails

from app.settings.settings_tree import find_setting_type, list_child_keys, list_setting_paths

Place = TypeVar("Place")
SettingPath = tuple[str | int, ...]
"""The place of a setting: keys and list positions, from the top of the settings."""

REMOVED_SETTINGS: dict[str, dict[str, object]] = {
    "policies": {
        "result_max_chars": 400_000,
        "arguments_ratio": 0.15,
        "arguments_max_chars": 200_000,
        "oldest_share": 0.2,
        "keep_last_assistants": 3,
        "soft_trim_ratio": 0.3,
        "hard_clear_ratio": 0.5,
        "soft_trim_chars": 1_500,
        "min_prunable_tool_chars": 50_000,
        "emergency_chars": 200,
        "told_result_chars": 200,
        "recall_ratio": 0.15,
        "pin_ratio": 0.5,
        "min_gain_ratio": 0.1,
        "mask_pressure": 0.8,
        "mask_chars": 300,
        "result_ratio": 0.3,
        "fade_bands": ((0.99, 0.05), (0.9, 0.2), (0.85, 0.5), (0.8, 1.0)),
        "max_tool_result_tokens": 2_000,
    },
    "retries": {"max_seconds": 8.0, "retry_after_max_seconds": 20.0, "total_wait_seconds": 60.0},
    "limits": {"max_head_bytes": 65_536},
    "telemetry": {"drain_seconds": 5.0, "overview": True},
}
"""Settings that there were once, by section and name, with the values that are always used now."""
RENAMED_SETTINGS: dict[str, dict[str, str]] = {"policies": {"standing_ratio": "user_text_ratio"}}
"""Settings that another one stands for now, by section and name."""
_SECTION_ERROR_TYPES = {"model_type", "model_attributes_type", "dict_type", "dataclass_type"}
# The beginnings of pydantic's types of errors for numbers, booleans and choices. Only their messages quote the value: a
# wrong value of another type may be a secret.
_ERROR_TYPES_WITH_VALUE = ("int_", "float_", "bool_", "literal_", "greater_than", "less_than", "finite_number")


@dataclass(frozen=True, slots=True)
class ConfigurationFault:
    """One fault of a configuration. `source` is a file and line, an environment variable or a command's argument."""

    path: SettingPath
    message: str
    source: str | None = None

    def __str__(self) -> str:
        places = [format_setting_path(self.path)] if self.path else []
        places += ([f"({self.source})"] if places else [self.source]) if self.source else []
        return f"{' '.join(places)}: {self.message}"


class ConfigurationError(Exception):
    """The configuration cannot be used; `faults` lists all of its faults."""

    def __init__(self, faults: Sequence[ConfigurationFault]) -> None:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        super().__init__("\n  ".join([f"{count} in the configuration:", *map(str, faults)]))
        self.faults = tuple(faults)


def format_setting_path(path: Sequence[str | int]) -> str:
    """Returns a path as the documentation writes it: `models."gpt-4.1".deployments[0].provider`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if re.fullmatch(r"[A-Za-z0-9_-]+|<name>", part) else f'"{part}"')
    return text


def find_setting_place(path: SettingPath, places: Mapping[SettingPath, Place]) -> Place | None:
    """Returns where a value came from: its own place, else the place of the nearest section or list around it."""
    return next((places[path[:end]] for end in range(len(path), 0, -1) if path[:end] in places), None)


def find_nearest_name(word: str, valid: Iterable[str]) -> str | None:
    """Returns the valid name that is most similar to a word; None if none is similar."""
    by_lower = {name.lower(): name for name in valid}
    # 0.6 is difflib's own default.
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def suggest_names(word: str, valid: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name: the most similar valid name, or all valid names."""
    names = sorted(valid)
    nearest_name = find_nearest_name(word, names)
    if nearest_name:
        return f"did you mean {nearest_name!r}?"
    return f"valid: {', '.join(map(repr, names))}" if names else "there are none"


def describe_removed_setting(path: SettingPath) -> str | None:
    """Returns the message about a setting that there was once; None for all others."""
    section, name = str(path[0]), str(path[-1])
    if new_name := RENAMED_SETTINGS.get(section, {}).get(name):
        return f"this setting is gone; {new_name!r} stands in its place"
    removed = REMOVED_SETTINGS.get(section, {})
    if name not in removed:
        return None
    return f"this setting is gone, and its value is always {removed[name]}; remove it"


def build_configuration_fault(error: ErrorDetails, places: Mapping[SettingPath, str]) -> ConfigurationFault:
    """Builds the fault for a pydantic error. The message quotes the value only if the value cannot be a secret."""
    location: SettingPath = error["loc"]
    kind = error["type"]
    source = find_setting_place(location, places)
    # pydantic's marker for a wrong key of a map; the key itself stands before the marker.
    if location[-1:] == ("[key]",):
        return ConfigurationFault(location[:-1], "expected a name of letters, digits, '.', '_' and '-'", source)
    if kind == "extra_forbidden":
        return ConfigurationFault(location, _describe_unknown_setting(location), source)
    message = _describe_expected(error)
    # A source with `$` is a value with a reference: it came from the environment, where secrets are.
    if kind.startswith(_ERROR_TYPES_WITH_VALUE) and not (source and "$" in source):
        message += f", got {_shorten_value(error['input'])}"
    if kind == "literal_error" and isinstance(error["input"], str):
        nearest_name = find_nearest_name(error["input"], re.findall(r"'([^']*)'", error["ctx"]["expected"]))
        message += f"; did you mean {nearest_name!r}?" if nearest_name else ""
    return ConfigurationFault(location, message, source)


def is_misplaced_section(error: ErrorDetails) -> bool:
    """Says whether there is a plain value in the place of a section."""
    return error["type"] in _SECTION_ERROR_TYPES


def _describe_expected(error: ErrorDetails) -> str:
    """Returns what was expected in place of a wrong value."""
    if is_misplaced_section(error):
        return "expected a section with keys of its own"
    # YAML reads `key: 123` as a number: the remedy is not visible from pydantic's own words.
    if error["type"] == "string_type":
        return "expected text (put numbers, dates and true/false in quotes)"
    if error["type"] in {"tuple_type", "list_type"}:
        return "expected a list, such as [a, b]"
    if error["type"].startswith("int_"):
        return "expected a whole number"
    # All other messages are pydantic's own, which never quote the value.
    message = error["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    message = message.replace("a valid boolean", "true or false")
    return message.partition(", unable to")[0]


def _describe_unknown_setting(location: SettingPath) -> str:
    # A similar name in the same section first, then the same name in another section, then all names of the section.
    *parent, word = location
    removed_message = describe_removed_setting(location)
    if removed_message:
        return removed_message
    nearest_name = find_nearest_name(str(word), list_child_keys(find_setting_type(tuple(parent))))
    if nearest_name:
        return f"unknown setting; did you mean {format_setting_path((*parent, nearest_name))!r}?"
    elsewhere = [path for path in list_setting_paths() if path[-1] == word]
    if elsewhere:
        return f"unknown setting here; did you mean {format_setting_path(elsewhere[0])!r}?"
    return f"unknown setting; {suggest_names(str(word), list_child_keys(find_setting_type(tuple(parent))))}"


def _shorten_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
