"""Relays the events of a Responses provider to a client of the same protocol. Pure.

Each event passes byte for byte, but for what only the gateway can know: `sequence_number`; ids, times and echoes of the
response object; our fields in it; encrypted reasoning, if the client did not ask for it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import orjson

from app.dialects.responses.lifecycle_events import LifecycleWriter
from app.dialects.responses.response_object import DEFAULT_ECHO, GATEWAY_ECHO, OPTIONAL_ECHO, replace_output
from app.dialects.responses.stream_decoder import (
    CREATED_TYPES,
    ITEM_ADDED,
    ITEM_DONE,
    TERMINAL_TYPES,
    ResponseEvent,
    ResponsesStreamDecoder,
    read_output_items,
)
from app.dialects.responses.stream_events import INCOMPLETE, OpenItem

SPLICED_FIELDS: Final = frozenset(
    {
        ("sequence_number",),
        ("output_index",),
        ("item", "encrypted_content"),
        ("response", "output"),
        ("response", "output", "encrypted_content"),
        *(("response", name) for name in ("id", "created_at", "completed_at")),
        *(("response", name) for name in ("context_status", "conversation_id", "context")),
        *(("response", name) for name in (*DEFAULT_ECHO, *OPTIONAL_ECHO, *GATEWAY_ECHO)),
    }
)
"""The fields of an event that change between a provider and a client of the Responses API: numbers, the identity of the
response and the echo of its request, our own fields, and reasoning that the client did not ask for. `completed_at` is
set where the provider has none. A last response without items gets those of the events before it (`output`). Halves of
surrogate pairs become U+FFFD."""
TYPES_NEVER_INCOMPLETE: Final = ("web_search_call", "image_generation_call")
"""Types of items whose status may be `failed`, but not `incomplete`."""
_NO_JSON: Final = msgspec.Raw()
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode


class ResponsesStreamSplicer:
    """Relays one provider's events while a decoder watches.

    Args:
        decoder: assembles the answer.
        lifecycle: writes the stream's beginning and end.
        fields: our status fields.
    """

    def __init__(self, decoder: ResponsesStreamDecoder, lifecycle: LifecycleWriter, fields: bytes) -> None:
        self._decoder = decoder
        self._lifecycle = lifecycle
        self._fields = fields
        self._open_items: dict[int, OpenItem] | None = None
        """The items that the end of the stream cut off; None before the end."""

    def relay_event(self, data: bytes, name: bytes) -> bytes:
        """Renders the frames for an event; nothing for an event that ends the stream: the answer is stored first.

        Raises:
            UpstreamUnavailable: the data is not a JSON object.
        """
        event, data = self._decoder.watch(data, name)
        kind = event.type or ""
        lifecycle = self._lifecycle
        if not kind or kind in TERMINAL_TYPES:
            return b""
        if kind in CREATED_TYPES:
            if lifecycle.has_begun:
                return b""
            lifecycle.has_begun = True
            return self._write_changed(event, data, "response", self._render_response(event))
        frames = b"" if lifecycle.has_begun else lifecycle.write_begin(self._fields)
        if event.response and lifecycle.has_compaction:
            return frames  # no such event may come after an item
        if event.response:
            return frames + self._write_changed(event, data, "response", self._render_response(event))
        frames += lifecycle.write_compaction()
        if event.item:
            shown = lifecycle.response.hide_reasoning(event.item)
            if shown is not event.item:
                return frames + self._write_changed(event, data, "item", shown)
        if event.sequence_number != lifecycle.events.next_number or lifecycle.compaction is not None:
            return frames + self._write_changed(event, data)
        return frames + lifecycle.events.write_data(kind.encode(), _remove_line_breaks(data))

    def write_end(self, fields: bytes) -> bytes:
        """Writes the provider's last event, with our fields."""
        lifecycle = self._lifecycle
        frames = lifecycle.write_compaction()
        response = lifecycle.response.render_original(self._restore_output(), fields, lifecycle.first_items)
        return lifecycle.write_last_event(self._decoder.last_type, response, frames)

    def write_open_items_end(self) -> bytes:
        """Ends the items that the end of the stream cut off."""
        if self._open_items is not None:
            return b""
        self._open_items = self._rebuild_open_items()
        return b"".join(
            [
                item.write_done("failed" if item.item["type"] in TYPES_NEVER_INCOMPLETE else INCOMPLETE)
                for item in self._open_items.values()
            ]
        )

    def read_passed_items(self) -> tuple[list[dict[str, Any]], list[OpenItem]]:
        """Returns the items that have passed, as the client has got them, and those of them that are not done."""
        open_items = self._rebuild_open_items()
        shown = self._lifecycle.response.hide_reasoning
        by_index = {
            index: orjson.loads(bytes(shown(msgspec.Raw(item)))) for index, item in self._decoder.ended_items.items()
        }
        by_index |= {index: open_item.item for index, open_item in open_items.items()}
        return [by_index[index] for index in sorted(by_index)], list(open_items.values())

    def list_items(self) -> list[bytes]:
        """Returns the items of the answer with the provider's bytes. Items that were cut off are among them after
        `write_open_items_end`."""
        last_response = self._decoder.last_response
        if not self._open_items or (last_response is not None and read_output_items(last_response)):
            return self._decoder.list_items()
        by_index = {**self._decoder.ended_items}
        by_index |= {index: _encode(item.item) for index, item in self._open_items.items()}
        return [by_index[index] for index in sorted(by_index)]

    def list_shown_items(self) -> list[msgspec.Raw]:
        """Returns the items of the answer as the client may see them."""
        return [self._lifecycle.response.hide_reasoning(msgspec.Raw(item)) for item in self.list_items()]

    def _restore_output(self) -> bytes:
        """Returns the provider's last response object. Some servers leave `output` empty there, although they have
        sent items."""
        response = self._decoder.last_response
        assert response is not None
        return response if read_output_items(response) else replace_output(response, self.list_items())

    def _render_response(self, event: ResponseEvent) -> msgspec.Raw:
        return msgspec.Raw(self._lifecycle.response.render_original(event.response, self._fields))

    def _write_changed(
        self, event: ResponseEvent, data: bytes, name: str | None = None, value: msgspec.Raw = _NO_JSON
    ) -> bytes:
        """Writes an event with our number, and with another value of a member if one is named."""
        events, members = self._lifecycle.events, _decode_members(data)
        members["sequence_number"] = msgspec.Raw(b"%d" % events.next_number)
        if event.output_index is not None:
            members["output_index"] = msgspec.Raw(b"%d" % (event.output_index + len(self._lifecycle.first_items)))
        if name is not None:
            members[name] = value
        return events.write_data(str(event.type).encode(), _remove_line_breaks(_encode(members)))

    def _rebuild_open_items(self) -> dict[int, OpenItem]:
        open_items: dict[int, OpenItem] = {}
        for data in self._decoder.unfinished:
            event = orjson.loads(data)
            index = event.get("output_index", 0)
            try:
                if event["type"] == ITEM_ADDED:
                    shown = self._lifecycle.response.hide_item(event["item"])
                    place = index + len(self._lifecycle.first_items)
                    open_items[index] = OpenItem({"id": None, **shown}, place, self._lifecycle.events)
                elif event["type"] == ITEM_DONE:
                    open_items.pop(index, None)
                elif index in open_items:
                    open_items[index].apply_event(event["type"], event)
            except (KeyError, TypeError, AttributeError):
                continue  # the provider's event lacks something; the item is ended without it
        for item in open_items.values():
            item.begin_call_text()
        return open_items


def _remove_line_breaks(data: bytes) -> bytes:
    """Returns data on one line. Outside of strings, where it cannot occur, a line break in JSON equals a space."""
    return data.replace(b"\n", b" ").replace(b"\r", b" ") if b"\n" in data or b"\r" in data else data
