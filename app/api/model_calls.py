"""The routes of model calls. Their functions only describe the endpoints in /openapi.json: `AnswerEndpoint` answers."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi.routing import APIRoute
from pydantic import Field
from starlette.types import ASGIApp

from app.api.edge.unknown_paths import CHAT_PATH, MESSAGES_PATH, RESPONSES_PATH
from app.api.request_options import CONTEXT_DETAILS, CONTEXT_MODES, EVENT_STYLES
from app.api.resource_schemas import (
    ERROR_RESPONSES,
    EVENT_STREAM_CONTENT,
    Described,
    Metadata,
    Strict,
    describe_errors,
    describe_messages_errors,
)
from app.context.plan.outline import SummarizeMode
from app.context.plan.policy import RecallMode

COMPACTION_PATH: Final = f"{RESPONSES_PATH}/compact"
CONVERSATION_ID_PATTERN: Final = r"^[A-Za-z0-9._:-]{1,128}$"
ConversationId = Annotated[str, Field(pattern=CONVERSATION_ID_PATTERN)]
ContextStatus = Literal["full", "summarized", "trimmed", "degraded", "bypassed"]
_HEADERS: Final[tuple[tuple[str, dict[str, Any], str], ...]] = (
    ("X-Conversation-Id", {"type": "string", "pattern": CONVERSATION_ID_PATTERN}, "The conversation of the request."),
    ("X-Context-Mode", {"type": "string", "enum": CONTEXT_MODES}, "How the messages relate to the stored log."),
    ("X-Context-Policy", {"type": "string"}, "A context policy by name."),
    ("X-Context-Detail", {"type": "string", "enum": CONTEXT_DETAILS}, "How much of `context` the answer has."),
    ("X-Context-Events", {"type": "string", "enum": EVENT_STYLES}, "How a stream reports progress."),
    (
        "Idempotency-Key",
        {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
        "Makes a request safe to repeat: the same key and body give the same answer.",
    ),
)
_PARAMETERS: Final[dict[str, Any]] = {
    "parameters": [
        {"name": name, "in": "header", "required": False, "schema": schema, "description": description}
        for name, schema, description in _HEADERS
    ]
}
MODEL_CALL_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The answer, as one object or as a stream of server-sent events.",
        "content": EVENT_STREAM_CONTENT,
    },
    **ERROR_RESPONSES,
    **describe_errors(
        {
            409: "Another request is using this conversation; try again.",
            422: "The idempotency key was used with another request.",
            502: "The model's provider could not be reached or did not answer.",
            504: "The model's provider could not be reached or did not answer.",
            "default": "The provider's own refusal, passed on.",
        }
    ),
}


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


class ContextOptions(Strict):
    """Options for the context of this request."""

    policy: str | None = Field(None, description="A context policy by name.")
    instructions: str | None = Field(None, description="What the summaries should focus on.")
    pin: list[int] | None = Field(None, description="Indexes into `messages` that stay verbatim.")
    summarize: SummarizeMode | None = None
    recall: bool | RecallMode | None = None


class ModelRequest(Described):
    """The fields that requests of both protocols have."""

    model: str = Field(min_length=1)
    stream: bool | None = None
    store: bool | None = None
    conversation_id: ConversationId | None = None
    context: ContextOptions | None = None


class ChatCompletionRequest(ModelRequest):
    """OpenAI's request. Fields that are not listed here are accepted and passed on to the provider."""

    messages: list[ChatMessageSchema | ToolMessage] = Field(min_length=1)


class InputMessage(Described):
    """A message in OpenAI's form."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[ContentPart]


class RequestItem(Described):
    """An item of any of OpenAI's types, such as `function_call_output`."""

    type: str


class ConversationReference(Described):
    id: ConversationId


class CompactionOption(Described):
    """Sets the size in tokens above which the prompt of this request is compacted."""

    type: Literal["compaction"]
    compact_threshold: int | None = Field(None, ge=1)


class ResponsesRequest(ModelRequest):
    """OpenAI's request. Fields that are not listed here are accepted and passed on to the provider. `input` may be
    missing only if `previous_response_id` or `conversation` is there."""

    input: str | list[InputMessage | RequestItem] | None = None
    instructions: str | None = None
    previous_response_id: str | None = Field(None, description="The response that the new items follow.")
    conversation: ConversationId | ConversationReference | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    metadata: Metadata | None = None
    truncation: Literal["auto", "disabled"] | None = None
    context_management: list[CompactionOption] | None = None


class AnthropicMessage(Described):
    """A message in Anthropic's form."""

    role: Literal["user", "assistant", "system"]
    content: str | list[ContentPart]


class MessagesCountRequest(Described):
    """Anthropic's request for a count. Fields that are not listed here are accepted."""

    model: str = Field(min_length=1)
    messages: list[AnthropicMessage] = Field(min_length=1)
    system: str | list[ContentPart] | None = None
    stream: bool | None = None
    conversation_id: ConversationId | None = None
    context: ContextOptions | None = None


class MessagesRequest(MessagesCountRequest):
    """Anthropic's request. Fields that are not listed here are accepted and passed on to the provider."""

    max_tokens: int = Field(ge=1)


class ModelAnswer(Described):
    """The fields that answers of both protocols have; `context` reports on the context that the model got."""

    id: str
    model: str
    context_status: ContextStatus
    conversation_id: str | None = None
    context: dict[str, Any]


class ChatChoice(Described):
    index: int
    message: dict[str, Any]
    finish_reason: str | None


class ChatCompletion(ModelAnswer):
    """OpenAI's object, with a report on the context that the model got."""

    object: str
    created: int
    choices: list[ChatChoice]


class OutputItem(Described):
    """An item of the answer, of any of OpenAI's types."""

    type: str


class ModelResponse(ModelAnswer):
    """OpenAI's object, with a report on the context that the model got."""

    object: Literal["response"]
    created_at: float
    status: Literal["completed", "incomplete", "failed"]
    output: list[OutputItem]


class ModelMessage(ModelAnswer):
    """Anthropic's object, with a report on the context that the model got."""

    type: Literal["message"]
    role: Literal["assistant"]
    content: list[ContentPart]
    stop_reason: str | None


async def create_chat_completion(body: ChatCompletionRequest) -> ChatCompletion:
    """Create a chat completion.

    With OpenAI's SDK for Python:

    ```python
    from openai import OpenAI

    client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="YOUR_KEY")  # any key if the gateway needs none
    answer = client.chat.completions.create(
        model="sim-8k",
        messages=[{"role": "user", "content": "The gate opens at 06:40. Please remember that."}],
        extra_body={"conversation_id": "chat-1"},
    )
    print(answer.choices[0].message.content, answer.context_status)
    ```

    With OpenAI's SDK for JavaScript:

    ```javascript
    import OpenAI from "openai";

    // Any key will do if the gateway needs none.
    const client = new OpenAI({ baseURL: "http://127.0.0.1:8000/v1", apiKey: "YOUR_KEY" });
    const answer = await client.chat.completions.create({
      model: "sim-8k",
      messages: [{ role: "user", content: "The gate opens at 06:40. Please remember that." }],
      conversation_id: "chat-1",
    });
    console.log(answer.choices[0].message.content, answer.context_status);
    ```
    """
    raise NotImplementedError


class CompactedResponse(Described):
    """What was said word for word, then one item of type `compaction`: the history from now on."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[OutputItem]
    usage: dict[str, Any]
    context_status: ContextStatus
    conversation_id: str | None = None
    context: dict[str, Any]


async def compact_response(body: ResponsesRequest) -> CompactedResponse:
    """Compact a history.

    Send `output` in the place of the history, and what is new after it.
    """
    raise NotImplementedError


async def create_response(body: ResponsesRequest) -> ModelResponse:
    """Create a response.

    With OpenAI's SDK for Python:

    ```python
    from openai import OpenAI

    client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="YOUR_KEY")  # any key if the gateway needs none
    response = client.responses.create(model="sim-8k", instructions="Answer briefly.", input="The gate opens at 06:40.")
    print(response.output_text)
    ```

    With OpenAI's SDK for JavaScript:

    ```javascript
    import OpenAI from "openai";

    // Any key will do if the gateway needs none.
    const client = new OpenAI({ baseURL: "http://127.0.0.1:8000/v1", apiKey: "YOUR_KEY" });
    const response = await client.responses.create({
      model: "sim-8k",
      instructions: "Answer briefly.",
      input: "The gate opens at 06:40.",
    });
    console.log(response.output_text);
    ```
    """
    raise NotImplementedError


async def create_message(body: MessagesRequest) -> ModelMessage:
    """Create a message.

    With Anthropic's SDK for Python:

    ```python
    from anthropic import Anthropic

    client = Anthropic(base_url="http://127.0.0.1:8000", api_key="YOUR_KEY")  # any key if the gateway needs none
    message = client.messages.create(
        model="sim-8k",
        max_tokens=1000,
        messages=[{"role": "user", "content": "The gate opens at 06:40. Please remember that."}],
    )
    print(message.content[0].text)
    ```
    """
    raise NotImplementedError


def build_model_call_routes(
    chat: ASGIApp, responses: ASGIApp, messages: ASGIApp, compactions: ASGIApp
) -> list[APIRoute]:
    """Builds the routes of model calls.

    Args:
        chat, responses, messages, compactions: answer requests.
    """
    routes = []
    messages_responses = describe_messages_errors(MODEL_CALL_RESPONSES)
    for path, describe, tag, answer, described_responses in (
        (CHAT_PATH, create_chat_completion, "chat", chat, MODEL_CALL_RESPONSES),
        (RESPONSES_PATH, create_response, "responses", responses, MODEL_CALL_RESPONSES),
        (MESSAGES_PATH, create_message, "messages", messages, messages_responses),
        (COMPACTION_PATH, compact_response, "responses", compactions, MODEL_CALL_RESPONSES),
    ):
        route = APIRoute(
            path,
            describe,
            methods=["POST"],
            tags=[tag],
            responses=described_responses,
            openapi_extra=_PARAMETERS,
        )
        # In place of FastAPI's call of the function, which would parse the body and render the answer anew.
        route.app = answer
        routes.append(route)
    return routes
