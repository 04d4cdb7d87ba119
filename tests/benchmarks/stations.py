"""How many stations a turn passes in our code: `python -m tests.benchmarks.stations [--list]`.

Three turns run in this process, over SQLite, with a provider behind HTTP (the simulated model in a process of its own):
a resent history that fits, the same streamed, and a turn that compacts. All calls of functions in `app/` are counted,
those of the HTTP client, of the log and of the store's threads too, from the request's first byte until the store has
written the turn.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import orjson
import yaml
from rich.console import Console
from rich.table import Table

from app.assembly.endpoints import build_worker_application
from app.observability.log import configure_logging
from app.settings.load import load_settings
from migrations.run import upgrade_database
from tests.benchmarks.messages import words
from tests.benchmarks.processes import ROOT, Process

APP: Final = f"{ROOT / 'app'}/"
NO_FUNCTIONS: Final = ("<module>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
SUSPENDS: Final = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
FIRST_SUSPENSION: Final = 8
"""The offset in bytecode before which a coroutine is made and not resumed."""
WARM_UP_TURNS: Final = 3
QUESTION_CHARS: Final = 1_000
IDLE_SECONDS: Final = 0.2
Message = MutableMapping[str, Any]


@dataclass
class Stations:
    """The calls of one turn. A jump is a call from one file, or room, of `app/` into another."""

    calls: Counter[CodeType] = field(default_factory=Counter)
    file_jumps: int = 0
    room_jumps: int = 0

    @property
    def files(self) -> set[str]:
        return {code.co_filename for code in self.calls}

    def record(self, frame: FrameType) -> None:
        code, caller = frame.f_code, frame.f_back
        callers = []
        while caller is not None:
            if _find_room(caller.f_code) is not None:
                callers.append(caller.f_code)
            caller = caller.f_back
        self.calls[code] += 1
        if callers and callers[0].co_filename != code.co_filename:
            self.file_jumps += 1
            self.room_jumps += _find_room(callers[0]) != _find_room(code)


class Profiler:
    """Counts calls while a turn runs, in this thread and in those that start while it is installed."""

    def __init__(self) -> None:
        self._stations: Stations | None = None

    @contextmanager
    def count(self) -> Iterator[Stations]:
        self._stations = stations = Stations()
        sys.setprofile(self.profile)
        try:
            yield stations
        finally:
            sys.setprofile(None)
            self._stations = None

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and self._stations is not None and _find_room(frame.f_code) and _begins(frame):
            self._stations.record(frame)


def _find_room(code: CodeType) -> str | None:
    """Returns the room of a function in `app/`; None for others, and for what Python runs as a function although no
    reader sees one (comprehensions, modules)."""
    if not code.co_filename.startswith(APP) or code.co_name in NO_FUNCTIONS:
        return None
    return code.co_filename.removeprefix(APP).split("/")[0]


def _begins(frame: FrameType) -> bool:
    """Returns whether a function is called, and not resumed after an await or a yield."""
    return not frame.f_code.co_flags & SUSPENDS or frame.f_lasti < FIRST_SUSPENSION


async def measure_turns() -> dict[str, Stations]:
    """Runs the three turns."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = load_settings(str(_write_config(folder, _start_provider(stack))), environ={})
        await asyncio.to_thread(upgrade_database, settings.database.url.get_secret_value())
        configure_logging("info", "json", stack.enter_context((folder / "log").open("w")))
        profiler = Profiler()
        threading.setprofile(profiler.profile)
        application = build_worker_application(settings, None, None)
        received: asyncio.Queue[Message] = asyncio.Queue()
        sent: asyncio.Queue[Message] = asyncio.Queue()
        lifespan = asyncio.create_task(application({"type": "lifespan"}, received.get, sent.put))
        await received.put({"type": "lifespan.startup"})
        assert (await sent.get())["type"] == "lifespan.startup.complete"
        try:
            return {
                "fits": await _measure_turn(profiler, application, model="sim-128k"),
                "fits, streamed": await _measure_turn(profiler, application, model="sim-128k", stream=True),
                "compacts": await _measure_turn(profiler, application, model="sim-4k", turns=40),
            }
        finally:
            await received.put({"type": "lifespan.shutdown"})
            await lifespan
            threading.setprofile(None)


def _start_provider(stack: ExitStack) -> str:
    """Starts the simulated model in a process of its own, and returns its URL."""
    provider = stack.enter_context(Process(["app", "simulate", "--port", "0"], core=None))
    return provider.read_line().split()[-1].decode()


def _write_config(folder: Path, provider_url: str) -> Path:
    config = {
        "database": {"url": f"sqlite+aiosqlite:///{folder / 'kept.db'}"},
        "providers": {"simulated": {"base_url": provider_url, "api_key": "sk-up"}},
        "models": {
            name: {"provider": "simulated", "context_window": window}
            for name, window in (("sim-128k", 131_072), ("sim-4k", 4_096))
        },
    }
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


async def _measure_turn(
    profiler: Profiler, application: Callable[..., Any], *, turns: int = WARM_UP_TURNS, **fields: Any
) -> Stations:
    """Has a conversation, and returns the calls of its last turn, or of the first that compacts."""
    history: list[Message] = []
    for turn in range(turns + 1):
        history.append({"role": "user", "content": f"{turn}. {words(QUESTION_CHARS, seed=turn)}"})
        with profiler.count() as stations:
            headers, body = await _post(application, {"messages": history, **fields})
            await asyncio.sleep(IDLE_SECONDS)
        history.append({"role": "assistant", "content": _read_text(body, is_stream=bool(fields.get("stream")))})
        if headers[b"x-context-status"] == b"summarized":
            break
    return stations


async def _post(application: Callable[..., Any], body: Message) -> tuple[dict[bytes, bytes], bytes]:
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1:8000"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 8000),
    }
    request = iter([{"type": "http.request", "body": orjson.dumps(body), "more_body": False}])
    answer: list[Message] = []

    async def receive() -> Message:
        message = next(request, None)
        return message if message is not None else await asyncio.get_running_loop().create_future()

    async def send(message: Message) -> None:
        answer.append(message)

    await application(scope, receive, send)
    head, *pieces = answer
    assert head["status"] == 200, pieces
    return dict(head["headers"]), b"".join(piece["body"] for piece in pieces)


def _read_text(body: bytes, *, is_stream: bool) -> str:
    if not is_stream:
        return str(orjson.loads(body)["choices"][0]["message"]["content"])
    events = [orjson.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="show each function of each turn with its calls")
    options = parser.parse_args(arguments)
    measured = asyncio.run(measure_turns())
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    table = Table("turn", "files", "functions", "calls", "jumps between files", "jumps between rooms")
    for turn, found in measured.items():
        figures = len(found.files), len(found.calls), found.calls.total(), found.file_jumps, found.room_jumps
        table.add_row(turn, *map(str, figures))
    console.print(table)
    if options.list:
        for turn, found in measured.items():
            console.print(f"\n{turn}", style="bold")
            for code, count in sorted(
                found.calls.items(), key=lambda call: (call[0].co_filename, call[0].co_firstlineno)
            ):
                console.print(f"{count:5} {code.co_filename.removeprefix(APP)} {code.co_qualname}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
