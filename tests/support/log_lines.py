"""Reading the log lines of a test."""

from __future__ import annotations

import io
import logging


def read_log(stream: io.StringIO) -> str:
    """All lines by now, those that wait to be written together included."""
    for handler in logging.getLogger().handlers:
        handler.flush()
    return stream.getvalue()
