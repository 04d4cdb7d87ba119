"""Gives each worker process files of its own to count in, by `prometheus_client`'s multi-process mode.

The library names files by process ids. A gateway that runs for months would keep and read the files of every worker
that ever ended. Here a worker has a number instead: its successor takes the number, and counts on in the same files.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
from pathlib import Path
from typing import BinaryIO, Final

from prometheus_client import multiprocess, values

log = logging.getLogger(__name__)

FOLDER_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable that names the folder. The library reads it."""
MAX_WORKERS: Final = 4096
RESERVED_BYTES: Final = {
    "counter": 1 << 19,
    "histogram": 1 << 20,
    "gauge_livesum": 1 << 16,
    "gauge_livemax": 1 << 16,
    "gauge_min": 1 << 16,
}
"""The sizes of a worker's files: room for about 2,000 counters and 200 histograms. A file that is full grows."""


def join_metric_folder(folder: Path) -> BinaryIO:
    """Lets this process count in the folder, under the first number that no living process has.

    Returns:
        the lock of the number. It ends when the file is closed, or with the process, even if that is killed.

    Raises:
        OSError: the folder cannot be used, or its disk is full.
    """
    for number in range(MAX_WORKERS):
        lock = _try_lock(folder, number)
        if lock is None:
            continue
        try:
            multiprocess.mark_process_dead(number, str(folder))  # type: ignore[no-untyped-call]
            for kind, size in RESERVED_BYTES.items():
                _reserve_file(folder / f"{kind}_{number}.db", size)
        except OSError:
            lock.close()
            raise
        values.ValueClass = values.MultiProcessValue(itertools.repeat(number).__next__)  # type: ignore[no-untyped-call]
        return lock
    raise OSError(f"more than {MAX_WORKERS} processes count in {str(folder)!r}")


def count_alone() -> None:
    """Lets this process count in its own memory, though the environment may have named a folder."""
    values.ValueClass = values.MutexValue


def drop_gauges_of_dead_workers(folder: Path) -> None:
    """Removes the gauges of workers that have ended: they have no open connections and run no tasks. Their counters
    stay."""
    for path in folder.glob("*.worker"):
        number = int(path.stem)
        try:
            with _try_lock(folder, number) or contextlib.nullcontext() as lock:
                if lock is not None:
                    multiprocess.mark_process_dead(number, str(folder))  # type: ignore[no-untyped-call]
        except OSError as error:
            log.warning("cannot remove the gauges of a worker process that has ended: %s", error)


def _try_lock(folder: Path, number: int) -> BinaryIO | None:
    """Locks a number; returns None if a living process has it."""
    lock = (folder / f"{number}.worker").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _reserve_file(path: Path, size: int) -> None:
    """Creates a file with its space on the disk. The library's own would be sparse: if the disk is full later, counting
    in such a file kills the process by a signal."""
    if path.exists():
        return
    # Under another name first: readers cannot read a file that is empty.
    unfinished = path.with_suffix(".new")
    unfinished.write_bytes(bytes(size))
    unfinished.rename(path)
