"""Reads settings from a YAML file: remembers the line of each value, refuses duplicate keys, and expands `${NAME}` in
values. PyYAML's own loading does none of this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path as File
from typing import Any

import yaml

from app.settings.configuration_errors import ConfigurationFault, SettingPath
from app.settings.settings_source import SettingsSource

_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAPPING_TAG, _SEQUENCE_TAG, _NULL_TAG = (f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "null"))
_MAX_DEPTH = 32
"""The deepest nesting that is read. No setting is nested as deeply."""
_MAX_FILE_CHARS = 1024 * 1024
"""The longest text that is read, about two hundred times the shipped file (decision 30)."""
_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\$\{[^}]*\}?")


def read_yaml_file(file: File, environ: Mapping[str, str]) -> SettingsSource:
    """Reads a settings file. What is wrong with the file is in the source's `faults`.

    `${NAME}` in a value is replaced by that environment variable, `${NAME:-text}` by the text if the variable is unset
    or empty; `$${` is a literal `${`. The replacement happens after the parsing, so the value of a variable is always
    text and never YAML.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        return SettingsSource(faults=[ConfigurationFault((), f"cannot read the file: {error.strerror}", str(file))])
    except UnicodeDecodeError:
        return SettingsSource(faults=[ConfigurationFault((), "expected a text file in UTF-8", str(file))])
    return _YamlFileReader(file.name, environ).read(text)


def parse_yaml_value(text: str) -> Any:
    """Parses one YAML value, such as a list in an environment variable.

    Raises:
        yaml.YAMLError: the text is not YAML, too long, nested too deeply, or an anchor contains itself.
        ValueError: a number or a date in the text is not valid.
    """
    _check_yaml_size(text)
    return yaml.load(text, _Loader)  # noqa: S506 - the loader is the safe one, in C where that is built


def _check_yaml_size(text: str) -> None:
    """Refuses a text that is too long or nested too deeply, before any value is built: PyYAML recurses to build it.

    Raises:
        yaml.YAMLError: the text is not YAML, too long, nested too deeply, or an anchor contains itself.
    """
    if len(text) > _MAX_FILE_CHARS:
        raise yaml.YAMLError(f"too long: at most {_MAX_FILE_CHARS:,} characters")
    open_anchors: list[str | None] = []
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_anchors.append(event.anchor)
            if len(open_anchors) > _MAX_DEPTH:
                raise _make_yaml_error(f"nested too deeply: at most {_MAX_DEPTH} levels", event)
        elif isinstance(event, yaml.CollectionEndEvent):
            open_anchors.pop()
        elif isinstance(event, yaml.AliasEvent) and event.anchor in open_anchors:
            raise _make_yaml_error(f"the anchor {event.anchor!r} contains itself", event)


def _make_yaml_error(problem: str, event: yaml.Event) -> yaml.MarkedYAMLError:
    mark: Any = event.start_mark  # the parser in C has its own class for marks, which the type stubs do not know
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


class _YamlFileReader:
    """Reads one file. It goes through the nodes itself, because only nodes have line numbers."""

    def __init__(self, file_name: str, environ: Mapping[str, str]) -> None:
        self._file_name = file_name
        self._environ = environ
        self._source = SettingsSource()

    def read(self, text: str) -> SettingsSource:
        loader = _Loader(text)
        try:
            # Before the nodes are composed: the composer recurses, so deep nesting would exhaust the stack.
            _check_yaml_size(text)
            root = loader.get_single_node()
            if isinstance(root, yaml.MappingNode):
                self._source.values = self._read_mapping(loader, root, ())
            elif root is not None and root.tag != _NULL_TAG:
                self._add_fault((), "expected sections such as 'server:' at the top", root)
        except yaml.MarkedYAMLError as error:
            mark, problem = error.problem_mark, f"not valid YAML: {error.problem}"
            if mark and text[mark.index : mark.index + 1] == "\t":
                problem = "a tab where YAML needs spaces"
            line = f":{mark.line + 1}" if mark else ""
            self._source.faults.append(ConfigurationFault((), problem, f"{self._file_name}{line}"))
        # Errors of the reader, such as a control character, have no mark and thus no line.
        except yaml.YAMLError as error:
            self._source.faults.append(ConfigurationFault((), f"not valid YAML: {error}", self._file_name))
        finally:
            loader.dispose()
        return self._source

    def _read_value(self, loader: yaml.SafeLoader, node: yaml.Node, path: SettingPath) -> Any:
        # A key has set the place already, with its own line; only list elements are new here.
        self._source.places.setdefault(path, self._format_place(node))
        # Scalars, and nodes with another tag (`!!set`, `!!python/…`), go to the safe loader, which builds or refuses
        # them.
        if isinstance(node, yaml.MappingNode) and node.tag == _MAPPING_TAG:
            return self._read_mapping(loader, node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _SEQUENCE_TAG:
            return [self._read_value(loader, item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            value = loader.construct_object(node)
        except ValueError as error:
            return self._add_fault(path, f"expected a number or a date that exists: {error}", node)
        return self._expand_references(value, path, node) if isinstance(value, str) else value

    def _read_mapping(self, loader: yaml.SafeLoader, node: yaml.MappingNode, path: SettingPath) -> dict[str, Any]:
        # Before the merge keys (`<<`) are resolved: a key that overrides a merged one is no duplicate.
        self._refuse_duplicate_keys(node, path)
        loader.flatten_mapping(node)
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            try:
                key = loader.construct_object(key_node, deep=True)
            except ValueError as error:
                self._add_fault(path, f"expected a key that is text: {error}", key_node)
                continue
            if not isinstance(key, str):
                self._add_fault(path, f"the key {key!r} is not text: put it in quotes", key_node)
                continue
            self._source.places[*path, key] = self._format_place(key_node)
            values[key] = self._read_value(loader, value_node, (*path, key))
        return values

    def _refuse_duplicate_keys(self, node: yaml.MappingNode, path: SettingPath) -> None:
        lines: dict[str, int] = {}
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in lines and key != "<<":
                self._add_fault((*path, key), f"given twice, first in line {lines[key]}", key_node)
            lines.setdefault(key, key_node.start_mark.line + 1)

    def _expand_references(self, text: str, path: SettingPath, node: yaml.Node) -> str:
        # Every branch returns text, also after a fault, so that all faults of a value are reported.
        def replaced(match: re.Match[str]) -> str:
            reference, name, default = match[0], match[1], match[2]
            if reference == "$${":
                return "${"
            if name is None:
                self._add_fault(path, f"{reference!r} is not a reference: write ${{NAME}} or ${{NAME:-default}}", node)
                return ""
            self._source.referenced_variables.add(name)
            value = self._environ.get(name)
            if value is None and default is None:
                self._add_fault(path, f"the environment variable {name} is not set, and there is no default", node)
            return value or default or ""

        expanded, references = _REFERENCE.subn(replaced, text)
        if references:
            variable = next((match[1] for match in _REFERENCE.finditer(text) if match[1]), None)
            if variable is not None and not expanded.strip():
                self._source.empty_variables[path] = variable
            # The place shows the reference: an operator sees which variable has the wrong value, and
            # `build_configuration_fault` sees that the value must not be quoted.
            self._source.places[path] = f"{self._format_place(node)}, {text if len(text) <= 40 else '${…}'}"
        return expanded

    def _format_place(self, node: yaml.Node) -> str:
        return f"{self._file_name}:{node.start_mark.line + 1}"

    def _add_fault(self, path: SettingPath, message: str, node: yaml.Node) -> None:
        self._source.faults.append(ConfigurationFault(path, message, self._format_place(node)))
