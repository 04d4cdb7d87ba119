"""Old messages that bear on the newest one, quoted next to it when part of the log is not shown.

What was quoted for an earlier message stays where it is until the boundary moves or there is no room: the next view
begins with the bytes of this one. Each user message is searched for once, however many rounds its turn takes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final
from weakref import WeakValueDictionary

from msgspec.structs import replace

from app.context.plan.outline import Quotation
from app.context.quote.question_terms import asked_terms
from app.context.quote.quote_selection import choose_quotes
from app.conversation.message_checks import INSTRUCTION_ROLES
from app.conversation.messages import Conversation, LogMessage, Message
from app.conversation.search_terms import query_terms, terms_of_message
from app.errors import StoreUnavailable
from app.pipeline.background_tasks import Tasks
from app.pipeline.resolve.resolved_request import Recollection
from app.pipeline.token_counting import Counting
from app.pipeline.view.view_builder import Turn, View, Views
from app.store.contract import Found, Store
from app.store.search.index_terms import found_in

log = logging.getLogger(__name__)

CANDIDATES: Final = 32
"""How many messages a search may bring up, besides those next to them."""
QUESTION_CHARS: Final = 4_000
"""Of the newest message, what is searched for: the end of a long one, where the question stands."""
MOST_TO_INDEX: Final = 256
"""Messages that may be indexed on the way of a turn (about a millisecond for each); more are in the background."""
LEAST_ROOM_SHARE: Final = 1 / 2
LEAST_ROOM_TOKENS: Final = 256
"""With less than this left of the room, a new quotation takes the place of the old ones: what is asked now counts for
more than that the prompt cache need not read again what follows them."""


class Quoting:
    """Adds quotations to views."""

    def __init__(self, *, views: Views, finding: Finding, counting: Counting, tasks: Tasks) -> None:
        self._views = views
        self._tasks = tasks
        self._finding = finding
        self._counting = counting

    async def of(self, turn: Turn, view: View) -> View:
        """The view with what bears on its newest user message. Where the store is away, the view as it is."""
        plan = view.plan
        if not plan.boundary_seq or not turn.place.keeps or (turn.request.recall or turn.policy.recalls) != "quote":
            return view
        kept = kept_quotations(view)
        asked = newest_user(turn.place, view)
        if asked is not None and all(one.before_seq != asked.seq for one in kept):
            try:
                kept = await self._with_new(turn, view, kept, asked)
            except StoreUnavailable as error:
                log.warning("old messages could not be searched: %s", error.message)
        tokens = plan.prompt_tokens + sum(one.tokens for one in kept)
        plan = replace(plan, quotations=kept, prompt_tokens=tokens)
        if not any(one.passages for one in kept):
            return replace(view, plan=plan)
        return await self._views.shown(turn.place, view, plan)

    async def _with_new(
        self, turn: Turn, view: View, kept: tuple[Quotation, ...], asked: LogMessage
    ) -> tuple[Quotation, ...]:
        """The quotations for the newest message beside those that are kept, or in their place where they leave little
        room.

        A message for which nothing is quoted is noted too, so that it is not searched for again.
        """
        room_tokens = _room_tokens(turn, view)
        left_tokens = room_tokens - sum(one.tokens for one in kept)
        if left_tokens >= min(room_tokens, max(LEAST_ROOM_TOKENS, room_tokens * LEAST_ROOM_SHARE)):
            room_tokens = left_tokens
        else:
            kept = ()
        question = asked.message.text[-QUESTION_CHARS:]
        found = await self._candidates(turn.place, question, view.plan.boundary_seq)
        candidates = [one for one in found if _may_be_quoted(one.message, turn, view)]
        shown = {seq for pin in view.plan.pins for seq in range(pin.from_seq, pin.to_seq)}
        if view.plan.anchor_seq is not None:
            shown.add(view.plan.anchor_seq)
        quoted = {passage.seq for one in kept for passage in one.passages if not passage.spans}
        chosen = await asyncio.to_thread(
            choose_quotes,
            question,
            candidates,
            before_seq=asked.seq,
            room_tokens=room_tokens,
            folded_messages=view.plan.boundary_seq,
            visible=shown | quoted,
            count=self._counting.counter(turn.place.conversation.counter),
        )
        return (*kept, chosen or Quotation(asked.seq, (), 0))

    async def _candidates(self, place: Recollection, question: str, before_seq: int) -> Sequence[Found]:
        """What a search brings up; where much is still to be indexed, what the client sent is looked through."""
        conversation = place.conversation
        terms = asked_terms(question)
        if place.is_fresh:
            entries = [entry for entry in place.new if entry.seq < before_seq]
            return await asyncio.to_thread(found_among, entries, terms)
        if before_seq - self._finding.indexed_before(conversation) <= MOST_TO_INDEX:
            return await self._finding.find(conversation, terms, from_seq=0, before_seq=before_seq, limit=CANDIDATES)
        self._tasks.spawn(self._catch_up(conversation, before_seq))
        if not place.aligned or place.client_log is None:
            return []
        entries = [_sent(seq, raw) for seq, raw in enumerate(place.client_log[:before_seq])]
        return await asyncio.to_thread(found_among, entries, terms)

    async def _catch_up(self, conversation: Conversation, before_seq: int) -> None:
        try:
            await self._finding.catch_up(conversation, before_seq)
        except StoreUnavailable as error:
            log.warning("old messages could not be indexed: %s", error.message)


def _may_be_quoted(entry: LogMessage, turn: Turn, view: View) -> bool:
    """Whether the policy allows it where the client leaves a message out. A note that it has taken back never comes
    again."""
    if entry.seq not in view.outline.omitted:
        return True
    return turn.policy.restore == "quotes" and entry.message.role not in INSTRUCTION_ROLES


def kept_quotations(view: View) -> tuple[Quotation, ...]:
    """What the last view quoted, while it began at the same place. Where there is no room for it any more it goes, and
    is not looked for again: a view that grows would quote less with every round."""
    plan, last = view.plan, view.outline.last
    if last.boundary != plan.boundary:
        return ()
    kept = tuple(one for one in last.quotations if one.before_seq < view.outline.next_seq)
    room_tokens = view.budget.raw(view.budget.hard) - plan.prompt_tokens
    if sum(one.tokens for one in kept) <= room_tokens:
        return kept
    return tuple(Quotation(one.before_seq, (), 0) for one in kept)


def newest_user(place: Recollection, view: View) -> LogMessage | None:
    """The last user message, if it is known without asking the store."""
    known = [*(view.outline.tail or ()), *place.new]
    found = next((entry for entry in reversed(known) if entry.message.role == "user"), None)
    if found is not None or not place.aligned or place.client_log is None:
        return found
    for seq in reversed(range(len(place.client_log))):
        entry = _sent(seq, place.client_log[seq])
        if entry.message.role == "user":
            return entry
    return None


def _sent(seq: int, raw: bytes) -> LogMessage:
    """A message as the client sent it, with nothing known of it but its place."""
    return LogMessage(seq, Message(bytes(raw)), b"", b"", False, 0, 0, False)


def found_among(entries: Sequence[LogMessage], terms: Sequence[str]) -> list[Found]:
    """What a search would find in a log of which nothing is stored yet."""
    asked = frozenset(terms)
    by_seq = {entry.seq: entry for entry in entries}
    holding = {seq: asked.intersection(terms_of_message(entry.message)) for seq, entry in by_seq.items()}
    return found_in(by_seq, holding, messages=len(entries), limit=CANDIDATES)


def _room_tokens(turn: Turn, view: View) -> int:
    """The most that quotations may take: the policy's share of the window, and what the view leaves free."""
    budget = view.budget
    allowed = budget.raw(int(budget.window * turn.policy.recall_ratio))
    return max(0, min(allowed, budget.raw(budget.hard) - view.plan.prompt_tokens))


BATCH_MESSAGES: Final = 64
"""How many are read first; then as many as hold `BATCH_BYTES`, but never more than `MOST_MESSAGES`."""
BATCH_BYTES: Final = 512 * 1024
MOST_MESSAGES: Final = 512
REMEMBERED_CONVERSATIONS: Final = 10_000


class Finding:
    """Searches conversations. One for each process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._indexed: OrderedDict[str, int] = OrderedDict()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By conversation: who indexes the same one takes turns, so that none of it is done twice."""

    async def find(
        self, conversation: Conversation, asked: str | Sequence[str], *, from_seq: int, before_seq: int, limit: int
    ) -> list[Found]:
        """Messages `[from_seq, before_seq)` that hold what is asked for, best first, then those beside them.

        Args:
            asked: the text of a question, or terms (`conversation.search_terms`).

        Raises:
            StoreUnavailable: the index cannot be written or read.
        """
        terms = query_terms(asked) if isinstance(asked, str) else asked
        end = min(before_seq, conversation.head_seq + 1)
        if not terms or from_seq >= end:
            return []
        await self.catch_up(conversation, end)
        return await self._store.search(conversation, terms=terms, from_seq=from_seq, before_seq=end, limit=limit)

    async def catch_up(self, conversation: Conversation, before_seq: int) -> None:
        """Index the messages before `before_seq` that are not indexed yet.

        Raises:
            StoreUnavailable: what was indexed until then is remembered, the rest is left for the next time.
        """
        await self.catch_up_until(conversation, before_seq, math.inf)

    async def catch_up_until(self, conversation: Conversation, before_seq: int, deadline: float) -> bool:
        """The same until a moment of `time.monotonic`. Whether all were indexed by then, or nothing ever is."""
        if not self._store.searches_all:
            return True
        end = min(before_seq, conversation.head_seq + 1)
        turn = self._turns.setdefault(conversation.id, asyncio.Lock())
        size = BATCH_MESSAGES
        while self.indexed_before(conversation) < end:
            if time.monotonic() >= deadline:
                return False
            async with turn:
                start = self.indexed_before(conversation)
                stop = min(start + size, end)
                if start < stop:
                    entries = await self._store.read(conversation, start, stop)
                    await self._store.index(conversation, entries)
                    self._remember(conversation.id, stop)
                    size = _size_after(entries)
        return True

    def indexed_before(self, conversation: Conversation) -> int:
        """The seq before which all messages are indexed, as far as this process knows."""
        return max(conversation.indexed_before, self._indexed.get(conversation.id, 0))

    def _remember(self, conversation_id: str, before_seq: int) -> None:
        self._indexed[conversation_id] = max(before_seq, self._indexed.pop(conversation_id, 0))
        while len(self._indexed) > REMEMBERED_CONVERSATIONS:
            self._indexed.popitem(last=False)


def _size_after(entries: Sequence[LogMessage]) -> int:
    """How many messages to read next if they are as long as these."""
    held_bytes = sum(len(entry.message.raw) for entry in entries)
    return max(1, min(MOST_MESSAGES, BATCH_BYTES * len(entries) // max(1, held_bytes)))
