"""The reference of the command line has every command and option, none that is not, and examples that work."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.__main__ import build_parser

PAGE = (Path(__file__).parents[2] / "docs/command-line.md").read_text()
EVERYWHERE = {"--help", "--version"}


def commands(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command that does something, by what is typed for it: `keys create`."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield name, parser
    for action in below:
        for word, command in action.choices.items():
            yield from commands(command, f"{name} {word}".strip())


COMMANDS = dict(commands(build_parser()))


def section(name: str) -> str:
    """What the page says under a command's heading."""
    found = re.search(rf"^##+ {name}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no heading for {name}"
    return found[1]


def options(command: argparse.ArgumentParser) -> set[str]:
    return {option for action in command._actions for option in action.option_strings if option.startswith("--")}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_told_with_all_its_options(name: str) -> None:
    rows = set(re.findall(r"^\| `(--[a-z-]+)", section(name), re.MULTILINE))
    assert rows == options(COMMANDS[name]) - EVERYWHERE
    assert set(re.findall(r"--[a-z][a-z-]+", section(name))) <= options(COMMANDS[name])


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_a_command_are_taken(name: str) -> None:
    lines = [line for block in re.findall(r"```sh\n(.*?)```", section(name), re.DOTALL) for line in block.splitlines()]
    assert lines
    for line in lines:
        words = shlex.split(re.sub(r" [<>] \S+$", "", line))
        assert words[: 1 + len(name.split())] == ["concertina", *name.split()]
        build_parser().parse_args(words[1:])


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_an_example_that_is_taken(name: str) -> None:
    example = re.search(r"^example: concertina (.+)$", COMMANDS[name].format_help(), re.MULTILINE)
    assert example is not None
    words = shlex.split(example[1])
    assert words[: len(name.split())] == name.split()
    build_parser().parse_args(words)


def test_the_table_of_commands_names_each() -> None:
    table = PAGE.partition("\n## ")[0]
    assert [name for name in COMMANDS if f"`{name}`" not in table] == []
