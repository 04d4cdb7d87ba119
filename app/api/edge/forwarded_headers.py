"""Selects the headers that pass through the gateway, from clients to providers and back. All others are dropped: they
belong to a connection, an origin or a credential, or they are the gateway's own (decision 32)."""

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
