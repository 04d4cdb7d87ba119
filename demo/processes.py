"""The gateway and the simulated model, each a process of its own with a temporary directory to live in."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {"PYTHONUNBUFFERED": "1"}
"""Nothing of the caller's: a demo shows the same whatever is configured on this machine."""
STOP_SECONDS = 10.0
_ADDRESS = re.compile(r"listening on (http://\S+)")


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway that answers."""

    base_url: str
    database_url: str


@contextmanager
def gateway(folder: Path, *, summary_seconds: float) -> Iterator[Running]:
    """A gateway with an SQLite database in `folder`, in front of a simulated model server.

    Args:
        summary_seconds: how long the simulated model takes for a summary.
    """
    with ExitStack() as stack:
        pause = ("--summary-seconds", str(summary_seconds))
        upstream = stack.enter_context(_started(["simulate", "--port", "0", *pause]))
        database_url = f"sqlite:///{folder}/demo.db"
        config = folder / "demo.yaml"
        settings = {
            "server": {"port": 0, "log_level": "warning"},
            "database": {"url": database_url},
            "providers": {"simulated": {"base_url": upstream, "api_key": "sk-demo"}},
            # Summaries are made when they are needed, not ahead: then there is a compaction to be seen.
            "policies": {"additive": {"prepare_ratio": 1, "blocking": True}},
        }
        config.write_text(yaml.safe_dump(settings))
        address = stack.enter_context(_started(["serve", "--config", str(config)]))
        yield Running(f"{address}/v1", database_url)


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "app", *arguments]


@contextmanager
def _started(arguments: Sequence[str]) -> Iterator[str]:
    """`python -m app …`, waited for until it names its address."""
    process = subprocess.Popen(  # noqa: S603 - our own command
        _command(arguments), cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield _address(process.stdout, arguments[0])
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _address(lines: Iterator[str], name: str) -> str:
    for line in lines:
        found = _ADDRESS.search(line)
        if found is not None:
            return found[1].rstrip("/")
    raise RuntimeError(f"`{name}` did not start")
