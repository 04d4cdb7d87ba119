"""Long conversations through any gateway: what reaches the provider, what is refused, what is paid for.

Two are held. *Growth*: 300 turns of `economy`'s talk of an office, every third with a tool call, at a window of 8,192
tokens. *Facts*: a monologue of `quality.monologues` at a window of 4,000, then its fifty questions, each as the next
turn of the same history. The client re-sends its whole history each time; if a request fails, the conversation goes on
as scripted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
import orjson

from tests.benchmarks.compare.model import Provider, count_tokens
from tests.benchmarks.messages import KEY
from tests.benchmarks.peers import PEERS, Place
from tests.benchmarks.processes import BenchmarkFailed, Process
from tests.benchmarks.quality.cache import common_prefix
from tests.benchmarks.quality.economy import SYSTEM, TOOLS
from tests.benchmarks.quality.economy_kinds import build_script
from tests.benchmarks.quality.talk import Variant
from tests.benchmarks.quality.talks import ACKNOWLEDGED, Talk, judge
from tests.benchmarks.quality.texts import serialized
from tests.benchmarks.targets import free_port
from tests.live import gateway, serving

CONCERTINA: Final = "concertina"
NO_GATEWAY: Final = "no gateway"
GROWTH_WINDOW, FACTS_WINDOW = 8_192, 4_000
START_SECONDS: Final = 90.0
ANSWER_SECONDS: Final = 120.0
PAUSE_SECONDS: Final = 0.02


@dataclass(slots=True)
class Client:
    """Sends histories to a gateway, and lets the provider know what it sends."""

    http: httpx.AsyncClient
    provider: Provider

    async def ask(
        self, history: Sequence[Mapping[str, Any]], reply: Mapping[str, Any], **fields: Any
    ) -> tuple[int, Mapping[str, Any]]:
        """Sends a history; returns the answer's status, and its message or, if there is none, the scripted one."""
        self.provider.sent, self.provider.reply, self.provider.is_due = history[-1], reply, True
        answer = await self.http.post("/chat/completions", json={"model": "scripted", **fields, "messages": history})
        await self._wait_for_summaries()
        if answer.status_code != 200:
            return answer.status_code, reply
        message: Mapping[str, Any] = answer.json()["choices"][0]["message"]
        return answer.status_code, message

    async def _wait_for_summaries(self) -> None:
        """Waits, as a person who reads would, until no summary is being written."""
        await asyncio.sleep(PAUSE_SECONDS)
        while self.provider.summarizing:  # noqa: ASYNC110 - the provider runs in this very loop
            await asyncio.sleep(PAUSE_SECONDS)


@asynccontextmanager
async def open_gateway(name: str, provider: Provider) -> AsyncIterator[Client]:
    """Starts a gateway in front of a provider.

    Raises:
        BenchmarkFailed: it does not start, or is not installed.
    """
    key = {"authorization": f"Bearer {KEY}"}
    async with (
        serving(provider, lifespan="off") as upstream,
        _open_address(name, upstream, provider.window) as (base_url, headers),
        httpx.AsyncClient(base_url=base_url, headers={**key, **headers}, timeout=ANSWER_SECONDS) as http,
    ):
        yield Client(http, provider)


@asynccontextmanager
async def _open_address(name: str, upstream: str, window: int) -> AsyncIterator[tuple[str, Mapping[str, str]]]:
    if name == NO_GATEWAY:
        yield f"{upstream}/v1", {}
    elif name == CONCERTINA:
        async with gateway(upstream, window=window, **Variant(CONCERTINA, "additive").sections()) as base_url:
            yield base_url, {}
    else:
        peer, port = PEERS[name], free_port()
        program = peer.find_program()
        if program is None:
            raise BenchmarkFailed(f"{name} is not installed")
        with TemporaryDirectory(prefix="concertina-compare-") as folder:
            place = Place(program, Path(folder), port, int(upstream.rpartition(":")[2]), window)
            log = Path(folder) / "output.log"
            with Process(peer.build_command(place), core=None, log=log, runner=()) as process:
                await _await_answer(process, port)
                yield f"http://127.0.0.1:{port}/v1", peer.headers(f"{upstream}/v1")


async def _await_answer(process: Process, port: int) -> None:
    """Waits until a gateway answers anything at all."""
    async with asyncio.timeout(START_SECONDS), httpx.AsyncClient(timeout=START_SECONDS) as http:
        while True:
            process.check()
            try:
                await http.get(f"http://127.0.0.1:{port}/")
            except httpx.TransportError:
                await asyncio.sleep(0.1)
            else:
                return


async def hold_growth(name: str, *, turns: int, seed: int) -> dict[str, Any]:
    """Holds the conversation that grows, and returns its figures. Tokens are the provider's.

    Raises:
        BenchmarkFailed: the gateway does not start.
    """
    provider, script = Provider(GROWTH_WINDOW), build_script("office", seed, turns)
    history: list[Mapping[str, Any]] = [dict(SYSTEM)]
    client_tokens = requests = failed = stalled = 0
    statuses: list[int] = []
    async with open_gateway(name, provider) as client:
        for turn in range(len(script.turns)):
            history.append({"role": "user", "content": script.turns[turn].question})
            awaited = provider.awaited_calls
            for step in range(script.count_requests(turn)):
                if step:
                    history.append(script.build_result(turn, step - 1))
                client_tokens += count_tokens({"messages": history, "tools": TOOLS})
                reply = script.build_reply({"x_bench_place": (turn, step)})
                status, message = await client.ask(history, reply, tools=TOOLS)
                requests += 1
                failed += status != 200
                statuses.append(status)
                history.append(dict(message))
            stalled += provider.awaited_calls > awaited
    answered = [call for call in provider.calls if call.status == 200]
    clients = [call for call in answered if not call.is_gateways_own]
    prompts = [serialized(call.messages, orjson.dumps) for call in clients]
    shares = [common_prefix(before, after) / len(before) for before, after in pairwise(prompts)]
    uncached = sum(call.prompt_tokens - call.cached_tokens for call in answered)
    new_tokens = count_tokens({"messages": history, "tools": TOOLS})
    return {
        "requests": requests,
        "failed_requests": failed,
        "client_tokens": client_tokens,
        "new_tokens": new_tokens,
        "prompt_tokens": sum(call.prompt_tokens for call in answered),
        "uncached_tokens": uncached,
        "rebilled_tokens": max(0, uncached - new_tokens),
        "summary_calls": sum(call.is_gateways_own for call in answered),
        "stalled_turns": stalled,
        "refused_by_provider": sum(call.status != 200 for call in provider.calls),
        "orphans": sum(call.orphans for call in provider.calls),
        "largest_prompt": max(call.prompt_tokens for call in provider.calls),
        "stable_prefix": sum(shares) / max(1, len(shares)),
        "statuses": {str(status): statuses.count(status) for status in sorted(set(statuses))},
    }


async def ask_facts(name: str, talk: Talk) -> dict[str, Any]:
    """Holds a talk, asks its questions, and returns how many answers were in front of the model.

    Raises:
        BenchmarkFailed: the gateway does not start.
    """
    provider = Provider(FACTS_WINDOW)
    history: list[Mapping[str, Any]] = []
    reply = {"role": "assistant", "content": ACKNOWLEDGED}
    failed = reached = prompt_tokens = 0
    async with open_gateway(name, provider) as client:
        for text in talk.said:
            history.append({"role": "user", "content": text})
            status, message = await client.ask(history, reply)
            failed += status != 200
            history.append(dict(message))
        summary_calls = sum(call.is_gateways_own for call in provider.calls if call.status == 200)
        for question in talk.questions:
            provider.calls.clear()
            status, _ = await client.ask([*history, {"role": "user", "content": question.text}], reply)
            failed += status != 200
            answers = [call for call in provider.calls if call.status == 200 and not call.is_gateways_own]
            if status == 200 and answers:
                reached += judge(question, answers[-1].messages).is_answered
                prompt_tokens += answers[-1].prompt_tokens
    return {
        "questions": len(talk.questions),
        "reached": reached,
        "share": reached / len(talk.questions),
        "failed_requests": failed,
        "requests": len(talk.said) + len(talk.questions),
        "summary_calls": summary_calls,
        "prompt_tokens": prompt_tokens / len(talk.questions),
    }
