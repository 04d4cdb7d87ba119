"""Lines to the model and to clients that refuse, hang, break, dribble and garble: turns go on, nothing stays open."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from tests.chaos.breaking import LINES
from tests.chaos.sampling import tasks_of
from tests.faults.checking import Checking
from tests.faults.journal import Journal
from tests.faults.load import Load, Manners
from tests.faults.proxy import Fault
from tests.faults.scene import LEASE_SECONDS, Scene, scene
from tests.faults.servers import open_files, resident_bytes

pytestmark = pytest.mark.timeout(180)

FAULT_SECONDS, END_SECONDS = 0.6, 8.0
TO_CLIENTS = (Fault(bytes_per_second=2_000), Fault(piece_bytes=3), Fault(reset_after=400), Fault(stall_after=400))
WARM_UP_TURNS = 60
"""Tokenizers are loaded when they are needed."""
FILES, MEGABYTES = 12, 60
"""How many more files, and how much more memory, may be in use after the faults than before: pools keep connections."""


async def at_rest(session: aiohttp.ClientSession, stage: Scene) -> None:
    """Wait until nothing goes on behind requests."""
    async with asyncio.timeout(10):
        while any([await tasks_of(session, one) for one in stage.gateways]):  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.1)


async def acknowledged(load: Load, more: int) -> None:
    """Wait until so many more turns are."""
    before = load.figures.acknowledged
    async with asyncio.timeout(30):
        while load.figures.acknowledged < before + more:  # noqa: ASYNC110 - it is counted elsewhere
            await asyncio.sleep(0.05)


async def test_bad_lines_lose_nothing_and_leave_nothing_open(tmp_path: Path) -> None:
    manners = Manners(talks=8, turns=(3, 10), pause_seconds=0.02, hangs_up=0.15, reads_slowly=0.1, tries=24)
    async with (
        scene(tmp_path, backend="sqlite", count=1) as stage,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
    ):
        (gateway,) = stage.gateways
        journal = Journal(tmp_path / "journal.jsonl")
        try:
            load = Load(stage.base_url, journal, seed=1, manners=manners)
            async with asyncio.TaskGroup() as group:
                running = group.create_task(load.run())
                await acknowledged(load, WARM_UP_TURNS)
                files, memory = open_files(gateway.pid), resident_bytes(gateway.pid)
                for line, faults in ((stage.to_model, LINES), (stage.balancer, TO_CLIENTS)):
                    for fault in faults:
                        line.fail(fault)
                        await asyncio.sleep(FAULT_SECONDS)
                    line.fail()
                await acknowledged(load, 10)
                await load.end(running, within_seconds=END_SECONDS)
            await asyncio.sleep(LEASE_SECONDS)
            checking = Checking(stage.base_url, session)
            await checking.all(journal.talks)
            await checking.settle(journal.talks[-8:], seconds=10)
            assert checking.verdict.is_clean, checking.verdict
            assert {"hung_up", "acknowledged"} < journal.outcomes.keys()
            await at_rest(session, stage)
            assert open_files(gateway.pid) <= files + FILES
            assert resident_bytes(gateway.pid) <= memory + MEGABYTES * 1_000_000
            assert (await stage.verify()).faults == []
        finally:
            journal.close()
