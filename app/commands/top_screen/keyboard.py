"""Waiting for a key of the keyboard, without needing one."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

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
