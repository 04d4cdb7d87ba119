"""What a client has received is in the database, whatever happens to the gateway next."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness import Gateway, Simulated, gateway_config
from tests.support.gateway import user

HEADERS = {"authorization": "Bearer sk-durable"}


@pytest.fixture(scope="module")
def model() -> Iterator[Simulated]:
    with Simulated("--seconds-per-token", "0.01") as simulated:
        yield simulated


def started(folder: Path, model: Simulated, **sections: Any) -> Gateway:
    return Gateway(folder, gateway_config(model.base_url, f"sqlite:///{folder}/kept.db", **sections))


def roles(folder: Path) -> list[str]:
    """The stored messages' roles, read straight from the file."""
    with sqlite3.connect(f"file:{folder}/kept.db?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT body FROM messages ORDER BY conversation_id, seq").fetchall()
    connection.close()
    return [json.loads(row[0])["role"] for row in rows]


def test_a_whole_answer_is_stored_before_it_is_received(tmp_path: Path, model: Simulated) -> None:
    with started(tmp_path, model) as gateway, httpx.Client(headers=HEADERS, timeout=30) as client:
        for turn in range(3):
            body = {"model": "sim", "messages": [user(f"Turn {turn}")], "conversation": "c"}
            assert client.post(f"{gateway.base_url}/chat/completions", json=body).status_code == 200
            assert roles(tmp_path) == ["user", "assistant"] * (turn + 1)
        gateway.kill()
    assert roles(tmp_path) == ["user", "assistant"] * 3


def test_a_stream_is_stored_before_its_last_frame(tmp_path: Path, model: Simulated) -> None:
    with started(tmp_path, model) as gateway, httpx.Client(headers=HEADERS, timeout=30) as client:
        body = {"model": "sim", "stream": True, "messages": [user("Hello there")]}
        with client.stream("POST", f"{gateway.base_url}/chat/completions", json=body) as answer:
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    gateway.kill()
                    assert roles(tmp_path) == ["user", "assistant"]
                    break
            else:
                pytest.fail("the stream did not end")
    with started(tmp_path, model) as again:
        assert httpx.get(f"{again.address}/readyz").status_code == 200
        assert roles(tmp_path) == ["user", "assistant"]


async def test_a_gateway_killed_during_an_appended_turn_frees_its_conversation_soon(
    tmp_path: Path, model: Simulated
) -> None:
    sections = {"compaction": {"lease_seconds": 3.0, "wait_seconds": 20}}
    question = {"model": "sim!hang,first=1", "messages": [user("Who answers?")], "conversation": "c"}
    async with httpx.AsyncClient(headers=HEADERS, timeout=30) as client:
        with started(tmp_path, model, **sections) as gateway:
            url = f"{gateway.base_url}/chat/completions"
            first = {**question, "model": "sim", "messages": [user("Hi")]}
            assert (await client.post(url, json=first)).status_code == 200
            asking = asyncio.ensure_future(client.post(url, json=question))
            for _ in range(500):
                if len(roles(tmp_path)) == 3:
                    break
                await asyncio.sleep(0.01)
            gateway.kill()
            await asyncio.gather(asking, return_exceptions=True)
        assert roles(tmp_path) == ["user", "assistant", "user"]
        with started(tmp_path, model, **sections) as again:
            answer = await client.post(f"{again.base_url}/chat/completions", json=question)
            assert answer.status_code == 200, answer.text  # 409 after `wait_seconds`
    assert roles(tmp_path) == ["user", "assistant", "user", "assistant"]


async def test_a_second_gateway_takes_over_from_a_killed_one(tmp_path: Path, model: Simulated) -> None:
    sections = {"compaction": {"lease_seconds": 3.0, "wait_seconds": 20}}
    question = {"model": "sim!hang,first=1,on=answer", "messages": [user("Take over")], "conversation": "d"}
    async with httpx.AsyncClient(headers=HEADERS, timeout=30) as client:
        with started(tmp_path, model, **sections) as one, started(tmp_path, model, **sections) as two:
            first = {**question, "model": "sim", "messages": [user("Hi")]}
            assert (await client.post(f"{one.base_url}/chat/completions", json=first)).status_code == 200
            asking = asyncio.ensure_future(client.post(f"{one.base_url}/chat/completions", json=question))
            for _ in range(500):
                if len(roles(tmp_path)) == 3:
                    break
                await asyncio.sleep(0.01)
            waiting = asyncio.ensure_future(client.post(f"{two.base_url}/chat/completions", json=question))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            one.kill()
            answer = await waiting
            assert answer.status_code == 200, answer.text
            await asyncio.gather(asking, return_exceptions=True)
    assert roles(tmp_path) == ["user", "assistant", "user", "assistant"]
