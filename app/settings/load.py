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

from app.settings.checks import contradictions
from app.settings.configuration_errors import (
    ConfigurationError,
    Fault,
    Path,
    dotted,
    fault_from,
    is_misplaced_section,
    source_of,
)
from app.settings.environment import CONFIG_VARIABLE, DEFAULTS_VARIABLE, KEY_VARIABLE, environment_layer
from app.settings.key_tree import child, children, is_map
from app.settings.layers import Layer
from app.settings.sections import Settings
from app.settings.yaml_file import yaml_layer


def load(
    config: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    arguments: Mapping[Path, Any] | None = None,
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
    merged = Layer(_built_in())
    defaults = environ.get(DEFAULTS_VARIABLE)
    if defaults:
        merged = yaml_layer(File(defaults), environ).over(merged)
    name = config or environ.get(CONFIG_VARIABLE)
    file = yaml_layer(File(name), environ) if name else Layer()
    merged = file.over(merged)
    variables = environment_layer(environ, merged.values, merged.references)
    merged = variables.over(merged)
    if on_override is not None:
        for sentence in _overrides(variables, file):
            on_override(sentence)
    given = Layer()
    for path, value in (arguments or {}).items():
        given.put(path, copy.deepcopy(value), f"--{path[-1]}")
    return _validated(given.over(merged))


def client_key(environ: Mapping[str, str] = os.environ) -> str | None:
    """The key with which commands ask a running gateway, if the environment has one. No setting of a gateway."""
    return environ.get(KEY_VARIABLE) or None


def _overrides(variables: Layer, file: Layer) -> Iterator[str]:
    """A sentence for each value of the file that a variable overrides."""
    for section, variable in variables.sources.items():
        value: Any = variables.values
        for key in section:
            value = value[key]
        for path in _leaves(value, section):
            if path in file.sources:
                yield f"{variable} overrides {dotted(path)} ({file.sources[path]})"


def _leaves(value: Any, path: Path) -> Iterator[Path]:
    """The paths at and below `path` that hold something else than a section."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _leaves(below, (*path, key))
    else:
        yield path


def _built_in() -> dict[str, Any]:
    """The named policies, so that a file which changes or adds one keeps the others."""
    return {"policies": {name: policy.model_dump(exclude_unset=True) for name, policy in Settings().policies.items()}}


def _validated(layer: Layer) -> Settings:
    """Settings from merged values.

    What cannot be read is put aside before the parts are held against each other, so that one bad value hides no
    contradiction elsewhere.
    """
    _open_empty_sections(layer.values, Settings)
    faults = list(layer.faults)
    put_aside: set[Path] = set()
    while True:
        try:
            settings = Settings.model_validate(layer.values)
            break
        except ValidationError as error:
            errors = error.errors(include_url=False)
            faults += [fault_from(details, layer.sources) for details in errors]
            for details in reversed(errors):
                _put_aside(layer.values, details)
                put_aside.add(details["loc"])
    for path, message in contradictions(settings):
        if not any(path[:end] in put_aside for end in range(1, len(path) + 1)):
            faults.append(Fault(path, message, source_of(path, layer.sources)))
    if faults:
        raise ConfigurationError(faults)
    return settings


def _open_empty_sections(values: dict[str, Any], node: Any) -> None:
    """Turn sections whose lines are all commented out, which YAML reads as null, into empty ones."""
    for key, value in values.items():
        below = child(node, key)
        if value is None and (children(below) or is_map(below)):
            values[key] = {}
        elif isinstance(value, dict):
            _open_empty_sections(value, below)


def _put_aside(values: Any, details: ErrorDetails) -> None:
    *parents, last = [part for part in details["loc"] if part != "[key]"]
    with contextlib.suppress(KeyError, IndexError):  # it went with a section around it
        for part in parents:
            values = values[part]
        if is_misplaced_section(details):
            values[last] = {}
        else:
            del values[last]
