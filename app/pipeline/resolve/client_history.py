"""Client histories that are not the stored log message for message: aligned with it, and what the client changed.

A process remembers what alignment needs of the logs that were aligned last, and how far the last history of each was
aligned: a client that rewrites its history with every turn costs a comparison of what is new or changed since, and no
reading. Without that memory (after a restart, on another replica) the log is read once, and all of it compared.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec.structs import replace

from app.context.view.client_versions import NO_VERSIONS, ClientVersions
from app.conversation.alignment import (
    Alignment,
    Element,
    align,
    align_behind,
    cut_head,
    element_from,
    is_end,
    note_firsts,
)
from app.conversation.identity import PrefixMemory
from app.conversation.messages import ClientVersion, Conversation, LogMessage, Message
from app.pipeline.resolve.resent_history import Checkpoint, History
from app.pipeline.resolve.resolved_request import REWRITTEN
from app.pipeline.token_counting import Counting
from app.store.contract import Store

REMEMBERED_MESSAGES: Final = 200_000
"""Of all remembered logs together; with its place in the history, one takes some 400 bytes."""
MESSAGE_BYTES: Final = 400
"""So many bytes of a client's versions count for a message."""
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


_Checkpoints = Mapping[bytes, Checkpoint]
"""Of a history, in order, each by the landmark that it stands before."""


class _Aligned(msgspec.Struct, frozen=True):
    """An alignment, and how far it need not be made again."""

    alignment: Alignment | None = None
    checkpoints: _Checkpoints = MappingProxyType({})


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
    firsts: dict[Hashable, int]
    """As `alignment.note_firsts` gives them."""
    aligned: _Aligned
    """The history that was aligned last."""
    versions: ClientVersions | None = None
    """What the client shows through `versions_seq`, as it is stored; None where that is not known."""
    versions_seq: int = -1
    versions_bytes: int = 0
    placed: tuple[ClientVersions, _Checkpoints] | None = None
    """What the history shows that was placed last, and its checkpoints."""

    @property
    def size(self) -> int:
        """How much is remembered, in messages."""
        return len(self.elements) + self.versions_bytes // MESSAGE_BYTES

    def find_versions(self, conversation: Conversation, mark: int) -> ClientVersions | None:
        """What the client shows, if nothing was stored or erased since that is not known here.

        Args:
            mark: `Conversation.state[REWRITTEN]`: one more than the seq from which on the last change holds.
        """
        is_current = mark <= self.versions_seq + 1 and self.versions_seq <= conversation.head_seq
        return self.versions if is_current and self.redacted == conversation.redacted else None


class ClientHistories:
    """Aligns histories with logs. One for each process."""

    def __init__(self, store: Store, counting: Counting) -> None:
        self._store = store
        self._counting = counting
        self._known: OrderedDict[str, _KnownLog] = OrderedDict()
        self._remembered = 0
        self._landmarks: PrefixMemory[str] = PrefixMemory()
        """Conversations by the landmarks of histories that were aligned with them."""

    def recall(self, log: History) -> Checkpoint | None:
        """How far the beginning of a history is known to be aligned, and with which conversation."""
        for landmark in reversed(log.landmarks) if self._landmarks else ():
            found = self._landmarks.recall([landmark])
            known = None if found is None else self._known.get(found[1])
            if known is not None and (checkpoint := known.aligned.checkpoints.get(landmark[1])) is not None:
                return checkpoint
        return None

    async def read_versions(self, conversation: Conversation, *, until_seq: int | None = None) -> ClientVersions:
        """What the client shows otherwise than it was said, as of its last turn.

        Args:
            until_seq: as `Store.versions`.
        """
        mark = conversation.state.get(REWRITTEN)
        if not mark:
            return NO_VERSIONS
        known = None if until_seq is not None else self._known.get(conversation.id)
        if known is not None and (versions := known.find_versions(conversation, mark)) is not None:
            return versions
        stored = await self._store.versions(conversation, until_seq=until_seq)
        return ClientVersions.from_stored(stored, conversation.redacted)

    def note_versions(self, conversation: Conversation, versions: ClientVersions) -> None:
        """Remember what the client shows through the head of a conversation, now that this is stored."""
        known = self._known.get(conversation.id)
        if known is not None and known.redacted == conversation.redacted:
            size = versions.size_bytes
            noted = replace(known, versions=versions, versions_seq=conversation.head_seq, versions_bytes=size)
            self._remember(conversation.id, noted)

    async def align(self, conversation: Conversation, log: History, *, named: bool) -> Alignment:
        """Align a history with a conversation's log.

        Args:
            named: the client named the conversation.

        Raises:
            InvalidRequest: a message is not a JSON object.
            StoreUnavailable: the log cannot be read.
        """
        known = await self._log(conversation)
        start = _find_checkpoint(known, log, named=named)
        count = len(log.raws) - (0 if start is None else start.at)
        if count <= THREAD_MESSAGES and (start is not None or len(known.elements) <= THREAD_MESSAGES):
            alignment, history = _align_history(known, log.raws, start, named=named)
        else:
            alignment, history = await asyncio.to_thread(_align_history, known, log.raws, start, named=named)
        checkpoints: dict[bytes, Checkpoint] = {}
        if start is not None:
            checkpoints = {key: one for key, one in known.aligned.checkpoints.items() if one.at <= start.at}
        if alignment.continues and start is log.checkpoint and not known.joined:
            checkpoints |= await self._make_checkpoints(conversation, known, log, alignment, history, named=named)
        known.aligned = _Aligned(alignment, checkpoints)
        return alignment

    async def _make_checkpoints(
        self,
        conversation: Conversation,
        known: _KnownLog,
        log: History,
        alignment: Alignment,
        history: Sequence[Element],
        *,
        named: bool,
    ) -> _Checkpoints:
        """Those for the landmarks behind the history's own checkpoint.

        Args:
            history: from that checkpoint on.
        """
        before, checkpoints = log.checkpoint, dict[bytes, Checkpoint]()
        landmarks = log.landmarks
        if before is not None:
            had = known.aligned.checkpoints
            landmarks = [one for one in landmarks if one[0] > before.at + 1 and one[1] not in had]
        if not landmarks:
            return {}
        make = partial(_close_parts, known, log.checkpoint, landmarks, alignment, history, named=named)
        closed = make() if len(landmarks) == 1 else await asyncio.to_thread(make)
        (first, positions), root = await log.newest_positions(), await log.find_root()
        for landmark, part in closed:
            at, behind, behind_seq = len(part.marks) - 1, 0, -1
            if before is not None:
                behind, behind_seq = before.at + 1, before.seq
            omitted = tuple([stretch for stretch in part.omitted if stretch[0] > behind_seq])
            own = replace(part, marks=part.marks[behind:], omitted=omitted)
            before = Checkpoint(at, positions[at - first], root, conversation.id, named, own, before)
            checkpoints[landmark] = before
            self._landmarks.remember(landmark, conversation.id)
        return checkpoints

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
        known = await self._log(conversation)
        before = await self.read_versions(placed)
        settled = _find_settled(known, alignment, before)
        wanted, new_from = _shown(alignment, raws, settled), new_index(alignment)
        changes: list[ClientVersion] = []
        for seq in sorted({*wanted, *before.seqs_behind(-1 if settled is None else settled.seq)}):
            to_seq, bodies = wanted.get(seq, (seq + 1, None))
            earlier = before.get(seq)
            is_known = bodies is None if earlier is None else (earlier.to_seq, earlier.bodies) == (to_seq, bodies)
            if is_known or any(seq <= gone < to_seq for gone in placed.redacted):
                continue
            delta = 0
            if bodies is not None:
                counts = await self._counting.messages([Message(body) for body in bodies], placed.counter)
                delta = sum(counts) - known.elements[seq].tokens
            changes.append(ClientVersion(seq, placed.head_seq + 1, to_seq, bodies, delta))
        versions = before.updated(changes, placed.redacted)
        known.placed = versions, known.aligned.checkpoints if known.aligned.alignment is alignment else {}
        seqs = tuple([one.seq if one.mark in ALIGNED else -1 for one in alignment.marks[:new_from]])
        is_whole = not versions and seqs == tuple(range(placed.head_seq + 1))
        return AlignedHistory(new_from, None if is_whole else seqs, versions, tuple(changes))

    async def _log(self, conversation: Conversation) -> _KnownLog:
        """What alignment needs of a log: remembered, and read from where the memory ends."""
        known = self._known.get(conversation.id)
        head = conversation.head_seq
        is_other = known is not None and (known.redacted != conversation.redacted or known.head_seq > head)
        if known is None or is_other:
            known = _KnownLog(-1, None, conversation.redacted, [], {}, {}, {}, _Aligned())
        if known.head_seq < head:
            entries = await self._store.read(conversation, known.head_seq + 1, head + 1)
            if len(entries) > THREAD_MESSAGES:
                elements, joined = await asyncio.to_thread(_elements_of, entries, known.newest)
            else:
                elements, joined = _elements_of(entries, known.newest)
            note_firsts(known.firsts, elements, known.head_seq + 1)
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
        self._remembered += known.size - (before.size if before is not None else 0)
        self._known[conversation_id] = known
        while self._remembered > REMEMBERED_MESSAGES and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._remembered -= oldest.size


def _find_checkpoint(known: _KnownLog, log: History, *, named: bool) -> Checkpoint | None:
    """How far a history is known to be aligned with this very log."""
    start = log.checkpoint
    if start is None or start.named != named or known.joined:
        return None
    return start if any(one is start for one in known.aligned.checkpoints.values()) else None


def _find_settled(known: _KnownLog, alignment: Alignment, before: ClientVersions) -> Checkpoint | None:
    """The last message of a history through which the log is shown as its versions say: the history that was placed
    last began the same, and nothing else has been stored since."""
    if known.placed is None or known.placed[0] is not before or known.aligned.alignment is not alignment:
        return None
    shared = [one for key, one in known.aligned.checkpoints.items() if known.placed[1].get(key) is one]
    return shared[-1] if shared else None


def _align_history(
    known: _KnownLog, raws: Sequence[bytes], start: Checkpoint | None, *, named: bool
) -> tuple[Alignment, list[Element]]:
    """The alignment of a history, and its elements from `start` on."""
    if start is not None:
        history = _read_elements(known, raws[start.at :])
        alignment = align_behind(start.head, known.elements, history, known.firsts, named=named)
        if alignment is not None:
            return alignment, history
    history = _read_elements(known, raws)
    return _align_whole(known, history, named=named), history[0 if start is None else start.at :]


def _close_parts(
    known: _KnownLog,
    start: Checkpoint | None,
    landmarks: Sequence[tuple[int, bytes]],
    alignment: Alignment,
    history: Sequence[Element],
    *,
    named: bool,
) -> list[tuple[bytes, Alignment]]:
    """Parts of an alignment that end before each of the landmarks, where there is such a part.

    Args:
        start: the part before all of these ends here.
        history: from `start` on.
    """
    first = 0 if start is None else start.at
    head = None if start is None else start.head
    parts: list[tuple[bytes, Alignment]] = []
    for count, landmark in landmarks:
        behind = -1 if head is None else len(head.marks) - 1
        for at in range(min(count, alignment.new_from) - 1, behind, -1):
            mark = alignment.marks[at]
            if mark.mark == "same" and is_end(known.elements, mark.seq, known.firsts):
                rest = history[max(behind, 0) - first :]
                head = cut_head(alignment, at, head, known.elements, rest, known.firsts, named=named)
                if head is None:
                    return parts
                parts.append((landmark, head))
                break
    return parts


def _read_elements(known: _KnownLog, raws: Sequence[bytes]) -> list[Element]:
    """The elements of a history's messages; those of messages that were sent before are known."""
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
    return history


def _align_whole(known: _KnownLog, history: Sequence[Element], *, named: bool) -> Alignment:
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


def _shown(
    alignment: Alignment, raws: Sequence[bytes], settled: Checkpoint | None
) -> dict[int, tuple[int, tuple[bytes, ...]]]:
    """What a history shows in the place of each log message that it changes: where that ends, and the bodies.

    Args:
        settled: look only at what is behind.
    """
    shown: dict[int, tuple[int, tuple[bytes, ...]]] = {}
    start, seq = (0, -1) if settled is None else (settled.at + 1, settled.seq)
    ends = {first: past for first, past in alignment.omitted if first > seq}
    for first, past in ends.items():
        shown |= {seq: (seq + 1, ()) for seq in range(first, past)}
    before: dict[int, tuple[bytes, ...]] = {}
    end = new_index(alignment)
    for raw, one in zip(raws[start:end], alignment.marks[start:end], strict=True):
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
