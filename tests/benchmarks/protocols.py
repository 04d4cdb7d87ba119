"""What a turn costs in each protocol: `python -m tests.benchmarks.protocols [--rounds 7] [--calls 600]`.

Processor time of one gateway process per request, in microseconds, least and median of rounds that alternate in one
run, on the memory store. Each row is a protocol of the client, a protocol of the provider, and a form: a question of
1 KB answered as a whole, or as a stream of 200 chunks. `store: false` writes no row for the response, as a chat
completion does by default. The last column is the ratio to the chat client with the chat provider in the same form.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx
import orjson
import yaml
from rich.console import Console
from rich.table import Table

from tests.benchmarks.messages import words
from tests.benchmarks.processes import Cores, Cpu, Process
from tests.benchmarks.targets import await_answer, free_port

CHUNKS: Final = 200
MODEL: Final = f"scripted-{CHUNKS}-0"
TEXT: Final = words(900, seed=11)
BASE: Final = ("chat", "openai")
PROVIDERS: Final = ("openai", "responses", "anthropic")
"""The names of the providers, which are their protocols."""
Key = tuple[str, str, str]


def build_chat_body(number: int, provider: str, *, stream: bool) -> bytes:
    messages = [{"role": "user", "content": f"Question {number:08d}. {TEXT}"}]
    return _encode(provider, stream, {"messages": messages})


def build_responses_body(number: int, provider: str, *, stream: bool) -> bytes:
    return _encode(provider, stream, {"input": f"Question {number:08d}. {TEXT}"})


def build_unstored_body(number: int, provider: str, *, stream: bool) -> bytes:
    return _encode(provider, stream, {"input": f"Question {number:08d}. {TEXT}", "store": False})


def build_messages_body(number: int, provider: str, *, stream: bool) -> bytes:
    messages = [{"role": "user", "content": f"Question {number:08d}. {TEXT}"}]
    return _encode(provider, stream, {"max_tokens": 1000, "messages": messages})


CLIENTS: Final[dict[str, tuple[str, Callable[..., bytes]]]] = {
    "chat": ("/v1/chat/completions", build_chat_body),
    "messages": ("/v1/messages", build_messages_body),
    "responses": ("/v1/responses", build_responses_body),
    "responses, store: false": ("/v1/responses", build_unstored_body),
}


def _encode(provider: str, stream: bool, fields: dict[str, Any]) -> bytes:
    return orjson.dumps({"model": f"{MODEL}@{provider}", **fields} | ({"stream": True} if stream else {}))


@contextmanager
def run_gateway(upstream: str, core: int | None) -> Iterator[tuple[Process, str]]:
    """Runs a gateway whose models `…@openai`, `…@responses` and `…@anthropic` are called in these protocols."""
    port = free_port()
    provider = {"base_url": f"{upstream}/v1", "api_key": "sk-up"}
    settings = {
        "server": {"host": "127.0.0.1", "port": port},
        "database": {"url": "memory://"},
        "providers": {name: {**provider, "protocol": name} for name in PROVIDERS},
        "models": {
            "*": {"provider": "openai", "context_window": 128_000},
            **{f"{MODEL}@{name}": {"provider": name, "model": MODEL, "context_window": 128_000} for name in PROVIDERS},
        },
    }
    with tempfile.TemporaryDirectory(prefix="concertina-bench-") as name:
        file = Path(name) / "config.yaml"
        file.write_text(yaml.safe_dump(settings))
        log = Path(name) / "output.log"
        with Process(["app", "serve", "--config", str(file)], core=core, log=log) as process:
            await_answer(process, port)
            yield process, f"http://127.0.0.1:{port}"


def compare(rounds: int, calls: int) -> Table:
    cores, numbers = Cores.of_this_machine(), count()
    figures: dict[Key, list[float]] = {
        (client, provider, form): [] for form in ("whole", "stream") for client in CLIENTS for provider in PROVIDERS
    }
    with ExitStack() as stack:
        port = free_port()
        stack.enter_context(Process(["tests.benchmarks.upstream", str(port)], core=cores.driving)).read_line()
        gateway, address = stack.enter_context(run_gateway(f"http://127.0.0.1:{port}", cores.measured))
        driver = stack.enter_context(httpx.Client(base_url=address))

        def ask(client: str, provider: str, form: str) -> None:
            path, build_body = CLIENTS[client]
            answer = driver.post(path, content=build_body(next(numbers), provider, stream=form == "stream"))
            assert answer.status_code == 200, (client, provider, form, answer.text, gateway.tail())
            assert b"word199" in answer.content or form == "whole"

        for key in figures:
            for _ in range(20):
                ask(*key)
        for number in range(rounds):
            for key in figures if number % 2 else reversed(figures):
                before = Cpu.of(gateway.pid)
                for _ in range(calls):
                    ask(*key)
                figures[key].append(Cpu.of(gateway.pid).since(before) / calls * 1e6)
    table = Table("client", "provider", "form", "least µs", "median µs", "ratio", title="Processor time of one request")
    for (client, provider, form), costs in figures.items():
        ratio = median(cost / base for cost, base in zip(costs, figures[*BASE, form], strict=True))
        table.add_row(client, provider, form, f"{min(costs):,.0f}", f"{median(costs):,.0f}", f"{ratio:.2f}")
    return table


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.protocols")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=600)
    options = parser.parse_args(arguments)
    Console(width=120).print(compare(options.rounds, options.calls))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
