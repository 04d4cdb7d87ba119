"""What encryption at rest costs: `python -m tests.benchmarks.encryption`. Medians over many runs, one thread."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from msgspec.structs import replace

from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.search_terms import extract_terms
from app.store.contract.conversations import LogAppend
from app.store.contract.store import Store
from app.store.encryption.cipher import Cipher
from app.store.encryption.encrypted_store import encrypt_store
from tests.store.example_logs import conversation_of, grown, log_of
from tests.support.memory_store import MemoryStore

RUNS: Final = 200
WORDS: Final = " ".join(f"word{number}" for number in range(180))
"""Some 1,300 characters: 300 tokens."""
META: Final = {"model": "m", "usage": {"prompt_tokens": 1}, "sent": {"operations": ["x" * 40] * 25}}
STATE: Final = {"views": {"additive:8192": {"operations": ["x" * 40] * 25}}, "calibration": {"m": [1, 2]}}


def stores() -> dict[str, Store]:
    return {
        "plain": MemoryStore(clock=_now),
        "no key": encrypt_store(MemoryStore(clock=_now), Cipher({}, None)),
        "encrypted": encrypt_store(MemoryStore(clock=_now), Cipher({"k": bytes(32)}, "k")),
    }


async def microseconds(work: Callable[[], Awaitable[object]], runs: int = RUNS) -> float:
    taken = []
    for _ in range(runs):
        start = time.perf_counter()
        await work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e6


async def filled(store: Store, messages: int) -> tuple[Conversation, list[LogMessage]]:
    lines = [f"{'user' if number % 2 == 0 else 'assistant'} {number} {WORDS}" for number in range(messages)]
    log = log_of("tenant", lines)
    log = [replace(entry, meta=META) if entry.seq % 2 else entry for entry in log]
    conversation = conversation_of("tenant", log, state=STATE)
    await store.append(LogAppend(conversation, -1, log, creates_conversation=True))
    return conversation, log


async def a_turn(store: Store, kept: Conversation, log: list[LogMessage]) -> None:
    """The store's part of a turn: the conversation, the last message of its log, its tail, and what is added."""
    found = await store.find_conversation(tenant="tenant", conversation_id=kept.id)
    assert found is not None
    await store.find_link_matches(tenant="tenant", root=kept.root, links=[found.head_link])
    await store.read_log(found, found.head_seq - 15, found.head_seq + 1)
    more = log_of("tenant", [f"user {WORDS}", f"assistant {WORDS}"], after=log[-1])
    more = [replace(entry, seq=found.head_seq + 1 + place) for place, entry in enumerate(more)]
    await store.append(LogAppend(grown(replace(found, state=STATE), more), found.head_seq, more))


async def main() -> None:
    print(f"{'':12}{'a turn':>12}{'read 100':>12}{'read 2,000':>12}{'search 2,000':>14}   (milliseconds)")
    for name, store in stores().items():
        conversation, log = await filled(store, 2000)
        if store.is_fully_searchable:
            await store.index_messages(conversation, log)
        terms = extract_terms("word17 1234")
        columns = [
            await microseconds(lambda: store.read_log(conversation, 0, 100)),  # noqa: B023 - awaited at once
            await microseconds(lambda: store.read_log(conversation, 0, 2000), 20),  # noqa: B023
            await microseconds(
                lambda: store.search_log(conversation, terms=terms, from_seq=0, before_seq=2000, limit=8),  # noqa: B023
                10,
            ),
            await microseconds(lambda: a_turn(store, conversation, log)),  # noqa: B023
        ]
        read, read_all, search, turn = (value / 1000 for value in columns)
        print(f"{name:12}{turn:12.3f}{read:12.3f}{read_all:12.2f}{search:14.1f}")


def _now() -> datetime:
    return datetime.now(UTC)


if __name__ == "__main__":
    asyncio.run(main())
