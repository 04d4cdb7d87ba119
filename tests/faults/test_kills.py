"""A gateway is killed at every stage of a turn and of a compaction; its client asks another one, and loses nothing."""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from tests.faults.proxy import NONE, Fault
from tests.faults.scene import Backend, Scene, scene
from tests.faults.servers import Instance
from tests.live import DONE, Reply, ScriptedUpstream, chunk, completion, serving, usage_chunk
from tests.support.gateway import is_summary, pick_word, user

pytestmark = pytest.mark.timeout(180)

Place = Literal["", "begin", "middle", "end", "summary", "summary's end"]
HEADERS = {"authorization": "Bearer sk-killed"}
LEASE_SECONDS = 1.5
HELD_SECONDS = 60.0
LATE_SECONDS = 0.5
"""By this the end of an answer is late, so that the question is stored before it."""
UNHEARD = Fault(stall_after=0)
"""What the database is asked for is done, and nobody hears of it."""
UNDONE = Fault(swallows=True)
"""It is never asked."""


@dataclass(frozen=True)
class Stage:
    """Where the model stands still (or is late), and what becomes of the line to the database then."""

    place: Place
    stream: bool = False
    fault: Fault | None = None


TURN = (
    Stage("begin"),
    Stage("middle", stream=True),
    Stage("end", fault=UNDONE),
    Stage("end", stream=True, fault=UNHEARD),
)
COMPACTION = (
    Stage("summary", stream=True),
    Stage("summary's end", fault=UNDONE),
    Stage("summary's end", stream=True, fault=UNHEARD),
)

AT_THE_FILE = (Stage("end", fault=UNDONE), Stage("summary's end", stream=True, fault=UNDONE))
"""What SQLite may do otherwise than PostgreSQL: the other stages are the gateway's own."""
thorough = pytest.mark.skipif(
    "CONCERTINA_TEST_CHAOS" not in os.environ, reason="takes long and finds nothing else; runs with `make chaos`"
)


class Model:
    """Answers at once, or stands still where it is told to."""

    def __init__(self) -> None:
        self.place: Place = ""
        self.reached = asyncio.Event()

    def stand_still(self, place: Place = "") -> None:
        self.place = place
        self.reached = asyncio.Event()

    def __call__(self, body: dict[str, Any]) -> Reply:
        if is_summary(body):
            summary = completion(f"They spoke of many things, one after the other, such as {pick_word(body)}.")
            return self._at("summary", "summary's end", summary)
        text = f"Answer to {body['messages'][-1]['content'][:24]}"
        tokens = len(str(body)) // 4
        if not body.get("stream"):
            return self._at("begin", "end", completion(text, prompt_tokens=tokens))
        pieces = [chunk({"role": "assistant", "content": ""}), *(chunk({"content": f"{one} "}) for one in text.split())]
        last = [chunk({}, "stop"), usage_chunk(tokens), DONE]
        if self.place == "middle":
            self.reached.set()
            return Reply(pieces=[*pieces, HELD_SECONDS])
        if self.place == "end":
            self.reached.set()
            return Reply(pieces=[*pieces, LATE_SECONDS, *last])
        return self._at("begin", "", Reply(pieces=[*pieces, *last]))

    def _at(self, beginning: Place, end: Place, reply: Reply) -> Reply:
        if not self.place or self.place not in {beginning, end}:
            return reply
        self.reached.set()
        reply.gate = asyncio.Event()
        if self.place == end:
            asyncio.get_running_loop().call_later(LATE_SECONDS, reply.gate.set)
        return reply


@dataclass
class World:
    """Two gateways, of which one is killed and started again at a time."""

    stage: Scene
    model: Model
    client: httpx.AsyncClient
    turns: list[str] = field(default_factory=list)
    numbers: Any = field(default_factory=itertools.count)
    conversation: str = ""

    async def ask(self, gateway: Instance, question: str, *, stream: bool = False, retry: int = 0) -> httpx.Response:
        return await self.client.post(
            f"{gateway.address}/v1/chat/completions",
            json={"model": "m", "conversation": "c", "messages": [user(question)], "stream": stream},
            headers={**HEADERS, "x-stainless-retry-count": str(retry)},
        )

    async def kill_at(self, stage: Stage) -> None:
        """Kill one gateway there, ask the other: every turn is there, once."""
        doomed, other = self.stage.gateways
        question, asking = await self._until(stage, doomed)
        with ExitStack() as mending:
            if stage.fault is not None:
                await asyncio.sleep(LATE_SECONDS / 2)
                self._cut(stage.fault, mending)
                await asyncio.sleep(LATE_SECONDS)
            assert not asking.done(), asking.result().text
            await doomed.kill()
        self.model.stand_still()
        starting = asyncio.ensure_future(doomed.start())
        await asyncio.gather(asking, return_exceptions=True)
        answer = await self.ask(other, question, stream=stage.stream, retry=1)
        assert answer.status_code == 200, answer.text
        assert "[DONE]" in answer.text or not stage.stream
        assert 'data: {"error"' not in answer.text
        self.turns.append(question)
        await self.check(other)
        await starting
        self.stage.gateways.reverse()

    async def _until(self, stage: Stage, gateway: Instance) -> tuple[str, asyncio.Future[httpx.Response]]:
        """Ask until the model stands where it is to: not every turn needs a summary."""
        while True:
            number = next(self.numbers)
            question = f"Question {number}: " + " ".join(f"word{number}x{one}" for one in range(60))
            self.model.stand_still(stage.place)
            asking = asyncio.ensure_future(self.ask(gateway, question, stream=stage.stream))
            reaching = asyncio.ensure_future(self.model.reached.wait())
            await asyncio.wait({asking, reaching}, return_when=asyncio.FIRST_COMPLETED)
            if reaching.done():
                return question, asking
            reaching.cancel()
            assert asking.result().status_code == 200, asking.result().text
            self.turns.append(question)

    def _cut(self, fault: Fault, mending: ExitStack) -> None:
        """Let no write through. SQLite is locked by somebody else: what is not done cannot be heard of either."""
        line = self.stage.to_database
        if line is not None:
            line.fail(fault)
            mending.callback(line.fail, NONE)
            return
        connection = sqlite3.connect(self.stage.folder / "kept.db", isolation_level=None, timeout=5)
        mending.callback(connection.close)
        connection.execute("BEGIN IMMEDIATE")

    async def check(self, gateway: Instance) -> None:
        said = await self._log(gateway)
        asked = [text for role, text, _ in said if role == "user"]
        broken_off = [text for role, text, status in said if status == "incomplete"]
        assert list(dict.fromkeys(asked)) == self.turns
        assert len(asked) - len(self.turns) <= len(broken_off)
        answered = [
            one[1]
            for one, following in itertools.pairwise(said)
            if one[0] == "user" and following[0] == "assistant" and following[2] == "completed"
        ]
        assert answered == self.turns

    async def _log(self, gateway: Instance) -> list[tuple[str, str, str]]:
        """Role, text and status of each message."""
        base = f"{gateway.address}/v1/conversations"
        if not self.conversation:
            listed = (await self.client.get(f"{base}?limit=1", headers=HEADERS)).json()
            self.conversation = listed["data"][0]["id"]
        url = f"{base}/{self.conversation}/items?order=asc&limit=100"
        page = (await self.client.get(url, headers=HEADERS)).json()
        assert not page["has_more"]
        messages = [item for item in page["data"] if item["type"] == "message"]
        return [(item["role"], item["content"][0]["text"], item["status"]) for item in messages]


@asynccontextmanager
async def world(folder: Path, backend: Backend) -> AsyncIterator[World]:
    model = Model()
    async with (
        serving(ScriptedUpstream(default=model), lifespan="off") as address,
        scene(
            folder,
            backend=backend,
            count=2,
            upstream=f"{address}/v1",
            compaction={"lease_seconds": LEASE_SECONDS},
            policies={"additive": {"token_floor": 1, "prepare_ratio": 1.0, "blocking": True}},
            database={"timeout_seconds": 10},
        ) as stage,
        httpx.AsyncClient(timeout=30) as client,
    ):
        yield World(stage, model, client)


@pytest.mark.parametrize(
    ("backend", "stages"),
    [
        pytest.param("postgres", TURN, id="turn-postgres"),
        pytest.param("postgres", COMPACTION, id="compaction-postgres"),
        pytest.param("sqlite", AT_THE_FILE, id="both-sqlite"),
        pytest.param("sqlite", TURN, id="turn-sqlite", marks=thorough),
        pytest.param("sqlite", COMPACTION, id="compaction-sqlite", marks=thorough),
    ],
)
async def test_a_gateway_killed_at_any_stage_loses_and_doubles_nothing(
    tmp_path: Path, backend: Backend, stages: tuple[Stage, ...]
) -> None:
    async with world(tmp_path, backend) as w:
        for stage in stages:
            if backend == "postgres" or stage.fault is not UNHEARD:
                await w.kill_at(stage)
        verified = await w.stage.verify()
        assert verified.faults == []
        assert verified.chunks > 0 or stages is TURN
