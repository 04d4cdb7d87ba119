"""Makes a message of each kind that the types of OpenAI's and Anthropic's packages have, with all its fields.

Each text in a sample is another word, so a test can see where it has gone.
"""

from __future__ import annotations

import collections.abc
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final

import typing_extensions

Path = tuple[str, ...]
WORD: Final = "w{:07d}"
"""A word of eight characters, which are also valid base64."""
MAX_DEPTH: Final = 9
UNIONS: Final = (typing.Union, types.UnionType)
LISTS: Final = (list, collections.abc.Iterable, collections.abc.Sequence)


class SampleMaker:
    """Makes values of types.

    Args:
        variant: which member of a union is taken.

    Attributes:
        paths: for each word, the fields around it, from the outside, with the `type` of each object.
    """

    def __init__(self, variant: int = 0) -> None:
        self._variant = variant
        self.paths: dict[str, Path] = {}

    def make(self, kind: Any, path: Path = ()) -> Any:
        """Makes a value with all fields. Of a union it has one of the widest members; a list of objects has one of
        each."""
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in (typing.Annotated, typing.Required, typing.NotRequired):
            return self.make(arguments[0], path)
        if origin is typing.Literal:
            return arguments[0]
        if origin in UNIONS:
            members = list_members(kind)
            widest = [member for member in members if _rank(member) == max(map(_rank, members))]
            return self.make(widest[self._variant % len(widest)], path)
        if _is_list(origin):
            return [self.make(one, path) for one in list_members(arguments[0])] if len(path) < MAX_DEPTH else []
        if typing_extensions.is_typeddict(kind):
            return self._make_object(kind, path)
        if kind in (bool, int, float):
            return kind(1)
        if origin in (dict, Mapping) or kind in (dict, object):
            return {"key": self._make_word((*path, "key"))}
        return None if kind is type(None) else self._make_word(path)

    def _make_object(self, kind: Any, path: Path) -> dict[str, Any]:
        hints = typing_extensions.get_type_hints(kind)
        tag = typing.get_args(hints["type"])[0] if typing.get_args(hints.get("type")) else ""
        return {name: self.make(hint, (*path, tag, name)) for name, hint in hints.items()}

    def _make_word(self, path: Path) -> str:
        word = WORD.format(len(self.paths))
        self.paths[word] = path
        return word


def list_members(kind: Any) -> list[Any]:
    """The types of a union, those of unions in it included."""
    origin = typing.get_origin(kind)
    if origin in (typing.Annotated, *UNIONS):
        arguments = typing.get_args(kind) if origin in UNIONS else typing.get_args(kind)[:1]
        return [member for argument in arguments for member in list_members(argument)]
    return [kind]


def list_typed_dicts(kind: Any) -> Iterator[Any]:
    """The typed dictionaries among the members of a union."""
    return (member for member in list_members(kind) if typing_extensions.is_typeddict(member))


def _is_list(origin: Any) -> bool:
    return origin in LISTS or getattr(origin, "__name__", "") == "SequenceNotStr"


def _rank(kind: Any) -> int:
    if _is_list(typing.get_origin(kind)):
        return 3
    return 2 if typing_extensions.is_typeddict(kind) else 1 if kind is not type(None) else 0
