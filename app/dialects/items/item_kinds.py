"""Which kinds of items there are, and of which message an item is a part. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

CALL_OUTPUT_TYPES: Final = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
    "mcp_approval_request": "mcp_approval_response",
}
"""The type of each call that the client carries out, and the type of the item that answers it."""
OUTPUT_TYPES: Final = frozenset(CALL_OUTPUT_TYPES.values())
MODEL_TYPES: Final = frozenset({"reasoning", *CALL_OUTPUT_TYPES})
"""Items that only a model writes, whatever role a client gives them."""
SPOKEN_ROLES: Final = ("user", "system", "developer")
"""Roles of which each item is a message of its own."""
CHANGING_FIELDS: Final = frozenset({"id", "status", "created_by", "internal_chat_message_metadata_passthrough"})
"""Fields of an item that a client may drop or change although it means the same item."""
MAX_TOOL_NAME_CHARS: Final = 64
NAME_DIGEST_CHARS: Final = 8
HOSTED_ENVIRONMENTS: Final = ("container_reference", "container_auto")
"""Environments of a shell call that the provider itself carries out."""


class ItemFields(msgspec.Struct):
    """The fields that tell the kind of an item, and pair calls with outputs."""

    type: Any = None
    role: Any = None
    id: Any = None
    call_id: Any = None
    approval_request_id: Any = None
    execution: Any = None
    environment: Any = None


def find_message_role(item: Mapping[str, Any]) -> str:
    """Returns the role of the message that an item belongs to; empty for a message item without a role."""
    kind, role = read_type(item), item.get("role")
    if kind == "message":
        return role if isinstance(role, str) else ""
    if kind in OUTPUT_TYPES and not is_hosted(item):
        return "tool"
    if kind not in MODEL_TYPES and isinstance(role, str) and role in SPOKEN_ROLES:
        return role
    return "assistant"


def read_type(item: Mapping[str, Any]) -> str:
    """Returns the type of an item; that of a message may be left out. Empty for a type that is no string."""
    kind = item.get("type")
    return kind if isinstance(kind, str) else "" if kind is not None else "message"


def is_client_call(item: Mapping[str, Any]) -> bool:
    """Says whether an item is a call that the client answers by another item."""
    return read_type(item) in CALL_OUTPUT_TYPES and not is_hosted(item)


def is_hosted(item: Mapping[str, Any]) -> bool:
    """Says whether the provider itself carries out a call of a kind that clients may carry out, too; or whether an
    output is that of such a call, as far as it tells."""
    match item:
        case {"type": "tool_search_call" | "tool_search_output"}:
            return item.get("execution") != "client"
        case {"type": "shell_call", "environment": {"type": str(environment)}}:
            return environment in HOSTED_ENVIRONMENTS
    return False


def read_call_id(item: Mapping[str, Any]) -> str | None:
    """Returns the id that a call and its output have in common."""
    match item.get("type"):
        case "mcp_approval_request":
            call_id = item.get("id")
        case "mcp_approval_response":
            call_id = item.get("approval_request_id")
        case "local_shell_call_output":
            # OpenAI's reference has the call's id in `id`; clients such as Codex send `call_id`.
            call_id = item.get("call_id") or item.get("id")
        case _:
            call_id = item.get("call_id")
    return call_id if isinstance(call_id, str) else None


def join_tool_name(namespace: object, name: object) -> str:
    """Returns the name of a function where no namespaces exist. Chat Completions allows 64 letters, digits, `_` and
    `-`, so the end of a longer name is a digest of it."""
    plain_name = name if isinstance(name, str) else ""
    if not isinstance(namespace, str) or not namespace:
        return plain_name
    joined_name = f"{namespace}__{plain_name}"
    if len(joined_name) <= MAX_TOOL_NAME_CHARS:
        return joined_name
    digest = hashlib.sha256(joined_name.encode("utf-8", "surrogatepass")).hexdigest()[:NAME_DIGEST_CHARS]
    return f"{joined_name[: MAX_TOOL_NAME_CHARS - NAME_DIGEST_CHARS - 1]}_{digest}"
