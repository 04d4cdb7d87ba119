"""Decides what to summarize: ranges from the last summary's end up to the turns that stay verbatim.

What is new is never summarized, and the newest round before it stays as it is if it fits. So do the newest turns, fewer
of them if they do not fit; what was new in the last turn is summarized last. A turn that is too long by itself is cut
between its rounds. A cut is proposed only if it gains something, so a useless summary is not asked for on each request.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import dropwhile

from app.context.plan.budget import Budget, compute_summary_token_limit
from app.context.plan.log_rounds import LogTail, Round, group_rounds_into_stretches
from app.context.plan.outline import SummaryRange
from app.context.plan.view_candidates import ViewCandidate
from app.context.stages.draft import count_tokens_shown_before, sum_saved_tokens_from
from app.context.stages.shortening_planner import ShorteningPlanner
from app.context.view.view_rendering import (
    count_empty_summary_tokens,
    count_summary_frame_tokens,
    count_summary_message_tokens,
)

SHORT_TURNS_RATIO = 0.1
MAX_SHORT_TURNS_TOKENS = 1_024
"""Where turns are short, more than `buffer_turns` of them stay verbatim, up to this share of the window and this many
tokens: a dozen turns of a chat. All of it is sent anew with each compaction, hence not more (decision 47)."""
MAX_KEPT_SHARE, MIN_BUFFER_SHARE = 0.55, 0.5
"""The share of the window that summaries, user text and last turns take together at most, and the share of their own
room that the last turns may have at least."""

MIN_TAIL_SHARE, TAIL_SHARE = 0.34, 0.45
"""The shares of the window that instructions and verbatim tail take where the log did not fit before."""
MIN_TAIL_FILL_SHARE = 0.95
"""A verbatim tail may be shorter than its room, down to this share of it, to begin with a turn."""


@dataclass(frozen=True, slots=True)
class SummaryProposal:
    """Ranges to summarize, and the expected size of the view after that. Raw tokens."""

    ranges: tuple[SummaryRange, ...]
    summarized_tokens: int
    kept_tokens: int
    expected_tokens: int
    gain_tokens: int


@dataclass(frozen=True, slots=True)
class SummaryRangeFinder:
    """What the choice of ranges needs to know. `summarizer_input_tokens` is a raw count."""

    planner: ShorteningPlanner
    view: ViewCandidate
    summarizer_input_tokens: int
    buffer_turns: int = 0
    """The most complete turns at the end that stay verbatim. Precompaction keeps one less: the turn that will need
    the summary is then one of the last (decision 13)."""
    keeps_short_turns: bool = True
    """Whether more turns than that stay if they are short. A compaction that a client asks for keeps no more."""

    @property
    def budget(self) -> Budget:
        return self.planner.budget

    @property
    def tail(self) -> LogTail:
        return self.planner.log_tail

    @property
    def first_new_round_index(self) -> int:
        """Returns the index of the round with the first new message, or of calls that wait for their results; the
        number of rounds if there is neither.
        """
        rounds = self.tail.rounds
        if self.planner.first_new_seq < self.tail.end_seq:
            return self.find_round_index(self.planner.first_new_seq)
        return len(rounds) if self.tail.ends_with_final_answer else max(0, len(rounds) - 1)

    @property
    def current_turn_round_index(self) -> int:
        """Returns the index of the round that opens the turn being answered, or of the first new round if that is
        before it; the number of rounds if the last turn is complete.
        """
        new, rounds = self.first_new_round_index, self.tail.rounds
        if new == len(rounds):
            return new
        return min(new, next((index for index in reversed(range(len(rounds))) if rounds[index].opens_turn), 0))

    @property
    def newest_round_index(self) -> int:
        """Returns the index of the newest round that the model knows: the one before what is new, or the one that new
        results belong to. With an answer its question stays, which would be repeated in front of it anyway.
        """
        new, rounds = self.first_new_round_index, self.tail.rounds
        is_known = new < len(rounds) and self.tail.find_message(rounds[new].from_seq).message.role == "assistant"
        index = new if is_known else max(0, new - 1)
        return index - 1 if index and not rounds[index].opens_turn and rounds[index - 1].opens_turn else index

    @property
    def last_turn_round_index(self) -> int:
        """Returns the index of the round with the first message that was new before the newest answer."""
        answers = (
            entry.seq
            for entry in reversed(self.tail.messages[: self.planner.first_new_seq - self.tail.start_seq])
            if entry.message.role == "assistant"
        )
        next(answers, None)
        return self.find_round_index(next(answers, self.tail.start_seq - 1) + 1)

    def find_round_index(self, seq: int) -> int:
        return max(0, bisect_right(self.tail.rounds, seq, key=lambda entry: entry.from_seq) - 1)

    @property
    def buffer_limit_tokens(self) -> int:
        """Returns how many tokens the last turns may take. Together with summaries and user text that is at most
        `MAX_KEPT_SHARE` of the window; what stays is sent anew behind each new summary."""
        policy, outline = self.planner.policy, self.planner.outline
        tokens = sum(one.tokens for one in self.view.summaries) + outline.user_text_tokens
        kept = int(self.budget.window * MAX_KEPT_SHARE) - self.budget.calibrate_tokens(tokens)
        share = int(self.budget.window * policy.verbatim.buffer_max_ratio)
        return self.budget.compute_raw_tokens(min(share, max(kept, int(share * MIN_BUFFER_SHARE))))

    @property
    def short_turns_limit_tokens(self) -> int:
        """Returns how many tokens further turns may fill, beyond `buffer_turns`, where turns are short."""
        if not (self.planner.policy.verbatim.buffer_turns and self.keeps_short_turns):
            return 0
        tokens = min(int(self.budget.window * SHORT_TURNS_RATIO), MAX_SHORT_TURNS_TOKENS)
        return min(self.buffer_limit_tokens, self.budget.compute_raw_tokens(tokens))

    @property
    def range_limit_tokens(self) -> int:
        """Returns the most tokens of a range: what the summarizer can read, at most a window. A summary of more keeps
        little of it, and a larger window could not show a part of it verbatim again.
        """
        return min(self.summarizer_input_tokens, self.budget.compute_raw_tokens(self.budget.window))

    def propose_ranges(self, cut: int) -> SummaryProposal:
        """Proposes to summarize every round before index `cut`. Rounds that the client leaves out do not
        begin a range.
        """
        tail, zone = self.tail, self.tail.rounds[:cut]
        sent = tuple(dropwhile(self._is_omitted_round, zone))
        stretches = (
            tuple(dropwhile(self._is_omitted_round, one))
            for one in group_rounds_into_stretches(sent, self.range_limit_tokens)
        )
        ranges = tuple(SummaryRange(stretch[0].from_seq, stretch[-1].to_seq) for stretch in stretches if stretch)
        limit = self.budget.compute_raw_tokens(compute_summary_token_limit(self.planner.policy, self.budget.window))
        section = count_empty_summary_tokens(self.planner.counter)
        sizes = (tail.count_tokens_from(one.from_seq) - tail.count_tokens_from(one.to_seq) for one in ranges)
        # A summary is never expected to be longer than what it stands for.
        summaries = sum(min(limit, size) + section for size in sizes)
        boundary = zone[-1].to_seq if zone else tail.start_seq
        before = count_tokens_shown_before(tail.build_boundary(boundary), self.planner.outline)
        before += self._estimate_unread_user_text(boundary)
        verbatim = tail.count_tokens_from(boundary)
        kept = verbatim - sum_saved_tokens_from(boundary, self.planner.last_edits)
        shown = count_summary_message_tokens(
            self.view.summaries, 0, self.planner.counter
        ) or count_summary_frame_tokens(self.planner.counter)
        after = self.planner.outline.instructions_tokens + shown + summaries + before + kept
        return SummaryProposal(
            ranges=ranges,
            summarized_tokens=tail.tokens - verbatim,
            kept_tokens=kept,
            expected_tokens=after,
            gain_tokens=self.view.tokens - after,
        )

    def _estimate_unread_user_text(self, boundary_seq: int) -> int:
        """Returns what user text will take about, where messages before a boundary were not read for it yet: what it
        takes now."""
        outline = self.planner.outline
        is_read = any(boundary_seq <= one.before_seq for one in outline.user_texts)
        return 0 if is_read else outline.user_text_tokens

    def _is_omitted_round(self, round_: Round) -> bool:
        return all(seq in self.planner.outline.omitted_seqs for seq in range(round_.from_seq, round_.to_seq))

    def covers_one_turn_only(self, cut: int) -> bool:
        """Says whether a cut summarizes a single turn that is at most twice as large as the complete turns
        that stay.
        """
        rounds = self.tail.rounds
        if any(entry.opens_turn for entry in rounds[1:cut]):
            return False
        zone_tokens = sum(entry.tokens for entry in rounds[:cut])
        return zone_tokens <= 2 * sum(entry.tokens for entry in rounds[cut : self.current_turn_round_index])

    def leaves_room(self, cut: int, proposal: SummaryProposal) -> bool:
        """Says whether the complete turns that stay take at most half of what instructions and summaries leave
        (decision 47), or are the last turn, of which what was new is summarized last.

        What stays is sent anew behind the new summary, and no cache holds it there. A view that has little room to grow
        is soon compacted again, and pays for it again.
        """
        kept, current = (
            sum(entry.tokens for entry in part)
            for part in (
                self.tail.rounds[cut : self.current_turn_round_index],
                self.tail.rounds[max(cut, self.current_turn_round_index) :],
            )
        )
        threshold = self.budget.compaction_threshold + self.budget.user_text_tokens
        room = threshold - self.budget.calibrate_tokens(proposal.expected_tokens - current)
        return self.budget.calibrate_tokens(kept) <= room or cut == self.last_turn_round_index

    def is_under_threshold(self, proposal: SummaryProposal) -> bool:
        threshold = self.budget.compaction_threshold + self.budget.user_text_tokens
        return self.budget.calibrate_tokens(proposal.expected_tokens) <= threshold

    def gains_enough(self, proposal: SummaryProposal) -> bool:
        return (
            bool(proposal.ranges)
            and proposal.gain_tokens >= self.planner.policy.compaction.min_gain_ratio * self.view.tokens
        )


def propose_gainful_ranges(finder: SummaryRangeFinder) -> SummaryProposal | None:
    """Proposes the cut that keeps most verbatim among those that bring the view under the threshold and gain enough.

    If none gets under the threshold, the one that comes nearest and gains enough; None if none gains enough. A single
    turn is summarized alone only if no cut summarizes more, or if it is much larger than the turns that stay: otherwise
    each turn would ask for a summary.
    """
    if (long_tail := _propose_long_tail(finder)) is not None:
        return long_tail
    falling_short: list[SummaryProposal] = []
    of_one_turn: SummaryProposal | None = None
    for cut in _list_cuts(finder):
        proposal = finder.propose_ranges(cut)
        if not finder.gains_enough(proposal):
            continue
        if not finder.is_under_threshold(proposal) or not finder.leaves_room(cut, proposal):
            falling_short.append(proposal)
        elif finder.covers_one_turn_only(cut):
            of_one_turn = of_one_turn or proposal
        else:
            return proposal
    return of_one_turn or min(falling_short, key=lambda proposal: proposal.expected_tokens, default=None)


def propose_ranges_before_buffer(finder: SummaryRangeFinder) -> SummaryProposal | None:
    """Proposes everything before the buffer, however little it gains; None if the buffer holds everything."""
    for cut in _limit_cuts(finder, _list_turn_cuts(finder)):
        proposal = finder.propose_ranges(cut)
        if finder.is_under_threshold(proposal):
            return proposal if proposal.ranges else None
    return propose_gainful_ranges(finder)


def propose_ranges_through(finder: SummaryRangeFinder, to_seq: int) -> SummaryProposal | None:
    """Proposes every round before `to_seq`, however little it gains; None if there is none."""
    rounds = finder.tail.rounds
    cut = next((index for index, entry in enumerate(rounds) if entry.from_seq >= to_seq), len(rounds))
    proposal = finder.propose_ranges(cut)
    return proposal if proposal.ranges else None


def _propose_long_tail(finder: SummaryRangeFinder) -> SummaryProposal | None:
    """Proposes ranges for a log that does not fit: a first contact, or a smaller window than before.

    Instructions and tail get `TAIL_SHARE` of the window, or what summaries of the largest size, and quotations if they
    have room beside them, leave of it: at least `MIN_TAIL_SHARE`. Where less would be left, the oldest summaries are
    left out until they are folded. Returns None if the view is within its limit, or if the newest round is longer than
    the tail may be.
    """
    budget, rounds = finder.budget, finder.tail.rounds
    if budget.calibrate_tokens(finder.view.tokens) <= budget.limit or not finder.planner.policy.verbatim.buffer_turns:
        return None
    newest = finder.newest_round_index
    shortest = finder.propose_ranges(newest)
    least, most = (
        budget.compute_raw_tokens(int(budget.window * share)) - finder.planner.outline.instructions_tokens
        for share in (MIN_TAIL_SHARE, TAIL_SHARE)
    )
    room = budget.compute_raw_tokens(budget.limit) - (shortest.expected_tokens - shortest.kept_tokens)
    quoted = budget.compute_raw_tokens(budget.quotation_reserve)
    allowed = min(most, next((one for one in (room - quoted, room) if one >= least), most))
    sizes = [finder.tail.count_tokens_from(entry.from_seq) for entry in rounds[: newest + 1]]
    cut = next((index for index, size in enumerate(sizes) if size <= allowed), len(sizes))
    opening = next((index for index in range(cut, len(sizes)) if rounds[index].opens_turn), cut)
    if cut == len(sizes):
        return None
    proposal = finder.propose_ranges(opening if sizes[opening] >= MIN_TAIL_FILL_SHARE * sizes[cut] else cut)
    return proposal if proposal.ranges else None


def _list_cuts(finder: SummaryRangeFinder) -> list[int]:
    """Returns the cuts to try, those that keep most first."""
    cuts = {*_list_turn_cuts(finder), *_list_cuts_in_current_turn(finder)}
    if finder.buffer_turns:
        cuts.add(finder.last_turn_round_index)
    return _limit_cuts(finder, cuts)


def _limit_cuts(finder: SummaryRangeFinder, cuts: Iterable[int]) -> list[int]:
    """Returns cuts in order, none after the newest round if the view fits with that round and summaries of the largest
    size.
    """
    newest = finder.newest_round_index
    if not finder.buffer_turns:
        return sorted(cuts)
    proposal = finder.propose_ranges(newest)
    if finder.budget.calibrate_tokens(proposal.expected_tokens) > finder.budget.limit:
        return sorted(cuts)
    return sorted({*(cut for cut in cuts if cut < newest), newest})


def _list_turn_cuts(finder: SummaryRangeFinder) -> Iterator[int]:
    """Returns cuts that keep the current turn and as many of the last complete turns as fit into the buffer's share,
    most turns first.
    """
    rounds, current = finder.tail.rounds, finder.current_turn_round_index
    openings = [index for index in range(current) if index == 0 or rounds[index].opens_turn]
    buffer_tokens = 0
    fitting = [current]
    for kept_turns, opening in enumerate(reversed(openings)):
        buffer_tokens += sum(entry.tokens for entry in rounds[opening : fitting[-1]])
        limit = finder.buffer_limit_tokens if kept_turns < finder.buffer_turns else finder.short_turns_limit_tokens
        if buffer_tokens > limit:
            break
        fitting.append(opening)
    return reversed(fitting)


def _list_cuts_in_current_turn(finder: SummaryRangeFinder) -> list[int]:
    """Returns cuts between rounds of the current turn: those that keep the newest rounds within the buffer's share,
    within halves of it, and the first new round.
    """
    rounds = finder.tail.rounds
    last = min(finder.first_new_round_index, len(rounds) - 1)
    cuts: list[int] = []
    allowed = finder.buffer_limit_tokens
    for cut in range(finder.current_turn_round_index + 1, last + 1):
        if finder.tail.count_tokens_from(rounds[cut].from_seq) <= allowed or cut == last:
            cuts.append(cut)
            # Each further cut keeps at most half as much: a few candidates span all sizes, however many rounds there
            # are.
            allowed //= 2
    return cuts
