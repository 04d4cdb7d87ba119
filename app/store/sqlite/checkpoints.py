"""Copies the write-ahead log of SQLite into the file.

A checkpoint of 4,000 pages takes 25 to 180 ms, fsync included. In a commit, it would delay all streams whose questions
wait to be stored. Therefore a thread of its own copies what was committed, while commits go on. They append to the log;
when it has `wal_autocheckpoint` pages, a commit copies the small rest, and the next commit begins the log again. If
nothing is committed during a checkpoint of the thread, no rest remains, and the log begins again earlier.
"""

from __future__ import annotations

import contextlib
import sqlite3
from time import sleep
from typing import Final

CHECKPOINT_SECONDS: Final = 1.0
"""The time from the first commit after a checkpoint to the next checkpoint. It bounds the rest that a commit may copy.
At 0.25 s, repeated copies of the same pages take 10 % more CPU time of a busy gateway, and streams wait no shorter for
their first byte.
"""
TRUNCATE_ATTEMPTS: Final = 5
TRUNCATE_WAIT_MS: Final = 50
"""How long each attempt waits for readers, while writers wait; and the pause before the next attempt."""


def copy_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Copies as much as readers allow, and does not wait for readers or writers."""
    # The next checkpoint tries again, in the end that of a commit, which raises the error.
    with contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def truncate_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Copies the write-ahead log into the file and empties it. If readers prevent this in all attempts, the next call
    or closing the file does it.
    """
    connection.execute(f"PRAGMA busy_timeout = {TRUNCATE_WAIT_MS}")
    for _ in range(TRUNCATE_ATTEMPTS):
        # Busy or locked: the loop tries again.
        with contextlib.suppress(sqlite3.OperationalError):
            is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if not is_busy:
                return
        # A checkpoint of another process: SQLite does not wait for its end.
        sleep(TRUNCATE_WAIT_MS / 1000)
