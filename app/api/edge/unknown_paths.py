"""Answers paths that the gateway does not have. Misconfigured clients request some of them; the error says which path
to use instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from app.errors import NotFound
from app.observability.metric_families import MODEL_CALL_ENDPOINTS

CHAT_PATH, RESPONSES_PATH, MESSAGES_PATH = MODEL_CALL_ENDPOINTS
PATHS_TRIED_WITHOUT_V1: Final = ("chat/completions", "completions", "embeddings", "messages", "models", "responses")
"""Paths that clients request whose base URL lacks `/v1`."""
CHAT_API_SEGMENTS: Final = frozenset({"chat", "completions", "messages"})
"""First segments of OpenAI's and Anthropic's paths for which a chat completion can be used."""
FOREIGN_CHAT_PATH_PREFIXES: Final = ("api/chat", "api/generate", "engines/", "openai/deployments/")
"""Beginnings of paths of Ollama, of OpenAI's old engines and of Azure."""
OWN_PATH_SEGMENTS: Final = frozenset({"context", "conversations", "embeddings", "models", "responses", "search"})
"""First segments below `/v1` of paths that the gateway or its simulated model has."""
EVERY_METHOD: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
BASE_URL_HINT: Final = "The base URL of the client ends with one '/v1'."


def unknown_path_error(path: str, *, passes_on: bool) -> NotFound:
    """Builds the error for a path that the gateway does not have.

    Args:
        path: as the client sent it, without a query.
        passes_on: whether a provider gets the paths below `/v1` that the gateway does not have.
    """
    parts = [part for part in path.split("/") if part]
    v1_count = next((count for count, part in enumerate(parts) if part != "v1"), len(parts))
    path_below_v1 = "/".join(parts[v1_count:])
    return NotFound(
        f"Unknown path {path!r}.", hint=_build_unknown_path_hint(path_below_v1, v1_count, passes_on=passes_on)
    )


def build_unknown_path_routes(*, passes_on: bool) -> APIRouter:
    """Builds routes for the paths that clients with a wrong base URL request. As routes they have labels of their own
    in metrics, so that an operator sees such clients."""
    routes = APIRouter(include_in_schema=False)

    async def refuse(request: Request) -> Response:
        raise unknown_path_error(request.url.path, passes_on=passes_on)

    for path in ("/v1", *(f"/{below}" for below in PATHS_TRIED_WITHOUT_V1)):
        routes.add_api_route(path, refuse, methods=list(EVERY_METHOD))
    return routes


def _build_unknown_path_hint(path_below_v1: str, v1_count: int, *, passes_on: bool) -> str:
    """Returns a sentence about the path to use instead.

    Args:
        path_below_v1: the path below `/v1`, without slashes at its ends.
        v1_count: how often `/v1` is repeated before `path_below_v1`; 1 is right.
    """
    if not path_below_v1:
        return f"This is no endpoint. {BASE_URL_HINT} Clients add paths to it, such as {CHAT_PATH!r}; see /docs."
    first_segment = path_below_v1.partition("/")[0]
    base_url = "" if v1_count == 1 else f" {BASE_URL_HINT}"
    if path_below_v1.startswith(FOREIGN_CHAT_PATH_PREFIXES):
        return f"Use {CHAT_PATH!r} with the name of the model in `model` of the body.{base_url}"
    if path_below_v1 == "chat/completions" or first_segment == "chat":
        return f"Use {CHAT_PATH!r}.{base_url}"
    if path_below_v1 in ("responses", "messages"):
        return f"Use '/v1/{path_below_v1}'.{base_url}"
    if first_segment in CHAT_API_SEGMENTS and not passes_on:
        return f"Use {CHAT_PATH!r}: the gateway has no '/v1/{first_segment}' unless a provider is configured.{base_url}"
    if v1_count != 1 and (first_segment in CHAT_API_SEGMENTS or first_segment in OWN_PATH_SEGMENTS):
        return f"Use '/v1/{path_below_v1}'.{base_url}"
    if v1_count == 1 and not passes_on:
        return "No provider is configured, and the simulated model does not have it. See /docs for what there is."
    return "See /docs for what there is."


METHODS: Final = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")


def find_allowed_methods(routes: Sequence[BaseRoute], scope: Scope) -> list[str]:
    """Returns the methods of a request's path in alphabetical order; those of the pass-through if the gateway itself
    does not have the path."""
    return find_gateway_methods(routes, scope) or _find_served_methods(routes[-1:], scope)


def find_gateway_methods(routes: Sequence[BaseRoute], scope: Scope) -> list[str]:
    """Returns the methods that the gateway itself has for a path.

    Args:
        routes: the application's routes, of which the last is the pass-through.
    """
    return _find_served_methods(routes[:-1], scope)


def _find_served_methods(routes: Sequence[BaseRoute], scope: Scope) -> list[str]:
    def is_served(method: str) -> bool:
        return any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)

    return [method for method in METHODS if is_served(method)]
