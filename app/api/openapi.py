"""Builds /openapi.json: FastAPI's description of the routes, and the endpoints of model calls, which do not pass
through FastAPI and are described here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict, Field

from app.api.edge.asgi_front import CHAT_PATH, RESPONSES_PATH
from app.api.openapi_texts import BODY_EXAMPLES, INTRODUCTION, PARAMETER_EXAMPLES, SDK_SAMPLES, TAGS
from app.api.request_options import CONTEXT_MODES, EVENT_STYLES, SUMMARIZE_MODES
from app.api.resource_schemas import ERROR_RESPONSES, EVENT_STREAM_CONTENT, Described, ErrorBody, Metadata

SCHEMA_REFERENCE: Final = "#/components/schemas/{model}"
CONVERSATION_ID_PATTERN: Final = r"^[A-Za-z0-9._:-]{1,128}$"
UPSTREAM_FAILED_DESCRIPTION: Final = "The model's provider could not be reached or did not answer."


class ContentPart(Described):
    """A part of a message's content, of any of OpenAI's types."""

    type: str


class ChatMessageSchema(Described):
    """A chat message in OpenAI's form; unknown fields are kept."""

    role: Literal["system", "developer", "user", "assistant", "function"]
    content: str | list[ContentPart] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ToolMessage(Described):
    """The result of a tool call; it follows the assistant message with the call."""

    role: Literal["tool"]
    tool_call_id: str
    content: str | list[ContentPart] | None = None


class ContextOptions(BaseModel):
    """Options for the context of this request."""

    model_config = ConfigDict(extra="forbid")

    policy: str | None = Field(None, description="A context policy by name.")
    instructions: str | None = Field(None, description="What the summaries should focus on.")
    pin: list[int] | None = Field(None, description="Indexes into `messages` that stay verbatim.")
    summarize: Literal["auto", "never", "now"] | None = None
    recall: bool | Literal["off", "quote", "tool"] | None = None


class ChatCompletionRequest(Described):
    """OpenAI's request. Fields that are not listed here are accepted and passed on to the provider."""

    model: str = Field(min_length=1)
    messages: list[ChatMessageSchema | ToolMessage] = Field(min_length=1)
    stream: bool | None = None
    store: bool | None = None
    conversation_id: str | None = Field(None, pattern=CONVERSATION_ID_PATTERN)
    context: ContextOptions | None = None


class ChatChoice(Described):
    index: int
    message: dict[str, Any]
    finish_reason: str | None


class ChatCompletion(Described):
    """OpenAI's object, with a report on the context that the model got."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    context_status: Literal["full", "summarized", "trimmed", "degraded", "bypassed"]
    conversation_id: str | None = None
    context: dict[str, Any]


class InputMessage(Described):
    """A message in OpenAI's form."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[ContentPart]


class RequestItem(Described):
    """An item of any of OpenAI's types, such as `function_call_output`."""

    type: str


class ConversationReference(Described):
    id: str = Field(pattern=CONVERSATION_ID_PATTERN)


class CompactionOption(Described):
    """Sets the size in tokens above which the prompt of this request is compacted."""

    type: Literal["compaction"]
    compact_threshold: int | None = Field(None, ge=1)


class ResponsesRequest(Described):
    """OpenAI's request. Fields that are not listed here are accepted and passed on to the provider. `input` may be
    missing only if `previous_response_id` or `conversation` is there."""

    model: str = Field(min_length=1)
    input: str | list[InputMessage | RequestItem] | None = None
    instructions: str | None = None
    previous_response_id: str | None = Field(None, description="The response that the new items follow.")
    conversation: Annotated[str, Field(pattern=CONVERSATION_ID_PATTERN)] | ConversationReference | None = None
    stream: bool | None = None
    store: bool | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    metadata: Metadata | None = None
    truncation: Literal["auto", "disabled"] | None = None
    context_management: list[CompactionOption] | None = None
    conversation_id: str | None = Field(None, pattern=CONVERSATION_ID_PATTERN)
    context: ContextOptions | None = None


class OutputItem(Described):
    """An item of the answer, of any of OpenAI's types."""

    type: str


class ModelResponse(Described):
    """OpenAI's object, with a report on the context that the model got."""

    id: str
    object: Literal["response"]
    created_at: float
    status: Literal["completed", "incomplete", "failed"]
    model: str
    output: list[OutputItem]
    context_status: Literal["full", "summarized", "trimmed", "degraded", "bypassed"]
    conversation_id: str | None = None
    context: dict[str, Any]


MODEL_CALL_HEADERS: Final[tuple[tuple[str, dict[str, Any], str], ...]] = (
    ("X-Conversation-Id", {"type": "string", "pattern": CONVERSATION_ID_PATTERN}, "The conversation of the request."),
    ("X-Context-Mode", {"type": "string", "enum": list(CONTEXT_MODES)}, "How the messages relate to the stored log."),
    ("X-Context-Policy", {"type": "string"}, "A context policy by name."),
    ("X-Context-Events", {"type": "string", "enum": list(EVENT_STYLES)}, "How a stream reports progress."),
    (
        "Idempotency-Key",
        {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
        "Makes a request safe to repeat: the same key and body give the same answer.",
    ),
)


def make_openapi_builder(application: FastAPI) -> Callable[[], dict[str, Any]]:
    """Returns a function that builds the application's OpenAPI document with its first call, and keeps it."""

    def document() -> dict[str, Any]:
        if application.openapi_schema is None:
            openapi_document = get_openapi(
                title=application.title,
                version=application.version,
                description=INTRODUCTION,
                routes=application.routes,
            )
            _replace_422_responses(openapi_document)
            _add_model_calls(openapi_document)
            _add_examples(openapi_document)
            _add_security_schemes(openapi_document)
            openapi_document["tags"] = _describe_used_tags(openapi_document)
            application.openapi_schema = openapi_document
        return application.openapi_schema

    return document


def _add_model_calls(document: dict[str, Any]) -> None:
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for model in (ChatCompletionRequest, ChatCompletion, ResponsesRequest, ModelResponse, ErrorBody):
        schema = model.model_json_schema(ref_template=SCHEMA_REFERENCE)
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    document["paths"].setdefault(CHAT_PATH, {})["post"] = {
        "tags": ["chat"],
        "summary": "Create a chat completion",
        "operationId": "create_chat_completion",
        **_describe_model_call("ChatCompletionRequest", "ChatCompletion"),
    }
    document["paths"].setdefault(RESPONSES_PATH, {})["post"] = {
        "tags": ["responses"],
        "summary": "Create a response",
        "operationId": "create_response",
        **_describe_model_call("ResponsesRequest", "ModelResponse"),
    }
    assert SUMMARIZE_MODES == ("auto", "never", "now"), "ContextOptions.summarize says the same"


def _describe_model_call(request: str, answer: str) -> dict[str, Any]:
    """Returns the parameters, body and answers of an endpoint that asks a model.

    Args:
        request, answer: the names of their schemas.
    """
    return {
        "parameters": [
            {"name": name, "in": "header", "required": False, "schema": schema, "description": description}
            for name, schema, description in MODEL_CALL_HEADERS
        ],
        "requestBody": {
            "required": True,
            "content": _json_content_schema(_schema_reference(request)),
        },
        "responses": {
            "200": {
                "description": "The answer, as one object or as a stream of server-sent events.",
                "content": {**_json_content_schema(_schema_reference(answer)), **EVENT_STREAM_CONTENT},
            },
            **{
                str(status): _error_response_schema(str(told["description"]))
                for status, told in ERROR_RESPONSES.items()
            },
            "409": _error_response_schema("Another request is using this conversation; try again."),
            "413": _error_response_schema("The request is larger than the gateway accepts."),
            "422": _error_response_schema("The idempotency key was used with another request."),
            **{status: _error_response_schema(UPSTREAM_FAILED_DESCRIPTION) for status in ("502", "504")},
            "default": _error_response_schema("The provider's own refusal, passed on."),
        },
    }


def _add_examples(document: dict[str, Any]) -> None:
    """Adds bodies, values of parameters and samples of code to try out."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if examples := BODY_EXAMPLES.get((method, path)):
                operation["requestBody"]["content"]["application/json"]["examples"] = dict(examples)
            if samples := SDK_SAMPLES.get((method, path)):
                operation["x-codeSamples"] = samples
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in PARAMETER_EXAMPLES:
                    parameter["example"] = PARAMETER_EXAMPLES[parameter["name"]]


def _describe_used_tags(document: dict[str, Any]) -> list[dict[str, str]]:
    """Returns the tags that operations have, in the order in which they are shown."""
    used = {
        tag
        for operations in document["paths"].values()
        for operation in operations.values()
        for tag in operation.get("tags", ())
    }
    return [
        {"name": name, "x-displayName": title, "description": description}
        for name, title, description in TAGS
        if name in used
    ]


def _replace_422_responses(document: dict[str, Any]) -> None:
    """Replaces FastAPI's 422 for invalid parameters by 400, which `api.edge.error_handlers` sends."""
    for operations in document["paths"].values():
        for operation in operations.values():
            if operation.get("responses", {}).pop("422", None) is not None:
                operation["responses"].setdefault(
                    "400", _error_response_schema(str(ERROR_RESPONSES[400]["description"]))
                )
    for name in ("HTTPValidationError", "ValidationError"):
        document.get("components", {}).get("schemas", {}).pop(name, None)


def _add_security_schemes(document: dict[str, Any]) -> None:
    """Describes both key headers. The last entry, `{}`, allows requests without a key: mode `open` needs none."""
    document["components"]["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer"},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    document["security"] = [{"key": []}, {"x-api-key": []}, {}]


def _schema_reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _error_response_schema(description: str) -> dict[str, Any]:
    return {"description": description, "content": _json_content_schema(_schema_reference("ErrorBody"))}


def _json_content_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
