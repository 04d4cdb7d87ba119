"""Chooses what is kept of the user's text when more of the log is hidden. Pure.

1. All of it, as long as it fits; then all of it with pasted parts cut to their beginnings and ends.
2. Then the head: what came before the first answer, instructions from files included; and the sentences that bind
   (`binding`), newest first.

A sentence is kept only with every later sentence of that user that speaks of the same in rare words: a rule never
stands without its withdrawal, whatever the withdrawal's wording. What binds most is taken strictly from the newest
back, so a withdrawal in other words is kept before the rule; but a message with many rules comes behind the others,
so a pasted list drives no older rule out. If a link is wrong, a sentence too many is kept.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

from app.context.user_text.binding import BINDS, LIST_ITEM, LIST_ITEM_LINE, MAY_BIND, rate_sentence
from app.context.user_text.own_text import (
    TextPart,
    is_textual_result,
    split_into_parts,
    split_into_sentences,
    strip_span,
)
from app.context.user_text.user_text import UserLine, UserText
from app.context.user_text.user_text_message import render_user_line
from app.conversation.item import Item
from app.conversation.search_terms import COMMON_TERMS, extract_terms

MAX_ROOM_TOKENS: Final = 20_000
MIN_HEAD_TOKENS: Final = 2_000
"""What the head may take where that is at most a quarter of the window: an AGENTS.md of usual length."""
MAX_MESSAGE_RULES, LIST_SHARE, LIST_RESERVE = 8, 1 / 2, 1 / 8
"""A message is a list if more sentences than the first of it may bind, and they take more than the second of the room.
Lists take what all else of their user leaves, but the third of that user's room at least."""
MAX_LIST_REPEATS: Final = 2
"""A word that more sentences of a list have links none of them: lists repeat words by their form."""
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


@dataclass(frozen=True, eq=False)
class LogText:
    """A log message in the words that the client shows now."""

    seq: int
    message: Item
    day: str = ""
    """The day on which it was said, if that is known. The first line of each day shows it."""

    @cached_property
    def name(self) -> str:
        return self.message.name or ""

    @cached_property
    def text(self) -> str:
        return self.message.text


@dataclass(eq=False)
class _Piece:
    """A sentence, or a piece of a pasted part."""

    source: LogText
    start: int
    end: int
    count: CountTokens
    is_in_head: bool = False
    is_pasted: bool = False
    is_middle: bool = False
    """Whether it is the middle of a long pasted part."""
    strength: int = 0
    needed: list[_Piece] = field(default_factory=list)
    """What must be kept with it."""

    @cached_property
    def line(self) -> UserLine:
        """The line that shows it alone, without its day. Most pieces are never counted."""
        return _build_line(self, self.end, "")

    @cached_property
    def terms(self) -> frozenset[str]:
        terms = extract_terms(self.source.text[self.start : self.end])
        return frozenset(one for one in terms if not one.isdigit()) - COMMON_TERMS


def extend_user_text(
    known: UserText,
    messages: Iterable[LogText],
    *,
    before_seq: int,
    head_to: int,
    room: UserTextRoom,
    frame_tokens: int,
    saved_tokens: int,
    count: CountTokens,
) -> UserText:
    """Returns the user text of the messages before `before_seq`.

    Args:
        known: what is kept of the messages before `known.before_seq`.
        messages: the user messages of the head, those with lines in `known`, and those from `known.before_seq` on, in
            the order of the log.
        head_to: the first answer's seq.
        saved_tokens: how much shorter the view without user text is than the log. No more is kept than that.
    """
    tokens = max(0, min(room.tokens, saved_tokens) - frame_tokens)
    own = _select_own_parts(messages, head_to)
    pieces = [piece for source, parts in own for piece in _split_parts(source, parts, head_to, count)]
    for shown in (pieces, [one for one in pieces if not one.is_middle]) if known.is_complete else ():
        lines = _join_pieces(shown)
        head = min(_sum_tokens(one for one in lines if one.seq < head_to), room.head_tokens)
        if _sum_tokens(lines) <= min(saved_tokens - frame_tokens, max(tokens, head + tokens // 2)):
            return UserText(before_seq, head_to, frame_tokens, True, lines)
    # What is a list, and which words are rare, is told by all sentences, also by those that are not shown any more.
    rules = defaultdict[int, list[_Piece]](list)
    for one in pieces:
        if one.strength and not one.is_in_head:
            rules[one.source.seq].append(one)
    list_seqs = {
        seq
        for seq, some in rules.items()
        if len(some) > MAX_MESSAGE_RULES and _sum_tokens(one.line for one in some) > tokens * LIST_SHARE
    }
    _link_sentences([one for one in pieces if not one.is_pasted], list_seqs)
    candidates = [
        one
        for one in pieces
        if known.is_complete
        or one.is_in_head
        or one.source.seq >= known.before_seq
        or known.shows(one.source.seq, one.start)
    ]
    chosen = _Selection(tokens, count, list_seqs).choose_pieces(candidates, min(room.head_tokens, saved_tokens))
    lines = _join_pieces([one for one in pieces if one in chosen])
    return UserText(before_seq, head_to, frame_tokens, False, lines)


def _sum_tokens(lines: Iterable[UserLine]) -> int:
    return sum(one.tokens for one in lines)


def _build_line(piece: _Piece, end: int, day: str) -> UserLine:
    """Returns the line that shows a message from a piece on, up to `end`."""
    source = piece.source
    text = source.text
    tokens = piece.count(render_user_line(text[piece.start : end], source.name, day))
    is_whole = not (text[: piece.start].strip() or text[end:].strip())
    return UserLine(source.seq, piece.start, end, tokens, is_whole, day)


def _join_pieces(pieces: Sequence[_Piece]) -> tuple[UserLine, ...]:
    """Returns the lines that show pieces, which are in the order of the log: one for pieces that follow each other."""
    runs: list[tuple[_Piece, int]] = []
    for one in pieces:
        first, end = runs[-1] if runs else (one, one.start)
        if runs and first.source is one.source and not one.source.text[end : one.start].strip():
            runs[-1] = first, one.end
        else:
            runs.append((one, one.end))
    days = [""] + [first.source.day for first, _ in runs]
    return tuple(
        _build_line(*run, run[0].source.day if run[0].source.day != before else "")
        for run, before in zip(runs, days, strict=False)
    )


def _select_own_parts(messages: Iterable[LogText], head_to: int) -> list[tuple[LogText, list[TextPart]]]:
    """Returns the user's own messages with their parts. Of instructions that are sent again, only the newest stay; of
    equal messages, the newest. Instructions that the head has not had count as pasted."""
    own: dict[tuple[str, str], tuple[LogText, list[TextPart]]] = {}
    newest: dict[str, int] = {}
    head_keys = set[str]()
    for source in messages:
        text = source.text
        if source.message.role != "user" or is_textual_result(text) or not text.strip():
            continue
        parts = [one for one in split_into_parts(text) if one.kind != "state"]
        newest |= {one.key: source.seq for one in parts if one.key}
        if source.seq < head_to:
            head_keys |= {one.key for one in parts if one.key}
        own.pop((source.name, text), None)
        own[source.name, text] = (
            source,
            [one if one.key in head_keys or not one.key else one._replace(kind="pasted") for one in parts],
        )
    return [
        (source, [one for one in parts if newest.get(one.key, source.seq) == source.seq])
        for source, parts in own.values()
    ]


def _split_parts(source: LogText, parts: Iterable[TextPart], head_to: int, count: CountTokens) -> Iterator[_Piece]:
    """Yields the pieces of a message. A list item needs the line in front of its list."""
    text = source.text
    heading: _Piece | None = None
    has_list = len(LIST_ITEM_LINE.findall(text)) >= MIN_LIST_ITEMS
    whole_message = [*strip_span(text, 0, len(text))]
    for part in parts:
        is_in_head = source.seq < head_to or part.kind == "instructions"
        if part.kind == "pasted":
            edges = part.start + PASTED_HEAD_CHARS, part.end - PASTED_TAIL_CHARS
            ends = [part.start, *(edges if edges[0] < edges[1] else ()), part.end]
            for index, span in enumerate(pairwise(ends)):
                yield _Piece(source, *span, count, is_in_head, is_pasted=True, is_middle=index == 1)
            continue
        for start, end in split_into_sentences(text, part.start, part.end):
            item = LIST_ITEM.match(text, start, end) if has_list else None
            if item is None and not text.endswith(" ", 0, start):
                heading = None
            strength = rate_sentence(
                text[item.end() if item else start : end],
                is_list_item=bool(item),
                is_whole_message=[(start, end)] == whole_message,
            )
            needed = [heading] if item and heading else []
            piece = _Piece(source, start, end, count, is_in_head, strength=strength, needed=needed)
            if text[end - 1] in ":\uff1a":
                heading = piece
            yield piece


@dataclass
class _Selection:
    """What is chosen of pieces that do not all fit in `tokens`."""

    tokens: int
    count: CountTokens
    list_seqs: Set[int]
    """Messages that are lists of rules."""
    chosen: set[_Piece] = field(default_factory=set)
    days: set[str] = field(default_factory=lambda: {""})
    """The days of the chosen pieces. Each is shown once."""

    def choose_pieces(self, pieces: Sequence[_Piece], head_tokens: int) -> set[_Piece]:
        head = sorted((one for one in pieces if one.is_in_head), key=lambda one: (one.is_pasted, -one.strength))
        left, _ = self._add(head, head_tokens)
        left = self.tokens - min(head_tokens - left, self.tokens // 2)
        by_user = defaultdict[str, list[_Piece]](list)
        for one in reversed(pieces):
            by_user[one.source.name].append(one)
        share = left // max(1, len(by_user))
        for own in by_user.values():
            listed = [one for one in own if one.strength and one.source.seq in self.list_seqs]
            reserve = int(share * LIST_RESERVE) if listed else 0
            others = [one for one in own if one.source.seq not in self.list_seqs]
            left, missed = self._add((one for one in others if one.strength == BINDS), share - reserve)
            newer = set(own if missed is None else own[: own.index(missed)])
            left, _ = self._add((one for one in others if one.strength == MAY_BIND and one in newer), left)
            self._add((one for one in listed if one in newer), left + reserve)
        return self.chosen

    def _add(self, ordered: Iterable[_Piece], left: int) -> tuple[int, _Piece | None]:
        """Adds pieces in order, each with what it needs, until one does not fit.

        Returns:
            The tokens that are left, and the piece that does not fit.
        """
        for one in ordered:
            added = _close(one) - self.chosen
            days = {piece.source.day for piece in added} - self.days
            tokens = _sum_tokens(piece.line for piece in added) + sum(self.count(f"({day}) ") for day in days)
            if tokens > left:
                return left, one
            self.chosen |= added
            self.days |= days
            left -= tokens
        return left, None


def _close(piece: _Piece) -> set[_Piece]:
    """Returns a piece with all that must be kept with it."""
    found = set[_Piece]()
    waiting = [piece]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += one.needed
    return found


def _link_sentences(sentences: Sequence[_Piece], list_seqs: Set[int]) -> None:
    """Notes for each sentence the later ones of its user that speak of the same: they must be kept with it."""
    by_term = defaultdict[tuple[str, str], list[int]](list)
    repeats = Counter[tuple[int, str]]((one.source.seq, term) for one in sentences for term in one.terms)
    for index, one in enumerate(sentences):
        for term in one.terms:
            if one.source.seq not in list_seqs or repeats[one.source.seq, term] <= MAX_LIST_REPEATS:
                by_term[one.source.name, term].append(index)
    for index, one in enumerate(sentences):
        if one.strength or one.is_in_head or one.needed:
            places = [by_term[one.source.name, term] for term in one.terms]
            shared = Counter(at for some in places if len(some) <= MAX_LINKED for at in some if at > index)
            later = ((sentences[at], count) for at, count in shared.items())
            one.needed += [
                other
                for other, count in later
                if count >= LINKED_SHARE * len(other.terms) and (one.strength or other.strength)
            ]
