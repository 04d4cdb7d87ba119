"""What erased text leaves behind in the files of SQLite, and how it is got rid of.

Deleted rows are overwritten with zeros (`PRAGMA secure_delete`), the write-ahead log is emptied. Where SQLite has moved
rows between pages before, a copy may stay in what is free of a page.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from app.store.sqlite.threads import SqliteOptions, open_connection

TRUNCATE_ATTEMPTS: Final = 5
TRUNCATE_WAIT_MS: Final = 50
"""How long readers are waited for in each attempt; writers wait meanwhile."""
REDACTION_SCAN_BYTES: Final = 2 << 30
ERASURE_SCAN_BYTES: Final = 64 << 20
"""How many bytes are looked at for remains, the file once for each piece of text. What is too large for that is left to
`Store.scrub_deleted_data`; less for erased conversations, of which retention erases thousands in a row."""
PIECE_CHARS: Final = 64
PIECES_PER_TEXT: Final = 16
"""How many pieces of a text are searched for: a copy may be overwritten in part."""
_BLOCK_BYTES: Final = 1 << 20


def truncate_write_ahead_log(path: Path, options: SqliteOptions) -> None:
    """Carry the write-ahead log over into the file and empty it. Readers may prevent that for a while: the next time
    does it then, or closing the file."""
    for _ in range(TRUNCATE_ATTEMPTS):
        with (
            contextlib.suppress(sqlite3.OperationalError),
            contextlib.closing(open_connection(path, options)) as connection,
        ):
            connection.execute(f"PRAGMA busy_timeout = {TRUNCATE_WAIT_MS}")
            is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if not is_busy:
                return


def vacuum_file(path: Path, options: SqliteOptions) -> None:
    """Write the file anew. Only so is it sure that nothing deleted is left: where rows were moved between pages, copies
    stay in what is free of a page, which `secure_delete` does not overwrite."""
    with contextlib.closing(open_connection(path, options)) as connection:
        connection.execute("PRAGMA temp_store = FILE")
        connection.execute("VACUUM")


def has_erased_text(path: Path, options: SqliteOptions, texts: Sequence[str], *, budget_bytes: int) -> bool:
    """Whether a file holds pieces of erased texts which are in no row any more; False where it is too large to look."""
    pieces = [piece for text in texts for piece in _split_pieces(text)]
    if path.stat().st_size * len(pieces) > budget_bytes:
        return False
    found = _find_pieces(path, [piece.encode() for piece in pieces])
    with contextlib.closing(open_connection(path, options)) as connection:
        return any(not _is_still_stored(connection, piece) for piece in pieces if piece.encode() in found)


def _split_pieces(text: str) -> Iterator[str]:
    stride = max(PIECE_CHARS, len(text) // PIECES_PER_TEXT)
    for start in range(0, max(1, len(text) - PIECE_CHARS + 1), stride):
        yield text[start : start + PIECE_CHARS]


def _find_pieces(path: Path, pieces: Sequence[bytes]) -> set[bytes]:
    found: set[bytes] = set()
    longest = max((len(piece) for piece in pieces), default=1)
    tail, offset = b"", 0
    while block := os.pread(_file_descriptor(path), _BLOCK_BYTES, offset):
        window = tail + block
        found.update(piece for piece in pieces if piece not in found and piece in window)
        tail = window[-longest:]
        offset += len(block)
    return found


def _file_descriptor(path: Path) -> int:
    """What a file is read by beside SQLite. It is never closed: that would end every lock that the process has on the
    file, and the next process to leave it would take the write-ahead log away from under us.

    See https://www.sqlite.org/howtocorrupt.html, "POSIX advisory locks canceled by a separate thread doing close()".
    """
    status = path.stat()
    return _open_cached_descriptor(path, status.st_dev, status.st_ino)


@functools.cache
def _open_cached_descriptor(path: Path, device: int, inode: int) -> int:
    return os.open(path, os.O_RDONLY)


def _is_still_stored(connection: sqlite3.Connection, piece: str) -> bool:
    """Whether others have said the same."""
    kept = """
        SELECT 1 FROM messages WHERE instr(body, ?1) OR instr(meta, ?1)
        UNION ALL SELECT 1 FROM client_versions WHERE instr(bodies, ?1)
        UNION ALL SELECT 1 FROM chunks WHERE instr(text, ?1)
        UNION ALL SELECT 1 FROM chunk_revisions WHERE instr(text, ?1) LIMIT 1"""
    return connection.execute(kept, (piece,)).fetchone() is not None
