"""What a turn costs after so many messages: `python -m tests.benchmarks.flat [--messages 100,1000] [--only WORD]`.

A client that sends only what is new, a gateway process on SQLite and on PostgreSQL, a window of 8,192 tokens. A
conversation is begun over HTTP and grown through the store, with a summary for each hundred messages and a fold over
all but the last few of them; then it goes on over HTTP. CPU time is that of the gateway, the database's apart.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from itertools import accumulate
from statistics import median
from typing import Any, Final

import orjson
from msgspec import structs
from rich.console import Console
from rich.table import Table

from app.conversation.conversation_types import Conversation, LogMessage, Summary
from app.conversation.identity import LinkPosition, compute_links_after_messages, compute_start_position
from app.dialects.body.message import ChatMessage
from app.pipeline.view.user_text import MAX_READ_MESSAGES
from app.store.contract.conversations import ConversationQuery, LogAppend
from app.store.contract.store import Store
from app.store.store_factory import create_store
from tests.benchmarks.messages import words
from tests.benchmarks.processes import Cores, Cpu, Process, settled
from tests.benchmarks.targets import POSTGRES, SQLITE, Running, free_port, is_available, running

WINDOW_TOKENS: Final = 8_192
SIZES: Final = (100, 1_000, 10_000, 100_000)
CHUNK_MESSAGES, CHUNK_TOKENS, CHUNK_CHARS = 100, 40, 160
UNFOLDED: Final = 5
"""Summaries after the fold."""
TAIL: Final = 20
"""Messages after the last summary."""
MESSAGE_WORDS, MESSAGE_TOKENS = 35, 50
VOCABULARY: Final = [f"word{number}" for number in range(20_000)]
COMMONNESS: Final = list(accumulate(1 / rank for rank in range(1, len(VOCABULARY) + 1)))
"""Words as often as in a language (Zipf's law): a few are in most messages, most in a few."""
BATCH: Final = 5_000
WARMING, TURNS, CONVERSATIONS = 4, 9, 2
"""So few turns that no summary falls due meanwhile, nor is made ahead."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.flat", description=__doc__)
    parser.add_argument("--messages", default=",".join(map(str, SIZES)), help="sizes of the conversations")
    parser.add_argument("--only", default="", help="sqlite or postgres")
    options = parser.parse_args()
    sizes = [int(size) for size in options.messages.split(",")]
    table = Table(title=f"A turn, appended; window of {WINDOW_TOKENS:,} tokens", title_justify="left")
    for column in ("store", "messages", "CPU µs", "database µs", "p50 ms", "CPU ×", "p50 ×", "slowest first turn ms"):
        table.add_column(column, justify="left" if column == "store" else "right")
    for target in (SQLITE, POSTGRES):
        if is_available(target) and options.only in target.name:
            for row in _rows(target.store, sizes):
                table.add_row(*row)
    Console().print(table)
    return 0


def _rows(store: str, sizes: Sequence[int]) -> Iterator[tuple[str, ...]]:
    cores = Cores.of_this_machine()
    with ExitStack() as stack:
        port = free_port()
        upstream = stack.enter_context(Process(["tests.benchmarks.upstream", str(port)], core=cores.driving))
        upstream.read_line()
        target = replace(SQLITE if store == "sqlite" else POSTGRES, window_tokens=WINDOW_TOKENS)
        gateway = stack.enter_context(running(target, port, cores))
        first: dict[str, float] = {}
        for size in sizes:
            costs = [_measured(gateway, f"flat-{size}-{number}", size) for number in range(CONVERSATIONS)]
            cost = {name: min(one[name] for one in costs) for name in costs[0]}
            first = first or cost
            ratios = (f"{cost[name] / first[name]:.2f}" for name in ("cpu", "p50"))
            figures = (f"{cost['cpu']:,.0f}", f"{cost['database']:,.0f}", f"{cost['p50']:.2f}")
            yield (store, f"{size:,}", *figures, *ratios, f"{cost['slowest_first']:,.0f}")


def _measured(gateway: Running, name: str, size: int) -> dict[str, float]:
    """CPU of gateway and database in microseconds, and milliseconds, of a turn after `size` messages."""
    _ask(gateway.port, name, "begin")
    asyncio.run(_grown(gateway.database_url, name, size))
    # A log that comes at once is read for user text in its first turns, so many messages in each.
    warming = []
    for number in range(WARMING + size // MAX_READ_MESSAGES):
        begun = time.perf_counter()
        _ask(gateway.port, name, f"warm {number}")
        warming.append((time.perf_counter() - begun) * 1000)
    before = settled(gateway.process.pid)
    database_before = Cpu.of(gateway.database_pid) if gateway.database_pid else None
    milliseconds = []
    for number in range(TURNS):
        begun = time.perf_counter()
        status = _ask(gateway.port, name, f"turn {number}")
        milliseconds.append((time.perf_counter() - begun) * 1000)
        assert status == "summarized" or size <= CHUNK_MESSAGES, status
    cpu = settled(gateway.process.pid).since(before) / TURNS * 1e6
    database = 0.0
    if gateway.database_pid and database_before:
        database = Cpu.of(gateway.database_pid).since(database_before) / TURNS * 1e6
    return {"cpu": cpu, "database": database, "p50": median(milliseconds), "slowest_first": max(warming)}


def _ask(port: int, conversation: str, text: str) -> str:
    """Say one thing; the answer's `context_status`."""
    body = {"model": "scripted-1-0", "messages": [{"role": "user", "content": f"{text} {prose(text)}"}]}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        data=orjson.dumps(body),
        headers={
            "content-type": "application/json",
            "authorization": "Bearer sk-benchmark",
            "x-conversation-id": conversation,
            "x-context-mode": "append",
        },
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(orjson.loads(answer.read())["context_status"])


def prose(seed: int | str) -> str:
    return " ".join(random.Random(seed).choices(VOCABULARY, cum_weights=COMMONNESS, k=MESSAGE_WORDS))


async def _grown(url: str, name: str, size: int) -> None:
    store = create_store(url, timeout_seconds=60)
    await store.open()
    await grow(store, name, size)
    await store.close()


async def grow(store: Store, name: str, size: int) -> None:
    """Append messages to a client's conversation until there are `size`, and index them; then summaries of all but the
    last `TAIL`."""
    (conversation,) = await store.list_conversations(tenant=None, query=ConversationQuery(limit=2, external_id=name))
    await store.index_messages(conversation, await store.read_log(conversation, 0, conversation.head_seq + 1))
    ends: dict[int, LogMessage] = {}
    while conversation.head_seq + 1 < size:
        entries = _entries(conversation, min(BATCH, size - conversation.head_seq - 1))
        last = entries[-1]
        after = structs.replace(
            conversation,
            head_seq=last.seq,
            head_link=last.link,
            head_skeleton=last.skeleton,
            head_tokens_total=last.tokens_total,
        )
        await store.append(LogAppend(after, conversation.head_seq, entries))
        await store.index_messages(after, entries)
        ends.update({entry.seq + 1: entry for entry in entries if (entry.seq + 1 + TAIL) % CHUNK_MESSAGES == 0})
        conversation = after
    await _summarize(store, conversation, ends)


def _entries(before: Conversation, count: int) -> list[LogMessage]:
    seqs = range(before.head_seq + 1, before.head_seq + 1 + count)
    messages = [
        ChatMessage.from_body({"role": "assistant" if seq % 2 else "user", "content": prose(seq)}) for seq in seqs
    ]
    positions = compute_links_after_messages(messages, LinkPosition(before.head_link, before.head_skeleton, False))
    return [
        LogMessage(
            seq,
            message,
            position.link,
            position.skeleton_link,
            position.is_in_skeleton,
            MESSAGE_TOKENS,
            before.head_tokens_total + MESSAGE_TOKENS * number,
            True,
            False,
        )
        for number, (seq, message, position) in enumerate(zip(seqs, messages, positions, strict=True), start=1)
    ]


async def _summarize(store: Store, conversation: Conversation, ends: dict[int, LogMessage]) -> None:
    tenant, root = conversation.tenant, conversation.root
    fence = await store.claim_lease(root=root, key="range:flat", holder="flat", seconds=600)
    assert fence is not None
    start, made = compute_start_position(tenant).link, list[Summary]()
    from_seq, from_link = 0, start
    for end, last in sorted(ends.items()):
        made.append(_chunk(conversation, last, from_seq=from_seq, from_link=from_link))
        from_seq, from_link = end, last.link
    if len(made) > UNFOLDED:
        folded = made[:-UNFOLDED]
        last = ends[folded[-1].to_seq]
        names = tuple(chunk.id for chunk in folded)
        made.append(_chunk(conversation, last, from_seq=0, from_link=start, folds=names))
    for chunk in made:
        await store.add_summary(tenant=tenant, root=root, summary=chunk, fence=fence)
    await store.release_lease(fence)


def _chunk(conversation: Conversation, last: LogMessage, **fields: Any) -> Summary:
    return Summary(
        id=f"chunk_{conversation.id}_{last.seq}_{len(fields)}",
        conversation_id=conversation.id,
        to_seq=last.seq + 1,
        to_link=last.link,
        text=words(CHUNK_CHARS, seed=3),
        tokens=CHUNK_TOKENS,
        tokens_total=last.tokens_total,
        anchor_seq=None,
        anchor_tokens=0,
        through_turn=(last.seq + 1) // 2,
        kind="model",
        model="upstream/scripted-1-0",
        prompt_version="flat",
        created_at=datetime.now(UTC),
        **fields,
    )


if __name__ == "__main__":
    sys.exit(main())
