"""Every target holds for its seeds, for what becomes of them when they are damaged, and for anything else."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.security.seeds import SEEDS
from tests.security.targets import CUT, TARGETS

SLOW_SECONDS: Final = 2.0
"""For inputs of some kilobytes; a machine that is busy takes ten times as long as an idle one."""
TOKENS: Final = (
    *(b"", b"\0", b"\n", b"\r", b"\r\n", b"\n\n", b'"', b"\\", b"\\u0000", b"\\ud800", b"{", b"}", b"[", b"]", b":"),
    *(
        b",",
        b"null",
        b"NaN",
        b"1e999",
        b"-1",
        b"9" * 400,
        b'{"type":',
        b"data: ",
        b"\xff",
        b"\xe2\x80\xa8",
        b"..",
        b"%2f",
    ),
    *(b"[" * 1100, b'{"a":' * 1100, CUT),
)


def damaged(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Seeds with pieces cut out, put in, repeated, or of another seed at the end."""

    def of(drawn: tuple[int, bytes, bytes]) -> bytes:
        number, one, other = drawn
        choose = random.Random(number)
        for _ in range(choose.randint(1, 4)):
            start, end = sorted((choose.randint(0, len(one)), choose.randint(0, min(len(one), 4000))))
            one = choose.choice(
                (
                    one[:start] + one[end:],
                    one[:start] + choose.choice(TOKENS) + one[start:],
                    one[:end] + one[start:],
                    one[:start] + other[start:],
                    one[:start] + CUT + one[start:],
                )
            )
        return one

    return st.tuples(st.integers(0, 2**32), st.sampled_from(seeds), st.sampled_from(seeds)).map(of)


@pytest.mark.parametrize("name", TARGETS)
def test_a_seed_breaks_nothing(name: str) -> None:
    for seed in SEEDS[name]:
        began = time.process_time()
        TARGETS[name](seed)
        assert time.process_time() - began < SLOW_SECONDS


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_that_is_sent_breaks_anything(name: str) -> None:
    @given(damaged(SEEDS[name]) | st.binary(max_size=300))
    @settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
    def holds(data: bytes) -> None:
        began = time.process_time()
        TARGETS[name](data)
        assert time.process_time() - began < SLOW_SECONDS

    holds()
