"""What the server is told."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from app.api.edge.connections import ClientConnections, ConnectionLimits
from app.server import build_uvicorn_config
from app.settings.sections import Server

ROOT = Path(__file__).parents[1]
IDLE_SECONDS_OF_LOAD_BALANCERS = 60


def test_an_idle_connection_outlasts_those_of_load_balancers() -> None:
    """Whoever closes first must be the side that sends: a request on a connection that is just closed is lost."""
    connections = ClientConnections(ConnectionLimits())
    assert build_uvicorn_config(FastAPI, Server(), connections).timeout_keep_alive > IDLE_SECONDS_OF_LOAD_BALANCERS


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def start_in_vain(*arguments: str, host: str = "127.0.0.1") -> str:
    """Starts a gateway that cannot listen; returns its only line on standard error."""
    command = [sys.executable, "-m", "app", "serve", "--host", host, *arguments]
    environ = {"PATH": "", "CONCERTINA_DATABASE__URL": "memory://"}
    ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    return line


def test_a_port_that_is_in_use_is_told_in_one_line_with_the_remedy(busy_port: int, tmp_path: Path) -> None:
    port = ("--port", str(busy_port))
    assert start_in_vain(*port) == (
        f"concertina: 127.0.0.1:{busy_port} is in use. Choose another port: concertina serve --port 8080 "
        "(or make run PORT=8080)."
    )
    file = tmp_path / "my own.yaml"
    file.write_text("server: {log_level: error}")
    assert start_in_vain("--config", str(file), *port).endswith(
        f"concertina serve --config '{file}' --port 8080 (or make run CONFIG='{file}' PORT=8080)."
    )


def test_an_address_of_another_machine_is_told_in_one_line() -> None:
    line = start_in_vain("--port", "0", host="192.0.2.1")
    assert line == "concertina: cannot listen on 192.0.2.1:0: Cannot assign requested address."
