"""What a provider cannot take, taken out of a request that is planned. Pure.

What no quirk touches stays the same bytes, and the same conversation is always told in the same way, so that prompt
caches hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.upstream.provider import Quirks
from app.upstream.quirks.alternation import (
    alternating,
    developer_as_system,
    led_by_system,
    merge_neighbours,
    system_told_by_user,
)
from app.upstream.quirks.call_ids import calls_apart, name_calls
from app.upstream.quirks.message_properties import (
    fit_empty_content,
    fit_properties,
    fitting_fields,
    flatten_text,
    without_reasoning,
)
from app.upstream.quirks.outgoing_message import Outgoing
from app.upstream.quirks.restored_fields import indexes_in

_ABOUT_FIELDS = frozenset({"max_tokens_field", "strip_fields", "stream_usage"})
_ABOUT_RESTORING = frozenset({"restore_fields", "restore_scope"})
_ABOUT_MESSAGES = tuple(name for name in Quirks.__dataclass_fields__ if name not in _ABOUT_FIELDS | _ABOUT_RESTORING)
_NONE = Quirks()


def apply_quirks(
    quirks: Quirks, messages: Sequence[bytes], fields: Mapping[str, bytes]
) -> tuple[Sequence[bytes], dict[str, bytes]]:
    """The messages and top-level fields (name → JSON text) that a provider with these quirks understands.

    Objects to which nothing applies are given back as they came.
    """
    fitting = fitting_fields(quirks, fields if isinstance(fields, dict) else dict(fields))
    if all(getattr(quirks, name) == getattr(_NONE, name) for name in _ABOUT_MESSAGES):
        return messages, fitting
    shown = [message.raw for message in _reshaped(quirks, [Outgoing(raw) for raw in messages])]
    is_same = len(shown) == len(messages) and all(map(_is, shown, messages))
    return messages if is_same else shown, fitting


def _is(shown: bytes, raw: bytes) -> bool:
    return shown is raw


def _reshaped(quirks: Quirks, messages: list[Outgoing]) -> list[Outgoing]:
    """Single messages first, then what their order demands: only what is left of a message can be merged."""
    _fit_each(quirks, messages)
    if quirks.split_calls:
        messages = calls_apart(messages)
    if quirks.system_messages == "first":
        messages = led_by_system(messages)
    elif quirks.system_messages == "into_user":
        messages = system_told_by_user(messages)
    if quirks.alternate_roles:
        messages = alternating(messages)
    elif quirks.merge_same_role:
        messages = merge_neighbours(messages)
    if quirks.empty_content != "keep":
        for message in messages:
            fit_empty_content(message, b"null" if quirks.empty_content == "none" else b'""')
    return messages


def _fit_each(quirks: Quirks, messages: list[Outgoing]) -> None:
    if quirks.developer_to_system:
        developer_as_system(messages)
    if quirks.reasoning != "keep":
        kept = set[int]() if quirks.reasoning == "drop" else indexes_in(quirks.reasoning, messages)
        without_reasoning(messages, kept)
    if quirks.tool_call_ids != "keep" or quirks.tool_result_names:
        form = None if quirks.tool_call_ids == "keep" else quirks.tool_call_ids
        name_calls(messages, form, name_results=quirks.tool_result_names)
    for message in messages:
        fit_properties(quirks, message)
        if quirks.flatten_text:
            flatten_text(message)
