"""Aligns a client history with a conversation's log: finds for each message of the history what it is to the log.

Clients change what they resend: they add and remove notes, mask or drop old tool results, keep a sliding window, or put
a summary of their own in the place of old messages. The alignment finds, without I/O, which messages are still those of
the log and which are new. `conversation.alignment_pairs` pairs equal messages and versions; this module interprets the
pairs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Literal

import msgspec
from msgspec.structs import replace

from app.conversation.alignment_pairs import (
    MIN_ANCHOR_TOKENS,
    MIN_PREFIX_CHARACTERS,
    AlignmentElement,
    ElementKind,
    MessagePairing,
    has_random_call_ids,
    is_answer_version,
    is_long_answer,
    is_random_call_id,
    order_indexes_by_calls,
)
from app.conversation.canonical_form import normalize_text
from app.conversation.item import Item

__all__ = [
    "MIN_ANCHOR_TOKENS",
    "MIN_PREFIX_CHARACTERS",
    "Alignment",
    "AlignmentElement",
    "AlignmentMark",
    "ElementKind",
    "MessageAlignment",
    "align_after_head",
    "align_history",
    "build_alignment_element",
    "can_end_alignment_head",
    "cut_alignment_head",
    "is_random_call_id",
    "record_first_seqs_of_answers_and_calls",
]

AlignmentMark = Literal["same", "rewritten", "note", "inserted", "summary", "new"]

MIN_SUMMARY_ROUNDS = 2
"""A message in the place of at least this many omitted rounds is the client's own summary of them."""
MIN_EXCHANGE_TOKENS = MIN_ANCHOR_TOKENS + 8
"""A question and its short answer, together, must have this many tokens to be recognised. Each message has four tokens
besides its text."""
DIGEST_BYTES = 16

_KINDS: dict[str, ElementKind] = {"assistant": "assistant", "tool": "tool", "function": "tool"}
"""Kinds by role. A message with an unknown role is compared like a user's."""


class MessageAlignment(msgspec.Struct, frozen=True):
    """What one message of the history is to the log."""

    kind: AlignmentMark
    seq: int
    """same, rewritten: the seq of the message's log message. note, inserted, summary: the seq of the log message that
    follows it; beside an omitted range, the first seq of that range. A note among new messages has the seq that the
    next new message gets. new: -1."""


class Alignment(msgspec.Struct, frozen=True):
    """The alignment of a history with a log."""

    message_alignments: tuple[MessageAlignment, ...]
    """One for each message of the history."""
    omitted_ranges: tuple[tuple[int, int], ...]
    """Log ranges [from, to) through `last_seq` that the history does not have, ascending."""
    last_seq: int
    """The last log message that the history reaches; one less than the log's first seq if there is none."""
    first_new_index: int
    """Index of the first new message; the length of the history if there is none."""
    continues_log: bool
    """Whether `last_seq` is the head, or counts as the head."""
    returned_answer_count: int
    """How many different final answers of ours with at least `MIN_ANCHOR_TOKENS` tokens came back: unchanged, or in a
    known version (another choice, cut short, joined with its prefill). Shorter answers count together with their
    questions."""
    returned_call_id_count: int
    """How many answers of ours with tool calls came back with the same ids, if the ids look random and occur once in
    the log."""
    unknown_answer_count: int
    """How many assistant messages of the history the log does not have in any version. A prefill at the end does not
    count."""
    reworded_count: int
    """How many rewritten messages of the history are no known version of an answer."""
    is_newest_answer_unknown: bool
    """Whether the newest assistant message of the history, without a prefill, is counted in `unknown_answer_count`."""
    client_message_count: int
    """How many other messages the client has: user messages, tool results, and assistant messages that are not ours,
    before `first_new_index` or before the newest assistant message. Reworded results do not count."""
    aligned_client_message_count: int
    """How many of these messages are in the log."""
    same_user_message_count: int
    """How many user messages are the same as in the log."""
    has_newest_user_message: bool
    """Whether the log's newest user message is one of these."""
    is_compacted_by_client: bool
    """Whether a message of the history contains the log's newest answer and stands for everything before it: the client
    has asked the model for a summary and sends that in the place of its history."""

    @property
    def aligned_client_share(self) -> float:
        return self.aligned_client_message_count / self.client_message_count if self.client_message_count else 1.0


def build_alignment_element(
    message: Item,
    *,
    tokens: int = 0,
    is_answer: bool = False,
    alternatives: tuple[bytes, ...] = (),
    log: Sequence[AlignmentElement] = (),
    key: bytes = b"",
) -> AlignmentElement:
    """Returns what the alignment needs of a message. The arguments except `log` and `key` are for messages of the
    log; see `AlignmentElement`.

    Args:
        log: for messages of the history: the log that they are aligned with.
        key: a secret of the tenant, up to 64 bytes. Without it, the digest of a short message can be guessed.

    Raises:
        InvalidRequest: the message is not a JSON object.
    """
    kind: ElementKind = _KINDS.get(message.role, "user")
    call_ids: tuple[str, ...] = ()
    form = message.canonical_form
    # Calls and results without an id (of deprecated functions) share the empty id.
    if form is None:
        kind, form = "note", message.canonical_note
    elif kind == "assistant":
        call_ids = tuple([call.id or "" for call in message.calls])
    elif kind == "tool":
        call_ids = (message.result_for or "",)
    text = message.canonical_answer if kind == "assistant" else ""
    digest = blake2b(form, digest_size=DIGEST_BYTES, key=key).digest()
    quoted_answer = b""
    newest = log[-1] if kind == "user" and log else None
    # An answer in audio has no text.
    if newest is not None and newest.text and is_long_answer(newest) and newest.text in normalize_text(message.text):
        quoted_answer = newest.digest
    return AlignmentElement(kind, digest, call_ids, text, tokens, is_answer, alternatives, quoted_answer)


def align_history(
    log: Sequence[AlignmentElement],
    history: Sequence[AlignmentElement],
    *,
    first_seq: int = 0,
    is_log_named: bool = False,
) -> Alignment:
    """Returns the alignment of a history with a log.

    Args:
        log: the log's messages from `first_seq` on. If this is a part of the log, only that part is aligned: a history
            that reaches further back has `inserted` messages or summaries before its first aligned one.
        history: the client's messages without the leading instructions.
        first_seq: the seq of the first message of `log`.
        is_log_named: whether an explicit id or a client's hint names this log. Then user messages and short answers are
            recognised by themselves, and an answer in the head's place counts as the head.
    """
    log_order, history_order = order_indexes_by_calls(log), order_indexes_by_calls(history)
    pairing = MessagePairing(
        [log[log_index] for log_index in log_order],
        [history[index] for index in history_order],
        is_log_named=is_log_named,
    )
    pairing.find_pairs()
    pairs = [(history_order[index], log_order[log_index]) for index, log_index in pairing.pairs]
    new_from = min(history_order[pairing.end_indexes[0] :], default=len(history))
    pairs = [pair for pair in pairs if pair[0] < new_from]
    return _AlignmentBuilder(log, history, pairs, new_from).build_alignment(first_seq)


def align_after_head(
    head: Alignment,
    log: Sequence[AlignmentElement],
    history: Sequence[AlignmentElement],
    first_seqs: Mapping[Hashable, int],
    *,
    is_log_named: bool,
) -> Alignment | None:
    """Aligns a history whose beginning has been aligned before. The result is that of `align_history` for the whole
    history; the cost is that of the rest.

    No message after the end of `head` may be paired with a message before it. To ensure this, each assistant message
    and each call id after it must occur once there, and nowhere before.

    Args:
        head: an alignment of both beginnings, as `cut_alignment_head` returns it.
        log: the whole log.
        history: the history from the last message of `head` on.
        first_seqs: of `log`, as `record_first_seqs_of_answers_and_calls` records them.

    Returns:
        The alignment, or None if only `align_history` can decide.
    """
    seq = head.last_seq
    rest, names = log[seq:], [name for element in history[1:] for name in _list_element_keys(element)]
    if len(set(names)) < len(names) or any(first_seqs.get(name, len(log)) <= seq for name in names):
        return None
    if any(
        first_seqs[name] < log_index
        for log_index, element in enumerate(rest, seq)
        for name in _list_element_keys(element)
    ):
        return None
    tail = align_history(rest, history, first_seq=seq, is_log_named=is_log_named)
    if not tail.continues_log or tail.message_alignments[0] != head.message_alignments[-1]:
        return None
    has_user = any(element.kind == "user" for element in rest)
    return replace(
        tail,
        message_alignments=(*head.message_alignments, *tail.message_alignments[1:]),
        omitted_ranges=(*head.omitted_ranges, *tail.omitted_ranges),
        first_new_index=len(head.message_alignments) - 1 + tail.first_new_index,
        # The last message of `head` is the first of `tail` and is counted by both.
        returned_answer_count=head.returned_answer_count + tail.returned_answer_count - is_long_answer(log[seq]),
        returned_call_id_count=head.returned_call_id_count
        + tail.returned_call_id_count
        - has_random_call_ids(log[seq]),
        unknown_answer_count=head.unknown_answer_count + tail.unknown_answer_count,
        reworded_count=head.reworded_count + tail.reworded_count,
        client_message_count=head.client_message_count + tail.client_message_count,
        aligned_client_message_count=head.aligned_client_message_count + tail.aligned_client_message_count,
        same_user_message_count=head.same_user_message_count + tail.same_user_message_count,
        has_newest_user_message=tail.has_newest_user_message if has_user else head.has_newest_user_message,
    )


def cut_alignment_head(
    alignment: Alignment,
    history_index: int,
    head: Alignment | None,
    log: Sequence[AlignmentElement],
    history: Sequence[AlignmentElement],
    first_seqs: Mapping[Hashable, int],
    *,
    is_log_named: bool,
) -> Alignment | None:
    """Returns the part of an alignment that ends with a message, so that a later history can be aligned after it.

    Args:
        history_index: the index of that message in the history.
        head: the part that ends with an earlier such message; None if there is none.
        log: the whole log.
        history: the history from the last message of `head` on.
        first_seqs: as for `align_after_head`.

    Returns:
        The part, or None if no history can be aligned after that message alone: the message did not come back
            unchanged, `can_end_alignment_head` refuses it, an assistant message before it differs from the log, or the
            part is aligned in another way without what follows.
    """
    mark, before = alignment.message_alignments[history_index], 0 if head is None else len(head.message_alignments) - 1
    kept_kinds = [
        one.kind
        for one, element in zip(alignment.message_alignments[before:history_index], history, strict=False)
        if _list_element_keys(element)
    ]
    if (
        mark.kind != "same"
        or not can_end_alignment_head(log, mark.seq, first_seqs)
        or any(one != "same" for one in kept_kinds)
    ):
        return None
    log_part, history_part = log[: mark.seq + 1], history[: history_index + 1 - before]
    part = (
        align_history(log_part, history_part, is_log_named=is_log_named)
        if head is None
        else align_after_head(head, log_part, history_part, first_seqs, is_log_named=is_log_named)
    )
    return (
        part
        if part is not None and part.message_alignments == alignment.message_alignments[: history_index + 1]
        else None
    )


def can_end_alignment_head(log: Sequence[AlignmentElement], seq: int, first_seqs: Mapping[Hashable, int]) -> bool:
    """Returns whether a part of an alignment may end with a log message: a long answer of ours, or one with call ids
    that look random, which the log does not have before."""
    answer = log[seq]
    return (has_random_call_ids(answer) or is_long_answer(answer)) and all(
        first_seqs[name] == seq for name in _list_element_keys(answer)
    )


def record_first_seqs_of_answers_and_calls(
    first_seqs: dict[Hashable, int], elements: Iterable[AlignmentElement], first_seq: int
) -> None:
    """Records for each assistant message and each of its call ids the first log message that has it."""
    for seq, element in enumerate(elements, first_seq):
        for name in _list_element_keys(element):
            first_seqs.setdefault(name, seq)


def _list_element_keys(element: AlignmentElement) -> Sequence[Hashable]:
    return (element.comparison_key, *element.call_ids) if element.kind == "assistant" else ()


class _AlignmentBuilder:
    """Derives marks and counts from pairs of (index in the history, index in the log). The pairs ascend, except for the
    results of parallel calls. In the methods, `index` is an index in the history."""

    def __init__(
        self,
        log: Sequence[AlignmentElement],
        history: Sequence[AlignmentElement],
        pairs: list[tuple[int, int]],
        new_from: int,
    ) -> None:
        self.log = log
        self.history = history
        self.log_index_by_history_index = dict(pairs)
        self.first_new_index = new_from
        self.last_log_index = max(self.log_index_by_history_index.values(), default=-1)
        self.is_compacted_by_client = False
        self._extend_to_log_head()
        self._pair_notes()

    def build_alignment(self, first_seq: int) -> Alignment:
        kept_log_indexes = set(self.log_index_by_history_index.values())
        newest_user = max(
            (log_index for log_index, element in enumerate(self.log) if element.kind == "user"), default=-1
        )
        users = {
            log_index
            for index, log_index in self.log_index_by_history_index.items()
            if self.history[index].kind == "user" and self._is_same_as_log(index)
        }
        prefill = self._find_prefill()
        assistants = [
            index for index, element in enumerate(self.history) if element.kind == "assistant" and index != prefill
        ]
        unknown = {index for index in assistants if not self._is_known_answer(index)}
        end = max([self.first_new_index, *(index + 1 for index in assistants[-1:])])
        client_indexes = [index for index in range(end) if self._counts_for_share(index, unknown)]
        return Alignment(
            message_alignments=tuple(self._build_message_alignments(first_seq)),
            omitted_ranges=_merge_into_ranges(
                [
                    first_seq + log_index
                    for log_index in range(self.last_log_index + 1)
                    if log_index not in kept_log_indexes
                ]
            ),
            last_seq=first_seq + self.last_log_index,
            first_new_index=self.first_new_index,
            continues_log=bool(self.log_index_by_history_index) and self.last_log_index == len(self.log) - 1,
            returned_answer_count=len(
                {self.history[index].digest for index in assistants if self._is_returned_answer(index)}
            ),
            returned_call_id_count=self._count_returned_call_ids(assistants),
            unknown_answer_count=len(unknown),
            reworded_count=sum(
                not self._is_same_as_log(index) and not self._is_answer_version(index)
                for index in self.log_index_by_history_index
            ),
            is_newest_answer_unknown=bool(assistants) and assistants[-1] in unknown,
            client_message_count=len(client_indexes),
            aligned_client_message_count=sum(
                index in self.log_index_by_history_index and self._is_same_as_log(index) for index in client_indexes
            ),
            same_user_message_count=len(users),
            has_newest_user_message=newest_user in users,
            is_compacted_by_client=self.is_compacted_by_client,
        )

    def _is_same_as_log(self, index: int) -> bool:
        return self.log[self.log_index_by_history_index[index]].comparison_key == self.history[index].comparison_key

    def _extend_to_log_head(self) -> None:
        """Decides whether the client has merely left out the log messages after the last pair. Then the history
        continues the log."""
        tail = [element.kind for element in self.log[self.last_log_index + 1 :] if element.kind != "note"]
        if not self.log_index_by_history_index:
            return
        summary_index = self._find_summary_by_model() if tail else None
        self.is_compacted_by_client = summary_index is not None
        if tail and summary_index is None and not self._may_omit_tail(tail):
            return
        # The message with our answer, or else the first message after the pairs, is the client's summary, if further
        # messages follow it. Alone, it is the new message that the model must answer.
        first = self.first_new_index if summary_index is None else summary_index
        following = [index for index in range(first + 1, len(self.history)) if self.history[index].kind != "note"]
        if tail and following:
            self.first_new_index = following[0]
        self.last_log_index = len(self.log) - 1

    def _find_summary_by_model(self) -> int | None:
        """Returns the index of the new message that contains the log's newest answer; None if there is none. The client
        has asked the model for a summary, and sends it in the place of the messages that it leaves out."""
        newest = self.log[-1].digest
        return next(
            (i for i in range(self.first_new_index, len(self.history)) if self.history[i].quoted_answer == newest), None
        )

    def _may_omit_tail(self, tail: Sequence[ElementKind]) -> bool:
        """Returns whether a tail of the log that the history leaves out is no sign of a branch. This is so if the
        history goes on with a user message, and also leaves out the final answer to another question that it keeps, as
        a client's own compaction does."""
        if "user" in tail or self.log[self.last_log_index].kind != "user" or self.first_new_index >= len(self.history):
            return False
        if self.history[self.first_new_index].kind != "user":
            return False
        kept_log_indexes = set(self.log_index_by_history_index.values())
        is_question_kept = False
        for log_index in range(self.last_log_index):
            if self.log[log_index].kind == "user":
                is_question_kept = log_index in kept_log_indexes
            elif self.log[log_index].is_final_answer and is_question_kept and log_index not in kept_log_indexes:
                return True
        return False

    def _find_gaps(self) -> list[tuple[range, int, int]]:
        """Returns the runs of unpaired history messages before the new ones, each with the log range [from, to) in
        its place. The range ends with the log message that follows; between the results of parallel calls it may be
        empty."""
        paired = sorted(self.log_index_by_history_index)
        following = [self.last_log_index + 1]
        for index in reversed(paired):
            following.append(min(following[-1], self.log_index_by_history_index[index]))
        gaps = []
        start = before = 0
        for index, to in zip([*paired, self.first_new_index], reversed(following), strict=True):
            if start < index:
                gaps.append((range(start, index), before, max(before, to)))
            start, before = index + 1, max(before, self.log_index_by_history_index.get(index, -1) + 1)
        return gaps

    def _pair_notes(self) -> None:
        """Pairs notes of the log with equal notes in the same place."""
        for indices, start, end in self._find_gaps():
            waiting: dict[bytes, deque[int]] = {}
            for log_index in range(start, end):
                if self.log[log_index].kind == "note":
                    waiting.setdefault(self.log[log_index].digest, deque()).append(log_index)
            before = -1
            for index in indices if waiting else ():
                log_indexes = (
                    waiting.get(self.history[index].digest, deque()) if self.history[index].kind == "note" else deque()
                )
                while log_indexes and log_indexes[0] < before:
                    log_indexes.popleft()
                if log_indexes:
                    before = self.log_index_by_history_index[index] = log_indexes.popleft()

    def _build_message_alignments(self, first_seq: int) -> list[MessageAlignment]:
        marks = [MessageAlignment("new", -1)] * len(self.history)
        for index in self.log_index_by_history_index:
            marks[index] = MessageAlignment(
                "same" if self._is_same_as_log(index) else "rewritten",
                first_seq + self.log_index_by_history_index[index],
            )
        for indices, start, end in self._find_gaps():
            rounds = sum(element.kind in ("user", "assistant") for element in self.log[start:end])
            mark: AlignmentMark = "summary" if rounds >= MIN_SUMMARY_ROUNDS else "inserted"
            last_message = max((index for index in indices if self.history[index].kind != "note"), default=-1)
            for index in indices:
                log_index = start if index <= last_message else end
                log_index = min(log_index, self.last_log_index) if indices.stop < self.first_new_index else log_index
                marks[index] = MessageAlignment(
                    "note" if self.history[index].kind == "note" else mark, first_seq + log_index
                )
        seq = first_seq + self.last_log_index + 1
        for index in range(self.first_new_index, len(self.history)):
            if self.history[index].kind == "note":
                marks[index] = MessageAlignment("note", seq)
            else:
                seq += 1
        return marks

    def _find_prefill(self) -> int:
        """Returns the index of an unpaired assistant message at the end of the history, which the model is to continue;
        -1 if there is none."""
        index = max((index for index, element in enumerate(self.history) if element.kind != "note"), default=-1)
        return (
            index
            if index >= 0 and self.history[index].kind == "assistant" and index not in self.log_index_by_history_index
            else -1
        )

    def _is_known_answer(self, index: int) -> bool:
        """Returns whether the log has an assistant message in some version: equal, with the same call ids, another
        choice, or cut short."""
        if index not in self.log_index_by_history_index:
            return False
        known, element = self.log[self.log_index_by_history_index[index]], self.history[index]
        return (
            known.comparison_key == element.comparison_key or bool(known.call_ids) or is_answer_version(known, element)
        )

    def _is_answer_version(self, index: int) -> bool:
        return self.history[index].kind == "assistant" and is_answer_version(
            self.log[self.log_index_by_history_index[index]], self.history[index]
        )

    def _is_returned_answer(self, index: int) -> bool:
        if index not in self.log_index_by_history_index:
            return False
        if not is_long_answer(self.log[self.log_index_by_history_index[index]]):
            return self._is_returned_with_question(index)
        return self._is_same_as_log(index) or is_answer_version(
            self.log[self.log_index_by_history_index[index]], self.history[index]
        )

    def _is_returned_with_question(self, index: int) -> bool:
        """Returns whether a short answer came back together with its question, and the two together are as long as a
        long answer."""
        log_index, question_log_index = (
            self.log_index_by_history_index[index],
            self.log_index_by_history_index.get(index - 1),
        )
        if (
            question_log_index is None
            or question_log_index != log_index - 1
            or self.log[question_log_index].kind != "user"
        ):
            return False
        known, question = self.log[log_index], self.log[question_log_index]
        is_long = known.is_answer and known.is_final_answer and question.tokens + known.tokens >= MIN_EXCHANGE_TOKENS
        return is_long and self._is_same_as_log(index) and self._is_same_as_log(index - 1)

    def _count_returned_call_ids(self, assistants: Sequence[int]) -> int:
        uses = Counter(call_id for element in self.log if element.kind == "assistant" for call_id in element.call_ids)
        paired = [
            (self.history[index], self.log[self.log_index_by_history_index[index]])
            for index in assistants
            if index in self.log_index_by_history_index
        ]
        return sum(
            has_random_call_ids(known)
            and known.call_ids == element.call_ids
            and all(uses[i] == 1 for i in known.call_ids)
            for element, known in paired
        )

    def _counts_for_share(self, index: int, unknown: set[int]) -> bool:
        """Returns whether a message counts for `aligned_client_share`: it is no note, no answer of ours, and no
        reworded result (a reworded result is known only by its call)."""
        kind, paired = self.history[index].kind, index in self.log_index_by_history_index
        if kind == "assistant":
            return index in unknown or (paired and not self.log[self.log_index_by_history_index[index]].is_answer)
        return kind == "user" or (kind == "tool" and (not paired or self._is_same_as_log(index)))


def _merge_into_ranges(seqs: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Returns ascending numbers as ranges [from, to)."""
    starts = [seq for index, seq in enumerate(seqs) if index == 0 or seqs[index - 1] != seq - 1]
    ends = [seq + 1 for index, seq in enumerate(seqs) if index == len(seqs) - 1 or seqs[index + 1] != seq + 1]
    return tuple(zip(starts, ends, strict=True))
