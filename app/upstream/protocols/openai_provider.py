"""A provider that speaks OpenAI's protocol: one call, one answer. Retries are the router's.

Nothing of one caller reaches another: cookies are not kept, and keys travel with each call. Error messages name the
provider and never an address, since a base URL may carry a secret in its query.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import re
import ssl
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

import orjson

from app.conversation.json_text import TOO_DEEP_MESSAGE, is_too_deep, may_be_too_deep
from app.errors import InvalidRequest, UpstreamUnavailable
from app.observability.tracing import current_span, current_trace_headers
from app.upstream.http.http_client import CACHED_URLS, DEFAULT_PORTS, HttpClient, ascii_host
from app.upstream.http.http_client_contract import HttpTimeouts, RequestHead
from app.upstream.provider_contract import ClientKeyRule, ProviderProtocol, UpstreamReply, UpstreamRequest

MODELS_TIMEOUT_SECONDS: Final = 10.0
_CLIENT_ONLY_HEADERS = frozenset(
    {"accept-encoding", "connection", "content-length", "cookie", "expect", "host", "keep-alive"}
    | {"proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
    | {"authorization", "api-key", "x-api-key"}
)
"""Headers of the client's own connection, its credentials, and headers that are set here."""
_FRAMING_HEADERS = frozenset({"connection", "content-length", "transfer-encoding"})
"""Headers that the configuration cannot set either: they frame the message."""

_METHOD_PATTERN = re.compile(r"[A-Z]+")
_SAFE_IN_PATH = "/:@!$&'()*+,;=~%"
_SAFE_IN_QUERY = "/?:@!$&'()*+,;=~%[]"
_HEADER_PATTERN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t\x20-\x7e\x80-\xff]*")
"""RFC 9110, 5.1 and 5.5: a name is a token, and a value holds no control character."""


class OpenAIProvider:
    """A model server at `base_url`.

    Args:
        name: as configured; error messages and learned facts use it.
        base_url: such as ``https://api.openai.com/v1``; a query (``?api-version=…``) is sent with each call.
        api_key: empty or None: `client_key_rule` decides which clients' keys are passed on.
        timeouts: see `HttpTimeouts`.
        headers: sent with each call; they replace the client's headers of the same name.
        auth_header: the header for the key: ``authorization`` (as a bearer token), or another such as ``api-key``.
        proxy: URL of an HTTP proxy.
        ssl_context: for servers whose certificates need other roots than the system's.
        client_key_rule: always `never` if the provider has a key of its own.
    """

    protocol: ProviderProtocol = "openai"
    models_query = ""
    """The query with which the whole model list comes on one page."""

    def __init__(
        self,
        name: str,
        base_url: str,
        api_key: str | None = None,
        timeouts: HttpTimeouts | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        auth_header: str = "authorization",
        proxy: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        client_key_rule: ClientKeyRule = "if_meant",
    ) -> None:
        self.name = name
        url = urlsplit(base_url)
        self._base_path = quote(url.path.rstrip("/"), safe=_SAFE_IN_PATH)
        self._base_query = quote(url.query, safe=_SAFE_IN_QUERY)
        self._authorization = f"Bearer {api_key}" if api_key else None
        self._timeouts = timeouts or HttpTimeouts()
        self._default_headers = {"host": _host_header(url), "user-agent": "concertina", "accept": "*/*"}
        self._configured_headers = _encode_configured_headers(headers or {})
        self._auth_header = auth_header.lower()
        basic = _basic_authorization(url)
        if basic and self._authorization is None and self._auth_header == "authorization":
            self._authorization = basic
        # The provider's key goes into another header: the URL's credential keeps `Authorization`.
        elif basic:
            self._configured_headers.setdefault("authorization", basic)
        self.client_key_rule: ClientKeyRule = "never" if self._authorization else client_key_rule
        self._client = HttpClient(name, url, self._timeouts, ssl_context, proxy)
        self._find_or_build_target = functools.lru_cache(CACHED_URLS)(self._build_target)
        self._server_attributes: dict[str, str | int] = {
            "server.address": url.hostname or "",
            "server.port": url.port or DEFAULT_PORTS[url.scheme],
        }
        """What spans say about the server."""

    async def send(self, request: UpstreamRequest) -> UpstreamReply:
        """Sends a call and returns when status and headers have come, whatever the status is. Redirects are not
        followed.

        Raises:
            UpstreamUnavailable: no connection, or the answer is not HTTP.
            ConnectionDropped: the connection was closed before a byte of the answer.
            AnswerTimedOut: no answer in time.
            InvalidRequest: the path leads out of the base URL, or a header cannot be sent.
        """
        current_span().set_attributes(self._server_attributes)
        seconds = self._timeouts.total_seconds
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        head = self._build_head(request)
        return await self._client.send(
            head, request.body, deadline, request.times, limit_bytes=request.answer_limit_bytes
        )

    async def list_models(self, authorization: str | None) -> list[dict[str, Any]]:
        """Returns its model list; `{"data": […]}`, `{"models": […]}` and a bare list are understood.

        Raises:
            UpstreamUnavailable: the list could not be fetched.
        """
        request = UpstreamRequest("/models", method="GET", authorization=authorization, query=self.models_query)
        deadline = asyncio.get_running_loop().time() + MODELS_TIMEOUT_SECONDS
        reply = await self._client.send(self._build_head(request), request.body, deadline, request.times)
        try:
            body = await reply.read()
        finally:
            await reply.aclose()
        if reply.status != 200:
            raise UpstreamUnavailable(f"Provider {self.name!r} answered {reply.status} instead of a model list.")
        return parse_model_list(self.name, body)

    async def aclose(self) -> None:
        await self._client.aclose()

    def _build_head(self, request: UpstreamRequest) -> RequestHead:
        if _METHOD_PATTERN.fullmatch(request.method) is None:
            raise ValueError(f"{request.method!r} is not a method")  # the gateway's own routes let none through
        target = self._find_or_build_target(request.path, request.query)
        headers = self._build_headers(request, current_trace_headers())
        for name, value in headers.items():
            # Header values may come from clients: a line end in one would smuggle in another header or request.
            if _HEADER_PATTERN.fullmatch(f"{name}: {value}") is None:
                raise InvalidRequest(
                    f"The header {name!r} cannot be passed on: it contains control characters.", code="invalid_header"
                )
        return RequestHead(request.method, target, headers)

    def _build_target(self, path: str, query: str) -> str:
        # Such a path would leave the base URL, for example to another API of the same server, with the provider's key.
        if ".." in unquote(path).replace("\\", "/").split("/"):
            raise InvalidRequest("The path must not contain '..'.", code="invalid_path")
        target = self._base_path + quote(path, safe=_SAFE_IN_PATH)
        query = "&".join(filter(None, (self._base_query, quote(query, safe=_SAFE_IN_QUERY))))
        return f"{target}?{query}" if query else target

    def _build_headers(self, request: UpstreamRequest, trace_headers: Mapping[str, str]) -> dict[str, str]:
        passed = {name: value for name, value in request.headers.items() if name not in _CLIENT_ONLY_HEADERS}
        headers = self._default_headers | passed
        if trace_headers:
            # The client's trace state belongs to the client's `traceparent`, which is replaced.
            headers.pop("tracestate", None)
            headers.update(trace_headers)
        if request.body:
            headers.setdefault("content-type", "application/json")
        # A compressed stream would have to be decompressed piece by piece. What the client accepts is between it and
        # the gateway.
        headers["accept-encoding"] = "identity"
        headers.update(self._configured_headers)
        key = self._authorization or request.authorization
        if key and self._auth_header == "authorization":
            headers["authorization"] = key
        elif key:
            headers[self._auth_header] = key.removeprefix("Bearer ")
        return headers


def _host_header(url: SplitResult) -> str:
    """Returns host and port for the `Host` header."""
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else ascii_host(url)
    return host if url.port in (None, DEFAULT_PORTS[url.scheme]) else f"{host}:{url.port}"


def _basic_authorization(url: SplitResult) -> str | None:
    """Returns the credential in a URL, if it has one."""
    if url.username is None:
        return None
    pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _encode_configured_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns configured headers with each value as Latin-1 characters that stand for its UTF-8 bytes: heads are
    encoded as Latin-1.
    """
    lowered = {name.lower(): value.encode().decode("latin-1") for name, value in headers.items()}
    return {name: value for name, value in lowered.items() if name not in _FRAMING_HEADERS}


def parse_model_list(provider_name: str, body: bytes) -> list[dict[str, Any]]:
    """Returns the entries of a model list: `{"data": […]}`, `{"models": […]}` or a bare list.

    Raises:
        UpstreamUnavailable: the body is none of these, or is nested too deeply.
    """
    try:
        entries = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise UpstreamUnavailable(f"The model list of provider {provider_name!r} is not JSON.") from error
    if may_be_too_deep(body) and is_too_deep(entries):
        raise UpstreamUnavailable(f"The model list of provider {provider_name!r} {TOO_DEEP_MESSAGE}")
    if isinstance(entries, dict):
        entries = entries.get("data", entries.get("models"))
    if not isinstance(entries, list):
        raise UpstreamUnavailable(f"The model list of provider {provider_name!r} contains no list.")
    return [entry for entry in entries if isinstance(entry, dict)]
