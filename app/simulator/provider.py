"""The simulated model as a provider inside the process: the same bytes as its server, without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from app.errors import UpstreamUnavailable
from app.simulator.simulator import Answered, Asked, BrokenOff, Simulator
from app.upstream.provider import Call, ClientKeyRule


class SimulatedProvider:
    """Implements `upstream.provider.Provider` over a `Simulator`."""

    def __init__(self, simulator: Simulator, name: str = "simulator") -> None:
        self.name = name
        self.client_key_rule: ClientKeyRule = "if_meant"
        self.simulator = simulator

    async def send(self, call: Call) -> SimulatedReply:
        headers = dict(call.headers)
        if call.authorization is not None:
            headers["authorization"] = call.authorization
        return SimulatedReply(await self.simulator.handle(Asked(call.method, call.path, headers, call.body)))

    async def models(self, authorization: str | None) -> list[dict[str, Any]]:
        return self.simulator.model_list()

    async def aclose(self) -> None:
        return None


class SimulatedReply:
    """Implements `upstream.provider.Reply`."""

    def __init__(self, answered: Answered) -> None:
        self.status = answered.status
        self.headers: Mapping[str, str] = answered.headers
        self._pieces = answered.pieces

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self.chunks()])

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._pieces:
                yield piece
        except BrokenOff as error:
            raise UpstreamUnavailable("The simulated model broke off.") from error

    async def aclose(self) -> None:
        close = getattr(self._pieces, "aclose", None)
        if close is not None:
            await close()
