"""Finds the standing requests of a conversation in its log. A message is scanned once, as soon as a view hides a part
of the log. What was found is stored with the conversation, as places in the log (docs/decisions/0046)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Any, Final

import msgspec

from app.context.plan.budget import Budget
from app.context.standing.request_finder import find_standing_requests, find_subject
from app.context.standing.standing_message import count_standing_frame_tokens, render_standing_line
from app.context.standing.standing_requests import (
    NO_STANDING_REQUESTS,
    NOTHING_SCANNED,
    NewRequest,
    StandingRequest,
    StandingRequests,
    StandingScan,
    add_new_requests,
    drop_requests,
)
from app.context.view.client_words import ClientWords
from app.conversation.conversation_types import Conversation
from app.conversation.item import Item
from app.dialects.item_decoding import decode_item
from app.pipeline.resolve.resolved_request import REMOVED_STANDING_REQUESTS, STANDING_REQUESTS, ResolvedRequest
from app.pipeline.token_counting import MessageCounter
from app.pipeline.turn import Turn
from app.store.contract.conversations import ConversationStore

MAX_SCANNED_MESSAGES: Final = 12_000
"""How many messages are scanned in one turn. The rest of a longer log follows in the next turns."""
MAX_MESSAGES_ON_LOOP: Final = 32
MAX_BYTES_ON_LOOP: Final = 32 * 1024
"""More messages or bytes than this are scanned in a thread."""


class StandingRequestReader:
    """Scans logs for standing requests, and selects those that a view may show."""

    def __init__(self, *, store: ConversationStore, message_counter: MessageCounter) -> None:
        self._store = store
        self._message_counter = message_counter

    async def read_for_view(
        self, turn: Turn, budget: Budget, words: ClientWords
    ) -> tuple[StandingRequests, StandingScan]:
        """Returns what a view may show, and the scan to store with the conversation.

        Messages that were erased, or that the client leaves out, have no standing requests; nor has what was removed
        through the API. A message that the client rewrites has those of the client's version.

        Raises:
            StoreUnavailable: the log cannot be read.
        """
        resolved_request = turn.resolved_request
        conversation, versions = resolved_request.conversation, resolved_request.client_versions
        scan = await self.scan_log(resolved_request)
        gone_seqs = {*conversation.redacted_seqs, *words.omitted_seqs, *words.forbidden_seqs, *versions}
        requests = select_valid_requests(scan, conversation, gone_seqs)
        counter = self._message_counter.find_token_counter(conversation.token_counter_name)
        rewritten = [(seq, message) for seq, message in words.list_rewritten_messages() if seq < scan.before_seq]
        if found := await _find_in_long_messages(rewritten, counter.count):
            known = await self._find_subjects(resolved_request, requests)
            requests = add_new_requests([], sorted((*known, *found), key=lambda new: new.request.place))
            requests = select_valid_requests(StandingScan(scan.before_seq, requests), conversation, set())
        if not requests:
            return NO_STANDING_REQUESTS, scan
        return (
            StandingRequests(
                requests=requests,
                frame_tokens=count_standing_frame_tokens(counter.count_message),
                # In raw tokens: what is shown must not change when the calibration learns.
                room_tokens=int(budget.window * turn.policy.standing_ratio),
            ),
            scan,
        )

    async def scan_log(self, resolved_request: ResolvedRequest) -> StandingScan:
        """Returns the standing requests of a log, new messages included. Scans what was not scanned before.

        Raises:
            StoreUnavailable: the log cannot be read.
        """
        known = decode_standing_scan(resolved_request.conversation.state)
        before_seq = min(resolved_request.next_seq, known.before_seq + MAX_SCANNED_MESSAGES)
        if known.before_seq >= before_seq:
            return known
        messages = await self._read_messages(resolved_request, [(known.before_seq, before_seq)])
        counter = self._message_counter.find_token_counter(resolved_request.conversation.token_counter_name)
        found = await _find_in_long_messages(messages, counter.count)
        if not found:
            return StandingScan(before_seq, known.requests)
        earlier = await self._find_subjects(resolved_request, known.requests)
        return StandingScan(before_seq, add_new_requests(earlier, found))

    async def _find_subjects(
        self, resolved_request: ResolvedRequest, requests: Sequence[StandingRequest]
    ) -> list[NewRequest]:
        """Returns known requests with their subjects. These are not stored, since they hold words of the messages."""
        seqs = {one.seq for one in requests if one.replaced_by is None} - {*resolved_request.conversation.redacted_seqs}
        messages = await self._read_messages(resolved_request, [(seq, seq + 1) for seq in sorted(seqs)])
        texts = {seq: message.text for seq, message in messages}
        return [
            NewRequest(one, find_subject(texts[one.seq][one.start : one.end]) if one.seq in texts else frozenset())
            for one in requests
        ]

    async def _read_messages(
        self, resolved_request: ResolvedRequest, ranges: Sequence[tuple[int, int]]
    ) -> list[tuple[int, Item]]:
        """Returns the messages of ranges `[from_seq, to_seq)` of the log, in order, with their seqs."""
        client_messages, conversation = resolved_request.client_messages, resolved_request.conversation
        if resolved_request.is_aligned_by_index and client_messages is not None:
            seqs = chain.from_iterable(range(from_seq, to_seq) for from_seq, to_seq in ranges)
            return [(seq, decode_item(bytes(client_messages[seq]))) for seq in seqs]
        end = conversation.head_seq + 1
        stored_ranges = [(from_seq, min(to_seq, end)) for from_seq, to_seq in ranges if from_seq < end]
        stored = await self._store.read_log_ranges(conversation, stored_ranges) if stored_ranges else []
        new = [
            entry
            for entry in resolved_request.new_messages
            if any(from_seq <= entry.seq < to_seq for from_seq, to_seq in ranges)
        ]
        return [(entry.seq, entry.message) for entry in (*stored, *new)]


def select_valid_requests(
    scan: StandingScan, conversation: Conversation, gone_seqs: AbstractSet[int]
) -> tuple[StandingRequest, ...]:
    """Returns the requests of a scan without those of messages that are gone, and without those that were removed."""
    removed = {(seq, start) for seq, start in conversation.marks.get(REMOVED_STANDING_REQUESTS, ())}
    return drop_requests(scan.requests, gone_seqs=gone_seqs, removed_places=removed)


def decode_standing_scan(state: Mapping[str, Any]) -> StandingScan:
    """Returns the scan that is stored with a conversation."""
    stored = state.get(STANDING_REQUESTS)
    return NOTHING_SCANNED if stored is None else msgspec.convert(stored, StandingScan)


def build_standing_state(state: Mapping[str, Any], scan: StandingScan, *, answer_seq: int = -1) -> dict[str, Any]:
    """Returns the member of a conversation's state that a scan changes; empty if it changes nothing.

    Args:
        answer_seq: the seq of the answer that is stored with the state. An answer has no standing requests, so the next
            turn need not read it.
    """
    if scan.before_seq == answer_seq:
        scan = msgspec.structs.replace(scan, before_seq=answer_seq + 1)
    if scan.before_seq <= decode_standing_scan(state).before_seq:
        return {}
    return {STANDING_REQUESTS: msgspec.to_builtins(scan)}


async def _find_in_long_messages(messages: Sequence[tuple[int, Item]], count: Callable[[str], int]) -> list[NewRequest]:
    """Returns the standing requests in messages; scans many or long messages in a thread."""
    byte_count = sum(len(message.raw) for _, message in messages)
    if len(messages) > MAX_MESSAGES_ON_LOOP or byte_count > MAX_BYTES_ON_LOOP:
        return await asyncio.to_thread(_find_in_messages, messages, count)
    return _find_in_messages(messages, count)


def _find_in_messages(messages: Sequence[tuple[int, Item]], count: Callable[[str], int]) -> list[NewRequest]:
    """Returns the standing requests in the user's messages, in the order of the log."""
    found = []
    for seq, message in messages:
        if message.role != "user":
            continue
        text = message.text
        for one in find_standing_requests(text):
            tokens = count(render_standing_line(text[one.start : one.end]))
            request = StandingRequest(seq, one.start, one.end, tokens, one.strength)
            found.append(NewRequest(request, one.subject, one.withdraws))
    return found
