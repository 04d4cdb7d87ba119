"""Loads the settings from their sources and reports all faults at once. Each source wins over the one before: built-in
defaults, the file of defaults, the settings file, environment variables, arguments. No other module reads the process
environment.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path as File
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from app.settings.checks import find_contradictions
from app.settings.configuration_errors import (
    ConfigurationError,
    ConfigurationFault,
    SettingPath,
    build_configuration_fault,
    find_setting_place,
    format_setting_path,
    is_misplaced_section,
)
from app.settings.environment import CONFIG_VARIABLE, DEFAULTS_VARIABLE, read_environment
from app.settings.policies import build_default_policies
from app.settings.sections import Settings
from app.settings.settings_in_force import find_origins, list_value_paths
from app.settings.settings_source import SettingsSource, build_value_source, merge_sources
from app.settings.yaml_file import read_yaml_file

LITELLM_MESSAGE = "This is a configuration of LiteLLM. docs/moving-from-litellm.md has each setting's counterpart."


def load_settings(
    config: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    arguments: Mapping[SettingPath, Any] | None = None,
    on_override: Callable[[str], None] | None = None,
) -> Settings:
    """Loads the settings of this process.

    Args:
        config: the settings file; None: the file that `CONCERTINA_CONFIG` names, or no file.
        environ: the process environment.
        arguments: values of command-line arguments by path, such as ``{("server", "port"): 8001}``.
        on_override: called with a sentence for each value of the settings file that a variable overrides. The sentence
            names the variable and the setting, never a value: values may be secrets.

    Raises:
        ConfigurationError: with all faults of all sources.
    """
    names = (environ.get(DEFAULTS_VARIABLE), config or environ.get(CONFIG_VARIABLE))
    defaults, file = (read_yaml_file(File(name), environ) if name else SettingsSource() for name in names)
    if "model_list" in file.values:
        # One fault in place of one for each of its sections, which no setting of this gateway resembles.
        raise ConfigurationError(
            [ConfigurationFault((), LITELLM_MESSAGE, find_setting_place(("model_list",), file.places))]
        )
    sources = [_build_default_policy_source(), defaults, file]
    # The environment comes after the files: its variables are matched with the names that the operator chose in them.
    references = defaults.referenced_variables | file.referenced_variables
    variables = read_environment(environ, merge_sources(sources), references)
    # Values of the file of defaults may be overridden without a message: that is what they are for (decision 33).
    if on_override is not None:
        for sentence in _describe_overrides(variables, file):
            on_override(sentence)
    # Copies, since the validation changes nested values in place.
    argument_sources = [
        build_value_source(path, copy.deepcopy(value), f"--{path[-1]}") for path, value in (arguments or {}).items()
    ]
    settings = _validate_sources([*sources, *variables, *argument_sources])
    settings.attach_origins(
        find_origins(
            [
                ("default", defaults),
                ("file", file),
                *(("environment", variable) for variable in variables),
                *(("command line", argument) for argument in argument_sources),
            ]
        ),
        named_file=config,
    )
    return settings


def is_variable_set(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Says whether an environment variable has a value, without showing it."""
    return bool(environ.get(name))


def _describe_overrides(variables: Sequence[SettingsSource], file: SettingsSource) -> Iterator[str]:
    """Yields a sentence for each value of the settings file that a variable overrides."""
    for variable in variables:
        for path in list_value_paths(variable()):
            if path in file.places:
                place = find_setting_place(path, variable.places)
                yield f"{place} overrides {format_setting_path(path)} ({file.places[path]})"


def _build_default_policy_source() -> SettingsSource:
    """Returns the built-in policies as the lowest source, so that a file that changes or adds a policy keeps the
    others. All other defaults are in the models.
    """
    policies = {name: policy.model_dump(exclude_unset=True) for name, policy in build_default_policies().items()}
    return SettingsSource({"policies": policies})


def _validate_sources(sources: Sequence[SettingsSource]) -> Settings:
    """Builds the settings from merged values. Invalid values are removed before contradictions are searched, so that
    one invalid value hides no contradiction elsewhere.

    Raises:
        ConfigurationError: with all faults of the sources, of single values, and between values.
    """
    values = merge_sources(sources)
    places = ChainMap(*(source.places for source in reversed(sources)))
    faults = [fault for source in sources for fault in source.faults]
    removed_paths: set[SettingPath] = set()
    # Each round removes the values that pydantic refused, and validates the rest again.
    while True:
        try:
            settings = Settings.model_validate(values)
            break
        except ValidationError as error:
            errors = error.errors(include_url=False)
            faults += [build_configuration_fault(details, places) for details in errors]
            # Backwards: to delete an element of a list moves the ones behind it.
            for details in reversed(errors):
                _remove_invalid_value(values, details)
                removed_paths.add(details["loc"])
    # A contradiction at a removed value follows from the removal: the default is in its place. One mistake is reported
    # once.
    for path, message in find_contradictions(settings):
        if not any(path[:end] in removed_paths for end in range(1, len(path) + 1)):
            faults.append(ConfigurationFault(path, message, find_setting_place(path, places)))
    if faults:
        raise ConfigurationError(faults)
    return settings


def _remove_invalid_value(values: Any, details: ErrorDetails) -> None:
    """Removes the value that a pydantic error is about, or empties the section in whose place it stands."""
    path = [part for part in details["loc"] if part != "[key]"]
    if details["type"] == "missing":
        # There is nothing to remove at a missing value's own place. What lacks it is removed, or the next round would
        # find the same error again, and the rounds would never end.
        path.pop()
    *parents, last = path
    # The value may be gone already, together with a section around it that had an error of its own.
    with contextlib.suppress(KeyError, IndexError):
        for part in parents:
            values = values[part]
        if is_misplaced_section(details):
            values[last] = {}
        else:
            del values[last]
