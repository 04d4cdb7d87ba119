"""Environment variables as a layer of settings: `CONCERTINA_<SECTION>__<NAME>`, deeper levels likewise."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any

import yaml

from app.settings.configuration_errors import Fault, Path
from app.settings.key_tree import ANY_NAME, child, children, is_map, is_scalar, known_paths, node_at
from app.settings.layers import Layer
from app.settings.yaml_file import yaml_value

PREFIX = "CONCERTINA_"
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
DEFAULTS_VARIABLE = f"{PREFIX}DEFAULTS"
"""Names the file of lowest precedence: what an image has in place of the built-in defaults."""
KEY_VARIABLE = f"{PREFIX}KEY"
"""With which commands ask a running gateway; not a setting."""
TESTS_PREFIX = f"{PREFIX}TEST_"
"""What the tests are told: browsers, servers. The gateways that they start find it in their environment."""

_SET_BY_KUBERNETES = re.compile(rf"{PREFIX}(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_(TCP|UDP)(_.*)?)?)")
"""What pods of a cluster find in their environment once a Service is called `concertina`."""


def environment_layer(environ: Mapping[str, str], below: Mapping[str, Any], references: Collection[str] = ()) -> Layer:
    """Settings from the environment.

    A variable that is set but empty counts as not set. The keys that an operator chooses are matched without regard
    to case and punctuation with those in `below`: `CONCERTINA_MODELS__GPT_4O__PROVIDER` is `models.gpt-4o.provider`.
    A variable that names no setting is refused, unless it is one of `references`, which values of a file refer to.
    """
    layer = Layer()
    for variable in sorted(environ):
        if environ[variable] and variable.startswith(PREFIX) and not _is_foreign(variable):
            _take(layer, variable, environ[variable], below, is_referred_to=variable in references)
    return layer


def variable_of(path: tuple[str, ...]) -> str:
    """The variable that sets `path`."""
    return PREFIX + "__".join(re.sub(r"[^A-Z0-9]", "_", key.upper()) for key in path)


def _is_foreign(variable: str) -> bool:
    if variable in (CONFIG_VARIABLE, DEFAULTS_VARIABLE, KEY_VARIABLE) or variable.startswith(TESTS_PREFIX):
        return True
    return _SET_BY_KUBERNETES.fullmatch(variable) is not None


def _take(layer: Layer, variable: str, text: str, below: Mapping[str, Any], *, is_referred_to: bool) -> None:
    path = _path_of(variable, below)
    node = node_at(path)
    if node is None and is_referred_to:
        return
    if node is None:
        layer.faults.append(Fault((), f"unknown variable; {_suggestion(path)}", variable))
        return
    value: Any = text
    if not is_scalar(node):
        try:
            value = yaml_value(text)
        except (yaml.YAMLError, ValueError):
            layer.faults.append(Fault(path, "expected YAML in one line, such as [a, b] or {a: b}", variable))
            return
    layer.put(path, value, variable)


def _path_of(variable: str, below: Mapping[str, Any]) -> Path:
    path: Path = ()
    known: Any = below
    for segment in variable.removeprefix(PREFIX).split("__"):
        key = segment.lower()
        if is_map(node_at(path)) and isinstance(known, dict):
            key = next((name for name in known if _plain(name) == _plain(segment)), key)
        known = known.get(key) if isinstance(known, dict) else None
        path = (*path, key)
    return path


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def _suggestion(path: Path) -> str:
    names = tuple(str(key) for key in path)
    candidates = [variable_of(known) for known in known_paths() if ANY_NAME not in known]
    for end in range(len(names)):
        candidates += [variable_of((*names[:end], key)) for key in children(node_at(names[:end]))]
        if is_map(node_at(names[:end])):
            entry = child(node_at(names[:end]), ANY_NAME)
            candidates += [variable_of((*names[:end], names[end], key)) for key in children(entry)]
    near = difflib.get_close_matches(variable_of(names), candidates, n=1, cutoff=0.75)
    return f"did you mean {near[0]}?" if near else f"variables are named {PREFIX}<SECTION>__<NAME>"
