"""Which headers pass through the gateway, of clients to providers and of providers to clients. All others stay behind:
they belong to a connection, an origin or a credential, or they are the gateway's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PROVIDER_HEADERS: Final = frozenset(
    {
        *("accept", "accept-language", "content-type", "range", "user-agent"),
        *("baggage", "traceparent", "tracestate", "x-client-request-id"),
        *("http-referer", "x-title"),
    }
)
"""The last two are how applications name themselves to OpenRouter; browsers send neither."""
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
"""With whatever a provider wrote: a browser that shows it runs no script of it, and takes it for nobody's page."""


def select_provider_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Those of a client's headers that its provider may see. The credential is not among them: it goes its own way."""
    return {
        name: value
        for name, value in headers.items()
        if name in PROVIDER_HEADERS or name.startswith(PROVIDER_HEADER_PREFIXES)
    }


def select_client_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Those of a provider's headers that its client may see, and what keeps a browser from running the answer."""
    passed = {
        name: value
        for name, value in headers.items()
        if name in CLIENT_HEADERS or name.startswith(CLIENT_HEADER_PREFIXES)
    }
    return passed | SANDBOX_HEADERS
