"""`concertina top`: a running gateway's load, tokens, costs and errors, live on a terminal, once elsewhere."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.live import Live

from app.commands import CommandFailed
from app.commands.top_screen.overview_client import Asking, NotReached
from app.commands.top_screen.rates import Pace
from app.commands.top_screen.screen import Screen, Seen
from app.settings import client_key

PLAIN_WIDTH: Final = 100
LEAST_INTERVAL_SECONDS: Final = 0.2
GLANCE_SECONDS: Final = 0.25
"""How soon a key or another size of the terminal is noticed."""
QUIT: Final = {"q", "Q"}


def run(arguments: argparse.Namespace) -> int:
    if not arguments.interval >= LEAST_INTERVAL_SECONDS:
        raise CommandFailed(f"--interval: expected at least {LEAST_INTERVAL_SECONDS} seconds.")
    asking = Asking(arguments.url, arguments.key or client_key())
    if arguments.json:
        print(json.dumps(asking.overview()))
        return 0
    console = Console(highlight=False)
    seen, pace = _look(asking), Pace()
    pace.look(seen.overview, time.monotonic())
    if arguments.once or not console.is_terminal or console.is_dumb_terminal:
        _print(console, Screen(seen, pace))
        return 0
    screen = Screen(seen, pace, f"q quits · looks every {arguments.interval:g} s")
    with contextlib.suppress(KeyboardInterrupt):
        _watch(asking, screen, pace, console, arguments.interval)
    return 0


def _look(asking: Asking) -> Seen:
    overview = asking.overview()
    return Seen(overview, asking.address, asking.trouble())


def _print(console: Console, screen: Screen) -> None:
    if not console.is_terminal:
        console = Console(highlight=False, width=PLAIN_WIDTH)
    console.print(screen)


def _watch(asking: Asking, screen: Screen, pace: Pace, console: Console, interval_seconds: float) -> None:
    """Look again and again, until `q` or Ctrl-C. A gateway that goes away is waited for."""
    live = Live(screen, console=console, screen=True, auto_refresh=False)
    with keyboard() as wait:
        try:
            live.start(refresh=True)
            while not _has_quit(wait, live, screen, interval_seconds):
                try:
                    screen.seen = _look(asking)
                    pace.look(screen.seen.overview, time.monotonic())
                except NotReached:
                    screen.seen = Seen(screen.seen.overview, asking.address, "not reached; trying again")
                live.refresh()
        finally:  # not `with`: Ctrl-C may come while it starts
            live.stop()


def _has_quit(wait: Wait, live: Live, screen: Screen, seconds: float) -> bool:
    """Let time pass, drawing anew when the terminal's size changes. Whether `q` was pressed."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if QUIT & set(wait(min(left, GLANCE_SECONDS))):
            return True
        if live.console.size != screen.drawn_for:
            live.refresh()
    return False


READ_BYTES: Final = 64
Wait = Callable[[float], str]
"""Waits for so many seconds, or for keys; the keys, or nothing."""


@contextmanager
def keyboard() -> Iterator[Wait]:
    """Keys as they are pressed, unseen; where there is no keyboard, time only passes. Ctrl-C interrupts as ever."""
    if not sys.stdin.isatty():
        yield _only_wait
        return
    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    try:
        tty.setcbreak(keys)
        yield lambda seconds: _pressed(keys, seconds)
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


def _pressed(keys: int, seconds: float) -> str:
    ready, _, _ = select.select([keys], [], [], seconds)
    return os.read(keys, READ_BYTES).decode(errors="replace") if ready else ""


def _only_wait(seconds: float) -> str:
    time.sleep(seconds)
    return ""
