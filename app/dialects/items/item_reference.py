"""Items of `input` that name another item: references to stored items, and outputs, which name their call. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from app.dialects.items.item_kinds import ItemFields, read_call_id
from app.dialects.request_body import build_missing_error
from app.errors import InvalidRequest

REFERENCE_TYPE: Final = "item_reference"
REFERENCE_MARKER: Final = b'"item_reference"'
"""An input without these bytes has no references."""
MAX_REFERENCES: Final = 10_000
"""The most references in one request. Each takes a part of a query."""


_decode_item: Final = msgspec.json.Decoder(ItemFields).decode
_decode_items: Final = msgspec.json.Decoder(list[ItemFields]).decode


def may_have_references(raw_input: bytes) -> bool:
    """Returns whether the JSON text of an `input` may have references."""
    return REFERENCE_MARKER in raw_input


def find_references(raw_items: Sequence[bytes]) -> dict[int, str]:
    """Returns the ids of the references among the items of `input`, by their index.

    Raises:
        InvalidRequest: a reference has no id, or there are too many.
    """
    references: dict[int, str] = {}
    for index, raw in enumerate(raw_items):
        if REFERENCE_MARKER not in raw:
            continue
        reference = _decode_item(raw)
        if reference.type == REFERENCE_TYPE:
            if not isinstance(reference.id, str):
                raise build_missing_error(f"input[{index}].id")
            references[index] = reference.id
    if len(references) > MAX_REFERENCES:
        raise InvalidRequest(
            f"`input` has {len(references)} item references; the maximum is {MAX_REFERENCES}.",
            code="array_above_max_length",
            param="input",
        )
    return references


def build_missing_call_error(raw_input: bytes, call_id: str | None) -> InvalidRequest:
    """Builds the error for an output whose call is neither in the request nor in the log.

    Args:
        raw_input: the JSON text of `input`.
        call_id: the id that the output names.
    """
    indexes = (
        index
        for index, item in enumerate(_decode_items(raw_input))
        if isinstance(item.type, str)
        and item.type.endswith(("_output", "_response"))
        and read_call_id(msgspec.structs.asdict(item)) == call_id
    )
    return InvalidRequest(
        f"No tool call found for function call output with call_id {call_id}.",
        code="invalid_value",
        param=f"input[{next(indexes, 0)}].call_id",
    )
