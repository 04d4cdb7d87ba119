"""Pairs the messages of a log with the messages of a client history.

Notes are not paired here. Tool results are compared in the order of their calls, because a client may send parallel
results in any order. A pair is two indexes, one in the history and one in the log; both sides ascend. Every step takes
linear or n·log n time.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Literal

import msgspec

ElementKind = Literal["note", "user", "assistant", "tool"]

MIN_ANCHOR_TOKENS = 24
"""Shorter answers are given to many people in the same words, so they do not identify a conversation."""
MIN_PREFIX_CHARACTERS = 96
"""About `MIN_ANCHOR_TOKENS` tokens of English text."""

_RANDOM_CALL_ID = re.compile(
    r"(?:.*[^A-Za-z0-9])?(?:[0-9]{12,}|(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9]{8,})", re.DOTALL
)


class AlignmentElement(msgspec.Struct, frozen=True):
    """The facts of one message that the alignment needs, of the log or of the history."""

    kind: ElementKind
    """A note is a system or developer message, or an assistant message with neither content nor tool calls."""
    digest: bytes
    """16 bytes: the digest of the message's canonical form, or of a note's content."""
    call_ids: tuple[str, ...] = ()
    """For an assistant message: the ids of its tool calls, in order. For a tool result: the id of its call."""
    text: str = ""
    """The text of an assistant's final answer in canonical form; otherwise empty."""
    tokens: int = 0
    """Only for messages of the log."""
    is_answer: bool = False
    """Only for messages of the log: whether this gateway gave the answer."""
    alternative_digests: tuple[bytes, ...] = ()
    """Only for messages of the log: the digests of the answer's other choices."""
    quoted_answer: bytes = b""
    """Only for user messages of the history: the digest of the log's newest answer, if its text is in the message."""

    @property
    def comparison_key(self) -> Hashable:
        """Equal for messages with the same content and the same call ids. All known clients keep the ids of calls."""
        return (self.digest, self.call_ids) if self.call_ids else self.digest

    @property
    def is_final_answer(self) -> bool:
        """Whether it is an assistant message without tool calls."""
        return self.kind == "assistant" and not self.call_ids


IndexPair = tuple[int, int]
"""An index in the history and an index in the log, both without notes."""
IndexGap = tuple[int, int, int, int]
"""The half-open ranges between two pairs: history from, history to, log from, log to."""


def is_random_call_id(call_id: str) -> bool:
    """Returns whether a call id looks random, so that hardly any other conversation has it: its last word has twelve
    digits, or eight letters and digits mixed. Ids such as `call_0` and `functions.read:0` are counters, which every
    conversation repeats."""
    return _RANDOM_CALL_ID.fullmatch(call_id) is not None


def order_indexes_by_calls(elements: Sequence[AlignmentElement]) -> list[int]:
    """Returns the indexes of the messages that are no notes. Tool results are in the order of their calls."""
    order = [index for index, element in enumerate(elements) if element.kind != "note"]
    position = 0
    while position < len(order):
        end = position + 1
        calls = elements[order[position]].call_ids
        if elements[order[position]].kind == "assistant" and calls:
            while end < len(order) and elements[order[end]].kind == "tool":
                end += 1
            # Reversed, so that of a repeated id the first call counts.
            rank = {call_id: number for number, call_id in reversed(list(enumerate(calls)))}
            order[position + 1 : end] = sorted(
                order[position + 1 : end],
                key=lambda index: min([rank.get(i, len(rank)) for i in elements[index].call_ids], default=0),
            )
        position = end
    return order


def is_answer_version(known: AlignmentElement, element: AlignmentElement) -> bool:
    """Returns whether an assistant message is another choice of an answer, or a long enough beginning of it."""
    if element.digest in known.alternative_digests:
        return True
    return len(element.text) >= MIN_PREFIX_CHARACTERS and known.text.startswith(element.text)


class MessagePairing:
    """Finds pairs between a log and a history, both without notes. `pairs` ascends on both sides."""

    def __init__(
        self, log: Sequence[AlignmentElement], history: Sequence[AlignmentElement], *, is_log_named: bool
    ) -> None:
        self.log = log
        self.history = history
        self.is_log_named = is_log_named
        self.pairs: list[IndexPair] = []

    def find_pairs(self) -> None:
        """Pairs assistant messages first, then their neighbours, then the messages between pairs, then the end."""
        # The order goes from sure to less sure: each step pairs only within the gaps that the steps before it left.
        self._pair_common_prefix()
        self._pair_unique(self._make_context_key, self._make_context_key)
        self._pair_unique(self._make_answer_key, self._make_answer_key)
        self._pair_truncated_answers()
        self._pair_unique(self._make_call_ids_key, self._make_call_ids_key)
        if self.is_log_named and not self.pairs:
            self._pair_users()
        if self.pairs:
            self._pair_equal_neighbours()
            self._pair_gaps()
            self._pair_reworded_end()
            # After the gaps were paired: equal results of two different calls may have been paired by their text, and
            # are paired again by their calls.
            self._drop_unmatched_results()
            self._pair_call_results()
            self._add_pairs(
                [pair for gap in self._iterate_gaps(with_end=False) for pair in self._pair_equal_role_sequences(gap)]
            )
        self._pair_head_answer()

    @property
    def end_indexes(self) -> IndexPair:
        """The indexes after the last pair."""
        return (self.pairs[-1][0] + 1, self.pairs[-1][1] + 1) if self.pairs else (0, 0)

    @property
    def is_log_confirmed(self) -> bool:
        """Whether an id names the log, or an answer of ours came back that hardly any other conversation has."""
        return self.is_log_named or any(
            (
                self.log[log_index].comparison_key == self.history[history_index].comparison_key
                or is_answer_version(self.log[log_index], self.history[history_index])
            )
            and (is_long_answer(self.log[log_index]) or has_random_call_ids(self.log[log_index]))
            for history_index, log_index in self.pairs
        )

    def _iterate_gaps(self, *, with_end: bool) -> Iterator[IndexGap]:
        history_index = log_index = 0
        for next_history_index, next_log_index in self.pairs:
            if next_history_index > history_index and next_log_index > log_index:
                yield history_index, next_history_index, log_index, next_log_index
            history_index, log_index = next_history_index + 1, next_log_index + 1
        if with_end and history_index < len(self.history) and log_index < len(self.log):
            yield history_index, len(self.history), log_index, len(self.log)

    def _add_pairs(self, pairs: list[IndexPair]) -> None:
        if pairs:
            self.pairs = sorted(self.pairs + pairs)

    def _count_common_prefix(self) -> int:
        length = 0
        for known, element in zip(self.log, self.history, strict=False):
            if known.comparison_key != element.comparison_key:
                break
            length += 1
        return length

    def _pair_common_prefix(self) -> None:
        """Pairs the common beginning of both, if it contains an assistant message. User messages alone may be equal by
        chance."""
        length = self._count_common_prefix()
        if any(element.kind == "assistant" for element in self.log[:length]):
            self.pairs = [(index, index) for index in range(length)]

    def _make_context_key(self, elements: Sequence[AlignmentElement], index: int) -> Hashable:
        """Returns a key of an assistant message together with the message before it."""
        if elements[index].kind != "assistant" or index == 0:
            return None
        return (elements[index - 1].kind, elements[index - 1].digest, elements[index].comparison_key)

    def _make_answer_key(self, elements: Sequence[AlignmentElement], index: int) -> Hashable:
        """Returns a key of an assistant message alone: a call with its ids, or a final answer, which must be long in
        the log."""
        element = elements[index]
        short = (
            elements is self.log
            and element.is_final_answer
            and element.tokens < MIN_ANCHOR_TOKENS
            and not self.is_log_named
        )
        return None if element.kind != "assistant" or short else element.comparison_key

    def _pair_truncated_answers(self) -> None:
        """Pairs answers with the beginnings that the client kept of them."""
        before = set(self.pairs)
        self._pair_unique(self._make_beginning_key, self._make_beginning_key)
        self.pairs = [
            (history_index, log_index)
            for history_index, log_index in self.pairs
            if (history_index, log_index) in before
            or is_answer_version(self.log[log_index], self.history[history_index])
        ]

    def _make_beginning_key(self, elements: Sequence[AlignmentElement], index: int) -> Hashable:
        """Returns the beginning of a final answer, if it is long enough to identify the answer."""
        element = elements[index]
        is_long = element.kind == "assistant" and element.is_final_answer and len(element.text) >= MIN_PREFIX_CHARACTERS
        return element.text[:MIN_PREFIX_CHARACTERS] if is_long else None

    def _make_call_ids_key(self, elements: Sequence[AlignmentElement], index: int) -> Hashable:
        """Returns the call ids of an assistant message alone, because a client may shorten the arguments."""
        element = elements[index]
        return element.call_ids if element.kind == "assistant" and are_random_call_ids(element.call_ids) else None

    def _pair_unique(
        self,
        log_key: Callable[[Sequence[AlignmentElement], int], Hashable],
        history_key: Callable[[Sequence[AlignmentElement], int], Hashable],
        *,
        with_end: bool = True,
    ) -> None:
        """In each gap, pairs the messages whose key occurs once on either side. Of these pairs the longest sequence
        that ascends on both sides is taken."""
        new_pairs: list[IndexPair] = []
        for history_start, history_end, log_start, log_end in self._iterate_gaps(with_end=with_end):
            log_indexes = find_unique_keys(range(log_start, log_end), lambda index: log_key(self.log, index))
            unique = find_unique_keys(range(history_start, history_end), lambda index: history_key(self.history, index))
            new_pairs += find_longest_increasing_pairs(
                [(index, log_indexes[key]) for key, index in unique.items() if key in log_indexes]
            )
        self._add_pairs(new_pairs)

    def _pair_users(self) -> None:
        """Pairs user messages if no assistant message is paired: first the common beginning of both, then unique
        ones."""
        log_users = [index for index, element in enumerate(self.log) if element.kind == "user"]
        history_users = [index for index, element in enumerate(self.history) if element.kind == "user"]
        for log_index, history_index in zip(log_users, history_users, strict=False):
            if self.log[log_index].comparison_key != self.history[history_index].comparison_key:
                break
            self.pairs.append((history_index, log_index))
        self._pair_unique(make_user_key, make_user_key)

    def _pair_equal_neighbours(self) -> None:
        """Pairs equal neighbours of each pair, first those after it, then those before it."""
        new_pairs: list[IndexPair] = []
        ends = [(len(self.history), len(self.log))]
        for (history_index, log_index), (history_end, log_end) in zip(
            self.pairs, [*self.pairs[1:], *ends], strict=True
        ):
            while (
                (history_index := history_index + 1) < history_end
                and (log_index := log_index + 1) < log_end
                and self._is_equal(history_index, log_index)
            ):
                new_pairs.append((history_index, log_index))
        self._add_pairs(new_pairs)
        new_pairs = []
        for (history_start, log_start), (history_index, log_index) in zip(
            [(-1, -1), *self.pairs], self.pairs, strict=False
        ):
            while (
                (history_index := history_index - 1) > history_start
                and (log_index := log_index - 1) > log_start
                and self._is_equal(history_index, log_index)
            ):
                new_pairs.append((history_index, log_index))
        self._add_pairs(new_pairs)

    def _is_equal(self, history_index: int, log_index: int) -> bool:
        return self.history[history_index].comparison_key == self.log[log_index].comparison_key

    def _pair_gaps(self) -> None:
        """Pairs equal messages between two pairs, or before the first pair; then calls with the same ids."""
        self._pair_unique(make_element_key, make_element_key, with_end=False)
        self._pair_equal_neighbours()
        self._add_pairs(
            [pair for gap in self._iterate_gaps(with_end=False) for pair in self._pair_repeated_messages(gap)]
        )
        self._add_pairs([pair for gap in self._iterate_gaps(with_end=False) for pair in self._pair_equal_call_ids(gap)])

    def _pair_repeated_messages(self, gap: IndexGap) -> Iterator[IndexPair]:
        """Yields pairs of equal messages that occur several times in a gap, from the end backwards."""
        history_start, history_end, log_start, log_end = gap
        log_indexes: dict[Hashable, list[int]] = {}
        for index in range(log_start, log_end):
            log_indexes.setdefault(self.log[index].comparison_key, []).append(index)
        limit = log_end
        for index in range(history_end - 1, history_start - 1, -1):
            candidates = log_indexes.get(self.history[index].comparison_key, ())
            if before := bisect_left(candidates, limit):
                limit = candidates[before - 1]
                yield index, limit

    def _pair_equal_call_ids(self, gap: IndexGap) -> Iterator[IndexPair]:
        """Yields pairs of assistant messages whose calls have the same ids, in order, with any arguments."""
        history_start, history_end, log_start, log_end = gap
        log_indexes: dict[Hashable, list[int]] = {}
        for index in range(log_start, log_end):
            if self.log[index].kind == "assistant" and self.log[index].call_ids:
                log_indexes.setdefault(self.log[index].call_ids, []).append(index)
        limit = log_end
        for index in range(history_end - 1, history_start - 1, -1):
            element = self.history[index]
            candidates = log_indexes.get(element.call_ids, ()) if element.kind == "assistant" else ()
            if before := bisect_left(candidates, limit):
                limit = candidates[before - 1]
                yield index, limit

    def _drop_unmatched_results(self) -> None:
        """Drops pairs of tool results whose calls are not paired with each other, because ids and texts of results
        repeat."""
        callers, known_callers = find_call_indices(self.history), find_call_indices(self.log)
        paired = dict(self.pairs)
        self.pairs = [
            (history_index, log_index)
            for history_index, log_index in self.pairs
            if self.log[log_index].kind != "tool" or paired.get(callers[history_index], -1) == known_callers[log_index]
        ]

    def _pair_call_results(self) -> None:
        """Pairs the results of paired calls, by the id of the call. After the last pair only equal results are paired:
        a different result there begins something new and is not a version of the old one."""
        new_pairs: list[IndexPair] = []
        paired = dict(self.pairs)
        last = self.pairs[-1][0]
        for history_index, log_index in self.pairs:
            if self.log[log_index].kind != "assistant" or not self.log[log_index].call_ids:
                continue
            run_end = find_results_end(self.history, history_index + 1)
            result_indexes: dict[Hashable, int] = {
                self.log[to].call_ids: to for to in range(find_results_end(self.log, log_index + 1) - 1, log_index, -1)
            }
            for index in range(history_index + 1, run_end):
                result_indexes.pop(self.history[index].call_ids if index in paired else None, None)
            limit = log_index
            for index in range(history_index + 1, min(run_end, last)):
                to = paired.get(index) or result_indexes.pop(self.history[index].call_ids, -1)
                if to > limit:
                    limit = to
                    if index not in paired:
                        new_pairs.append((index, to))
        self._add_pairs(new_pairs)

    def _pair_equal_role_sequences(self, gap: IndexGap) -> list[IndexPair]:
        """Returns pairs of user messages and final answers, one to one, if the gap has the same sequence of roles on
        both sides. Otherwise it is not known which message is a version of which."""
        history_start, history_end, log_start, log_end = gap
        history_indexes = [
            index for index in range(history_start, history_end) if is_skeleton_element(self.history[index])
        ]
        log_indexes = [index for index in range(log_start, log_end) if is_skeleton_element(self.log[index])]
        if [self.history[index].kind for index in history_indexes] != [self.log[index].kind for index in log_indexes]:
            return []
        return list(zip(history_indexes, log_indexes, strict=True))

    def _pair_reworded_end(self) -> None:
        """Pairs reworded user messages and results after the last pair, if an answer after them came back. They are
        paired one by one through the last such answer, and only if the log is confirmed."""
        history_index, log_index = self.end_indexes
        step: list[IndexPair] = []
        length = 0
        backed = self.is_log_confirmed
        while backed and history_index < len(self.history) and log_index < len(self.log):
            element, known = self.history[history_index], self.log[log_index]
            if known.call_ids and element.call_ids != known.call_ids:
                # The client has dropped a call or its result.
                log_index += 1
                continue
            if element.kind != known.kind or element.call_ids != known.call_ids:
                break
            step.append((history_index, log_index))
            if element.kind == "assistant":
                if element.digest != known.digest and not is_answer_version(known, element):
                    break
                length = len(step)
            history_index, log_index = history_index + 1, log_index + 1
        self._add_pairs(step[:length])

    def _pair_head_answer(self) -> None:
        """Pairs the log's last answer, if it is the only unpaired message of the log and the history has a version of
        it in its place."""
        start = [] if self.pairs else [(log_index, log_index) for log_index in range(self._count_common_prefix())]
        history_index, log_index = (len(start), len(start)) if start else self.end_indexes
        if log_index != len(self.log) - 1 or history_index >= len(self.history) or not log_index:
            return
        known, element = self.log[log_index], self.history[history_index]
        if not known.is_answer or element.kind != "assistant":
            return
        # In a confirmed log, an answer in the head's place counts as the head in other words, if the history goes on
        # after it. At the end of the history it is a prefill.
        is_other = (
            known.is_final_answer
            and element.is_final_answer
            and self.is_log_confirmed
            and history_index < len(self.history) - 1
        )
        if is_answer_version(known, element) or is_other:
            self._add_pairs([*start, (history_index, log_index)])


def is_long_answer(element: AlignmentElement) -> bool:
    """Returns whether a log message is a final answer of ours that is long enough to identify a conversation."""
    return element.is_answer and element.is_final_answer and element.tokens >= MIN_ANCHOR_TOKENS


def are_random_call_ids(call_ids: tuple[str, ...]) -> bool:
    return bool(call_ids) and all(map(is_random_call_id, call_ids))


def has_random_call_ids(element: AlignmentElement) -> bool:
    """Returns whether a log message is an answer of ours with tool calls whose ids look random."""
    return element.is_answer and element.kind == "assistant" and are_random_call_ids(element.call_ids)


def is_skeleton_element(element: AlignmentElement) -> bool:
    return element.kind == "user" or element.is_final_answer


def make_user_key(elements: Sequence[AlignmentElement], index: int) -> Hashable:
    return elements[index].comparison_key if elements[index].kind == "user" else None


def make_element_key(elements: Sequence[AlignmentElement], index: int) -> Hashable:
    return elements[index].comparison_key


def find_results_end(elements: Sequence[AlignmentElement], index: int) -> int:
    """Returns the index after the run of tool results that begins at `index`."""
    while index < len(elements) and elements[index].kind == "tool":
        index += 1
    return index


def find_call_indices(elements: Sequence[AlignmentElement]) -> list[int]:
    """Returns for each message the index of the last message up to it that is no tool result; -1 if there is none."""
    callers: list[int] = []
    for index, element in enumerate(elements):
        callers.append((callers[-1] if callers else -1) if element.kind == "tool" else index)
    return callers


def find_unique_keys(indices: range, key: Callable[[int], Hashable]) -> dict[Hashable, int]:
    """Returns the keys that exactly one index has, with that index. None is not a key."""
    index_by_key: dict[Hashable, int] = {}
    repeated: set[Hashable] = {None}
    for index in indices:
        value = key(index)
        if value in index_by_key:
            repeated.add(value)
        else:
            index_by_key[value] = index
    return {value: index for value, index in index_by_key.items() if value not in repeated}


def find_longest_increasing_pairs(pairs: list[IndexPair]) -> list[IndexPair]:
    """Returns the longest sequence of pairs that ascends on both sides. Of several, one whose pairs are late in the log
    is returned."""
    ends: list[int] = []
    chains: list[int] = []
    before: dict[int, int | None] = {}
    for number in range(len(pairs) - 1, -1, -1):
        depth = bisect_left(ends, -pairs[number][1])
        before[number] = chains[depth - 1] if depth else None
        ends[depth : depth + 1] = [-pairs[number][1]]
        chains[depth : depth + 1] = [number]
    ascent: list[IndexPair] = []
    number_or_none = chains[-1] if chains else None
    while number_or_none is not None:
        ascent.append(pairs[number_or_none])
        number_or_none = before[number_or_none]
    return ascent
