"""/openapi.json: FastAPI's description of the routes, with summaries, examples, and the gateway's own error bodies.
The first paragraph of a route's docstring is its summary, the others are its description."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson
from fastapi import FastAPI

INTRODUCTION: Final = Path(__file__).with_name("openapi_introduction.md")
EXAMPLES: Final = Path(__file__).with_name("openapi_examples.json")
"""Bodies by method and path, of which /docs sends the first one; and values of parameters by name."""
VALIDATION_SCHEMAS: Final = ("HTTPValidationError", "ValidationError")
TAGS: Final[tuple[tuple[str, str, str], ...]] = (
    ("chat", "Chat", "Ask a model, by OpenAI's Chat Completions API."),
    ("responses", "Responses", "Ask a model, by OpenAI's Responses API, and read stored responses."),
    ("messages", "Messages", "Ask a model, by Anthropic's Messages API."),
    ("models", "Models", "The models of all providers, with their context windows."),
    ("conversations", "Conversations", "Stored conversations: list, read, describe, extend, delete."),
    ("context", "Context", "What the model sees of a conversation: views, compaction, pins, user text."),
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


class DocumentedApplication(FastAPI):
    """A FastAPI application with the gateway's /openapi.json."""

    def openapi(self) -> dict[str, Any]:
        """Returns the document. It is built with the first call."""
        if self.openapi_schema is None:
            self.description = INTRODUCTION.read_text()
            self.openapi_tags = [
                {"name": name, "x-displayName": title, "description": description} for name, title, description in TAGS
            ]
            document = super().openapi()
            examples = orjson.loads(EXAMPLES.read_bytes())
            for path, operations in document["paths"].items():
                for method, operation in operations.items():
                    _complete_operation(operation, examples["bodies"].get(f"{method} {path}"), examples["parameters"])
            for name in VALIDATION_SCHEMAS:
                document["components"]["schemas"].pop(name, None)
            document["components"]["securitySchemes"] = {
                "key": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            }
            # The last entry allows requests without a key: mode `open` needs none.
            document["security"] = [{"key": []}, {"x-api-key": []}, {}]
            self.openapi_schema = document
        return self.openapi_schema


def _complete_operation(operation: dict[str, Any], bodies: object, parameter_examples: dict[str, Any]) -> None:
    """Takes the summary from the docstring, and adds examples.

    Args:
        bodies: examples of the body by name; None: there are none.
        parameter_examples: values of parameters by name.
    """
    summary, _, description = operation.pop("description").partition("\n\n")
    operation["summary"] = summary.replace("\n", " ").rstrip(".")
    if description:
        operation["description"] = description
    if bodies is not None:
        operation["requestBody"]["content"]["application/json"]["examples"] = bodies
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in parameter_examples:
            parameter["example"] = parameter_examples[parameter["name"]]
    # `api.edge.error_handlers` sends 400 where FastAPI would send 422.
    if "HTTPValidationError" in str(operation["responses"].get("422")):
        del operation["responses"]["422"]
