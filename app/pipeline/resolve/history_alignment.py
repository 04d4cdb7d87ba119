"""Aligns a client history with a log whose messages the client has changed, and finds these changes.

A process remembers what alignment needs of the logs that it aligned last, and how far the last history of each was
aligned. So a client that rewrites its history with every turn costs a comparison of the new part, and no read. Without
that memory (after a restart, on another replica) the log is read once and compared as a whole (docs/decisions/0037).
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
    AlignmentElement,
    align_after_head,
    align_history,
    build_alignment_element,
    can_end_alignment_head,
    cut_alignment_head,
    record_first_seqs_of_answers_and_calls,
)
from app.conversation.conversation_types import ClientVersion, Conversation, LogMessage
from app.conversation.identity import PrefixCache
from app.conversation.item import Item
from app.dialects.chat.message import ChatMessage
from app.dialects.item_decoding import decode_item
from app.pipeline.resolve.client_history_matching import AlignedPrefix, ClientHistory
from app.pipeline.resolve.resolved_request import REWRITE_MARK
from app.pipeline.token_counting import MessageCounter
from app.store.contract.conversations import ConversationStore

MAX_REMEMBERED_MESSAGES: Final = 200_000
"""Messages of all remembered logs together. One message takes some 400 bytes, its place in the history included."""
VERSION_BYTES_PER_MESSAGE: Final = 400
"""How many bytes of a client's versions count as one message in `MAX_REMEMBERED_MESSAGES`."""
MIN_THREAD_MESSAGES: Final = 64
"""Longer histories are aligned in a thread."""
ALIGNED_MARKS: Final = ("same", "rewritten")


class AlignedHistory(msgspec.Struct, frozen=True):
    """A client history after its alignment with a log."""

    new_from_index: int
    """The index of the first message that the log does not have."""
    log_seqs: tuple[int, ...] | None
    """For each message before the new ones, the seq of its log message, or -1 if it has none. None if index and seq are
    the same."""
    client_versions: ClientVersions
    """The texts that the client shows in the place of log messages, this request's included."""
    new_versions: tuple[ClientVersion, ...]
    """Those of `client_versions` that come with this request."""


_AlignedPrefixes = Mapping[bytes, AlignedPrefix]
"""The aligned prefixes of a history, in order, each by its digest in `ClientHistory.interval_prefix_digests`."""


class _LastAlignment(msgspec.Struct, frozen=True):
    """The last alignment of a log, and the prefixes whose alignment can be used again."""

    alignment: Alignment | None = None
    aligned_prefixes: _AlignedPrefixes = MappingProxyType({})


class _RememberedLog(msgspec.Struct):
    """What is remembered of a log, and of the messages that its client sent last."""

    head_seq: int
    newest_message: Item | None
    """The message at `head_seq`."""
    redacted_seqs: tuple[int, ...]
    elements: list[AlignmentElement]
    joined_prefills: dict[bytes, int]
    """By the digest of an answer joined with its prefill: the answer's seq."""
    sent_elements: dict[bytes, AlignmentElement]
    """The elements of the messages that the client sent last, by the sha256 of their bytes."""
    first_seqs: dict[Hashable, int]
    """As `alignment.record_first_seqs_of_answers_and_calls` fills it."""
    last_alignment: _LastAlignment
    """The history that was aligned last."""
    versions: ClientVersions | None = None
    """The client's versions through `versions_seq`, as they are stored; None if they are not known."""
    versions_seq: int = -1
    versions_bytes: int = 0
    last_shown: tuple[ClientVersions, _AlignedPrefixes] | None = None
    """The versions and the aligned prefixes of the history that was aligned last."""

    @property
    def size_messages(self) -> int:
        """The size of this memory, in messages."""
        return len(self.elements) + self.versions_bytes // VERSION_BYTES_PER_MESSAGE

    def find_current_versions(self, conversation: Conversation, rewrite_mark: int) -> ClientVersions | None:
        """Returns the client's versions, or None if something was stored or erased that this process does not know.

        Args:
            rewrite_mark: `Conversation.state[REWRITE_MARK]`: one more than the seq from which the last change holds.
        """
        is_current = rewrite_mark <= self.versions_seq + 1 and self.versions_seq <= conversation.head_seq
        return self.versions if is_current and self.redacted_seqs == conversation.redacted_seqs else None


class HistoryAligner:
    """Aligns histories with logs. There is one instance for each process."""

    def __init__(self, store: ConversationStore, message_counter: MessageCounter) -> None:
        self._store = store
        self._message_counter = message_counter
        self._remembered_logs: OrderedDict[str, _RememberedLog] = OrderedDict()
        self._remembered_messages = 0
        self._conversation_ids_by_prefix: PrefixCache[str] = PrefixCache()
        """The conversations of aligned histories, by the histories' `interval_prefix_digests`."""

    def find_aligned_prefix(self, client_history: ClientHistory) -> AlignedPrefix | None:
        """Returns the longest beginning of a history that is known to be aligned, with its conversation."""
        for prefix_digest in (
            reversed(client_history.interval_prefix_digests) if self._conversation_ids_by_prefix else ()
        ):
            found = self._conversation_ids_by_prefix.find_longest_prefix([prefix_digest])
            remembered_log = None if found is None else self._remembered_logs.get(found[1])
            if (
                remembered_log is not None
                and (aligned_prefix := remembered_log.last_alignment.aligned_prefixes.get(prefix_digest[1])) is not None
            ):
                return aligned_prefix
        return None

    async def read_client_versions(self, conversation: Conversation, *, until_seq: int | None = None) -> ClientVersions:
        """Returns what the client shows in the place of log messages, as of its last turn.

        Args:
            until_seq: as for `ConversationStore.read_client_versions`.
        """
        rewrite_mark = conversation.state.get(REWRITE_MARK)
        if not rewrite_mark:
            return NO_VERSIONS
        # The memory knows the newest versions only; earlier ones are read from the store.
        remembered_log = None if until_seq is not None else self._remembered_logs.get(conversation.id)
        if (
            remembered_log is not None
            and (versions := remembered_log.find_current_versions(conversation, rewrite_mark)) is not None
        ):
            return versions
        stored = await self._store.read_client_versions(conversation, until_seq=until_seq)
        return ClientVersions.from_stored(stored, conversation.redacted_seqs)

    def remember_client_versions(self, conversation: Conversation, versions: ClientVersions) -> None:
        """Remembers what the client shows through the head of a conversation. Called after these versions are
        stored."""
        remembered_log = self._remembered_logs.get(conversation.id)
        if remembered_log is not None and remembered_log.redacted_seqs == conversation.redacted_seqs:
            size = versions.size_bytes
            updated = replace(
                remembered_log, versions=versions, versions_seq=conversation.head_seq, versions_bytes=size
            )
            self._remember_log(conversation.id, updated)

    async def align_history(
        self, conversation: Conversation, client_history: ClientHistory, *, is_named: bool
    ) -> Alignment:
        """Aligns a history with a conversation's log.

        Args:
            is_named: whether the client named the conversation.

        Raises:
            InvalidRequest: a message is not a JSON object.
            StoreUnavailable: the log cannot be read.
        """
        remembered_log = await self._load_remembered_log(conversation)
        aligned_prefix = _find_reusable_prefix(remembered_log, client_history, is_named=is_named)
        count = len(client_history.raw_messages) - (0 if aligned_prefix is None else aligned_prefix.last_index)
        if count <= MIN_THREAD_MESSAGES and (
            aligned_prefix is not None or len(remembered_log.elements) <= MIN_THREAD_MESSAGES
        ):
            alignment, elements = _align_from_prefix(
                remembered_log, client_history.raw_messages, aligned_prefix, is_named=is_named
            )
        else:
            alignment, elements = await asyncio.to_thread(
                _align_from_prefix, remembered_log, client_history.raw_messages, aligned_prefix, is_named=is_named
            )
        aligned_prefixes: dict[bytes, AlignedPrefix] = {}
        if aligned_prefix is not None:
            aligned_prefixes = {
                key: one
                for key, one in remembered_log.last_alignment.aligned_prefixes.items()
                if one.last_index <= aligned_prefix.last_index
            }
        if (
            # Only an alignment that reaches the log's head is worth remembering. With a joined prefill, indexes in the
            # history and in the alignment differ, so no prefix is remembered.
            alignment.continues_log
            and aligned_prefix is client_history.aligned_prefix
            and not remembered_log.joined_prefills
        ):
            aligned_prefixes |= await self._make_aligned_prefixes(
                conversation, remembered_log, client_history, alignment, elements, is_named=is_named
            )
        remembered_log.last_alignment = _LastAlignment(alignment, aligned_prefixes)
        return alignment

    async def _make_aligned_prefixes(
        self,
        conversation: Conversation,
        remembered_log: _RememberedLog,
        client_history: ClientHistory,
        alignment: Alignment,
        elements: Sequence[AlignmentElement],
        *,
        is_named: bool,
    ) -> _AlignedPrefixes:
        """Returns the aligned prefixes that end at `interval_prefix_digests`, after the history's known aligned prefix.

        Args:
            elements: the history's elements from the last message of that prefix on.
        """
        previous, aligned_prefixes = client_history.aligned_prefix, dict[bytes, AlignedPrefix]()
        prefix_digests = client_history.interval_prefix_digests
        if previous is not None:
            remembered_prefixes = remembered_log.last_alignment.aligned_prefixes
            prefix_digests = [
                one for one in prefix_digests if one[0] > previous.last_index + 1 and one[1] not in remembered_prefixes
            ]
        if not prefix_digests:
            return {}
        make = partial(
            _cut_alignment_at_prefixes,
            remembered_log,
            client_history.aligned_prefix,
            prefix_digests,
            alignment,
            elements,
            is_named=is_named,
        )
        parts = make() if len(prefix_digests) == 1 else await asyncio.to_thread(make)
        (first, positions), root = (
            await client_history.compute_newest_link_positions(),
            await client_history.find_log_root(),
        )
        for prefix_digest, part in parts:
            index, behind, behind_seq = len(part.message_alignments) - 1, 0, -1
            if previous is not None:
                behind, behind_seq = previous.last_index + 1, previous.last_seq
            omitted = tuple([stretch for stretch in part.omitted_ranges if stretch[0] > behind_seq])
            own_part = replace(part, message_alignments=part.message_alignments[behind:], omitted_ranges=omitted)
            previous = AlignedPrefix(
                index, positions[index - first], root, conversation.id, is_named, own_part, previous
            )
            aligned_prefixes[prefix_digest] = previous
            self._conversation_ids_by_prefix.put(prefix_digest, conversation.id)
        return aligned_prefixes

    async def build_aligned_history(
        self,
        conversation: Conversation,
        target: Conversation,
        raw_messages: Sequence[bytes],
        alignment: Alignment,
    ) -> AlignedHistory:
        """Compares what an aligned history shows with what its client has shown before, and returns the difference as
        new versions.

        Args:
            conversation: the conversation whose log the history was aligned with.
            target: the same conversation, or the branch that begins after the last aligned message.

        Raises:
            StoreUnavailable: the versions cannot be read.
        """
        remembered_log = await self._load_remembered_log(conversation)
        stored_versions = await self.read_client_versions(target)
        unchanged_prefix = _find_unchanged_prefix(remembered_log, alignment, stored_versions)
        shown_bodies, new_from_index = (
            _find_changed_bodies(alignment, raw_messages, unchanged_prefix),
            find_first_new_index(alignment),
        )
        new_versions: list[ClientVersion] = []
        for seq in sorted(
            {
                *shown_bodies,
                *stored_versions.list_changed_seqs_after(-1 if unchanged_prefix is None else unchanged_prefix.last_seq),
            }
        ):
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
                tokens_delta = sum(counts) - remembered_log.elements[seq].tokens
            new_versions.append(ClientVersion(seq, target.head_seq + 1, to_seq, bodies, tokens_delta))
        versions = stored_versions.with_later_versions(new_versions, target.redacted_seqs)
        remembered_log.last_shown = (
            versions,
            remembered_log.last_alignment.aligned_prefixes
            if remembered_log.last_alignment.alignment is alignment
            else {},
        )
        log_seqs = tuple(
            [one.seq if one.kind in ALIGNED_MARKS else -1 for one in alignment.message_alignments[:new_from_index]]
        )
        is_same_as_log = not versions and log_seqs == tuple(range(target.head_seq + 1))
        return AlignedHistory(new_from_index, None if is_same_as_log else log_seqs, versions, tuple(new_versions))

    async def _load_remembered_log(self, conversation: Conversation) -> _RememberedLog:
        """Returns what alignment needs of a log: the remembered part, and the rest read from the store."""
        remembered_log = self._remembered_logs.get(conversation.id)
        head_seq = conversation.head_seq
        # An erasure, or a head before the remembered one, means that the remembered texts may be gone from the log.
        is_outdated = remembered_log is not None and (
            remembered_log.redacted_seqs != conversation.redacted_seqs or remembered_log.head_seq > head_seq
        )
        if remembered_log is None or is_outdated:
            remembered_log = _RememberedLog(-1, None, conversation.redacted_seqs, [], {}, {}, {}, _LastAlignment())
        if remembered_log.head_seq < head_seq:
            entries = await self._store.read_log(conversation, remembered_log.head_seq + 1, head_seq + 1)
            if len(entries) > MIN_THREAD_MESSAGES:
                elements, joined_prefills = await asyncio.to_thread(
                    _build_log_elements, entries, remembered_log.newest_message
                )
            else:
                elements, joined_prefills = _build_log_elements(entries, remembered_log.newest_message)
            record_first_seqs_of_answers_and_calls(remembered_log.first_seqs, elements, remembered_log.head_seq + 1)
            remembered_log = replace(
                remembered_log,
                head_seq=head_seq,
                newest_message=entries[-1].message,
                elements=[*remembered_log.elements, *elements],
                joined_prefills=remembered_log.joined_prefills | joined_prefills,
            )
        self._remember_log(conversation.id, remembered_log)
        return remembered_log

    def _remember_log(self, conversation_id: str, remembered_log: _RememberedLog) -> None:
        previous = self._remembered_logs.pop(conversation_id, None)
        self._remembered_messages += remembered_log.size_messages - (
            previous.size_messages if previous is not None else 0
        )
        self._remembered_logs[conversation_id] = remembered_log
        # At least one log stays: a log above the limit is needed by the request under way.
        while self._remembered_messages > MAX_REMEMBERED_MESSAGES and len(self._remembered_logs) > 1:
            _, oldest = self._remembered_logs.popitem(last=False)
            self._remembered_messages -= oldest.size_messages


def _find_reusable_prefix(
    remembered_log: _RememberedLog, client_history: ClientHistory, *, is_named: bool
) -> AlignedPrefix | None:
    """Returns the history's known aligned prefix, if it was aligned with this log."""
    aligned_prefix = client_history.aligned_prefix
    if aligned_prefix is None or aligned_prefix.is_named != is_named or remembered_log.joined_prefills:
        return None
    # By identity: only a prefix that this log still remembers is valid for it.
    return (
        aligned_prefix
        if any(one is aligned_prefix for one in remembered_log.last_alignment.aligned_prefixes.values())
        else None
    )


def _find_unchanged_prefix(
    remembered_log: _RememberedLog, alignment: Alignment, stored_versions: ClientVersions
) -> AlignedPrefix | None:
    """Returns the longest prefix of a history that shows the log exactly as the stored versions say; None if that is
    not known. The prefix must be part of the history that was aligned last, and nothing else may have been stored
    since."""
    if (
        remembered_log.last_shown is None
        or remembered_log.last_shown[0] is not stored_versions
        or remembered_log.last_alignment.alignment is not alignment
    ):
        return None
    shared_prefixes = [
        one
        for key, one in remembered_log.last_alignment.aligned_prefixes.items()
        if remembered_log.last_shown[1].get(key) is one
    ]
    return shared_prefixes[-1] if shared_prefixes else None


def _align_from_prefix(
    remembered_log: _RememberedLog,
    raw_messages: Sequence[bytes],
    aligned_prefix: AlignedPrefix | None,
    *,
    is_named: bool,
) -> tuple[Alignment, list[AlignmentElement]]:
    """Returns the alignment of a history, and its elements from the end of `aligned_prefix` on."""
    if aligned_prefix is not None:
        elements = _build_history_elements(remembered_log, raw_messages[aligned_prefix.last_index :])
        alignment = align_after_head(
            aligned_prefix.alignment,
            remembered_log.elements,
            elements,
            remembered_log.first_seqs,
            is_log_named=is_named,
        )
        if alignment is not None:
            return alignment, elements
    elements = _build_history_elements(remembered_log, raw_messages)
    return _align_whole_history(remembered_log, elements, is_named=is_named), elements[
        0 if aligned_prefix is None else aligned_prefix.last_index :
    ]


def _cut_alignment_at_prefixes(
    remembered_log: _RememberedLog,
    aligned_prefix: AlignedPrefix | None,
    prefix_digests: Sequence[tuple[int, bytes]],
    alignment: Alignment,
    elements: Sequence[AlignmentElement],
    *,
    is_named: bool,
) -> list[tuple[bytes, Alignment]]:
    """Returns for each prefix digest the part of an alignment that ends before it, where such a part exists.

    Args:
        aligned_prefix: the first of these parts begins after this prefix.
        elements: the history's elements from the last message of `aligned_prefix` on.
    """
    first = 0 if aligned_prefix is None else aligned_prefix.last_index
    last_part = None if aligned_prefix is None else aligned_prefix.alignment
    parts: list[tuple[bytes, Alignment]] = []
    for count, prefix_digest in prefix_digests:
        behind = -1 if last_part is None else len(last_part.message_alignments) - 1
        for index in range(min(count, alignment.first_new_index) - 1, behind, -1):
            mark = alignment.message_alignments[index]
            if mark.kind == "same" and can_end_alignment_head(
                remembered_log.elements, mark.seq, remembered_log.first_seqs
            ):
                rest = elements[max(behind, 0) - first :]
                last_part = cut_alignment_head(
                    alignment,
                    index,
                    last_part,
                    remembered_log.elements,
                    rest,
                    remembered_log.first_seqs,
                    is_log_named=is_named,
                )
                if last_part is None:
                    return parts
                parts.append((prefix_digest, last_part))
                break
    return parts


def _build_history_elements(remembered_log: _RememberedLog, raw_messages: Sequence[bytes]) -> list[AlignmentElement]:
    """Returns the elements of a history's messages. Elements of messages that were in the last history are not computed
    again."""
    sent_elements = {}
    elements = []
    for raw in raw_messages:
        key = hashlib.sha256(raw).digest()
        element = remembered_log.sent_elements.get(key)
        if element is None:
            element = build_alignment_element(decode_item(bytes(raw)), log=remembered_log.elements)
        sent_elements[key] = element
        elements.append(element)
    remembered_log.sent_elements = sent_elements
    return elements


def _align_whole_history(
    remembered_log: _RememberedLog, elements: Sequence[AlignmentElement], *, is_named: bool
) -> Alignment:
    if remembered_log.joined_prefills.keys().isdisjoint([element.digest for element in elements]):
        return align_history(remembered_log.elements, elements, is_log_named=is_named)
    return _align_joined_prefills(remembered_log, elements, is_named=is_named)


def _align_joined_prefills(
    remembered_log: _RememberedLog, elements: Sequence[AlignmentElement], *, is_named: bool
) -> Alignment:
    """Aligns a history in which the client has joined answers with their prefills. The two are aligned as separate
    messages; then the joined message takes the answer's place, and the prefill counts as omitted."""
    split_elements: list[AlignmentElement] = []
    split_indexes: list[int] = []
    for element in elements:
        if (answer := remembered_log.joined_prefills.get(element.digest)) is not None:
            split_elements.append(remembered_log.elements[answer - 1])
        split_indexes.append(len(split_elements))
        split_elements.append(element if answer is None else remembered_log.elements[answer])
    alignment = align_history(remembered_log.elements, split_elements, is_log_named=is_named)
    marks, omitted = [], list(alignment.omitted_ranges)
    for element, split_index in zip(elements, split_indexes, strict=True):
        mark = alignment.message_alignments[split_index]
        if element.digest in remembered_log.joined_prefills and mark.kind == "same":
            mark = replace(mark, kind="rewritten")
            omitted.append((mark.seq - 1, mark.seq))
        marks.append(mark)
    return replace(
        alignment,
        message_alignments=tuple(marks),
        omitted_ranges=tuple(sorted(omitted)),
        first_new_index=next(
            (count for count, index in enumerate(split_indexes) if index >= alignment.first_new_index), len(elements)
        ),
    )


def _build_log_elements(
    entries: Sequence[LogMessage], previous_message: Item | None
) -> tuple[list[AlignmentElement], dict[bytes, int]]:
    """Returns the elements of log messages, and their `_RememberedLog.joined_prefills`.

    Args:
        previous_message: the message before the first entry.
    """
    elements: list[AlignmentElement] = []
    joined_prefills: dict[bytes, int] = {}
    for entry in entries:
        elements.append(_build_log_element(entry))
        if (joined_message := join_prefill(previous_message, entry.message)) is not None:
            joined_prefills[build_alignment_element(joined_message).digest] = entry.seq
        previous_message = entry.message
    return elements, joined_prefills


def join_prefill(prefill: Item | None, answer: Item) -> Item | None:
    """Returns the message that a client makes of a prefill and the answer that continues it; None without a prefill."""
    if prefill is None or prefill.role != "assistant" or prefill.calls_tools or answer.role != "assistant":
        return None
    return ChatMessage.from_text("assistant", prefill.text + answer.text)


def _build_log_element(entry: LogMessage) -> AlignmentElement:
    meta = entry.meta or {}
    alternatives = tuple(
        build_alignment_element(ChatMessage.from_body(body)).digest for body in meta.get("alternatives", ())
    )
    is_answer = "id" in meta and entry.message.role == "assistant"
    return build_alignment_element(entry.message, tokens=entry.tokens, is_answer=is_answer, alternatives=alternatives)


def find_first_new_index(alignment: Alignment) -> int:
    """Returns the index of the first message that the log does not have."""
    index = alignment.first_new_index
    # A note after the last aligned message is new to the log, so the note is logged with the new messages.
    while (
        index
        and alignment.message_alignments[index - 1].kind == "note"
        and alignment.message_alignments[index - 1].seq > alignment.last_seq
    ):
        index -= 1
    return index


def _find_changed_bodies(
    alignment: Alignment, raw_messages: Sequence[bytes], unchanged_prefix: AlignedPrefix | None
) -> dict[int, tuple[int, tuple[bytes, ...]]]:
    """Returns what a history shows in the place of each log message that it changes: the seq after the replaced range,
    and the bodies.

    Args:
        unchanged_prefix: only messages after this prefix are examined.
    """
    shown: dict[int, tuple[int, tuple[bytes, ...]]] = {}
    start, seq = (0, -1) if unchanged_prefix is None else (unchanged_prefix.last_index + 1, unchanged_prefix.last_seq)
    ends = {first: past for first, past in alignment.omitted_ranges if first > seq}
    for first, past in ends.items():
        shown |= {seq: (seq + 1, ()) for seq in range(first, past)}
    bodies_before: dict[int, tuple[bytes, ...]] = {}
    end = find_first_new_index(alignment)
    for raw, one in zip(raw_messages[start:end], alignment.message_alignments[start:end], strict=True):
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
