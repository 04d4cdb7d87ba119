"""Keeps the model calls that ended last, for the operator's list. Nothing of them is content.

A process that serves alone keeps them in memory, as JSON text. Several workers of one gateway append them to one file
in a folder that they share. So every worker shows the requests of all, also those of a worker that was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from app.observability.metrics import TurnFacts
from app.observability.request_facts import RequestFacts
from app.observability.request_record import RequestStep

log = logging.getLogger(__name__)

Record = TypeVar("Record", bytes, str)

LINE_BYTES: Final = 2_000
"""The file is replaced when it has this many bytes for each request that is kept. A usual request takes 750."""


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
        answer_id: the id that the client got with it.
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
    answer_id: str | None = None


_encode: Final = msgspec.json.Encoder().encode
decode_request: Final = msgspec.json.Decoder(EndedRequest).decode
"""Decodes the record of a request. The database keeps records for days: new fields of these structs come last, with a
default, so that records of other versions can be read."""


class RecentRequests:
    """The requests that ended last.

    Args:
        max_count: how many requests are kept.
        folder: the folder of all workers; None if this process serves alone. If the folder cannot be used, the process
            shows its own requests only.
    """

    def __init__(self, max_count: int, folder: Path | None = None) -> None:
        self._max_count = max_count
        self._file = None if folder is None else folder / "requests"
        self._lines: deque[bytes] = deque(maxlen=max_count)

    def add(self, request: EndedRequest) -> bytes:
        """Adds a request that has ended. Returns its record as JSON."""
        line = _encode(request)
        if self._file is not None:
            try:
                _append_line(self._file, line, self._max_count * LINE_BYTES)
                return line
            except OSError as error:
                # No request fails because of its record.
                log.warning("cannot share recent requests, so this process shows only its own from now on: %s", error)
                self._file = None
        self._lines.append(line)
        return line

    def read_requests(self) -> list[tuple[EndedRequest, bytes]]:
        """Returns the requests of all workers, those that began last first, each with its record. It reads files, so it
        is not for the event loop."""
        lines = list(self._lines) if self._file is None else _read_lines(self._file)
        # By id: a line is found twice if the file is replaced while it is read.
        requests = {request.id: (request, line) for request, line in decode_requests(lines)}
        newest_first = sorted(requests.values(), key=lambda one: -one[0].started_unix)
        return newest_first[: self._max_count]


def _append_line(path: Path, line: bytes, max_bytes: int) -> None:
    """Appends a line to a file of several processes. A full file takes the place of the file before it, and a new one
    begins: both together always have the newest lines.

    Raises:
        OSError: the disk is full, for example.
    """
    # The system appends what one call writes as a whole.
    with path.open("ab", buffering=0) as file:
        file.write(line + b"\n")
        if file.tell() > max_bytes:
            # One process replaces the file; those that were waiting find that its name is another file's.
            fcntl.flock(file, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(file.fileno())):
                    path.replace(_previous_path(path))


def _read_lines(path: Path) -> list[bytes]:
    # In this order: if the file is replaced between the two reads, lines are read twice and not missed.
    current = _read_file(path)
    return [*_read_file(_previous_path(path)).split(b"\n"), *current.split(b"\n")]


def decode_requests(records: Iterable[Record]) -> Iterator[tuple[EndedRequest, Record]]:
    """Yields each request with its record, without those that cannot be read: a killed process may have left a line
    without its end, and a newer version may know other steps."""
    for record in records:
        with contextlib.suppress(msgspec.DecodeError):
            yield decode_request(record), record


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _previous_path(path: Path) -> Path:
    return path.with_suffix(".previous")
