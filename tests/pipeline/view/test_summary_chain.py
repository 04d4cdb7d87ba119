"""Chains of summaries: remembered from turn to turn, and never other than what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.conversation.conversation_types import Conversation, LogMessage, Summary
from app.pipeline.turn.resolved_request import ResolvedRequest
from app.pipeline.view import summary_chain_cache as chains
from app.pipeline.view.summary_chain_cache import SummaryChain, SummaryChainCache
from app.store.contract.leases import Lease
from tests.store.example_logs import begin, chunk_over, lease_on
from tests.support.memory_store import MemoryStore

MESSAGES_EACH = 4
LINES = [f"{role} {number}" for number in range(60) for role in ("user", "assistant")]


class Counting(MemoryStore):
    """Counts the chunks that are read."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: datetime.now(UTC))
        self.read_chunks = 0

    async def find_summaries(self, **named: Any) -> list[Summary]:
        found = await super().find_summaries(**named)
        self.read_chunks += len(found)
        return found


class Scene:
    """A conversation that is given summaries, and what remembers them."""

    store: Counting
    conversation: Conversation
    log: Sequence[LogMessage]
    fence: Lease
    chains: SummaryChainCache

    @classmethod
    async def set(cls) -> Scene:
        scene = cls()
        scene.store = Counting()
        scene.conversation, scene.log = await begin(scene.store, "tenant", LINES)
        scene.fence = await lease_on(scene.store, scene.conversation.root)
        scene.chains = SummaryChainCache(scene.store)
        return scene

    @property
    def place(self) -> ResolvedRequest:
        return ResolvedRequest(
            conversation=self.conversation,
            creates_conversation=False,
            new_messages=(),
            instructions=(),
            instructions_tokens=0,
            client_messages=None,
        )

    async def add(self, start: int, end: int, *folds: str) -> Summary:
        """A summary of some stretches, counted from 0."""
        chunk = chunk_over(self.conversation, self.log, start * MESSAGES_EACH, end * MESSAGES_EACH, folds=folds)
        await self.store.add_summary(tenant="tenant", root=self.conversation.root, summary=chunk, fence=self.fence)
        return chunk

    async def delete(self, chunk: Summary) -> None:
        await self.store.delete_summary(tenant="tenant", root=self.conversation.root, summary_id=chunk.id)

    async def revise(self, chunk: Summary, text: str) -> None:
        revised = replace(chunk, text=text, revision=chunk.revision + 1)
        await self.store.revise_summary(tenant="tenant", root=self.conversation.root, summary=revised)

    async def remembered(self) -> SummaryChain:
        return await self.chains.read_chain(self.place, is_replacing=False)

    async def stored(self) -> SummaryChain:
        return await SummaryChainCache(self.store).read_chain(self.place, is_replacing=False)

    async def chunks_read(self) -> int:
        before = self.store.read_chunks
        await self.remembered()
        return self.store.read_chunks - before


async def test_a_turn_reads_as_many_summaries_however_many_are_folded() -> None:
    counts = []
    for folded in (5, 25):
        scene = await Scene.set()
        made = [await scene.add(number, number + 1) for number in range(folded)]
        await scene.add(0, folded, *(chunk.id for chunk in made))
        for number in range(folded, folded + 3):
            await scene.add(number, number + 1)
        await scene.remembered()
        counts.append(await scene.chunks_read())
    assert counts == [5, 5]  # three, the fold, and the last one of those that it stands for


async def test_what_others_summarize_and_fold_is_noticed() -> None:
    scene = await Scene.set()
    made = [await scene.add(0, 1)]
    await scene.remembered()
    made += [await scene.add(1, 2), await scene.add(2, 3)]
    assert (await scene.remembered()).summaries == tuple(made)
    fold = await scene.add(0, 2, *(chunk.id for chunk in made[:2]))
    assert (await scene.remembered()).folds == (fold,)


async def test_a_chain_is_read_anew_when_a_fold_goes() -> None:
    scene = await Scene.set()
    first, second, third = [await scene.add(number, number + 1) for number in range(3)]
    await scene.add(0, 2, first.id, second.id)
    await scene.remembered()
    await scene.delete(first)
    chain = await scene.remembered()
    assert (chain.summaries, chain.folds) == ((), ())
    assert third.id in {chunk.id for chunk in (await scene.store.find_summaries(**_all(scene)))}


async def test_a_text_that_was_edited_is_noticed_where_it_is_shown() -> None:
    scene = await Scene.set()
    made = [await scene.add(number, number + 1) for number in range(3)]
    await scene.add(0, 2, made[0].id, made[1].id)
    await scene.remembered()
    await scene.revise(made[2], "Edited.")
    assert (await scene.remembered()).summaries[2].text == "Edited."
    await scene.revise(made[0], "Edited too.")
    chain = await scene.remembered()
    assert not chain.has_verified_all(chain.summaries)
    chain = await scene.chains.read_chain(scene.place, is_replacing=False, bypass_cache=True)
    assert chain.has_verified_all(chain.summaries)
    assert chain.summaries[0].text == "Edited too."
    await scene.revise(chain.summaries[0], "Edited again.")
    chain = await scene.remembered()
    assert chain.has_verified_all(chain.summaries)
    assert chain.summaries[0].text == "Edited again."


async def test_what_stands_behind_a_summary_that_is_gone_is_no_chain() -> None:
    scene = await Scene.set()
    first, second = [await scene.add(number, number + 1) for number in range(2)]
    await scene.delete(first)
    for _ in range(2):
        assert await scene.remembered() == SummaryChain()
    first = await scene.add(0, 1)
    assert (await scene.remembered()).summaries == (first, second)


async def test_only_so_many_summaries_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "MAX_CACHED_CHARS", 3 * chains.SUMMARY_OVERHEAD_CHARS)
    scene = await Scene.set()
    made = [await scene.add(number, number + 1) for number in range(4)]
    await scene.add(0, 4, *(chunk.id for chunk in made))
    await scene.remembered()
    assert await scene.chunks_read() == 5


@given(st.lists(st.tuples(st.sampled_from(["add", "fold", "delete", "revise", "look"]), st.integers(0, 30))))
async def test_remembered_chains_are_those_that_are_stored(steps: list[tuple[str, int]]) -> None:
    scene = await Scene.set()
    for what, number in steps:
        chain = await scene.stored()
        shown = _shown(chain)
        if what == "add" and len(chain.summaries) < 25:
            end = chain.summaries[-1].to_seq // MESSAGES_EACH if chain.summaries else 0
            await scene.add(end, end + 1)
        elif what == "fold" and len(shown) > 1:
            named = shown[: 2 + number % (len(shown) - 1)]
            await scene.add(0, named[-1].to_seq // MESSAGES_EACH, *(chunk.id for chunk in named))
        elif what == "delete" and chain.summaries:
            await scene.delete([*chain.summaries, *chain.folds][number % (len(chain.summaries) + len(chain.folds))])
        elif what == "revise" and shown:
            await scene.revise(shown[number % len(shown)], f"Edited {number}.")
        elif what == "look":
            await scene.remembered()
    found, chain = await scene.remembered(), await scene.stored()
    assert [chunk.id for chunk in found.summaries] == [chunk.id for chunk in chain.summaries]
    assert _shown(found) == _shown(chain)


def _shown(chain: SummaryChain) -> list[Summary]:
    """The last fold, and what it does not stand for."""
    folded_seq = chain.folds[-1].to_seq if chain.folds else 0
    return [*chain.folds[-1:], *(chunk for chunk in chain.summaries if chunk.from_seq >= folded_seq)]


def _all(scene: Scene) -> dict[str, Any]:
    return {"tenant": "tenant", "root": scene.conversation.root, "path": scene.conversation.lineage_with_self}


async def test_a_log_that_is_new_has_the_summaries_that_end_at_their_own_places_in_it() -> None:
    scene = await Scene.set()
    first, second = await scene.add(0, 1), await scene.add(1, 2)
    over = chunk_over(scene.conversation, scene.log, 2 * MESSAGES_EACH, 3 * MESSAGES_EACH)
    elsewhere = replace(over, from_seq=over.from_seq + 1, to_seq=over.to_seq + 1)
    await scene.store.add_summary(tenant="tenant", root=scene.conversation.root, summary=elsewhere, fence=scene.fence)
    start = replace(scene.conversation, id="another", head_seq=-1, chunk_count=0)
    fresh = replace(
        scene.place, conversation=start, creates_conversation=True, new_messages=tuple(scene.log[: 2 * MESSAGES_EACH])
    )
    found = await scene.chains._read_summaries_of_unstored_log(fresh)
    assert found == [first, second]
    longer = replace(fresh, new_messages=tuple(scene.log))
    assert await scene.chains._read_summaries_of_unstored_log(longer) == [first, second]
    ends_there = replace(fresh, new_messages=tuple(scene.log[: 3 * MESSAGES_EACH]))
    assert await scene.chains._read_summaries_of_unstored_log(ends_there) == [first, second]
