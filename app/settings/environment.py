"""Environment variables as a layer of settings: `CONCERTINA_<SECTION>__<NAME>`, deeper levels likewise."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any

import yaml

from app.settings.configuration_errors import ConfigurationFault, SettingPath
from app.settings.key_tree import ANY_NAME, child_keys, child_type, find_type, is_map, is_scalar, list_setting_paths
from app.settings.layers import SettingsLayer
from app.settings.yaml_file import parse_yaml_value

VARIABLE_PREFIX = "CONCERTINA_"
CONFIG_VARIABLE = f"{VARIABLE_PREFIX}CONFIG"
DEFAULTS_VARIABLE = f"{VARIABLE_PREFIX}DEFAULTS"
"""Names the file of lowest precedence: what an image has in place of the built-in defaults."""
CLIENT_KEY_VARIABLE = f"{VARIABLE_PREFIX}KEY"
"""With which commands ask a running gateway; not a setting."""
TESTS_PREFIX = f"{VARIABLE_PREFIX}TEST_"
"""What the tests are told: browsers, servers. The gateways that they start find it in their environment."""

_KUBERNETES_VARIABLES = re.compile(rf"{VARIABLE_PREFIX}(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_(TCP|UDP)(_.*)?)?)")
"""What pods of a cluster find in their environment once a Service is called `concertina`."""


def read_environment(
    environ: Mapping[str, str], lower_values: Mapping[str, Any], references: Collection[str] = ()
) -> SettingsLayer:
    """Settings from the environment.

    A variable that is set but empty counts as not set. The keys that an operator chooses are matched without regard
    to case and punctuation with those in `lower_values`: `CONCERTINA_MODELS__GPT_4O__PROVIDER` is
    `models.gpt-4o.provider`.
    A variable that names no setting is refused, unless it is one of `references`, which values of a file refer to.
    """
    layer = SettingsLayer()
    for variable in sorted(environ):
        if environ[variable] and variable.startswith(VARIABLE_PREFIX) and not _is_no_setting(variable):
            _read_variable(layer, variable, environ[variable], lower_values, is_referred_to=variable in references)
    return layer


def variable_name(path: tuple[str, ...]) -> str:
    """The variable that sets `path`."""
    return VARIABLE_PREFIX + "__".join(re.sub(r"[^A-Z0-9]", "_", key.upper()) for key in path)


def _is_no_setting(variable: str) -> bool:
    if variable in (CONFIG_VARIABLE, DEFAULTS_VARIABLE, CLIENT_KEY_VARIABLE) or variable.startswith(TESTS_PREFIX):
        return True
    return _KUBERNETES_VARIABLES.fullmatch(variable) is not None


def _read_variable(
    layer: SettingsLayer, variable: str, text: str, lower_values: Mapping[str, Any], *, is_referred_to: bool
) -> None:
    path = _find_path(variable, lower_values)
    node = find_type(path)
    if node is None and is_referred_to:
        return
    if node is None:
        layer.faults.append(ConfigurationFault((), f"unknown variable; {_suggest_variable(path)}", variable))
        return
    value: Any = text
    if not is_scalar(node):
        try:
            value = parse_yaml_value(text)
        except (yaml.YAMLError, ValueError):
            layer.faults.append(
                ConfigurationFault(path, "expected YAML in one line, such as [a, b] or {a: b}", variable)
            )
            return
    layer.set_value(path, value, variable)


def _find_path(variable: str, lower_values: Mapping[str, Any]) -> SettingPath:
    path: SettingPath = ()
    lower_section: Any = lower_values
    for segment in variable.removeprefix(VARIABLE_PREFIX).split("__"):
        key = segment.lower()
        if is_map(find_type(path)) and isinstance(lower_section, dict):
            key = next((name for name in lower_section if _normalize_name(name) == _normalize_name(segment)), key)
        lower_section = lower_section.get(key) if isinstance(lower_section, dict) else None
        path = (*path, key)
    return path


def _normalize_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def _suggest_variable(path: SettingPath) -> str:
    names = tuple(str(key) for key in path)
    candidates = [variable_name(known) for known in list_setting_paths() if ANY_NAME not in known]
    for end in range(len(names)):
        candidates += [variable_name((*names[:end], key)) for key in child_keys(find_type(names[:end]))]
        if is_map(find_type(names[:end])):
            entry = child_type(find_type(names[:end]), ANY_NAME)
            candidates += [variable_name((*names[:end], names[end], key)) for key in child_keys(entry)]
    similar_variables = difflib.get_close_matches(variable_name(names), candidates, n=1, cutoff=0.75)
    return (
        f"did you mean {similar_variables[0]}?"
        if similar_variables
        else f"variables are named {VARIABLE_PREFIX}<SECTION>__<NAME>"
    )
