"""Real processes for the tests at the edge: the gateway and the simulated model, each behind a socket of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

READY_SECONDS = 120.0
STOP_SECONDS = 15.0
_ADDRESS = re.compile(r"listening on (http://\S+)")


class Process:
    """`python -m app …`, or another program, started and waited for until it names its address."""

    def __init__(
        self,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        program: Sequence[str] = (sys.executable, "-m", "app"),
    ) -> None:
        self._lines: list[str] = []
        self._ready = threading.Event()
        self.process = subprocess.Popen(
            [*program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environ or {})},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.address = self._await_address()

    @property
    def output(self) -> str:
        return "".join(self._lines)

    def kill(self) -> None:
        """As a crash would: no chance to clean up."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(STOP_SECONDS)

    def stop(self) -> int:
        """SIGTERM, then wait for the drain."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        self._reader.join(STOP_SECONDS)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line)
            if _ADDRESS.search(line):
                self._ready.set()
        self._ready.set()

    def _await_address(self) -> str:
        self._ready.wait(READY_SECONDS)
        found = _ADDRESS.search(self.output)
        if found is None:
            self.stop()
            raise RuntimeError(f"did not start:\n{self.output}")
        return found[1].rstrip("/")


class Simulated(Process):
    """The simulated model behind a socket."""

    def __init__(self, *options: str) -> None:
        super().__init__("simulate", "--port", "0", *options)

    @property
    def base_url(self) -> str:
        return self.address

    def requests(self) -> list[dict[str, Any]]:
        """What it was asked since the last `forget`, oldest first."""
        with urllib.request.urlopen(self.address.removesuffix("/v1") + "/__requests", timeout=10) as answer:
            recorded: list[dict[str, Any]] = json.load(answer)
        return recorded

    def forget(self) -> None:
        request = urllib.request.Request(self.address.removesuffix("/v1") + "/__requests", method="DELETE")
        with urllib.request.urlopen(request, timeout=10):
            pass


class Gateway(Process):
    """The gateway with a configuration of its own."""

    def __init__(
        self, folder: Path, config: Mapping[str, Any] | None = None, *, environ: Mapping[str, str] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"config-{time.monotonic_ns()}.yaml"
        file.write_text(yaml.safe_dump(dict(config or {})))
        super().__init__("serve", "--config", str(file), "--port", "0", environ=environ)

    @property
    def base_url(self) -> str:
        return f"{self.address}/v1"


def gateway_config(upstream: str, database: str, *, window: int = 8192, **sections: Any) -> dict[str, Any]:
    """A configuration with one provider, whose models all have the same window unless `sections` says otherwise."""
    return {
        "database": {"url": database},
        "providers": {"upstream": {"base_url": upstream, "api_key": "sk-upstream"}},
        "models": {"*": {"provider": "upstream", "context_window": window}},
        **sections,
    }
