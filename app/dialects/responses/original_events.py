"""Relays the events of a Responses provider: byte for byte, except for what only the gateway can know. Pure."""

from __future__ import annotations

from typing import Final

import msgspec
import orjson

from app.dialects.chat.stream_collector import normalize_json
from app.dialects.responses.lifecycle_events import LifecycleWriter
from app.dialects.responses.response_object import read_output_items, replace_output
from app.dialects.responses.stream_events import INCOMPLETE, OpenItem
from app.errors import UpstreamUnavailable

CREATED_TYPES: Final = ("response.created", "response.queued")
TERMINAL_TYPES: Final = ("response.completed", "response.incomplete", "response.failed")
TYPES_NEVER_INCOMPLETE: Final = ("web_search_call", "image_generation_call")
"""Types of items whose status may be `failed`, but not `incomplete`."""
ITEM_ADDED: Final = "response.output_item.added"
ITEM_DONE: Final = "response.output_item.done"
_NO_JSON: Final = msgspec.Raw()


class _OriginalEvent(msgspec.Struct, gc=False):
    """The fields of an event that decide what is done with it. Their values stay undecoded."""

    type: str = ""
    sequence_number: int | None = None
    output_index: int = 0
    item: msgspec.Raw = _NO_JSON
    response: msgspec.Raw = _NO_JSON


_decode_event: Final = msgspec.json.Decoder(_OriginalEvent).decode
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode


class OriginalEvents:
    """Relays one provider's events, and keeps the items for the log.

    Args:
        lifecycle: writes the stream's beginning and end.
        fields: our status fields.

    Attributes:
        have_come: whether the provider's own events have come, so that nothing is made from the chat chunks.
    """

    __slots__ = (
        "_fields",
        "_items",
        "_lifecycle",
        "_open_indexes",
        "_open_items",
        "_terminal",
        "_unfinished",
        "have_come",
    )

    def __init__(self, lifecycle: LifecycleWriter, fields: bytes) -> None:
        self.have_come = False
        self._lifecycle = lifecycle
        self._fields = fields
        self._items: dict[int, bytes] = {}
        """Items that are done, by output index, with their bytes."""
        self._open_indexes: set[int] = set()
        self._unfinished: list[bytes] = []
        """Data of the events since the last time that no item was open."""
        self._open_items: dict[int, OpenItem] | None = None
        """The items that the end of the stream cut off; None before the end."""
        self._terminal: _OriginalEvent | None = None

    @property
    def has_end(self) -> bool:
        """Whether the provider has ended the stream with a response object."""
        return self._terminal is not None

    @property
    def last_response(self) -> bytes | None:
        """The response object with which the provider has ended the stream, with its bytes."""
        return None if self._terminal is None else bytes(self._terminal.response)

    @property
    def has_failed(self) -> bool:
        """Whether the provider has ended the stream with `response.failed`."""
        return self._terminal is not None and self._terminal.type == "response.failed"

    def relay_event(self, data: bytes) -> bytes:
        """Renders the frames for an event; nothing for an event that ends the stream: the answer is stored first."""
        self.have_come = True
        try:
            event = _decode_event(data)
            # An item or a response is read again from the log, so its JSON must be as every reader takes it.
            is_normal = not (event.item or event.response) or normalize_json(data) is data
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            is_normal = False
        if not is_normal:
            # Half of a surrogate pair, or no event: then the chat chunk after it says what is wrong.
            data = _normalize_event(data)
            event = _OriginalEvent() if data == b"" else _decode_event(data)
        kind = event.type
        if not kind or kind == "error":
            return b""  # the chat chunk after it has the error, and the stream ends with `response.failed`
        if kind in TERMINAL_TYPES:
            self._terminal = event
            return b""
        lifecycle = self._lifecycle
        if kind in CREATED_TYPES:
            if lifecycle.has_begun:
                return b""
            lifecycle.has_begun = True
            return self._write_changed(event, data, "response", self._render_response(event))
        frames = lifecycle.write_begin(self._fields)
        if event.response:
            return frames + self._write_changed(event, data, "response", self._render_response(event))
        self._keep_event(event, data)
        if event.item:
            shown = lifecycle.response.hide_reasoning(event.item)
            if shown is not event.item:
                return frames + self._write_changed(event, data, "item", shown)
        if event.sequence_number != lifecycle.events.next_number:
            return frames + self._write_changed(event, data)
        return frames + lifecycle.events.write_data(kind.encode(), _remove_line_breaks(data))

    def write_end(self, fields: bytes) -> bytes:
        """Writes the provider's last event, with our fields."""
        assert self._terminal is not None
        response = self._lifecycle.response.render_original(self._restore_output(), fields)
        return self._lifecycle.write_last_event(self._terminal.type, response)

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

    def list_items(self) -> list[bytes]:
        """Returns the items of the answer with the provider's bytes. Items that were cut off are among them after
        `write_open_items_end`."""
        if self._terminal is not None and (items := read_output_items(self._terminal.response)):
            return items
        open_items = {index: _encode(item.item) for index, item in (self._open_items or {}).items()}
        by_index = self._items | open_items
        return [by_index[index] for index in sorted(by_index)]

    def list_shown_items(self) -> list[msgspec.Raw]:
        """Returns the items of the answer as the client may see them."""
        return [self._lifecycle.response.hide_reasoning(msgspec.Raw(item)) for item in self.list_items()]

    def _restore_output(self) -> bytes:
        """Returns the provider's last response object. Some servers leave `output` empty there, although they have
        sent items."""
        assert self._terminal is not None
        response = bytes(self._terminal.response)
        return response if read_output_items(response) else replace_output(response, self.list_items())

    def _render_response(self, event: _OriginalEvent) -> msgspec.Raw:
        return msgspec.Raw(self._lifecycle.response.render_original(event.response, self._fields))

    def _write_changed(
        self, event: _OriginalEvent, data: bytes, name: str | None = None, value: msgspec.Raw = _NO_JSON
    ) -> bytes:
        """Writes an event with our number, and with another value of a member if one is named."""
        events, members = self._lifecycle.events, _decode_members(data)
        members["sequence_number"] = msgspec.Raw(b"%d" % events.next_number)
        if name is not None:
            members[name] = value
        return events.write_data(event.type.encode(), _remove_line_breaks(_encode(members)))

    def _keep_event(self, event: _OriginalEvent, data: bytes) -> None:
        if event.type == ITEM_DONE:
            self._items[event.output_index] = bytes(event.item)
            self._open_indexes.discard(event.output_index)
            if not self._open_indexes:
                self._unfinished.clear()
                return
        elif event.type == ITEM_ADDED:
            self._open_indexes.add(event.output_index)
        if self._open_indexes:
            self._unfinished.append(data)

    def _rebuild_open_items(self) -> dict[int, OpenItem]:
        open_items: dict[int, OpenItem] = {}
        for data in self._unfinished:
            event = orjson.loads(data)
            index = event.get("output_index", 0)
            try:
                if event["type"] == ITEM_ADDED:
                    shown = self._lifecycle.response.hide_item(event["item"])
                    open_items[index] = OpenItem({"id": None, **shown}, index, self._lifecycle.events)
                elif event["type"] == ITEM_DONE:
                    open_items.pop(index, None)
                elif index in open_items:
                    open_items[index].apply_event(event["type"], event)
            except (KeyError, TypeError, AttributeError):
                continue  # the provider's event lacks something; the item is ended without it
        for item in open_items.values():
            item.begin_call_text()
        return open_items


def _normalize_event(data: bytes) -> bytes:
    """Returns an event as every reader takes it (`normalize_json`); nothing if the data is no event."""
    try:
        fixed = normalize_json(data)
        _decode_event(fixed)
    except (UpstreamUnavailable, msgspec.DecodeError, RecursionError):
        return b""
    return fixed


def _remove_line_breaks(data: bytes) -> bytes:
    """Returns data on one line. Outside of strings, where it cannot occur, a line break in JSON equals a space."""
    return data.replace(b"\n", b" ").replace(b"\r", b" ") if b"\n" in data or b"\r" in data else data
