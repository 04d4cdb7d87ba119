"""respx in the place of the network below `AiohttpTransport`: `respx.mock(using="transport")`."""

from __future__ import annotations

from typing import Any, ClassVar

import httpx
from respx.mocks import AbstractRequestMocker


class TransportMocker(AbstractRequestMocker):
    name = "transport"
    targets: ClassVar = ["app.upstream.http.aiohttp_transport.AiohttpTransport"]
    target_methods: ClassVar = ["handle_async_request"]

    @classmethod
    def to_httpx_request(cls, **arguments: Any) -> httpx.Request:
        request: httpx.Request = arguments["request"]
        return request

    @classmethod
    async def from_async_httpx_response(
        cls, httpx_response: httpx.Response, target: httpx.AsyncBaseTransport, **_: Any
    ) -> httpx.Response:
        return httpx_response
