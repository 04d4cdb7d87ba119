"""The real application in this process, over a store that fails on demand, and the client's end of a connection."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar, cast
from unittest.mock import patch

from starlette.routing import Router

from app.api.edge.headers import RequestIdMiddleware
from app.api.edge.request_reader import BodyLimitMiddleware
from app.api.edge.unknown_paths import CHAT_PATH, MESSAGES_PATH
from app.assembly import gateway as gateway_module
from app.assembly.gateway import Gateway, new_request_id
from app.conversations.history.conversation_records import ConversationRecords
from app.conversations.items.item_reader import ItemQuery, ItemReader
from app.errors import GatewayError, StoreUnavailable
from app.settings import load_settings
from tests.live import TEST_DEPENDENCIES
from tests.simulation.provider import ScriptedProvider
from tests.simulation.virtual_time import VirtualTimeLoop
from tests.support.memory_store import MemoryStore

WINDOWS = {"w2k": 2000, "w4k": 4000, "w8k": 8000}
SETTINGS = {
    "database": {"url": "memory://"},
    "providers": {"upstream": {"base_url": "http://upstream/v1", "api_key": "sk-upstream"}},
    "models": {name: {"provider": "upstream", "context_window": tokens} for name, tokens in WINDOWS.items()},
    "policies": {"additive": {"token_floor": 500, "buffer_turns": 2}},
    "telemetry": {"metrics": False, "recent_requests": 0, "request_log": False},
}
KEY: Final = "Bearer sk-app"
Result = TypeVar("Result")


class ConnectionLost(Exception):
    """The process was killed, or the answer broke off."""


class FaultyStore:
    """A store that suspends around each operation, as one behind a network does.

    `down_until`: until this time every operation fails; half of those that write have written before.
    `is_dead`: the process was killed; nothing that is left of it reaches the store. `countdown`: it is killed before or
    after so many operations.
    """

    def __init__(self, store: MemoryStore, loop: VirtualTimeLoop, rng: random.Random) -> None:
        self._store = store
        self._loop = loop
        self._rng = rng
        self.is_fully_searchable = store.is_fully_searchable
        self.down_until = 0.0
        self.is_dead = False
        self.died = asyncio.Event()
        self.countdown = 0

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)
        call = operation if name.startswith("_") else self._wrap(operation)
        setattr(self, name, call)
        return call

    def _wrap(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._suspend()
            fails = self._loop.seconds < self.down_until
            if fails and self._rng.random() < 0.5:
                raise StoreUnavailable("The simulated database is away.")
            result = await operation(*args, **kwargs)
            await self._suspend()
            if fails:
                raise StoreUnavailable("The simulated database went away before it answered.")
            return result

        return call

    async def _suspend(self) -> None:
        await asyncio.sleep(0)
        self.countdown -= 1
        if self.countdown == 0:
            self.is_dead = True
            self.died.set()
        if self.is_dead:
            raise asyncio.CancelledError


@dataclasses.dataclass
class Answer:
    """What a client got: `text` is the body, or the events of a stream as far as they came."""

    status: int
    headers: dict[str, str]
    text: str
    is_whole: bool = True

    @property
    def body(self) -> dict[str, Any]:
        return dict(json.loads(self.text))

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = [line[6:] for line in self.text.split("\n") if line.startswith("data: {")]
        return [json.loads(line) for line in lines]


class SimulatedGateway:
    """The application of one process, which can be killed and started anew over what the store keeps."""

    def __init__(self, loop: VirtualTimeLoop, provider: ScriptedProvider, seed: int) -> None:
        self._loop = loop
        self._provider = provider
        self._rng = random.Random(seed)
        self._stored = MemoryStore(clock=loop.now)
        self._store = FaultyStore(self._stored, loop, self._rng)
        self._owned: set[asyncio.Task[Any]] = set()
        self._is_serving = asyncio.Event()
        self.kills = 0

    async def start(self) -> None:
        """Starts a process over what is stored. Returns when it serves."""
        down_until = self._store.down_until
        self._store = FaultyStore(self._stored, self._loop, self._rng)
        self._store.down_until = down_until
        dependencies = dataclasses.replace(
            TEST_DEPENDENCIES, create_store=lambda *_, **__: self._store, now=self._loop.now
        )
        settings = load_settings(environ={}, arguments={(name,): value for name, value in SETTINGS.items()})

        with patch.object(gateway_module, "build_providers", lambda _: {"upstream": self._provider}):
            self._gateway = Gateway(settings, None, dependencies)
        # The endpoint without FastAPI, whose other routes take longer to build than thirty turns.
        limited = BodyLimitMiddleware(self._answer, settings.server.body_limit_bytes, self._gateway.body_budget)
        application: Any = Router(lifespan=self._gateway.run_lifespan)
        application.mount("", RequestIdMiddleware(limited, new_request_id))
        self._application = application
        self._records = ConversationRecords(self._gateway.store)
        self._item_reader = ItemReader(self._gateway.store, self._records)
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        outcome: asyncio.Future[str] = self._loop.create_future()

        async def send(message: dict[str, Any]) -> None:
            if not outcome.done():
                outcome.set_result(message["type"])

        self._messages.put_nowait({"type": "lifespan.startup"})
        self._lifespan = self._own(self._application({"type": "lifespan"}, self._messages.get, send))
        if await outcome != "lifespan.startup.complete":
            await asyncio.sleep(1)  # the store is away: who runs the process starts it again
            await self.start()
        self._is_serving.set()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        endpoints = {CHAT_PATH: self._gateway.chat_endpoint, MESSAGES_PATH: self._gateway.messages_endpoint}
        await endpoints[scope["path"]](scope, receive, send)

    def protect(self, task: asyncio.Task[Any]) -> None:
        """Marks a task as the simulation's own: a kill does not end it."""
        self._owned.add(task)

    def stop_store(self, seconds: float) -> None:
        """Makes every operation fail for that time."""
        self._store.down_until = self._loop.seconds + seconds

    def end_faults(self) -> None:
        self._store.down_until = 0.0

    async def kill(self, suspensions: int) -> None:
        """Ends the process after so many suspensions in the store, or after ten seconds: no write of it arrives any
        more. Starts the next one."""
        self._store.countdown = suspensions
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._store.died.wait(), 10)
        self._is_serving.clear()
        self._store.is_dead = True
        self.kills += 1
        for _ in range(3):
            for task in asyncio.all_tasks(self._loop) - self._owned:
                task.cancel()
            await asyncio.sleep(0)
        await self.start()

    async def close(self) -> None:
        self._messages.put_nowait({"type": "lifespan.shutdown"})
        with contextlib.suppress(asyncio.CancelledError):
            await self._lifespan

    def _own(self, work: Any) -> asyncio.Task[Any]:
        return asyncio.ensure_future(work)

    async def read_items(self, conversation_id: str) -> list[dict[str, Any]] | None:
        """Returns the items of a conversation, as their endpoint does. None: it cannot be read."""

        async def read() -> list[dict[str, Any]]:
            caller = await self._gateway.authenticator.authenticate({"authorization": KEY}, "read")
            conversation = await self._records.find_conversation(caller, conversation_id)
            return (await self._item_reader.list_items(conversation, ItemQuery(limit=10_000, descending=False)))[0]

        return await self._run(read())

    async def delete_conversation(self, conversation_id: str) -> None:
        """Deletes a conversation, as its endpoint does."""

        async def delete() -> None:
            caller = await self._gateway.authenticator.authenticate({"authorization": KEY}, "manage")
            await self._records.delete_conversation(caller, conversation_id, with_branches=False)

        await self._run(delete())

    async def _run(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """Runs work of the process. None: it failed, or the process was killed."""
        await self._is_serving.wait()
        task = self._own(work)
        await asyncio.wait({task})
        if task.cancelled() or isinstance(task.exception(), GatewayError):
            return None
        return cast(Result, task.result())

    async def post(
        self, body: bytes, headers: Mapping[str, str], hang_up_after: int | None = None, *, path: str = CHAT_PATH
    ) -> Answer:
        """Asks for an answer. With `hang_up_after` the client leaves after so many pieces of the body,
        with 0 at some time within a second.

        Raises:
            ConnectionLost: the process was killed before the answer's end.
        """
        await self._is_serving.wait()
        fields = {"host": "gateway", "content-type": "application/json", "authorization": KEY, **headers}
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
            "client": ("127.0.0.1", 1),
            "server": ("gateway", 80),
        }
        answer, pieces, ended, left = Answer(0, {}, "", is_whole=False), list[bytes](), False, asyncio.Event()
        incoming: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
        store = self._store

        async def receive() -> dict[str, Any]:
            if incoming:
                return incoming.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            nonlocal ended
            await asyncio.sleep(0)
            if left.is_set() or store.is_dead:
                return
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                pieces.append(message.get("body", b""))
                ended = not message.get("more_body", False)
            if hang_up_after and len(pieces) >= hang_up_after and not ended:
                left.set()

        task = self._own(self._application(scope, receive, send))
        if hang_up_after == 0:
            self._loop.call_later(self._rng.random(), left.set)
        await asyncio.wait({task})
        answer.text = b"".join(pieces).decode()
        # The event with `context` is the last of an answer. Who leaves after it has all of it: no server can tell
        # whether `[DONE]`, which it has sent, has arrived.
        answer.is_whole = ended or any("context" in event for event in answer.events)
        if not ended and not left.is_set():
            if not store.is_dead and not task.cancelled() and (error := task.exception()) is not None:
                raise error
            raise ConnectionLost
        return answer


def seed_ids(seed: int) -> None:
    """Makes the application's ids and pauses the same in each run of a seed."""
    gateway_module._id_generator.seed(seed)
    random.seed(seed)
