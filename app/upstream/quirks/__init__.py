"""Adapts a planned request to what a provider can take. Pure.

What no quirk concerns keeps its bytes, and the same conversation is always rendered the same way, so the provider's
prompt cache is used.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence

from app.upstream.provider_contract import NO_QUIRKS, ProviderQuirks
from app.upstream.quirks.field_restoration import find_answers_in_scope
from app.upstream.quirks.message_and_request_fields import (
    fit_request_fields,
    flatten_text,
    remove_refused_properties,
    strip_reasoning,
    write_missing_content,
)
from app.upstream.quirks.outgoing_message import OutgoingMessage
from app.upstream.quirks.role_alternation import (
    alternate_roles,
    merge_adjacent_messages,
    merge_system_messages_first,
    move_system_into_user_message,
    rename_developer_to_system,
)
from app.upstream.quirks.tool_calls import assign_call_ids, split_tool_calls

_REQUEST_FIELD_QUIRKS = ("max_tokens_field", "strip_fields", "stream_usage", "restore_fields", "restore_scope")
"""Quirks that change no message here. Restored fields are restored before the view is planned."""


@functools.cache
def _has_message_quirks(quirks: ProviderQuirks) -> bool:
    others = {name: getattr(NO_QUIRKS, name) for name in _REQUEST_FIELD_QUIRKS}
    return dataclasses.replace(quirks, **others) != NO_QUIRKS


def fit_to_quirks(
    protocol: str, quirks: ProviderQuirks, messages: Sequence[bytes], fields: dict[str, bytes]
) -> tuple[Sequence[bytes], dict[str, bytes]]:
    """Returns the messages and top-level fields that a provider with these quirks understands. Only messages of Chat
    Completions have quirks. Objects that need no change are returned as they came."""
    # The test for identity comes first: nearly all providers have no quirks, and `==` compares each field.
    if quirks is NO_QUIRKS or quirks == NO_QUIRKS:
        return messages, fields
    if protocol != "openai":
        return messages, fit_request_fields(quirks, fields)
    # Most providers have no quirks of messages: then messages are not even parsed.
    if _has_message_quirks(quirks):
        raws = [bytes(raw) for raw in messages]
        fitted = [message.raw for message in _reshape_messages(quirks, [OutgoingMessage(raw) for raw in raws])]
        if len(fitted) != len(raws) or not all(map(operator.is_, fitted, raws)):
            messages = fitted
    return messages, fit_request_fields(quirks, fields)


def _reshape_messages(quirks: ProviderQuirks, messages: list[OutgoingMessage]) -> list[OutgoingMessage]:
    """Changes single messages first, then their order: whether neighbours can be merged depends on what is left of
    them.
    """
    _apply_single_message_quirks(quirks, messages)
    if quirks.split_calls:
        messages = split_tool_calls(messages)
    if quirks.system_messages == "first":
        messages = merge_system_messages_first(messages)
    elif quirks.system_messages == "into_user":
        messages = move_system_into_user_message(messages)
    if quirks.alternate_roles:
        messages = alternate_roles(messages)
    elif quirks.merge_same_role:
        messages = merge_adjacent_messages(messages)
    # Last, since splitting and merging leave messages without content.
    if quirks.empty_content != "keep":
        for message in messages:
            write_missing_content(message, b"null" if quirks.empty_content == "none" else b'""')
    return messages


def _apply_single_message_quirks(quirks: ProviderQuirks, messages: list[OutgoingMessage]) -> None:
    # Roles come first: the other changes look at them.
    if quirks.developer_to_system:
        rename_developer_to_system(messages)
    if quirks.reasoning != "keep":
        kept = set[int]() if quirks.reasoning == "drop" else find_answers_in_scope(quirks.reasoning, messages)
        strip_reasoning(messages, kept)
    if quirks.tool_call_ids != "keep" or quirks.tool_result_names:
        form = None if quirks.tool_call_ids == "keep" else quirks.tool_call_ids
        assign_call_ids(messages, form, name_results=quirks.tool_result_names)
    for message in messages:
        remove_refused_properties(quirks, message)
        if quirks.flatten_text:
            flatten_text(message)
