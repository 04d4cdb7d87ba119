"""Write the tables of `docs/configuration.md` from the settings: type, default, variable and docstring of each field.

    python tools/configuration_reference.py            # write them
    python tools/configuration_reference.py --check    # exit with 1 where the page says something else

What stands outside the marks `<!-- settings: NAME -->` … `<!-- end of settings -->` is written by hand. A field that is
a section has no row, its fields have; with a docstring of its own it is told in one row, being the same as elsewhere.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from app.settings.environment import VARIABLE_PREFIX  # noqa: E402 (a script of the repository, not installed)
from app.settings.sections import Settings  # noqa: E402
from app.settings.settings_tree import ANY_NAME, find_child_type, is_map_type  # noqa: E402

PAGE = ROOT / "docs/configuration.md"
TABLE = re.compile(r"(?<=<!-- settings: )(\w+)( -->\n).*?(?=<!-- end of settings -->)", re.DOTALL)
COMMAND = "python tools/configuration_reference.py"

WORDS: dict[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "text", SecretStr: "secret"}
BOUNDS = {"gt": "above", "ge": "from", "lt": "below", "le": "up to"}


class Row(NamedTuple):
    """A setting as the page shows it."""

    path: tuple[str, ...]
    kind: str
    default: str
    meaning: str

    def __str__(self) -> str:
        name = f"`{'.'.join(self.path)}`<br>`{variable(self.path)}`"
        return f"| {name} | {self.kind} | {self.default} | {self.meaning} |"


def variable(path: tuple[str, ...]) -> str:
    return VARIABLE_PREFIX + "__".join(path).upper()


def rows(section: str) -> Iterator[Row]:
    """The settings of one section, or the one setting of that name, in the order of their declaration."""
    yield from _of_field(Settings, section, (section,))


def _of_section(section: type[BaseModel], path: tuple[str, ...]) -> Iterator[Row]:
    for name in section.model_fields:
        yield from _of_field(section, name, (*path, name))


def _of_field(section: type[BaseModel], name: str, path: tuple[str, ...]) -> Iterator[Row]:
    field, below, meaning = section.model_fields[name], find_child_type(section, name), _docstring(section, name)
    if meaning is None and is_map_type(below):
        yield from _of_section(find_child_type(below, ANY_NAME), (*path, ANY_NAME))
    elif meaning is None and isinstance(below, type) and issubclass(below, BaseModel):
        yield from _of_section(below, path)
    else:
        kind = _words(field.annotation, tuple(field.metadata))
        yield Row(path, kind, _default(field), meaning or _refuse(section, name))


def _refuse(section: type[BaseModel], name: str) -> str:
    raise SystemExit(f"{section.__module__}.{section.__name__}.{name} has no docstring to say what it means")


def _docstring(section: type[BaseModel], name: str) -> str | None:
    return next((found[name] for one in section.__mro__ if name in (found := _docstrings(one))), None)


@cache
def _docstrings(section: type) -> dict[str, str]:
    """The strings that stand right below the fields of a class, each on one line."""
    if section.__module__.split(".")[0] != Settings.__module__.split(".")[0]:
        return {}
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            found[field.target.id] = " ".join(ast.literal_eval(below.value).split())
    return found


def _words(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    """A type in words, with its bounds."""
    if hasattr(annotation, "__metadata__"):
        return _words(annotation.__origin__, (*annotation.__metadata__, *metadata))
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [one for one in get_args(annotation) if one is not types.NoneType]
        return f"{' or '.join(_words(one, metadata) for one in rest)}, or `null`"
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{one}`" for one in get_args(annotation))
    if get_origin(annotation) is tuple:
        return "list"
    if get_origin(annotation) is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "section"
    return " ".join([WORDS[annotation], *_bounds(metadata)])


def _bounds(metadata: tuple[Any, ...]) -> Iterator[str]:
    for one in metadata:
        for bound in one.metadata if isinstance(one, FieldInfo) else (one,):
            for name, words in BOUNDS.items():
                if hasattr(bound, name):
                    yield f"{words} {getattr(bound, name):,}"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    value = value.get_secret_value() if isinstance(value, SecretStr) else value
    value = {} if isinstance(value, BaseModel) else value
    value = int(value) if isinstance(value, float) and value.is_integer() and value > 1 else value
    return f"`{value if isinstance(value, str) else json.dumps(value)}`" if value != "" else ""


def table(section: str) -> str:
    lines = ["| setting, variable | type | default | meaning |", "| --- | --- | --- | --- |", *map(str, rows(section))]
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """The page with its tables written anew."""
    marked = {section for section, _ in TABLE.findall(text)}
    for section in Settings.model_fields.keys() - marked:
        raise SystemExit(f"{PAGE.name}: write a heading {section!r}, and the marks of its table below")
    return TABLE.sub(lambda mark: f"{mark[1]}{mark[2]}\n{table(mark[1])}\n", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, exit with 1 where something would change")
    arguments = parser.parse_args()
    text = PAGE.read_text()
    if (written := page(text)) == text:
        return 0
    if arguments.check:
        print(f"docs/configuration.md is older than the settings: {COMMAND}", file=sys.stderr)
        return 1
    PAGE.write_text(written)
    print("wrote docs/configuration.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
