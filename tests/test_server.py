"""What the server is told."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest
from fastapi import FastAPI

from app.api.edge.connections import ClientConnections, ConnectionLimits
from app.server import build_uvicorn_config
from app.settings.sections import Server
from tests.harness import Process
from tests.live import ScriptedUpstream, completion, serving

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


@pytest.fixture
async def slow_upstream() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """An upstream whose answers wait for an event."""
    gate = asyncio.Event()
    async with serving(ScriptedUpstream(default=lambda _: replace(completion(), gate=gate)), lifespan="off") as address:
        yield address, gate


def gateway_before(upstream: str, folder: Path, workers: int = 1) -> Process:
    environ = {
        "CONCERTINA_PROVIDERS": json.dumps({"upstream": {"base_url": f"{upstream}/v1"}}),
        "CONCERTINA_MODELS": json.dumps({"*": {"provider": "upstream", "context_window": 8192}}),
        "CONCERTINA_DATABASE__URL": f"sqlite+aiosqlite:///{folder}/data/concertina.db",
    }
    return Process("serve", "--port", "0", "--workers", str(workers), environ=environ)


async def ask(gateway: Process) -> httpx.Response:
    async with httpx.AsyncClient(timeout=30) as client:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        return await client.post(f"{gateway.address}/v1/chat/completions", json=body)


async def test_a_hangup_of_the_terminal_drains(slow_upstream: tuple[str, asyncio.Event], tmp_path: Path) -> None:
    address, gate = slow_upstream
    gateway = await asyncio.to_thread(gateway_before, address, tmp_path)
    asking = asyncio.ensure_future(ask(gateway))
    await asyncio.sleep(1)
    gateway.process.send_signal(signal.SIGHUP)
    await asyncio.sleep(0.5)
    gate.set()
    assert (await asking).status_code == 200
    assert await asyncio.to_thread(gateway.process.wait, 15) == 0
    gateway.stop()


async def test_workers_stop_with_the_process_that_started_them(
    slow_upstream: tuple[str, asyncio.Event], tmp_path: Path
) -> None:
    gateway = await asyncio.to_thread(gateway_before, slow_upstream[0], tmp_path, 2)
    workers = psutil.Process(gateway.process.pid).children(recursive=True)
    assert len(workers) >= 2
    gateway.kill()
    _, alive = await asyncio.to_thread(psutil.wait_procs, workers, 20)
    gateway.stop()
    assert alive == []


async def test_a_new_database_is_for_its_user_alone(slow_upstream: tuple[str, asyncio.Event], tmp_path: Path) -> None:
    with await asyncio.to_thread(gateway_before, slow_upstream[0], tmp_path):
        folder = tmp_path / "data"
        modes = {stat.S_IMODE(file.stat().st_mode) for file in folder.glob("concertina.db*")}
        assert (stat.S_IMODE(folder.stat().st_mode), modes) == (0o700, {0o600})
