"""What is broken during a run, drawn from a seed: mostly gateways killed, now and then database and model."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from tests.faults.journal import Journal
from tests.faults.proxy import NONE, Fault, Proxy
from tests.faults.scene import Scene
from tests.faults.servers import Instance

BESIDE_KILLS: Final = 0.6
"""How many other faults there are for each kill."""
LONGEST_FAULT_SECONDS: Final = 4.0
LINES: Final = (
    Fault(latency_seconds=0.1),
    Fault(bytes_per_second=20_000),
    Fault(piece_bytes=7),
    Fault(reset_after=300),
    Fault(stall_after=300),
    Fault(refuses=True),
    Fault(swallows=True),
    Fault(
        garbage=b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n{"choices": [{"mess'
    ),
)
"""How the line to the model fails."""
DATABASE_LINES: Final = (
    Fault(latency_seconds=0.03),
    Fault(reset_after=200),
    Fault(stall_after=200),
    Fault(refuses=True),
)


@dataclass(slots=True)
class Broken:
    """How often what was broken."""

    kills: int = 0
    restart_seconds: list[float] = field(default_factory=list)
    others: dict[str, int] = field(default_factory=dict)


class Breaking:
    """Breaks a scene at random moments for a while, and mends everything at its end."""

    def __init__(self, scene: Scene, journal: Journal, *, seed: int, kills: int, seconds: float) -> None:
        self._scene = scene
        self._journal = journal
        self._chance = random.Random(f"breaking/{seed}")
        self._kills = kills
        self._seconds = seconds
        self.broken = Broken()
        others: list[Callable[[], Awaitable[None]]] = [self._model_line, self._model_line, self._stop_gateway]
        others += [self._pause_gateway]
        if scene.database is not None:
            others += [self._crash_database, self._pause_database, self._database_line, self._cut_database]
        self._others = others

    @property
    def _up(self) -> list[Instance]:
        """The gateways that can be broken now."""
        return [one for one in self._scene.gateways if one.is_up]

    async def run(self) -> None:
        """Kill so often in that time, and break other things meanwhile."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._kill_all())
            group.create_task(self._break_others())
        self._scene.to_model.fail(NONE)

    async def _kill_all(self) -> None:
        moments = sorted(self._chance.uniform(0, self._seconds) for _ in range(self._kills))
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for moment in moments:
                await asyncio.sleep(max(0.0, began + moment - asyncio.get_running_loop().time()))
                while not self._up:  # noqa: ASYNC110 - nobody tells when a process is up
                    await asyncio.sleep(0.1)
                victim = self._chance.choice(self._up)
                self._note("kill", gateway=victim.name)
                self.broken.kills += 1
                await victim.kill()
                group.create_task(self._again(victim, self._chance.uniform(0, 2)))

    async def _again(self, gateway: Instance, after_seconds: float) -> None:
        await asyncio.sleep(after_seconds)
        while True:
            try:
                self.broken.restart_seconds.append(await gateway.start())
                return
            except RuntimeError as error:
                # A gateway may refuse to start while its database is away; whoever runs it tries again.
                self._note("no_start", gateway=gateway.name, why=str(error)[-300:])
                await gateway.kill()
                await asyncio.sleep(1)

    async def _break_others(self) -> None:
        count = round(self._kills * BESIDE_KILLS)
        for _ in range(count):
            await asyncio.sleep(self._seconds / count * self._chance.uniform(0.2, 1.2))
            await self._chance.choice(self._others)()

    def _note(self, what: str, **facts: object) -> None:
        self._journal.write(what, **facts)

    def _counted(self, what: str, **facts: object) -> None:
        self.broken.others[what] = self.broken.others.get(what, 0) + 1
        self._note(what, **facts)

    async def _model_line(self) -> None:
        fault = self._chance.choice(LINES)
        await self._line("model_line", self._scene.to_model, fault)

    async def _database_line(self) -> None:
        assert self._scene.to_database is not None
        async with self._disturbed():
            await self._line("database_line", self._scene.to_database, self._chance.choice(DATABASE_LINES))

    async def _line(self, what: str, line: Proxy, fault: Fault) -> None:
        self._counted(what, fault=str(fault))
        line.fail(fault)
        await asyncio.sleep(self._chance.uniform(0.5, LONGEST_FAULT_SECONDS))
        line.fail(NONE)

    async def _cut_database(self) -> None:
        assert self._scene.to_database is not None
        async with self._disturbed():
            self._counted("database_cut")
            self._scene.to_database.cut()

    async def _crash_database(self) -> None:
        database = self._scene.database
        assert database is not None
        async with self._disturbed():
            self._counted("database_crash")
            await asyncio.to_thread(database.crash)
            await asyncio.sleep(self._chance.uniform(0, 2))
            await asyncio.to_thread(database.restart)

    async def _pause_database(self) -> None:
        database = self._scene.database
        assert database is not None
        async with self._disturbed():
            self._counted("database_pause")
            database.pause()
            await asyncio.sleep(self._chance.uniform(0.2, LONGEST_FAULT_SECONDS))
            database.resume()

    async def _stop_gateway(self) -> None:
        if len(self._up) > 1:
            victim = self._chance.choice(self._up)
            self._counted("stop", gateway=victim.name)
            await victim.stop()
            await self._again(victim, 0)

    async def _pause_gateway(self) -> None:
        """One stands still for longer than its leases last, and then goes on as if nothing had been."""
        if not self._up:
            return
        victim = self._chance.choice(self._up)
        self._counted("pause", gateway=victim.name)
        with contextlib.suppress(ProcessLookupError):
            victim.tell(signal.SIGSTOP)
            await asyncio.sleep(self._chance.uniform(0.5, 2 * LONGEST_FAULT_SECONDS))
            victim.tell(signal.SIGCONT)

    @asynccontextmanager
    async def _disturbed(self) -> AsyncIterator[None]:
        scene = self._scene
        scene.database_disturbances += 1
        scene.database_is_disturbed = True
        try:
            yield
        finally:
            # Until connections are made again.
            await asyncio.sleep(0.5)
            scene.database_is_disturbed = False
            scene.database_disturbances += 1
