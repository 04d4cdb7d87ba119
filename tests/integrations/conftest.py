"""What the pages about clients need: the frameworks in an environment of their own, Node's packages, a gateway."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Gateway
from tests.integrations.pages import ROOT
from tests.node.packages import missing

HERE = Path(__file__).parent
LOCK = HERE / "requirements.lock"
ENVIRONMENT = ROOT / ".venv" / "integrations"
INSTALL_SECONDS = 100


@pytest.fixture(scope="session")
def frameworks() -> str:
    """A Python that has what the lock names: frameworks need other versions of the client than the tests do."""
    if importlib.util.find_spec("uv") is None:
        missing("there is no uv to install the frameworks with")
    python = ENVIRONMENT / "bin" / "python"
    with (Path(tempfile.gettempdir()) / f"concertina-tests-frameworks-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests that run side by side install them once
        stamp = ENVIRONMENT / "installed.lock"
        if not stamp.exists() or stamp.read_bytes() != LOCK.read_bytes():
            uv("venv", "--clear", "--python", sys.executable, str(ENVIRONMENT))
            uv("pip", "sync", "--require-hashes", "--python", str(python), str(LOCK))
            stamp.write_bytes(LOCK.read_bytes())
    return str(python)


def uv(*arguments: str) -> None:
    command = [sys.executable, "-m", "uv", "--quiet", "--no-config", *arguments]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        missing("the frameworks could not be installed in time")
    if ended.returncode != 0:
        missing(f"the frameworks could not be installed: {ended.stderr.strip()[-300:]}")


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway as it is without any configuration, in front of the simulated model."""
    folder = tmp_path_factory.mktemp("integrations")
    with Gateway(folder, {"database": {"url": f"sqlite:///{folder}/kept.db"}}) as running:
        yield running.address
