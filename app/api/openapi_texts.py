"""The texts and examples of /openapi.json that are not part of a route: the introduction, the groups of endpoints in
their order, and bodies to try out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

INTRODUCTION: Final = """\
An OpenAI-compatible gateway whose conversations never outgrow the model's context window.

An application keeps its OpenAI client and changes its **base URL** to this gateway's address with `/v1`. Every message
is stored. When a conversation becomes too long for its model, the gateway sends summaries and quotations in place of
the oldest messages, and each answer says what the model saw.

### The first call

Open **Chat → Create a chat completion**, press *Test Request*, then *Send*. The model `sim-8k` is built in and needs no
provider; `GET /v1/models` lists all models of this gateway. The same call in a terminal:

```sh
curl http://127.0.0.1:8000/v1/chat/completions -H "Content-Type: application/json" \\
  -d '{"model": "sim-8k", "conversation_id": "chat-1", "messages": [{"role": "user", "content": "Hello!"}]}'
```

### Keys

A gateway without keys (`auth.mode: open`) needs none. Otherwise put a key of the gateway (`ck_…`) into *Authentication*
on this page; it is sent as `Authorization: Bearer …`, and forgotten when the page is closed. Each endpoint needs one of
the scopes `chat`, `read`, `manage` and `admin`.

### Conversations

- Send the **whole history** with each request, as most clients do: the gateway recognises the conversation.
- Or send only **what is new** with a `conversation_id` of your own choice.

The answer has `conversation_id`, `context_status` (`full`, `summarized`, `trimmed` …) and `context`, the details.
Everything below *Conversations* takes the gateway's id or your own.

### Errors

Errors have OpenAI's form: `{"error": {"message", "type", "param", "code"}}`. The message says what to change.
"""

TAGS: Final[tuple[tuple[str, str, str], ...]] = (
    ("chat", "Chat", "Ask a model, by OpenAI's Chat Completions API."),
    ("responses", "Responses", "Ask a model, by OpenAI's Responses API, and read stored responses."),
    ("models", "Models", "The models of all providers, with their context windows."),
    ("conversations", "Conversations", "Stored conversations: list, read, describe, extend, delete."),
    ("context", "Context", "What the model sees of a conversation: views, compaction, pins, standing requests."),
    ("summaries", "Summaries", "The summaries of a conversation: read, edit, regenerate, roll back."),
    ("search", "Search", "Find messages by their words."),
    ("portability", "Export and import", "Move conversations out and in."),
    ("stored completions", "Stored completions", "Chat completions with `store: true`, by OpenAI's API."),
    ("keys", "Keys and costs", "For operators: API keys with their budgets, and what they cost."),
    ("settings", "Settings", "For operators: the settings in force."),
    ("telemetry", "Telemetry", "For operators: numbers, and recent requests."),
    ("health", "Health", "For load balancers."),
)
"""The groups of endpoints: tag, title and description, in the order in which one gets to know the gateway."""

_FIRST_MESSAGE: Final = {"role": "user", "content": "The gate opens at 06:40. Please remember that."}
CHAT_EXAMPLES: Final[Mapping[str, dict[str, Any]]] = {
    "first": {
        "summary": "The first message of a conversation",
        "value": {"model": "sim-8k", "conversation_id": "chat-1", "messages": [_FIRST_MESSAGE]},
    },
    "next": {
        "summary": "The next message: the gateway has the others",
        "value": {
            "model": "sim-8k",
            "conversation_id": "chat-1",
            "messages": [{"role": "user", "content": "When does the gate open?"}],
        },
    },
    "history": {
        "summary": "A whole history, as most clients send it",
        "value": {
            "model": "sim-8k",
            "messages": [
                {"role": "system", "content": "Answer briefly."},
                _FIRST_MESSAGE,
                {"role": "assistant", "content": "I will."},
                {"role": "user", "content": "When does the gate open?"},
            ],
        },
    },
    "stream": {
        "summary": "A stream, with options for the context",
        "value": {
            "model": "sim-8k",
            "stream": True,
            "conversation_id": "chat-1",
            "messages": [{"role": "user", "content": "Tell me a long story."}],
            "context": {"summarize": "auto", "instructions": "Keep names and times."},
        },
    },
}
RESPONSES_EXAMPLES: Final[Mapping[str, dict[str, Any]]] = {
    "text": {
        "summary": "A question",
        "value": {"model": "sim-8k", "instructions": "Answer briefly.", "input": "The gate opens at 06:40."},
    },
    "items": {
        "summary": "A history with a tool call",
        "value": {
            "model": "sim-8k",
            "store": False,
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "When does the gate open?"}]},
                {"type": "function_call", "call_id": "call_1", "name": "read_clock", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "call_1", "output": "06:40"},
            ],
        },
    },
    "stream": {
        "summary": "A stream, compacted above 6,000 tokens",
        "value": {
            "model": "sim-8k",
            "input": "Count to three.",
            "stream": True,
            "context_management": [{"type": "compaction", "compact_threshold": 6000}],
        },
    },
}
BODY_EXAMPLES: Final[Mapping[tuple[str, str], Mapping[str, dict[str, Any]]]] = {
    ("post", "/v1/chat/completions"): CHAT_EXAMPLES,
    ("post", "/v1/responses"): RESPONSES_EXAMPLES,
    ("post", "/v1/responses/input_tokens"): {"text": RESPONSES_EXAMPLES["text"]},
    ("post", "/v1/context/count"): {"history": CHAT_EXAMPLES["history"]},
    ("post", "/v1/conversations"): {
        "title": {
            "summary": "With a title and a first message",
            "value": {
                "metadata": {"title": "Harbour"},
                "items": [{"type": "message", "role": "user", "content": "The gate opens at 06:40."}],
            },
        },
    },
    ("post", "/v1/conversations/{conversation_id}"): {
        "title": {"summary": "A title", "value": {"metadata": {"title": "Harbour"}}}
    },
    ("post", "/v1/conversations/{conversation_id}/items"): {
        "message": {
            "summary": "A message",
            "value": {"items": [{"type": "message", "role": "user", "content": "The gate closes at 22:00."}]},
        }
    },
    ("post", "/v1/conversations/import"): {
        "chat": {
            "summary": "A chat",
            "value": {
                "messages": [_FIRST_MESSAGE, {"role": "assistant", "content": "I will."}],
            },
        }
    },
    ("post", "/v1/conversations/{conversation_id}/compact"): {
        "dry_run": {"summary": "Only say what would be summarized", "value": {"dry_run": True}},
        "focus": {"summary": "Summarize now", "value": {"instructions": "Keep names and times."}},
    },
    ("patch", "/v1/conversations/{conversation_id}/summaries/{summary_id}"): {
        "text": {"summary": "Another text", "value": {"text": "The gate opens at 06:40 and closes at 22:00."}}
    },
    ("post", "/v1/conversations/{conversation_id}/summaries/{summary_id}/regenerate"): {
        "focus": {"summary": "With another focus", "value": {"instructions": "Keep every time of day."}}
    },
    ("post", "/v1/conversations/{conversation_id}/summaries/{summary_id}/rollback"): {
        "first": {"summary": "To the first text", "value": {"revision": 1}}
    },
    ("post", "/v1/admin/keys"): {
        "team": {
            "summary": "A team with a budget",
            "value": {"name": "team blue", "scopes": ["chat", "read"], "budget_usd": 20},
        }
    },
    ("post", "/v1/admin/keys/{key_id}"): {
        "raise": {"summary": "Another budget", "value": {"budget_usd": 50}},
    },
}
"""Bodies by method and path. The first one is what the page sends and shows in its samples of code."""
PARAMETER_EXAMPLES: Final[Mapping[str, Any]] = {"conversation_id": "chat-1", "q": "gate"}
"""Values of parameters by name; they belong to the first example of a chat."""

_PYTHON_CLIENT: Final = """\
from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="YOUR_KEY")  # any key if the gateway needs none
"""
_JAVASCRIPT_CLIENT: Final = """\
import OpenAI from "openai";

// Any key will do if the gateway needs none.
const client = new OpenAI({ baseURL: "http://127.0.0.1:8000/v1", apiKey: "YOUR_KEY" });
"""
SDK_SAMPLES: Final[Mapping[tuple[str, str], list[dict[str, str]]]] = {
    ("post", "/v1/chat/completions"): [
        {
            "lang": "python",
            "label": "OpenAI SDK for Python",
            "source": f"""{_PYTHON_CLIENT}
answer = client.chat.completions.create(
    model="sim-8k",
    messages=[{{"role": "user", "content": "The gate opens at 06:40. Please remember that."}}],
    extra_body={{"conversation_id": "chat-1"}},
)
print(answer.choices[0].message.content, answer.context_status)
""",
        },
        {
            "lang": "javascript",
            "label": "OpenAI SDK for JavaScript",
            "source": f"""{_JAVASCRIPT_CLIENT}
const answer = await client.chat.completions.create({{
  model: "sim-8k",
  messages: [{{ role: "user", content: "The gate opens at 06:40. Please remember that." }}],
  conversation_id: "chat-1",
}});
console.log(answer.choices[0].message.content, answer.context_status);
""",
        },
    ],
    ("post", "/v1/responses"): [
        {
            "lang": "python",
            "label": "OpenAI SDK for Python",
            "source": f"""{_PYTHON_CLIENT}
response = client.responses.create(model="sim-8k", instructions="Answer briefly.", input="The gate opens at 06:40.")
print(response.output_text)
""",
        },
        {
            "lang": "javascript",
            "label": "OpenAI SDK for JavaScript",
            "source": f"""{_JAVASCRIPT_CLIENT}
const response = await client.responses.create({{
  model: "sim-8k",
  instructions: "Answer briefly.",
  input: "The gate opens at 06:40.",
}});
console.log(response.output_text);
""",
        },
    ],
}
"""Samples of code by method and path, shown beside those that the page makes of the first example."""
