"""Conversations to store in tests: logs written as lines, with the links that real messages have."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from msgspec.structs import replace

from app.conversation.conversation_types import SHARED_THROUGH, Conversation, LogMessage, Summary
from app.conversation.identity import (
    LinkPosition,
    compute_family_root,
    compute_links_after_messages,
    compute_start_position,
    make_conversation_id,
)
from app.dialects.body.message import ChatMessage
from app.store.contract.conversations import LogAppend
from app.store.contract.leases import Lease
from app.store.contract.store import Store

NOON = datetime(2026, 11, 21, 12, 0, 0, 250_000, tzinfo=UTC)
_numbers = itertools.count(1)


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def random_bytes(count: int) -> bytes:
    return next(_numbers).to_bytes(count, "big")


def fresh_tenant() -> str:
    """A tenant of the test's own: nothing is ever cleaned away."""
    return f"tenant-{next(_numbers)}"


def message(line: str) -> ChatMessage:
    """`user hi`, `assistant hello`, `call f` (an assistant's tool call), `result 42`, `assistant` (says nothing)."""
    kind, _, text = line.partition(" ")
    if kind == "call":
        function = {"name": text, "arguments": "{}"}
        return ChatMessage.from_body(
            {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}
        )
    if kind == "result":
        return ChatMessage.from_body({"role": "tool", "tool_call_id": "1", "content": text})
    return ChatMessage.from_body({"role": kind, "content": text})


def log_of(
    tenant: str, lines: Sequence[str], *, after: LogMessage | None = None, imported: bool = False
) -> list[LogMessage]:
    """Log messages that follow `after`. Assistant messages are answers of ours unless they were `imported`."""
    messages = [message(line) for line in lines]
    start = compute_start_position(tenant) if after is None else LinkPosition(after.link, after.skeleton, False)
    answered = after is not None and after.answered
    tokens_total = 0 if after is None else after.tokens_total
    log = []
    for offset, (entry, position) in enumerate(
        zip(messages, compute_links_after_messages(messages, start), strict=True), start=1
    ):
        answered = answered or (entry.role == "assistant" and not imported)
        tokens_total += 7
        log.append(
            LogMessage(
                seq=offset - 1 if after is None else after.seq + offset,
                message=entry,
                link=position.link,
                skeleton=position.skeleton_link,
                in_skeleton=position.is_in_skeleton,
                tokens=7,
                tokens_total=tokens_total,
                answered=answered,
            )
        )
    return log


def conversation_of(tenant: str, log: Sequence[LogMessage], **fields: Any) -> Conversation:
    """A conversation whose log is this."""
    start = compute_start_position(tenant)
    root = compute_family_root(tenant, log[0].link if log else start.link)
    fields = {"id": make_conversation_id(root, random_bytes), "root": root, "encoding": "o200k_base", **fields}
    bare = Conversation(
        tenant=tenant,
        head_seq=-1,
        head_link=start.link,
        head_skeleton=start.skeleton_link,
        head_tokens_total=0,
        answered=False,
        **fields,
    )
    return grown(bare, log)


def grown(conversation: Conversation, more: Sequence[LogMessage]) -> Conversation:
    """The conversation as it stands after more messages."""
    if not more:
        return conversation
    last = more[-1]
    return replace(
        conversation,
        head_seq=last.seq,
        head_link=last.link,
        head_skeleton=last.skeleton,
        head_tokens_total=last.tokens_total,
        answered=last.answered,
    )


async def begin(
    store: Store, tenant: str, lines: Sequence[str], **fields: Any
) -> tuple[Conversation, list[LogMessage]]:
    """Store a new conversation with these messages."""
    log = log_of(tenant, lines, imported=bool(fields.pop("imported", False)))
    conversation = conversation_of(tenant, log, **fields)
    await store.append(LogAppend(conversation, -1, log, creates_conversation=True))
    return conversation, log


def beginnings(count: int) -> list[LogAppend]:
    """Conversations of one message each, and tenants of their own, to be appended."""
    logs = [(fresh_tenant(), f"user {number}") for number in range(count)]
    written = [(tenant, log_of(tenant, [line])) for tenant, line in logs]
    return [LogAppend(conversation_of(tenant, log), -1, log, creates_conversation=True) for tenant, log in written]


def following(write: LogAppend) -> LogAppend:
    """An answer to what a write begins with."""
    tenant = write.conversation.tenant
    answer = log_of(tenant, [f"assistant of {tenant}"], after=write.messages[-1])
    return LogAppend(grown(write.conversation, answer), write.conversation.head_seq, answer)


async def go_on(
    store: Store, conversation: Conversation, log: Sequence[LogMessage], lines: Sequence[str]
) -> tuple[Conversation, list[LogMessage]]:
    """Add messages to a conversation; returns it with its whole log."""
    more = log_of(conversation.tenant, lines, after=log[-1])
    after = grown(conversation, more)
    await store.append(LogAppend(after, conversation.head_seq, more))
    return after, [*log, *more]


def branch_of(
    parent: Conversation, log: Sequence[LogMessage], upto_seq: int, lines: Sequence[str]
) -> tuple[Conversation, list[LogMessage], list[LogMessage]]:
    """A branch that shares the parent's log through `upto_seq`: the branch, its whole log, its own messages."""
    shared = list(log[: upto_seq + 1])
    lineage = []
    for place, upto in parent.lineage_with_self:
        lineage.append((place, min(upto, upto_seq)))
        if upto >= upto_seq:
            break
    own = log_of(parent.tenant, lines, after=shared[-1])
    merely_shared = min(parent.shared_through, upto_seq)
    marks = {SHARED_THROUGH: merely_shared} if merely_shared >= 0 else {}
    branch = conversation_of(parent.tenant, shared, lineage=tuple(lineage), marks=marks)
    return grown(branch, own), [*shared, *own], own


async def branch_off(
    store: Store, parent: Conversation, log: Sequence[LogMessage], upto_seq: int, lines: Sequence[str]
) -> tuple[Conversation, list[LogMessage]]:
    """Store a branch; returns it with its whole log."""
    branch, whole, own = branch_of(parent, log, upto_seq, lines)
    await store.append(LogAppend(branch, upto_seq, own, creates_conversation=True))
    return branch, whole


async def twin_of(
    store: Store, source: Conversation, log: Sequence[LogMessage], upto_seq: int, lines: Sequence[str]
) -> tuple[Conversation, list[LogMessage]]:
    """Store a conversation that merely shares the source's rows; returns it with its whole log."""
    twin, whole, own = branch_of(source, log, upto_seq, lines)
    twin = replace(twin, marks={SHARED_THROUGH: upto_seq})
    await store.append(LogAppend(twin, upto_seq, own, creates_conversation=True))
    return twin, whole


def chunk_over(
    conversation: Conversation, log: Sequence[LogMessage], from_seq: int, to_seq: int, **fields: Any
) -> Summary:
    number = next(_numbers)
    fields = {"text": f"summary {number}", "kind": "model", "created_at": NOON + timedelta(seconds=number), **fields}
    return Summary(
        id=f"chunk_{number}",
        conversation_id=conversation.id,
        from_seq=from_seq,
        to_seq=to_seq,
        from_link=log[from_seq - 1].link if from_seq else compute_start_position(conversation.tenant).link,
        to_link=log[to_seq - 1].link,
        tokens=11,
        tokens_total=log[to_seq - 1].tokens_total,
        anchor_seq=None,
        anchor_tokens=0,
        through_turn=1,
        model="m",
        prompt_version="1",
        **fields,
    )


async def lease_on(store: Store, root: str, key: str = "a-key", *, holder: str = "me", seconds: float = 60) -> Lease:
    lease = await store.claim_lease(root=root, key=key, holder=holder, seconds=seconds)
    assert lease is not None
    return lease


async def strays_of(
    store: Store, tenant: str, lines: Sequence[str]
) -> tuple[Conversation, list[LogMessage], list[Summary]]:
    """Three summaries of a history that nothing else was stored of: two, and one that folds them."""
    log = log_of(tenant, lines)
    unstored = conversation_of(tenant, log)
    early, late = chunk_over(unstored, log, 0, 4), chunk_over(unstored, log, 4, 6)
    chunks = [early, late, chunk_over(unstored, log, 0, 6, folds=(early.id, late.id))]
    fence = await lease_on(store, unstored.root)
    for chunk in chunks:
        await store.add_summary(tenant=tenant, root=unstored.root, summary=chunk, fence=fence)
    await store.revise_summary(tenant=tenant, root=unstored.root, summary=replace(early, text="another", revision=2))
    return unstored, log, chunks


def bodies(log: Sequence[LogMessage]) -> list[Any]:
    return [orjson.loads(entry.message.raw)["content"] for entry in log]


def links(log: Sequence[LogMessage]) -> list[bytes]:
    return [entry.link for entry in log]
