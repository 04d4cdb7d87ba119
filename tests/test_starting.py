"""What a start loads, and what it leaves alone."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.context.count.token_counter import load_token_counter
from app.context.count.tokenizers import load_tokenizer
from app.settings import load_settings
from tests.live import create_test_app, serving

ROOT = Path(__file__).parents[1]
NOT_FOR_THE_FIRST_ANSWER = {
    "alembic",
    "asyncpg",
    "cryptography",
    "opentelemetry.sdk",
    "sqlalchemy",
    "tiktoken",
}
"""Modules that take long to load, or much memory."""

FIRST_ANSWER = """
import asyncio, sys
from app.main import create_app
from app.settings import load_settings
from migrations.run import prepare_database

async def first_answer(url):
    prepare_database(url, auto_migrate=True)
    app = create_app(load_settings(environ={}, arguments={("database",): {"url": url}}))
    to_app, from_app = asyncio.Queue(), asyncio.Queue()
    running = asyncio.ensure_future(app({"type": "lifespan"}, to_app.get, from_app.put))
    to_app.put_nowait({"type": "lifespan.startup"})
    assert (await from_app.get())["type"] == "lifespan.startup.complete"
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    body = b'{"model": "sim-8k", "messages": [{"role": "user", "content": "hello"}]}'
    request = asyncio.Queue()
    request.put_nowait({"type": "http.request", "body": body})
    answer = []
    async def send(message):
        answer.append(message)
    await app(scope, request.get, send)
    assert answer[0]["status"] == 200, answer
    print(*sorted(sys.modules))
    to_app.put_nowait({"type": "lifespan.shutdown"})
    await running

asyncio.run(first_answer(sys.argv[1]))
"""


def test_a_start_on_sqlite_loads_what_its_first_answer_needs(tmp_path: Path) -> None:
    program = [sys.executable, "-c", FIRST_ANSWER, f"sqlite:///{tmp_path}/x.db"]
    run = subprocess.run(
        program, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path
    )
    loaded = run.stdout.split()
    assert "app.pipeline.pipeline" in loaded
    assert NOT_FOR_THE_FIRST_ANSWER & set(loaded) == set()


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A gateway that has just said that it listens, over a store in memory and the simulated model."""
    async with (
        serving(create_test_app(load_settings(environ={}, arguments={("database",): {"url": "memory://"}}))) as address,
        httpx.AsyncClient(base_url=address) as client,
    ):
        yield client


@pytest.mark.parametrize(
    "path",
    ["/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/console/", "/v1/models", "/v1/conversations"],
)
async def test_the_first_request_for_anything_is_answered(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-request-id"].startswith("req_")


async def test_all_who_ask_at_once_wait_for_the_same(client: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(*(client.get(path) for path in ("/v1/models", "/v1/conversations", "/metrics") * 5))
    assert {answer.status_code for answer in answers} == {200}


async def test_probes_refuse_other_methods_as_ever(client: httpx.AsyncClient) -> None:
    answer = await client.post("/readyz")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


async def test_a_start_loads_the_tokenizers_of_the_configured_models() -> None:
    load_tokenizer.cache_clear()
    load_token_counter.cache_clear()
    app: Any = create_test_app(load_settings(environ={}, arguments={("database",): {"url": "memory://"}}))
    async with serving(app):
        assert {"_count", "_encode"} & vars(load_tokenizer("o200k_base")).keys()


async def test_an_application_that_has_ended_leaves_nothing_behind() -> None:
    gc.freeze()  # as the first application of a process does
    app: Any = create_test_app(load_settings(environ={}, arguments={("database",): {"url": "memory://"}}))
    async with serving(app) as address, httpx.AsyncClient(base_url=address) as client:
        assert (await client.get("/v1/models")).status_code == 200
        held = weakref.ref(app.application)
    del app
    gc.collect()
    assert held() is None


def test_making_everything_asks_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    create_test_app(load_settings(environ={}, arguments={("database",): {"url": "memory://"}}))
