from __future__ import annotations

import random
from itertools import product

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.context.calibration import (
    HIGHEST_SLOPE,
    LOWEST_SLOPE,
    PRIOR_TOKENS,
    AttachmentCost,
    Calibration,
    CountedPrompt,
    digest_instructions,
)

TALKS = st.lists(st.integers(-20_000, 20_000), min_size=1, max_size=20)
SLOPES = (0.8, 1.0, 1.23, 1.4)
OVERHEADS = (0, 23, 300, 1_000)
INSTRUCTIONS = (0, 1_000, 25_000)
TOLERANCE = 0.05


def predicted(calibration: Calibration, prompt: CountedPrompt) -> float:
    """What the plan takes a prompt to cost at the provider."""
    planned = calibration.estimate_planned_instructions_tokens(prompt.instructions_tokens, prompt.instructions)
    return calibration.slope * (prompt.estimated_tokens - prompt.instructions_tokens + planned)


def observed(*reports: tuple[int, int], instructions: int = 100, known: Calibration | None = None) -> Calibration:
    """A calibration after prompts of (raw tokens of the messages, reported tokens)."""
    calibration = known or Calibration()
    for messages, reported in reports:
        calibration = calibration.learn_from_report(
            CountedPrompt(messages + instructions, instructions, "t.i"), reported
        )
    return calibration


def talk(
    *,
    slope: float,
    overhead: int,
    instructions: int,
    seed: int,
    window: int,
    tools: bool,
    images: bool,
    image_tokens: int = 865,
) -> list[tuple[int, float, int]]:
    """A conversation with a provider that counts in a line of its own: (turn, estimate, count) of each prompt.

    It is compacted to a quarter at 0.7 of the window by its estimate. Every third turn has other tools, every fifth an
    image, which we take for 765 tokens.
    """
    chance, calibration, rows = random.Random(seed), Calibration(), []
    text, seq, boundary = 0, 0, 0
    shown: list[int] = []
    for turn in range(1, 31):
        text, seq = text + chance.randint(50, 400), seq + 2
        if images and turn % 5 == 0:
            shown.append(seq)
            calibration = calibration.add_attachments([AttachmentCost(seq, 765)], head_seq=seq - 1)
        schemas = 300 if tools and turn % 3 == 0 else 0
        named = digest_instructions([b"instructions"], {"tools": b"t" * schemas})
        prompt = CountedPrompt(
            instructions + schemas + text + 765 * len(shown), instructions + schemas, named, boundary
        )
        if predicted(calibration, prompt) > 0.7 * window:
            shown, boundary, text = [], seq + 1, text // 4
            prompt = replace(prompt, estimated_tokens=instructions + schemas + text, boundary_seq=boundary)
            calibration = calibration.drop_attachments_before(boundary)
        reported = round(overhead + slope * (prompt.estimated_tokens - 765 * len(shown)) + image_tokens * len(shown))
        rows.append((turn, predicted(calibration, prompt), reported))
        assert calibration.find_silent_truncation_window(prompt, reported) is None
        calibration = calibration.learn_from_report(prompt, reported)
        text += chance.randint(20, 300)
    return rows


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("window", [8_192, 128_000])
def test_estimates_are_within_five_percent_from_the_fifth_turn_on(window: int, images: bool, tools: bool) -> None:
    for slope, overhead, instructions in product(SLOPES, OVERHEADS, INSTRUCTIONS):
        if slope * (overhead + instructions) > 0.35 * window:
            continue
        for seed in range(3):
            rows = talk(
                slope=slope,
                overhead=overhead,
                instructions=instructions,
                seed=seed,
                window=window,
                tools=tools,
                images=images,
            )
            for turn, estimate, count in rows[4:]:
                case = (slope, overhead, instructions, seed, turn, estimate, count)
                assert abs(estimate - count) <= TOLERANCE * count, case


@pytest.mark.parametrize("image_tokens", [0, 400, 1_209, 3_000])
def test_the_second_image_costs_what_the_first_did(image_tokens: int) -> None:
    for slope, overhead, seed in product(SLOPES, OVERHEADS, range(3)):
        rows = talk(
            slope=slope,
            overhead=overhead,
            instructions=0,
            seed=seed,
            window=128_000,
            tools=True,
            images=True,
            image_tokens=image_tokens,
        )
        for turn, estimate, count in rows[9:]:
            assert abs(estimate - count) <= TOLERANCE * count, (slope, overhead, seed, turn, estimate, count)


def test_a_first_hi_behind_a_chat_template_is_an_offset_and_no_slope() -> None:
    calibration = observed((5, 31), instructions=3)
    assert calibration.slope == 1.0
    assert calibration.estimate_offset_tokens(3, "t.i") == 23
    assert predicted(calibration, CountedPrompt(2_108, 3, "t.i")) == 2_131


def test_heavy_instructions_and_a_hi_are_an_offset() -> None:
    calibration = observed((5, 30_756), instructions=25_000)
    assert predicted(calibration, CountedPrompt(25_300, 25_000, "t.i")) == pytest.approx(30_756 + 295)


def test_nothing_known_is_a_slope_of_one_and_no_offset() -> None:
    assert Calibration().slope == 1.0
    assert Calibration().estimate_offset_tokens(1_000, "") == 0
    assert Calibration().estimate_planned_instructions_tokens(1_000, "") == 1_000


def test_the_slope_is_that_of_what_changed_after_a_weak_prior() -> None:
    calibration = observed((1_000, 1_500), (2_000, 2_900), (3_000, 4_300))
    prior = PRIOR_TOKENS**2 / (PRIOR_TOKENS + 2_000)
    assert calibration.slope == pytest.approx((prior + 2_800) / (prior + 2_000))


def test_a_compaction_counts_as_what_changed() -> None:
    grown = observed((1_000, 1_400), (6_000, 8_400))
    compacted = observed((1_000, 1_400), known=grown)
    assert compacted.changed_estimated == 10_000
    assert compacted.slope > grown.slope


@pytest.mark.parametrize(("reported", "slope"), [(2.5, HIGHEST_SLOPE), (0.55, LOWEST_SLOPE)])
def test_the_slope_is_kept_within_bounds(reported: float, slope: float) -> None:
    assert observed(*((n, round(n * reported)) for n in (10_000, 20_000, 30_000))).slope == slope


@pytest.mark.parametrize(
    "report",
    [
        pytest.param((0, 100), id="nothing was sent"),
        pytest.param((1_000, 499), id="the report is implausibly small"),
        pytest.param((1_000, 0), id="the report is empty"),
    ],
)
def test_reports_that_say_nothing_are_skipped(report: tuple[int, int]) -> None:
    known = observed((1_000, 1_500), (3_000, 4_000))
    after = observed(report, known=known)
    assert (after.slope, after.reports) == (known.slope, known.reports)


def test_an_image_does_not_stop_the_learning() -> None:
    calibration = observed((1_000, 1_400)).add_attachments([AttachmentCost(3, 765)], head_seq=2)
    with_image = calibration.learn_from_report(CountedPrompt(2_865, 100, "t.i"), 1_400 + 1_400 + 3_000)
    assert with_image.slope == calibration.slope
    assert with_image.attachments[0].cost_tokens == pytest.approx(3_400)
    later = with_image.learn_from_report(CountedPrompt(3_865, 100, "t.i"), 1_400 + 1_400 + 3_000 + 1_400)
    assert later.slope > calibration.slope
    assert predicted(later, CountedPrompt(3_865, 100, "t.i")) == pytest.approx(7_200, abs=1)


def test_an_image_that_left_the_view_takes_its_cost_along() -> None:
    calibration = observed((1_000, 1_100)).add_attachments([AttachmentCost(3, 765)], head_seq=2)
    calibration = calibration.learn_from_report(CountedPrompt(1_865, 100, "t.i"), 61_100)
    compacted = calibration.learn_from_report(CountedPrompt(1_100, 100, "t.i", boundary_seq=4), 1_100)
    assert compacted.attachments == ()
    assert compacted.slope == 1.0
    assert predicted(compacted, CountedPrompt(1_100, 100, "t.i")) == 1_100


def test_results_of_a_provider_side_tool_are_no_slope_and_no_offset_of_the_next_prompt() -> None:
    prompts = [(CountedPrompt(n, 100, "t.i", has_provider_tools=True), n) for n in range(1_000, 3_000, 200)]
    calibration = Calibration()
    for number, (prompt, reported) in enumerate(prompts):
        searched = 9_000 if number in (3, 6) else 0
        calibration = calibration.learn_from_report(prompt, reported + searched)
        assert predicted(calibration, prompt) == pytest.approx(reported)
    assert calibration.slope == 1.0
    assert calibration.changed_estimated > 0


def test_an_offset_is_remembered_for_each_digest_of_instructions() -> None:
    calibration, text = Calibration(), 0
    for turn in range(6):
        named, overhead = (("a.i", 1_000), ("b.i", 50))[turn % 2]
        text += 100
        calibration = calibration.learn_from_report(CountedPrompt(text + 100, 100, named), text + 100 + overhead)
    assert calibration.estimate_offset_tokens(100, "a.i") == pytest.approx(1_000)
    assert calibration.estimate_offset_tokens(100, "b.i") == pytest.approx(50)


def test_instructions_that_differ_in_text_alone_are_compared() -> None:
    calibration = Calibration()
    for turn in range(1, 6):
        calibration = calibration.learn_from_report(CountedPrompt(400 * turn, 100, f"t.{turn}"), 560 * turn)
    assert calibration.slope > 1.3


@pytest.mark.parametrize("reports", [(4_096, 4_096, 4_096), (4_090, 3_700, 4_010)])
def test_reports_that_stay_flat_while_the_count_rises_show_the_window(reports: tuple[int, ...]) -> None:
    calibration, shown = observed((3_000, 3_100), (3_950, 4_050)), []
    for step, reported in enumerate(reports, 1):
        prompt = CountedPrompt(4_050 + 400 * step, 100, "t.i")
        shown.append(calibration.find_silent_truncation_window(prompt, reported))
        calibration = calibration.learn_from_report(prompt, reported)
    assert shown[0] is None
    assert shown[-1] == pytest.approx(4_096, rel=0.02)
    assert calibration.slope == pytest.approx(1.0, abs=0.1)
    assert predicted(calibration, CountedPrompt(3_000, 100, "t.i")) == pytest.approx(3_000, rel=TOLERANCE)


@given(steps=TALKS, slope=st.floats(LOWEST_SLOPE, HIGHEST_SLOPE), overhead=st.integers(0, 5_000))
def test_no_honest_provider_is_taken_for_one_that_cuts(steps: list[int], slope: float, overhead: int) -> None:
    calibration, text = Calibration(), 0
    for step in steps:
        text = max(10, text + step)
        prompt, reported = CountedPrompt(text + 100, 100, "t.i"), round(overhead + slope * (text + 100))
        assert calibration.find_silent_truncation_window(prompt, reported) is None
        calibration = calibration.learn_from_report(prompt, reported)


@given(steps=TALKS, slope=st.floats(LOWEST_SLOPE, HIGHEST_SLOPE), overhead=st.integers(0, 5_000))
def test_an_estimate_is_off_by_no_more_than_the_slope_that_is_not_learned_yet(
    steps: list[int], slope: float, overhead: int
) -> None:
    calibration, text = Calibration(), 0
    for step in steps:
        changed, text = max(10, text + step) - text, max(10, text + step)
        prompt, reported = CountedPrompt(text + 100, 100, "t.i"), round(overhead + slope * (text + 100))
        if calibration.reports:
            off = abs(predicted(calibration, prompt) - reported)
            assert off <= abs(slope - calibration.slope) * abs(changed) + 0.01 * abs(changed) + 4
        calibration = calibration.learn_from_report(prompt, reported)
        assert LOWEST_SLOPE <= calibration.slope <= HIGHEST_SLOPE
        assert min(1.0, slope) - 0.1 <= calibration.slope <= max(1.0, slope) + 0.1
        assert predicted(calibration, prompt) == pytest.approx(reported, abs=2)


@given(steps=TALKS)
def test_a_provider_that_counts_as_we_do_keeps_estimates_equal_to_our_counts(steps: list[int]) -> None:
    calibration, text = Calibration(), 0
    for step in steps:
        text = max(10, text + step)
        calibration = calibration.learn_from_report(CountedPrompt(text + 100, 100, "t.i"), text + 100)
        assert calibration.slope == 1.0
        assert calibration.estimate_planned_instructions_tokens(100, "t.i") == 100


@given(steps=TALKS, tokens=st.integers(1, 10_000))
def test_a_calibration_survives_being_stored(steps: list[int], tokens: int) -> None:
    calibration = observed(*((abs(step) + 1, abs(step) + 101) for step in steps))
    calibration = calibration.add_attachments([AttachmentCost(3, tokens)], head_seq=2)
    calibration = calibration.learn_from_report(CountedPrompt(50_000, 100, "t.i"), 60_000)
    assert Calibration.from_dict(orjson.loads(orjson.dumps(calibration.to_dict()))) == calibration


@pytest.mark.parametrize(
    "stored",
    [
        None,
        [1.5, 2],
        {},
        {"reported": 310.0, "estimated": 80.0, "overhead": [31.0, 8, 2.0], "last": [5, 3, 31, None]},
        {"reports": [{"instructions": 1}]},
        {"reports": "none"},
    ],
)
def test_what_earlier_versions_stored_is_a_calibration_that_knows_nothing(stored: object) -> None:
    assert Calibration.from_dict(stored) == Calibration()
    assert Calibration.from_dict(stored, start_slope=1.2).slope == 1.2
