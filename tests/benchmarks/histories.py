"""What a long history costs when it is new: `python -m tests.benchmarks.histories [--messages 5000]`.

A gateway process with a database in memory and a window of 8,192 tokens, once with the built-in simulated model, once
with that in a process of its own, so that the gateway's share is told apart. Every request brings another history. CPU
time is that of the gateway; the pause is the longest that `GET /healthz` waits meanwhile.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Final

import orjson
from rich.console import Console
from rich.table import Table

from tests.benchmarks.processes import Cpu, settled
from tests.harness import Gateway, Simulated, gateway_config

SIZES: Final = (5_000, 10_000, 20_000)
MESSAGE_WORDS: Final = 20
VOCABULARY: Final = [f"word{number}" for number in range(5_000)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.histories", description=__doc__)
    parser.add_argument("--messages", default=",".join(map(str, SIZES)), help="sizes of the histories")
    sizes = [int(size) for size in parser.parse_args().messages.split(",")]
    table = Table(title=f"One request, {MESSAGE_WORDS} words in a message", title_justify="left")
    for column in ("model", "messages", "CPU s", "wall s", "longest pause ms"):
        table.add_column(column, justify="left" if column == "model" else "right")
    with tempfile.TemporaryDirectory() as folder, Simulated() as model:
        for name, config in (
            ("built in", {"database": {"url": "memory://"}}),
            ("of its own", gateway_config(model.base_url, "memory://")),
        ):
            for size in sizes:
                with Gateway(Path(folder), config) as gateway:
                    _ask(gateway.base_url, 1)
                    table.add_row(name, f"{size:,}", *_measured(gateway, size))
    Console().print(table)
    return 0


def _measured(gateway: Gateway, size: int) -> tuple[str, str, str]:
    before, began = settled(gateway.process.pid), time.perf_counter()
    over, pauses = threading.Event(), [0.0]
    watching = threading.Thread(target=_watch, args=(gateway.address, over, pauses))
    watching.start()
    _ask(gateway.base_url, size)
    seconds = time.perf_counter() - began
    over.set()
    watching.join()
    cpu = Cpu.of(gateway.process.pid).since(before)
    return f"{cpu:.2f}", f"{seconds:.2f}", f"{max(pauses) * 1000:.0f}"


def _watch(address: str, over: threading.Event, pauses: list[float]) -> None:
    while not over.wait(0.01):
        began = time.perf_counter()
        with urllib.request.urlopen(f"{address}/healthz", timeout=120):
            pauses.append(time.perf_counter() - began)


def _ask(base_url: str, size: int) -> None:
    """Send a history of `size` messages, or one less, whose last is a question."""
    draw = random.Random(size)
    messages = [
        {"role": "assistant" if seq % 2 else "user", "content": " ".join(draw.choices(VOCABULARY, k=MESSAGE_WORDS))}
        for seq in range((size - 1) // 2 * 2)
    ]
    body = {"model": "sim-8k", "messages": [*messages, {"role": "user", "content": f"What is said of {size}?"}]}
    request = urllib.request.Request(
        f"{base_url}/chat/completions", data=orjson.dumps(body), headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        assert orjson.loads(answer.read())["choices"]


if __name__ == "__main__":
    sys.exit(main())
