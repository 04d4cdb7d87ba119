"""Keeps the numbers of metrics in memory: each series has cells, which are found once and then only added to.

A process that serves alone counts in private memory. Several worker processes count in a shared folder: each has a file
of cells, mapped into memory, and a journal that says which cells belong to which series. So any worker can report the
sums of all, a killed process loses nothing that it counted, and its successor continues in its files. If nothing more
can be written to the folder, new series are not counted; no request fails (decision 23).
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
"""A cell is a C double."""
SPILL_CELLS: Final = 64
"""The first cells belong to no series and are never read. A series that gets no cells is counted there, so that the
counting code needs no case for it. More than the widest family has."""
MAX_PROCESSES: Final = 4096

_BY_NAME: Final = {family.name: family for family in FAMILIES}


class SeriesKey(NamedTuple):
    """Identifies a series: a family, and a value for each of its labels."""

    family: MetricFamily
    labels: tuple[str, ...]


class CounterCells:
    """The cells of one process.

    Args:
        memory: the cells: zeros, or the numbers of the process before this one.
        journal: the file that tells other processes the cells of each series; None if no other process reads them.

    Attributes:
        values: the cells as numbers.
        cells_by_series: the first cell of each series.
    """

    def __init__(self, memory: mmap.mmap, journal: BinaryIO | None = None) -> None:
        self.values: memoryview[float] = memoryview(memory).cast("d")
        self._journal = journal
        self._has_journal_failed = False
        self._next_cell = SPILL_CELLS
        self.cells_by_series: dict[SeriesKey, int] = {}
        if journal is not None:
            self.read_new_series(journal)

    def read_new_series(self, journal: BinaryIO) -> None:
        """Reads the series that were written to the journal since the last call."""
        for key in read_series_journal(journal):
            self._allocate_cells(key)

    def find_or_allocate_cell(self, family: MetricFamily, labels: tuple[str, ...]) -> int:
        """Returns the first cell of a series. A new series gets cells; if that is not possible, 0 (`SPILL_CELLS`)."""
        key = SeriesKey(family, labels)
        cell = self.cells_by_series.get(key)
        if cell is not None:
            return cell
        # Readers number the cells by the order of the journal, so a series that is not in it must not get cells.
        if self._next_cell + family.cells_per_series > CELL_COUNT or not self._write_to_journal(key):
            return 0
        return self._allocate_cells(key)

    def close(self) -> None:
        """Closes the journal, which ends its lock: a later process may continue in these files."""
        if self._journal is not None:
            # `close` flushes what could not be written before, and fails again if the disk is still full.
            with contextlib.suppress(OSError):
                self._journal.close()

    def _write_to_journal(self, key: SeriesKey) -> bool:
        """Writes a new series to the journal. Returns whether other processes can find its cells.

        After a failure nothing more is written: the last line may be incomplete, and a line behind it would be lost.
        """
        if self._journal is None or self._has_journal_failed:
            return not self._has_journal_failed
        try:
            self._journal.write(orjson.dumps([key.family.name, key.labels]) + b"\n")
            self._journal.flush()
        except OSError as error:
            self._has_journal_failed = True
            log.error("cannot add metric series; new series of this worker are not counted: %s", error)
        return not self._has_journal_failed

    def _allocate_cells(self, key: SeriesKey) -> int:
        cell = self.cells_by_series[key] = self._next_cell
        self._next_cell += key.family.cells_per_series
        return cell


def read_series_journal(journal: BinaryIO) -> Iterator[SeriesKey]:
    """Yields the series that follow the file's position, in the order of their cells.

    An incomplete last line is left for the next call: another process may be writing it.
    """
    while True:
        start = journal.tell()
        line = journal.readline()
        if not line.endswith(b"\n"):
            journal.seek(start)
            return
        name, labels = orjson.loads(line)
        yield SeriesKey(_BY_NAME[name], tuple(labels))


def create_private_cells() -> CounterCells:
    """Creates the cells of a process that serves alone."""
    return CounterCells(mmap.mmap(-1, CELL_COUNT * CELL_BYTES))


def open_shared_cells(folder: Path) -> CounterCells:
    """Opens the cells of one of several processes: the first files in the folder that no living process counts in.

    Files of an ended process come before new ones, so that a worker that restarts often does not fill the folder.

    Raises:
        OSError: the folder cannot be used.
    """
    for number in range(MAX_PROCESSES):
        journal = _journal_path(folder, number).open("a+b")
        # The lock lasts as long as the journal is open and ends with the process, even if it is killed.
        try:
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            journal.close()
            continue
        try:
            journal.seek(0)
            cells = CounterCells(_map_cells(folder, number), journal)
            # Cuts off a line that the process before did not finish.
            journal.truncate(journal.tell())
        except OSError:
            journal.close()
            raise
        _reset_gauges(cells)
        return cells
    raise OSError(f"more than {MAX_PROCESSES} processes count in {str(folder)!r}")


class PeerCells:
    """The cells of another worker process, or of one that has ended; also of this one, when it reads for all."""

    def __init__(self, folder: Path, number: int) -> None:
        self._journal = _journal_path(folder, number).open("rb")
        self.cells = CounterCells(_map_cells(folder, number), self._journal)

    def read_new_series(self) -> None:
        """Reads the series that are new since the last call."""
        self.cells.read_new_series(self._journal)

    def close(self) -> None:
        self._journal.close()

    @property
    def is_alive(self) -> bool:
        """Whether a process counts there now. It locks its journal, and the lock ends with the process."""
        # This file has an open file description of its own, so the lock of this very process is seen, too.
        try:
            fcntl.flock(self._journal, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._journal, fcntl.LOCK_UN)
        return False


def find_peer_cells(folder: Path, known: dict[int, PeerCells]) -> dict[int, PeerCells]:
    """Adds the processes that have counted in a folder to `known`, by number, and returns it."""
    # Numbers are taken in order and files are never removed, so the first number without files ends the search.
    number = 0
    while number in known or _has_cell_files(folder, number):
        if number not in known:
            known[number] = PeerCells(folder, number)
        number += 1
    return known


def _has_cell_files(folder: Path, number: int) -> bool:
    cells = _cells_path(folder, number)
    return cells.exists() and cells.stat().st_size >= CELL_COUNT * CELL_BYTES and _journal_path(folder, number).exists()


def _reset_gauges(cells: CounterCells) -> None:
    """Sets the gauges that the process before left to 0. The start time stays: it is that of the first process."""
    for (family, _), cell in cells.cells_by_series.items():
        if family.kind == "gauge" and family.merging != "min":
            cells.values[cell] = 0.0


def _map_cells(folder: Path, number: int) -> mmap.mmap:
    with _cells_path(folder, number).open("a+b") as file:
        # Written in full: if the disk is full, this fails now. In a sparse file, counting would fail later, by a signal
        # that kills the process.
        file.write(bytes(max(0, CELL_COUNT * CELL_BYTES - file.seek(0, io.SEEK_END))))
        file.flush()
        return mmap.mmap(file.fileno(), CELL_COUNT * CELL_BYTES)


def _journal_path(folder: Path, number: int) -> Path:
    return folder / f"{number}.names"


def _cells_path(folder: Path, number: int) -> Path:
    return folder / f"{number}.cells"
