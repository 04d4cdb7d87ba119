"""Keeps the model calls that ended last, for the operator's list. Nothing of them is content.

Each process keeps its own in memory, as JSON text. Several workers of one gateway share a folder: each also appends its
requests to a file there, at once, and reads the files of the others when somebody asks. So every worker shows the
requests of all, and the successor of a killed worker continues its file.
"""

from __future__ import annotations

import fcntl
import io
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from app.observability.metrics import TurnFacts
from app.observability.request_facts import RequestFacts
from app.observability.request_record import RequestStep

log = logging.getLogger(__name__)

MAX_WORKERS: Final = 4096


class EndedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A model call that has ended.

    Attributes:
        endpoint: the path of the request.
        status: the answer's status; 499 if none was sent.
        is_complete: whether the whole answer was handed to the server.
        started_unix: when it began, in Unix seconds.
        started_at: the same, in the monotonic seconds of its steps.
        duration: seconds from the start to the end.
        first_byte_seconds: seconds from the start to the first byte of the answer's body; None if nothing was sent.
        answer: the place of the stored answer in its conversation: seq, and link as hex digits.
    """

    id: str | None
    endpoint: str
    status: int
    is_complete: bool
    started_unix: float
    started_at: float
    duration: float
    first_byte_seconds: float | None
    tenant: str | None
    key_id: str | None
    facts: RequestFacts
    turn: TurnFacts | None
    steps: list[RequestStep]
    answer: tuple[int, str] | None = None


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(EndedRequest).decode


class RecentRequests:
    """The requests that ended last.

    Args:
        max_count: how many requests are kept.
        folder: the folder of all workers; None if this process serves alone. If the folder cannot be used, the process
            shows its own requests only.
    """

    def __init__(self, max_count: int, folder: Path | None = None) -> None:
        self._max_count = max_count
        self._folder = folder
        self._own_file = None if folder is None else _open_own_file(folder, max_count)
        lines = () if self._own_file is None else self._own_file.read_lines()
        self._lines: deque[bytes] = deque(lines, maxlen=max_count)

    def add(self, request: EndedRequest) -> None:
        """Adds a request that has ended."""
        line = _encode(request)
        self._lines.append(line)
        if self._own_file is not None:
            try:
                self._own_file.append(line)
            except OSError as error:
                # No request fails because of its record: this worker's requests are no longer in the others' lists.
                log.warning("cannot share recent requests with other workers: %s", error)
                self.close()

    def read_requests(self) -> list[EndedRequest]:
        """Returns the requests of all workers, those that began last first. It reads files, so it is not for the event
        loop."""
        lines = list(self._lines)
        if self._folder is not None:
            own_number = None if self._own_file is None else self._own_file.number
            lines.extend(_read_lines_of_others(self._folder, own_number, self._max_count))
        # By id: a line is found twice if its file is rotated while it is read.
        requests = {request.id: request for request in map(_decode, lines)}
        newest_first = sorted(requests.values(), key=lambda request: -request.started_unix)
        return newest_first[: self._max_count]

    def close(self) -> None:
        """Closes this process's file; a later process may continue it."""
        own_file, self._own_file = self._own_file, None
        if own_file is not None:
            own_file.close()


class _SharedFile:
    """The file of one worker: a line of JSON for each request. When it is full, it takes the place of the file before
    it, and a new one begins; so both together always have the newest `max_count` lines.

    Args:
        number: the number of the worker.
        lock: a file whose lock says that the number is taken. The lock ends with the process.

    Raises:
        OSError: the folder cannot be used.
    """

    def __init__(self, folder: Path, number: int, lock: io.BufferedRandom, max_count: int) -> None:
        self.number = number
        self._folder = folder
        self._lock = lock
        self._max_count = max_count
        current = _current_path(folder, number)
        text = _read_file(current)
        # A killed process may have left a line without its end.
        text = text[: text.rfind(b"\n") + 1]
        self._line_count = text.count(b"\n")
        self._file = current.open("ab", buffering=0)
        self._file.truncate(len(text))

    def append(self, line: bytes) -> None:
        """Appends a line.

        Raises:
            OSError: the disk is full, for example.
        """
        if self._line_count >= self._max_count:
            self._file.close()
            current = _current_path(self._folder, self.number)
            current.replace(_previous_path(self._folder, self.number))
            self._file = current.open("ab", buffering=0)
            self._line_count = 0
        self._file.write(line + b"\n")
        self._line_count += 1

    def read_lines(self) -> list[bytes]:
        """Returns the newest lines, oldest first."""
        return list(_read_lines(self._folder, self.number, self._max_count))

    def close(self) -> None:
        self._file.close()
        self._lock.close()


def _open_own_file(folder: Path, max_count: int) -> _SharedFile | None:
    """Opens the first file in the folder that no living process writes to."""
    try:
        for number in range(MAX_WORKERS):
            lock = (folder / f"{number}.requests.lock").open("a+b")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                continue
            try:
                return _SharedFile(folder, number, lock, max_count)
            except OSError:
                lock.close()
                raise
    except OSError as error:
        log.warning("cannot share recent requests, so only this process shows its own: %s", error)
    return None


def _read_lines_of_others(folder: Path, own_number: int | None, max_count: int) -> Iterator[bytes]:
    # Numbers are taken in order, and files are never removed, so the first number without a file ends the search.
    number = 0
    while number == own_number or _current_path(folder, number).exists() or _previous_path(folder, number).exists():
        if number != own_number:
            yield from _read_lines(folder, number, max_count)
        number += 1


def _read_lines(folder: Path, number: int, max_count: int) -> Iterable[bytes]:
    """Returns the newest complete lines of a worker, oldest first."""
    # In this order: if the files are rotated between the two reads, lines are read twice and not missed.
    current = _read_file(_current_path(folder, number))
    previous = _read_file(_previous_path(folder, number))
    lines = [*previous.split(b"\n")[:-1], *current.split(b"\n")[:-1]]
    return lines[-max_count:]


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _current_path(folder: Path, number: int) -> Path:
    return folder / f"{number}.requests"


def _previous_path(folder: Path, number: int) -> Path:
    return folder / f"{number}.requests.previous"
