"""An exception at any line of what runs for ever, or writes for several, harms nobody but its own row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from types import CodeType
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from msgspec.structs import replace

from app.api.admin.probes import build_health_routes
from app.assembly.gateway import Gateway
from app.conversations.erase.retention_sweeper import RetentionSweeper
from app.dialects.usage import TokenUsage
from app.observability.background_loops import BackgroundLoop
from app.observability.metrics import Metrics
from app.observability.overview import MetricsOverview, ProcessInfo
from app.settings import load_settings
from app.store.contract.store import Store
from app.store.contract.usage import UsageQuery
from app.store.leases import LeaseKeeper
from app.store.postgres import append_queue
from app.store.sqlite import jobs, threads
from app.store.store_factory import create_store
from app.store.usage_recorder import UsageRecorder
from migrations.run import prepare_database
from tests.live import TEST_DEPENDENCIES
from tests.store.example_logs import NOON, beginnings
from tests.support.planted_exceptions import PlantedError, list_lines, plant_exception

SECONDS = 5.0
POSTGRES_CODE = list_lines(
    append_queue.AppendQueue._write_batch,
    append_queue.AppendQueue._append_with_retry,
    append_queue.AppendQueue._try_append,
    append_queue._group_by_shape,
    append_queue._derive_shape,
    append_queue._append_statement_arguments,
    append_queue._message_arguments,
)
SHARED_CODE = list_lines(threads.run_batch_in_transaction, threads._run_in_savepoint)
"""What a whole batch depends on: its transaction. If that fails, all of it may fail, but nobody waits for ever."""
SQLITE_CODE = SHARED_CODE + list_lines(
    threads._run_job,
    jobs.write_log_append,
    jobs._insert_conversation,
    jobs._require_lease,
)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    url = f"sqlite+aiosqlite:///{tmp_path / 'a.db'}"
    prepare_database(url, auto_migrate=True)
    return url


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    opened = create_store(url)
    await opened.open()
    yield opened
    await asyncio.wait_for(opened.close(), SECONDS)


async def test_a_batch_loses_nothing_but_the_append_at_fault(store: Store, url: str) -> None:
    reached_lines = 0
    for code, line in SQLITE_CODE if url.startswith("sqlite") else POSTGRES_CODE:
        asked = beginnings(6)
        # The threads of SQLite are hit only if they begin here.
        with plant_exception(code, line, is_armed=False) as plant:
            writer = create_store(url)
            await writer.open()
            plant.is_armed = True
            appends = [asyncio.ensure_future(writer.append(write)) for write in asked]
            outcomes = await asyncio.wait_for(asyncio.gather(*appends, return_exceptions=True), SECONDS)
        await asyncio.wait_for(writer.append(beginnings(1)[0]), SECONDS)
        await asyncio.wait_for(writer.close(), SECONDS)
        reached_lines += plant.was_reached
        if (code, line) in SHARED_CODE:
            continue
        failed = [outcome for outcome in outcomes if outcome is not None]
        assert len(failed) <= 1, (code.co_name, line, failed)
        for write, outcome in zip(asked, outcomes, strict=True):
            after = write.conversation
            found = await store.find_conversation(tenant=after.tenant, conversation_id=after.id)
            assert (found is None) == (outcome is not None), (code.co_name, line, outcome)
    assert reached_lines > 20


async def test_an_append_that_cannot_be_encoded_fails_alone(store: Store) -> None:
    asked = beginnings(6)
    entry = replace(asked[2].messages[0], meta={"x": object()})
    asked[2] = replace(asked[2], messages=[entry])
    asked[4] = replace(asked[4], messages=[replace(asked[4].messages[0], meta={"x": [2**64, -(10**30)]})])
    appends = [asyncio.ensure_future(store.append(write)) for write in asked]
    outcomes = await asyncio.wait_for(asyncio.gather(*appends, return_exceptions=True), SECONDS)
    assert [type(outcome) for outcome in outcomes] == [*(type(None),) * 2, TypeError, *(type(None),) * 3]
    (kept,) = await store.read_log(asked[4].conversation, 0, 1)
    assert kept.meta == {"x": [str(2**64), str(-(10**30))]}


USAGE = TokenUsage(10, 0, 2)


async def test_the_writer_of_usage_lives_and_loses_nothing_but_the_row_at_fault(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = UsageRecorder(store, now=lambda: NOON, flush_seconds=0.001)
    recorder.start()
    names = ["good", "a\0b", "better"]
    for place, tokens in enumerate((1, 2**63, 2)):
        recorder.record_call("tenant", None, names[place], TokenUsage(tokens, 0, 0), 0.5)
    recorder.record_call("tenant", None, "huge", TokenUsage(2**63, 0, 0), 0.5)
    await _wait_until(lambda: not recorder._unwritten)
    recorder.record_call("tenant", None, "later", USAGE, 0.5)
    await _wait_until(lambda: not recorder._unwritten)
    await recorder.flush()  # the writer has taken the row: when it has ended, the row is stored
    stored = {row.model for row in await store.sum_usage(UsageQuery("2026-01-01", "model"))}
    assert stored >= {"good", "better", "later"}
    assert not recorder.writes.is_dead
    assert "a sum of usage cannot be stored" in caplog.text
    await recorder.aclose()


def _loops(store: Store) -> dict[str, tuple[Callable[[], Any], BackgroundLoop, list[tuple[CodeType, int]]]]:
    """By name: starts a loop, the loop, and the lines at which it is hit."""
    metrics, leases = Metrics(), LeaseKeeper(store, "holder", lease_seconds=0.003)
    usage = UsageRecorder(store, now=lambda: NOON, flush_seconds=0.001)
    overview = MetricsOverview(
        metrics, ProcessInfo("1", "memory", False), unix_seconds=lambda: 1.0, sleep=lambda _: asyncio.sleep(0.001)
    )
    sweeper = RetentionSweeper(
        store=store,
        keys=store,
        requests=store,
        leases=LeaseKeeper(store, "sweeper"),
        days=1,
        context_hours=1,
        request_hours=1,
        sweep_seconds=0.001,
        clock=lambda: datetime.now(UTC),
        random=lambda: 0.5,
    )
    usage_lines = list_lines(UsageRecorder.flush, UsageRecorder._flush_and_purge)
    sweep_lines = list_lines(RetentionSweeper.sweep, RetentionSweeper.purge_stray_summaries)
    return {
        "usage": (usage.start, usage.writes, usage_lines),
        "leases": (leases.start, leases.renewals, list_lines(LeaseKeeper._renew_held_leases)),
        "retention": (sweeper.start, sweeper.sweeps, sweep_lines),
        "overview": (overview.start, overview.sampling, list_lines(MetricsOverview.take_sample)),
    }


@pytest.mark.parametrize("name", ["usage", "leases", "retention", "overview"])
@pytest.mark.parametrize("error", [PlantedError, asyncio.CancelledError], ids=["error", "cancelled"])
async def test_a_loop_lives_whatever_line_fails(store: Store, name: str, error: type[BaseException]) -> None:
    lines = _loops(store)[name][2]
    reached_lines = 0
    for code, line in lines:
        start, loop, _ = _loops(store)[name]
        runs = _count_runs(loop)
        with plant_exception(code, line, error) as plant:
            start()
            await _wait_until(lambda runs=runs: len(runs) >= 2)  # type: ignore[misc]
        reached_lines += plant.was_reached
        before = len(runs)
        await _wait_until(lambda runs=runs, before=before: len(runs) > before + 1)  # type: ignore[misc]
        assert not loop.is_dead
        await loop.aclose()
    assert reached_lines


async def test_a_dead_loop_makes_the_process_not_ready() -> None:
    settings = load_settings(environ={}, arguments={("database", "url"): "memory://"})
    gateway = Gateway(settings, dependencies=TEST_DEPENDENCIES)
    await gateway.open()
    application = FastAPI()
    application.include_router(
        build_health_routes(
            gateway.store.check,
            version="1",
            is_stopping=lambda: False,
            list_dead_loops=gateway.list_dead_loops,
        )
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://gateway") as client:
        assert (await client.get("/readyz")).status_code == 200
        task = gateway.usage.writes._task
        assert task is not None
        task.cancel()
        await asyncio.wait([task])
        answer = await client.get("/readyz")
    assert (answer.status_code, answer.content) == (503, b'{"status":"failed","dead_loops":["usage"]}')
    await gateway.aclose()


def _count_runs(loop: BackgroundLoop) -> list[int]:
    runs: list[int] = []
    run_once = loop._run_once

    async def run_and_count() -> None:
        try:
            await run_once()
        finally:
            runs.append(1)

    loop._run_once = run_and_count
    return runs


async def _wait_until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not holds():  # noqa: ASYNC110 - what others do has no event
            await asyncio.sleep(0.002)
