"""Stand-ins for what the router asks: scripted providers, a clock that moves only when slept on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from app.upstream.provider_contract import ClientKeyRule, ProviderProtocol, UpstreamReply, UpstreamRequest
from app.upstream.routing.router import BufferedReply


def answer(status: int = 200, body: bytes = b"{}", **headers: str) -> BufferedReply:
    return BufferedReply(status, {name.replace("_", "-"): value for name, value in headers.items()}, body)


class ScriptedProvider:
    """Gives its scripted answers (or raises them) in turn; the last one again and again."""

    protocol: ProviderProtocol = "openai"
    client_key_rule: ClientKeyRule = "if_meant"

    def __init__(self, name: str, *script: UpstreamReply | BaseException) -> None:
        self.name = name
        self.script = list(script) or [answer()]
        self.calls: list[UpstreamRequest] = []
        self.listed: list[dict[str, Any]] | BaseException = []
        self.list_asked = 0
        self.list_gate: asyncio.Event | None = None

    async def send(self, call: UpstreamRequest) -> UpstreamReply:
        self.calls.append(call)
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, BaseException):
            raise step
        return step

    async def list_models(self, authorization: str | None) -> list[dict[str, Any]]:
        self.list_asked += 1
        if self.list_gate is not None:
            await self.list_gate.wait()
        if isinstance(self.listed, BaseException):
            raise self.listed
        return self.listed

    async def aclose(self) -> None:
        return None


class Time:
    """Monotonic seconds that pass only in `sleep`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def by_name(*providers: ScriptedProvider) -> Mapping[str, ScriptedProvider]:
    return {provider.name: provider for provider in providers}
