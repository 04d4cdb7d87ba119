"""Parses the gateway's own export of one conversation: one message per line, in the JSON text that was stored. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from app.conversations.transfer.formats.imported_conversation import (
    EXPECTED_MESSAGE,
    ImportedConversation,
    invalid_file_error,
    parse_logged_message,
)


def split_nonblank_lines(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields the lines of a file that are not blank, each after its location for errors."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        text = line.strip()
        if text:
            yield f"line {number}", text


def parse_jsonl_conversation(data: bytes) -> list[ImportedConversation]:
    """Parses the lines of one conversation.

    Raises:
        InvalidRequest: a line is no message, or there is no line.
    """
    messages = tuple(parse_logged_message(line, location) for location, line in split_nonblank_lines(data))
    if not messages:
        raise invalid_file_error("line 1", EXPECTED_MESSAGE)
    return [ImportedConversation(messages=messages, location="line 1")]
