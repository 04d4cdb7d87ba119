"""What a conversation of 10,000 messages costs as a resource: listing, search, preview, export, over HTTP.

    python -m tests.benchmarks.stored [--messages 10000] [--only sqlite|postgresql] [--rounds 3]

Prints, for each database, the median and the 95th percentile of each request in milliseconds, and how far the
gateway's memory rose meanwhile. Each request is made once in every round and its fastest time counts, so that a busy
neighbour does not decide; in brackets the 95th percentile of each round.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.harness import Process
from tests.postgres import Server

WORDS = 3_000
PAGES = 50
QUERIES = 100
EXPORT_SECONDS = 120.0


def history(messages: int, seed: int = 1) -> Iterator[str]:
    """Lines of a chat: words drawn like natural ones (the nth of them n times as rarely), one rare name in each."""
    draw = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(WORDS)]
    for number in range(messages):
        words = draw.choices(range(WORDS), weights, k=40)
        text = " ".join([f"name{number}", *(f"word{word}" for word in words)])
        yield json.dumps({"role": "assistant" if number % 2 else "user", "content": text})


def queries(messages: int) -> list[str]:
    """Questions of one to five words, rare ones and common ones among them."""
    draw = random.Random(2)
    asked = []
    for _ in range(QUERIES):
        words = [f"word{draw.randrange(WORDS)}" for _ in range(draw.randrange(0, 4))]
        asked.append(" ".join([*words, draw.choice([f"name{draw.randrange(messages)}", "word0", "word17"])]))
    return asked


def timed(calls: Iterable[Callable[[], httpx.Response]]) -> list[float]:
    """How long each took, in milliseconds.

    Raises:
        RuntimeError: an answer was no success.
    """
    took = []
    for call in calls:
        began = time.perf_counter()
        answer = call()
        took.append((time.perf_counter() - began) * 1000)
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.request.url}: {answer.status_code} {answer.text[:300]}")
    return took


def most_of(took: Sequence[float]) -> float:
    """The 95th percentile."""
    return sorted(took)[int(len(took) * 0.95) - 1]


def report_requests(name: str, rounds: int, calls: Callable[[], Iterable[Callable[[], httpx.Response]]]) -> None:
    """
    Args:
        calls: the same requests, made anew for each round.
    """
    taken = [timed(calls()) for _ in range(rounds)]
    best = [min(times) for times in zip(*taken, strict=True)]
    each = ", ".join(f"{most_of(took):.1f}" for took in taken)
    print(f"  {name:24s} p50 {statistics.median(best):7.1f} ms   p95 {most_of(best):7.1f} ms   ({each})")


def pages(client: httpx.Client, path: str, **parameters: Any) -> Iterator[Callable[[], httpx.Response]]:
    """The first pages of a list, each asked for with what the one before ended with."""
    seen: list[str | None] = [None]

    def ask() -> httpx.Response:
        after = {} if seen[-1] is None else {"after": seen[-1]}
        answer = client.get(path, params={**parameters, **after})
        body = answer.json()
        page = body.get("messages", body)
        seen.append(page["last_id"])
        return answer

    return (ask for _ in range(PAGES))


def stretches(client: httpx.Client, path: str, messages: int) -> Iterator[Callable[[], httpx.Response]]:
    """Messages of a log from anywhere, as somebody asks for them who scrolls in great leaps."""
    draw = random.Random(3)
    places = [draw.randrange(messages) for _ in range(PAGES)]
    return (partial(client.get, path, params={"from_seq": place, "limit": 100}) for place in places)


def measure(url: str, messages: int, rounds: int) -> None:
    environ = {"CONCERTINA_DATABASE__URL": url, "CONCERTINA_SERVER__LOG_LEVEL": "warning"}
    with (
        tempfile.TemporaryDirectory() as directory,
        Process("serve", "--port", "0", environ=environ, cwd=Path(directory)) as gateway,
    ):
        process = psutil.Process(gateway.process.pid)
        with httpx.Client(base_url=f"{gateway.address}/v1", timeout=EXPORT_SECONDS) as client:
            body = "\n".join(history(messages)).encode()
            began = time.perf_counter()
            told = client.post("/conversations/import", content=body, headers={"content-type": "application/x-ndjson"})
            told.raise_for_status()
            path = f"/conversations/{told.json()['data'][0]['id']}"
            print(f"  import of {len(body) >> 10} KB          {(time.perf_counter() - began) * 1000:9.0f} ms")
            began = time.perf_counter()
            while not client.get(f"{path}/search", params={"q": "word1"}).json()["complete"]:
                time.sleep(0.2)
            print(f"  made findable              {(time.perf_counter() - began) * 1000:9.0f} ms")
            before = process.memory_info().rss
            everywhere = [lambda q=q: client.get("/search", params={"q": q}) for q in queries(messages)]
            within = [lambda q=q: client.get(f"{path}/search", params={"q": q}) for q in queries(messages)]
            report_requests("items, a page of 100", rounds, lambda: pages(client, f"{path}/items", limit=100))
            report_requests("search in it", rounds, lambda: within)
            report_requests("search in all", rounds, lambda: everywhere)
            report_requests("turns, a page of 1,000", rounds, lambda: pages(client, f"{path}/turns", limit=1_000))
            report_requests("log, 100 rows anywhere", rounds, lambda: stretches(client, f"{path}/log", messages))
            shown = {"model": "sim-8k", "limit": 100}
            report_requests("preview, a page of 100", rounds, lambda: pages(client, f"{path}/context", **shown))
            report_export(client, path)
            print(f"  memory rose by             {(process.memory_info().rss - before) / 2**20:9.1f} MB")


def report_export(client: httpx.Client, path: str) -> None:
    began, first, size = time.perf_counter(), 0.0, 0
    with client.stream("GET", f"{path}/export") as answer:
        for piece in answer.iter_bytes():
            first = first or (time.perf_counter() - began) * 1000
            size += len(piece)
    whole = (time.perf_counter() - began) * 1000
    print(f"  export of {size >> 10} KB          {whole:9.0f} ms, the first bytes after {first:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--only", choices=["sqlite", "postgresql"])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.only != "postgresql":
        with tempfile.TemporaryDirectory() as directory:
            print("sqlite")
            measure(f"sqlite:///{directory}/bench.db", arguments.messages, arguments.rounds)
    if arguments.only != "sqlite":
        server = Server()
        server.start()
        try:
            print("postgresql")
            measure(server.url("postgres"), arguments.messages, arguments.rounds)
        finally:
            server.remove()


if __name__ == "__main__":
    main()
