"""The two forms of an answer to the client: a whole body, or a stream of frames."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

import msgspec


class WholeAnswer(msgspec.Struct, frozen=True):
    """A JSON answer, ready to be sent."""

    body: bytes
    headers: Mapping[str, str]
    status: int = 200


class StreamedAnswer(msgspec.Struct, frozen=True):
    """A stream that is ready to begin.

    `frames` turns each failure into an error event and ends the stream with `[DONE]`. The caller must close `frames`.
    """

    headers: Mapping[str, str]
    frames: AsyncGenerator[bytes, None]


Answer = WholeAnswer | StreamedAnswer
