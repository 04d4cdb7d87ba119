"""Paths that the gateway does not have. Clients try some of them; the error says which path to use instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from app.api.edge.asgi_front import CHAT_PATH
from app.errors import NotFound

PATHS_TRIED_WITHOUT_V1: Final = ("chat/completions", "completions", "embeddings", "messages", "models", "responses")
"""What clients ask for whose base URL lacks `/v1`."""
CHAT_API_SEGMENTS: Final = frozenset({"chat", "completions", "messages", "responses"})
"""First parts of paths that a chat completion stands for, OpenAI's and Anthropic's."""
FOREIGN_CHAT_PATH_PREFIXES: Final = ("api/chat", "api/generate", "engines/", "openai/deployments/")
"""How the paths of Ollama, of OpenAI's old engines and of Azure begin."""
OWN_PATH_SEGMENTS: Final = frozenset({"context", "conversations", "embeddings", "models", "search"})
"""First parts of paths below `/v1` that the gateway or its simulated model has."""
EVERY_METHOD: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
BASE_URL_HINT: Final = "The base URL of the client ends with one '/v1'."


class AnthropicNotFound(NotFound):
    """Has the body that clients of Anthropic's Messages API show."""

    def body(self) -> dict[str, object]:
        return {"type": "error", "error": {"type": "not_found_error", "message": self.message}}


def unknown_path_error(path: str, *, passes_on: bool) -> NotFound:
    """Make the error for a path that nothing answers.

    Args:
        path: as the client sent it, without a query.
        passes_on: whether a provider gets the paths below `/v1` that the gateway does not have.
    """
    parts = [part for part in path.split("/") if part]
    v1_count = next((count for count, part in enumerate(parts) if part != "v1"), len(parts))
    below = "/".join(parts[v1_count:])
    error = AnthropicNotFound if parts[v1_count : v1_count + 1] == ["messages"] else NotFound
    return error(f"Unknown path {path!r}.", hint=_build_hint(below, v1_count, passes_on=passes_on))


def build_unknown_path_routes(*, passes_on: bool) -> APIRouter:
    """The paths that clients with a wrong base URL ask for, as routes: numbers tell them apart from other paths."""
    routes = APIRouter(include_in_schema=False)

    async def refuse(request: Request) -> Response:
        raise unknown_path_error(request.url.path, passes_on=passes_on)

    for path in ("/v1", *(f"/{below}" for below in PATHS_TRIED_WITHOUT_V1)):
        routes.add_api_route(path, refuse, methods=list(EVERY_METHOD))
    return routes


def _build_hint(below: str, v1_count: int, *, passes_on: bool) -> str:
    """Say what to use instead.

    Args:
        below: the path below `/v1`, without slashes at its ends.
        v1_count: how often `/v1` stands before it.
    """
    if not below:
        return f"This is no endpoint. {BASE_URL_HINT} Clients add paths to it, such as {CHAT_PATH!r}; see /docs."
    first = below.partition("/")[0]
    base_url = "" if v1_count == 1 else f" {BASE_URL_HINT}"
    if below.startswith(FOREIGN_CHAT_PATH_PREFIXES):
        return f"Use {CHAT_PATH!r} with the name of the model in `model` of the body.{base_url}"
    if below == "chat/completions" or first == "chat":
        return f"Use {CHAT_PATH!r}.{base_url}"
    if first in CHAT_API_SEGMENTS and not passes_on:
        return f"Use {CHAT_PATH!r}: the gateway has no '/v1/{first}' unless a provider is configured.{base_url}"
    if v1_count != 1 and (first in CHAT_API_SEGMENTS or first in OWN_PATH_SEGMENTS):
        return f"Use '/v1/{below}'.{base_url}"
    if v1_count == 1 and not passes_on:
        return "No provider is configured, and the simulated model does not have it. See /docs for what there is."
    return "See /docs for what there is."


METHODS: Final = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")


def find_allowed_methods(routes: Sequence[BaseRoute], scope: Scope) -> list[str]:
    """The methods of a request's path, in order; those of the pass-through where the gateway has none of its own."""
    return find_own_methods(routes, scope) or _find_methods(routes[-1:], scope)


def find_own_methods(routes: Sequence[BaseRoute], scope: Scope) -> list[str]:
    """The methods that the gateway itself has for a path.

    Args:
        routes: of the application, the pass-through being the last.
    """
    return _find_methods(routes[:-1], scope)


def _find_methods(routes: Sequence[BaseRoute], scope: Scope) -> list[str]:
    def is_served(method: str) -> bool:
        return any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)

    return [method for method in METHODS if is_served(method)]
