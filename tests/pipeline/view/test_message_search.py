"""What is searched for is indexed first, once, and only as far as the search goes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from app.conversation.conversation_types import Conversation, LogMessage
from app.errors import StoreUnavailable
from app.pipeline.view.message_search import BATCH_BYTES, FIRST_BATCH_MESSAGES, MessageSearch
from tests.store.example_logs import Clock, begin, fresh_tenant, go_on
from tests.support.memory_store import MemoryStore

LINES = [f"{'assistant' if at % 2 else 'user'} word{at} common" for at in range(150)]


class Watched(MemoryStore):
    """Remembers what was indexed; can be away."""

    def __init__(self) -> None:
        super().__init__(clock=Clock())
        self.indexed: list[int] = []
        self.works_for = 99

    async def index_messages(self, conversation: Conversation, entries: Sequence[LogMessage]) -> None:
        if self.works_for == 0:
            raise StoreUnavailable("away")
        self.works_for -= 1
        await asyncio.sleep(0)
        self.indexed += [entry.seq for entry in entries]
        await super().index_messages(conversation, entries)


async def test_a_question_finds_what_was_not_yet_indexed_and_indexes_nothing_twice() -> None:
    store = Watched()
    finding = MessageSearch(store)
    conversation, log = await begin(store, fresh_tenant(), LINES)
    found = await finding.find_messages(conversation, "What was word7?", from_seq=0, before_seq=100, limit=3)
    assert [entry.message.seq for entry in found] == [7, 99, 98, 6, 8, 97, 5, 9, 96]
    assert store.indexed == list(range(100))
    longer, _ = await go_on(store, conversation, log, ["user more"])
    await finding.find_messages(longer, ["7", "word"], from_seq=0, before_seq=130, limit=3)
    assert store.indexed == list(range(130))
    assert finding.find_indexed_end(longer) == 130


async def test_another_process_goes_on_from_what_the_conversation_says() -> None:
    store = Watched()
    conversation, _ = await begin(store, fresh_tenant(), LINES, indexed_before=120)
    finding = MessageSearch(store)
    assert finding.find_indexed_end(conversation) == 120
    await finding.find_messages(conversation, "common", from_seq=0, before_seq=140, limit=3)
    assert store.indexed == list(range(120, 140))


async def test_without_anything_to_ask_for_nothing_is_indexed() -> None:
    store = Watched()
    conversation, _ = await begin(store, fresh_tenant(), LINES)
    finding = MessageSearch(store)
    assert await finding.find_messages(conversation, "And then?", from_seq=0, before_seq=100, limit=3) == []
    assert await finding.find_messages(conversation, "word7", from_seq=50, before_seq=50, limit=3) == []
    assert await finding.find_messages(conversation, "word7", from_seq=500, before_seq=600, limit=3) == []
    assert store.indexed == []


async def test_indexing_that_broke_off_is_taken_up_again() -> None:
    store = Watched()
    store.works_for = 1
    conversation, _ = await begin(store, fresh_tenant(), LINES)
    finding = MessageSearch(store)
    with pytest.raises(StoreUnavailable):
        await finding.index_messages(conversation, 1000)
    assert finding.find_indexed_end(conversation) == FIRST_BATCH_MESSAGES
    store.works_for = 99
    await finding.index_messages(conversation, 1000)
    assert store.indexed == list(range(150))


async def test_who_searches_at_once_shares_the_indexing() -> None:
    store = Watched()
    conversation, _ = await begin(store, fresh_tenant(), LINES)
    finding = MessageSearch(store)
    await asyncio.gather(*(finding.index_messages(conversation, end) for end in (150, 70, 150)))
    assert store.indexed == list(range(150))


async def test_long_messages_are_indexed_a_few_at_a_time() -> None:
    store = Watched()
    store.works_for = 3
    long = "x" * (BATCH_BYTES // 4 - 100)
    conversation, _ = await begin(
        store, fresh_tenant(), [f"user {long}{at}" for at in range(FIRST_BATCH_MESSAGES + 10)]
    )
    with pytest.raises(StoreUnavailable):
        await MessageSearch(store).index_messages(conversation, 1000)
    assert len(store.indexed) == FIRST_BATCH_MESSAGES + 4 * 2
