"""Processes that are killed, paused and started again: a PostgreSQL that keeps its word, and a fleet of gateways."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import asyncpg
import yaml

from tests import postgres
from tests.faults.proxy import Target
from tests.postgres import dsn

READY_SECONDS: Final = 60.0
STOP_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 0.02
DURABLE: Final = {"synchronous_commit": "on", "max_connections": "60"}
"""Unlike in other tests, what PostgreSQL has committed outlives its process. Only a power cut would need fsync."""


_LIBC: Final = ctypes.CDLL(None)
_SET_PARENT_DEATH_SIGNAL: Final = 1


def _die_with_parent() -> None:
    """In a child: end when whoever started it does, however that ends (Linux)."""
    _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class Database(postgres.Server):
    """A PostgreSQL that can crash, hang and come back."""

    def __init__(self, **settings: str) -> None:
        super().__init__({**DURABLE, **settings})

    @property
    def folder(self) -> str:
        """Where its socket is, as it stands in URLs."""
        return str(self._directory)

    def standby(self) -> Database:
        """A copy that follows it, started; it may be promoted."""
        copy = Database()
        shutil.rmtree(copy._data)
        copy._run("pg_basebackup", "-h", self.folder, "-U", "postgres", "-D", str(copy._data), "-R", "-X", "stream")
        copy.start()
        return copy

    @property
    def socket_path(self) -> Path:
        """Where a proxy reaches it."""
        return self._directory / ".s.PGSQL.5432"

    @property
    def pid(self) -> int:
        """Of the postmaster."""
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def crash(self) -> None:
        """Immediate shutdown: no checkpoint, every connection is cut."""
        self._end(signal.SIGQUIT)

    def pause(self) -> None:
        """It and all that serve its connections stand still."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def restart(self) -> None:
        self.start()

    async def rows(self, sql: str, *, database: str = "postgres") -> list[Any]:
        """What a statement says, past every proxy."""
        connection = await asyncpg.connect(dsn(self.url(database)))
        try:
            found: list[Any] = await connection.fetch(sql)
            return found
        finally:
            await connection.close()

    def _end(self, kind: signal.Signals) -> None:
        os.kill(self.pid, kind)
        assert self._process is not None
        assert self._process.stdin is not None
        # The shell around it ends when its child has: it waits for the end of its input first.
        self._process.stdin.close()
        self._process.wait(STOP_SECONDS)
        self._process = None
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def _signal_all(self, kind: signal.Signals) -> None:
        postmaster = self.pid
        for process in (postmaster, *children_of(postmaster)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, kind)


def children_of(pid: int) -> list[int]:
    told = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(one) for one in told.split()]


class Instance:
    """One gateway on a port of its own, which it keeps when it is started again."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any], *, preload: Mapping[str, str] | None = None):
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.port = free_port()
        self.is_up = False
        """Whether it was started and nobody has ended it since."""
        self.log = folder / f"{name}.log"
        self._config = folder / f"{name}.yaml"
        self._config.write_text(yaml.safe_dump(dict(config)))
        self._environ = dict(preload or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def target(self) -> Target:
        return ("127.0.0.1", self.port)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self) -> float:
        """Start it and wait until it listens; how many seconds that took."""
        began = time.monotonic()
        before = self.log.stat().st_size if self.log.exists() else 0
        command = [sys.executable, "-m", "app", "serve", "--config", str(self._config), "--port", str(self.port)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - it outlives this call
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environ},
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - one system call
            )
        while True:
            with self.log.open("rb") as told:
                told.seek(before)
                if b"listening on" in told.read():
                    self.is_up = True
                    return time.monotonic() - began
            if not self.is_running or time.monotonic() - began > READY_SECONDS:
                raise RuntimeError(f"{self.name} does not start: {self.log.read_text()[-2000:]}")
            await asyncio.sleep(LOOK_SECONDS)

    async def kill(self) -> None:
        """As a crash would: no chance to clean up."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """SIGTERM, then wait for the drain; its exit status."""
        return await self._end(signal.SIGTERM)

    def tell(self, kind: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(kind)

    async def _end(self, kind: signal.Signals) -> int:
        process, self.is_up = self._process, False
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(kind)
        try:
            return await asyncio.to_thread(process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait, STOP_SECONDS)
            return -signal.SIGKILL


def resident_bytes(pid: int) -> int:
    """What a process holds in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def open_files(pid: int) -> int:
    """How many file descriptors a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
