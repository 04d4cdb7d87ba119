"""uvicorn around the application: one process or several, one line when it is ready, a bounded drain at the end.

SIGTERM is a wish that is granted: the exit status is 0. First the application says that others had better be asked, and
goes on; then nothing new is taken, and what runs is finished.
"""

from __future__ import annotations

import asyncio
import errno
import http.client
import ipaddress
import multiprocessing
import multiprocessing.process
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

import uvicorn
from starlette.types import ASGIApp
from uvicorn.supervisors import Multiprocess

from app.api.edge.connections import ClientConnections, StopFlag

READY_POLL_SECONDS: Final = 0.02
READY_WAIT_SECONDS: Final = 60.0
STOP_POLL_SECONDS: Final = 0.1
EXIT_START_FAILED: Final = 1
# Longer than load balancers keep an idle connection (60 seconds, most of them): whoever sends the next request must be
# the one who closed it, or that request meets a connection that is being closed.
IDLE_CONNECTION_SECONDS: Final = 75


class CannotListen(Exception):
    """The server cannot listen on its address. The message says which address it is, and why."""

    def __init__(self, address: str, error: OSError) -> None:
        self.is_in_use = error.errno == errno.EADDRINUSE
        super().__init__(
            f"{address} is in use." if self.is_in_use else f"cannot listen on {address}: {error.strerror or error}."
        )


class ServerSettings(Protocol):
    """The part of the settings that concerns the server."""

    host: str
    port: int
    workers: int
    drain_seconds: float
    leave_seconds: float


def create_stop_flag(settings: ServerSettings) -> StopFlag:
    """What says to all processes of a server that it is about to stop."""
    return multiprocessing.get_context("spawn").Event() if settings.workers > 1 else threading.Event()


def run_server(
    create_app: Callable[[], ASGIApp],
    settings: ServerSettings,
    connections: ClientConnections,
    *,
    greeting: str,
    console_path: str | None = None,
    on_worker_end: Callable[[], None] = lambda: None,
) -> int:
    """Serve until SIGTERM or SIGINT; after `leave_seconds` running requests finish, for at most `drain_seconds`.

    Args:
        create_app: makes the application in each worker process; must be picklable.
        connections: of this process, or what those of each worker begin as.
        greeting: added to the start line.
        console_path: path and fragment of the console, for the link in the start line.
        on_worker_end: called when one of several worker processes has ended and its successor is started.

    Returns:
        The exit status: 1 when it could not start.

    Raises:
        CannotListen: the address is in use, or is none of this machine.
    """
    config = build_uvicorn_config(create_app, settings, connections)
    listening = _bind_socket(settings.host, settings.port)
    address = _format_address(listening)
    line = f"Concertina is listening on {address} ({greeting})"
    if console_path is not None:
        line += f". Console: {address}{console_path}"
    if settings.workers > 1:
        threading.Thread(target=_print_when_ready, args=(listening, line), daemon=True).start()
        workers = _DrainingWorkers(config, [listening], connections.stopping, settings.leave_seconds)
        workers.on_worker_end = on_worker_end
        workers.run()
        return 0
    # uvicorn gives back the handler that it found, and raises the signal once more when it has obeyed it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A terminal that is closed sends SIGHUP: answers that run are finished then, too.
    signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    server = _DrainingServer(config, line, connections.stopping, settings.leave_seconds)
    server.run(sockets=[listening])
    return 0 if server.started else EXIT_START_FAILED


def follow_parent_process() -> None:
    """Makes a worker process stop, with a drain, when the process that started it is gone: nobody else would stop it.
    Does nothing in a server of one process."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the parent gets it too, and stops its workers
    threading.Thread(target=_stop_after, args=(parent,), daemon=True).start()


def _stop_after(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def build_uvicorn_config(
    create_app: Callable[[], ASGIApp], settings: ServerSettings, connections: ClientConnections
) -> uvicorn.Config:
    """What uvicorn is told."""
    return uvicorn.Config(
        create_app,
        factory=True,
        http=connections.create_connection,  # type: ignore[arg-type]  # whatever makes protocols will do
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=IDLE_CONNECTION_SECONDS,
        timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
    )


def _bind_socket(host: str, port: int) -> socket.socket:
    """As uvicorn's `bind_socket`, which would log its own line about a failure and end the process."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise CannotListen(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", error) from error
    listening.set_inheritable(True)  # by worker processes
    return listening


class _DrainingServer(uvicorn.Server):
    """Says where it listens once it does, and that it is about to stop before it does."""

    def __init__(self, config: uvicorn.Config, line: str, leaving: StopFlag, leave_seconds: float) -> None:
        super().__init__(config)
        self._line = line
        self._leaving = leaving
        self._leave_seconds = leave_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            print(self._line, flush=True)

    async def main_loop(self) -> None:
        await super().main_loop()
        self._leaving.set()
        ends = time.monotonic() + self._leave_seconds
        while time.monotonic() < ends and not self.force_exit:
            await self.on_tick(0)  # keeps the date of answers right
            await asyncio.sleep(STOP_POLL_SECONDS)


class _DrainingWorkers(Multiprocess):
    """Several processes that are told to stop once all of them have said that they will."""

    def __init__(
        self, config: uvicorn.Config, sockets: list[socket.socket], leaving: StopFlag, leave_seconds: float
    ) -> None:
        super().__init__(config, sockets)
        self._leaving = leaving
        self._leave_seconds = leave_seconds
        self.on_worker_end: Callable[[], None] = lambda: None

    def keep_subprocess_alive(self) -> None:
        before = list(self.processes)
        super().keep_subprocess_alive()
        if self.processes != before:
            self.on_worker_end()

    def handle_hup(self) -> None:
        self.handle_term()

    def handle_term(self) -> None:
        self._leaving.set()
        time.sleep(self._leave_seconds)
        super().handle_term()


def _print_when_ready(listening: socket.socket, line: str) -> None:
    """Print the start line once a worker answers."""
    host, port = _find_self_reachable_address(listening)
    deadline = time.monotonic() + READY_WAIT_SECONDS
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection(host, port, timeout=1)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == http.HTTPStatus.OK:
                print(line, flush=True)
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(READY_POLL_SECONDS)


def _find_self_reachable_address(listening: socket.socket) -> tuple[str, int]:
    """Where this machine reaches the server; one that listens everywhere is reached on loopback."""
    host, port = listening.getsockname()[:2]
    return ("127.0.0.1" if ipaddress.ip_address(host).is_unspecified else host), port


def _format_address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
