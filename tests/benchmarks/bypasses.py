"""What going past FastAPI and httpx saves a request: `python -m tests.benchmarks.bypasses [--rounds 5] [--calls 1500]`.

Processor time in microseconds, least and median of rounds that alternate in one run. `gateway`: a whole request in a
gateway process on the memory store, by the direct client, or by httpx, which takes the scripted model server for its
proxy. `call`: the client alone. `route`: an ASGI application that reads a body and sends an answer, called in this
process by itself, and as the endpoint of a FastAPI route.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
import uvloop
import yaml
from fastapi import FastAPI, Request, Response
from rich.console import Console
from rich.table import Table
from starlette.types import Message, Receive, Scope, Send

from app.upstream.http.direct_client import DirectClient
from app.upstream.http.http_client_contract import HttpClient, HttpTimeouts, RequestHead
from app.upstream.http.httpx_client import HttpxClient
from tests.benchmarks.processes import Cores, Cpu, Process
from tests.benchmarks.targets import free_port

CONCURRENCY: Final = (1, 16, 64)
READY_SECONDS: Final = 60.0
CHAT_PATH: Final = "/v1/chat/completions"
BODY: Final = orjson.dumps({"model": "scripted-1-0", "messages": [{"role": "user", "content": "word " * 200}]})
HEADERS: Final = {"host": "127.0.0.1", "content-type": "application/json", "authorization": "Bearer sk-up"}
HEAD: Final = RequestHead(
    "POST",
    CHAT_PATH,
    HEADERS,
    b"POST %b HTTP/1.1\r\n" % CHAT_PATH.encode() + "".join(f"{k}: {v}\r\n" for k, v in HEADERS.items()).encode(),
)
ANSWER: Final = b'{"answer":"' + b"x" * 1000 + b'"}'
SCOPE: Final = {
    "type": "http",
    "asgi": {"version": "3.0"},
    "http_version": "1.1",
    "method": "POST",
    "path": CHAT_PATH,
    "raw_path": CHAT_PATH.encode(),
    "query_string": b"",
    "root_path": "",
    "scheme": "http",
    "headers": [(name.encode(), value.encode()) for name, value in HEADERS.items()],
    "client": ("127.0.0.1", 1),
    "server": ("127.0.0.1", 8000),
}
Measurement = Callable[[], Awaitable[float]]


async def ask(client: HttpClient) -> None:
    reply = await client.send(HEAD, BODY, None, None)
    answer = await reply.read()
    await reply.aclose()
    assert reply.status == 200, answer


async def ask_often(client: HttpClient, calls: int, concurrency: int) -> None:
    async def ask_in_turn() -> None:
        for _ in range(max(1, calls // concurrency)):
            await ask(client)

    await asyncio.gather(*(ask_in_turn() for _ in range(concurrency)))


def measure_gateway(gateway: Process, client: HttpClient, calls: int, concurrency: int) -> Measurement:
    async def measure() -> float:
        await ask_often(client, concurrency, concurrency)
        before = Cpu.of(gateway.pid)
        await ask_often(client, calls, concurrency)
        return Cpu.of(gateway.pid).since(before) / calls * 1e6

    return measure


def measure_call(client: HttpClient, calls: int, concurrency: int) -> Measurement:
    async def measure() -> float:
        await ask_often(client, concurrency, concurrency)
        started = time.process_time()
        await ask_often(client, calls, concurrency)
        return (time.process_time() - started) / calls * 1e6

    return measure


async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
    message = await receive()
    assert message["body"]
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


def make_fastapi_application() -> FastAPI:
    application = FastAPI()

    async def answer(request: Request) -> Response:
        assert await request.body()
        return Response(ANSWER, media_type="application/json")

    application.post(CHAT_PATH)(answer)
    return application


def measure_route(application: Any, calls: int) -> Measurement:
    async def receive() -> Message:
        return {"type": "http.request", "body": BODY}

    async def send(message: Message) -> None:
        assert message.get("status", 200) == 200

    async def measure() -> float:
        started = time.process_time()
        for _ in range(calls):
            await application(dict(SCOPE), receive, send)
        return (time.process_time() - started) / calls * 1e6

    return measure


@contextmanager
def gateway_for(upstream: str, proxy: str | None, core: int | None) -> Iterator[tuple[Process, str]]:
    provider = {"base_url": f"{upstream}/v1", "api_key": "sk-up"} | ({"proxy": proxy} if proxy else {})
    port = free_port()
    settings = {
        "server": {"host": "127.0.0.1", "port": port},
        "database": {"url": "memory://"},
        "providers": {"upstream": provider},
        "models": {"*": {"provider": "upstream", "context_window": 128_000}},
    }
    with tempfile.TemporaryDirectory(prefix="concertina-bench-") as name:
        file = Path(name) / "config.yaml"
        file.write_text(yaml.safe_dump(settings))
        log = Path(name) / "output.log"
        with Process(["app", "serve", "--config", str(file)], core=core, log=log) as process:
            yield process, f"http://127.0.0.1:{port}"


def make_client(url: str, kind: str) -> HttpClient:
    parts, timeouts = urlsplit(url), HttpTimeouts()
    return (
        DirectClient("x", parts, timeouts, None) if kind == "direct" else HttpxClient("x", parts, timeouts, None, None)
    )


async def wait_until_ready(process: Process, client: HttpClient) -> None:
    async with asyncio.timeout(READY_SECONDS):
        while True:
            process.check()
            try:
                return await ask(client)
            except Exception:  # noqa: BLE001 - it is starting
                await asyncio.sleep(0.2)


async def compare(rounds: int, calls: int) -> Table:
    cores = Cores.of_this_machine()
    measurements: dict[tuple[str, str], Measurement] = {}
    with ExitStack() as stack:
        port = free_port()
        stack.enter_context(Process(["tests.benchmarks.upstream", str(port)], core=cores.driving)).read_line()
        upstream = f"http://127.0.0.1:{port}"
        for way, proxy in (("direct", None), ("httpx", upstream)):
            gateway, address = stack.enter_context(gateway_for(upstream, proxy, cores.measured))
            driver, client = make_client(address, "direct"), make_client(upstream, way)
            await wait_until_ready(gateway, driver)
            for many in CONCURRENCY:
                measurements[f"gateway, {many} at a time", way] = measure_gateway(gateway, driver, calls, many)
                measurements[f"call, {many} at a time", way] = measure_call(client, calls, many)
        measurements["route", "raw ASGI"] = measure_route(endpoint, calls)
        measurements["route", "FastAPI"] = measure_route(make_fastapi_application(), calls)
        figures: dict[tuple[str, str], list[float]] = {key: [] for key in measurements}
        for _ in range(rounds):
            for key, measure in measurements.items():
                figures[key].append(await measure())
    table = Table("what", "by", "least µs", "median µs", title="Processor time of one request")
    for (what, way), costs in sorted(figures.items()):
        table.add_row(what, way, f"{min(costs):,.0f}", f"{median(costs):,.0f}")
    return table


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bypasses")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=1500)
    options = parser.parse_args(arguments)
    Console().print(uvloop.run(compare(options.rounds, options.calls)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
