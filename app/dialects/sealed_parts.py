"""Finds the parts of a message that only the model can read from which they come: encrypted reasoning, and signed or
encrypted thinking. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from app.conversation.item import TOOL_RESULT_ROLES, Item
from app.conversation.json_text import list_objects
from app.dialects.item_decoding import decode_item
from app.dialects.items.message import ResponsesMessage
from app.dialects.messages.message_rendering import list_message_seals


def has_sealed_parts(raw: bytes, provider_protocol: str) -> bool:
    """Returns whether an answer of the log may have sealed parts. False is certain.

    Args:
        provider_protocol: the protocol of the provider that wrote it. Providers of Chat Completions do not tell which
            parts of theirs are sealed.
    """
    if raw[:1] == b"[":
        return b'"encrypted_content"' in raw
    return provider_protocol != "openai" and (b'"signature"' in raw or b'"redacted_thinking"' in raw)


def list_sealed_parts(raw: bytes) -> list[str]:
    """Returns the encrypted contents, signatures and encrypted thinking of a message."""
    message = decode_item(raw)
    if not isinstance(message, ResponsesMessage):
        return list_message_seals(message)
    sealed = [item.get("encrypted_content") for item in list_objects(message.items)]
    return [*filter(None, sealed), *list_message_seals(message)]


def find_loop_answer(raws: Sequence[bytes]) -> int | None:
    """Returns the index of the first answer after the last message of the user; None if there is none."""
    found = None
    for index in reversed(range(len(raws))):
        role = decode_item(raws[index]).role
        if role == "assistant":
            found = index
        elif role not in TOOL_RESULT_ROLES:
            break
    return found


def restore_thinking(raws: Sequence[bytes], stored: Sequence[Item]) -> list[bytes]:
    """Returns the messages with stored answers in the place of answers after the last message of the user that are the
    same and have no thinking.

    Args:
        raws: the messages of a request.
        stored: answers of the log, oldest first.
    """
    restored = list(raws)
    first = find_loop_answer(raws)
    with_thinking = {answer.canonical_form: answer.raw for answer in stored if list_sealed_parts(answer.raw)}
    for index in range(len(raws) if first is None else first, len(raws)):
        message = decode_item(raws[index])
        if message.role == "assistant" and not list_sealed_parts(raws[index]):
            restored[index] = with_thinking.get(message.canonical_form, raws[index])
    return restored
