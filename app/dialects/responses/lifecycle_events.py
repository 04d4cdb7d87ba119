"""Writes the events that begin and end a Responses stream. Each has the whole response object. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from app.dialects.responses.response_object import ResponseObject, build_response_error, choose_status
from app.dialects.responses.stream_events import IN_PROGRESS, EventWriter
from app.errors import GatewayError


class LifecycleWriter:
    """Writes the beginning, the progress and the end of one stream.

    Attributes:
        response: renders the response objects.
        events: numbers the events of the stream.
        has_begun: whether `response.created` was written.
        end: the frames that end the stream; None until they are written.
    """

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
        self, fields: bytes, frames_before: bytes = b"", error: GatewayError | None = None, **members: Any
    ) -> bytes:
        """Writes `response.completed`, `response.incomplete`, or `response.failed` if there is an error.

        Args:
            frames_before: frames that belong to the end and were written before.
            members: further arguments of `ResponseObject.render`.
        """
        if error is not None:
            members |= {"status": "failed", "finish": None, "error": build_response_error(error)}
        kind = f"response.{members.get('status') or choose_status(members.get('finish'))}"
        return self.write_last_event(kind, self.response.render(fields, **members), frames_before)

    def write_last_event(self, kind: str, response: bytes, frames_before: bytes = b"") -> bytes:
        """Writes the event that ends the stream, with a response object."""
        self.end = frames_before + self.events.write_event(kind, {"response": msgspec.Raw(response)})
        return self.end
