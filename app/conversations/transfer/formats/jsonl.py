"""Parses the gateway's own export of one conversation: one chat message per line, in the JSON text that was stored.
Pure."""

from __future__ import annotations

from collections.abc import Iterator

from app.conversation.messages import Message
from app.conversations.transfer.formats.imported_history import (
    ImportedConversation,
    ImportedMessage,
    decode_json,
    expect_object,
    format_error,
)

EXPECTED = "a chat message: a JSON object with a 'role'"


def split_lines(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields the lines of a file that are not blank, each after its location for errors."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        text = line.strip()
        if text:
            yield f"line {number}", text


def parse_lines(data: bytes) -> list[ImportedConversation]:
    """Parses the lines of one conversation. The JSON texts stay unchanged, so that their links stay the same.

    Raises:
        InvalidRequest: a line is no chat message, or there is no line.
    """
    messages = []
    for where, line in split_lines(data):
        body = expect_object(decode_json(line, where, EXPECTED), where, EXPECTED)
        if "role" not in body:
            raise format_error(where, EXPECTED)
        messages.append(ImportedMessage(Message(line, body), where))
    if not messages:
        raise format_error("line 1", EXPECTED)
    return [ImportedConversation(messages=tuple(messages), location="line 1")]
