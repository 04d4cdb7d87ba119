"""Finds which keys and types exist at which path of the settings. Suggestions in messages, environment variables and
the documentation are built from it.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from functools import cache
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from app.settings.sections import Settings

ANY_NAME = "<name>"
"""Stands for a name that the operator chooses, in the path of a documented setting."""
ANY_POSITION = "[]"
"""Stands for a position in a list, in the same paths."""


def list_child_keys(node: Any) -> tuple[str, ...]:
    """Returns the fixed keys below a type: the settings of a section; an empty tuple for other types."""
    return tuple(node.model_fields) if _is_section_type(node) else ()


def find_child_type(node: Any, key: str | int) -> Any:
    """Returns the type below `node` at `key`; None if there is none. Every key of a map or list has the same type."""
    if _is_section_type(node):
        field = node.model_fields.get(str(key))
        return _unwrap_annotation(field.annotation) if field else None
    if get_origin(node) is dict:
        return _unwrap_annotation(get_args(node)[1])
    if get_origin(node) is tuple:
        return _unwrap_annotation(get_args(node)[0])
    return None


def find_setting_type(path: tuple[str | int, ...]) -> Any:
    """Returns the type of the setting at `path`; None if there is none."""
    node: Any = Settings
    for key in path:
        node = find_child_type(node, key)
    return node


@cache
def list_setting_paths() -> tuple[tuple[str, ...], ...]:
    """Returns the path of every setting that holds a value, in the order of declaration. Names that the operator
    chooses are `<name>`, list positions `[]`.
    """
    return tuple(_walk_setting_paths(Settings, ()))


def is_map_type(node: Any) -> bool:
    """Says whether the operator chooses the keys below this type."""
    return get_origin(node) is dict


def is_scalar_type(node: Any) -> bool:
    """Says whether a value of this type is plain text, and not a section, map or list."""
    return not (_is_section_type(node) or is_map_type(node) or get_origin(node) is tuple)


def _walk_setting_paths(node: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if _is_section_type(node):
        for name in node.model_fields:
            yield from _walk_setting_paths(find_child_type(node, name), (*path, name))
    # Maps and lists of plain values, such as `headers`, are one setting.
    elif is_map_type(node) and _is_section_type(find_child_type(node, ANY_NAME)):
        yield from _walk_setting_paths(find_child_type(node, ANY_NAME), (*path, ANY_NAME))
    elif get_origin(node) is tuple and _is_section_type(find_child_type(node, 0)):
        yield from _walk_setting_paths(find_child_type(node, 0), (*path, ANY_POSITION))
    else:
        yield path


def _unwrap_annotation(annotation: Any) -> Any:
    """Returns a type without `Annotated` and `| None`. No setting is a union of two other types."""
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(option for option in get_args(annotation) if option is not types.NoneType)
    return _unwrap_annotation(annotation.__origin__) if hasattr(annotation, "__metadata__") else annotation


def _is_section_type(node: Any) -> bool:
    return isinstance(node, type) and issubclass(node, BaseModel)
