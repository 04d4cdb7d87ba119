"""Store what a turn adds to a conversation: the user's messages while the model is asked, its answer before the last
byte reaches the client. Whoever comes second finds the head moved and goes on as a branch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from app.conversation.identity import Position, PrefixMemory, new_conversation_id
from app.conversation.messages import Conversation, Message
from app.conversation.validation import leaves_calls_open
from app.errors import ConversationBusy, StoreUnavailable
from app.exchange.counting import Counting
from app.exchange.growing import ending_with, entries_behind
from app.exchange.history import Remembered
from app.exchange.placement import CALLS_OPEN, INSTRUCTIONS, PENDING, PINS, Recollection, lineage_through
from app.observability.tracing import traced
from app.store.base import Append, HeadMoved, LeaseLost, Store
from app.store.leases import LeaseKeeper

PIN_TRIES: Final = 5
"""Others may mark messages of the same conversation at the same time; pins are not worth an answer's failing."""


class Given(msgspec.Struct, frozen=True):
    """An answer to be stored: the assistant message, whether it is whole, facts about it, and state that changes."""

    message: dict[str, Any]
    incomplete: bool = False
    meta: Mapping[str, Any] = msgspec.field(default_factory=dict)
    state: Mapping[str, Any] = msgspec.field(default_factory=dict)
    chunk_count: int = 0


class Remember:
    """Appends turns. Never called while a database transaction or connection is held."""

    def __init__(
        self,
        *,
        store: Store,
        leases: LeaseKeeper,
        counting: Counting,
        prefixes: PrefixMemory[Remembered],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._store = store
        self._leases = leases
        self._counting = counting
        self._prefixes = prefixes
        self._random_bytes = random_bytes

    @traced("store question")
    async def question(self, turn: Recollection) -> Recollection:
        """Store the new messages of a request; returns the turn with its conversation as it then stands.

        Raises:
            ConversationBusy: an append's lease was lost to another request.
            StoreUnavailable: nothing was stored.
        """
        if not turn.keeps:
            return turn
        if not turn.new and not turn.creates:
            await self._pin(turn)
            return replace(turn, pins=None)
        after = _after_question(turn)
        try:
            await self._store.append(
                Append(
                    conversation=after,
                    after_seq=turn.conversation.head_seq,
                    messages=turn.new,
                    creates=turn.creates,
                    fence=turn.lease,
                )
            )
        except HeadMoved as moved:
            if turn.appends:
                raise _lost() from moved
            turn = replace(turn, conversation=self._branch(turn.conversation), creates=True)
            after = _after_question(turn)
            await self._create(
                Append(conversation=after, after_seq=turn.conversation.head_seq, messages=turn.new, creates=True)
            )
        except LeaseLost as lost:
            raise _lost() from lost
        if not turn.creates:
            await self._pin(turn)
        if turn.remembers is not None:
            position = Position(after.head_link, after.head_skeleton, False)
            self._prefixes.remember(turn.remembers, Remembered(after.root, position))
        asked_tokens = sum(entry.tokens for entry in turn.new)
        return replace(turn, conversation=after, creates=False, new=(), pins=None, asked_tokens=asked_tokens)

    @traced("store answer")
    async def answer(self, turn: Recollection, given: Given) -> Conversation:
        """Store an answer after its question; returns the conversation that holds it.

        Raises:
            ConversationBusy: an append's lease was lost meanwhile.
            StoreUnavailable: the answer was not stored.
        """
        conversation = turn.conversation
        if not turn.keeps:
            return conversation
        message = Message.of(given.message)
        (entry,) = await entries_behind(conversation, [message], self._counting)
        entry = replace(entry, incomplete=given.incomplete, meta=given.meta)
        state = {**conversation.state, **given.state, CALLS_OPEN: leaves_calls_open(message)}
        state.pop(PENDING, None)
        base = replace(conversation, state=state, chunk_count=max(conversation.chunk_count, given.chunk_count))
        try:
            after = ending_with(base, [entry])
            await self._store.append(
                Append(
                    conversation=after,
                    after_seq=base.head_seq,
                    messages=[entry],
                    fence=turn.lease,
                    releases=turn.lease is not None,
                )
            )
        except HeadMoved as moved:
            if turn.appends:
                raise _lost() from moved
            after = ending_with(self._branch(base), [entry])
            await self._create(Append(conversation=after, after_seq=base.head_seq, messages=[entry], creates=True))
        except LeaseLost as lost:
            raise _lost() from lost
        if turn.lease is not None:
            self._leases.released(turn.lease)
        if turn.points and turn.external_id is not None:
            await self._store.point(tenant=after.tenant, external_id=turn.external_id, conversation=after)
        return after

    async def _pin(self, turn: Recollection) -> None:
        """Store what a request pins, beside what others have marked meanwhile."""
        for _ in range(PIN_TRIES if turn.pins is not None else 0):
            conversation = turn.conversation
            stored = await self._store.get(tenant=conversation.tenant, conversation_id=conversation.id)
            if stored is None:
                return
            try:
                await self._store.mark(stored, {**stored.marks, PINS: turn.pins})
            except HeadMoved:
                continue
            return

    async def _create(self, write: Append) -> None:
        """Begin a branch, or a conversation beside one that took the client's id first.

        Raises:
            StoreUnavailable: what it branches from was erased meanwhile.
        """
        try:
            await self._store.append(write)
        except HeadMoved as moved:
            raise StoreUnavailable(
                "The conversation was erased while it was being answered.", retry_after_seconds=1
            ) from moved

    async def nothing(self, turn: Recollection) -> None:
        """A question got no answer. A conversation that began with it, and whose id its client does not know, is
        taken back: the retry would begin another. One that has summaries stays, so that the retry finds them."""
        conversation = turn.conversation
        if not turn.keeps or not turn.is_first_attempt or conversation.external_id is not None:
            return
        chunks = await self._store.chunks(tenant=conversation.tenant, root=conversation.root, path=conversation.path)
        if all(chunk.conversation_id != conversation.id for chunk in chunks):
            await self._store.delete(tenant=conversation.tenant, conversation_id=conversation.id)

    def _branch(self, base: Conversation) -> Conversation:
        """A branch off the place where `base` was seen to end; another beginning where it was still to begin."""
        return replace(
            base,
            id=new_conversation_id(base.root, self._random_bytes),
            lineage=lineage_through(base, base.head_seq) if base.head_seq >= 0 else (),
            external_id=None,
        )


def _after_question(turn: Recollection) -> Conversation:
    conversation = turn.conversation
    if not turn.new:
        return conversation
    pending = int(conversation.state.get(PENDING, 0)) + len(turn.new)
    state = {
        **conversation.state,
        PENDING: pending,
        CALLS_OPEN: leaves_calls_open(turn.new[-1].message),
    }
    if turn.appends and turn.instructions:
        state[INSTRUCTIONS] = [message.raw.decode() for message in turn.instructions]
    return ending_with(replace(conversation, state=state), turn.new)


def _lost() -> ConversationBusy:
    return ConversationBusy(
        "Another request took over this conversation while this one was being answered.", retry_after_seconds=1
    )
