"""What refused requests leave in a gateway's memory: `python -m tests.benchmarks.refusals [--only WORD] [--share 0.1]`.

Each run has a gateway process of its own on SQLite and an upstream that refuses. Resident memory is read from /proc:
before the first request, and after each twentieth of them. It may rise by `ALLOWED_RISE_MB`; over the second half of a
run it may not rise by more than `ALLOWED_SLOPE_MB`. Exit status 1 where a run does not keep to that.

What counts is what the gateway keeps. Two things are kept out of the figures: the body of the last request, which the
gateway frees some milliseconds after its client has the answer; and freed blocks that the C library keeps for later.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml
from rich.console import Console
from rich.table import Table

from tests.benchmarks.processes import BenchmarkFailed, Process, resident_mb
from tests.benchmarks.targets import free_port
from tests.live import chunk, completion

ALLOWED_RISE_MB: Final = 30.0
ALLOWED_SLOPE_MB: Final = 3.0
SAMPLES: Final = 20
WARMING: Final = 20
"""Small requests before the first look: caches and lazy imports of the gateway are no leak."""
SETTLE_SECONDS: Final = 2.0
SETTLE_POLL_SECONDS: Final = 0.01
SETTLED_RISE_MB: Final = 1.0
"""Above the reading before."""
GIVEN_BACK: Final = {"MALLOC_MMAP_THRESHOLD_": "32768"}
"""Each freed block of 32 KiB or more goes back to the system at once, also the pieces in which a body comes: up to 256
KiB each, smaller ones on a loaded machine. Without it, glibc keeps as much as a few bodies took, or the pieces of one
below a small block that stays; which of them is chance: the readings rise in steps of one body."""
READY_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 60.0
PIECE_BYTES: Final = 65_536
CHAT_PATH: Final = "/v1/chat/completions"
STREAM_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
BEGUN_STREAM: Final = STREAM_HEAD + b"".join(
    b"%x\r\n%b\r\n" % (len(piece), piece)
    for piece in (chunk({"role": "assistant", "content": ""}), chunk({"content": "Half an"}))
)
"""A stream of two chunks that then breaks off."""
HALF: Final = b"Half an"


def answer(status: int, body: bytes) -> bytes:
    """A whole HTTP answer, after which the connection closes."""
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % (status, len(body)) + body


REFUSAL: Final = json.dumps({"error": {"message": "no", "type": "x", "param": None, "code": None}}).encode()
FINE: Final = answer(200, json.dumps(completion().body).encode())


def chat(size_bytes: int, **fields: Any) -> bytes:
    """The body of a chat completion whose one message is so long."""
    text = "word " * (size_bytes // 5)
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **fields}).encode()


async def send(
    base_url: str,
    body: bytes,
    *,
    path: str = CHAT_PATH,
    headers: Mapping[str, str] | None = None,
    is_chunked: bool = False,
    leave_after: bytes | None = None,
) -> int:
    """Send a request over a connection of its own, and read its answer to the end. Nothing is kept of either.

    Args:
        is_chunked: send no length.
        leave_after: hang up once this has come.

    Returns:
        The status; 0 where the answer did not come whole.
    """
    url = urlsplit(base_url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        length = "transfer-encoding: chunked" if is_chunked else f"content-length: {len(body)}"
        fields = {
            "host": url.netloc,
            "authorization": "Bearer sk-one",
            "content-type": "application/json",
            **(headers or {}),
        }
        lines = [f"POST {path} HTTP/1.1", length, *(f"{name}: {value}" for name, value in fields.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        for start in range(0, len(body), PIECE_BYTES):
            piece = body[start : start + PIECE_BYTES]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
            await writer.drain()
        if is_chunked:
            writer.write(b"0\r\n\r\n")
        if leave_after is not None:
            await reader.readuntil(leave_after)
            return 0
        return await _read_answer(reader)
    except (ConnectionError, asyncio.IncompleteReadError):
        return 0
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


async def _read_answer(reader: asyncio.StreamReader) -> int:
    """The status of an answer that is read to its end."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = _length_of(head)
    if length is not None:
        await reader.readexactly(length)
    else:
        await reader.readuntil(b"0\r\n\r\n")
    return int(head.split(b" ", 2)[1])


def _length_of(head: bytes) -> int | None:
    found = re.search(rb"content-length: (\d+)", head)
    return int(found[1]) if found else None


@asynccontextmanager
async def refusing(reply: bytes, *, is_open: bool = False) -> AsyncIterator[str]:
    """An upstream that reads a request, keeps nothing of it, sends `reply` and closes; gives its address.

    Args:
        is_open: close only when the client has left.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            left = _length_of((await reader.readuntil(b"\r\n\r\n")).lower()) or 0
            while left:
                left -= len(await reader.read(min(left, PIECE_BYTES)))
            writer.write(reply)
            if is_open:
                await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield "http://{}:{}".format(*server.sockets[0].getsockname())


@dataclass(frozen=True)
class Run:
    """So many requests, one after the other, none of which gets a whole answer.

    Attributes:
        size_bytes: of the message in each.
        fields: of each beside model and messages.
        status: of each answer; 0 where the client leaves.
        reply: what the upstream sends.
        leave_after: see `send`.
    """

    name: str
    count: int
    size_bytes: int
    fields: Mapping[str, Any]
    status: int
    reply: bytes = FINE
    leave_after: bytes | None = None


RUNS: Final = (
    Run("refused, 12 MB", 25, 12_000_000, {"stream": "yes"}, 400),
    Run("refused, 1 MB", 500, 1_000_000, {"stream": "yes"}, 400),
    Run("refused, 1 KB", 10_000, 1_000, {"stream": "yes"}, 400),
    Run("upstream errors, 1 MB", 200, 1_000_000, {}, 400, answer(400, REFUSAL)),
    Run("upstream breaks off, 1 MB", 200, 1_000_000, {}, 502, STREAM_HEAD),
    Run("streams refused, 1 MB", 200, 1_000_000, {"stream": True}, 400, answer(400, REFUSAL)),
    Run("streams cancelled, 1 MB", 200, 1_000_000, {"stream": True}, 0, BEGUN_STREAM, HALF),
)


@dataclass(frozen=True)
class Growth:
    """Resident memory in MB: before a run, and after each part of it."""

    before: float
    after: tuple[float, ...]

    @property
    def rise(self) -> float:
        """By how much it was higher than before, at most."""
        return max(self.after) - self.before

    @property
    def slope(self) -> float:
        """By how much the last quarter is above the third, on average."""
        quarter = max(1, len(self.after) // 4)
        last, third = self.after[-quarter:], self.after[-2 * quarter : -quarter] or self.after[-quarter:]
        return sum(last) / len(last) - sum(third) / len(third)

    @property
    def is_bounded(self) -> bool:
        return self.rise <= ALLOWED_RISE_MB and self.slope <= ALLOWED_SLOPE_MB


async def measure(run: Run, *, share: float = 1.0) -> Growth:
    """Send a run's requests to a gateway process of its own.

    Raises:
        BenchmarkFailed: the gateway does not start, or answers with another status.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="concertina-refusals-")))
        async with refusing(run.reply, is_open=run.leave_after is not None) as upstream:
            base_url = f"http://127.0.0.1:{free_port()}"
            gateway = stack.enter_context(_gateway(folder, base_url, upstream))
            await _until_ready(gateway, base_url)
            small, body = (chat(size_bytes, **run.fields) for size_bytes in (1000, run.size_bytes))
            for _ in range(WARMING):
                await _answered(base_url, small, run)
            before = resident_mb(gateway.pid)
            count = max(SAMPLES, int(run.count * share))
            after: list[float] = []
            for number in range(1, count + 1):
                status = await _answered(base_url, body, run)
                if status != run.status:
                    raise BenchmarkFailed(f"{run.name}: status {status} instead of {run.status}; {gateway.tail()}")
                if number % (count // SAMPLES) == 0:
                    after.append(await _settled_mb(gateway.pid, [before, *after][-1] + SETTLED_RISE_MB))
            return Growth(before, tuple(after))


async def _settled_mb(pid: int, expected: float) -> float:
    """Resident memory once it is as low as expected; after `SETTLE_SECONDS` whatever it is."""
    for _ in range(int(SETTLE_SECONDS / SETTLE_POLL_SECONDS)):
        if (reading := resident_mb(pid)) <= expected:
            break
        await asyncio.sleep(SETTLE_POLL_SECONDS)
    return reading


async def _answered(base_url: str, body: bytes, run: Run) -> int:
    async with asyncio.timeout(ANSWER_SECONDS):
        return await send(base_url, body, leave_after=run.leave_after)


def _gateway(folder: Path, base_url: str, upstream: str) -> Process:
    config = {
        "server": {"host": "127.0.0.1", "port": urlsplit(base_url).port},
        "database": {"url": f"sqlite+aiosqlite:///{folder}/refusals.db"},
        "providers": {"upstream": {"base_url": f"{upstream}/v1", "api_key": "sk-up"}},
        "models": {"*": {"provider": "upstream", "context_window": 10_000_000}},
        "retries": {"base_seconds": 0.001, "breaker_failures": 1_000_000},
    }
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    return Process(["app", "serve", "--config", str(file)], core=None, log=folder / "output.log", environ=GIVEN_BACK)


async def _until_ready(gateway: Process, base_url: str) -> None:
    for _ in range(int(READY_SECONDS / 0.05)):
        gateway.check()
        with contextlib.suppress(OSError):
            if await send(base_url, b"{}") == 400:
                return
        await asyncio.sleep(0.05)
    raise BenchmarkFailed(f"no answer within {READY_SECONDS:.0f} s; {gateway.tail()}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.refusals", description=__doc__)
    parser.add_argument("--only", default="", help="runs whose name holds this word")
    parser.add_argument("--share", type=float, default=1.0, help="of the requests of each run")
    options = parser.parse_args()
    table = Table(title="Resident memory in MB", title_justify="left")
    for column in ("run", "requests", "before", "rise", "at the end", "second half"):
        table.add_column(column, justify="left" if column == "run" else "right")
    is_bounded = True
    for run in RUNS:
        if options.only in run.name:
            growth = asyncio.run(measure(run, share=options.share))
            figures = (growth.before, growth.rise, growth.after[-1] - growth.before, growth.slope)
            count = max(SAMPLES, int(run.count * options.share))
            table.add_row(run.name, f"{count:,}", *(f"{figure:.1f}" for figure in figures))
            is_bounded = is_bounded and growth.is_bounded
    Console().print(table)
    return 0 if is_bounded else 1


if __name__ == "__main__":
    sys.exit(main())
