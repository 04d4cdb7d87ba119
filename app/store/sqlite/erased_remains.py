"""Finds and removes what erased text leaves in the files of SQLite.

`PRAGMA secure_delete` overwrites deleted rows with zeros, and the write-ahead log is emptied. But if SQLite has moved
rows between pages before, a copy may stay in the free part of a page.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from app.store.sqlite.threads import SqliteOptions, open_sqlite_connection

REDACTION_SCAN_BYTES: Final = 2 << 30
ERASURE_SCAN_BYTES: Final = 64 << 20
"""Bytes to search for remains: the size of the file times the number of pieces of text. If it is more, no search is
made, and `Store.scrub_deleted_data` removes the remains later. The bound for erased conversations is lower, since
retention erases thousands in a row.
"""
PIECE_CHARS: Final = 64
PIECES_PER_TEXT: Final = 16
"""Pieces of a text that are searched: a copy may be overwritten in part."""
_BLOCK_BYTES: Final = 1 << 20


def vacuum_file(path: Path, options: SqliteOptions) -> None:
    """Rewrites the file. This is the only sure way to remove all deleted text: copies in the free part of a page are
    not overwritten by `secure_delete`.
    """
    with contextlib.closing(open_sqlite_connection(path, options)) as connection:
        # The copy has the size of the database, which may not fit in memory.
        connection.execute("PRAGMA temp_store = FILE")
        connection.execute("VACUUM")


def has_erased_text(path: Path, options: SqliteOptions, texts: Sequence[str], *, budget_bytes: int) -> bool:
    """Whether a file holds pieces of erased texts that are in no row. False if the search would take more than
    `budget_bytes`.
    """
    pieces = [piece for text in texts for piece in _sample_text_pieces(text)]
    if path.stat().st_size * len(pieces) > budget_bytes:
        return False
    found = _find_pieces_in_file(path, [piece.encode() for piece in pieces])
    with contextlib.closing(open_sqlite_connection(path, options)) as connection:
        return any(not _is_text_in_rows(connection, piece) for piece in pieces if piece.encode() in found)


def _sample_text_pieces(text: str) -> Iterator[str]:
    stride = max(PIECE_CHARS, len(text) // PIECES_PER_TEXT)
    for start in range(0, max(1, len(text) - PIECE_CHARS + 1), stride):
        yield text[start : start + PIECE_CHARS]


def _find_pieces_in_file(path: Path, pieces: Sequence[bytes]) -> set[bytes]:
    found: set[bytes] = set()
    longest = max((len(piece) for piece in pieces), default=1)
    tail, offset = b"", 0
    while block := os.pread(_open_permanent_descriptor(path), _BLOCK_BYTES, offset):
        window = tail + block
        found.update(piece for piece in pieces if piece not in found and piece in window)
        # A piece may lie across the border of two blocks.
        tail = window[-longest:]
        offset += len(block)
    return found


def _open_permanent_descriptor(path: Path) -> int:
    """Returns a descriptor for reading the file beside SQLite. It is never closed: closing any descriptor of the file
    would end all locks that this process has on it, and the next process that leaves the file would then remove the
    write-ahead log that this process still uses.

    See https://www.sqlite.org/howtocorrupt.html, "POSIX advisory locks canceled by a separate thread doing close()".
    """
    status = path.stat()
    return _open_cached_descriptor(path, status.st_dev, status.st_ino)


@functools.cache
def _open_cached_descriptor(path: Path, device: int, inode: int) -> int:
    return os.open(path, os.O_RDONLY)


def _is_text_in_rows(connection: sqlite3.Connection, piece: str) -> bool:
    """Whether a row holds the same text, for example a message of another conversation."""
    statement = """
        SELECT 1 FROM messages WHERE instr(body, ?1) OR instr(meta, ?1)
        UNION ALL SELECT 1 FROM client_versions WHERE instr(bodies, ?1)
        UNION ALL SELECT 1 FROM chunks WHERE instr(text, ?1)
        UNION ALL SELECT 1 FROM chunk_revisions WHERE instr(text, ?1) LIMIT 1"""
    return connection.execute(statement, (piece,)).fetchone() is not None
