"""OpenAI's form of a history: `{"messages": […]}`, one or an array or a line each; or a bare array of messages. Pure.

The form of fine-tuning files, of request bodies, and of `concertina export`, whose lines say more of a conversation.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from app.conversation.identity import is_valid_id
from app.conversation.messages import Message
from app.conversations.transfer.formats.imported_history import (
    Imported,
    ImportedMessage,
    an_object,
    decoded,
    inside,
    metadata_of,
    refused,
    time_of,
)

EXPECTED = "an object with an array of 'messages'"
EXPECTED_MESSAGE = "a chat message: a JSON object with a 'role'"
_as_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_as_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


def read(texts: Sequence[tuple[str, bytes]]) -> list[Imported]:
    """The conversations of a file.

    Args:
        texts: JSON text of each history, with the place that errors name.

    Raises:
        InvalidRequest: one of them is no history.
    """
    if not texts:
        raise refused("line 1", EXPECTED)
    return [_conversation(raw, where) for where, raw in texts]


def read_messages(raw: bytes) -> list[Imported]:
    """The one conversation of a bare array of messages."""
    return [Imported(messages=_messages(raw, ""), where="")]


def _conversation(raw: bytes, where: str) -> Imported:
    try:
        fields = _as_object(raw)
    except msgspec.ValidationError as error:
        raise refused(where, EXPECTED) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refused(where, f"{EXPECTED}, in valid JSON ({error})") from error
    if "messages" not in fields:
        raise refused(where, EXPECTED)
    rest = {name: decoded(bytes(text), inside(where, name), "JSON") for name, text in fields.items() if name in _READ}
    name = rest.get("external_id")
    return Imported(
        messages=_messages(bytes(fields["messages"]), inside(where, "messages")),
        where=where,
        metadata=metadata_of(rest.get("metadata"), inside(where, "metadata")),
        external_id=name if isinstance(name, str) and is_valid_id(name) else None,
        created_at=time_of(rest.get("created_at")),
    )


_READ = ("metadata", "external_id", "created_at")
"""Fields that a line of `concertina export` has beside its messages."""


def _messages(raw: bytes, where: str) -> tuple[ImportedMessage, ...]:
    try:
        texts = _as_array(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refused(where, f"an array of chat messages ({error})") from error
    return tuple(_message(bytes(text), f"{where}[{index}]") for index, text in enumerate(texts))


def _message(raw: bytes, where: str) -> ImportedMessage:
    body = an_object(decoded(raw, where, EXPECTED_MESSAGE), where, EXPECTED_MESSAGE)
    if "role" not in body:
        raise refused(where, EXPECTED_MESSAGE)
    return ImportedMessage(Message(raw, body), where)
