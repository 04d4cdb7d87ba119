"""Pages of items: however they are asked for, together they are the whole list, and each costs the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversation.conversation_types import Conversation, LogMessage, Summary
from app.conversations.history.conversation_records import ConversationRecords
from app.conversations.items.item_building import build_items
from app.conversations.items.item_reader import ItemQuery, ItemReader
from app.errors import ItemNotFound
from app.pipeline.turn.resolved_request import STORED_INSTRUCTIONS
from app.store.contract.conversations import LogAppend
from tests.conversations.items.example_logs import LOGS, placed
from tests.store.example_logs import Clock, begin, branch_off, chunk_over, conversation_of, lease_on, log_of
from tests.support.memory_store import MemoryStore

TENANT = "tenant"
TOLD = ['{"role":"system","content":"Be kind."}', '{"role":"system","content":"Be brief."}']


class NotingStore(MemoryStore):
    """Notes how many messages are read, and how many texts of summaries."""

    def __init__(self) -> None:
        super().__init__(clock=Clock())
        self.read_messages = 0
        self.read_texts = 0

    async def find_summaries(self, **wanted: Any) -> list[Summary]:
        found = await super().find_summaries(**wanted)
        self.read_texts += sum(bool(chunk.text) for chunk in found)
        return found

    async def read_log(self, conversation: Conversation, from_seq: int, to_seq: int) -> list[LogMessage]:
        found = await super().read_log(conversation, from_seq, to_seq)
        self.read_messages += len(found)
        return found


def listing_of(store: MemoryStore) -> ItemReader:
    return ItemReader(store, ConversationRecords(store))


async def kept(store: MemoryStore, log: list[LogMessage], *, instructions: int = 0) -> Conversation:
    conversation = conversation_of(TENANT, log, state={STORED_INSTRUCTIONS: TOLD[:instructions]})
    await store.append(LogAppend(conversation, -1, log, creates_conversation=True))
    return conversation


async def summarize(store: MemoryStore, conversation: Conversation, log: list[LogMessage], ends: list[int]) -> int:
    """Summaries up to these ends; how many ranges that makes, since a range is known by the links at its ends."""
    lease = await lease_on(store, conversation.root)
    ranges = set()
    for from_seq, to_seq in zip([0, *ends], ends, strict=False):
        chunk = chunk_over(conversation, log, from_seq, to_seq)
        ranges.add((chunk.from_link, chunk.to_link))
        await store.add_summary(tenant=TENANT, root=conversation.root, summary=chunk, fence=lease)
    return len(ranges)


async def all_pages(listing: ItemReader, conversation: Conversation, *, limit: int, descending: bool) -> list[Any]:
    found: list[Any] = []
    after = None
    while True:
        page, has_more = await listing.list_items(conversation, ItemQuery(limit, descending, after))
        found += page
        assert len(page) == limit or not has_more
        if not has_more:
            return found
        after = page[-1]["id"]


@given(LOGS, st.integers(0, 2), st.lists(st.integers(1, 12), unique=True, max_size=3), st.integers(1, 7), st.booleans())
def test_pages_of_any_size_in_any_order_are_the_whole_list(
    bodies: list[Any], instructions: int, ends: list[int], limit: int, descending: bool
) -> None:
    async def play() -> None:
        log = placed(bodies)
        store = MemoryStore(clock=Clock())
        conversation = await kept(store, log, instructions=instructions)
        ranges = await summarize(store, conversation, log, sorted(end for end in ends if end <= len(log)))
        listing = listing_of(store)
        whole, has_more = await listing.list_items(conversation, ItemQuery(10_000, descending=False))
        assert not has_more
        ids = [item["id"] for item in whole]
        assert len(set(ids)) == len(ids)
        assert [item["id"] for item in whole if item["type"] != "compaction"][instructions:] == [
            item["id"] for entry in log for item in build_items(entry)
        ]
        assert sum(item["type"] == "compaction" for item in whole) == ranges
        paged = await all_pages(listing, conversation, limit=limit, descending=descending)
        assert (paged[::-1] if descending else paged) == whole
        for item in whole:
            assert await listing.find_item(conversation, item["id"]) == item

    asyncio.run(play())


async def test_a_summary_stands_behind_the_last_item_that_it_covers() -> None:
    store = MemoryStore(clock=Clock())
    conversation, log = await begin(store, TENANT, ["user a", "assistant b", "user c", "assistant d", "user e"])
    await summarize(store, conversation, log, [2, 4])
    found, _ = await listing_of(store).list_items(conversation, ItemQuery(100, descending=False))
    assert [item["type"] for item in found] == ["message"] * 2 + ["compaction"] + ["message"] * 2 + [
        "compaction",
        "message",
    ]
    assert found[2]["encrypted_content"] == found[2]["text"]


async def test_longer_and_longer_summaries_each_stand_where_they_reach() -> None:
    store = MemoryStore(clock=Clock())
    conversation, log = await begin(store, TENANT, ["user a", "assistant b", "user c", "assistant d"])
    lease = await lease_on(store, conversation.root)
    for to_seq in (2, 4):
        chunk = chunk_over(conversation, log, 0, to_seq)
        await store.add_summary(tenant=TENANT, root=conversation.root, summary=chunk, fence=lease)
    found, _ = await listing_of(store).list_items(conversation, ItemQuery(100, descending=False))
    assert [item["type"] for item in found] == ["message", "message", "compaction"] * 2


async def test_a_branch_has_the_items_that_it_shares_under_the_same_ids() -> None:
    store = MemoryStore(clock=Clock())
    parent, log = await begin(store, TENANT, ["user a", "assistant b", "user c"])
    branch, _ = await branch_off(store, parent, log, 1, ["user d"])
    listing = listing_of(store)
    ids = []
    for conversation in (parent, branch):
        found, _ = await listing.list_items(conversation, ItemQuery(100, descending=False))
        ids.append([item["id"] for item in found])
    assert ids[0][:2] == ids[1][:2]
    assert ids[0][2] != ids[1][2]
    with pytest.raises(ItemNotFound):
        await listing.find_item(branch, ids[0][2])


@pytest.mark.parametrize("after", ["msg_1", "sum_" + "0" * 32, "msg_" + "0" * 34, "msg_i0000" + "0" * 24])
async def test_an_item_that_is_not_there_begins_no_page(after: str) -> None:
    store = MemoryStore(clock=Clock())
    conversation, _ = await begin(store, TENANT, ["user a"])
    with pytest.raises(ItemNotFound):
        await listing_of(store).list_items(conversation, ItemQuery(10, after=after))


@pytest.mark.parametrize("descending", [False, True])
async def test_a_page_reads_no_more_messages_of_ten_thousand_than_of_a_hundred(descending: bool) -> None:
    reads = []
    for count in (100, 10_000):
        store = NotingStore()
        conversation = await kept(store, placed([{"role": "user", "content": str(at)} for at in range(count)]))
        listing = listing_of(store)
        page, _ = await listing.list_items(conversation, ItemQuery(20, descending))
        store.read_messages = 0
        await listing.list_items(conversation, ItemQuery(20, descending, after=page[-1]["id"]))
        reads.append(store.read_messages)
    assert reads[0] == reads[1] <= 45


async def test_a_page_reads_the_texts_of_those_summaries_only_that_it_shows() -> None:
    store = NotingStore()
    log = log_of(TENANT, [f"{'assistant' if at % 2 else 'user'} {at}" for at in range(100)])
    conversation = await kept(store, log)
    await summarize(store, conversation, log, list(range(10, 101, 10)))
    page, _ = await listing_of(store).list_items(conversation, ItemQuery(15))
    shown = [item["text"] for item in page if item["type"] == "compaction"]
    assert len(shown) == 2
    assert all(shown)
    assert store.read_texts == 2
