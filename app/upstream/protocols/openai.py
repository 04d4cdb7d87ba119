"""A provider that speaks OpenAI's protocol: one call, one answer, no retries (those are the router's).

Nothing of one caller reaches another: there is no cookie jar, and keys travel per call. An error message names the
provider and never an address, since a base URL may carry a secret in its query.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

import orjson

from app.errors import InvalidRequest, UpstreamUnavailable
from app.observability.tracing import NO_SPAN, current_span
from app.upstream.http.client import Client, Head, Timeouts
from app.upstream.http.dial import PORTS, host_of
from app.upstream.http.direct_client import DirectClient
from app.upstream.provider import Call, ClientKeyRule, Reply
from app.upstream.routing.traced_calls import place_of

__all__ = ["OpenAIProvider", "Timeouts"]

MODELS_TIMEOUT_SECONDS: Final = 10.0
MOST_HEADS: Final = 64
"""How many heads without anything of a caller are kept, so that they are made once."""

_NOT_SENT = frozenset(
    {"accept-encoding", "connection", "content-length", "cookie", "expect", "host", "keep-alive"}
    | {"proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
    | {"authorization", "api-key", "x-api-key"}
)
"""Headers of the client's own connection, its credentials, and headers that are set here."""
_FRAMING = frozenset({"connection", "content-length", "transfer-encoding"})
"""Headers that are not for configuration either."""

_METHOD = re.compile(r"[A-Z]+")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/_-]*")
_PATH_SAFE = "/:@!$&'()*+,;=~%"
_QUERY_SAFE = "/?:@!$&'()*+,;=~%[]"
_LINE = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t\x20-\x7e\x80-\xff]*\r\n"
"""RFC 9110, 5.1 and 5.5: a name is a token, and no value holds a control character."""
_LINES = re.compile(f"(?:{_LINE})*")


class OpenAIProvider:
    """A model server below `base_url`.

    Args:
        name: as configured; error messages and facts learned go by it.
        base_url: such as ``https://api.openai.com/v1``; a query (``?api-version=…``) goes with each call.
        api_key: empty or None: `client_key_rule` says which clients' keys are passed on.
        timeouts: see `Timeouts`.
        headers: sent with each call, over the client's own of the same name.
        auth_header: where the key goes: ``authorization`` (as a bearer token), or a header such as ``api-key``.
        proxy: URL of an HTTP proxy.
        ssl_context: for servers whose certificates need other roots than the system's.
        client_key_rule: `never` wherever there is a key of its own.
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        api_key: str | None = None,
        timeouts: Timeouts | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        auth_header: str = "authorization",
        proxy: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        client_key_rule: ClientKeyRule = "if_meant",
    ) -> None:
        self.name = name
        url = urlsplit(base_url)
        self._path = quote(url.path.rstrip("/"), safe=_PATH_SAFE)
        self._query = quote(url.query, safe=_QUERY_SAFE)
        self._own_key = f"Bearer {api_key}" if api_key else None
        self._timeouts = timeouts or Timeouts()
        self._always = {"host": _authority(url), "user-agent": "concertina", "accept": "*/*"}
        self._headers = _configured(headers or {})
        self._auth_header = auth_header.lower()
        if (basic := _basic(url)) and self._own_key is None and self._auth_header == "authorization":
            self._own_key = basic
        elif basic:
            self._headers.setdefault("authorization", basic)
        self.client_key_rule: ClientKeyRule = "never" if self._own_key else client_key_rule
        self._heads: dict[tuple[str, str, str, bool], Head] = {}
        self._client = _client(name, url, self._timeouts, ssl_context, proxy)
        self._place = place_of(name, base_url)
        """What spans say of where calls go."""

    async def send(self, call: Call) -> Reply:
        """Send a call; returns when status and headers are there, whatever the status. Redirects are not followed.

        Raises:
            UpstreamUnavailable: no connection, or an answer that is not HTTP.
            ConnectionDropped: closed before a byte of the answer.
            AnswerTimedOut: no answer in time.
            InvalidRequest: its path leads out of the base URL, or a header cannot be sent.
        """
        span = current_span()
        if span is not NO_SPAN:
            span.set(self._place)
        seconds = self._timeouts.whole_seconds
        ends_at = None if seconds is None else asyncio.get_running_loop().time() + seconds
        return await self._client.send(self._head(call), call.body, ends_at, call.times)

    async def models(self, authorization: str | None) -> list[dict[str, Any]]:
        """Its model list; `{"data": […]}`, `{"models": […]}` and a bare list are understood.

        Raises:
            UpstreamUnavailable: it could not be had.
        """
        call = Call("/models", method="GET", authorization=authorization)
        ends_at = asyncio.get_running_loop().time() + MODELS_TIMEOUT_SECONDS
        reply = await self._client.send(self._head(call), call.body, ends_at, call.times)
        try:
            body = await reply.read()
        finally:
            await reply.aclose()
        if reply.status != 200:
            raise UpstreamUnavailable(f"Provider {self.name!r} answered {reply.status} instead of a model list.")
        return _model_entries(self.name, body)

    async def aclose(self) -> None:
        await self._client.aclose()

    def _head(self, call: Call) -> Head:
        """The head of a call; made once where nothing in it is its caller's."""
        span = current_span()
        trace = {} if span is NO_SPAN else span.headers()
        if call.headers or trace or (self._own_key is None and call.authorization):
            return self._made_head(call, trace)
        key = (call.method, call.path, call.query, bool(call.body))
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= MOST_HEADS:
                self._heads.clear()
            head = self._heads[key] = self._made_head(call, trace)
        return head

    def _made_head(self, call: Call, trace: Mapping[str, str]) -> Head:
        if _METHOD.fullmatch(call.method) is None:
            raise ValueError(f"{call.method!r} is not a method")  # the gateway's own routes let none through
        target = self._target(call)
        headers = self._headers_for(call, trace)
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if _LINES.fullmatch(lines) is None or lines.count("\n") != len(headers):
            raise InvalidRequest(
                f"The header {_unfit(headers)!r} cannot be sent on: it holds control characters.", code="invalid_header"
            )
        return Head(call.method, target, headers, f"{call.method} {target} HTTP/1.1\r\n{lines}".encode("latin-1"))

    def _target(self, call: Call) -> str:
        path = call.path
        if _PLAIN_PATH.fullmatch(path) is None:
            _refuse_climbing(path)
            path = quote(path, safe=_PATH_SAFE)
        query = "&".join(part for part in (self._query, quote(call.query, safe=_QUERY_SAFE)) if part)
        return f"{self._path}{path}?{query}" if query else self._path + path

    def _headers_for(self, call: Call, trace: Mapping[str, str]) -> dict[str, str]:
        headers = dict(self._always)
        headers.update((name, value) for name, value in call.headers.items() if name not in _NOT_SENT)
        if trace:
            headers.pop("tracestate", None)
            headers.update(trace)
        if call.body:
            headers.setdefault("content-type", "application/json")
        headers["accept-encoding"] = "identity"
        headers.update(self._headers)
        key = self._own_key or call.authorization
        if key and self._auth_header == "authorization":
            headers["authorization"] = key
        elif key:
            headers[self._auth_header] = key.removeprefix("Bearer ")
        return headers


def _client(name: str, url: SplitResult, timeouts: Timeouts, tls: ssl.SSLContext | None, proxy: str | None) -> Client:
    if proxy is None:
        return DirectClient(name, url, timeouts, tls)
    proxied = import_module("app.upstream.http.proxied_client")  # aiohttp takes a tenth of a second and 20 MB to load
    made: Client = proxied.ProxiedClient(name, url, timeouts, tls, proxy)
    return made


def _authority(url: SplitResult) -> str:
    """Host and port as the `Host` header says them."""
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else host_of(url)
    return host if url.port in (None, PORTS.get(url.scheme)) else f"{host}:{url.port}"


def _basic(url: SplitResult) -> str | None:
    """The credential that a URL carries before its host."""
    if url.username is None:
        return None
    pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _configured(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers from configuration, their values as the characters that stand for their UTF-8 bytes."""
    lowered = {name.lower(): value.encode().decode("latin-1") for name, value in headers.items()}
    return {name: value for name, value in lowered.items() if name not in _FRAMING}


def _unfit(headers: Mapping[str, str]) -> str:
    fits = re.compile(_LINE).fullmatch
    return next(name for name, value in headers.items() if fits(f"{name}: {value}\r\n") is None)


def _refuse_climbing(path: str) -> None:
    if ".." in unquote(path).replace("\\", "/").split("/"):
        raise InvalidRequest("The path must not contain '..'.", code="invalid_path")


def _model_entries(name: str, body: bytes) -> list[dict[str, Any]]:
    try:
        listed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise UpstreamUnavailable(f"The model list of provider {name!r} is not JSON.") from error
    if isinstance(listed, dict):
        listed = listed.get("data", listed.get("models"))
    if not isinstance(listed, list):
        raise UpstreamUnavailable(f"The model list of provider {name!r} holds no list.")
    return [entry for entry in listed if isinstance(entry, dict)]
