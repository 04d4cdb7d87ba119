"""Figures of several seeds: their mean and how far they lie apart."""

from __future__ import annotations

import secrets
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

DEFAULT_SEEDS: Final = 5
SEED_LIMIT: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over several seeds."""

    values: Sequence[float]

    @property
    def mean(self) -> float:
        return sum(self.values) / max(1, len(self.values))

    @property
    def half_range(self) -> float:
        """Half the distance from the smallest to the largest value."""
        return (max(self.values) - min(self.values)) / 2 if self.values else 0.0

    def render(self, form: str = ".3f") -> str:
        """Returns `mean ± half range`; the mean alone where all values are the same."""
        mean = format(self.mean, form)
        return mean if len(set(self.values)) < 2 else f"{mean} ± {format(self.half_range, form)}"


def add_seed_options(parser: ArgumentParser) -> None:
    """Adds `--seeds` and `--first-seed`."""
    parser.add_argument("--seeds", type=int, default=DEFAULT_SEEDS, help="so many talks, each of another seed")
    parser.add_argument("--first-seed", type=int, help="the first of them, to repeat a run (default: a new one)")


def list_seeds(options: Namespace) -> list[int]:
    """Returns the seeds of a run: successive numbers from the first one, which is drawn if it is not given."""
    first = secrets.randbelow(SEED_LIMIT) if options.first_seed is None else options.first_seed
    return list(range(first, first + options.seeds))
