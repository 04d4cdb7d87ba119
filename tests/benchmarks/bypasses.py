"""What going past FastAPI saves a request, and what httpx and its transport cost:
`python -m tests.benchmarks.bypasses [--rounds 5] [--calls 1500]`.

Processor time in microseconds, least and median of rounds that alternate in one run. `gateway`: a whole request in a
gateway process on the memory store. `call`: the client alone: as providers are called, with aiohttp alone, and with
httpx alone. `route`: an ASGI application that reads a body and sends an answer, called in this
process by itself, and as the endpoint of a FastAPI route.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import httpx
import orjson
import uvloop
import yaml
from fastapi import FastAPI, Request, Response
from rich.console import Console
from rich.table import Table
from starlette.types import Message, Receive, Scope, Send

from app.upstream.http.http_client import HttpClient
from app.upstream.http.http_client_contract import HttpTimeouts, RequestHead
from tests.benchmarks.processes import Cores, Cpu, Process
from tests.benchmarks.targets import free_port

CONCURRENCY: Final = (1, 16, 64)
READY_SECONDS: Final = 60.0
CHAT_PATH: Final = "/v1/chat/completions"
BODY: Final = orjson.dumps({"model": "scripted-1-0", "messages": [{"role": "user", "content": "word " * 200}]})
HEADERS: Final = {"host": "127.0.0.1", "content-type": "application/json", "authorization": "Bearer sk-up"}
HEAD: Final = RequestHead("POST", CHAT_PATH, HEADERS)
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
Ask = Callable[[], Awaitable[None]]


async def ask(client: HttpClient) -> None:
    reply = await client.send(HEAD, BODY, None, None)
    answer = await reply.read()
    await reply.aclose()
    assert reply.status == 200, answer


def ask_by_aiohttp(session: aiohttp.ClientSession, url: str) -> Ask:
    async def ask() -> None:
        async with session.post(url, data=BODY, headers=HEADERS) as response:
            assert response.status == 200, await response.read()
            await response.read()

    return ask


def ask_by_httpx(client: httpx.AsyncClient, url: str) -> Ask:
    async def ask() -> None:
        response = await client.post(url, content=BODY, headers=HEADERS)
        assert response.status_code == 200, response.content

    return ask


async def ask_often(ask: Ask, calls: int, concurrency: int) -> None:
    async def ask_in_turn() -> None:
        for _ in range(max(1, calls // concurrency)):
            await ask()

    await asyncio.gather(*(ask_in_turn() for _ in range(concurrency)))


def measure_gateway(gateway: Process, ask: Ask, calls: int, concurrency: int) -> Measurement:
    async def measure() -> float:
        await ask_often(ask, concurrency, concurrency)
        before = Cpu.of(gateway.pid)
        await ask_often(ask, calls, concurrency)
        return Cpu.of(gateway.pid).since(before) / calls * 1e6

    return measure


def measure_call(ask: Ask, calls: int, concurrency: int) -> Measurement:
    async def measure() -> float:
        await ask_often(ask, concurrency, concurrency)
        started = time.process_time()
        await ask_often(ask, calls, concurrency)
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
def gateway_for(upstream: str, core: int | None) -> Iterator[tuple[Process, str]]:
    provider = {"base_url": f"{upstream}/v1", "api_key": "sk-up"}
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


def make_client(url: str) -> HttpClient:
    return HttpClient("x", urlsplit(url), HttpTimeouts(), None, None)


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
        gateway, address = stack.enter_context(gateway_for(upstream, cores.measured))
        driver, client = make_client(address), make_client(upstream)
        await wait_until_ready(gateway, driver)
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        plain = httpx.AsyncClient(limits=httpx.Limits(max_connections=None))
        ways: dict[str, Ask] = {
            "httpx over aiohttp": functools.partial(ask, client),
            "aiohttp": ask_by_aiohttp(session, upstream + CHAT_PATH),
            "httpx": ask_by_httpx(plain, upstream + CHAT_PATH),
        }
        for many in CONCURRENCY:
            whole = measure_gateway(gateway, functools.partial(ask, driver), calls, many)
            measurements[f"gateway, {many} at a time", "httpx over aiohttp"] = whole
            for way, ask_once in ways.items():
                measurements[f"call, {many} at a time", way] = measure_call(ask_once, calls, many)
        measurements["route", "raw ASGI"] = measure_route(endpoint, calls)
        measurements["route", "FastAPI"] = measure_route(make_fastapi_application(), calls)
        figures: dict[tuple[str, str], list[float]] = {key: [] for key in measurements}
        for _ in range(rounds):
            for key, measure in measurements.items():
                figures[key].append(await measure())
        await session.close()
        await plain.aclose()
        await driver.aclose()
        await client.aclose()
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
