"""The headers of answers, and the headers that pass through the gateway, from clients to providers and back.

All other headers of clients and providers are dropped: they belong to a connection, an origin or a credential, or they
are the gateway's own (decision 32).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

RawHeader = tuple[bytes, bytes]

MAX_CACHED_NAMES: Final = 256
"""The most cached header names. It is bounded since providers choose some of the names."""


class _HeaderNameCache(dict[str, bytes]):
    """A cache of encoded header names."""

    def __missing__(self, name: str) -> bytes:
        encoded = name.encode("latin-1")
        if len(self) < MAX_CACHED_NAMES:
            self[name] = encoded
        return encoded


_encoded_names: Final = _HeaderNameCache()


class ResponseHeaders:
    """The headers that all answers of one kind share, encoded once.

    Args:
        headers: values by lower-case name. An answer's own header of the same name replaces the shared one.
    """

    __slots__ = ("_headers",)

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = [(name, (name.encode("latin-1"), value.encode("latin-1"))) for name, value in headers.items()]

    def merge_headers(self, own_headers: Mapping[str, str]) -> list[RawHeader]:
        """Returns all headers of an answer: its own and the shared ones.

        Args:
            own_headers: values by lower-case name.
        """
        headers = [(_encoded_names[name], value.encode("latin-1", "replace")) for name, value in own_headers.items()]
        for name, raw in self._headers:
            if name not in own_headers:
                headers.append(raw)
        return headers


REQUEST_ID_SCOPE_KEY: Final = "request_id"
"""Key of a request's id in its ASGI scope."""
_REQUEST_ID_HEADER: Final = b"x-request-id"
_UNCACHED_PREFIX: Final = "/v1/"
_NO_STORE_HEADER: Final = (b"cache-control", b"no-store")
_NOSNIFF_HEADER: Final = (b"x-content-type-options", b"nosniff")


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

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", ())
                message["headers"] = [*headers, *_select_missing_headers({name.lower() for name, _ in headers}, scope)]
            await send(message)

        await self._app(scope, receive, send_named)


def _select_missing_headers(names: set[bytes], scope: Scope) -> Iterator[tuple[bytes, bytes]]:
    """Yields the headers that an answer lacks.

    Args:
        names: the names of the headers that it has, in lower case.
    """
    if _REQUEST_ID_HEADER not in names:
        yield _REQUEST_ID_HEADER, scope[REQUEST_ID_SCOPE_KEY].encode()
    if _NOSNIFF_HEADER[0] not in names:
        yield _NOSNIFF_HEADER
    if _NO_STORE_HEADER[0] not in names and scope["path"].startswith(_UNCACHED_PREFIX):
        yield _NO_STORE_HEADER


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
