"""Chooses what is kept of the user's text when more of the log is hidden. Pure.

1. All of it, as long as it fits; then all of it with pasted parts cut to their beginnings and ends.
2. Then the head: what came before the first answer, instructions from files included; and the sentences that bind
   (`binding`), newest first.

A sentence is kept only with every later sentence of that user that speaks of the same in rare words: a rule never
stands without its withdrawal, whatever the withdrawal's wording. What binds most is taken strictly from the newest
back, so a withdrawal in other words is kept before the rule. If a link is wrong, a sentence too many is kept.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final, NamedTuple

from app.context.user_text.binding import BINDS, LIST_ITEM, LIST_ITEM_LINE, MAY_BIND, rate_sentence
from app.context.user_text.own_text import TextPart, is_textual_result, split_into_parts, split_into_sentences
from app.context.user_text.user_text import UserLine, UserText
from app.context.user_text.user_text_message import render_user_line
from app.conversation.item import Item
from app.conversation.search_terms import COMMON_TERMS, extract_terms

MAX_ROOM_TOKENS: Final = 20_000
MIN_HEAD_TOKENS: Final = 2_000
"""What the head may take where that is at most a quarter of the window: an AGENTS.md of usual length."""
MAX_LINKED: Final = 8
"""A word that more sentences have links none of them."""
LINKED_SHARE: Final = 1 / 4
"""A later sentence is linked if it has so much of its words in common with a sentence, and one of the two binds."""
MIN_LIST_ITEMS: Final = 2
"""Fewer lines that look like list items are no list: "(3) And the third question"."""
PASTED_HEAD_CHARS, PASTED_TAIL_CHARS = 300, 150
"""What stays of a pasted part that is cut."""

CountTokens = Callable[[str], int]


class UserTextRoom(NamedTuple):
    """How many raw tokens user text may take, and how many of them its head."""

    tokens: int
    head_tokens: int


def compute_user_text_room(window: int, ratio: float) -> UserTextRoom:
    """Returns the room of user text in a window. A head above half of it takes what it needs beside the other half."""
    room = min(MAX_ROOM_TOKENS, int(window * ratio))
    return UserTextRoom(room, max(room // 2, min(MIN_HEAD_TOKENS, window // 4)) if room else 0)


class OwnMessage(NamedTuple):
    """A user message with its parts, without those that the view need not show."""

    seq: int
    name: str
    text: str
    parts: tuple[TextPart, ...]
    is_in_head: bool

    def is_whole(self, start: int, end: int) -> bool:
        """Says whether a span is all of the message."""
        return not (self.text[:start].strip() or self.text[end:].strip())

    def build_line(self, start: int, end: int, count: CountSpan) -> UserLine:
        return UserLine(self.seq, start, end, count(self, start, end), self.is_whole(start, end))

    def list_lines(self, count: CountSpan, *, is_cut: bool = False) -> list[UserLine]:
        """Returns the lines that show the message: one for each run of parts that stay.

        Args:
            is_cut: cut pasted parts to their beginnings and ends.
        """
        runs: list[tuple[int, int]] = []
        for start, end, kind, _ in self.parts:
            spans = [(start, end)]
            if is_cut and kind == "pasted" and end - start > PASTED_HEAD_CHARS + PASTED_TAIL_CHARS:
                spans = [(start, start + PASTED_HEAD_CHARS), (end - PASTED_TAIL_CHARS, end)]
            for span in spans:
                if runs and not self.text[runs[-1][1] : span[0]].strip():
                    runs[-1] = runs[-1][0], span[1]
                else:
                    runs.append(span)
        return [self.build_line(*run, count) for run in runs]


CountSpan = Callable[[OwnMessage, int, int], int]
"""Counts the tokens of the line that shows a span of a message."""


@dataclass(eq=False)
class _Sentence:
    build_line: Callable[[], UserLine]
    name: str
    is_in_head: bool
    strength: int
    heading: _Sentence | None
    """The line in front of the list that this item belongs to."""
    terms: frozenset[str]
    needed: list[_Sentence] = field(default_factory=list)
    """What must be kept with it."""

    @cached_property
    def line(self) -> UserLine:
        """The line that shows it. Most sentences are never counted."""
        return self.build_line()


def extend_user_text(
    known: UserText,
    messages: Iterable[tuple[int, Item]],
    *,
    before_seq: int,
    head_to: int,
    room: UserTextRoom,
    frame_tokens: int,
    count: CountTokens,
) -> UserText:
    """Returns the user text of the messages before `before_seq`.

    Args:
        known: what is kept of the messages before `known.before_seq`.
        messages: the user messages of the head, those with lines in `known`, and those from `known.before_seq` on, in
            the order of the log.
        head_to: the first answer's seq.
    """
    room = room._replace(tokens=max(0, room.tokens - frame_tokens))
    own = _select_own_messages(messages, head_to)
    known_tokens = {(one.seq, one.start, one.end): one.tokens for one in known.lines}

    def count_span(message: OwnMessage, start: int, end: int) -> int:
        tokens = known_tokens.get((message.seq, start, end))
        return count(render_user_line(message.text[start:end], message.name)) if tokens is None else tokens

    lines: list[UserLine]
    for is_cut in (False, True) if known.is_complete else ():
        lines = [line for one in own for line in one.list_lines(count_span, is_cut=is_cut)]
        with_head = min(_sum_tokens(one for one in lines if one.seq < head_to), room.head_tokens) + room.tokens // 2
        if _sum_tokens(lines) <= max(room.tokens, with_head):
            return UserText(before_seq, head_to, frame_tokens, True, tuple(lines))
    places = None if known.is_complete else {one.place for one in known.lines}
    sentences = [
        sentence
        for one in own
        for sentence in _read_sentences(one, None if one.seq >= known.before_seq else places, count_span)
    ]
    lines = _Selection(own, sentences, count_span).choose_lines(room)
    return UserText(before_seq, head_to, frame_tokens, False, tuple(sorted(lines, key=lambda one: one.place)))


def _sum_tokens(lines: Iterable[UserLine]) -> int:
    return sum(one.tokens for one in lines)


def _select_own_messages(messages: Iterable[tuple[int, Item]], head_to: int) -> list[OwnMessage]:
    """Returns the user's own messages. Of instructions that are sent again, only the newest stay; of equal messages,
    the newest. Instructions that the head has not had count as pasted."""
    own: dict[tuple[str, str], OwnMessage] = {}
    newest: dict[str, int] = {}
    head_keys = set[str]()
    for seq, message in messages:
        text = message.text
        if message.role != "user" or is_textual_result(text) or not text.strip():
            continue
        parts = []
        for part in split_into_parts(text):
            if part.kind == "instructions":
                newest[part.key] = seq
                head_keys |= {part.key} if seq < head_to else set()
            if part.kind != "state":
                parts.append(part if part.key in head_keys or not part.key else part._replace(kind="pasted"))
        key = message.name or "", text
        own.pop(key, None)
        own[key] = OwnMessage(seq, message.name or "", text, tuple(parts), seq < head_to)
    return [
        one._replace(parts=tuple(part for part in one.parts if newest.get(part.key, one.seq) == one.seq))
        for one in own.values()
    ]


def _read_sentences(message: OwnMessage, places: set[tuple[int, int]] | None, count: CountSpan) -> Iterator[_Sentence]:
    """Yields the sentences of a message that may be kept: those of the head, and those at `places`, or all."""
    heading: _Sentence | None = None
    has_list = len(LIST_ITEM_LINE.findall(message.text)) >= MIN_LIST_ITEMS
    for part in message.parts:
        is_in_head = part.kind == "instructions" or message.is_in_head
        if part.kind == "pasted":
            continue
        for start, end in split_into_sentences(message.text, part.start, part.end):
            if not is_in_head and places is not None and (message.seq, start) not in places:
                continue
            text = message.text[start:end]
            item = LIST_ITEM.match(text) if has_list else None
            if item is None and not message.text[:start].endswith(" "):
                heading = None
            strength = rate_sentence(
                text[item.end() :] if item else text,
                is_list_item=bool(item),
                is_whole_message=message.is_whole(start, end),
            )
            terms = frozenset(one for one in extract_terms(text) if not one.isdigit()) - COMMON_TERMS
            build_line = partial(message.build_line, start, end, count)
            sentence = _Sentence(build_line, message.name, is_in_head, strength, heading if item else None, terms)
            if text.endswith((":", "\uff1a")):
                heading = sentence
            yield sentence


@dataclass(eq=False)
class _Selection:
    """What is chosen of sentences that do not all fit."""

    messages: Sequence[OwnMessage]
    sentences: Sequence[_Sentence]
    count: CountSpan
    chosen: set[_Sentence] = field(default_factory=set)

    def choose_lines(self, room: UserTextRoom) -> list[UserLine]:
        """Returns the lines, in any order."""
        _link_sentences(self.sentences)
        head = [one for one in self.sentences if one.is_in_head]
        whole_head = self._list_head_lines()
        linked = self._close(head).difference(head)
        left = room.tokens - min(_sum_tokens(whole_head), room.tokens // 2) - _count_tokens(linked)
        if _sum_tokens(whole_head) <= room.head_tokens and left >= 0:
            self.chosen.update(head, linked)
        else:
            whole_head = []
            self._choose(sorted(head, key=lambda one: -one.strength), room.head_tokens)
            left = room.tokens - min(_count_tokens(self.chosen), room.tokens // 2)
        by_user = defaultdict[str, list[_Sentence]](list)
        for one in reversed(self.sentences):
            by_user[one.name].append(one)
        for own in by_user.values():
            share, missed = self._choose((one for one in own if one.strength == BINDS), left // len(by_user))
            newer = own if missed is None else own[: own.index(missed)]
            self._choose((one for one in newer if one.strength == MAY_BIND), share)
        return [*whole_head, *(one.line for one in self.chosen if not (whole_head and one.is_in_head))]

    def _list_head_lines(self) -> list[UserLine]:
        """Returns the lines that show all of the head, also instructions that were sent again later."""
        lines: list[UserLine] = []
        for one in self.messages:
            parts = one.parts if one.is_in_head else tuple(part for part in one.parts if part.kind == "instructions")
            lines += one._replace(parts=parts).list_lines(self.count)
        return lines

    def _choose(self, ordered: Iterable[_Sentence], left: int) -> tuple[int, _Sentence | None]:
        """Adds sentences in order, each with what it needs, until one does not fit.

        Returns:
            The tokens that are left, and the sentence that does not fit.
        """
        for one in ordered:
            added = self._close([one]) - self.chosen
            if _count_tokens(added) > left:
                return left, one
            self.chosen |= added
            left -= _count_tokens(added)
        return left, None

    def _close(self, sentences: Iterable[_Sentence]) -> set[_Sentence]:
        """Returns sentences with all that must be kept with them."""
        found = set[_Sentence]()
        waiting = list(sentences)
        while waiting:
            one = waiting.pop()
            if one not in found:
                found.add(one)
                waiting += one.needed
        return found


def _count_tokens(sentences: Iterable[_Sentence]) -> int:
    return _sum_tokens(one.line for one in sentences)


def _link_sentences(sentences: Sequence[_Sentence]) -> None:
    """Notes for each sentence what must be kept with it: the heading of its list, and later sentences of its user
    that speak of the same."""
    by_term = defaultdict[tuple[str, str], list[int]](list)
    for index, one in enumerate(sentences):
        for term in one.terms:
            by_term[one.name, term].append(index)
    for index, one in enumerate(sentences):
        if not (one.strength or one.is_in_head or one.heading):
            continue
        shared = Counter[int]()
        for term in one.terms:
            places = by_term[one.name, term]
            if len(places) <= MAX_LINKED:
                shared.update(at for at in places if at > index)
        later = ((sentences[at], count) for at, count in shared.items())
        one.needed = [
            other
            for other, count in later
            if count >= LINKED_SHARE * len(other.terms) and (one.strength or other.strength)
        ]
        if one.heading is not None:
            one.needed.append(one.heading)
