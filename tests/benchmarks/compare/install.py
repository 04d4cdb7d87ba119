"""Installs other gateways, each in an environment of its own below `build/compare/gateways`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.benchmarks.peers import Peer

INSTALL_SECONDS: Final = 1_800
NPM: Final = "npm"


def install_peer(peer: Peer, tell: Callable[[str], None]) -> str | None:
    """Installs a gateway at its version, once.

    Returns:
        Why it cannot be measured; None if it can.
    """
    folder = peer.folder
    stamp = folder / ".installed"
    if stamp.exists() and stamp.read_text() == peer.package:
        return None
    if peer.registry == "npm" and shutil.which(NPM) is None:
        return "npm is not on the PATH"
    tell(f"Installing {peer.package} into {folder}: once, some minutes …")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for command in _list_commands(peer, folder):
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS, cwd=folder)
    except subprocess.CalledProcessError as error:
        return f"{peer.package} could not be installed: {error.stderr.strip().splitlines()[-1:]}"
    except subprocess.TimeoutExpired:
        return f"{peer.package} was not installed within {INSTALL_SECONDS} s"
    stamp.write_text(peer.package)
    return None


def _list_commands(peer: Peer, folder: Path) -> list[list[str]]:
    if peer.registry == "npm":
        return [[NPM, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--no-save", peer.package]]
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return [[sys.executable, "-m", "venv", str(folder)], [*pip, peer.package]]
