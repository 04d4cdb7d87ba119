"""`concertina top`: shows load, tokens, costs and errors of a running gateway: live on a terminal, else as one page."""

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

from app.commands import CommandError
from app.commands.top_screen.overview_client import GatewayUnreachable, OverviewClient
from app.commands.top_screen.overview_screen import OverviewScreen, OverviewSnapshot
from app.commands.top_screen.rates import TotalRates
from app.settings import read_client_key

PLAIN_OUTPUT_WIDTH: Final = 100
MIN_INTERVAL_SECONDS: Final = 0.2
KEY_POLL_SECONDS: Final = 0.25
"""How long it takes at most to notice a key or a new size of the terminal."""
QUIT_KEYS: Final = {"q", "Q"}


def run(arguments: argparse.Namespace) -> int:
    # Not written with `<`, so that `--interval nan` is refused, too.
    if not arguments.interval >= MIN_INTERVAL_SECONDS:
        raise CommandError(f"--interval: expected at least {MIN_INTERVAL_SECONDS} seconds.")
    client = OverviewClient(arguments.url, arguments.key or read_client_key())
    if arguments.json:
        print(json.dumps(client.fetch_overview()))
        return 0
    console = Console(highlight=False)
    snapshot, rates = _fetch_snapshot(client), TotalRates()
    rates.add_overview(snapshot.overview, time.monotonic())
    if arguments.once or not console.is_terminal or console.is_dumb_terminal:
        _print_overview_once(console, OverviewScreen(snapshot, rates))
        return 0
    screen = OverviewScreen(snapshot, rates, f"q quits · updates every {arguments.interval:g} s")
    with contextlib.suppress(KeyboardInterrupt):
        _show_live_overview(client, screen, rates, console, arguments.interval)
    return 0


def _fetch_snapshot(client: OverviewClient) -> OverviewSnapshot:
    overview = client.fetch_overview()
    return OverviewSnapshot(overview, client.address, client.fetch_unreadiness_reason())


def _print_overview_once(console: Console, screen: OverviewScreen) -> None:
    if not console.is_terminal:
        console = Console(highlight=False, width=PLAIN_OUTPUT_WIDTH)
    console.print(screen)


def _show_live_overview(
    client: OverviewClient, screen: OverviewScreen, rates: TotalRates, console: Console, interval_seconds: float
) -> None:
    """Fetches and draws the overview periodically, until `q` or Ctrl-C."""
    live = Live(screen, console=console, screen=True, auto_refresh=False)
    with open_keyboard() as wait_for_keys:
        try:
            live.start(refresh=True)
            while not _wait_for_quit(wait_for_keys, live, screen, interval_seconds):
                try:
                    screen.snapshot = _fetch_snapshot(client)
                    rates.add_overview(screen.snapshot.overview, time.monotonic())
                except GatewayUnreachable:
                    # Perhaps it restarts: the last overview stays on the screen, with the reason in its first line.
                    # Other errors, such as a revoked key, end the command.
                    screen.snapshot = OverviewSnapshot(
                        screen.snapshot.overview, client.address, "not reached; trying again"
                    )
                live.refresh()
        finally:
            # Not `with live`: it would not call `stop` if Ctrl-C came during the start, and would leave the terminal
            # on the alternate screen.
            live.stop()


def _wait_for_quit(wait_for_keys: WaitForKeys, live: Live, screen: OverviewScreen, seconds: float) -> bool:
    """Waits for some seconds, and draws again when the terminal's size changes. Returns early with True if `q` is
    pressed."""
    until = time.monotonic() + seconds
    while (seconds_left := until - time.monotonic()) > 0:
        if QUIT_KEYS & set(wait_for_keys(min(seconds_left, KEY_POLL_SECONDS))):
            return True
        if live.console.size != screen.drawn_size:
            live.refresh()
    return False


KEY_READ_BYTES: Final = 64
WaitForKeys = Callable[[float], str]
"""Waits for at most so many seconds until keys are pressed; returns the keys, or an empty string."""


@contextmanager
def open_keyboard() -> Iterator[WaitForKeys]:
    """Yields a function that waits for keys. Keys are read without Enter and are not shown; Ctrl-C interrupts as usual.
    Without a keyboard, the function only waits. The terminal's settings are restored at the end."""
    if not sys.stdin.isatty():
        yield _sleep_without_keyboard
        return
    terminal = sys.stdin.fileno()
    terminal_settings = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield lambda seconds: _read_keys(terminal, seconds)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, terminal_settings)


def _read_keys(terminal: int, seconds: float) -> str:
    ready, _, _ = select.select([terminal], [], [], seconds)
    return os.read(terminal, KEY_READ_BYTES).decode(errors="replace") if ready else ""


def _sleep_without_keyboard(seconds: float) -> str:
    time.sleep(seconds)
    return ""
