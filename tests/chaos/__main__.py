"""`python -m tests.chaos [soak] …`: load on a whole installation, with or without faults, then the books are checked.

Exit status 0 if nothing acknowledged was lost or doubled, no lease is stuck, and what is stored agrees with itself
(`tests.faults.verification`).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any, Final

import aiohttp
import uvloop

from tests.chaos import report
from tests.chaos.breaking import Breaking, Broken
from tests.chaos.sampling import Sampling, tasks_of
from tests.faults.checking import Checking, Verdict
from tests.faults.journal import Journal
from tests.faults.load import Load, Manners
from tests.faults.scene import LEASE_SECONDS, Scene, scene
from tests.faults.servers import open_files

BUILD: Final = Path(__file__).resolve().parents[2] / "build"
CALM_SECONDS: Final = 20.0
"""After the faults: how long clients may still try."""
TOLD_SECONDS: Final = 60.0
SETTLE_SECONDS: Final = 15.0


async def main() -> int:
    options = _options()
    folder = options.out / options.what
    journal = Journal(folder / "journal.jsonl")
    began = time.monotonic()
    async with scene(folder, backend=options.database, count=options.gateways) as stage:
        seconds = options.minutes * 60
        load = Load(
            stage.base_url, journal, seed=options.seed, manners=Manners(talks=options.talks), stores=stage.stores
        )
        breaking = Breaking(stage, journal, seed=options.seed, kills=options.kills, seconds=seconds)
        sampling = Sampling(stage, every_seconds=min(10.0, seconds / 40))
        print(f"{options.what}: {options.minutes:g} min on {options.database}, seed {options.seed}", flush=True)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(load.run())
            taking = group.create_task(sampling.run())
            telling = group.create_task(_tell(load, breaking, journal, began))
            if options.kills:
                await breaking.run()
            else:
                await asyncio.sleep(seconds)
            if options.kills:
                await asyncio.sleep(min(CALM_SECONDS, seconds / 4))
            load.stop()
            await running
            taking.cancel()
            telling.cancel()
        print("checking …", flush=True)
        found = await _check(stage, journal)
        leaks = await _leaks(stage)
        verified = await stage.verify()
        journal.close()
    result = report.of(options, load, breaking.broken, found, verified, leaks, sampling.told(), journal)
    report.write(options.out / f"{options.what}-report", result)
    print(report.markdown(result), flush=True)
    return 0 if result["is_clean"] else 1


async def _check(stage: Scene, journal: Journal) -> Verdict:
    await asyncio.sleep(LEASE_SECONDS)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        checking = Checking(stage.base_url, session)
        await checking.all(journal.talks)
        await checking.settle(journal.talks[-200:], seconds=SETTLE_SECONDS)
    return checking.verdict


async def _leaks(stage: Scene) -> dict[str, Any]:
    """What is still open and under way, once everything has come to rest."""
    await asyncio.sleep(2)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        tasks = {one.name: await tasks_of(session, one) for one in stage.gateways}
    told: dict[str, Any] = {"tasks": tasks, "files": {one.name: open_files(one.pid) for one in stage.gateways}}
    if stage.database is not None:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        told["connections"] = int((await stage.database.rows(sql))[0][0])
    return told


async def _tell(load: Load, breaking: Breaking, journal: Journal, began: float) -> None:
    while True:
        await asyncio.sleep(TOLD_SECONDS)
        print(_line(load, breaking.broken, journal, time.monotonic() - began), flush=True)


def _line(load: Load, broken: Broken, journal: Journal, seconds: float) -> str:
    figures = load.figures
    return (
        f"{seconds / 60:5.1f} min: {figures.acknowledged} turns acknowledged, {figures.given_up} given up, "
        f"{journal.attempts} attempts, {len(journal.talks)} conversations, {broken.kills} kills, {broken.others}"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("chaos", "soak"), default="chaos")
    parser.add_argument("--minutes", type=float, help="how long (chaos: 30, soak: 60)")
    parser.add_argument("--kills", type=int, help="of gateways (chaos: 100, soak: 0)")
    parser.add_argument("--seed", type=int, default=1, help="of what is asked and of what is broken")
    parser.add_argument("--database", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--gateways", type=int, default=3)
    parser.add_argument("--talks", type=int, default=24, help="conversations at a time")
    parser.add_argument("--out", type=Path, default=BUILD, help="folder of journal, logs and report")
    options = parser.parse_args()
    is_soak = options.what == "soak"
    options.minutes = options.minutes if options.minutes is not None else (60 if is_soak else 30)
    options.kills = options.kills if options.kills is not None else (0 if is_soak else 100)
    return options


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
