from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import openai
import pytest
import uvicorn

from app.simulator.options_and_faults import SimulatorOptions
from app.simulator.server import SimulatorApp
from app.simulator.simulator import Simulator
from tests.simulator.counting import RoughCounter

QUESTION: Any = [{"role": "user", "content": "My locker has code 4711. What code does my locker have?"}]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server on a free port, in a thread."""
    ids = count()
    simulator = Simulator(
        SimulatorOptions(), lambda model: RoughCounter(), clock=lambda: 1_800_000_000.0, new_id=lambda: str(next(ids))
    )
    ready = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[Any] | None = None) -> None:
            await super().startup(sockets=sockets)
            ready.set()

    config = uvicorn.Config(SimulatorApp(simulator), port=0, lifespan="off", log_level="critical", access_log=False)
    server = Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    assert ready.wait(10)
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    yield f"http://{host}:{port}"
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as opened:
        yield opened


def test_the_official_client_gets_an_answer(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(model="sim", messages=QUESTION)
    assert "4711" in str(completion.choices[0].message.content)
    assert completion.usage is not None
    assert completion.usage.prompt_tokens > 0


def test_the_official_client_streams(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="sim", messages=QUESTION) as stream:
        final = stream.get_final_completion()
    assert "4711" in str(final.choices[0].message.content)


async def test_the_official_async_client_streams_tool_calls(address: str) -> None:
    tool = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}}}
    asked: Any = {"model": "sim", "messages": QUESTION, "tools": [tool], "tool_choice": "required"}
    async with (
        openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as client,
        client.chat.completions.stream(**asked) as stream,
    ):
        final = await stream.get_final_completion()
    [call] = final.choices[0].message.tool_calls or []
    assert call.function.name == "lookup"
    assert call.function.arguments == "{}"


def test_an_overflow_reaches_the_official_client_as_its_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="sim-64", messages=[{"role": "user", "content": "word " * 500}])
    assert caught.value.code == "context_length_exceeded"


def test_a_simulated_failure_is_retried_by_the_official_client(address: str) -> None:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=1) as client:
        model = "sim!status=503,retry_after=0.01,first=1"
        assert client.chat.completions.create(model=model, messages=QUESTION).choices


def test_a_stream_that_breaks_off_reaches_the_client_as_a_broken_connection(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIConnectionError):
        list(client.chat.completions.create(model="sim!break_after=2", messages=QUESTION, stream=True))


def test_models_are_listed_by_the_official_client(client: openai.OpenAI) -> None:
    assert "sim" in [model.id for model in client.models.list()]


def test_requests_can_be_looked_at_and_forgotten(client: openai.OpenAI, address: str) -> None:
    client.chat.completions.create(model="sim", messages=[{"role": "user", "content": "Remember me."}])
    with openai.OpenAI(base_url=address, api_key="k") as plain:
        record = plain.get("/__requests", cast_to=object)
        assert isinstance(record, list)
        assert record[-1]["body"]["messages"][0]["content"] == "Remember me."
        assert plain.delete("/__requests", cast_to=object) == []


async def test_a_client_that_leaves_ends_its_request(address: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as client:
        call = asyncio.ensure_future(client.chat.completions.create(model="sim!hang", messages=QUESTION))
        await asyncio.wait({call}, timeout=0.2)
        assert not call.done()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
