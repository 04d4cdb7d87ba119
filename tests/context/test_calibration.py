from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.calibration import Calibration, seeded

TURNS = st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 5_000)), max_size=20)


def observed(*turns: tuple[int, int], instructions: int = 100) -> Calibration:
    """A calibration after turns of (messages' raw tokens, reported tokens)."""
    calibration = Calibration()
    for messages, reported in turns:
        calibration = calibration.observe(
            estimated_tokens=messages + instructions, instructions_tokens=instructions, reported_tokens=reported
        )
    return calibration


@given(turns=TURNS, restarts=st.lists(st.booleans(), min_size=20, max_size=20))
def test_a_provider_that_counts_as_we_do_keeps_the_ratio_at_one(
    turns: list[tuple[int, int]], restarts: list[bool]
) -> None:
    calibration = Calibration()
    for (messages, instructions), restart in zip(turns, restarts, strict=False):
        total = messages + instructions
        calibration = calibration.observe(
            estimated_tokens=total, instructions_tokens=instructions, reported_tokens=total, restart=restart
        )
        assert calibration.ratio == 1.0
        assert calibration.instructions_tokens(instructions) == instructions


def test_nothing_known_is_a_ratio_of_one() -> None:
    assert Calibration().ratio == 1.0


def test_the_overhead_is_taken_off_both_sides() -> None:
    assert observed((1_000, 100 + 1_500)).ratio == 1.5


def test_sums_are_cumulative() -> None:
    assert observed((1_000, 100 + 1_000), (3_000, 100 + 6_000)).ratio == 1.75


@pytest.mark.parametrize(("reported", "ratio"), [(100 + 50_000, 5.0), (100 + 500, 0.5)])
def test_the_ratio_is_clamped(reported: int, ratio: float) -> None:
    assert observed((1_000, reported)).ratio == ratio


@pytest.mark.parametrize(
    "turn",
    [
        pytest.param((0, 100), id="nothing was sent"),
        pytest.param((10, 100), id="the report is at most the overhead"),
        pytest.param((1_000, 599), id="the report is implausibly small"),
        pytest.param((1_000, 0), id="the report is empty"),
    ],
)
def test_turns_that_say_nothing_are_skipped(turn: tuple[int, int]) -> None:
    known = observed((1_000, 100 + 1_500))
    after = known.observe(estimated_tokens=turn[0] + 100, instructions_tokens=100, reported_tokens=turn[1])
    assert (after.ratio, after.overhead) == (known.ratio, known.overhead)
    assert (after.reported_tokens, after.estimated_tokens) == (known.reported_tokens, known.estimated_tokens)


def test_an_overhead_below_our_estimate_is_learned_before_it_spoils_the_ratio() -> None:
    turns = [(messages, 500 + messages) for messages in (300, 600, 900, 1_200, 1_500, 1_800)]
    for seen in range(1, len(turns)):
        calibration = observed(*turns[:seen], instructions=1_000)
        assert calibration.ratio == 1.0
    assert calibration.overhead_tokens(1_000) == 500


def test_an_overhead_that_differs_clearly_is_learned_and_used() -> None:
    turns = [(messages, 400 + messages) for messages in (1_000, 2_000, 3_000, 4_000)]
    calibration = observed(*turns)
    assert calibration.overhead_tokens(100) == 400
    assert calibration.ratio == 1.0
    assert calibration.instructions_tokens(100) == 400


def test_a_ratio_and_an_overhead_are_told_apart() -> None:
    calibration = observed(*[(messages, 400 + 2 * messages) for messages in (1_000, 2_000, 3_000, 4_000)])
    assert calibration.ratio == 2.0
    assert calibration.instructions_tokens(100) * calibration.ratio == 400


def test_an_overhead_close_to_our_estimate_is_not_used() -> None:
    calibration = observed(*[(messages, 110 + messages) for messages in (1_000, 2_000, 3_000, 4_000)])
    assert calibration.overhead_tokens(100) == 100


def test_an_overhead_seen_with_other_instructions_says_nothing() -> None:
    calibration = observed(*[(messages, 400 + messages) for messages in (1_000, 2_000, 3_000, 4_000)])
    assert calibration.instructions_tokens(3_000) == 3_000


def test_the_overhead_of_the_turn_that_varied_least_is_kept() -> None:
    steady = [(1_000, 1_400), (2_000, 2_400), (3_000, 3_400)]
    noisy = [(4_000, 4_300), (5_000, 5_600)]
    assert observed(*steady, *noisy).overhead_tokens(100) == 400


def test_a_compaction_restarts_the_sums_and_keeps_the_overhead() -> None:
    calibration = observed(*[(messages, 400 + 2 * messages) for messages in (10_000, 20_000, 30_000, 40_000)])
    after = calibration.observe(
        estimated_tokens=8_100, instructions_tokens=100, reported_tokens=400 + 8_000, restart=True
    )
    assert after.overhead_tokens(100) == 400
    assert after.estimated_tokens == 10_000, "the new turn and a weak prior"
    assert 1.0 < after.ratio < calibration.ratio


def test_a_seed_is_soon_outweighed() -> None:
    seed = seeded(observed((100_000, 100 + 200_000)))
    assert seed.ratio == 2.0
    after = seed.observe(estimated_tokens=20_100, instructions_tokens=100, reported_tokens=20_100)
    assert 1.0 < after.ratio < 1.1


def test_a_seed_that_knows_nothing_is_no_prior() -> None:
    assert seeded(Calibration()) == Calibration()


@given(turns=TURNS)
def test_a_calibration_survives_being_stored(turns: list[tuple[int, int]]) -> None:
    calibration = observed(*turns)
    assert Calibration.from_dict(orjson.loads(orjson.dumps(calibration.to_dict()))) == calibration
    assert Calibration.from_dict({}) == Calibration()
