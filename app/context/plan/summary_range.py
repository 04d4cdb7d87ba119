"""What to summarize: the zone from the last chunk's end up to the turns that stay verbatim, in ranges.

The newest turns stay as they are, fewer of them where they do not fit; a turn that is too long by itself is cut
between its rounds. A cut is proposed only when it gains something, so the same nothing is never proposed twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import dropwhile

from app.context.plan.budget import Budget, summary_limit
from app.context.plan.log_cuts import Round, Tail, split
from app.context.plan.outline import Outline, Range
from app.context.plan.policy import Policy
from app.context.stages.draft import saved_from, tokens_before
from app.context.view.message_edits import Edit
from app.context.view.view_messages import Counter, empty_section_tokens, frame_tokens, summary_message_tokens
from app.conversation.messages import Chunk


@dataclass(frozen=True, slots=True)
class Proposal:
    """Ranges to summarize, and what the view is expected to weigh then. Raw tokens."""

    ranges: tuple[Range, ...]
    zone_tokens: int
    kept_tokens: int
    after_tokens: int
    gain_tokens: int


@dataclass(frozen=True, slots=True)
class Zoning:
    """The question that a zone answers. `summarizer_input_tokens` and `view_tokens` are raw counts."""

    outline: Outline
    tail: Tail
    shown: tuple[Chunk, ...]
    view_tokens: int
    budget: Budget
    policy: Policy
    count: Counter
    summarizer_input_tokens: int
    edits: Mapping[int, Edit] = field(default_factory=dict)
    buffer_turns: int = 0
    """How many of the last complete turns stay, at most. One less ahead of the turn that will need the summary: that
    turn is among the last ones by then."""

    @property
    def current_turn_index(self) -> int:
        """Index of the round that opens the turn being answered; past the last round when nothing is open."""
        rounds = self.tail.rounds
        if self.outline.new_from_seq >= self.outline.next_seq and self.tail.ends_with_an_answer:
            return len(rounds)
        return next((index for index in reversed(range(len(rounds))) if rounds[index].opens_turn), 0)

    @property
    def buffer_limit_tokens(self) -> int:
        return self.budget.raw(int(self.budget.window * self.policy.buffer_max_ratio))

    def propose(self, cut: int) -> Proposal:
        """Summarize every round before index `cut` but those with which a range would begin and which the client leaves
        out."""
        tail, zone = self.tail, self.tail.rounds[:cut]
        sent = tuple(dropwhile(self._is_omitted, zone))
        stretches = (tuple(dropwhile(self._is_omitted, one)) for one in split(sent, self.summarizer_input_tokens))
        ranges = tuple(Range(stretch[0].from_seq, stretch[-1].to_seq) for stretch in stretches if stretch)
        limit = self.budget.raw(summary_limit(self.policy, self.budget.window))
        section = empty_section_tokens(self.count)
        sizes = (tail.tokens_from(one.from_seq) - tail.tokens_from(one.to_seq) for one in ranges)
        summaries = sum(min(limit, size) + section for size in sizes)
        boundary = zone[-1].to_seq if zone else tail.start_seq
        before = tokens_before(tail.boundary(boundary), self.outline.pins)
        verbatim = tail.tokens_from(boundary)
        kept = verbatim - saved_from(boundary, self.edits)
        shown = summary_message_tokens(self.shown, 0, self.count) or frame_tokens(self.count)
        after = self.outline.instructions_tokens + shown + summaries + before + kept
        return Proposal(
            ranges=ranges,
            zone_tokens=tail.tokens - verbatim,
            kept_tokens=kept,
            after_tokens=after,
            gain_tokens=self.view_tokens - after,
        )

    def _is_omitted(self, one: Round) -> bool:
        return all(seq in self.outline.omitted for seq in range(one.from_seq, one.to_seq))

    def summarizes_one_turn(self, cut: int) -> bool:
        """Whether there is one turn before a cut, and half as much or more between the cut and the current turn."""
        rounds = self.tail.rounds
        if any(entry.opens_turn for entry in rounds[1:cut]):
            return False
        zone_tokens = sum(entry.tokens for entry in rounds[:cut])
        return zone_tokens <= 2 * sum(entry.tokens for entry in rounds[cut : self.current_turn_index])

    def is_under_the_line(self, proposal: Proposal) -> bool:
        return self.budget.calibrated(proposal.after_tokens) <= self.budget.soft

    def is_worth_it(self, proposal: Proposal) -> bool:
        return bool(proposal.ranges) and proposal.gain_tokens >= self.policy.min_gain_ratio * self.view_tokens


def zone_that_pays(zoning: Zoning) -> Proposal | None:
    """The cut that keeps most verbatim among those that bring the view under the soft line and gain enough.

    Where none gets under the line, the one that comes nearest, as long as it gains enough. One turn is summarized alone
    only where no cut summarizes more, or it outweighs those that are kept: each turn would ask for a summary otherwise.
    """
    falling_short: list[Proposal] = []
    of_one_turn: Proposal | None = None
    for cut in (*_turn_cuts(zoning), *_cuts_inside_the_current_turn(zoning)):
        proposal = zoning.propose(cut)
        if not zoning.is_worth_it(proposal):
            continue
        if not zoning.is_under_the_line(proposal):
            falling_short.append(proposal)
        elif zoning.summarizes_one_turn(cut):
            of_one_turn = of_one_turn or proposal
        else:
            return proposal
    return of_one_turn or min(falling_short, key=lambda proposal: proposal.after_tokens, default=None)


def zone_before_the_buffer(zoning: Zoning) -> Proposal | None:
    """Everything before the buffer zone, however little; None where the buffer zone takes all."""
    for cut in _turn_cuts(zoning):
        proposal = zoning.propose(cut)
        if zoning.is_under_the_line(proposal):
            return proposal if proposal.ranges else None
    return zone_that_pays(zoning)


def zone_through(zoning: Zoning, to_seq: int) -> Proposal | None:
    """Every round before `to_seq`, however little; None where that is nothing."""
    rounds = zoning.tail.rounds
    cut = next((index for index, entry in enumerate(rounds) if entry.from_seq >= to_seq), len(rounds))
    proposal = zoning.propose(cut)
    return proposal if proposal.ranges else None


def _turn_cuts(zoning: Zoning) -> Iterator[int]:
    """Cuts that keep the last complete turns within the buffer's share, most turns first, and the current turn."""
    rounds, current = zoning.tail.rounds, zoning.current_turn_index
    openings = [index for index in range(current) if index == 0 or rounds[index].opens_turn]
    buffer_tokens = 0
    fitting = [current]
    for opening in openings[: -zoning.buffer_turns - 1 : -1]:
        buffer_tokens += sum(entry.tokens for entry in rounds[opening : fitting[-1]])
        if buffer_tokens > zoning.buffer_limit_tokens:
            break
        fitting.append(opening)
    return reversed(fitting)


def _cuts_inside_the_current_turn(zoning: Zoning) -> list[int]:
    """Cuts between rounds of the current turn: the newest rounds within the buffer's share, within halves of it, and
    the newest round alone."""
    rounds = zoning.tail.rounds
    last = len(rounds) - 1
    cuts: list[int] = []
    allowed = zoning.buffer_limit_tokens
    for cut in range(zoning.current_turn_index + 1, last + 1):
        if zoning.tail.tokens_from(rounds[cut].from_seq) <= allowed or cut == last:
            cuts.append(cut)
            allowed //= 2
    return cuts
