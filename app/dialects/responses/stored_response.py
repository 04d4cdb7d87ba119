"""What is kept of a response beside its answer in the log, and what its request's messages look like as items. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from app.conversation.conversation_types import StoredCompletion
from app.dialects.item_decoding import is_instructions_field
from app.dialects.request_body import decode_readable_fields

UNSTORED_FIELDS: Final = frozenset({"input", "instructions", "metadata"})
"""Fields of a request that are not kept as parameters: the log has the input; instructions and metadata have columns of
their own."""


def read_parameters(raw_fields: Mapping[str, bytes]) -> dict[str, Any]:
    """Returns the fields of a request that its response repeats."""
    return decode_readable_fields(raw_fields, [name for name in raw_fields if name not in UNSTORED_FIELDS])


def build_request_fields(response: StoredCompletion) -> dict[str, bytes]:
    """Builds the fields of the request that a response answers, each as JSON, without `input`."""
    fields = {name: orjson.dumps(value) for name, value in response.parameters.items()}
    fields["metadata"] = orjson.dumps(dict(response.metadata))
    for raw in response.instructions:
        if is_instructions_field(raw.encode()):
            fields["instructions"] = raw.encode()[1:-1]
    return fields
