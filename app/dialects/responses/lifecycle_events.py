"""Writes the events that begin and end a Responses stream. Each has the whole response object. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from app.dialects.items.item_ids import derive_item_id
from app.dialects.responses.response_object import ResponseObject, build_response_error, choose_status
from app.dialects.responses.stream_events import COMPLETED, IN_PROGRESS, EventWriter, Item, OpenItem
from app.errors import GatewayError


class LifecycleWriter:
    """Writes the beginning, the progress and the end of one stream.

    Attributes:
        response: renders the response objects.
        events: numbers the events of the stream.
        has_begun: whether `response.created` was written.
        end: the frames that end the stream; None until they are written.
        compaction: the item of a compaction, which is the first of the output; None if there is none.
        has_compaction: whether all events of that item were written.
    """

    def __init__(self, response: ResponseObject) -> None:
        self.response = response
        self.events = EventWriter()
        self.has_begun = False
        self.end: bytes | None = None
        self.compaction: Item | None = None
        self._is_compaction_added = self.has_compaction = False

    @property
    def first_items(self) -> list[Item]:
        """The items of the output before those of the answer."""
        return [] if self.compaction is None else [self.compaction]

    def set_compaction(self, capsule: str) -> None:
        item_id = derive_item_id(self.response.response_id, "cmp", 0)
        self.compaction = {"id": item_id, "type": "compaction", "encrypted_content": capsule}

    def write_compaction_begin(self) -> bytes:
        """Writes the events of a compaction that is being made."""
        if self.compaction is None:
            self.set_compaction("")
        assert self.compaction is not None
        self._is_compaction_added = True
        added = OpenItem({**self.compaction, "encrypted_content": ""}, 0, self.events)
        return added.write_added() + self._write_compacting({})

    def _write_compacting(self, extra: Mapping[str, Any]) -> bytes:
        assert self.compaction is not None
        fields = {"item_id": self.compaction["id"], "output_index": 0, **extra}
        return self.events.write_event("response.compaction.compacting", fields)

    def write_compaction(self) -> bytes:
        """Writes the events of the compaction that are not written yet."""
        if self.compaction is None or self.has_compaction:
            return b""
        begin = b"" if self._is_compaction_added else self.write_compaction_begin()
        self.has_compaction = True
        return begin + OpenItem(self.compaction, 0, self.events).write_done(COMPLETED)

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
        """Writes `response.in_progress`, which may come several times. While the item of a compaction is being made,
        no such event may come, and `response.compaction.compacting` takes its place.

        Args:
            extra: further fields of the event.
        """
        if self._is_compaction_added and not self.has_compaction:
            return self._write_compacting(extra or {})
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
