"""What goes back to the client: a whole body, or a stream of frames."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """A JSON answer, ready to be sent."""

    body: bytes
    headers: Mapping[str, str]
    status: int = 200


@dataclass(frozen=True, slots=True)
class StreamedAnswer:
    """A stream that is ready to begin. `frames` ends it properly whatever happens, and must be closed."""

    headers: Mapping[str, str]
    frames: AsyncGenerator[bytes, None]


Answer = WholeAnswer | StreamedAnswer
