"""Parses the gateway's own export of one conversation: one chat message per line, in the JSON text that was stored.
Pure."""

from __future__ import annotations

from collections.abc import Iterator

from app.conversations.transfer.formats.imported_conversation import (
    ImportedConversation,
    ImportedMessage,
    decode_json,
    expect_object,
    invalid_file_error,
)
from app.dialects.chat.message import ChatMessage

EXPECTED = "a chat message: a JSON object with a 'role'"


def split_nonblank_lines(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields the lines of a file that are not blank, each after its location for errors."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        text = line.strip()
        if text:
            yield f"line {number}", text


def parse_jsonl_conversation(data: bytes) -> list[ImportedConversation]:
    """Parses the lines of one conversation. The JSON texts stay unchanged, so that their links stay the same.

    Raises:
        InvalidRequest: a line is no chat message, or there is no line.
    """
    messages = []
    for location, line in split_nonblank_lines(data):
        body = expect_object(decode_json(line, location, EXPECTED), location, EXPECTED)
        if "role" not in body:
            raise invalid_file_error(location, EXPECTED)
        messages.append(ImportedMessage(ChatMessage(line, body), location))
    if not messages:
        raise invalid_file_error("line 1", EXPECTED)
    return [ImportedConversation(messages=tuple(messages), location="line 1")]
