"""Serves the simulated model over HTTP, for the demo, tests and benchmarks: raw ASGI under uvicorn.

Beside OpenAI's paths under ``/v1``, ``GET /__requests`` returns the last requests and ``DELETE /__requests`` clears
them.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

from app.simulator.options_and_faults import SimulatorOptions
from app.simulator.simulated_model import SimulatorTokenCounter
from app.simulator.simulator import Simulator, SimulatorRequest, make_json_response

ASGIMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[ASGIMessage]]
Send = Callable[[ASGIMessage], Awaitable[None]]
RECORDED_REQUESTS_PATH = "/__requests"


class SimulatorApp:
    """ASGI application around a `Simulator`."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator

    async def __call__(self, scope: ASGIMessage, receive: Receive, send: Send) -> None:
        body, more_body = bytearray(), scope["type"] == "http"
        while more_body:
            message = await receive()
            body += message.get("body", b"")
            more_body = bool(message.get("more_body"))
        if scope["type"] != "http" or message["type"] == "http.disconnect":
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        request = SimulatorRequest(scope["method"], scope["path"].removeprefix("/v1"), headers, bytes(body))
        async with asyncio.TaskGroup() as group:
            answer_task = group.create_task(self._send_response(request, send))
            disconnect_task = group.create_task(_cancel_on_disconnect(receive, answer_task))
            # The watcher never ends by itself: without this the task group would wait for it for ever.
            answer_task.add_done_callback(lambda _: disconnect_task.cancel())

    async def _send_response(self, request: SimulatorRequest, send: Send) -> None:
        if request.path == RECORDED_REQUESTS_PATH:
            if request.method == "DELETE":
                self.simulator.recorded_requests.clear()
            response = make_json_response(200, list(self.simulator.recorded_requests))
        else:
            response = await self.simulator.handle(request)
        headers = [(name.encode(), value.encode()) for name, value in response.headers.items()]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        async for piece in response.pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def run_simulator_server(
    host: str, port: int, options: SimulatorOptions, counter_for: Callable[[str], SimulatorTokenCounter]
) -> int:
    """Runs the server until it is stopped; prints one line with its address when it is ready.

    Args:
        host: the address to listen on.
        port: 0 picks a free one.
        options: speed and faults.
        counter_for: returns the token counter for a model's name.

    Returns:
        The exit status: 0 after a run, 1 if it could not start.
    """
    simulator = Simulator(options, counter_for, clock=time.time, new_id=lambda: uuid.uuid4().hex)
    config = uvicorn.Config(
        SimulatorApp(simulator), host=host, port=port, lifespan="off", log_level="critical", access_log=False
    )
    server = AnnouncingServer(config)
    server.run()
    return 0 if server.started else 1


class AnnouncingServer(uvicorn.Server):
    """A uvicorn server that prints its address when it listens."""

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started and self.servers:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            print(f"Simulated model is listening on http://{host}:{port}/v1", flush=True)  # noqa: T201  says that it is ready


async def _cancel_on_disconnect(receive: Receive, answer_task: asyncio.Task[None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
    answer_task.cancel()
