"""Fields of our answers that a client dropped, read back from the store: only where a provider wants them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from app.conversation.conversation_types import Conversation, LogMessage
from app.dialects.body.message import ChatMessage
from app.errors import StoreUnavailable
from app.pipeline.call.upstream_call import FieldRestorer
from app.pipeline.turn.resolved_request import ResolvedRequest
from app.upstream.provider_contract import ProviderQuirks
from tests.support.memory_store import MemoryStore

CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "u"},
    {"role": "assistant", "content": None, "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "c", "content": "r"},
]
WANTED = ProviderQuirks(restore_fields=("reasoning_content",))


class Log(MemoryStore):
    """A store whose log holds our answers whole, and counts how often it is read."""

    def __init__(self, *, away: bool = False) -> None:
        super().__init__(clock=lambda: datetime.now(UTC))
        self.away = away
        self.ranges: list[tuple[int, int]] = []

    async def read_log(self, conversation: Conversation, from_seq: int, to_seq: int) -> list[LogMessage]:
        self.ranges.append((from_seq, to_seq))
        if self.away:
            raise StoreUnavailable("away")
        bodies = [{**body, "reasoning_content": "t"} if body["role"] == "assistant" else body for body in TALK]
        return [_entry(seq, bodies[seq]) for seq in range(from_seq, to_seq)]


def _entry(seq: int, body: dict[str, Any]) -> LogMessage:
    return LogMessage(
        seq=seq,
        message=ChatMessage.from_body(body),
        link=b"",
        skeleton=b"",
        in_skeleton=False,
        tokens=1,
        tokens_total=seq + 1,
        answered=True,
    )


def place(*, head_seq: int = 1, client_log: Sequence[bytes] | None = (b"{}",)) -> ResolvedRequest:
    conversation = Conversation(
        id="conv_1",
        root="r",
        tenant="t",
        encoding="o200k_base",
        head_seq=head_seq,
        head_link=b"",
        head_skeleton=b"",
        head_tokens_total=2,
        answered=True,
    )
    new = tuple(_entry(seq, body) for seq, body in enumerate(TALK) if seq > head_seq)
    return ResolvedRequest(
        conversation=conversation,
        creates_conversation=False,
        new_messages=new,
        instructions=(),
        instructions_tokens=0,
        client_messages=client_log,
    )


RAWS = [json.dumps(body).encode() for body in TALK]


async def test_what_the_client_dropped_is_read_back_as_far_as_it_goes() -> None:
    log = Log()

    filled = await FieldRestorer(store=log).restore_fields(WANTED, place(), None, RAWS)

    assert filled is not None
    assert json.loads(filled[1])["reasoning_content"] == "t"
    assert [filled[0], filled[2]] == [RAWS[0], RAWS[2]]
    assert log.ranges == [(1, 2)]


async def test_a_shortened_view_is_filled_like_the_clients_own_messages() -> None:
    filled = await FieldRestorer(store=Log()).restore_fields(WANTED, place(), RAWS[1:], [])

    assert filled is not None
    assert json.loads(filled[0])["reasoning_content"] == "t"


async def test_nothing_is_read_where_nobody_asks_or_nothing_is_missing() -> None:
    log = Log()
    whole = [json.dumps({**body, "reasoning_content": "x"}).encode() for body in TALK]

    assert await FieldRestorer(store=log).restore_fields(ProviderQuirks(), place(), None, RAWS) is None
    assert await FieldRestorer(store=log).restore_fields(WANTED, place(client_log=None), RAWS, []) is RAWS
    assert await FieldRestorer(store=log).restore_fields(WANTED, place(head_seq=-1), None, RAWS) is None
    assert await FieldRestorer(store=log).restore_fields(WANTED, place(), whole, RAWS) is whole
    assert log.ranges == []


async def test_without_the_store_the_messages_go_as_they_are() -> None:
    assert await FieldRestorer(store=Log(away=True)).restore_fields(WANTED, place(), None, RAWS) is None
