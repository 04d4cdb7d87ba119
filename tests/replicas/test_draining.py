"""Replicas that are told to stop under load: they say so first, finish what runs, and lose nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import httpx
import pytest
import pytest_asyncio

from tests.faults.checking import Checking
from tests.faults.journal import Journal
from tests.faults.load import Load, Manners
from tests.faults.servers import Instance
from tests.replicas.fleet import Fleet, answer_to, fleet, fresh_name, reached
from tests.support.gateway import user

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

DRAIN_SECONDS = 3
LEAVE_SECONDS = 1.5
"""Of the probes of a balancer, several fall into it."""
PROBE_SECONDS = 0.1
LOOK_SECONDS = 0.05
PATIENCE_SECONDS = 30
LONG = user("one two three four five six")
MANNERS = Manners(talks=3, turns=(3, 10), words=(10, 30), pause_seconds=0.05, hangs_up=0.0, reads_slowly=0.0, tries=1)
"""Nobody tries again: a request that fails is lost to its client."""


async def status_of(client: httpx.AsyncClient, gateway: Instance) -> int:
    """What its probe says; 0: nobody is there."""
    try:
        return (await client.get(f"{gateway.address}/readyz", headers={"connection": "close"})).status_code
    except httpx.TransportError:
        return 0


async def statuses_until_refused(gateway: Instance) -> list[int]:
    """What its probe says, one after the other."""
    seen = [200]
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as other, asyncio.timeout(PATIENCE_SECONDS):
        while seen[-1]:
            await asyncio.sleep(LOOK_SECONDS)
            seen.append(await status_of(other, gateway))
    return seen


async def balanced(f: Fleet) -> None:
    """Send new connections where probes succeed, as a load balancer does."""
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
        while True:
            statuses = await asyncio.gather(*(status_of(client, one) for one in f.stage.gateways))
            ready = [one.target for one, status in zip(f.stage.gateways, statuses, strict=True) if status == 200]
            f.stage.balancer.targets[:] = ready
            await asyncio.sleep(PROBE_SECONDS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    folder = Path(tmp_path_factory.mktemp("draining"))
    async with fleet(folder, server={"drain_seconds": DRAIN_SECONDS, "leave_seconds": LEAVE_SECONDS}) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def replicas(shared: Fleet) -> Fleet:
    """All of them up."""
    shared.model.forget()
    for one in shared.stage.gateways:
        if not one.is_running:
            await one.start()
    return shared


async def test_what_runs_is_finished_and_nothing_new_is_taken(replicas: Fleet) -> None:
    model, doomed, name = replicas.model, replicas.stage.gateways[0], fresh_name()
    model.word_seconds = 0.1
    await replicas.say(0, [user("Before")], conversation=name)
    streaming = asyncio.ensure_future(replicas.post(0, [LONG], conversation=name, stream=True))
    await reached(model.turns, 2)
    model.answer_gate = gate = asyncio.Event()
    whole = asyncio.ensure_future(replicas.post(0, [user("Whole")], headers={"idempotency-key": "whole"}))
    await reached(model.turns, 3)
    stopping = asyncio.ensure_future(doomed.stop())
    seen = await statuses_until_refused(doomed)
    assert seen[-2:] == [503, 0]
    assert set(seen) <= {200, 503, 0}
    assert not whole.done()
    gate.set()
    answers = await asyncio.gather(streaming, whole)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].text.endswith("data: [DONE]\n\n")
    assert await stopping == 0
    assert [text.strip() for _, text in await replicas.log(1, name)][-1] == answer_to(LONG["content"])
    again = await replicas.post(2, [user("Whole")], headers={"idempotency-key": "whole"})
    assert again.headers["idempotent-replayed"] == "true"
    assert (await replicas.rows("SELECT count(*) FROM leases WHERE expires_at > now()"))[0][0] == 0


async def test_whoever_takes_longer_than_the_drain_is_told_to_come_again(replicas: Fleet) -> None:
    replicas.model.answer_gate = asyncio.Event()
    waiting = asyncio.ensure_future(replicas.post(0, [user("Too long")]))
    await reached(replicas.model.turns, 1)
    assert await replicas.stage.gateways[0].stop() == 0  # though the model never answers
    answer = await waiting
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


async def test_all_workers_of_a_server_say_that_they_leave_before_one_does(tmp_path: Path) -> None:
    server = {"drain_seconds": DRAIN_SECONDS, "leave_seconds": LEAVE_SECONDS, "workers": 2}
    async with fleet(tmp_path, count=1, server=server) as made:
        (doomed,) = made.stage.gateways
        stopping = asyncio.ensure_future(doomed.stop())
        seen = await statuses_until_refused(doomed)
        assert sorted(set(seen), reverse=True) == [503, 200, 0]
        assert seen[seen.index(503) :].count(200) == 0
        assert await stopping == 0


async def test_a_rolling_restart_behind_a_balancer_that_probes_fails_no_request(
    replicas: Fleet, tmp_path: Path
) -> None:
    replicas.model.word_seconds = 0.01
    journal = Journal(tmp_path / "journal.jsonl")
    load = Load(replicas.stage.base_url, journal, seed=1, manners=MANNERS)
    async with asyncio.TaskGroup() as group:
        probing = group.create_task(balanced(replicas))
        running = group.create_task(load.run())
        for gateway in replicas.stage.gateways:
            before = load.figures.acknowledged
            assert await gateway.stop() == 0
            await gateway.start()
            async with asyncio.timeout(30):
                targets = replicas.stage.balancer.targets
                while load.figures.acknowledged < before + 5 or gateway.target not in targets:  # noqa: ASYNC110 - a count
                    await asyncio.sleep(PROBE_SECONDS)
        load.stop()
        await running
        async with aiohttp.ClientSession() as session:
            verdict = await Checking(replicas.stage.base_url, session).all(journal.talks)
        probing.cancel()
    journal.close()
    assert journal.outcomes.keys() == {"acknowledged"}, journal.outcomes
    assert verdict.is_clean, verdict
    assert (await replicas.stage.verify()).faults == []
