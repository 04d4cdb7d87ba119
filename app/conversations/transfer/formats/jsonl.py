"""Our own export of one conversation: a chat message a line, in the very JSON text that is stored. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from app.conversation.messages import Message
from app.conversations.transfer.formats.imported_history import Imported, ImportedMessage, an_object, decoded, refused

EXPECTED = "a chat message: a JSON object with a 'role'"


def lines_of(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The lines of a file that are not blank, each with the place that errors name."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        text = line.strip()
        if text:
            yield f"line {number}", text


def read(data: bytes) -> list[Imported]:
    """One conversation, its text untouched.

    Raises:
        InvalidRequest: a line is no chat message, or there is none.
    """
    messages = []
    for where, line in lines_of(data):
        body = an_object(decoded(line, where, EXPECTED), where, EXPECTED)
        if "role" not in body:
            raise refused(where, EXPECTED)
        messages.append(ImportedMessage(Message(line, body), where))
    if not messages:
        raise refused("line 1", EXPECTED)
    return [Imported(messages=tuple(messages), where="line 1")]
