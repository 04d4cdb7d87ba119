"""Figures of the processes of a run, taken every few seconds: memory, files, background work, size of the database."""

from __future__ import annotations

import asyncio
import contextlib
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import aiohttp

from tests.faults.scene import Scene
from tests.faults.servers import Instance, open_files, resident_bytes

TASKS: Final = re.compile(r"^concertina_background_tasks(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)
WARM_UP_SHARE: Final = 0.2
"""Of a run, at whose beginning memory may grow: caches fill."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A process at a moment."""

    seconds: float
    process: str
    memory_mb: float
    files: int
    tasks: int | None


class Sampling:
    """Samples until it is cancelled."""

    def __init__(self, scene: Scene, *, every_seconds: float) -> None:
        self._scene = scene
        self._every_seconds = every_seconds
        self._began = time.monotonic()
        self.samples: list[Sample] = []
        self.database_mb: list[tuple[float, float]] = []

    async def run(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while True:
                for gateway in self._scene.gateways:
                    with contextlib.suppress(OSError):
                        await self._sample(session, gateway)
                size = await self._database_bytes()
                if size is not None:
                    self.database_mb.append((self._seconds, size / 1e6))
                await asyncio.sleep(self._every_seconds)

    @property
    def _seconds(self) -> float:
        return round(time.monotonic() - self._began, 1)

    async def _sample(self, session: aiohttp.ClientSession, gateway: Instance) -> None:
        memory, files = resident_bytes(gateway.pid) / 1e6, open_files(gateway.pid)
        tasks = await tasks_of(session, gateway)
        self.samples.append(Sample(self._seconds, gateway.name, round(memory, 1), files, tasks))

    async def _database_bytes(self) -> int | None:
        database = self._scene.database
        if database is None:
            return sum(file.stat().st_size for file in self._scene.folder.glob("kept.db*"))
        with contextlib.suppress(OSError, RuntimeError, Exception):
            rows = await database.rows("SELECT pg_database_size(current_database())")
            return int(rows[0][0])
        return None

    def told(self) -> dict[str, Any]:
        """Of each process the medians of the quarters after its warm-up, and how the last compares with the first."""
        by_process: dict[str, list[Sample]] = {}
        for sample in self.samples:
            by_process.setdefault(sample.process, []).append(sample)
        return {
            "processes": {name: _quarters(samples) for name, samples in by_process.items()},
            "database_mb": [round(self.database_mb[0][1], 1), round(self.database_mb[-1][1], 1)]
            if self.database_mb
            else [],
            "samples": [asdict(sample) for sample in self.samples],
        }


def _quarters(samples: Sequence[Sample]) -> dict[str, Any]:
    warm = samples[int(len(samples) * WARM_UP_SHARE) :]
    size = max(1, len(warm) // 4)
    parts = [warm[start : start + size] for start in range(0, size * 4, size) if warm[start : start + size]]
    memory = [statistics.median(one.memory_mb for one in part) for part in parts]
    return {
        "memory_mb": memory,
        "memory_growth": round(memory[-1] / memory[0] - 1, 4) if memory else None,
        "files": [statistics.median(one.files for one in part) for part in parts],
        "tasks": [max((one.tasks or 0 for one in part), default=0) for part in parts],
    }


async def tasks_of(session: aiohttp.ClientSession, gateway: Instance) -> int | None:
    """How much work goes on behind requests; None where nothing answers."""
    try:
        async with session.get(f"{gateway.address}/metrics") as answer:
            found = TASKS.search(await answer.text())
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
    return int(float(found[1])) if found else None
