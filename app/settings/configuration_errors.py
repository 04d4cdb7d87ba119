"""What is wrong with a configuration, said so that it can be mended: where, what was expected, what was meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import ErrorDetails

from app.settings.key_tree import child_keys, find_type, list_setting_paths

SettingPath = tuple[str | int, ...]
"""Where a setting stands: keys and list positions from the top."""

_SECTION_ERROR_TYPES = {"model_type", "model_attributes_type", "dict_type", "dataclass_type"}
_ERROR_TYPES_WITH_VALUE = {
    "int_parsing",
    "int_type",
    "int_from_float",
    "float_parsing",
    "float_type",
    "bool_parsing",
    "bool_type",
}
_ERROR_TYPES_WITH_VALUE |= {
    "literal_error",
    "greater_than",
    "greater_than_equal",
    "less_than",
    "less_than_equal",
    "finite_number",
}


@dataclass(frozen=True, slots=True)
class ConfigurationFault:
    """One thing that is wrong. `source` is a file and line, an environment variable or an argument."""

    path: SettingPath
    message: str
    source: str | None = None

    def __str__(self) -> str:
        where = [format_path(self.path)] if self.path else []
        where += ([f"({self.source})"] if where else [self.source]) if self.source else []
        return f"{' '.join(where)}: {self.message}"


class ConfigurationError(Exception):
    """The configuration cannot be used; `faults` lists everything that is wrong with it."""

    def __init__(self, faults: Sequence[ConfigurationFault]) -> None:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        super().__init__("\n  ".join([f"{count} in the configuration:", *map(str, faults)]))
        self.faults = tuple(faults)


def format_path(path: Sequence[str | int]) -> str:
    """A path as it is written in the documentation: `models."gpt-4.1".deployments[0].provider`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if re.fullmatch(r"[A-Za-z0-9_-]+|<name>", part) else f'"{part}"')
    return text


def find_source(path: SettingPath, sources: Mapping[SettingPath, str]) -> str | None:
    """Where a value came from: its own entry, or else that of the nearest section around it."""
    return next((sources[path[:end]] for end in range(len(path), 0, -1) if path[:end] in sources), None)


def find_nearest_name(word: str, valid: Iterable[str]) -> str | None:
    """The valid name that was probably meant, if one is near."""
    by_lower = {name.lower(): name for name in valid}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def suggest_names(word: str, valid: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest valid one, or all of them."""
    names = sorted(valid)
    nearest_name = find_nearest_name(word, names)
    if nearest_name:
        return f"did you mean {nearest_name!r}?"
    return f"valid: {', '.join(map(repr, names))}" if names else "there are none"


def build_fault(error: ErrorDetails, sources: Mapping[SettingPath, str]) -> ConfigurationFault:
    """A pydantic error as a fault. The value is told only where it cannot be a secret."""
    location: SettingPath = error["loc"]
    kind = error["type"]
    source = find_source(location, sources)
    if location[-1:] == ("[key]",):
        return ConfigurationFault(location[:-1], "expected a name of letters, digits, '.', '_' and '-'", source)
    if kind == "extra_forbidden":
        return ConfigurationFault(location, _describe_unknown_setting(location), source)
    message = _describe_expected(error)
    if kind in _ERROR_TYPES_WITH_VALUE and not (source and "$" in source):
        message += f", got {_shorten_value(error['input'])}"
    if kind == "literal_error" and isinstance(error["input"], str):
        nearest_name = find_nearest_name(error["input"], re.findall(r"'([^']*)'", error["ctx"]["expected"]))
        message += f"; did you mean {nearest_name!r}?" if nearest_name else ""
    return ConfigurationFault(location, message, source)


def is_misplaced_section(error: ErrorDetails) -> bool:
    """Whether a plain value stands where a section with keys belongs."""
    return error["type"] in _SECTION_ERROR_TYPES


def _describe_expected(error: ErrorDetails) -> str:
    if is_misplaced_section(error):
        return "expected a section with keys of its own"
    if error["type"] == "string_type":
        return "expected text (put numbers, dates and true/false in quotes)"
    if error["type"] in {"tuple_type", "list_type"}:
        return "expected a list, such as [a, b]"
    if error["type"].startswith("int_"):
        return "expected a whole number"
    message = error["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    message = message.replace("a valid boolean", "true or false")
    return message.partition(", unable to")[0]


def _describe_unknown_setting(location: SettingPath) -> str:
    *parent, word = location
    nearest_name = find_nearest_name(str(word), child_keys(find_type(tuple(parent))))
    if nearest_name:
        return f"unknown setting; did you mean {format_path((*parent, nearest_name))!r}?"
    elsewhere = [path for path in list_setting_paths() if path[-1] == word]
    if elsewhere:
        return f"unknown setting here; did you mean {format_path(elsewhere[0])!r}?"
    return f"unknown setting; {suggest_names(str(word), child_keys(find_type(tuple(parent))))}"


def _shorten_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
