"""/openapi.json: what the framework knows of the routes, and the chat endpoint, which stands before the framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict, Field

from app.api.chat_request_parser import CONTEXT_MODES, EVENT_STYLES, SUMMARIZE
from app.api.edge.asgi_front import CHAT_PATH
from app.api.resource_schemas import EVENTS, REFUSALS, Described, ErrorBody

REFERENCES: Final = "#/components/schemas/{model}"
CONVERSATION_ID: Final = r"^[A-Za-z0-9._:-]{1,128}$"
UPSTREAM_FAILED: Final = "The model's provider could not be reached or did not answer."


class ContentPart(Described):
    """A part of a message's content, of any of OpenAI's types."""

    type: str


class ChatMessage(Described):
    """A message as OpenAI has it; unknown fields are kept."""

    role: Literal["system", "developer", "user", "assistant", "function"]
    content: str | list[ContentPart] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ToolMessage(Described):
    """The result of a tool call; it follows the message that called."""

    role: Literal["tool"]
    tool_call_id: str
    content: str | list[ContentPart] | None = None


class ContextOptions(BaseModel):
    """What becomes of the conversation's context with this request."""

    model_config = ConfigDict(extra="forbid")

    policy: str | None = Field(None, description="A context policy by name.")
    instructions: str | None = Field(None, description="What a compaction should pay attention to.")
    pin: list[int] | None = Field(None, description="Indexes into `messages` that stay verbatim.")
    summarize: Literal["auto", "never", "now"] | None = None
    recall: bool | Literal["off", "quote", "tool"] | None = None


class ChatCompletionRequest(Described):
    """Everything OpenAI's request allows is accepted; what is not known here is passed on."""

    model: str = Field(min_length=1)
    messages: list[ChatMessage | ToolMessage] = Field(min_length=1)
    stream: bool | None = None
    store: bool | None = None
    conversation_id: str | None = Field(None, pattern=CONVERSATION_ID)
    context: ContextOptions | None = None


class ChatChoice(Described):
    index: int
    message: dict[str, Any]
    finish_reason: str | None


class ChatCompletion(Described):
    """OpenAI's object with what the model saw beside it."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    context_status: Literal["full", "summarized", "trimmed", "degraded", "bypassed"]
    conversation_id: str | None = None
    context: dict[str, Any]


HEADERS: Final[tuple[tuple[str, dict[str, Any], str], ...]] = (
    ("X-Conversation-Id", {"type": "string", "pattern": CONVERSATION_ID}, "The conversation that is meant."),
    ("X-Context-Mode", {"type": "string", "enum": list(CONTEXT_MODES)}, "How the messages relate to the stored log."),
    ("X-Context-Policy", {"type": "string"}, "A context policy by name."),
    ("X-Context-Events", {"type": "string", "enum": list(EVENT_STYLES)}, "How progress is told in a stream."),
    (
        "Idempotency-Key",
        {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
        "Makes a request safe to repeat: the same key and body give the same answer.",
    ),
)


def describe(application: FastAPI) -> Callable[[], dict[str, Any]]:
    """The function that makes the application's document, once."""

    def document() -> dict[str, Any]:
        if application.openapi_schema is None:
            made = get_openapi(
                title=application.title,
                version=application.version,
                description=application.description,
                routes=application.routes,
            )
            _drop_unused_refusals(made)
            _add_chat(made)
            _add_security(made)
            application.openapi_schema = made
        return application.openapi_schema

    return document


def _add_chat(made: dict[str, Any]) -> None:
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    for model in (ChatCompletionRequest, ChatCompletion, ErrorBody):
        schema = model.model_json_schema(ref_template=REFERENCES)
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    made["paths"].setdefault(CHAT_PATH, {})["post"] = {
        "tags": ["chat"],
        "summary": "Create a chat completion",
        "operationId": "create_chat_completion",
        "parameters": [
            {"name": name, "in": "header", "required": False, "schema": schema, "description": description}
            for name, schema, description in HEADERS
        ],
        "requestBody": {"required": True, "content": _json(_reference("ChatCompletionRequest"))},
        "responses": {
            "200": {
                "description": "The answer, as one object or as a stream of server-sent events.",
                "content": {
                    **_json(_reference("ChatCompletion")),
                    **EVENTS,
                },
            },
            **{str(status): _error(str(told["description"])) for status, told in REFUSALS.items()},
            "409": _error("Another request is using this conversation; try again."),
            "413": _error("The request is larger than the gateway accepts."),
            "422": _error("The idempotency key was used with another request."),
            **{status: _error(UPSTREAM_FAILED) for status in ("502", "504")},
            "default": _error("The provider's own refusal, passed on."),
        },
    }
    assert SUMMARIZE == ("auto", "never", "now"), "ContextOptions.summarize says the same"


def _drop_unused_refusals(made: dict[str, Any]) -> None:
    """The framework's own answer to bad parameters, 422, is a 400 here (`api.edge.error_responses`)."""
    for operations in made["paths"].values():
        for operation in operations.values():
            if operation.get("responses", {}).pop("422", None) is not None:
                operation["responses"].setdefault("400", _error(str(REFUSALS[400]["description"])))
    for name in ("HTTPValidationError", "ValidationError"):
        made.get("components", {}).get("schemas", {}).pop(name, None)


def _add_security(made: dict[str, Any]) -> None:
    """A key is never required in mode `open`, where it tells tenants apart."""
    made["components"]["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer"},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    made["security"] = [{"key": []}, {"x-api-key": []}, {}]


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _error(description: str) -> dict[str, Any]:
    return {"description": description, "content": _json(_reference("ErrorBody"))}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
