"""Builds OpenAI's object of a completion that the client asked to store (`store: true`). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.conversation.conversation_types import LogMessage, StoredCompletion
from app.dialects.chat.stored_answer import build_stored_completion
from app.dialects.request_body import decode_readable_fields

PARAMETERS: Final = (
    *("request_id", "tool_choice", "seed", "top_p", "temperature", "presence_penalty", "frequency_penalty"),
    *("system_fingerprint", "service_tier", "tools", "response_format"),
)
"""Fields that the object repeats; null if the request did not have them."""
KEPT_FIELDS: Final = frozenset({*PARAMETERS, "user"}) - {"request_id", "system_fingerprint"}
"""Fields of the request that are kept for the object."""


def select_kept_fields(fields: Mapping[str, bytes], request_id: str) -> dict[str, Any]:
    """Returns the fields of a request that are kept for the object."""
    decoded = decode_readable_fields(fields, sorted(KEPT_FIELDS))
    return {"request_id": request_id, **{name: value for name, value in decoded.items() if value is not None}}


def build_completion_object(completion: StoredCompletion, answer: LogMessage, *, is_redacted: bool) -> dict[str, Any]:
    """Builds OpenAI's object of a stored completion.

    Args:
        completion: the facts that the log does not have.
        answer: the answer in the log.
        is_redacted: whether the text of the answer was removed.
    """
    stored_fields = build_stored_completion(answer, completion.model)
    # A redaction covers the first choice; the alternatives repeat its content and must not be shown either.
    choices = stored_fields["choices"][:1] if is_redacted else stored_fields["choices"]
    return {
        **stored_fields,
        "id": completion.id,
        "created": int(completion.created_at.timestamp()),
        "choices": [
            {**choice, "message": {"content": None, "refusal": None, **choice["message"]}} for choice in choices
        ],
        **{name: completion.parameters.get(name) for name in PARAMETERS},
        "input_user": completion.parameters.get("user"),
        "metadata": dict(completion.metadata),
        "conversation_id": completion.conversation_id,
        "context_status": (answer.meta or {}).get("context_status", "full"),
    }


def build_deletion_object(completion_id: str) -> dict[str, Any]:
    """Builds OpenAI's answer to the deletion of a completion."""
    return {"object": "chat.completion.deleted", "id": completion_id, "deleted": True}
