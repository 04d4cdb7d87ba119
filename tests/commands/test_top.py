"""`concertina top` as a process: on a terminal, elsewhere, and where the gateway is not as it should be."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from app.__main__ import main
from tests.commands.overviews import overview
from tests.harness import Gateway

PATIENCE_SECONDS = 20.0
OWN_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Runs a program whose terminal sends it Ctrl-C."""
ALTERNATE, ORDINARY, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


class Answering(ThreadingHTTPServer):
    """A gateway that answers one thing to everybody, and remembers what it was asked."""

    def __init__(self, status: int, body: object) -> None:
        self.status, self.body = status, body
        self.asked: list[tuple[str, str | None]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Answering)
        server.asked.append((self.path, self.headers.get("authorization")))
        body = server.body if isinstance(server.body, bytes) else json.dumps(server.body).encode()
        self.send_response(server.status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def answering(status: int, body: object) -> Iterator[Answering]:
    with Answering(status, body) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("options", [[], ["--once"]])
def test_elsewhere_than_on_a_terminal_one_page_is_printed(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(200, overview()) as gateway:
        assert main(["top", "--url", gateway.url, *options]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"Concertina 0.1.0 · {gateway.url} · ready")
    assert "openai/model-11" in told
    assert "\x1b" not in told
    assert "q quits" not in told


def test_json_is_what_the_gateway_told(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(200, overview()) as gateway:
        assert main(["top", "--url", f"{gateway.url}/v1/", "--json"]) == 0
        assert [path for path, _ in gateway.asked] == ["/v1/admin/overview"]
    assert json.loads(capsys.readouterr().out) == overview()


def test_the_key_comes_from_the_option_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONCERTINA_KEY", "ck_environment")
    with answering(200, overview()) as gateway:
        assert main(["top", "--url", gateway.url, "--json"]) == 0
        assert main(["top", "--url", gateway.url, "--json", "--key", "ck_option"]) == 0
        assert [shown for _, shown in gateway.asked] == ["Bearer ck_environment", "Bearer ck_option"]


def test_a_key_in_the_environment_is_no_unknown_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONCERTINA_KEY", "ck_environment")
    file = tmp_path / "c.yaml"
    file.write_text("server: {port: 1}")
    assert main(["check-config", str(file)]) == 0


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (401, {"error": {"message": "No."}}, "needs a valid key: give --key, or set CONCERTINA_KEY"),
        (403, {"error": {"message": "No."}}, "needs a key with scope admin"),
        (404, {"error": {"message": "No."}}, "it is switched off (`telemetry.metrics`, `telemetry.overview`)"),
        (503, {"error": {"message": "The database is away."}}, "answers 503: The database is away."),
        (502, b"<html>", "answers 502: no reason is given"),
        (200, b"<html>", "is not Concertina"),
        (200, {"object": "list"}, "is not Concertina"),
        (200, [], "is not Concertina"),
    ],
)
def test_a_refusal_is_told_with_what_to_do(
    status: int, body: object, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(status, body) as gateway:
        assert main(["top", "--url", gateway.url]) == 1
    error = capsys.readouterr().err
    assert told in error
    assert error.startswith("concertina: ")
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--url", "http://127.0.0.1:9"], "cannot be reached: Connection refused. Is a gateway running there"),
        (["--url", "ftp://example.test"], "--url: expected such as http://127.0.0.1:8000"),
        (["--url", "http://a:port"], "--url: expected"),
        (["--interval", "0"], "--interval: expected at least"),
        (["--interval", "nan"], "--interval: expected at least"),
        (["--key", "ck_\n"], "printable ASCII"),
    ],
)
def test_what_cannot_be_watched_is_told(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", *arguments]) == 1
    assert told in capsys.readouterr().err


class Terminal:
    """`concertina top` on a terminal of its own."""

    def __init__(self, *arguments: str, **environ: str) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(24, 80)
        self._before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWN_TERMINAL, sys.executable, "-m", "app", "top", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**unsized(), "TERM": "xterm-256color", **environ},
        )
        self.shown = ""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def read_until(self, wanted: str) -> str:
        """What is shown from now on until `wanted` is among it."""
        begun, deadline = len(self.shown), time.monotonic() + PATIENCE_SECONDS
        while wanted not in self.shown[begun:]:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._ours], [], [], 0.1)[0]:
                self.shown += os.read(self._ours, 65536).decode(errors="replace")
        return self.shown[begun:]

    def end(self) -> int:
        """The exit status, and the terminal as it was before."""
        status = self.process.wait(PATIENCE_SECONDS)
        while select.select([self._ours], [], [], 0.1)[0]:
            self.shown += os.read(self._ours, 65536).decode(errors="replace")
        assert termios.tcgetattr(self._theirs) == self._before
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


def unsized() -> dict[str, str]:
    """This process's environment without the size of its own terminal, which would hold whatever the test's has."""
    return {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}


@contextlib.contextmanager
def terminal(*arguments: str, **environ: str) -> Iterator[Terminal]:
    opened = Terminal(*arguments, **environ)
    try:
        yield opened
    finally:
        opened.close()


def keys_of(told: object) -> object:
    """The keys of nested objects, of one entry where there are many."""
    if isinstance(told, dict):
        return {name: keys_of(value) for name, value in told.items() if name not in {"compactions", "statuses"}}
    return [keys_of(told[0])] if isinstance(told, list) and told else None


def test_a_terminal_shows_a_running_gateway_until_q(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        Gateway(tmp_path, {"database": {"url": f"sqlite:///{tmp_path}/kept.db"}}) as gateway,
        terminal("--url", gateway.address, "--interval", "0.2") as screen,
    ):
        first = screen.read_until("q quits")
        assert ALTERNATE in first
        assert "SIMULATED MODEL" in first
        screen.read_until("q quits")
        screen.type(b"q")
        assert screen.end() == 0
        assert ORDINARY in screen.shown
        assert main(["top", "--url", gateway.address, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert keys_of({**told, "models": [], "errors": []}) == keys_of(overview(models=[], errors=[]))
        assert screen.shown.rindex(CURSOR) > screen.shown.index(ALTERNATE)


def test_control_c_leaves_the_terminal_as_it_was() -> None:
    with answering(200, overview()) as gateway, terminal("--url", gateway.url) as screen:
        screen.read_until("q quits")
        screen.type(b"\x03")
        assert screen.end() == 0
        assert ORDINARY in screen.shown
        assert "Traceback" not in screen.shown


def test_a_larger_terminal_is_filled_at_once() -> None:
    with answering(200, overview()) as gateway, terminal("--url", gateway.url, "--interval", "60") as screen:
        assert "openai/model-11" not in screen.read_until("q quits")
        screen.resize(40, 120)
        os.kill(screen.process.pid, signal.SIGWINCH)
        assert "openai/model-11" in screen.read_until("q quits")
        screen.type(b"q")
        assert screen.end() == 0


def test_a_gateway_that_goes_away_is_waited_for() -> None:
    with answering(200, overview()) as gateway, terminal("--url", gateway.url, "--interval", "0.2") as screen:
        screen.read_until("q quits")
        gateway.status = 503
        screen.read_until("not reached; trying again")
        gateway.status = 200
        screen.read_until("ready")
        gateway.status = 403
        assert screen.end() == 1
        assert screen.shown.index(ORDINARY) < screen.shown.index("needs a key with scope admin")


def test_no_color_and_dumb_terminals_are_minded() -> None:
    with answering(200, overview()) as gateway:
        with terminal("--url", gateway.url, NO_COLOR="1") as screen:
            screen.read_until("q quits")
            assert not re.search(r"\x1b\[[\d;]*3[0-7]m", screen.shown)
            screen.type(b"q")
            assert screen.end() == 0
        with terminal("--url", gateway.url, TERM="dumb") as screen:
            assert screen.end() == 0
            assert "\x1b" not in screen.shown
            assert "openai/model-0" in screen.shown
