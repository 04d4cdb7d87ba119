"""Creates conversations and adds items to them: the items of a request become messages at the end of the log, all or
none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.identity import LinkPosition, compute_family_root, compute_start_position, make_conversation_id
from app.conversation.item import INSTRUCTION_ROLES, TOOL_RESULT_ROLES, Item, may_precede_tool_result
from app.conversations.answer_fingerprints import build_answers_of_others
from app.conversations.history.conversation_records import ConversationRecords
from app.conversations.items.item_building import ItemObject, build_instruction_items, build_items
from app.conversations.items.item_parser import parse_items
from app.errors import ConversationBusy
from app.pipeline.resolve.client_history import compute_log_root
from app.pipeline.turn.chat_request import Caller
from app.pipeline.turn.conversation_builders import advance_head, build_empty_conversation, build_log_entries
from app.pipeline.turn.resolved_request import OPEN_TOOL_CALLS, STORED_INSTRUCTIONS, UNANSWERED_MESSAGES
from app.pipeline.turn.token_counting import MessageCounter
from app.store.contract.conversations import ConversationStore, LogAppend, WriteConflict
from app.store.contract.leases import Lease, LeaseLost
from app.store.leases import LeaseKeeper

MAX_ROUND_MESSAGES: Final = 128
"""How many messages before the end are searched for calls that results may answer."""
MAX_ATTEMPTS: Final = 3
"""How often an append is tried. The lease does not exclude clients that resend their history: they may append
meanwhile."""


@dataclass(eq=False, kw_only=True)
class ItemWriter:
    """Creates conversations, and adds items under the conversation's lease."""

    store: ConversationStore
    records: ConversationRecords
    leases: LeaseKeeper
    message_counter: MessageCounter
    random_bytes: Callable[[int], bytes]
    encoding: str
    wait_seconds: float

    async def create_conversation(
        self, caller: Caller, metadata: Mapping[str, str], items: Sequence[object]
    ) -> Conversation:
        """Creates a conversation. Its messages come before those of the chat completions that name the conversation.

        Raises:
            InvalidRequest: an item cannot be stored.
        """
        incoming = parse_items(items, open_calls=())
        tenant, start = caller.tenant, compute_start_position(caller.tenant)
        empty = replace(build_empty_conversation(tenant, self.encoding), metadata=metadata)
        conversation, entries = await self._prepare_append(empty, incoming)
        # An empty log has no first message to derive the family's root from, so it gets a random one.
        if conversation.head_link == start.link:
            root = compute_family_root(tenant, self.random_bytes(len(start.link)))
        else:
            root = compute_log_root(
                tenant, start, [LinkPosition(entry.link, entry.skeleton, False) for entry in entries]
            )
        conversation = replace(conversation, id=make_conversation_id(root, self.random_bytes), root=root)
        await self.store.append(
            LogAppend(
                conversation=conversation,
                after_seq=-1,
                messages=entries,
                creates_conversation=True,
                issued=await build_answers_of_others(self.store, conversation, entries),
            )
        )
        return await self.records.find_conversation(caller, conversation.id)

    async def add_items(
        self, caller: Caller, conversation_id: str, items: Sequence[object], *, is_retry: bool = False
    ) -> tuple[Conversation, list[ItemObject]]:
        """Adds items to the end of a conversation; returns the conversation and the stored items.

        Args:
            is_retry: the client sends the request again; items that are at the end of the log already are not added.

        Raises:
            ConversationNotFound: the caller has none with this id.
            InvalidRequest: an item cannot be stored.
            ConversationBusy: the conversation was in use for too long.
        """
        conversation = await self.records.find_conversation(caller, conversation_id)
        # Invalid items are refused before the lease is waited for. Calls are checked later, with the log's end.
        parse_items(items, open_calls=None)
        if not items:
            return conversation, []
        for _ in range(MAX_ATTEMPTS):
            async with self.leases.hold_lease(conversation.root, conversation.id, self.wait_seconds) as lease:
                before = await self.records.find_conversation(caller, conversation.id)
                before_retry = await self._restore_conversation_before_items(before, items) if is_retry else None
                if before_retry is not None:
                    return before, await self._read_added_items(before_retry, before)
                try:
                    after = await self._append_items(before, items, lease)
                except WriteConflict:
                    continue
                except LeaseLost as lost:
                    raise _conversation_busy_error() from lost
            return after, await self._read_added_items(before, after)
        raise _conversation_busy_error()

    async def _append_items(
        self, conversation_before: Conversation, items: Sequence[object], lease: Lease
    ) -> Conversation:
        incoming = parse_items(items, open_calls=await self._find_open_call_ids(conversation_before))
        conversation_after, entries = await self._prepare_append(conversation_before, incoming)
        await self.store.append(
            LogAppend(
                conversation=conversation_after,
                after_seq=conversation_before.head_seq,
                messages=entries,
                fence=lease,
                releases_lease=True,
                issued=await build_answers_of_others(self.store, conversation_after, entries),
            )
        )
        self.leases.forget_released_lease(lease)
        return conversation_after

    async def _read_added_items(self, before: Conversation, after: Conversation) -> list[ItemObject]:
        """Returns the items that `after` has and `before` does not."""
        instruction_count = len(before.state.get(STORED_INSTRUCTIONS, ()))
        items = build_instruction_items(after)[instruction_count:]
        call: LogMessage | None = None
        last_call = before.head_seq + 1 - (MAX_ROUND_MESSAGES if before.state.get(OPEN_TOOL_CALLS) else 0)
        for entry in await self.store.read_log(after, max(0, last_call), after.head_seq + 1):
            call = call if entry.message.role in TOOL_RESULT_ROLES else entry
            if entry.seq > before.head_seq:
                items += build_items(entry, call=call)
        return items

    async def _restore_conversation_before_items(
        self, conversation: Conversation, items: Sequence[object]
    ) -> Conversation | None:
        """Returns the conversation as it was before these items were added; None if its log does not end with them."""
        raws = [one.raw for one in parse_items(items, open_calls=None)]
        stored_instructions = [raw.encode() for raw in conversation.state.get(STORED_INSTRUCTIONS, ())]
        after_head = conversation.head_seq + 1
        tail = await self.store.read_log(conversation, max(0, after_head - len(raws)), after_head)
        logged = [entry.message.raw for entry in tail]
        if [*stored_instructions, *logged][-len(raws) :] != raws:
            return None
        instruction_count = len(raws) - len(logged)
        state = {
            **conversation.state,
            STORED_INSTRUCTIONS: conversation.state.get(STORED_INSTRUCTIONS, ())[
                : len(stored_instructions) - instruction_count
            ],
            OPEN_TOOL_CALLS: True,
        }
        return replace(conversation, head_seq=conversation.head_seq - len(logged), state=state)

    async def _find_open_call_ids(self, conversation: Conversation) -> Collection[str] | None:
        """Returns the ids of the calls at the end of the log; None if they have no ids, so that any result may
        follow."""
        if not conversation.state.get(OPEN_TOOL_CALLS):
            return ()
        after_head = conversation.head_seq + 1
        for entry in reversed(
            await self.store.read_log(conversation, max(0, after_head - MAX_ROUND_MESSAGES), after_head)
        ):
            if entry.message.role not in TOOL_RESULT_ROLES:
                ids = [call.id for call in entry.message.calls]
                return [one for one in ids if one] if all(ids) else None
        return None

    async def _prepare_append(
        self, before: Conversation, messages: Sequence[Item]
    ) -> tuple[Conversation, Sequence[LogMessage]]:
        """Returns the conversation with the messages appended, and their log entries."""
        # Instructions at the beginning are no part of the log: they are kept in the state, as those of a request are.
        instruction_count = _count_leading_instructions(messages) if before.head_seq < 0 else 0
        state = dict(before.state)
        if instruction_count:
            instructions = [message.raw.decode() for message in messages[:instruction_count]]
            state[STORED_INSTRUCTIONS] = [*state.get(STORED_INSTRUCTIONS, ()), *instructions]
        entries = await build_log_entries(before, messages[instruction_count:], self.message_counter)
        if not entries:
            return replace(before, state=state), []
        state.pop(UNANSWERED_MESSAGES, None)
        state[OPEN_TOOL_CALLS] = may_precede_tool_result(entries[-1].message)
        return replace(advance_head(before, entries), state=state), entries


def _count_leading_instructions(messages: Sequence[Item]) -> int:
    instruction_count = next((index for index, one in enumerate(messages) if one.role not in INSTRUCTION_ROLES), None)
    return len(messages) if instruction_count is None else instruction_count


def _conversation_busy_error() -> ConversationBusy:
    return ConversationBusy("Other requests keep adding items to this conversation.", retry_after_seconds=1)
