"""Writes the events that begin and end a Responses stream. Each has the whole response object. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from app.dialects.responses.response_object import ResponseObject, build_response_error
from app.dialects.responses.stream_events import COMPLETED, IN_PROGRESS, INCOMPLETE, EventWriter
from app.errors import GatewayError


class LifecycleWriter:
    """Writes the beginning, the progress and the end of one stream.

    Attributes:
        response: renders the response objects.
        events: numbers the events of the stream.
        has_begun: whether `response.created` was written.
        end: the frames that end the stream; None until they are written.
    """

    __slots__ = ("end", "events", "has_begun", "response")

    def __init__(self, response: ResponseObject) -> None:
        self.response = response
        self.events = EventWriter()
        self.has_begun = False
        self.end: bytes | None = None

    def write_begin(self, fields: bytes, model: str | None = None) -> bytes:
        """Writes `response.created` and `response.in_progress`; nothing if the stream has begun."""
        if self.has_begun:
            return b""
        return self.write_created(fields, model) + self.write_progress(fields, model)

    def write_created(self, fields: bytes, model: str | None = None) -> bytes:
        self.has_begun = True
        response = self.response.render(fields, status=IN_PROGRESS, model=model)
        return self.events.write_event("response.created", {"response": msgspec.Raw(response)})

    def write_progress(self, fields: bytes, model: str | None = None, extra: Mapping[str, Any] | None = None) -> bytes:
        """Writes `response.in_progress`, which may come several times.

        Args:
            extra: further fields of the event.
        """
        response = self.response.render(fields, status=IN_PROGRESS, model=model)
        return self.events.write_event("response.in_progress", {"response": msgspec.Raw(response), **(extra or {})})

    def write_end(
        self,
        fields: bytes,
        *,
        frames_before: bytes = b"",
        model: str | None,
        output: Sequence[Any],
        usage: Mapping[str, Any] | None,
        incomplete_reason: str | None = None,
    ) -> bytes:
        """Writes `response.completed`, or `response.incomplete` if there is a reason.

        Args:
            frames_before: frames that belong to the end and were written before.
        """
        status = COMPLETED if incomplete_reason is None else INCOMPLETE
        response = self.response.render(
            fields, status=status, model=model, output=output, usage=usage, incomplete_reason=incomplete_reason
        )
        return self.write_last_event(f"response.{status}", response, frames_before)

    def write_failure(
        self,
        error: GatewayError,
        fields: bytes,
        *,
        frames_before: bytes = b"",
        model: str | None = None,
        output: Sequence[Any] = (),
        usage: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Writes `response.failed`. Arguments as of `write_end`."""
        response = self.response.render(
            fields, status="failed", model=model, output=output, usage=usage, error=build_response_error(error)
        )
        return self.write_last_event("response.failed", response, frames_before)

    def write_last_event(self, kind: str, response: bytes, frames_before: bytes = b"") -> bytes:
        """Writes the event that ends the stream, with a response object."""
        self.end = frames_before + self.events.write_event(kind, {"response": msgspec.Raw(response)})
        return self.end
