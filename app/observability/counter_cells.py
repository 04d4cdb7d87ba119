"""Numbers in memory, each at a place that is found once and then only added to.

One process counts in memory of its own. Several that serve together count in a folder: a file of numbers for each,
mapped into memory, and beside it a journal that says which number is which. So whoever is asked can tell for all, a
killed process loses nothing that it had counted, and the next one goes on counting in its files. A folder that nothing
more can be written to costs numbers that are new, and never a request.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import orjson

from app.observability.metric_families import FAMILIES, MetricFamily

log = logging.getLogger(__name__)

CELL_COUNT: Final = 1 << 16
CELL_BYTES: Final = 8
SPILL_CELLS: Final = 64
"""At the beginning: where what finds no place any more is counted and never read."""
MAX_PROCESSES: Final = 4096

_BY_NAME: Final = {family.name: family for family in FAMILIES}


class SeriesKey(NamedTuple):
    """A series: a family, and a value for each of its labels."""

    family: MetricFamily
    labels: tuple[str, ...]


class CounterCells:
    """The numbers of one process.

    Args:
        memory: zeros, or what a process before this one has counted.
        journal: where places are written down for others; None: nobody else reads them.
    """

    def __init__(self, memory: mmap.mmap, journal: BinaryIO | None = None) -> None:
        self._memory = memory
        self.values: memoryview[float] = memoryview(memory).cast("d")
        self._journal = journal
        self._has_journal_failed = False
        self._next = SPILL_CELLS
        self.cells_by_series: dict[SeriesKey, int] = {}
        if journal is not None:
            self.read_new_series(journal)

    def read_new_series(self, journal: BinaryIO) -> None:
        """Take note of series that were written down since."""
        for key in read_journal(journal):
            self._allocate_cells(key)

    def find_cell(self, family: MetricFamily, labels: tuple[str, ...]) -> int:
        """Where a series begins; a place of its own from the first time on, as long as there are any."""
        key = SeriesKey(family, labels)
        place = self.cells_by_series.get(key)
        if place is not None:
            return place
        if self._next + family.width > CELL_COUNT or not self._write_to_journal(key):
            return 0
        return self._allocate_cells(key)

    def close(self) -> None:
        """Let others go on in these files."""
        if self._journal is not None:
            with contextlib.suppress(OSError):
                self._journal.close()

    def _write_to_journal(self, key: SeriesKey) -> bool:
        """Whether others can know of a series. Nothing is written behind a line that may have broken off."""
        if self._journal is None or self._has_journal_failed:
            return not self._has_journal_failed
        try:
            self._journal.write(orjson.dumps([key.family.name, key.labels]) + b"\n")
            self._journal.flush()
        except OSError as error:
            self._has_journal_failed = True
            log.error("what this process has not counted before is not counted: %s", error)
        return not self._has_journal_failed

    def _allocate_cells(self, key: SeriesKey) -> int:
        place = self.cells_by_series[key] = self._next
        self._next += key.family.width
        return place


def read_journal(journal: BinaryIO) -> Iterator[SeriesKey]:
    """Series in the order of their places, from where the file was read to before; half a line waits for its rest."""
    while True:
        start = journal.tell()
        line = journal.readline()
        if not line.endswith(b"\n"):
            journal.seek(start)
            return
        name, labels = orjson.loads(line)
        yield SeriesKey(_BY_NAME[name], tuple(labels))


def create_private_cells() -> CounterCells:
    """For a process that serves alone."""
    return CounterCells(mmap.mmap(-1, CELL_COUNT * CELL_BYTES))


def open_shared_cells(folder: Path) -> CounterCells:
    """For one of several processes: files that nobody counts in now, those of a process that has ended before new ones.

    Raises:
        OSError: the folder cannot be used.
    """
    for number in range(MAX_PROCESSES):
        journal = _journal_path(folder, number).open("a+b")
        try:
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            journal.close()
            continue
        try:
            journal.seek(0)
            cells = CounterCells(_map_cells(folder, number), journal)
            journal.truncate(journal.tell())
        except OSError:
            journal.close()
            raise
        _reset_gauges(cells)
        return cells
    raise OSError(f"more than {MAX_PROCESSES} processes count in {str(folder)!r}")


class PeerCells:
    """The numbers of a process beside this one, or of one that has ended."""

    def __init__(self, folder: Path, number: int) -> None:
        self._journal = _journal_path(folder, number).open("rb")
        self.cells = CounterCells(_map_cells(folder, number), self._journal)

    def read_new_series(self) -> None:
        """Take note of series that are new."""
        self.cells.read_new_series(self._journal)

    def close(self) -> None:
        self._journal.close()

    @property
    def is_alive(self) -> bool:
        """Whether a process counts there now. It holds a lock on its journal, which ends with it however it ends."""
        try:
            fcntl.flock(self._journal, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._journal, fcntl.LOCK_UN)
        return False


def find_peers(folder: Path, known: dict[int, PeerCells]) -> dict[int, PeerCells]:
    """All processes that have counted in a folder, by number."""
    number = 0
    while number in known or _has_files(folder, number):
        if number not in known:
            known[number] = PeerCells(folder, number)
        number += 1
    return known


def _has_files(folder: Path, number: int) -> bool:
    cells = _cells_path(folder, number)
    return cells.exists() and cells.stat().st_size >= CELL_COUNT * CELL_BYTES and _journal_path(folder, number).exists()


def _reset_gauges(cells: CounterCells) -> None:
    """What stood at the end of the process before this one; when it all began is no such thing."""
    for (family, _), place in cells.cells_by_series.items():
        if family.kind == "gauge" and family.merging != "min":
            cells.values[place] = 0.0


def _map_cells(folder: Path, number: int) -> mmap.mmap:
    with _cells_path(folder, number).open("a+b") as file:
        # Written in full: where the disk is full this fails, and a number that is counted later would kill the process.
        file.write(bytes(max(0, CELL_COUNT * CELL_BYTES - file.seek(0, io.SEEK_END))))
        file.flush()
        return mmap.mmap(file.fileno(), CELL_COUNT * CELL_BYTES)


def _journal_path(folder: Path, number: int) -> Path:
    return folder / f"{number}.names"


def _cells_path(folder: Path, number: int) -> Path:
    return folder / f"{number}.cells"
