"""A YAML file as a layer of settings: line numbers kept, doubled keys refused, `${ENV}` expanded in values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path as File
from typing import Any

import yaml

from app.settings.configuration_errors import Fault, Path
from app.settings.layers import Layer

_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAPPING_TAG, _SEQUENCE_TAG, _NULL_TAG = (f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "null"))
_MAX_DEPTH = 32
"""Deeper than any setting."""
_MAX_CHARS = 8 * 1024 * 1024
"""Of a file with every alias written out: a few lines of aliases may stand for billions of values."""
_NODE_CHARS = 128
"""What a value counts for beside its text."""
_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\$\{[^}]*\}?")


def yaml_layer(file: File, environ: Mapping[str, str]) -> Layer:
    """Read a settings file.

    `${NAME}` in a value is replaced by that environment variable, `${NAME:-text}` by the text where the variable is
    unset or empty; `$${` is a literal `${`. Replacement happens after parsing, so a variable's value is only ever text.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        return Layer(faults=[Fault((), f"cannot read the file: {error.strerror}", str(file))])
    except UnicodeDecodeError:
        return Layer(faults=[Fault((), "expected a text file in UTF-8", str(file))])
    return _Reading(file.name, environ).read(text)


def yaml_value(text: str) -> Any:
    """A single YAML value, such as a list given in an environment variable.

    Raises:
        yaml.YAMLError: it is not YAML, nested too deeply, or too large with its aliases written out.
        ValueError: a number or a date in it is none.
    """
    _check_size(text)
    return yaml.load(text, _Loader)  # noqa: S506 - the loader is the safe one, in C where that is built


def _check_size(text: str) -> None:
    """Refuse what would take long to read, before any of it is built: the parser's events come one by one.

    Raises:
        yaml.YAMLError: it is not YAML, nested too deeply, or too large with its aliases written out.
    """
    chars = 0
    chars_of: dict[str | None, int] = {}
    open_anchors: list[tuple[str | None, int]] = []
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_anchors):
                raise _refusal(f"the anchor {event.anchor!r} contains itself", event)
            chars += chars_of.get(event.anchor, 0)
        elif isinstance(event, yaml.ScalarEvent):
            chars += _NODE_CHARS + len(event.value)
            if event.anchor is not None:
                chars_of[event.anchor] = _NODE_CHARS + len(event.value)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_anchors.append((event.anchor, chars))
            chars += _NODE_CHARS
            if len(open_anchors) > _MAX_DEPTH:
                raise _refusal(f"nested too deeply: at most {_MAX_DEPTH} levels", event)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_anchors.pop()
            if anchor is not None:
                chars_of[anchor] = chars - before
        if chars > _MAX_CHARS:
            raise _refusal("too large with its aliases written out: use fewer aliases (*name)", event)


def _refusal(problem: str, event: yaml.Event) -> yaml.MarkedYAMLError:
    mark: Any = event.start_mark  # the parser in C has a class of its own for it
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


class _Reading:
    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        self._name = name
        self._environ = environ
        self._layer = Layer()

    def read(self, text: str) -> Layer:
        loader = _Loader(text)
        try:
            _check_size(text)
            root = loader.get_single_node()
            if isinstance(root, yaml.MappingNode):
                self._layer.values = self._mapping(loader, root, ())
            elif root is not None and root.tag != _NULL_TAG:
                self._refuse((), "expected sections such as 'server:' at the top", root)
        except yaml.MarkedYAMLError as error:
            line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
            self._layer.faults.append(Fault((), f"not valid YAML: {error.problem}", f"{self._name}{line}"))
        except yaml.YAMLError as error:
            self._layer.faults.append(Fault((), f"not valid YAML: {error}", self._name))
        finally:
            loader.dispose()
        return self._layer

    def _value(self, loader: yaml.SafeLoader, node: yaml.Node, path: Path) -> Any:
        self._layer.sources.setdefault(path, self._at(node))
        if isinstance(node, yaml.MappingNode) and node.tag == _MAPPING_TAG:
            return self._mapping(loader, node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _SEQUENCE_TAG:
            return [self._value(loader, item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            value = loader.construct_object(node)
        except ValueError as error:
            return self._refuse(path, f"expected a number or a date that exists: {error}", node)
        return self._expanded(value, path, node) if isinstance(value, str) else value

    def _mapping(self, loader: yaml.SafeLoader, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        self._refuse_doubled_keys(node, path)
        loader.flatten_mapping(node)
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            try:
                key = loader.construct_object(key_node, deep=True)
            except ValueError as error:
                self._refuse(path, f"expected a key that is text: {error}", key_node)
                continue
            if not isinstance(key, str):
                self._refuse(path, f"the key {key!r} is not text: put it in quotes", key_node)
                continue
            self._layer.sources[*path, key] = self._at(key_node)
            values[key] = self._value(loader, value_node, (*path, key))
        return values

    def _refuse_doubled_keys(self, node: yaml.MappingNode, path: Path) -> None:
        lines: dict[str, int] = {}
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in lines and key != "<<":
                self._refuse((*path, key), f"given twice, first in line {lines[key]}", key_node)
            lines.setdefault(key, key_node.start_mark.line + 1)

    def _expanded(self, text: str, path: Path, node: yaml.Node) -> str:
        def replaced(match: re.Match[str]) -> str:
            reference, name, default = match[0], match[1], match[2]
            if reference == "$${":
                return "${"
            if name is None:
                self._refuse(path, f"{reference!r} is not a reference: write ${{NAME}} or ${{NAME:-default}}", node)
                return ""
            self._layer.references.add(name)
            value = self._environ.get(name)
            if value is None and default is None:
                self._refuse(path, f"the environment variable {name} is not set, and there is no default", node)
            return value or default or ""

        expanded, references = _REFERENCE.subn(replaced, text)
        if references:
            self._layer.sources[path] = f"{self._at(node)}, {text if len(text) <= 40 else '${…}'}"
        return expanded

    def _at(self, node: yaml.Node) -> str:
        return f"{self._name}:{node.start_mark.line + 1}"

    def _refuse(self, path: Path, message: str, node: yaml.Node) -> None:
        self._layer.faults.append(Fault(path, message, self._at(node)))
