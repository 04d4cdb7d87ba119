"""`concertina completion SHELL`: prints a script that completes commands, options, choices and files in a shell. The
script knows them by itself, so the shell starts nothing while a user types.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

import shtab

from app.__main__ import build_parser

COMPLETERS: Final[dict[Any, Any]] = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}
"""How values are completed, by the word that stands for them in the help."""


def run(arguments: argparse.Namespace) -> int:
    parser = build_parser()
    for action in _list_actions(parser):
        if action.metavar in COMPLETERS:
            action.complete = COMPLETERS[action.metavar]  # type: ignore[attr-defined]  # shtab looks for it
    print(shtab.complete(parser, arguments.shell))
    return 0


def _list_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _list_actions(command)
