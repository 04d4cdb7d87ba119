"""Serves the simulated model over HTTP, for the demo, tests and benchmarks: raw ASGI under uvicorn.

Beside OpenAI's paths under ``/v1``, ``GET /__requests`` returns the last requests and ``DELETE /__requests`` clears
them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio
import uvicorn

from app.simulator.options_and_faults import SimulatorOptions
from app.simulator.simulated_model import SimulatorTokenCounter
from app.simulator.simulator import Simulator, make_json_response

ASGIMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[ASGIMessage]]
Send = Callable[[ASGIMessage], Awaitable[None]]
RECORDED_REQUESTS_PATH = "/__requests"


class SimulatorApp:
    """ASGI application around a `Simulator`."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator

    async def __call__(self, scope: ASGIMessage, receive: Receive, send: Send) -> None:
        body, more_body = bytearray(), True
        while more_body:
            message = await receive()
            body += message.get("body", b"")
            more_body = message.get("more_body", False)
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_on_disconnect, receive, group.cancel_scope)
            await self._send_response(scope, bytes(body), send)
            group.cancel_scope.cancel()

    async def _send_response(self, scope: ASGIMessage, body: bytes, send: Send) -> None:
        if scope["path"] == RECORDED_REQUESTS_PATH:
            if scope["method"] == "DELETE":
                self.simulator.recorded_requests.clear()
            response = make_json_response(200, list(self.simulator.recorded_requests))
        else:
            request_headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            path = scope["path"].removeprefix("/v1")
            response = await self.simulator.handle(scope["method"], path, request_headers, body)
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
        The exit status: 0 after a run. If the address cannot be used, the process ends with 1.
    """
    simulator = Simulator(options, counter_for, clock=time.time, new_id=lambda: uuid.uuid4().hex)
    config = uvicorn.Config(
        SimulatorApp(simulator), host=host, port=port, lifespan="off", log_level="error", access_log=False
    )
    listener = config.bind_socket()
    # From here on clients can connect: they wait until the server has started.
    listener.listen()
    host, port = listener.getsockname()[:2]
    print(f"Simulated model is listening on http://{host}:{port}/v1", flush=True)  # noqa: T201  says that it is ready
    uvicorn.Server(config).run([listener])
    return 0


async def _cancel_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
    scope.cancel()
