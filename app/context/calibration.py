"""How a provider's token counts relate to ours: a ratio learned from what it reports, per conversation and model.

Raw counts stay raw; only comparisons multiply. The overhead of instructions and tool schemas is taken off both sides,
since providers render schemas in ways that have nothing to do with how they count messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

LOWEST_RATIO, HIGHEST_RATIO = 0.5, 5.0
PLAUSIBLE_SHARE = 0.5
"""A report below the overhead and this share of the messages' raw count is a provider's mistake."""
OVERHEAD_TOLERANCE = 0.15
"""An observed overhead replaces the local estimate when it differs from it by more than this share."""
PRIOR_TOKENS = 2_000
"""What is known from elsewhere weighs as much as this many observed tokens."""
LEAST_GROWTH_TOKENS = 64
"""Two turns must differ by this much to tell overhead and ratio apart."""


class Overhead(msgspec.Struct, frozen=True):
    """What a provider seems to add for instructions and tool schemas, in its own tokens."""

    observed_tokens: float
    local_tokens: int
    """Our own estimate of the same instructions at that time."""
    varied_tokens: float
    """How far it lay from the observation before; the least varied one is believed."""


class Turn(msgspec.Struct, frozen=True):
    """The last turn that was observed: what was sent, by our count, and what the provider reported."""

    messages_tokens: int
    instructions_tokens: int
    reported_tokens: int
    overhead_tokens: float | None = None
    """The overhead that it and the turn before it imply."""


class Calibration(msgspec.Struct, frozen=True):
    """Cumulative sums of reported and estimated message tokens. Immutable; `observe` gives the next one."""

    reported_tokens: float = 0.0
    estimated_tokens: float = 0.0
    overhead: Overhead | None = None
    last: Turn | None = None

    @property
    def ratio(self) -> float:
        """Provider tokens per raw token, within 0.5 to 5; 1 while nothing is known."""
        if self.estimated_tokens <= 0:
            return 1.0
        ratio = self.reported_tokens / self.estimated_tokens
        if LOWEST_RATIO <= ratio <= HIGHEST_RATIO:
            return ratio
        return min(HIGHEST_RATIO, max(LOWEST_RATIO, ratio))

    def overhead_tokens(self, instructions_tokens: int) -> float:
        """What instructions cost at the provider: as observed, where that is known and differs from our estimate."""
        known = self.overhead
        if known is None or not _are_close(known.local_tokens, instructions_tokens):
            return float(instructions_tokens)
        if _are_close(known.observed_tokens, instructions_tokens):
            return float(instructions_tokens)
        return known.observed_tokens

    def instructions_tokens(self, instructions_tokens: int) -> int:
        """The raw count to plan with, such that multiplied by `ratio` it is what the provider will count."""
        if self.overhead is None:
            return instructions_tokens
        overhead = self.overhead_tokens(instructions_tokens)
        return instructions_tokens if overhead == instructions_tokens else round(overhead / self.ratio)

    def observe(
        self, *, estimated_tokens: int, instructions_tokens: int, reported_tokens: int, restart: bool = False
    ) -> Calibration:
        """Learn from an answered turn. One that says nothing of the ratio may still tell the overhead, beside the turns
        before and after it.

        Args:
            estimated_tokens: raw count of all that was sent, instructions included.
            instructions_tokens: our own estimate of the instructions' share of it.
            reported_tokens: the provider's input tokens, cached ones counted in once.
            restart: trimming changed what was counted since the turn before. The sums begin anew, with the ratio known
                so far as a weak prior; the observed overhead is kept.
        """
        base = replace(seeded(self), overhead=self.overhead) if restart else self
        messages_tokens = estimated_tokens - instructions_tokens
        if messages_tokens <= 0 or reported_tokens <= 0:
            return base
        before, overhead = base.last, base.overhead_tokens(instructions_tokens)
        turn = Turn(messages_tokens, instructions_tokens, reported_tokens)
        if before is not None and (implied := _implied_overhead(before, turn)) is not None:
            turn = replace(turn, overhead_tokens=implied)
        known = base.overhead if turn.overhead_tokens is None else _better(base.overhead, before, turn)
        learned = Calibration(base.reported_tokens, base.estimated_tokens, known, turn)
        if known is not base.overhead and (better := learned.overhead_tokens(instructions_tokens)) != overhead:
            overhead, learned = better, replace(learned, reported_tokens=0.0, estimated_tokens=0.0)
        if _says_nothing(turn, overhead):
            return learned
        return Calibration(
            reported_tokens=learned.reported_tokens + reported_tokens - overhead,
            estimated_tokens=learned.estimated_tokens + messages_tokens,
            overhead=learned.overhead,
            last=turn,
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form that `from_dict` reads."""
        facts: dict[str, Any] = {"reported": self.reported_tokens, "estimated": self.estimated_tokens}
        if self.overhead:
            known = self.overhead
            facts["overhead"] = [known.observed_tokens, known.local_tokens, known.varied_tokens]
        if self.last:
            last = self.last
            facts["last"] = [last.messages_tokens, last.instructions_tokens, last.reported_tokens, last.overhead_tokens]
        return facts

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Calibration:
        """Read `to_dict`; an empty mapping is a calibration that knows nothing."""
        overhead, last = facts.get("overhead"), facts.get("last")
        return cls(
            reported_tokens=float(facts.get("reported", 0.0)),
            estimated_tokens=float(facts.get("estimated", 0.0)),
            overhead=Overhead(*overhead) if overhead else None,
            last=Turn(*last) if last else None,
        )


def seeded(other: Calibration) -> Calibration:
    """A calibration that begins with another's ratio as a weak prior, soon outweighed by what is observed."""
    weight = min(float(PRIOR_TOKENS), other.estimated_tokens)
    return Calibration(reported_tokens=weight * other.ratio, estimated_tokens=weight)


def _says_nothing(turn: Turn, overhead_tokens: float) -> bool:
    """The report is at most the overhead, or too small to be true."""
    return turn.reported_tokens < overhead_tokens + PLAUSIBLE_SHARE * turn.messages_tokens


def _implied_overhead(before: Turn, turn: Turn) -> float | None:
    """The overhead that two turns under the same instructions imply: a line through both, read at no messages."""
    if before.instructions_tokens != turn.instructions_tokens:
        return None
    growth = turn.messages_tokens - before.messages_tokens
    if abs(growth) < LEAST_GROWTH_TOKENS:
        return None
    slope = (turn.reported_tokens - before.reported_tokens) / growth
    overhead = turn.reported_tokens - slope * turn.messages_tokens
    return overhead if LOWEST_RATIO <= slope <= HIGHEST_RATIO and overhead >= 0 else None


def _better(known: Overhead | None, before: Turn | None, turn: Turn) -> Overhead | None:
    """The least varied of the overhead known so far and the one that this turn implies."""
    if turn.overhead_tokens is None or before is None or before.overhead_tokens is None:
        return known
    varied = abs(turn.overhead_tokens - before.overhead_tokens)
    observed = Overhead(turn.overhead_tokens, turn.instructions_tokens, varied)
    if known is None or not _are_close(known.local_tokens, turn.instructions_tokens):
        return observed
    return observed if varied < known.varied_tokens else known


def _are_close(observed: float, local: float) -> bool:
    return abs(observed - local) <= OVERHEAD_TOLERANCE * local
