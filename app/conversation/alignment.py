"""The alignment of a client's history with the log of a conversation: what each message of the history is to the log.

Clients change what they resend: they add and remove notes, mask or drop old tool results, keep a sliding window, put a
summary of their own in the place of the past. The alignment finds, without I/O, which messages are still those of the
log, and which are new. `conversation.alignment_pairs` finds equal messages and versions; this file reads its result.
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
    Element,
    Kind,
    Pairing,
    is_distinctive,
    is_issued,
    is_long_answer,
    is_version,
    order_messages,
)
from app.conversation.canonical_form import answer_text, canonical
from app.conversation.messages import Message

__all__ = [
    "MIN_ANCHOR_TOKENS",
    "MIN_PREFIX_CHARACTERS",
    "Aligned",
    "Alignment",
    "Element",
    "Kind",
    "Mark",
    "align",
    "align_behind",
    "confirms_hint",
    "cut_head",
    "digest_message",
    "element_from",
    "is_distinctive",
    "is_end",
    "is_evidence",
    "is_whole_log",
    "note_firsts",
]

Mark = Literal["same", "rewritten", "note", "inserted", "summary", "new"]

MIN_SHARE = 0.5
"""Of the client's other messages, the share that must be in the log before a conversation is recognised by answers."""
MIN_SUMMARY_ROUNDS = 2
"""A message in the place of so many omitted rounds is the client's own summary of them."""
MIN_EXCHANGE_TOKENS = MIN_ANCHOR_TOKENS + 8
"""Of a question and a short answer that are recognised together; each message costs four tokens beside its text."""
DIGEST_BYTES = 16

_KINDS: dict[str, Kind] = {"assistant": "assistant", "tool": "tool", "function": "tool"}
"""Kinds by role. A role that is not known is compared like a user's."""


class Aligned(msgspec.Struct, frozen=True):
    """What one message of the history is to the log."""

    mark: Mark
    seq: int
    """same, rewritten: its log message. note, inserted, summary: the log message in front of which it stands; beside
    an omitted range, the first message of that range. A note among new messages stands in front of the seq that the
    next new message gets. new: -1."""


class Alignment(msgspec.Struct, frozen=True):
    """A history in the terms of a log."""

    marks: tuple[Aligned, ...]
    """One for each message of the history."""
    omitted: tuple[tuple[int, int], ...]
    """Log ranges [from, to) through `last_seq` that the history does not mention, ascending."""
    last_seq: int
    """The last log message that the history reaches; one less than `first_seq` if none."""
    new_from: int
    """Index of the first new message; the length of the history if there is none."""
    continues: bool
    """Whether `last_seq` is the head, or counts as it."""
    answers: int
    """Different final answers of ours of `MIN_ANCHOR_TOKENS` or more that came back, as they were or in a known
    version: another choice, cut short, joined with its prefill; or shorter ones, together with their questions."""
    issued: int
    """Answers of ours with tool calls that came back with the same ids, which look random and stand once in the log."""
    unknown: int
    """Assistant messages of the history that are in no version in the log. A prefill at the end does not count."""
    reworded: int
    """Rewritten messages of the history that are no known version of an answer."""
    ends_unknown: bool
    """Whether the newest assistant message of the history, a prefill aside, is one of these."""
    others: int
    """The client's other messages: user messages, results, and assistant messages that are not ours, before `new_from`
    or before the newest assistant message. Reworded results do not count."""
    others_aligned: int
    """Those of them that are in the log."""
    users: int
    """User messages that are the same."""
    newest_user: bool
    """Whether the newest user message of the log is among them."""

    @property
    def aligned_share(self) -> float:
        return self.others_aligned / self.others if self.others else 1.0


def digest_message(message: Message, key: bytes = b"") -> bytes:
    """16 bytes that name a message alone: of its canonical form, or of its content where the chain looks through it.

    Args:
        message: of the log or of a history.
        key: a secret of the tenant, up to 64 bytes; without it, a digest of a short message can be guessed.

    Raises:
        InvalidRequest: the message is not a JSON object.
    """
    form = canonical(message.body) or canonical(message.body | {"role": "note"}) or b""
    return blake2b(form, digest_size=DIGEST_BYTES, key=key).digest()


def element_from(
    message: Message,
    *,
    tokens: int = 0,
    is_answer: bool = False,
    alternatives: tuple[bytes, ...] = (),
    key: bytes = b"",
) -> Element:
    """What the alignment knows of a message. The arguments but `key` are for messages of the log; see `Element`.

    Raises:
        InvalidRequest: the message is not a JSON object.
    """
    body = message.body
    kind: Kind = _KINDS.get(message.role, "user")
    call_ids: tuple[str, ...] = ()
    if canonical(body) is None:
        kind = "note"
    elif kind == "assistant":
        calls: Sequence[object] = message.tool_calls
        call_ids = tuple([_read_id(call.get("id") if isinstance(call, dict) else None) for call in calls])
    elif kind == "tool":
        call_ids = (_read_id(body.get("tool_call_id")),)
    text = answer_text(body) if kind == "assistant" else ""
    digest = digest_message(message, key)
    return Element(kind, digest, call_ids, text, tokens, is_answer, alternatives)


def _read_id(value: object) -> str:
    """An id as it came. Calls and results without one (the deprecated `function_call`) share the empty id."""
    return value if isinstance(value, str) else ""


def align(log: Sequence[Element], history: Sequence[Element], *, first_seq: int = 0, named: bool = False) -> Alignment:
    """Give each message of a history its mark.

    Args:
        log: the log's messages from `first_seq` on. Of a part of the log only that part is aligned: a history that
            reaches further back has `inserted` messages or summaries before its first aligned one.
        history: the client's messages without the leading instructions.
        first_seq: seq of the first of `log`.
        named: an explicit id or a client's hint names this log. Then user messages and short answers are recognised
            by themselves, and an answer in the head's place counts as the head.
    """
    log_order, history_order = order_messages(log), order_messages(history)
    pairing = Pairing([log[place] for place in log_order], [history[at] for at in history_order], named=named)
    pairing.find()
    pairs = [(history_order[at], log_order[place]) for at, place in pairing.pairs]
    new_from = min(history_order[pairing.end[0] :], default=len(history))
    pairs = [pair for pair in pairs if pair[0] < new_from]
    return _Reader(log, history, pairs, new_from).read(first_seq)


def align_behind(
    head: Alignment, log: Sequence[Element], history: Sequence[Element], firsts: Mapping[Hashable, int], *, named: bool
) -> Alignment | None:
    """Align a history whose beginning was aligned before: the same as `align` of the whole, for the price of the rest.

    Nothing that stands behind the end of `head` may be paired with anything before it. This holds if each assistant
    message behind it, and each id of a call, stands there once, and nowhere before.

    Args:
        head: an alignment of both beginnings that `cut_head` gave.
        log: all of it.
        history: from the last message of `head` on.
        firsts: of `log`, as `note_firsts` gives them.

    Returns:
        None where only `align` can tell.
    """
    seq = head.last_seq
    rest, names = log[seq:], [name for element in history[1:] for name in _names(element)]
    if len(set(names)) < len(names) or any(firsts.get(name, len(log)) <= seq for name in names):
        return None
    if any(firsts[name] < place for place, element in enumerate(rest, seq) for name in _names(element)):
        return None
    tail = align(rest, history, first_seq=seq, named=named)
    if not tail.continues or tail.marks[0] != head.marks[-1]:
        return None
    has_user = any(element.kind == "user" for element in rest)
    return replace(
        tail,
        marks=(*head.marks, *tail.marks[1:]),
        omitted=(*head.omitted, *tail.omitted),
        new_from=len(head.marks) - 1 + tail.new_from,
        # The message where they meet is counted by both.
        answers=head.answers + tail.answers - is_long_answer(log[seq]),
        issued=head.issued + tail.issued - is_issued(log[seq]),
        unknown=head.unknown + tail.unknown,
        reworded=head.reworded + tail.reworded,
        others=head.others + tail.others,
        others_aligned=head.others_aligned + tail.others_aligned,
        users=head.users + tail.users,
        newest_user=tail.newest_user if has_user else head.newest_user,
    )


def cut_head(
    alignment: Alignment,
    at: int,
    head: Alignment | None,
    log: Sequence[Element],
    history: Sequence[Element],
    firsts: Mapping[Hashable, int],
    *,
    named: bool,
) -> Alignment | None:
    """The part of an alignment that ends with a message, so that a later history can be aligned behind it.

    Args:
        at: index of that message in the history.
        head: the part that ends before it with such a message; None where it begins with the history.
        log: all of it.
        history: from the last message of `head` on.
        firsts: as `align_behind`.

    Returns:
        None where nothing can be aligned behind that message alone: it did not come back as it was, it is not `is_end`,
        an assistant message before it is another than in the log, or the part looks otherwise with what follows.
    """
    mark, before = alignment.marks[at], 0 if head is None else len(head.marks) - 1
    kept = [one.mark for one, element in zip(alignment.marks[before:at], history, strict=False) if _names(element)]
    if mark.mark != "same" or not is_end(log, mark.seq, firsts) or any(one != "same" for one in kept):
        return None
    ours, theirs = log[: mark.seq + 1], history[: at + 1 - before]
    part = align(ours, theirs, named=named) if head is None else align_behind(head, ours, theirs, firsts, named=named)
    return part if part is not None and part.marks == alignment.marks[: at + 1] else None


def is_end(log: Sequence[Element], seq: int, firsts: Mapping[Hashable, int]) -> bool:
    """Whether a part of an alignment may end with a log message: an answer of this gateway, a long one or one with ids
    that look random, which the log does not have before."""
    answer = log[seq]
    return (is_issued(answer) or is_long_answer(answer)) and all(firsts[name] == seq for name in _names(answer))


def note_firsts(firsts: dict[Hashable, int], elements: Iterable[Element], first_seq: int) -> None:
    """Note which log message is the first with an assistant's text and calls, and with each id of its calls."""
    for seq, element in enumerate(elements, first_seq):
        for name in _names(element):
            firsts.setdefault(name, seq)


def _names(element: Element) -> Sequence[Hashable]:
    return (element.key, *element.call_ids) if element.kind == "assistant" else ()


class _Reader:
    """Reads marks and counts from pairs of (index in the history, index in the log), ascending but for results of
    parallel calls."""

    def __init__(
        self, log: Sequence[Element], history: Sequence[Element], pairs: list[tuple[int, int]], new_from: int
    ) -> None:
        self.log = log
        self.history = history
        self.places = dict(pairs)
        self.new_from = new_from
        self.last = max(self.places.values(), default=-1)
        self.summary_at = -1
        self._settle_tail()
        self._pair_notes()

    def read(self, first_seq: int) -> Alignment:
        kept = set(self.places.values())
        newest_user = max((place for place, element in enumerate(self.log) if element.kind == "user"), default=-1)
        users = {place for at, place in self.places.items() if self.history[at].kind == "user" and self._is_same(at)}
        prefill = self._find_prefill()
        assistants = [at for at, element in enumerate(self.history) if element.kind == "assistant" and at != prefill]
        unknown = {at for at in assistants if not self._is_known(at)}
        end = max([self.new_from, *(at + 1 for at in assistants[-1:])])
        others = [at for at in range(end) if self._is_of_client(at, unknown)]
        return Alignment(
            marks=tuple(self._mark_all(first_seq)),
            omitted=_join_ranges([first_seq + place for place in range(self.last + 1) if place not in kept]),
            last_seq=first_seq + self.last,
            new_from=self.new_from,
            continues=bool(self.places) and self.last == len(self.log) - 1,
            answers=len({self.history[at].digest for at in assistants if self._is_answer_again(at)}),
            issued=self._count_issued(assistants),
            unknown=len(unknown),
            reworded=sum(not self._is_same(at) and not self._is_version(at) for at in self.places),
            ends_unknown=bool(assistants) and assistants[-1] in unknown,
            others=len(others),
            others_aligned=sum(at in self.places and self._is_same(at) for at in others),
            users=len(users),
            newest_user=newest_user in users,
        )

    def _is_same(self, at: int) -> bool:
        return self.log[self.places[at]].key == self.history[at].key

    def _settle_tail(self) -> None:
        """Decide whether log messages after the last pair are merely left out, so that the history continues."""
        tail = [element.kind for element in self.log[self.last + 1 :] if element.kind != "note"]
        if not self.places or (tail and not self._replaces_answers(tail)):
            return
        following = [at for at in range(self.new_from + 1, len(self.history)) if self.history[at].kind != "note"]
        if tail and following:  # the client's summary, and then what is new; alone it is what the model must answer
            self.summary_at, self.new_from = self.new_from, following[0]
        self.last = len(self.log) - 1

    def _replaces_answers(self, tail: Sequence[Kind]) -> bool:
        """Whether a tail that the history leaves out is no sign of a branch: the history goes on with a user message,
        and it leaves out the final answer to another question that it keeps. A client's own compaction does that."""
        if "user" in tail or self.log[self.last].kind != "user" or self.new_from >= len(self.history):
            return False
        if self.history[self.new_from].kind != "user":
            return False
        kept = set(self.places.values())
        is_question_kept = False
        for place in range(self.last):
            if self.log[place].kind == "user":
                is_question_kept = place in kept
            elif self.log[place].is_final and is_question_kept and place not in kept:
                return True
        return False

    def _gaps(self) -> list[tuple[range, int, int]]:
        """Runs of unpaired history messages before the new ones, each with the log range [from, to) in its place. The
        range ends with the log message that follows; within the results of parallel calls it may be empty."""
        paired = sorted(self.places)
        following = [self.last + 1]
        for at in reversed(paired):
            following.append(min(following[-1], self.places[at]))
        gaps = []
        start = before = 0
        for at, to in zip([*paired, self.new_from], reversed(following), strict=True):
            if start < at:
                gaps.append((range(start, at), before, max(before, to)))
            start, before = at + 1, max(before, self.places.get(at, -1) + 1)
        return gaps

    def _pair_notes(self) -> None:
        """Pair notes of the log with equal notes at the same place."""
        for indices, start, end in self._gaps():
            waiting: dict[bytes, deque[int]] = {}
            for place in range(start, end):
                if self.log[place].kind == "note":
                    waiting.setdefault(self.log[place].digest, deque()).append(place)
            before = -1
            for at in indices if waiting else ():
                places = waiting.get(self.history[at].digest, deque()) if self.history[at].kind == "note" else deque()
                while places and places[0] < before:
                    places.popleft()
                if places:
                    before = self.places[at] = places.popleft()

    def _mark_all(self, first_seq: int) -> list[Aligned]:
        marks = [Aligned("new", -1)] * len(self.history)
        for at in self.places:
            marks[at] = Aligned("same" if self._is_same(at) else "rewritten", first_seq + self.places[at])
        for indices, start, end in self._gaps():
            rounds = sum(element.kind in ("user", "assistant") for element in self.log[start:end])
            mark: Mark = "summary" if rounds >= MIN_SUMMARY_ROUNDS else "inserted"
            last_message = max((at for at in indices if self.history[at].kind != "note"), default=-1)
            for at in indices:
                place = start if at <= last_message else end
                place = min(place, self.last) if indices.stop < self.new_from else place
                marks[at] = Aligned("note" if self.history[at].kind == "note" else mark, first_seq + place)
        seq = first_seq + self.last + 1
        for at in range(self.new_from, len(self.history)):
            if self.history[at].kind == "note":
                marks[at] = Aligned("note", seq)
            else:
                seq += 1
        return marks

    def _find_prefill(self) -> int:
        """Index of an unpaired assistant message at the end of the history, which the model is to go on from; or -1."""
        at = max((at for at, element in enumerate(self.history) if element.kind != "note"), default=-1)
        return at if at >= 0 and self.history[at].kind == "assistant" and at not in self.places else -1

    def _is_known(self, at: int) -> bool:
        """Whether the log has an assistant message in some version: equal, with the same call ids, another choice, or
        cut short."""
        if at not in self.places:
            return False
        known, element = self.log[self.places[at]], self.history[at]
        return known.key == element.key or bool(known.call_ids) or is_version(known, element)

    def _is_version(self, at: int) -> bool:
        return self.history[at].kind == "assistant" and is_version(self.log[self.places[at]], self.history[at])

    def _is_answer_again(self, at: int) -> bool:
        if at not in self.places:
            return False
        if not is_long_answer(self.log[self.places[at]]):
            return self._is_exchange(at)
        return self._is_same(at) or is_version(self.log[self.places[at]], self.history[at])

    def _is_exchange(self, at: int) -> bool:
        """Whether a short answer came back together with its question, the two of them as long as a long answer."""
        place, asked = self.places[at], self.places.get(at - 1)
        if asked is None or asked != place - 1 or self.log[asked].kind != "user":
            return False
        known, question = self.log[place], self.log[asked]
        is_long = known.is_answer and known.is_final and question.tokens + known.tokens >= MIN_EXCHANGE_TOKENS
        return is_long and self._is_same(at) and self._is_same(at - 1)

    def _count_issued(self, assistants: Sequence[int]) -> int:
        uses = Counter(call_id for element in self.log if element.kind == "assistant" for call_id in element.call_ids)
        paired = [(self.history[at], self.log[self.places[at]]) for at in assistants if at in self.places]
        return sum(
            is_issued(known) and known.call_ids == element.call_ids and all(uses[i] == 1 for i in known.call_ids)
            for element, known in paired
        )

    def _is_of_client(self, at: int, unknown: set[int]) -> bool:
        """Whether a message counts for the share: it is neither a note, nor an answer of ours, nor a reworded result
        (only its call says whose it is)."""
        kind, paired = self.history[at].kind, at in self.places
        if kind == "assistant":
            return at in unknown or (paired and not self.log[self.places[at]].is_answer)
        return kind == "user" or (kind == "tool" and (not paired or self._is_same(at)))


def _join_ranges(seqs: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as ranges [from, to)."""
    starts = [seq for index, seq in enumerate(seqs) if index == 0 or seqs[index - 1] != seq - 1]
    ends = [seq + 1 for index, seq in enumerate(seqs) if index == len(seqs) - 1 or seqs[index + 1] != seq + 1]
    return tuple(zip(starts, ends, strict=True))


def is_evidence(alignment: Alignment) -> bool:
    """Whether answers alone, without an id, say that a history belongs to a log.

    Two long answers of ours must have come back, or one with ids that no other conversation has. Half of the client's
    other messages must be in the log. Of the history's answers, the newest must be known to the log, and most of them:
    two people who got two equal answers have gone on differently since.

    Two people who asked the same questions and got the same two long answers, and nothing else since, cannot be told
    apart here. The caller prefers an exact chain, and takes a tie for no match.
    """
    known = alignment.answers + alignment.issued
    return (
        (alignment.answers >= 2 or alignment.issued >= 1)
        and alignment.aligned_share >= MIN_SHARE
        and not alignment.ends_unknown
        and alignment.unknown <= known
    )


def is_whole_log(alignment: Alignment) -> bool:
    """Whether a history is the whole log, but for notes and for answers that came back in a known version: cut short,
    another choice, or joined with their prefill.

    The head's answer may come back in other words, if an earlier long answer of ours stands before it.
    """
    old = [one for one in alignment.marks[: alignment.new_from] if one.mark != "note"]
    rewritten = {one.seq for one in old if one.mark == "rewritten"}
    is_head_reworded = rewritten == {alignment.last_seq} and alignment.unknown == 1 and alignment.answers >= 1
    return (
        alignment.continues
        and bool(rewritten)
        and len(old) == len(rewritten) + sum(one.mark == "same" for one in old)
        and all(first == past - 1 and past in rewritten for first, past in alignment.omitted)
        and (alignment.reworded == 0 or is_head_reworded)
    )


def confirms_hint(alignment: Alignment) -> bool:
    """Whether a log that a client's own session id names is the one that a history continues: the log's newest user
    message and one more message came back, and nothing contradicts: no answer that the log does not have.

    A session id is shared by sub-agents, whose histories are others.
    """
    same = sum(aligned.mark == "same" for aligned in alignment.marks)
    is_contradicted = alignment.unknown > 0 or alignment.aligned_share < MIN_SHARE
    return alignment.newest_user and same >= 2 and not is_contradicted
