"""Words that are erased, or corrected in a summary, between the reading and the writing get into no summary: on each
way that a summary is made, and where only one of the checks can tell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace as copied
from functools import partial
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from app.compaction.compaction_job import CompactionJob, CompactionResult, build_summary_sources
from app.compaction.compactor import Compactor
from app.compaction.summary_maker import DELETED_PARTS, SummaryMaker
from app.context.plan.outline import SummaryRange
from app.conversation.conversation_types import Conversation, LogMessage, Summary
from app.dialects.body.message import ChatMessage
from app.store.contract.conversations import LogAppend, WriteConflict
from app.store.leases import LeaseKeeper
from tests.compaction.simulated_compaction import COUNT, NOW, TENANT, Scene, job_for, log_of, rewrite, talk
from tests.store.example_logs import branch_of, chunk_over, conversation_of
from tests.support.memory_store import MemoryStore

SECRET = "xylograph7781"
TURNS = 10
ERASED = ChatMessage.from_body({"role": "user", "content": "[erased]"})


class StoredTalk:
    """A stored conversation whose first message holds the secret, and a compactor in another process than its rival."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.scene = Scene(is_open=is_open)
        self.store = MemoryStore(clock=lambda: NOW)
        self.waits = asyncio.Event()
        leases = LeaseKeeper(self.store, "ours", sleep=self._sleep, clock=lambda: 0.0, random=lambda: 0.5)
        self.compactor = Compactor(
            maker=SummaryMaker(
                store=self.store,
                leases=leases,
                summary_generator=self.scene.summarizer,
                counter_for=lambda encoding: COUNT,
                clock=lambda: NOW,
            )
        )
        bodies = talk(TURNS)
        bodies[0] = {"role": "user", "content": f"{bodies[0]['content']} My secret is {SECRET}."}
        self.log = log_of(bodies)
        self.conversation = conversation_of(TENANT, self.log)

    async def _sleep(self, seconds: float) -> None:
        self.waits.set()
        await asyncio.sleep(0)

    async def store_log(self) -> StoredTalk:
        await self.store.append(LogAppend(self.conversation, -1, self.log, creates_conversation=True))
        return self

    async def read_conversation(self) -> Conversation:
        found = await self.store.find_conversation(tenant=TENANT, conversation_id=self.conversation.id)
        assert found is not None
        return found

    def job(self, *ranges: SummaryRange, **fields: Any) -> CompactionJob:
        named = {"conversation": self.conversation, "conversation_id": self.conversation.id, **fields}
        return job_for(self.log, *ranges, root=self.conversation.root, **named)

    async def erase(self, *, meta: Mapping[str, Any] | None = None, message: ChatMessage = ERASED) -> None:
        await self.store.redact_messages(
            await self.read_conversation(), [replace(self.log[0], message=message, meta=meta)]
        )

    async def hold_elsewhere(self, job: CompactionJob) -> Callable[[], Awaitable[None]]:
        """Another process holds the lease of the job's first range; what gives it back."""
        (spot, *_) = build_summary_sources(job)
        lease = await self.store.claim_lease(root=job.root, key=spot.lease_key, holder="another process", seconds=60)
        assert lease is not None
        return lambda: self.store.release_lease(lease)

    async def keep(self, chunk: Summary) -> Summary:
        lease = await self.store.claim_lease(
            root=self.conversation.root, key="a-key", holder="another process", seconds=60
        )
        assert lease is not None
        await self.store.add_summary(tenant=TENANT, root=self.conversation.root, summary=chunk, fence=lease)
        return chunk

    async def read_chunks(self) -> list[Summary]:
        return await self.store.find_summaries(
            tenant=TENANT, root=self.conversation.root, path=self.conversation.lineage_with_self
        )


Compact = Callable[[Compactor, CompactionJob], Awaitable[CompactionResult]]
WAYS = pytest.mark.parametrize(
    "compact", [Compactor.compact, partial(Compactor.compact, is_ahead=True)], ids=["when needed", "ahead"]
)


def is_without_result(world: StoredTalk, result: CompactionResult) -> bool:
    return not result.summaries and world.scene.router.calls == []


async def run_after_waiting(
    world: StoredTalk,
    work: Callable[[Compactor, CompactionJob], Awaitable[Any]],
    job: CompactionJob,
    change: Callable[[], Awaitable[Any]],
) -> Any:
    """What comes of a job that waits for the lease of its range while something is changed."""
    give_back = await world.hold_elsewhere(job)
    working = asyncio.ensure_future(work(world.compactor, job))
    await world.waits.wait()
    await change()
    await give_back()
    return await working


@WAYS
async def test_a_message_that_was_erased_while_its_range_waited_is_not_summarized(compact: Compact) -> None:
    world = await StoredTalk().store_log()
    # Not said in the message itself: only the conversation's marks tell.
    assert is_without_result(world, await run_after_waiting(world, compact, world.job(), world.erase))


@WAYS
async def test_a_message_that_lost_more_words_while_its_range_waited_is_not_summarized(compact: Compact) -> None:
    world = await StoredTalk().store_log()
    part = ChatMessage.from_body({"role": "user", "content": f"Only {SECRET} is left of it. " * 20})
    await world.erase(message=part, meta={DELETED_PARTS: ["name"]})
    world.log = list(await world.store.read_log(world.conversation, 0, 99))

    async def erase_the_rest() -> None:
        await world.erase(meta={DELETED_PARTS: ["name", "content"]})

    # Marked before and after: only the message itself tells.
    job = world.job(conversation=await world.read_conversation())
    assert is_without_result(world, await run_after_waiting(world, compact, job, erase_the_rest))


@WAYS
async def test_a_message_that_was_erased_in_the_trunk_is_not_summarized_for_a_branch(compact: Compact) -> None:
    world = await StoredTalk().store_log()
    branch, whole, _ = branch_of(world.conversation, world.log, 2 * TURNS - 1, ["user on"])
    job = world.job(conversation=replace(branch, head_seq=whole[-2].seq), conversation_id=branch.id)
    assert is_without_result(world, await run_after_waiting(world, compact, job, world.erase))


@WAYS
async def test_a_summary_that_was_corrected_while_its_fold_waited_is_not_folded(compact: Compact) -> None:
    world = await StoredTalk().store_log()
    text = f"They told that the secret is {SECRET}. " * 20
    folded = [
        await world.keep(
            replace(chunk_over(world.conversation, world.log, start, start + TURNS, text=text), tokens=400)
        )
        for start in (0, TURNS)
    ]
    job = world.job(SummaryRange(0, 2 * TURNS, tuple(chunk.id for chunk in folded)), available_summaries=folded)

    async def correct() -> None:
        corrected = replace(folded[0], text="Nothing was told.", kind="edited", revision=2)
        await world.store.revise_summary(tenant=TENANT, root=job.root, summary=corrected)

    assert is_without_result(world, await run_after_waiting(world, compact, job, correct))


async def test_a_mechanical_summary_is_not_written_anew_from_what_was_read_before_an_erasure() -> None:
    world = await StoredTalk().store_log()
    job = world.job()
    there = replace(chunk_over(world.conversation, world.log, 0, 2 * TURNS), kind="mechanical")
    await world.keep(there)

    async def erase_and_summarize_again() -> None:
        await world.erase()
        await world.keep(replace(there, id="another"))

    async def write_again(compactor: Compactor, job: CompactionJob) -> Summary:
        return await rewrite(compactor, job, there)

    with pytest.raises(WriteConflict):
        await run_after_waiting(world, write_again, job, erase_and_summarize_again)
    assert world.scene.router.calls == []
    assert [chunk.text for chunk in await world.read_chunks()] == [there.text]


async def test_who_waits_in_vain_for_a_range_is_not_told_what_was_erased_meanwhile() -> None:
    world = await StoredTalk().store_log()
    job = world.job(wait_seconds=0)
    await world.erase()
    await world.hold_elsewhere(job)
    assert is_without_result(world, await world.compactor.compact(job))


@WAYS
async def test_a_summary_whose_message_was_erased_while_it_was_written_is_used_by_nobody(compact: Compact) -> None:
    world = await StoredTalk(is_open=False).store_log()
    working = asyncio.ensure_future(compact(world.compactor, world.job()))
    await world.scene.router.asked(1)
    await world.erase()
    world.scene.router.gate.set()
    assert (await working).summaries == ()
    assert await world.read_chunks() == []


async def test_who_knows_of_an_erasure_does_not_join_the_summary_that_was_begun_before_it() -> None:
    world = await StoredTalk(is_open=False).store_log()
    before = asyncio.ensure_future(world.compactor.compact(world.job()))
    await world.scene.router.asked(1)
    await world.erase()
    known: list[LogMessage] = await world.store.read_log(world.conversation, 0, 99)
    job = copied(world.job(conversation=await world.read_conversation()), log_tail=job_for(known).log_tail)
    after = asyncio.ensure_future(world.compactor.compact(job))
    await asyncio.sleep(0)
    world.scene.router.gate.set()
    assert (await before).summaries == ()
    (chunk,) = (await after).summaries
    assert SECRET in orjson.dumps(world.scene.router.calls[0]).decode()
    assert SECRET not in orjson.dumps(world.scene.router.calls[1]).decode()
    assert SECRET not in chunk.text
    assert await world.read_chunks() == [chunk]
