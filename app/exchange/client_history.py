"""Client histories that are not the stored log message for message: aligned with it, and what the client changed.

A process remembers what alignment needs of the logs that were aligned last, so that a client that rewrites its history
with every turn costs a comparison and no reading. Without that memory (after a restart, on another replica) the log is
read once.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from app.context.versions import NO_VERSIONS, ClientVersions
from app.conversation.alignment import Alignment, Element, align, element_from
from app.conversation.messages import ClientVersion, Conversation, LogMessage, Message
from app.exchange.counting import Counting
from app.exchange.placement import REWRITTEN
from app.store.base import Store

REMEMBERED_MESSAGES: Final = 200_000
"""Of all remembered logs together; an element takes some 300 bytes."""
THREAD_MESSAGES: Final = 64
"""Longer histories are aligned off the event loop."""
ALIGNED: Final = ("same", "rewritten")


class AlignedHistory(msgspec.Struct, frozen=True):
    """A client history in its place beside a log."""

    new_from: int
    """The index of the first message that the log does not have."""
    seqs: tuple[int, ...] | None
    """For each message before the new ones its log message, -1 where it has none; None where they are the same."""
    versions: ClientVersions
    """What the client shows in the place of log messages, with this request."""
    changes: tuple[ClientVersion, ...]
    """Those of them that are new."""


class _KnownLog(msgspec.Struct):
    """What is remembered of a log, and of the messages that its client last sent, by the digest of their text."""

    head_seq: int
    newest: Message | None
    """The message at `head_seq`."""
    redacted: tuple[int, ...]
    elements: list[Element]
    joined: dict[bytes, int]
    """By the digest of an answer joined with its prefill: the answer's place in the log."""
    sent: dict[bytes, Element]


class ClientHistories:
    """Aligns histories with logs. One for each process."""

    def __init__(self, store: Store, counting: Counting) -> None:
        self._store = store
        self._counting = counting
        self._known: OrderedDict[str, _KnownLog] = OrderedDict()
        self._remembered = 0

    async def read_versions(self, conversation: Conversation, *, until_seq: int | None = None) -> ClientVersions:
        """What the client shows otherwise than it was said, as of its last turn.

        Args:
            until_seq: as `Store.versions`.
        """
        mark = conversation.state.get(REWRITTEN)
        if not mark:
            return NO_VERSIONS
        stored = await self._store.versions(conversation, until_seq=until_seq)
        return ClientVersions.from_stored(stored, conversation.redacted)

    async def align(self, conversation: Conversation, raws: Sequence[bytes], *, named: bool) -> Alignment:
        """Align a history with a conversation's log.

        Args:
            raws: JSON text of each message of the history, instructions left out.
            named: the client named the conversation.

        Raises:
            InvalidRequest: a message is not a JSON object.
            StoreUnavailable: the log cannot be read.
        """
        known = await self._log(conversation)
        if len(raws) <= THREAD_MESSAGES and len(known.elements) <= THREAD_MESSAGES:
            return _aligned(known, raws, named=named)
        return await asyncio.to_thread(_aligned, known, raws, named=named)

    async def place(
        self,
        conversation: Conversation,
        placed: Conversation,
        raws: Sequence[bytes],
        alignment: Alignment,
    ) -> AlignedHistory:
        """What a history that was aligned changes of what its client has shown so far.

        Args:
            conversation: whose log it was aligned with.
            placed: the same, or the branch that begins after the last aligned message.

        Raises:
            StoreUnavailable: the versions cannot be read.
        """
        elements = (await self._log(conversation)).elements
        before = await self.read_versions(placed)
        wanted, new_from = _shown(alignment, raws), new_index(alignment)
        changes: list[ClientVersion] = []
        for seq in sorted({*wanted, *before}):
            to_seq, bodies = wanted.get(seq, (seq + 1, None))
            earlier = before.get(seq)
            is_known = bodies is None if earlier is None else (earlier.to_seq, earlier.bodies) == (to_seq, bodies)
            if is_known or any(seq <= gone < to_seq for gone in placed.redacted):
                continue
            delta = 0
            if bodies is not None:
                counts = await self._counting.messages([Message(body) for body in bodies], placed.encoding)
                delta = sum(counts) - elements[seq].tokens
            changes.append(ClientVersion(seq, placed.head_seq + 1, to_seq, bodies, delta))
        versions = before.updated(changes, placed.redacted)
        seqs = tuple(one.seq if one.mark in ALIGNED else -1 for one in alignment.marks[:new_from])
        is_whole = not versions and seqs == tuple(range(placed.head_seq + 1))
        return AlignedHistory(new_from, None if is_whole else seqs, versions, tuple(changes))

    async def _log(self, conversation: Conversation) -> _KnownLog:
        """What alignment needs of a log: remembered, and read from where the memory ends."""
        known = self._known.get(conversation.id)
        head = conversation.head_seq
        is_other = known is not None and (known.redacted != conversation.redacted or known.head_seq > head)
        if known is None or is_other:
            known = _KnownLog(-1, None, conversation.redacted, [], {}, {})
        if known.head_seq < head:
            entries = await self._store.read(conversation, known.head_seq + 1, head + 1)
            if len(entries) > THREAD_MESSAGES:
                elements, joined = await asyncio.to_thread(_elements_of, entries, known.newest)
            else:
                elements, joined = _elements_of(entries, known.newest)
            known = replace(
                known,
                head_seq=head,
                newest=entries[-1].message,
                elements=[*known.elements, *elements],
                joined=known.joined | joined,
            )
        self._remember(conversation.id, known)
        return known

    def _remember(self, conversation_id: str, known: _KnownLog) -> None:
        before = self._known.pop(conversation_id, None)
        self._remembered += len(known.elements) - (len(before.elements) if before is not None else 0)
        self._known[conversation_id] = known
        while self._remembered > REMEMBERED_MESSAGES and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._remembered -= len(oldest.elements)


def _aligned(known: _KnownLog, raws: Sequence[bytes], *, named: bool) -> Alignment:
    sent = {}
    history = []
    for raw in raws:
        key = hashlib.sha256(raw).digest()
        element = known.sent.get(key)
        if element is None:
            element = element_from(Message(bytes(raw)))
        sent[key] = element
        history.append(element)
    known.sent = sent
    if known.joined.keys().isdisjoint([element.digest for element in history]):
        return align(known.elements, history, named=named)
    return _align_joined(known, history, named=named)


def _align_joined(known: _KnownLog, history: Sequence[Element], *, named: bool) -> Alignment:
    """Align a history in which answers are joined with their prefills: it is aligned as if they were apart, and a
    joined message stands in the place of the answer."""
    apart: list[Element] = []
    places: list[int] = []
    for element in history:
        if (answer := known.joined.get(element.digest)) is not None:
            apart.append(known.elements[answer - 1])
        places.append(len(apart))
        apart.append(element if answer is None else known.elements[answer])
    alignment = align(known.elements, apart, named=named)
    marks, omitted = [], list(alignment.omitted)
    for element, place in zip(history, places, strict=True):
        mark = alignment.marks[place]
        if element.digest in known.joined and mark.mark == "same":
            mark = replace(mark, mark="rewritten")
            omitted.append((mark.seq - 1, mark.seq))
        marks.append(mark)
    return replace(
        alignment,
        marks=tuple(marks),
        omitted=tuple(sorted(omitted)),
        new_from=next((at for at, place in enumerate(places) if place >= alignment.new_from), len(history)),
    )


def _elements_of(entries: Sequence[LogMessage], before: Message | None) -> tuple[list[Element], dict[bytes, int]]:
    """The elements of log messages, and `_KnownLog.joined` of them.

    Args:
        before: the message in front of the first.
    """
    elements: list[Element] = []
    joined: dict[bytes, int] = {}
    for entry in entries:
        elements.append(_element_of(entry))
        if (both := join_prefill(before, entry.message)) is not None:
            joined[element_from(both).digest] = entry.seq
        before = entry.message
    return elements, joined


def join_prefill(prefill: Message | None, answer: Message) -> Message | None:
    """The message that a client makes of the beginning that it gave an answer, and of the answer; None without one."""
    if prefill is None or prefill.role != "assistant" or prefill.tool_calls or answer.role != "assistant":
        return None
    return Message.of({"role": "assistant", "content": prefill.text + answer.text})


def _element_of(entry: LogMessage) -> Element:
    meta = entry.meta or {}
    alternatives = tuple(element_from(Message.of(body)).digest for body in meta.get("alternatives", ()))
    is_answer = "id" in meta and entry.message.role == "assistant"
    return element_from(entry.message, tokens=entry.tokens, is_answer=is_answer, alternatives=alternatives)


def new_index(alignment: Alignment) -> int:
    """The index of the first message behind those that the log has. A note that stands there is logged as well."""
    index = alignment.new_from
    while index and alignment.marks[index - 1].mark == "note" and alignment.marks[index - 1].seq > alignment.last_seq:
        index -= 1
    return index


def _shown(alignment: Alignment, raws: Sequence[bytes]) -> dict[int, tuple[int, tuple[bytes, ...]]]:
    """What a history shows in the place of each log message that it changes: where that ends, and the bodies."""
    shown: dict[int, tuple[int, tuple[bytes, ...]]] = {}
    ends = dict(alignment.omitted)
    for first, past in alignment.omitted:
        shown |= {seq: (seq + 1, ()) for seq in range(first, past)}
    before: dict[int, tuple[bytes, ...]] = {}
    for raw, one in zip(raws[: new_index(alignment)], alignment.marks, strict=False):
        body = bytes(raw)
        if one.mark in ALIGNED:
            if one.mark == "rewritten" or one.seq in before:
                shown[one.seq] = (one.seq + 1, (*before.pop(one.seq, ()), body))
        elif one.seq in ends:
            _, bodies = shown[one.seq]
            shown[one.seq] = (ends[one.seq], (*bodies, body))
        else:
            before[one.seq] = (*before.get(one.seq, ()), body)
    return shown
