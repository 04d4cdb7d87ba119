"""Finds where a log may be cut: rounds, turns, and the anchor that a cut inside a turn needs.

Calls and results are paired by their position, never by id: real logs use an id twice. Cuts fall between rounds only,
so a cut never separates a call from its result.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Final

import msgspec

from app.context.plan.outline import LOG_START, Boundary, Outline
from app.conversation.conversation_types import LogMessage, Summary
from app.conversation.item import TOOL_RESULT_ROLES

MIN_STRETCH_FILL_SHARE = 0.75
"""A stretch may be shorter than its fair share, down to this share of it, to end with a turn."""


MIN_STRETCH_SHARE = 0.1
"""Share of what a summarizer can read. A smaller stretch is joined to its neighbour."""


class Round(msgspec.Struct, frozen=True):
    """What is kept or dropped together: log messages `[from_seq, to_seq)`."""

    from_seq: int
    to_seq: int
    tokens: int
    opens_turn: bool
    """Whether it is a user message, or the first round of the log."""


@dataclass(frozen=True, slots=True)
class TurnAnchor:
    """The user message of a turn, repeated in front of a verbatim part that begins inside that turn."""

    seq: int
    tokens: int


class LogTail:
    """The messages of a log after some boundary, cut into rounds. Tokens are raw counts."""

    def __init__(self, messages: Sequence[LogMessage], *, after: Boundary | Summary | None) -> None:
        """Cuts a tail into rounds.

        Args:
            messages: all messages from the boundary to the log's end, without gaps.
            after: the boundary, or the summary that ends there; None: the log's start.
        """
        after = after or LOG_START
        self.start_boundary = build_boundary_after(after)
        self.messages = messages
        self.start_seq = after.to_seq
        self.end_seq = self.start_seq + len(messages)
        self.rounds = split_into_rounds(messages)
        self._total_before = after.tokens_total
        self._start_anchor = None if after.anchor_seq is None else TurnAnchor(after.anchor_seq, after.anchor_tokens)
        self._turns_before = after.through_turn
        self.turn_seqs = [entry.from_seq for entry in self.rounds if entry.opens_turn]
        """Where the turns begin, in order."""
        self._user_seqs = [seq for seq in self.turn_seqs if seq or messages[0].message.role == "user"]

    @property
    def tokens(self) -> int:
        return self.count_tokens_before(self.end_seq) - self._total_before

    @property
    def newest_user_message(self) -> TurnAnchor | None:
        """Returns the log's last user message, which may be before the tail."""
        return self._find_user_message_before(self.end_seq)

    @cached_property
    def tool_results(self) -> list[LogMessage]:
        """Returns the tool results, oldest first."""
        return [entry for entry in self.messages if entry.message.role in TOOL_RESULT_ROLES]

    @property
    def ends_with_final_answer(self) -> bool:
        """Says whether the last message is an assistant's without tool calls: then the last turn is complete."""
        if not self.messages:
            return False
        last = self.messages[-1].message
        return last.role == "assistant" and not last.calls_tools

    def count_tokens_before(self, seq: int) -> int:
        """Returns the tokens of the log before `seq`."""
        return self.messages[seq - self.start_seq - 1].tokens_total if seq > self.start_seq else self._total_before

    def count_tokens_from(self, seq: int) -> int:
        """Returns the tokens of the log from `seq` to its end."""
        return self.count_tokens_before(self.end_seq) - self.count_tokens_before(seq)

    def find_message(self, seq: int) -> LogMessage:
        return self.messages[seq - self.start_seq]

    def find_repeated_user_message(self, seq: int) -> TurnAnchor | None:
        """Returns the user message that is repeated in front of a verbatim part that begins at `seq`; None if a turn
        begins there.
        """
        # The tail's own start may lie inside a turn whose question is not loaded: the boundary carries it.
        if seq == self.start_seq:
            return self._start_anchor
        if seq == self.end_seq:
            # A view that shows no message verbatim still needs the question, unless it has been answered.
            return None if self.ends_with_final_answer else self.newest_user_message
        before, first = self.find_message(seq - 1).message, self.find_message(seq).message
        # A note after a final answer belongs to the turn of the next question; another answer does not.
        opens_turn = before.role == "assistant" and not before.calls_tools and first.role != "assistant"
        if opens_turn or first.role == "user":
            return None
        return self._find_user_message_before(seq)

    def build_boundary(self, to_seq: int) -> Boundary:
        """Builds the boundary before `to_seq`, with its totals and its anchor."""
        if to_seq == self.start_seq:
            return self.start_boundary
        anchor = self.find_repeated_user_message(to_seq)
        return Boundary(
            to_seq=to_seq,
            tokens_total=self.count_tokens_before(to_seq),
            anchor_seq=anchor.seq if anchor else None,
            anchor_tokens=anchor.tokens if anchor else 0,
            through_turn=self._turns_before + bisect_left(self.turn_seqs, to_seq),
        )

    def _find_user_message_before(self, seq: int) -> TurnAnchor | None:
        position = bisect_left(self._user_seqs, seq)
        if position == 0:
            return self._start_anchor
        found = self.find_message(self._user_seqs[position - 1])
        return TurnAnchor(found.seq, found.tokens)


NO_NEW_MESSAGE: Final = sys.maxsize
"""As the first new message: the model has answered all."""


def find_first_new_seq(tail: LogTail, *, known_to_seq: int, room_tokens: int) -> int:
    """Returns the first message that the model has not answered yet; the tail's end if there is none.

    That is what follows the newest answer that the log knew before this request. Where nothing is known, or where that
    does not fit, it is what follows the last answer without calls; where that does not fit either, what follows the
    last assistant message. A wrong guess shows less of older messages than would fit.

    Args:
        known_to_seq: one past the last message that was stored before this request.
        room_tokens: raw tokens that all of it may take.
    """
    known_end = after_final_answer = after_answer = tail.start_seq
    # A last assistant message that comes with the request is the beginning of the answer.
    answered = tail.messages[:-1] if known_to_seq < tail.end_seq else tail.messages
    for entry in answered:
        if entry.message.role != "assistant":
            continue
        after_answer = entry.seq + 1
        if not entry.message.calls_tools:
            after_final_answer = after_answer
        if entry.seq < known_to_seq:
            known_end = after_answer
    first = known_end if known_to_seq else after_final_answer
    places = (first, max(first, after_final_answer), after_answer)
    return next((seq for seq in places if tail.count_tokens_from(seq) <= room_tokens), after_answer)


def find_round_start(tail: LogTail, seq: int) -> int:
    """Returns the first message of the round that a message of a tail belongs to; `seq` at the tail's end."""
    index = bisect_right(tail.rounds, seq, key=lambda entry: entry.from_seq) - 1
    return seq if index < 0 or seq >= tail.end_seq else tail.rounds[index].from_seq


def build_log_tail(outline: Outline) -> LogTail:
    """Builds the tail of an outline whose `tail` is loaded."""
    return LogTail(outline.tail or (), after=find_tail_start(outline))


def find_tail_start(outline: Outline) -> Boundary:
    """Returns where the tail of an outline begins."""
    if outline.tail_start is not None:
        return outline.tail_start
    return build_boundary_after(outline.summaries[-1]) if outline.summaries else LOG_START


def build_boundary_after(summary: Summary | Boundary) -> Boundary:
    """Returns the boundary at the end of a summary."""
    return Boundary(
        summary.to_seq, summary.tokens_total, summary.anchor_seq, summary.anchor_tokens, summary.through_turn
    )


def split_into_rounds(messages: Sequence[LogMessage]) -> tuple[Round, ...]:
    """Splits messages into rounds, in order: an assistant message with the results directly after it, or one message of
    another role.
    """
    roles = [entry.message.role for entry in messages]
    rounds: list[Round] = []
    start, count = 0, len(messages)
    while start < count:
        first = last = messages[start]
        end = start + 1
        if roles[start] == "assistant":
            while end < count and roles[end] in TOOL_RESULT_ROLES:
                end += 1
            last = messages[end - 1]
        tokens = last.tokens_total - first.tokens_total + first.tokens
        rounds.append(Round(first.seq, last.seq + 1, tokens, roles[start] == "user" or first.seq == 0))
        start = end
    return tuple(rounds)


def group_rounds_into_stretches(rounds: Sequence[Round], limit_tokens: int) -> tuple[tuple[Round, ...], ...]:
    """Cuts neighbouring rounds into stretches of about equal size, each within `limit_tokens`.

    Cuts prefer the beginning of a turn. A round above the limit is a stretch of its own. A stretch of less than
    `MIN_STRETCH_SHARE` joins its neighbour: a summary of a few words gains nothing, and text above the limit is
    shortened before the summarizer reads it.
    """
    limit_tokens = max(1, limit_tokens)
    totals = [0, *accumulate(entry.tokens for entry in rounds)]
    openings = [*(index for index, entry in enumerate(rounds) if index and entry.opens_turn), len(rounds)]
    ends: list[int] = []
    start = 0
    while start < len(rounds):
        start = _find_stretch_end(totals, openings, start, limit_tokens)
        ends.append(start)
    ends = _join_small_stretches(ends, totals, limit_tokens)
    return tuple(tuple(rounds[start:end]) for start, end in pairwise((0, *ends)))


def _join_small_stretches(ends: Sequence[int], totals: Sequence[int], limit_tokens: int) -> list[int]:
    """Removes the ends of stretches that are too small to be summarized: each joins the stretch after it, the last one
    the stretch before it.
    """
    smallest = limit_tokens * MIN_STRETCH_SHARE
    kept: list[int] = []
    start = 0
    for end in ends:
        if totals[end] - totals[start] >= smallest:
            kept.append(end)
            start = end
    return kept if not ends or start == ends[-1] else [*kept[:-1], ends[-1]]


def _find_stretch_end(totals: Sequence[int], openings: Sequence[int], start: int, limit_tokens: int) -> int:
    """Returns where a stretch that begins at `start` ends: near its fair share of what is left, at the beginning of a
    turn if one is near.

    Args:
        totals: tokens before each round; the last entry is the total of all rounds.
        openings: indexes of the rounds after the first that open a turn, then the number of rounds.
    """
    left = totals[-1] - totals[start]
    fair = left / max(1, -(-left // limit_tokens))
    reach = bisect_right(totals, totals[start] + limit_tokens) - 1
    if reach <= start:
        # One round alone is above the limit. It cannot be cut, so it is a stretch by itself.
        return start + 1
    near = bisect_left(totals, totals[start] + fair * MIN_STRETCH_FILL_SHARE, lo=start + 1)
    opening = openings[bisect_left(openings, near) : bisect_right(openings, reach)]
    return _choose_nearest_stretch_end(opening or range(start + 1, reach + 1), totals, totals[start] + fair)


def _choose_nearest_stretch_end(ends: Sequence[int], totals: Sequence[int], aim_tokens: float) -> int:
    """Returns the end before which there are most nearly `aim_tokens` tokens. `ends` is ordered."""
    position = bisect_left(ends, aim_tokens, key=totals.__getitem__)
    return min(ends[max(0, position - 1) : position + 1], key=lambda end: abs(totals[end] - aim_tokens))
