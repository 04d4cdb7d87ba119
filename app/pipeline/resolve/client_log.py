"""Aligns a client history with a log, and keeps what the client shows in the place of log messages.

Nothing is remembered between requests: aligning 1,000 messages takes milliseconds (docs/decisions/0050)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from app.context.view.client_versions import NO_VERSIONS, ClientVersions
from app.conversation.conversation_types import ClientVersion, Conversation, LogMessage
from app.conversation.history_alignment import Alignment, Element, align, build_element
from app.conversation.item import Item
from app.dialects.body.message import ChatMessage
from app.dialects.item_decoding import decode_item
from app.pipeline.resolve.client_history import ClientHistory
from app.pipeline.turn.resolved_request import ShownLog
from app.pipeline.turn.token_counting import MessageCounter
from app.store.contract.conversations import ConversationStore

MIN_THREAD_MESSAGES: Final = 64
"""Longer histories are aligned in a thread."""
ALIGNED_MARKS: Final = ("same", "rewritten")


class AlignedLog(msgspec.Struct, frozen=True):
    """A client history, the log that it was aligned with, and the alignment."""

    entries: Sequence[LogMessage]
    log: Sequence[Element]
    history: Sequence[Element]
    alignment: Alignment
    moved_seqs: frozenset[int] = frozenset()
    """Log messages that the history has in another place."""


class HistoryAligner:
    """Aligns histories with logs."""

    def __init__(self, store: ConversationStore, message_counter: MessageCounter) -> None:
        self._store = store
        self._message_counter = message_counter

    async def align(
        self,
        conversation: Conversation,
        client_history: ClientHistory,
        proof: tuple[int, int] | None,
        *,
        omits_answers: bool = False,
    ) -> AlignedLog:
        """Aligns a history with a conversation's log.

        Args:
            proof, omits_answers: as for `history_alignment.align`.

        Raises:
            InvalidRequest: a message is not a JSON object.
            StoreUnavailable: the log cannot be read.
        """
        entries = await self._store.read_log(conversation, 0, conversation.head_seq + 1)

        def align_all() -> AlignedLog:
            log = _build_log_elements(entries)
            history = list(map(build_element, client_history.messages))
            alignment = align(log, history, proof, omits_answers=omits_answers)
            moved_seqs = find_moved_seqs(log, history, alignment)
            return AlignedLog(entries, log, history, separate_moved(alignment, moved_seqs), moved_seqs)

        if len(entries) + len(client_history.raw_messages) > MIN_THREAD_MESSAGES:
            return await asyncio.to_thread(align_all)
        return align_all()

    async def read_client_versions(self, conversation: Conversation) -> ClientVersions:
        """Returns what the client shows in the place of log messages, as of its last turn."""
        if not conversation.has_client_versions:
            return NO_VERSIONS
        stored = await self._store.read_client_versions(conversation)
        return NO_VERSIONS.with_later_versions(stored, conversation.redacted_seqs)

    async def compare_with_shown(
        self, target: Conversation, client_history: ClientHistory, aligned_log: AlignedLog
    ) -> ShownLog:
        """Compares what a history shows with what its client has shown before, and returns the difference as new
        versions.

        Args:
            target: the conversation that the history was aligned with, or the branch that begins after the last aligned
                message.

        Raises:
            StoreUnavailable: the versions cannot be read.
        """
        alignment, entries = aligned_log.alignment, aligned_log.entries
        stored_versions = await self.read_client_versions(target)
        shown_bodies = find_changed_bodies(alignment, client_history.raw_messages)
        new_versions: list[ClientVersion] = []
        for seq in sorted({*shown_bodies, *stored_versions}):
            to_seq, bodies = shown_bodies.get(seq, (seq + 1, None))
            stored_version = stored_versions.get(seq)
            # A changed message becomes a new version only once. A version over an erased message would store the erased
            # text again.
            is_known = (
                bodies is None
                if stored_version is None
                else (stored_version.to_seq, stored_version.bodies) == (to_seq, bodies)
            )
            if is_known or any(seq <= redacted_seq < to_seq for redacted_seq in target.redacted_seqs):
                continue
            tokens_delta = 0
            if bodies is not None:
                counts = await self._message_counter.count_message_tokens(
                    [decode_item(body) for body in bodies], target.token_counter_name
                )
                tokens_delta = sum(counts) - entries[seq].tokens
            new_versions.append(ClientVersion(seq, target.head_seq + 1, to_seq, bodies, tokens_delta))
        versions = stored_versions.with_later_versions(new_versions, target.redacted_seqs)
        new_from_index = find_first_new_index(alignment)
        log_seqs = tuple(one.seq if one.kind in ALIGNED_MARKS else -1 for one in alignment.marks[:new_from_index])
        is_same_as_log = not versions and log_seqs == tuple(range(target.head_seq + 1))
        changed = tuple(entries[seq] for seq in versions)
        return ShownLog(
            log_seqs=None if is_same_as_log else log_seqs,
            client_versions=versions,
            new_versions=tuple(new_versions),
            changed_messages=changed,
        )


def join_prefill(prefill: Item | None, answer: Item) -> Item | None:
    """Returns the message that a client makes of a prefill and the answer that continues it; None without a prefill."""
    if prefill is None or prefill.role != "assistant" or prefill.calls_tools or answer.role != "assistant":
        return None
    return ChatMessage.from_text("assistant", prefill.text + answer.text)


def _build_log_elements(entries: Sequence[LogMessage]) -> list[Element]:
    elements: list[Element] = []
    previous_message: Item | None = None
    for entry in entries:
        others: list[Item] = [ChatMessage.from_body(body) for body in (entry.meta or {}).get("alternatives", ())]
        if (joined := join_prefill(previous_message, entry.message)) is not None:
            others.append(joined)
        elements.append(build_element(entry.message, alternatives=tuple(build_element(one).digest for one in others)))
        previous_message = entry.message
    return elements


def find_moved_seqs(log: Sequence[Element], history: Sequence[Element], alignment: Alignment) -> frozenset[int]:
    """Returns the omitted log messages that the history has unaligned, in another place."""
    unaligned = {
        element.digest
        for element, mark in zip(history, alignment.marks, strict=True)
        if mark.kind in ("inserted", "summary") and element.kind in ("user", "answer")
    }
    return frozenset(
        seq for first, past in alignment.omitted for seq in range(first, past) if log[seq].digest in unaligned
    )


def separate_moved(alignment: Alignment, moved_seqs: frozenset[int]) -> Alignment:
    """Returns an alignment in which nothing stands for moved messages: they are not left out."""
    if not moved_seqs:
        return alignment
    ends = {first: past for first, past in alignment.omitted if all(seq in moved_seqs for seq in range(first, past))}
    marks = [
        replace(mark, kind="inserted", seq=ends[mark.seq])
        if mark.kind in ("inserted", "summary") and mark.seq in ends
        else mark
        for mark in alignment.marks
    ]
    return replace(alignment, marks=tuple(marks))


def find_first_new_index(alignment: Alignment) -> int:
    """Returns the index of the first message that the log does not have."""
    index = alignment.first_new_index
    # A note after the last aligned message is new to the log, so the note is logged with the new messages.
    while index and alignment.marks[index - 1].kind == "note" and alignment.marks[index - 1].seq > alignment.last_seq:
        index -= 1
    return index


def find_changed_bodies(
    alignment: Alignment, raw_messages: Sequence[bytes]
) -> dict[int, tuple[int, tuple[bytes, ...]]]:
    """Returns what a history shows in the place of each log message that it changes: the seq after the replaced range,
    and the bodies."""
    ends = dict(alignment.omitted)
    shown: dict[int, tuple[int, tuple[bytes, ...]]] = {
        seq: (seq + 1, ()) for first, past in ends.items() for seq in range(first, past)
    }
    bodies_before: dict[int, tuple[bytes, ...]] = {}
    end = find_first_new_index(alignment)
    for raw, one in zip(raw_messages[:end], alignment.marks[:end], strict=True):
        body = bytes(raw)
        if one.kind in ALIGNED_MARKS:
            if one.kind == "rewritten" or one.seq in bodies_before:
                shown[one.seq] = (one.seq + 1, (*bodies_before.pop(one.seq, ()), body))
        elif one.seq in ends:
            # A note, or the client's own summary, at the beginning of an omitted range stands for the whole range.
            _, bodies = shown[one.seq]
            shown[one.seq] = (ends[one.seq], (*bodies, body))
        else:
            bodies_before[one.seq] = (*bodies_before.get(one.seq, ()), body)
    return shown
