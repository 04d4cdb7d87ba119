"""What the pipeline asks of the protocol of a request: which fields have schemas, what they say, what is kept of them,
and how they look in the form of Chat Completions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from app.conversation.context_edits import ClearedContext, ContextEdits
from app.conversation.item import CountedSchemas
from app.dialects.answer_format import AnswerFormat
from app.dialects.body.message_fields import SCHEMA_FIELDS, read_schemas
from app.dialects.chat.answer_format import ChatAnswerFormat
from app.dialects.chat.request import may_run_provider_tools
from app.dialects.chat.stored_completion import select_kept_fields
from app.dialects.messages.compaction import read_own_edits
from app.dialects.messages.context_edits import EDITS_FIELD, render_cleared_context
from app.dialects.messages.request_fields import (
    MESSAGES_SCHEMA_FIELDS,
    may_run_anthropic_tools,
    read_messages_schemas,
    translate_messages_fields_to_chat,
)
from app.dialects.provider_dialect import SelectedFields
from app.dialects.request_translation import RESPONSES_SCHEMA_FIELDS, read_responses_schemas, translate_fields_to_chat
from app.dialects.responses.request import may_run_provider_tools as may_run_responses_tools
from app.dialects.responses.stored_response import read_parameters

Fields = Mapping[str, bytes]
"""The fields of a request: JSON text by name."""


class ClientDialect(msgspec.Struct, frozen=True):
    """The functions of one protocol that clients speak."""

    messages_field: str
    """The field of a request that has the messages."""
    schema_fields: frozenset[str]
    """The fields of a request with schemas: tools and answer formats."""
    read_schemas: Callable[[Mapping[str, Any]], CountedSchemas]
    """Reads the schemas in the decoded values of these fields."""
    may_run_provider_tools: Callable[[Fields], bool]
    """Returns whether the provider may run tools itself (web search, file search) and count their results as prompt
    tokens."""
    read_kept_parameters: Callable[[Fields, str], dict[str, Any]]
    """Returns the fields of a request that its stored completion or response repeats. Takes the request's id, too."""
    translate_to_chat: Callable[[Fields], SelectedFields]
    """Returns the fields, without messages, in the form from which every provider's dialect translates."""
    context_edits_field: str = ""
    """The field that asks to clear old messages; empty if the protocol has none."""
    read_context_edits: Callable[[Fields], ContextEdits | None] = lambda _: None
    """Reads this field."""
    render_cleared_context: Callable[[ClearedContext], dict[str, Any]] = lambda _: {}
    """Returns the fields of an answer that tell what was cleared."""


def _keep_fields(fields: Fields) -> SelectedFields:
    return SelectedFields(dict(fields))


CLIENT_DIALECTS: Final[dict[str, ClientDialect]] = {
    "chat": ClientDialect(
        "messages", SCHEMA_FIELDS, read_schemas, may_run_provider_tools, select_kept_fields, _keep_fields
    ),
    "responses": ClientDialect(
        "input",
        RESPONSES_SCHEMA_FIELDS,
        read_responses_schemas,
        may_run_responses_tools,
        lambda fields, _: read_parameters(fields),
        translate_fields_to_chat,
    ),
    "messages": ClientDialect(
        "messages",
        MESSAGES_SCHEMA_FIELDS,
        read_messages_schemas,
        may_run_anthropic_tools,
        select_kept_fields,
        translate_messages_fields_to_chat,
        EDITS_FIELD,
        read_own_edits,
        render_cleared_context,
    ),
}
"""By the name of the protocol, as of `ChatRequest.protocol`."""


def select_schema_fields(protocol: str, fields: Fields) -> dict[str, bytes]:
    """Returns the fields with schemas, sorted by name: the order of the fields in a body has no meaning."""
    return {name: bytes(fields[name]) for name in sorted(CLIENT_DIALECTS[protocol].schema_fields & fields.keys())}


def make_default_answer_format() -> AnswerFormat:
    """Makes the format of an answer of Chat Completions."""
    return ChatAnswerFormat()
