"""Aligns a client history with the log that it continues: finds for each message what it is to the log. Pure.

The promise: what the client says counts in the client's version, and nothing is appended twice or lost. Whose log it is
was proven before, so a wrong pair costs tokens or a branch; it shows nobody another's words.

Messages without notes and without the results of tool calls form the *skeleton*. The skeletons are paired first;
results follow their calls. Every step takes linear or n·log n time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise, takewhile
from typing import Final, Literal

import msgspec

from app.conversation.fingerprints import FEW_WORDS, extract_summary, list_words
from app.conversation.item import TOOL_RESULT_ROLES, Item

MIN_SUMMARY_ROUNDS: Final = 2
"""A message in the place of at least this many omitted rounds is the client's own summary of them."""
MAX_TEXT_CHARACTERS: Final = 32_000
"""Texts are compared in this many first characters, so that long texts cannot stall the alignment."""
MAX_SPLITS: Final = 8
"""How often gaps are split at unique messages. Without a bound, a log can be made that takes quadratic time."""
MAX_CANDIDATES: Final = 3
"""How many messages a message is compared with by its text."""
ANSWER_KINDS: Final = ("answer", "call")

ElementKind = Literal["note", "user", "answer", "call", "result"]
Mark = Literal["same", "rewritten", "note", "inserted", "summary", "new"]
_Pair = tuple[int, int]
"""A place in the history and a place in the log."""
_Gap = tuple[int, int, int, int]
"""History from, history to, log from, log to; half-open."""
_Caller = tuple[int, Hashable]
"""The place of the call that a tool result answers, and which of its calls that is."""


class Element(msgspec.Struct, frozen=True):
    """What the alignment needs of one message, of the log or of the history."""

    kind: ElementKind
    """answer: an assistant message without tool calls; call: one with tool calls. note: a message that the chain of
    links skips."""
    digest: bytes
    """16 bytes: the digest of the canonical form; of a note, of its content alone."""
    call_ids: tuple[str, ...] = ()
    """Of a call: the ids of its tool calls, in order. Of a result: the id of its call, "" without one."""
    known_words: tuple[bytes, ...] = ()
    """Of an answer with at least `FEW_WORDS` words: digests of its first many and its first few words."""
    text: str = ""
    """Of a user message, an answer or a result: the first `MAX_TEXT_CHARACTERS` of its text, white space folded."""
    alternatives: tuple[bytes, ...] = ()
    """Of an answer in a log: the digests of its other choices, and of the message that a client makes of the prefill
    before it and the answer."""

    @property
    def comparison_key(self) -> Hashable:
        """Equal for messages that say the same and have the same call ids."""
        return self.kind, self.digest, self.call_ids


class MessageAlignment(msgspec.Struct, frozen=True):
    """What one message of the history is to the log."""

    kind: Mark
    seq: int
    """same, rewritten: the seq of the message's log message. note, inserted, summary: the seq of the log message that
    follows it; beside an omitted range, the first seq of that range. A note after the last message of such a range has
    the seq that follows the range. A note among new messages has the seq that the next new message gets. new: -1."""


class Alignment(msgspec.Struct, frozen=True):
    """The alignment of a history with a log."""

    marks: tuple[MessageAlignment, ...]
    """One for each message of the history."""
    omitted: tuple[tuple[int, int], ...]
    """Log ranges [from, to) through `last_seq` that the history does not have, ascending."""
    last_seq: int
    """The last log message that the history reaches; -1 if there is none."""
    first_new_index: int
    """Index of the first new message that is no note; the length of the history if there is none."""
    continues_log: bool
    """Whether `last_seq` is the log's head. Otherwise the history branches after `last_seq`."""
    joined: tuple[int, ...] = ()
    """Prefills (seqs) that the client has joined with their answers. They are among the omitted, but the history
    carries their words."""


def build_element(message: Item, *, alternatives: tuple[bytes, ...] = ()) -> Element:
    """Returns what the alignment needs of a message.

    Args:
        alternatives: for an answer in a log; see `Element`.

    Raises:
        InvalidRequest: the message is not a JSON object.
    """
    form = message.canonical_form
    if form is None:
        return Element("note", _digest(message.canonical_note))
    digest = _digest(form)
    if message.role in TOOL_RESULT_ROLES:
        return Element("result", digest, (message.result_for or "",), text=_fold(message.text))
    if message.role != "assistant":
        return Element("user", digest, text=_fold(message.text))
    if message.calls_tools:
        ids = tuple([call.id or "" for call in message.calls])
        return Element("call", digest, ids, alternatives=alternatives)
    text = message.canonical_answer
    words = list_words(text)
    beginnings = (words, words[:FEW_WORDS]) if len(words) >= FEW_WORDS else ()
    known_words = [_digest(" ".join(one).encode("utf-8", "surrogatepass")) for one in beginnings]
    return Element("answer", digest, (), tuple(dict.fromkeys(known_words)), _fold(text), alternatives)


def is_known_answer(known: Element, element: Element) -> bool:
    """Returns whether an assistant message of a history is an answer of the log in some version: equal, another choice,
    with the same call ids, or the one text begins with the other: its letters, or, of `MANY_WORDS`, its words."""
    if element.kind not in ANSWER_KINDS or known.kind not in ANSWER_KINDS:
        return False
    if element.digest == known.digest or element.digest in known.alternatives:
        return True
    if element.kind != known.kind:
        return False
    if element.kind == "call":
        return element.call_ids == known.call_ids
    short, long = sorted((known.text, element.text), key=len)
    if long.startswith(short) and any(map(str.isalnum, short)):
        return True
    # As far as both go: two people's answers to the same question often begin alike.
    return not set(known.known_words).isdisjoint(element.known_words) and all(
        one == other for one, other in zip(list_words(known.text), list_words(element.text), strict=False)
    )


def align(
    log: Sequence[Element], history: Sequence[Element], proof: tuple[int, int] | None, *, omits_answers: bool
) -> Alignment:
    """Returns the alignment of a history with its log.

    Args:
        log: the whole log.
        history: the client's messages without the leading instructions.
        proof: the index in the history and the seq of a message that is surely the same; for a tool result, that is
            its call. None: the caller names the log; then the newest equal message is looked for.
        omits_answers: whether the client is known to leave out answers and tool rounds: its own compaction, or a log
            that the caller names. Then log answers that the history lacks are no sign of a branch.
    """
    log_seqs, log_results = _split_skeleton(log)
    indexes, history_results = _split_skeleton(history)
    pairing = _SkeletonPairing([log[seq] for seq in log_seqs], [history[index] for index in indexes])
    if proof is None:
        anchor = pairing.find_anchor(omits_answers=omits_answers)
    else:
        anchor = bisect_right(indexes, proof[0]) - 1, bisect_right(log_seqs, proof[1]) - 1
    found = pairing.find_pairs(anchor, omits_answers=omits_answers) if anchor and min(anchor) >= 0 else ()
    pairs = {indexes[index]: log_seqs[place] for index, place in found}
    _pair_results(log, history, log_results, history_results, pairs)
    return _build_alignment(log, history, pairs, omits_answers=omits_answers)


def _split_skeleton(elements: Sequence[Element]) -> tuple[list[int], dict[_Caller, list[int]]]:
    """Returns the indexes of the skeleton, and those of tool results by their calls: the newest call before a result
    that has its id, or else the newest call. A result without a call since the last user message or answer is part of
    the skeleton."""
    skeleton: list[int] = []
    results: dict[_Caller, list[int]] = {}
    callers: dict[str, _Caller] = {}
    newest = -1
    for index, element in enumerate(elements):
        if element.kind == "result" and newest >= 0:
            (call_id,) = element.call_ids
            results.setdefault(callers.get(call_id, (newest, call_id)), []).append(index)
        elif element.kind != "note":
            skeleton.append(index)
        if element.kind == "call":
            newest = index
            callers |= {call_id: (index, rank) for rank, call_id in enumerate(element.call_ids)}
        elif element.kind in ("user", "answer"):
            callers, newest = {}, -1
    return skeleton, results


class _SkeletonPairing:
    """Pairs the skeleton of a history with that of a log. Indexes count within the history's skeleton, places within
    the log's."""

    def __init__(self, log: Sequence[Element], history: Sequence[Element]) -> None:
        self.log, self.history = log, history
        self.log_keys = [element.comparison_key for element in log]
        self.history_keys = [element.comparison_key for element in history]
        self.known_keys = frozenset(self.history_keys)

    def find_anchor(self, *, omits_answers: bool) -> _Pair | None:
        """Returns the newest answer or call that occurs once on both sides. Without one: the newest answer that is
        equal together with the message before it; the end of the common beginning; or, where answers are left out, the
        newest user message that occurs once on both sides."""
        same = takewhile(lambda keys: keys[0] == keys[1], zip(self.history_keys, self.log_keys, strict=False))
        prefix = sum(1 for _ in same)
        rest = (prefix, len(self.history), prefix, len(self.log))
        if found := self._pair_unique(rest, _list_answer_keys):
            return found[-1]
        places = {(self.log_keys[place - 1], self.log_keys[place]): place for place in range(prefix + 1, len(self.log))}
        for index in range(len(self.history) - 1, prefix, -1):
            place = places.get((self.history_keys[index - 1], self.history_keys[index]))
            if place is not None and self.history[index].kind in ANSWER_KINDS:
                return index, place
        if omits_answers and not any(element.kind in ANSWER_KINDS for element in self.history[:prefix]):
            found = self._pair_unique(rest, lambda element: [element.digest] if element.kind == "user" else [])
        return found[-1] if found else (prefix - 1, prefix - 1) if prefix else None

    def find_pairs(self, anchor: _Pair, *, omits_answers: bool) -> list[_Pair]:
        """Returns all pairs, ascending on both sides.

        Args:
            anchor: a pair that is sure.
        """
        pairs = sorted([*self._pair_equal((0, anchor[0], 0, anchor[1])), anchor])
        for gap in _list_gaps([(-1, -1), *pairs]):
            pairs += _pair_backwards(self.log, self.history, gap, _list_version_keys, is_known_answer)
        for gap in _list_gaps([(-1, -1), *sorted(pairs)]):
            pairs += self._pair_by_position(gap)
        return sorted(pairs) + self._walk_to_head(*anchor, omits_answers=omits_answers)

    def _pair_equal(self, gap: _Gap) -> Iterator[_Pair]:
        """Yields pairs of equal messages: the common end and the common beginning, then messages that occur once on
        both sides, then the same between those, and last what repeats."""
        gaps = [gap]
        for _ in range(MAX_SPLITS):
            split: list[_Gap] = []
            for index, index_end, place, place_end in gaps:
                # The end first: a window keeps the newest of what repeats.
                while index < index_end and place < place_end and self._is_equal(index_end - 1, place_end - 1):
                    index_end, place_end = index_end - 1, place_end - 1
                    yield index_end, place_end
                while index < index_end and place < place_end and self._is_equal(index, place):
                    yield index, place
                    index, place = index + 1, place + 1
                pairs = self._pair_unique((index, index_end, place, place_end), _list_equal_keys)
                yield from pairs
                split += _list_gaps([(index - 1, place - 1), *pairs, (index_end, place_end)])
            gaps = split
        for rest in gaps:
            yield from _pair_backwards(self.log, self.history, rest, _list_equal_keys)

    def _is_equal(self, index: int, place: int) -> bool:
        return self.history_keys[index] == self.log_keys[place]

    def _pair_unique(self, gap: _Gap, list_keys: Callable[[Element], Iterable[Hashable]]) -> list[_Pair]:
        """Returns pairs with a key that occurs once on both sides of a gap: the longest sequence that ascends."""
        index_from, index_to, place_from, place_to = gap
        indexes = _find_unique_keys(self.history[index_from:index_to], list_keys)
        places = _find_unique_keys(self.log[place_from:place_to], list_keys)
        pairs: dict[int, int] = {}
        for key, index in indexes.items():
            if key in places:
                pairs.setdefault(index_from + index, place_from + places[key])
        return _find_longest_ascent(sorted(pairs.items()))

    def _pair_by_position(self, gap: _Gap) -> Iterator[_Pair]:
        """Yields pairs one to one if the kinds on both sides of a gap are the same, calls aside. Otherwise pairs user
        messages of which one contains the other, such as a question within retrieved text."""
        index_from, index_to, place_from, place_to = gap
        indexes = [index for index in range(index_from, index_to) if self.history[index].kind != "call"]
        places = [
            place
            for place in range(place_from, place_to)
            if self.log[place].kind != "call" and not self._stands_elsewhere(place)
        ]
        kinds = [(self.history[index].kind, self.history[index].call_ids) for index in indexes]
        if kinds == [(self.log[place].kind, self.log[place].call_ids) for place in places]:
            yield from zip(indexes, places, strict=True)
            return
        users = [place for place in places if self.log[place].kind == "user"]
        for index in reversed(indexes):
            # The nearest, or the task, which clients keep before a window.
            for place in (*reversed(users[-MAX_CANDIDATES:]), *users[:1]):
                if self.history[index].kind == "user" and _is_contained(self.history[index], self.log[place]):
                    yield index, place
                    del users[bisect_left(users, place) :]
                    break

    def _walk_to_head(self, index: int, place: int, *, omits_answers: bool) -> list[_Pair]:
        """Returns pairs after the anchor: equal messages and known versions of answers, one after the other. A user
        message that the client has changed, inserted or left out counts only if an answer after it is known: a call or
        a longer answer if the question is another one, because "OK." may be the answer to both."""
        pairs: list[_Pair] = []
        waiting: list[_Pair] = []
        is_sure, has_other_question = True, False
        index, place = index + 1, place + 1
        while index < len(self.history) and place < len(self.log):
            known, element = self.log[place], self.history[index]
            following = self.log[place + 1 : place + 2]
            is_equal = self._is_equal(index, place)
            if not is_equal and known.kind == "answer" and any(element.digest in one.alternatives for one in following):
                place += 1  # a prefill that the client has joined with its answer
            elif is_equal or is_known_answer(known, element):
                waiting.append((index, place))
                index, place = index + 1, place + 1
                is_long_or_call = element.kind == "call" or bool(element.known_words)
                if is_sure or is_long_or_call or (element.kind == "answer" and not has_other_question):
                    pairs += waiting
                    waiting, is_sure, has_other_question = [], True, False
            elif omits_answers and is_sure and not following and self._is_reworded_head(index, place):
                # The caller names the log, so an answer in the place of its last one is that one in other words.
                pairs.append((index, place))
                break
            elif omits_answers and known.kind in ANSWER_KINDS:
                place += 1
            elif element.kind == known.kind == "user":
                is_sure = False
                if index + 1 < len(self.history) and self._is_equal(index + 1, place):
                    index += 1
                elif self._stands_elsewhere(place) or (place + 1 < len(self.log) and self._is_equal(index, place + 1)):
                    place += 1
                else:
                    has_other_question = has_other_question or not _is_contained(element, known)
                    waiting.append((index, place))
                    index, place = index + 1, place + 1
            else:
                break
        return pairs

    def _stands_elsewhere(self, place: int) -> bool:
        """Returns whether the history has a user message of the log as it was, in another place: the client may have
        moved it. So another message in its place is no version of it."""
        return self.log[place].kind == "user" and self.log_keys[place] in self.known_keys

    def _is_reworded_head(self, index: int, place: int) -> bool:
        """Returns whether a history goes on after an answer in the place of a log's last one."""
        return self.history[index].kind == self.log[place].kind == "answer" and index + 1 < len(self.history)


def _pair_results(
    log: Sequence[Element],
    history: Sequence[Element],
    log_results: Mapping[_Caller, Sequence[int]],
    history_results: Mapping[_Caller, Sequence[int]],
    pairs: dict[int, int],
) -> None:
    """Adds pairs of tool results to those of the skeletons: under paired calls, by the call, and by position where ids
    repeat. After the last skeleton pair only equal results are paired: a different one begins something new."""
    last_index, last_seq = max(pairs, default=-1), max(pairs.values(), default=-1)
    found: dict[int, int] = {}
    for (caller, rank), indexes in history_results.items():
        seqs = log_results.get((pairs.get(caller, -1), rank), ())
        if len(seqs) == len(indexes):
            found.update(zip(indexes, seqs, strict=True))
            continue
        seqs_by_digest: dict[bytes, list[int]] = {}
        for seq in reversed(seqs):
            seqs_by_digest.setdefault(log[seq].digest, []).append(seq)
        found.update((index, same.pop()) for index in indexes if (same := seqs_by_digest.get(history[index].digest)))
    pairs.update((index, seq) for index, seq in found.items() if index < last_index)
    following = [seq for seq in range(last_seq + 1, len(log)) if log[seq].kind != "note"]
    rank_by_seq = {seq: rank for rank, seq in enumerate(following)}
    waiting: list[_Pair] = []
    highest, count = -1, 0
    for index in range(last_index + 1, len(history)):
        if history[index].kind == "note":
            continue
        if index not in found or log[found[index]].digest != history[index].digest:
            break
        waiting.append((index, found[index]))
        highest = max(highest, rank_by_seq.get(found[index], -1))
        count += found[index] in rank_by_seq
        # A branch goes on after the last pair, so the log's results up to there must all have come.
        if highest == count - 1:
            pairs.update(waiting)
            waiting.clear()


def _build_alignment(
    log: Sequence[Element], history: Sequence[Element], pairs: dict[int, int], *, omits_answers: bool
) -> Alignment:
    """Derives marks from all pairs but those of notes. The pairs ascend, except for the results of parallel calls."""
    kept = set(pairs.values())
    joined = [
        seq - 1
        for index, seq in pairs.items()
        if seq - 1 not in kept
        and history[index].digest in log[seq].alternatives
        and _is_joined_prefill(log, seq - 1, history[index])
    ]
    last_seq = max(pairs.values(), default=-1)
    first_new = _find_message(history, max(pairs, default=-1) + 1)
    continues_log = bool(pairs) and _find_message(log, last_seq + 1) == len(log)
    if log and not continues_log and omits_answers:
        after_summary = _find_new_after_omitted_tail(log, history, kept, last_seq, first_new)
        if after_summary is not None:
            continues_log, first_new = True, after_summary
    if continues_log:
        last_seq = len(log) - 1
    for run, start, end in _list_unpaired_runs(pairs, first_new, last_seq):
        pairs.update(_pair_backwards(log, history, (run.start, run.stop, start, end), _list_note_keys))
    marks = [MessageAlignment("new", -1)] * len(history)
    for index, seq in pairs.items():
        is_same = log[seq].comparison_key == history[index].comparison_key
        marks[index] = MessageAlignment("same" if is_same else "rewritten", seq)
    for run, start, end in _list_unpaired_runs(pairs, first_new, last_seq):
        rounds = sum(element.kind in ("user", *ANSWER_KINDS) for element in log[start:end])
        mark: Mark = "summary" if rounds >= MIN_SUMMARY_ROUNDS else "inserted"
        marks_by_kind: dict[ElementKind, Mark] = {"note": "note", "user": mark, "answer": mark}
        last_message = max((index for index in run if history[index].kind != "note"), default=-1)
        for index in run:
            seq = start if index <= last_message else end
            marks[index] = MessageAlignment(marks_by_kind.get(history[index].kind, "inserted"), seq)
    seq = last_seq + 1
    for index in range(first_new, len(history)):
        if history[index].kind == "note":
            marks[index] = MessageAlignment("note", seq)
        else:
            seq += 1
    ends = [-1, *sorted(pairs.values()), last_seq + 1]
    omitted = tuple([(before + 1, seq) for before, seq in pairwise(ends) if before + 1 < seq])
    return Alignment(tuple(marks), omitted, last_seq, first_new, continues_log, tuple(sorted(joined)))


def _find_new_after_omitted_tail(
    log: Sequence[Element], history: Sequence[Element], kept: set[int], last_seq: int, first_new: int
) -> int | None:
    """Returns the index of the first new message if the client has merely left out the log's messages after
    `last_seq`; None if they are a branch that it does not continue.

    A new message that contains the log's newest answer is the summary that the client had asked the model for. If
    further messages follow such a summary, it stands for what is left out. Alone, it is what the model must answer;
    if nothing of the log comes before it, it may then be a question about the answer, in a new conversation.
    """
    new = [index for index in range(first_new, len(history)) if history[index].kind != "note"]
    tail = [element for element in log[last_seq + 1 :] if element.kind != "note"]
    if not new or not tail:
        return None
    users = [index for index in new if history[index].kind == "user"]
    newest = tail[-1]
    quoted = extract_summary(newest.text)
    summary = next((index for index in users if newest.known_words and quoted in history[index].text), None)
    if not kept:
        return None if summary is None else next((index for index in new if index > summary), None)
    if summary is None:
        if history[new[0]].kind != "user" or any(element.kind == "user" for element in tail):
            return None
        # A client that compacts has left out earlier answers, too.
        if all(seq in kept or log[seq].kind != "answer" for seq in range(min(kept), last_seq)):
            return first_new
        summary = new[0]
    return next((index for index in new if index > summary), first_new)


def _is_joined_prefill(log: Sequence[Element], seq: int, joined: Element) -> bool:
    """Returns whether a log message is a prefill that the history has only joined with the answer after it."""
    return seq >= 0 and log[seq].kind == "answer" and bool(log[seq].text) and joined.text.startswith(log[seq].text)


def _pair_backwards(
    log: Sequence[Element],
    history: Sequence[Element],
    gap: _Gap,
    list_keys: Callable[[Element], Iterable[Hashable]],
    is_match: Callable[[Element, Element], bool] = lambda known, element: True,
) -> Iterator[_Pair]:
    """Yields pairs that share a key, from the end of a gap backwards."""
    index_from, index_to, place_from, place_to = gap
    places: dict[Hashable, list[int]] = {}
    for place in range(place_from, place_to):
        for key in list_keys(log[place]):
            places.setdefault(key, []).append(place)
    limit = place_to
    for index in range(index_to - 1, index_from - 1, -1):
        found = -1
        for candidates in [places[key] for key in list_keys(history[index]) if key in places]:
            before = bisect_left(candidates, limit)
            for place in candidates[max(0, before - MAX_CANDIDATES) : before]:
                if place > found and is_match(log[place], history[index]):
                    found = place
        if found >= 0:
            limit = found
            yield index, found


def _list_unpaired_runs(pairs: dict[int, int], first_new: int, last_seq: int) -> list[tuple[range, int, int]]:
    """Returns the runs of unpaired history messages before the new ones, each with the log range in its place. The
    range ends with the log message that follows; between the results of parallel calls it may be empty."""
    paired = sorted(pairs)
    following = [last_seq + 1]
    for index in reversed(paired):
        following.append(min(following[-1], pairs[index]))
    runs = []
    start = seq = 0
    for index, to_seq in zip([*paired, first_new], reversed(following), strict=True):
        if start < index:
            runs.append((range(start, index), seq, max(seq, to_seq)))
        start, seq = index + 1, max(seq, pairs.get(index, -1) + 1)
    return runs


def _list_equal_keys(element: Element) -> list[Hashable]:
    return [element.comparison_key]


def _list_note_keys(element: Element) -> list[Hashable]:
    return [element.digest] if element.kind == "note" else []


def _list_answer_keys(element: Element) -> list[Hashable]:
    """Returns keys of which an answer or call and its version have one in common, the strongest first."""
    if element.kind not in ANSWER_KINDS:
        return []
    return [element.comparison_key, element.digest, *element.alternatives, *element.known_words]


def _list_version_keys(element: Element) -> list[Hashable]:
    """Returns keys of which an answer or call and each of its known versions have one in common."""
    if element.kind not in ANSWER_KINDS:
        return []
    return [*_list_answer_keys(element), element.call_ids or element.text.partition(" ")[0]]


def _list_gaps(pairs: Sequence[_Pair]) -> list[_Gap]:
    """Returns what lies between two pairs, where both sides have something."""
    return [
        (index + 1, index_to, place + 1, place_to)
        for (index, place), (index_to, place_to) in pairwise(pairs)
        if index + 1 < index_to and place + 1 < place_to
    ]


def _find_unique_keys(
    elements: Sequence[Element], list_keys: Callable[[Element], Iterable[Hashable]]
) -> dict[Hashable, int]:
    """Returns the keys that exactly one message has, with its index."""
    indexes: dict[Hashable, int] = {}
    repeated: set[Hashable] = set()
    for index, element in enumerate(elements):
        for key in list_keys(element):
            if indexes.setdefault(key, index) != index:
                repeated.add(key)
    return {key: index for key, index in indexes.items() if key not in repeated}


def _find_longest_ascent(pairs: Sequence[_Pair]) -> list[_Pair]:
    """Returns the longest sequence of pairs that ascends on both sides, of pairs that ascend on the first."""
    ends: list[int] = []
    chains: list[int] = []
    before: list[int] = []
    for number, (_, place) in enumerate(pairs):
        depth = bisect_left(ends, place)
        before.append(chains[depth - 1] if depth else -1)
        ends[depth : depth + 1] = [place]
        chains[depth : depth + 1] = [number]
    ascent: list[_Pair] = []
    number = chains[-1] if chains else -1
    while number >= 0:
        ascent.append(pairs[number])
        number = before[number]
    return ascent[::-1]


def _find_message(elements: Sequence[Element], start: int) -> int:
    """Returns the index of the first message from `start` on that is no note; the length if there is none."""
    return next((index for index in range(start, len(elements)) if elements[index].kind != "note"), len(elements))


def _is_contained(one: Element, other: Element) -> bool:
    short, long = sorted((one.text, other.text), key=len)
    return bool(short) and short in long


def _fold(text: str) -> str:
    return " ".join(text[:MAX_TEXT_CHARACTERS].split())


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
