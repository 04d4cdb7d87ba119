"""Parses the gateway's own fields and headers of a request, which are the same in every protocol. Errors name the
field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, get_args

import orjson

from app.context.plan.policy import RecallMode
from app.conversation.names import check_name
from app.dialects.answer_format import EventStyle
from app.dialects.request_body import check_conversation_id, decode_field, read_conversation_field
from app.errors import InvalidRequest
from app.pipeline.turn.chat_request import (
    CompactionOptions,
    ContextDetail,
    ContextMode,
    ContextParameters,
    Continuation,
    DeliveryOptions,
    ForwardedParts,
    RetryOptions,
)

CONTEXT_MODES: Final = get_args(ContextMode)
EVENT_STYLES: Final = get_args(EventStyle)
DETAIL_HEADER: Final = "x-context-detail"
CONTEXT_DETAILS: Final = get_args(ContextDetail)
SUMMARIZE_MODES: Final = ("auto", "never", "now")
RECALL_MODES: Final = get_args(RecallMode)
CONTEXT_FIELDS: Final = ("policy", "instructions", "summarize", "pin", "recall")
CHAT_UI_HEADERS: Final = ("X-Chat-Id", "X-OpenWebUI-Chat-Id")
"""Headers in which chat UIs send a chat's id; they send it with side tasks (a title, tags), too."""
CHAT_TASK_HEADER: Final = "x-chat-task"
"""Header in which chat UIs name the side task of a request, such as a title to make."""
FORWARDED_HEADERS: Final = (
    "openai-organization",
    "openai-project",
    "openai-beta",
    "anthropic-version",
    "anthropic-beta",
    "traceparent",
    "tracestate",
    "baggage",
)
HINT_HEADERS: Final = ("session-id", "thread-id", "x-session-id", "x-session-affinity", "x-claude-code-session-id")
"""Headers in which agents send the id of a session. One id may stand for several conversations, since sub-agents send
their parent's, so it is a hint and no conversation id."""
MAX_HINT_CHARS: Final = 256
RETRY_HEADER: Final = "x-stainless-retry-count"
READ_HEADERS: Final = frozenset(
    {
        *("x-conversation-id", "x-context-mode", "x-context-policy", "x-context-events", "idempotency-key"),
        *(CHAT_TASK_HEADER, *map(str.lower, CHAT_UI_HEADERS), *HINT_HEADERS, *FORWARDED_HEADERS, RETRY_HEADER),
        DETAIL_HEADER,
    }
)
"""Headers that carry an option."""
_IDEMPOTENCY_KEY = re.compile(r"^[\x21-\x7e]{1,255}\Z")
_HEADER_SAFE = re.compile(r"^[\x20-\x7e]*$")


class RequestOptions(NamedTuple):
    """Sections of a `ChatRequest`, as far as the gateway's own fields and headers fill them."""

    continuation: Continuation
    context: ContextParameters
    compaction: CompactionOptions
    retry: RetryOptions
    delivery: DeliveryOptions
    forwarded: ForwardedParts


def parse_request_options(fields: Mapping[str, bytes], headers: Mapping[str, str]) -> RequestOptions:
    """Returns the gateway's own options of a request.

    Args:
        fields: the JSON text of each top-level field of the body.
        headers: values by lower-case name.

    Raises:
        InvalidRequest: a field or a header is invalid; `param` names the place.
    """
    context = _parse_context_options(fields)
    policy = headers.get("x-context-policy")
    metadata = decode_field(fields, "metadata")
    conversation_id, is_chat_ui = _parse_conversation_id(fields, metadata, headers)
    context_mode = _parse_header_choice(headers, "x-context-mode", CONTEXT_MODES, "auto")
    if context_mode == "auto" and headers.get(CHAT_TASK_HEADER):
        # A chat UI's side task, such as a title to make, has the chat's id but is no part of its conversation.
        context_mode = "stateless"
    return RequestOptions(
        Continuation(conversation_id, is_chat_ui, hints=_parse_session_hints(fields, metadata, headers)),
        ContextParameters(
            context_mode,
            check_name(policy, "X-Context-Policy") if policy else context.get("policy"),
            context.get("pin", ()),
            context.get("recall"),
        ),
        CompactionOptions(context.get("summarize", "auto"), instructions=context.get("instructions")),
        RetryOptions(headers.get(RETRY_HEADER, "0") not in ("", "0"), idempotency_key=_parse_idempotency_key(headers)),
        DeliveryOptions(
            event_style=_parse_header_choice(headers, "x-context-events", EVENT_STYLES, "chunk"),
            context_detail=_parse_header_choice(headers, DETAIL_HEADER, CONTEXT_DETAILS, "full"),
        ),
        ForwardedParts({name: headers[name] for name in FORWARDED_HEADERS if name in headers}),
    )


def _parse_conversation_id(
    fields: Mapping[str, bytes], metadata: object, headers: Mapping[str, str]
) -> tuple[str | None, bool]:
    """Returns the conversation id and whether a chat UI's header names it.

    The order of precedence is that of the wire contract: the gateway's header, the body's fields, a chat UI's header.
    """
    conversation_id = headers.get("x-conversation-id")
    if conversation_id is not None:
        return check_conversation_id(conversation_id, "X-Conversation-Id"), False
    conversation_id = decode_field(fields, "conversation_id")
    if conversation_id is not None:
        return check_conversation_id(conversation_id, "conversation_id"), False
    conversation_id = read_conversation_field(fields)
    if conversation_id is not None:
        return conversation_id, False
    if isinstance(metadata, dict) and metadata.get("conversation_id") is not None:
        return check_conversation_id(metadata["conversation_id"], "metadata.conversation_id"), False
    for name in CHAT_UI_HEADERS:
        if conversation_id := headers.get(name.lower()):  # a UI sends an empty value before a new chat has an id
            return check_conversation_id(conversation_id, name), True
    return None, False


def _parse_session_hints(
    fields: Mapping[str, bytes], metadata: object, headers: Mapping[str, str]
) -> Mapping[str, str]:
    """Returns the session ids that a client sends for its own purposes, by the name of the header or field."""
    hints: dict[str, Any] = {name: headers.get(name) for name in HINT_HEADERS}
    hints["prompt_cache_key"] = decode_field(fields, "prompt_cache_key")
    if isinstance(metadata, dict):
        hints["user_id"] = _parse_session_id(metadata.get("user_id"))
    return {name: one for name, one in hints.items() if isinstance(one, str) and 0 < len(one) <= MAX_HINT_CHARS}


def _parse_session_id(user_id: object) -> object:
    """Returns the `session_id` that Anthropic's clients send inside `metadata.user_id`, which is JSON text."""
    if not isinstance(user_id, str) or not user_id.startswith("{"):
        return None
    try:
        decoded = orjson.loads(user_id)
    except orjson.JSONDecodeError:
        return None
    return decoded.get("session_id") if isinstance(decoded, dict) else None


def _parse_idempotency_key(headers: Mapping[str, str]) -> str | None:
    key = headers.get("idempotency-key")
    if key is None or _IDEMPOTENCY_KEY.match(key):
        return key
    raise InvalidRequest(
        "Idempotency-Key must be 1 to 255 visible ASCII characters.", code="invalid_value", param="Idempotency-Key"
    )


def _parse_context_options(fields: Mapping[str, bytes]) -> dict[str, Any]:
    context = decode_field(fields, "context")
    if context is None:
        return {}
    if not isinstance(context, dict):
        raise InvalidRequest("`context` must be an object.", code="invalid_type", param="context")
    for name, value in context.items():
        if name not in CONTEXT_FIELDS:
            raise InvalidRequest(
                f"Unknown field {name!r} in `context`; known are {', '.join(CONTEXT_FIELDS)}.",
                code="unknown_parameter",
                param=f"context.{name}",
            )
        if name == "recall":
            context[name] = _parse_recall(value)
        elif name == "pin":
            context[name] = _parse_pin_indexes(value, "messages" if "messages" in fields else "input")
        elif value is not None and not isinstance(value, str):
            raise InvalidRequest(f"`context.{name}` must be a string.", code="invalid_type", param=f"context.{name}")
        elif value and name in ("policy", "summarize"):
            check_name(value, f"context.{name}")
    summarize = context.get("summarize") or "auto"
    if summarize not in SUMMARIZE_MODES:
        raise InvalidRequest(
            f"`context.summarize` must be one of {', '.join(SUMMARIZE_MODES)}, not {summarize!r}.",
            code="invalid_value",
            param="context.summarize",
        )
    return {**context, "summarize": summarize}


def _parse_recall(value: object) -> str | None:
    """Parses `context.recall`: the name of a mode, or a boolean for quotations on or off."""
    if isinstance(value, bool):
        return "quote" if value else "off"
    if value is None or (isinstance(value, str) and value in RECALL_MODES):
        return value
    raise InvalidRequest(
        f"`context.recall` must be a boolean or one of {', '.join(RECALL_MODES)}.",
        code="invalid_value",
        param="context.recall",
    )


def _parse_pin_indexes(value: object, field: str) -> tuple[int, ...]:
    """Parses `context.pin`: indexes into `field`, without duplicates."""
    indexes = [] if value is None else value
    if not isinstance(indexes, list) or not all(isinstance(one, int) and not isinstance(one, bool) for one in indexes):
        raise InvalidRequest(
            f"`context.pin` must be an array of indexes into `{field}`.", code="invalid_type", param="context.pin"
        )
    if any(one < 0 for one in indexes):
        counted = "messages" if field == "messages" else "items"
        raise InvalidRequest(f"`context.pin` counts {counted} from 0.", code="invalid_value", param="context.pin")
    return tuple(dict.fromkeys(indexes))


def _parse_header_choice(headers: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> Any:
    value = headers.get(name)
    if value is None:
        return default
    if value in allowed:
        return value
    quoted_value = value if _HEADER_SAFE.match(value) else "its value"
    raise InvalidRequest(
        f"Header {name} must be one of {', '.join(allowed)}, not {quoted_value!r}.", code="invalid_value", param=name
    )
