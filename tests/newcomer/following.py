"""Doing what the README's first screen says, word for word, the way somebody does who has nothing but a clone.

The environment is that of a container: PATH, an empty home, and what pip needs to reach a registry.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
WRITTEN_ADDRESS: Final = "http://127.0.0.1:8000"
STEP_SECONDS: Final = 300.0
TO_REGISTRIES: Final = re.compile(
    r"PIP_(?!CACHE_DIR).*|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|(HTTPS?|NO|ALL)_PROXY", re.IGNORECASE
)
PIP_FILES: Final = (".config/pip/pip.conf", ".pip/pip.conf")


@dataclass(frozen=True, slots=True)
class FirstScreen:
    """What the README tells to do before its first heading."""

    make: tuple[str, ...]
    """`make run` and the like, without the remarks behind them."""
    curl: tuple[str, ...]
    python: tuple[str, ...]
    installs: tuple[str, ...]
    """`pip install openai` and the like."""
    links: tuple[str, ...]
    """Places of a running gateway to look at."""
    pages: tuple[str, ...]
    """Files to read on."""


def first_screen(readme: str) -> FirstScreen:
    """The commands and places of a README's first screen."""
    text = readme.partition("\n## ")[0]
    blocks: dict[str, list[str]] = {}
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        blocks.setdefault(language, []).append(code)
    lines = [line.partition("#")[0].strip() for block in blocks.get("sh", []) for line in block.splitlines()]
    return FirstScreen(
        make=tuple(line for line in lines if line.startswith("make ")),
        curl=tuple(code for code in blocks.get("bash", []) if code.startswith("curl ")),
        python=tuple(blocks.get("python", [])),
        installs=tuple(re.findall(r"`(pip install [^`]+)`", text)),
        links=tuple(re.findall(rf"<({re.escape(WRITTEN_ADDRESS)}[^>]*)>", text)),
        pages=tuple(re.findall(r"\]\((docs/[^)#]+)\)", text)),
    )


@dataclass(slots=True)
class Followed:
    """What came of it, and after how many seconds from `make run` on."""

    answers: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def follow(folder: Path) -> Followed:
    """Clone the project into an empty folder and do what its README says.

    Raises:
        AssertionError: something does not do what is written there; with what it said.
    """
    clone, home = folder / "concertina", folder / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True, timeout=STEP_SECONDS)
    screen = first_screen((clone / "README.md").read_text())
    environ = bare_environment(home)
    address = WRITTEN_ADDRESS
    if not is_free(8000):
        port = free_port()
        environ["CONCERTINA_SERVER__PORT"] = str(port)
        address = f"http://127.0.0.1:{port}"
    followed, began = Followed(), time.monotonic()

    def passed(what: str) -> None:
        followed.seconds[what] = round(time.monotonic() - began, 1)

    with started(screen.make[0], clone, environ, f"listening on {address}"):
        passed(screen.make[0])
        for command in screen.curl:
            here = command.replace(WRITTEN_ADDRESS, address)
            followed.answers.append(done(["bash", "-c", here], folder, environ))
        passed("curl")
        for link in screen.links:
            with urllib.request.urlopen(link.replace(WRITTEN_ADDRESS, address), timeout=10) as answer:
                assert answer.status == 200, link
        passed("links")
        done([sys.executable, "-m", "venv", str(home / "venv")], folder, environ)
        for command in screen.installs:
            done([str(home / "venv/bin/python"), "-m", *command.split()], folder, environ)
        for code in screen.python:
            here = code.replace(WRITTEN_ADDRESS, address)
            followed.answers.append(done([str(home / "venv/bin/python"), "-c", here], folder, environ))
        passed("python")
    return followed


def bare_environment(home: Path) -> dict[str, str]:
    """What a newcomer's shell has: this Python first on PATH, and ways to registries. No cache, no settings."""
    path = [str(Path(sys.base_prefix) / "bin"), "/usr/local/bin", "/usr/bin", "/bin"]
    environ = {name: value for name, value in os.environ.items() if TO_REGISTRIES.fullmatch(name)}
    files = [file for file in (Path.home() / name for name in PIP_FILES) if file.exists()]
    if files and "PIP_CONFIG_FILE" not in environ:
        environ["PIP_CONFIG_FILE"] = str(files[0])
    return {**environ, "PATH": ":".join(path), "HOME": str(home)}


@contextmanager
def started(command: str, folder: Path, environ: Mapping[str, str], wanted: str) -> Iterator[None]:
    """A command that goes on, once it has said what is wanted."""
    said: list[str] = []
    heard = threading.Event()
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env=dict(environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if wanted in line:
                heard.set()
        heard.set()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        heard.wait(STEP_SECONDS)
        assert any(wanted in line for line in said), f"{command} never said {wanted!r}:\n{''.join(said)}"
        yield
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
        listener.join(30)
        assert process.stdout is not None
        process.stdout.close()


def done(command: list[str], folder: Path, environ: Mapping[str, str]) -> str:
    """What a command gave out, which had to succeed."""
    ended = subprocess.run(
        command, cwd=folder, env=dict(environ), capture_output=True, text=True, check=False, timeout=STEP_SECONDS
    )
    assert ended.returncode == 0, f"{' '.join(command)}:\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
