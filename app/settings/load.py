"""Settings from their sources: built-in defaults, then the file of defaults, then a YAML file, then the environment,
then arguments; all faults at once. The only place that reads the process environment."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path as File
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from app.settings.checks import find_contradictions
from app.settings.configuration_errors import (
    ConfigurationError,
    ConfigurationFault,
    SettingPath,
    build_fault,
    find_source,
    format_path,
    is_misplaced_section,
)
from app.settings.environment import CLIENT_KEY_VARIABLE, CONFIG_VARIABLE, DEFAULTS_VARIABLE, read_environment
from app.settings.key_tree import child_keys, child_type, is_map
from app.settings.layers import SettingsLayer
from app.settings.sections import Settings
from app.settings.yaml_file import read_yaml_file


def load_settings(
    config: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    arguments: Mapping[SettingPath, Any] | None = None,
    on_override: Callable[[str], None] | None = None,
) -> Settings:
    """The settings of this process.

    Args:
        config: the YAML file; without it `CONCERTINA_CONFIG` names one, and without that there is none.
        environ: the process environment.
        arguments: values given on the command line by path, such as ``{("server", "port"): 8001}``.
        on_override: called with a sentence for each value of the YAML file that a variable overrides; the sentence
            names the variable and the setting, and no value.

    Raises:
        ConfigurationError: with everything that is wrong, wherever it came from.
    """
    merged = SettingsLayer(_build_default_values())
    defaults = environ.get(DEFAULTS_VARIABLE)
    if defaults:
        merged = read_yaml_file(File(defaults), environ).merge_over(merged)
    name = config or environ.get(CONFIG_VARIABLE)
    file = read_yaml_file(File(name), environ) if name else SettingsLayer()
    merged = file.merge_over(merged)
    variables = read_environment(environ, merged.values, merged.referenced_variables)
    merged = variables.merge_over(merged)
    if on_override is not None:
        for sentence in _describe_overrides(variables, file):
            on_override(sentence)
    argument_layer = SettingsLayer()
    for path, value in (arguments or {}).items():
        argument_layer.set_value(path, copy.deepcopy(value), f"--{path[-1]}")
    return _validate_layer(argument_layer.merge_over(merged))


def read_client_key(environ: Mapping[str, str] = os.environ) -> str | None:
    """The key with which commands ask a running gateway, if the environment has one. No setting of a gateway."""
    return environ.get(CLIENT_KEY_VARIABLE) or None


def _describe_overrides(variables: SettingsLayer, file: SettingsLayer) -> Iterator[str]:
    """A sentence for each value of the file that a variable overrides."""
    for section, variable in variables.sources.items():
        value: Any = variables.values
        for key in section:
            value = value[key]
        for path in _list_value_paths(value, section):
            if path in file.sources:
                yield f"{variable} overrides {format_path(path)} ({file.sources[path]})"


def _list_value_paths(value: Any, path: SettingPath) -> Iterator[SettingPath]:
    """The paths at and below `path` that hold something else than a section."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _list_value_paths(below, (*path, key))
    else:
        yield path


def _build_default_values() -> dict[str, Any]:
    """The named policies, so that a file which changes or adds one keeps the others."""
    return {"policies": {name: policy.model_dump(exclude_unset=True) for name, policy in Settings().policies.items()}}


def _validate_layer(layer: SettingsLayer) -> Settings:
    """Settings from merged values.

    What cannot be read is put aside before the parts are held against each other, so that one bad value hides no
    contradiction elsewhere.
    """
    _replace_null_sections(layer.values, Settings)
    faults = list(layer.faults)
    removed_paths: set[SettingPath] = set()
    while True:
        try:
            settings = Settings.model_validate(layer.values)
            break
        except ValidationError as error:
            errors = error.errors(include_url=False)
            faults += [build_fault(details, layer.sources) for details in errors]
            for details in reversed(errors):
                _remove_invalid_value(layer.values, details)
                removed_paths.add(details["loc"])
    for path, message in find_contradictions(settings):
        if not any(path[:end] in removed_paths for end in range(1, len(path) + 1)):
            faults.append(ConfigurationFault(path, message, find_source(path, layer.sources)))
    if faults:
        raise ConfigurationError(faults)
    return settings


def _replace_null_sections(values: dict[str, Any], node: Any) -> None:
    """Turn sections whose lines are all commented out, which YAML reads as null, into empty ones."""
    for key, value in values.items():
        value_type = child_type(node, key)
        if value is None and (child_keys(value_type) or is_map(value_type)):
            values[key] = {}
        elif isinstance(value, dict):
            _replace_null_sections(value, value_type)


def _remove_invalid_value(values: Any, details: ErrorDetails) -> None:
    *parents, last = [part for part in details["loc"] if part != "[key]"]
    with contextlib.suppress(KeyError, IndexError):  # it went with a section around it
        for part in parents:
            values = values[part]
        if is_misplaced_section(details):
            values[last] = {}
        else:
            del values[last]
