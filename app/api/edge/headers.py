"""The headers of answers, and the headers that pass through the gateway, from clients to providers and back.

All other headers of clients and providers are dropped: they belong to a connection, an origin or a credential, or they
are the gateway's own (decision 32).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

RawHeader = tuple[bytes, bytes]


def encode_headers(headers: Mapping[str, str]) -> list[RawHeader]:
    """Returns headers as ASGI takes them.

    Args:
        headers: values by lower-case name.
    """
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]


REQUEST_ID_SCOPE_KEY: Final = "request_id"
"""Key of a request's id in its ASGI scope."""
_UNCACHED_PREFIX: Final = "/v1/"
_MESSAGES_PREFIX: Final = "/v1/messages"
"""Anthropic's clients read the id of a request from the header `request-id`."""


class RequestIdMiddleware:
    """Makes an id for each request, and adds to its answer those headers of this module that the answer lacks: the id,
    `nosniff`, and below `/v1` `no-store`. An answer from a provider may have an id already.

    Args:
        new_request_id: makes the id of a request, in visible ASCII.
    """

    def __init__(self, app: ASGIApp, new_request_id: Callable[[], str]) -> None:
        self._app = app
        self._new_request_id = new_request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[REQUEST_ID_SCOPE_KEY] = self._new_request_id()

        added = {b"x-request-id": scope[REQUEST_ID_SCOPE_KEY].encode(), b"x-content-type-options": b"nosniff"}
        if scope["path"].startswith(_MESSAGES_PREFIX):
            added[b"request-id"] = added[b"x-request-id"]
        if scope["path"].startswith(_UNCACHED_PREFIX):
            added[b"cache-control"] = b"no-store"

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", ())
                names = {name.lower() for name, _ in headers}
                message["headers"] = [*headers, *[one for one in added.items() if one[0] not in names]]
            await send(message)

        await self._app(scope, receive, send_named)


PROVIDER_HEADERS: Final = frozenset(
    {
        *("accept", "accept-language", "content-type", "range", "user-agent"),
        *("baggage", "traceparent", "tracestate", "x-client-request-id"),
        *("http-referer", "x-title"),
    }
)
"""Client headers that reach the provider. The last two are how applications name themselves to OpenRouter; browsers
send neither."""
PROVIDER_HEADER_PREFIXES: Final = ("anthropic-", "openai-", "x-stainless-")
CLIENT_HEADERS: Final = frozenset(
    {
        *("content-type", "content-length", "content-disposition", "content-language", "content-range"),
        *("accept-ranges", "etag", "last-modified"),
        *("retry-after", "retry-after-ms", "x-should-retry"),
        *("request-id", "x-request-id", "x-accel-buffering"),
    }
)
CLIENT_HEADER_PREFIXES: Final = ("anthropic-", "openai-", "x-ratelimit-")
SANDBOX_HEADERS: Final = {"content-security-policy": "sandbox", "x-content-type-options": "nosniff"}
"""Added to every body that a provider wrote: a browser that shows it runs no script and gives it no origin, so it
cannot act with the rights of the console's origin."""


def select_provider_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the client's headers that the provider may see. The credential is not among them: `ClientKey` carries it
    to the provider that it is meant for."""
    return {
        name: value
        for name, value in headers.items()
        if name in PROVIDER_HEADERS or name.startswith(PROVIDER_HEADER_PREFIXES)
    }


def select_client_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the provider's headers that the client may see, and headers that keep a browser from running the
    answer."""
    passed = {
        name: value
        for name, value in headers.items()
        if name in CLIENT_HEADERS or name.startswith(CLIENT_HEADER_PREFIXES)
    }
    return passed | SANDBOX_HEADERS
