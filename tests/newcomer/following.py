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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
WRITTEN_ADDRESS: Final = "http://127.0.0.1:8000"
CONSOLE_LINK: Final = re.compile(r"Console: (http://\S+/console/) \(operator's token: (\S+)\)")
STEP_SECONDS: Final = 300.0
STEPS_SECONDS: Final = 900
"""For a test that follows the whole way."""
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


class Newcomer:
    """Somebody with an empty folder, who clones the project there and does what its README says."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._home, self._clone = folder, folder / "home", folder / "concertina"
        self._home.mkdir()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(self._clone)], check=True, timeout=STEP_SECONDS)
        self._environ = bare_environment(self._home)
        self._running = ExitStack()
        self.screen = first_screen((self._clone / "README.md").read_text())
        self.address = WRITTEN_ADDRESS
        if not is_free(8000):
            port = free_port()
            self._environ["CONCERTINA_SERVER__PORT"] = str(port)
            self.address = f"http://127.0.0.1:{port}"
        self.console_link = ""
        """What the gateway printed at its last start, with the operator's token."""
        self.answers: list[str] = []
        """What curl and the Python call gave out."""
        self.seconds: dict[str, float] = {}
        """When each step was done, counted from `make run`."""

    def follow(self) -> None:
        """Does what the first screen says, up to the Python call. The gateway goes on running.

        Raises:
            AssertionError: something does not do what is written there; with what it said.
        """
        began = time.monotonic()

        def passed(what: str) -> None:
            self.seconds[what] = round(time.monotonic() - began, 1)

        self.run()
        passed(self.screen.make[0])
        for command in self.screen.curl:
            self.answers.append(done(["bash", "-c", self._localize(command)], self._folder, self._environ))
        passed("curl")
        for link in self.screen.links:
            with urllib.request.urlopen(self._localize(link), timeout=10) as answer:
                assert answer.status == 200, link
        passed("links")
        done([sys.executable, "-m", "venv", str(self._home / "venv")], self._folder, self._environ)
        for command in self.screen.installs:
            self._run_python("-m", *command.split())
        for code in self.screen.python:
            self.answers.append(self.run_python_call(code))
        passed("python")

    def run(self, **environ: str) -> None:
        """Does `make run` with more in its environment. A gateway that runs already is stopped first."""
        self.stop()
        wanted = f"listening on {self.address}"
        line = self._running.enter_context(
            started(self.screen.make[0], self._clone, {**self._environ, **environ}, wanted)
        )
        found = CONSOLE_LINK.search(line)
        assert found is not None, f"no link to the console in {line!r}"
        self.console_link = f"{found[1]}#token={Path(found[2]).read_text()}"

    def stop(self) -> None:
        self._running.close()

    def run_python_call(self, code: str) -> str:
        """What Python code of the README prints; changed as a reader may change it."""
        return self._run_python("-c", self._localize(code))

    def _run_python(self, *arguments: str) -> str:
        return done([str(self._home / "venv/bin/python"), *arguments], self._folder, self._environ)

    def _localize(self, text: str) -> str:
        return text.replace(WRITTEN_ADDRESS, self.address)


def bare_environment(home: Path) -> dict[str, str]:
    """What a newcomer's shell has: this Python first on PATH, and ways to registries. No cache, no settings."""
    path = [str(Path(sys.base_prefix) / "bin"), "/usr/local/bin", "/usr/bin", "/bin"]
    environ = {name: value for name, value in os.environ.items() if TO_REGISTRIES.fullmatch(name)}
    files = [file for file in (Path.home() / name for name in PIP_FILES) if file.exists()]
    if files and "PIP_CONFIG_FILE" not in environ:
        environ["PIP_CONFIG_FILE"] = str(files[0])
    return {**environ, "PATH": ":".join(path), "HOME": str(home)}


@contextmanager
def started(command: str, folder: Path, environ: Mapping[str, str], wanted: str) -> Iterator[str]:
    """A command that goes on, once it has said what is wanted: the line that says so."""
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
        line = next((line for line in said if wanted in line), None)
        assert line is not None, f"{command} never said {wanted!r}:\n{''.join(said)}"
        yield line
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
