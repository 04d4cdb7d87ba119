"""Reads settings from environment variables: `CONCERTINA_<SECTION>__<NAME>`, with two more underscores for each level
below.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any

import yaml

from app.settings.configuration_errors import ConfigurationFault, SettingPath, describe_removed_setting
from app.settings.settings_source import SettingsSource, build_value_source
from app.settings.settings_tree import (
    ANY_NAME,
    find_child_type,
    find_setting_type,
    is_map_type,
    is_scalar_type,
    list_child_keys,
    list_setting_paths,
)
from app.settings.yaml_file import parse_yaml_value

VARIABLE_PREFIX = "CONCERTINA_"
CONFIG_VARIABLE = f"{VARIABLE_PREFIX}CONFIG"
"""Names the settings file."""
DEFAULTS_VARIABLE = f"{VARIABLE_PREFIX}DEFAULTS"
"""Names a file of lowest precedence, with which a container image replaces built-in defaults (decision 33)."""

_OTHER_VARIABLES = re.compile(
    rf"{VARIABLE_PREFIX}(CONFIG|DEFAULTS|KEY|TEST_.*|SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_(TCP|UDP)(_.*)?)?)"
)
"""Variables that are no settings. `KEY` is the key of a client that shares the environment. `TEST_…` configures the
tests, and the gateways that tests start inherit it. Kubernetes sets those with `SERVICE` and `PORT` in every pod if a
Service is named `concertina`."""


def read_environment(
    environ: Mapping[str, str], lower_values: Mapping[str, Any], references: Collection[str] = ()
) -> list[SettingsSource]:
    """Reads settings from the environment: one source for each variable. A variable that is set but empty counts as not
    set.

    Args:
        environ: the process environment.
        lower_values: the values of the sources below. Keys that the operator chose in them are matched without regard
            to case and punctuation: `CONCERTINA_MODELS__GPT_4O__PROVIDER` sets `models.gpt-4o.provider`.
        references: the variables that values of a file refer to. Any other variable with the prefix that names no
            setting is a fault.
    """
    # Sorted, so that faults and overlapping variables do not depend on the order of the environment.
    return [
        _read_variable(variable, environ[variable], lower_values, is_referred_to=variable in references)
        for variable in sorted(environ)
        if environ[variable] and variable.startswith(VARIABLE_PREFIX) and not _OTHER_VARIABLES.fullmatch(variable)
    ]


def variable_name(path: tuple[str, ...]) -> str:
    """Returns the variable that sets the setting at `path`."""
    return VARIABLE_PREFIX + "__".join(re.sub(r"[^A-Z0-9]", "_", key.upper()) for key in path)


def _read_variable(
    variable: str, text: str, lower_values: Mapping[str, Any], *, is_referred_to: bool
) -> SettingsSource:
    path = _find_setting_path(variable, lower_values)
    node = find_setting_type(path)
    if node is None:
        # A file may take values from variables of any name, such as `${CONCERTINA_PEPPER}`.
        if is_referred_to:
            return SettingsSource()
        message = describe_removed_setting(path) or f"unknown variable; {_suggest_variable(path)}"
        return SettingsSource(faults=[ConfigurationFault((), message, variable)])
    # Scalars stay text, so that YAML does not turn a key such as `12345` or `no` into another type. pydantic parses
    # numbers and booleans.
    value: Any = text
    if not is_scalar_type(node):
        try:
            value = parse_yaml_value(text)
        except (yaml.YAMLError, ValueError):
            message = "expected YAML in one line, such as [a, b] or {a: b}"
            return SettingsSource(faults=[ConfigurationFault(path, message, variable)])
    return build_value_source(path, value, variable)


def _find_setting_path(variable: str, lower_values: Mapping[str, Any]) -> SettingPath:
    """Returns the path that a variable sets: each segment in lower case, or the key of `lower_values` that it means."""
    path: SettingPath = ()
    lower_section: Any = lower_values
    for segment in variable.removeprefix(VARIABLE_PREFIX).split("__"):
        key = segment.lower()
        # Only a map has keys of the operator's choice. The keys of sections are fixed and match as they are.
        if is_map_type(find_setting_type(path)) and isinstance(lower_section, dict):
            key = next((name for name in lower_section if _normalize_name(name) == _normalize_name(segment)), key)
        lower_section = lower_section.get(key) if isinstance(lower_section, dict) else None
        path = (*path, key)
    return path


def _normalize_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def _suggest_variable(path: SettingPath) -> str:
    """Returns the end of a message about an unknown variable: the most similar variable, or the form of all."""
    names = tuple(str(key) for key in path)
    # Paths with names of the operator's choice have no fixed variable. The loop builds theirs from the names in `path`.
    candidates = [variable_name(known) for known in list_setting_paths() if ANY_NAME not in known]
    for end in range(len(names)):
        candidates += [variable_name((*names[:end], key)) for key in list_child_keys(find_setting_type(names[:end]))]
        if is_map_type(find_setting_type(names[:end])):
            entry = find_child_type(find_setting_type(names[:end]), ANY_NAME)
            candidates += [variable_name((*names[:end], names[end], key)) for key in list_child_keys(entry)]
    # Stricter than for single names: all variables share a prefix, so even unlike ones are similar.
    similar_variables = difflib.get_close_matches(variable_name(names), candidates, n=1, cutoff=0.75)
    return (
        f"did you mean {similar_variables[0]}?"
        if similar_variables
        else f"variables are named {VARIABLE_PREFIX}<SECTION>__<NAME>"
    )
