"""What a client costs that masks old results: `python -m tests.benchmarks.rewriting [--turns 700] [--windows 8192]`.

An agent calls a tool with each answer. One gateway process on SQLite serves the agent that masks all results but the
newest ten, another the same agent unmasked; they take turns. CPU time is that of the gateway, in milliseconds for one
turn; bytes are those of the database's pages that hold something.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sqlite3
import sys
import threading
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, Final

import orjson
from rich.console import Console
from rich.table import Table

from tests.benchmarks.messages import words
from tests.benchmarks.processes import Cores, Cpu, settled
from tests.benchmarks.targets import SQLITE, Running, free_port, running
from tests.benchmarks.upstream import Counters, ScriptedModel
from tests.scenarios.rewriting import LOOK, SYSTEM, Body, Tell, mask

WINDOWS: Final = (8_192, 131_072)
NEWEST_RESULTS: Final = 10
BLOCK: Final = 50
"""Turns that are measured together."""
OUTPUT_CHARS: Final = 1_200
TABLE_COLUMNS: Final = 120
SUMMARY: Final = b"All of it is material to be summarized."


class ToolModel(ScriptedModel):
    """Answers with a call of a tool whose id no other call has; sums up in one line."""

    def _answer(self, body: bytes) -> None:
        self._counters.requests += 1
        message: Body = {"role": "assistant", "content": "They looked at many places."}
        if SUMMARY not in body:
            call_id = "call_" + hashlib.sha256(body).hexdigest()[:24]
            function = {"name": "look", "arguments": f'{{"at": "place {self._counters.requests}"}}'}
            message = {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": call_id, "type": "function", "function": function}],
            }
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if SUMMARY not in body else "stop"}
        self._whole(orjson.dumps({"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice]}))


class Agent:
    """An agent behind a gateway of its own, and what was seen of both."""

    def __init__(self, gateway: Running, tell: Tell) -> None:
        self.gateway = gateway
        self.tell = tell
        self.messages: list[Body] = [{"role": "user", "content": "Find out what grows where."}]
        self.waits = 0
        """Turns that waited for a summary."""
        self.cpu: list[float] = []
        """Milliseconds for a turn, of each block."""
        self._before = settled(gateway.process.pid)

    def take_turn(self, number: int) -> None:
        body = {"model": "m", "messages": [SYSTEM, *self.tell(self.messages)], "tools": [LOOK]}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.gateway.port}/v1/chat/completions",
            data=orjson.dumps(body),
            headers={
                "content-type": "application/json",
                "authorization": "Bearer sk-agent",
            },
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            told = orjson.loads(answer.read())
        self.waits += told["context"]["compaction"]["ran"]
        said = told["choices"][0]["message"]
        (call,) = said["tool_calls"]
        self.messages.append({"role": "assistant", "content": None, "tool_calls": said["tool_calls"]})
        output = f"Output {number}: {words(OUTPUT_CHARS, seed=number)}"
        self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})

    def end_block(self) -> None:
        now = Cpu.of(self.gateway.process.pid)
        self.cpu.append(now.since(self._before) / BLOCK * 1000)
        self._before = now

    def query(self, statement: str) -> int:
        path = self.gateway.database_url.removeprefix("sqlite+aiosqlite:///")
        with closing(sqlite3.connect(path)) as connection:
            return int(connection.execute(statement).fetchone()[0])

    @property
    def stored_bytes(self) -> int:
        pages = "SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count"
        return self.query(pages) * self.query("PRAGMA page_size")

    @property
    def conversations(self) -> int:
        """But for the one that the start of the gateway has begun."""
        return self.query("SELECT count(*) FROM conversations WHERE head_seq > 1")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.rewriting", description=__doc__)
    parser.add_argument("--turns", type=int, default=700)
    parser.add_argument("--windows", default=",".join(map(str, WINDOWS)), help="tokens, commas between")
    options = parser.parse_args()
    port = free_port()
    threading.Thread(target=asyncio.run, args=(_serve(port),), daemon=True).start()
    table = Table(title=f"A masking agent, {options.turns} turns", title_justify="left")
    columns = ("window", "agent", f"first {BLOCK}, ms", "middle", "last", "stored bytes", "×", "conversations", "waits")
    for column in columns:
        table.add_column(column, justify="left" if column == "agent" else "right")
    for window in map(int, options.windows.split(",")):
        for row in _rows(port, window, options.turns):
            table.add_row(*row)
    console = Console()
    (console if console.is_terminal else Console(width=TABLE_COLUMNS)).print(table)
    return 0


async def _serve(port: int) -> None:
    counters = Counters()
    server = await asyncio.get_running_loop().create_server(lambda: ToolModel(counters), "127.0.0.1", port)
    await server.serve_forever()


def _rows(port: int, window: int, turns: int) -> Sequence[tuple[str, ...]]:
    tells: dict[str, Any] = {"masked": mask(NEWEST_RESULTS), "unmasked": list}
    target, cores = replace(SQLITE, window_tokens=window), Cores.of_this_machine()
    with ExitStack() as stack:
        agents = {name: Agent(stack.enter_context(running(target, port, cores)), tell) for name, tell in tells.items()}
        for number in range(1, turns + 1):
            for agent in agents.values():
                agent.take_turn(number)
                if number % BLOCK == 0:
                    agent.end_block()
        bytes_unmasked = agents["unmasked"].stored_bytes
        return [
            (
                f"{window:,}",
                name,
                *(f"{agent.cpu[at]:.1f}" for at in (0, len(agent.cpu) // 2, -1)),
                f"{agent.stored_bytes:,}",
                f"{agent.stored_bytes / bytes_unmasked:.2f}",
                str(agent.conversations),
                str(agent.waits),
            )
            for name, agent in agents.items()
        ]


if __name__ == "__main__":
    sys.exit(main())
