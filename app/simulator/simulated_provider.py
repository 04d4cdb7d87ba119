"""The simulated model as a provider inside the process: the same bytes as its server sends, without a socket."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from app.errors import UpstreamUnavailable
from app.simulator.simulator import SimulatedDisconnect, Simulator, SimulatorResponse
from app.upstream.provider_contract import CallTimes, ClientKeyRule, ProviderProtocol, UpstreamRequest


class SimulatedProvider:
    """Implements `upstream.provider_contract.UpstreamProvider` over a `Simulator`."""

    protocol: ProviderProtocol = "openai"
    client_key_rule: ClientKeyRule = "if_meant"

    def __init__(self, simulator: Simulator, name: str = "simulator") -> None:
        self.name = name
        self.simulator = simulator

    async def send(self, request: UpstreamRequest) -> SimulatedReply:
        headers = dict(request.headers)
        if request.authorization is not None:
            headers["authorization"] = request.authorization
        response = await self.simulator.handle(request.method, request.path, headers, request.body)
        return SimulatedReply(response, request.times)

    async def list_models(self, authorization: str | None) -> list[dict[str, Any]]:
        return self.simulator.list_models()

    async def aclose(self) -> None:
        return None


class SimulatedReply:
    """Implements `upstream.provider_contract.UpstreamReply`. Sets the times of the call, if there are any."""

    def __init__(self, response: SimulatorResponse, times: CallTimes | None = None) -> None:
        self._times = times or CallTimes(started_at=0.0)
        self.status = response.status
        self.headers = response.headers
        self._pieces = response.pieces

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self.iter_bytes()])

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._pieces:
                if self._times.first_byte_at is None:
                    self._times.first_byte_at = time.monotonic()
                yield piece
        except SimulatedDisconnect as error:
            raise UpstreamUnavailable("The simulated model broke off.") from error
        self._times.ended_at = time.monotonic()

    async def aclose(self) -> None:
        await self._pieces.aclose()
