from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from itertools import count

from app.compaction.compaction_job import CompactionJob
from app.compaction.compactor import Compactor
from app.compaction.summarizer.summary_generator import SummaryGenerator
from app.compaction.summary_maker import SummaryMaker
from app.context.count.token_counter import TokenCounter
from app.context.count.tokenizers import load_tokenizer
from app.context.count.vocabulary import find_encoding_name
from app.context.plan.log_rounds import LogTail
from app.context.plan.outline import SummaryRange
from app.context.plan.policy import ContextPolicy
from app.conversation.identity import compute_family_root, compute_start_position
from app.simulator.options_and_faults import SimulatorOptions
from app.simulator.simulated_provider import SimulatedProvider
from app.simulator.simulator import Simulator
from app.store.leases import LeaseKeeper
from app.upstream.routing.router import Router
from app.upstream.routing.routes import ConfiguredDeployment, ModelRoute
from tests.compaction.simulated_compaction import TENANT, OneWindow, log_of, talk
from tests.support.memory_store import MemoryStore


@cache
def counter_for(encoding: str) -> TokenCounter:
    return TokenCounter(load_tokenizer(encoding))


async def test_a_long_history_is_summarized_once_by_two_processes_on_one_store() -> None:
    ids = count(1)
    simulator = Simulator(
        SimulatorOptions(),
        counter_for=lambda model: counter_for(find_encoding_name(model)),
        clock=lambda: 1_800_000_000.0,
        new_id=lambda: str(next(ids)),
    )
    provider = SimulatedProvider(simulator)
    store = MemoryStore(clock=lambda: datetime(2026, 11, 21, tzinfo=UTC))

    async def no_time(seconds: float) -> None:
        await asyncio.sleep(0)

    def process(name: str) -> Compactor:
        router = Router(
            {"*": ModelRoute((ConfiguredDeployment("simulator"),))},
            {"simulator": provider},
            sleep=no_time,
            clock=lambda: 0.0,
            random=lambda: 0.5,
        )
        maker = SummaryMaker(
            store=store,
            leases=LeaseKeeper(store, name, sleep=no_time, clock=lambda: 0.0, random=lambda: 0.5),
            summary_generator=SummaryGenerator(router=router, windows=OneWindow(8192), counter_for=counter_for),
            counter_for=counter_for,
        )
        return Compactor(maker=maker)

    log = log_of(talk(60))
    job = CompactionJob(
        tenant=TENANT,
        root=compute_family_root(TENANT, log[0].link),
        conversation_id="conv_1",
        log_tail=LogTail(log, after=None),
        start_link=compute_start_position(TENANT).link,
        ranges=[SummaryRange(0, 60), SummaryRange(60, 120)],
        policy=ContextPolicy(),
        window=8192,
        model="sim-8k",
        encoding="o200k_base",
    )
    ours, theirs = await asyncio.gather(process("a").compact(job), process("b").compact(replace(job)))
    assert len(simulator.recorded_requests) == 2
    assert [chunk.id for chunk in ours.summaries] == [chunk.id for chunk in theirs.summaries]
    assert {chunk.kind for chunk in ours.summaries} == {"model"}
    assert "Number40 has code 326760" in ours.summaries[1].text
    assert all(counter_for("o200k_base").count(chunk.text) <= 512 for chunk in ours.summaries)
