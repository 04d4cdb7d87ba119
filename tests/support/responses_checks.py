"""What OpenAI's `POST /v1/responses` refuses, and with which error. The words are OpenAI's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import Any, Final

from openai.types.responses.response_create_params import ResponseCreateParamsBase

KNOWN_FIELDS: Final = frozenset(ResponseCreateParamsBase.__annotations__) | {"stream", "client_metadata"}
"""`client_metadata` is in no document of OpenAI, but Codex sends it with each request."""
PART_TYPES: Final = {
    "assistant": ("output_text", "refusal"),
    "user": ("input_text", "input_image", "input_file", "input_audio"),
    "system": ("input_text", "input_image", "input_file"),
    "developer": ("input_text", "input_image", "input_file"),
}
OUTPUT_PART_TYPES: Final = ("input_text", "input_image", "input_file")
REQUIRED_FIELDS: Final = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "reasoning": ("summary",),
    "web_search_call": ("id", "action"),
    "file_search_call": ("id", "queries"),
    "code_interpreter_call": ("id", "container_id"),
    "image_generation_call": ("id", "result"),
    "mcp_call": ("id", "server_label", "name", "arguments"),
    "mcp_list_tools": ("id", "server_label", "tools"),
    "mcp_approval_request": ("id", "server_label", "name", "arguments"),
    "mcp_approval_response": ("approval_request_id", "approve"),
    "computer_call": ("id", "call_id"),
    "computer_call_output": ("call_id", "output"),
    "local_shell_call": ("id", "call_id", "action"),
    "local_shell_call_output": ("id", "output"),
    "shell_call": ("call_id", "action"),
    "shell_call_output": ("call_id", "output"),
    "apply_patch_call": ("call_id", "operation"),
    "apply_patch_call_output": ("call_id", "status"),
    "compaction": ("encrypted_content",),
    "item_reference": ("id",),
}
CALL_WORDS: Final = {"function_call": "function call", "custom_tool_call": "custom tool call"}
ID_BEGINNINGS: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "web_search_call": "ws",
}
MODEL_ITEM_TYPES: Final = frozenset(
    name for name in REQUIRED_FIELDS if not name.endswith(("_output", "_response", "_reference"))
)
MIN_OUTPUT_TOKENS: Final = 16
NOT_PERSISTED: Final = "Items are not persisted when `store` is set to false."


class RefusedRequest(Exception):
    """An error answer."""

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.code, self.param, self.status = message, code, param, status

    def build_body(self) -> dict[str, Any]:
        error = {"message": self.message, "type": "invalid_request_error", "param": self.param, "code": self.code}
        return {"error": error}


def count_prompt_tokens(body: Mapping[str, Any]) -> int:
    """About one token for four characters of what the model reads."""
    read = [body.get(name) for name in ("instructions", "input", "tools") if body.get(name)]
    return sum(len(json.dumps(value)) for value in read) // 4


def check_request(body: dict[str, Any], issued_secrets: Set[str]) -> None:
    """Raises `RefusedRequest` for what OpenAI refuses, and for state that the gateway must not ask for.

    Args:
        body: the decoded request.
        issued_secrets: each encrypted content that may come back.
    """
    for name in body:
        if name not in KNOWN_FIELDS:
            raise RefusedRequest(f"Unknown parameter: {name!r}.", code="unknown_parameter", param=name)
    if not body.get("model"):
        raise RefusedRequest("Missing required parameter: 'model'.", code="missing_required_parameter", param="model")
    _check_state(body)
    limit = body.get("max_output_tokens")
    if limit is not None and limit < MIN_OUTPUT_TOKENS:
        raise RefusedRequest(
            f"Invalid 'max_output_tokens': integer below minimum value. Expected a value >= {MIN_OUTPUT_TOKENS}, but "
            f"got {limit} instead.",
            code="integer_below_min_value",
            param="max_output_tokens",
        )
    if not isinstance(body.get("instructions"), str | None):
        raise _wrong_type("instructions", "a string", body["instructions"])
    for index, tool in enumerate(body.get("tools") or ()):
        if tool.get("type") in ("function", "custom", "namespace") and not isinstance(tool.get("name"), str):
            raise _missing(f"tools[{index}].name")
    _check_input(body.get("input"), issued_secrets)


def _check_state(body: Mapping[str, Any]) -> None:
    """The gateway keeps the state, so a request must not name any of the provider's."""
    if body.get("store") is not False:
        raise RefusedRequest("This organization must send 'store' as false.", code="invalid_value", param="store")
    if (previous := body.get("previous_response_id")) is not None:
        raise RefusedRequest(
            f"Previous response with id {previous!r} not found.",
            code="previous_response_not_found",
            param="previous_response_id",
        )
    if (conversation := body.get("conversation")) is not None:
        raise RefusedRequest(f"Conversation with id {conversation!r} not found.", param="conversation", status=404)
    if body.get("background"):
        raise RefusedRequest("Background mode needs 'store' to be true.", code="invalid_value", param="background")


def _check_input(items: Any, issued_secrets: Set[str]) -> None:
    if isinstance(items, str) and items:
        return
    if not items:
        raise RefusedRequest(
            "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation_id' must be provided.",
            code="missing_required_parameter",
            param="input",
        )
    if not isinstance(items, list):
        raise _wrong_type("input", "one of an array of input items or a string", items)
    for index, item in enumerate(items):
        path = f"input[{index}]"
        kind = item.get("type", "message" if "role" in item else None)
        if kind not in REQUIRED_FIELDS:
            raise _invalid_value(path, kind, REQUIRED_FIELDS)
        for name in REQUIRED_FIELDS[kind]:
            if item.get(name) is None and not (kind == "message" and item.get("role") == "assistant"):
                raise _missing(f"{path}.{name}")
        _check_id(path, kind, item)
        if kind == "item_reference":
            raise RefusedRequest(f"Item with id {item['id']!r} not found. {NOT_PERSISTED}", param="input", status=404)
        if kind == "message":
            _check_message(path, item)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            _check_output(path, item)
        elif kind == "function_call" and not isinstance(item["arguments"], str):
            raise _wrong_type(f"{path}.arguments", "a string", item["arguments"])
        elif kind == "reasoning":
            following = items[index + 1] if index + 1 < len(items) else {}
            _check_reasoning(path, item, following, issued_secrets)
    _check_pairs(items)


def _check_id(path: str, kind: str, item: Mapping[str, Any]) -> None:
    item_id, beginning = item.get("id"), ID_BEGINNINGS.get(kind)
    if item_id is not None and beginning is not None and not str(item_id).startswith(beginning):
        raise RefusedRequest(
            f"Invalid '{path}.id': {item_id!r}. Expected an ID that begins with {beginning!r}.",
            code="invalid_value",
            param=f"{path}.id",
        )


def _check_message(path: str, item: Mapping[str, Any]) -> None:
    role, content = item.get("role"), item.get("content")
    if role not in PART_TYPES:
        raise _invalid_value(f"{path}.role", role, PART_TYPES)
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise _wrong_type(f"{path}.content", "one of an array of objects or a string", content)
    for number, part in enumerate(content):
        if part.get("type") not in PART_TYPES[role]:
            raise _invalid_value(f"{path}.content[{number}]", part.get("type"), PART_TYPES[role])


def _check_output(path: str, item: Mapping[str, Any]) -> None:
    output = item["output"]
    if not isinstance(output, str | list):
        raise _wrong_type(f"{path}.output", "one of an array of objects or a string", output)
    for number, part in enumerate(output if isinstance(output, list) else ()):
        if part.get("type") not in OUTPUT_PART_TYPES:
            raise _invalid_value(f"{path}.output[{number}]", part.get("type"), OUTPUT_PART_TYPES)


def _check_reasoning(path: str, item: Mapping[str, Any], following: Mapping[str, Any], issued: Set[str]) -> None:
    secret, item_id = item.get("encrypted_content"), item.get("id")
    if secret is None:
        if item_id is not None:
            raise RefusedRequest(f"Item with id {item_id!r} not found. {NOT_PERSISTED}", param="input", status=404)
        return
    if secret not in issued:
        raise RefusedRequest(
            f"The encrypted content {str(secret)[:4]}... could not be verified. Reason: Encrypted content could not be "
            "decrypted or parsed.",
            code="invalid_encrypted_content",
        )
    kind = following.get("type", "message")
    is_model_item = kind in MODEL_ITEM_TYPES and (kind != "message" or following.get("role") == "assistant")
    if not is_model_item:
        raise RefusedRequest(
            f"Item {item_id!r} of type 'reasoning' was provided without its required following item.", param="input"
        )


def _check_pairs(items: list[dict[str, Any]]) -> None:
    open_calls: dict[tuple[str, str], None] = {}
    for item in items:
        kind = item.get("type", "message")
        if kind in CALL_WORDS:
            open_calls[kind, item["call_id"]] = None
        elif kind.removesuffix("_output") in CALL_WORDS:
            call_kind = kind.removesuffix("_output")
            if (call_kind, item["call_id"]) not in open_calls:
                words = f"{CALL_WORDS[call_kind]} output with call_id {item['call_id']}"
                raise RefusedRequest(f"No tool call found for {words}.", param="input")
            del open_calls[call_kind, item["call_id"]]
    for call_kind, call_id in open_calls:
        raise RefusedRequest(f"No tool output found for {CALL_WORDS[call_kind]} {call_id}.", param="input")


def _missing(path: str) -> RefusedRequest:
    return RefusedRequest(f"Missing required parameter: '{path}'.", code="missing_required_parameter", param=path)


def _wrong_type(path: str, expected: str, value: object) -> RefusedRequest:
    words = f"Invalid type for '{path}': expected {expected}, but got {type(value).__name__} instead."
    return RefusedRequest(words, code="invalid_type", param=path)


def _invalid_value(path: str, value: object, supported: Any) -> RefusedRequest:
    names = ", ".join(f"'{name}'" for name in supported)
    message = f"Invalid value: {value!r}. Supported values are: {names}."
    return RefusedRequest(message, code="invalid_value", param=path)
