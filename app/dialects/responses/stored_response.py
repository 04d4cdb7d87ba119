"""What is kept of a response beside its answer in the log, and what its request's messages look like as items. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import orjson

from app.conversation.conversation_types import StoredCompletion
from app.dialects.chat.item_parts import build_item_text_part
from app.dialects.chat.request import decode_field
from app.dialects.responses.item_ids import RESPONSE_ID_PREFIX
from app.dialects.responses.message import ResponsesMessage
from app.errors import InvalidRequest

ItemObject = dict[str, Any]

UNSTORED_FIELDS: Final = frozenset({"input", "instructions", "metadata"})
"""Fields of a request that are not kept as parameters: the log has the input; instructions and metadata have columns of
their own."""
INSTRUCTIONS_BEGIN: Final = b'["'
"""How the raw text of a message begins that is the `instructions` field of a request."""
RESPONSE_ID_HEX: Final = 48
"""How many hex digits an id of ours has after `resp_`."""
_DERIVED_ITEM_ID: Final = re.compile(rf"[a-z]+_([0-9a-f]{{{RESPONSE_ID_HEX}}})[0-9a-f]{{2,}}")


def is_instructions_field(raw: bytes) -> bool:
    """Returns whether a message is the `instructions` field of a request, which holds for one response only."""
    return raw.startswith(INSTRUCTIONS_BEGIN)


def select_lasting_instructions(raws: Sequence[str]) -> list[str]:
    """Returns the leading system and developer messages that hold for the following responses, too."""
    return [raw for raw in raws if not is_instructions_field(raw.encode())]


def read_parameters(raw_fields: Mapping[str, bytes]) -> dict[str, Any]:
    """Returns the fields of a request that its response repeats."""
    parameters = {}
    for name in raw_fields:
        if name not in UNSTORED_FIELDS:
            # A number that only the provider can read, or a value that is nested too deeply, is not kept.
            with suppress(InvalidRequest):
                parameters[name] = decode_field(raw_fields, name)
    return parameters


def build_request_fields(response: StoredCompletion) -> dict[str, bytes]:
    """Builds the fields of the request that a response answers, each as JSON, without `input`."""
    fields = {name: orjson.dumps(value) for name, value in response.parameters.items()}
    fields["metadata"] = orjson.dumps(dict(response.metadata))
    for raw in response.instructions:
        if is_instructions_field(raw.encode()):
            fields["instructions"] = raw.encode()[1:-1]
    return fields


def find_response_id(item_id: str) -> str | None:
    """Returns the id of the response from which an item's id is derived (`derive_item_id`), or None if the id has
    another form."""
    match = _DERIVED_ITEM_ID.fullmatch(item_id)
    return f"{RESPONSE_ID_PREFIX}{match[1]}" if match else None


def build_input_items(message: ResponsesMessage) -> list[ItemObject]:
    """Returns the items of a message as OpenAI lists them: with `type` and `status`, and content in parts."""
    return [_complete_item(item) for item in message.items if isinstance(item, dict)]


def _complete_item(item: ItemObject) -> ItemObject:
    if item.get("type", "message") != "message":
        return item
    content = item.get("content")
    if isinstance(content, str):
        content = [build_item_text_part(content, is_answer=item.get("role") == "assistant")]
    return {**item, "type": "message", "content": content, "status": item.get("status", "completed")}


def hide_encrypted_reasoning(item: ItemObject) -> ItemObject:
    """Returns an item without encrypted reasoning."""
    if item.get("type") != "reasoning" or "encrypted_content" not in item:
        return item
    return {name: value for name, value in item.items() if name != "encrypted_content"}
