"""Conversations begun and added to by hand: items become messages at the end of a log, all of a request's or none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from app.conversation.identity import Position, new_conversation_id, root_of, start_of
from app.conversation.message_checks import INSTRUCTION_ROLES, TOOL_ROLES, leaves_calls_open
from app.conversation.messages import Conversation, LogMessage, Message
from app.conversations.history.conversations import Records
from app.conversations.items.item_parser import Incoming, read_items
from app.conversations.items.items import SENT, Item, instruction_items, items_of
from app.errors import ConversationBusy
from app.pipeline.chat_request import Caller
from app.pipeline.persist.log_entries import empty_log, ending_with, entries_behind
from app.pipeline.resolve.resent_history import root_of_log
from app.pipeline.resolve.resolved_request import CALLS_OPEN, INSTRUCTIONS, PENDING
from app.pipeline.token_counting import Counting
from app.store.contract import Append, HeadMoved, Lease, LeaseLost, Store
from app.store.leases import LeaseKeeper

LONGEST_ROUND: Final = 128
"""How far back the calls are looked for that results may answer."""
ATTEMPTS: Final = 3
"""Clients that resend their history do not wait for each other: the log may move on meanwhile."""


class Adding:
    """Begins conversations, and adds to them while nobody else does."""

    def __init__(
        self,
        *,
        store: Store,
        records: Records,
        leases: LeaseKeeper,
        counting: Counting,
        random_bytes: Callable[[int], bytes],
        encoding: str,
        wait_seconds: float,
    ) -> None:
        self._store = store
        self._records = records
        self._leases = leases
        self._counting = counting
        self._random_bytes = random_bytes
        self._encoding = encoding
        self._wait_seconds = wait_seconds

    async def begin(self, caller: Caller, metadata: Mapping[str, str], items: Sequence[object]) -> Conversation:
        """A new conversation. Its messages go before those of the chat completions that name it.

        Raises:
            InvalidRequest: an item that cannot be kept.
        """
        incoming = read_items(items, open_calls=())
        tenant, start = caller.tenant, start_of(caller.tenant)
        empty = replace(empty_log(tenant, self._encoding), metadata=metadata)
        begun, entries = await self._grown(empty, incoming)
        if begun.head_link == start.link:
            root = root_of(tenant, self._random_bytes(len(start.link)))
        else:
            root = root_of_log(tenant, start, [Position(entry.link, entry.skeleton, False) for entry in entries])
        begun = replace(begun, id=new_conversation_id(root, self._random_bytes), root=root)
        await self._store.append(Append(conversation=begun, after_seq=-1, messages=entries, creates=True))
        return await self._records.of(caller, begun.id)

    async def add(
        self, caller: Caller, conversation_id: str, items: Sequence[object], *, is_retry: bool = False
    ) -> tuple[Conversation, list[Item]]:
        """Add items to the end of a conversation; what it then is, and the items as they stand in it.

        Args:
            is_retry: the client asks again, having heard nothing: items that stand at the end already are not added.

        Raises:
            ConversationNotFound: the caller has none with this id.
            InvalidRequest: an item that cannot be kept.
            ConversationBusy: it was in use for too long.
        """
        conversation = await self._records.of(caller, conversation_id)
        read_items(items, open_calls=None)
        if not items:
            return conversation, []
        for _ in range(ATTEMPTS):
            async with self._leases.hold(conversation.root, conversation.id, self._wait_seconds) as lease:
                before = await self._records.of(caller, conversation.id)
                was = await self._before_these(before, items) if is_retry else None
                if was is not None:
                    return before, await self._added(was, before)
                try:
                    after = await self._append(before, items, lease)
                except HeadMoved:
                    continue
                except LeaseLost as lost:
                    raise _busy() from lost
            return after, await self._added(before, after)
        raise _busy()

    async def _append(self, before: Conversation, items: Sequence[object], lease: Lease) -> Conversation:
        incoming = read_items(items, open_calls=await self._open_calls(before))
        after, entries = await self._grown(before, incoming)
        await self._store.append(
            Append(conversation=after, after_seq=before.head_seq, messages=entries, fence=lease, releases=True)
        )
        self._leases.released(lease)
        return after

    async def _added(self, before: Conversation, after: Conversation) -> list[Item]:
        """The items that make the difference."""
        first = len(before.state.get(INSTRUCTIONS, ()))
        items = instruction_items(after)[first:]
        call: LogMessage | None = None
        last_call = before.head_seq + 1 - (LONGEST_ROUND if before.state.get(CALLS_OPEN) else 0)
        for entry in await self._store.read(after, max(0, last_call), after.head_seq + 1):
            call = call if entry.message.role in TOOL_ROLES else entry
            if entry.seq > before.head_seq:
                items += items_of(entry, call=call)
        return items

    async def _before_these(self, now: Conversation, items: Sequence[object]) -> Conversation | None:
        """The conversation as it was before these very items were added at its end; None if they were not."""
        raws = [one.message.raw for one in read_items(items, open_calls=None)]
        told = [raw.encode() for raw in now.state.get(INSTRUCTIONS, ())]
        after_head = now.head_seq + 1
        tail = await self._store.read(now, max(0, after_head - len(raws)), after_head)
        logged = [entry.message.raw for entry in tail]
        if [*told, *logged][-len(raws) :] != raws:
            return None
        as_told = len(raws) - len(logged)
        state = {**now.state, INSTRUCTIONS: now.state.get(INSTRUCTIONS, ())[: len(told) - as_told], CALLS_OPEN: True}
        return replace(now, head_seq=now.head_seq - len(logged), state=state)

    async def _open_calls(self, conversation: Conversation) -> Collection[str] | None:
        """Ids of the calls at the end of the log; None where they have none."""
        if not conversation.state.get(CALLS_OPEN):
            return ()
        after_head = conversation.head_seq + 1
        for entry in reversed(await self._store.read(conversation, max(0, after_head - LONGEST_ROUND), after_head)):
            if entry.message.role not in TOOL_ROLES:
                ids = [call.get("id") for call in entry.message.tool_calls]
                return [one for one in ids if isinstance(one, str)] if all(ids) else None
        return None

    async def _grown(self, before: Conversation, incoming: Sequence[Incoming]) -> tuple[Conversation, list[LogMessage]]:
        """A conversation with messages at its end, and these messages in their places."""
        messages = [one.message for one in incoming]
        first = _count_leading_instructions(messages) if before.head_seq < 0 else 0
        state = dict(before.state)
        if first:
            told = [message.raw.decode() for message in messages[:first]]
            state[INSTRUCTIONS] = [*state.get(INSTRUCTIONS, ()), *told]
        entries = await entries_behind(before, messages[first:], self._counting)
        entries = [
            replace(entry, meta={SENT: one.sent}) if one.sent else entry
            for entry, one in zip(entries, incoming[first:], strict=True)
        ]
        if not entries:
            return replace(before, state=state), []
        state.pop(PENDING, None)
        state[CALLS_OPEN] = leaves_calls_open(entries[-1].message)
        return replace(ending_with(before, entries), state=state), entries


def _count_leading_instructions(messages: Sequence[Message]) -> int:
    first = next((index for index, one in enumerate(messages) if one.role not in INSTRUCTION_ROLES), None)
    return len(messages) if first is None else first


def _busy() -> ConversationBusy:
    return ConversationBusy("Others are adding to this conversation.", retry_after_seconds=1)
