from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.compaction.acceptance.mechanical_summary import build_mechanical_summary
from app.compaction.acceptance.summary_acceptance import (
    APPENDIX_DIVISOR,
    MAX_APPENDIX_TOKENS,
    MIN_OVERSHOOT_TOKENS,
    OVERSHOOT_SHARE,
    append_missing_values,
    choose_values_to_request,
)
from app.compaction.acceptance.values_appendix import (
    HEADINGS,
    collect_values,
    compute_kept_share,
    find_missing_values,
    parse_appendix,
    render_appendix,
)
from app.conversation.conversation_types import LogMessage, Summary
from tests.compaction.simulated_compaction import COUNT, Scene, job_for, log_of, saying

NONSENSE = "They spoke about many things."


def booking(n: int) -> list[dict[str, Any]]:
    arguments = f'{{"reservation_id": "RES{n}XQ", "user_id": "mia_kim_{1000 + n}"}}'
    call = {"id": "a", "type": "function", "function": {"name": "book", "arguments": arguments}}
    return [
        {"role": "user", "content": f"Please book the flight FL{n}QA for $1{n}0 as soon as you can, will you?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": f'{{"status": "done", "seat": "SEAT{n}ZZ"}}'},
    ]


def log(bookings: int) -> list[LogMessage]:
    return log_of([body for n in range(10, 10 + bookings) for body in booking(n)])


def chunk(text: str) -> Summary:
    return Summary(
        id="sum_1",
        conversation_id="conv_1",
        from_seq=0,
        to_seq=4,
        from_link=b"",
        to_link=b"",
        text=text,
        tokens=0,
        tokens_total=0,
        anchor_seq=None,
        anchor_tokens=0,
        through_turn=1,
        kind="model",
        model="m",
        prompt_version="1",
        created_at=datetime(2026, 11, 21, tzinfo=UTC),
    )


def test_a_value_survives_as_a_word_of_its_own_however_it_is_spaced_or_spelled() -> None:
    values = collect_values(log_of([{"role": "user", "content": "Pay 6240 to mia_43 for SEAT12, not 62402 for mia."}]))
    lost = {value.text for value in find_missing_values(values, "Paid 6,240 for seat12, MIA_431 and 62401.")}
    assert lost == {"mia_43", "62402"}


def test_a_nonsense_summary_is_completed_with_what_was_said_and_passed_on() -> None:
    messages = log(4)
    text = append_missing_values(
        NONSENSE, collect_values(messages), limit_tokens=256, allowed_tokens=10_000, count_tokens=COUNT.count
    )
    assert text.startswith(NONSENSE)
    assert all(f"RES{n}XQ" in text and f"mia_kim_{1000 + n}" in text and f"FL{n}QA" in text for n in range(10, 14))
    assert COUNT.count(text) <= 256


def test_a_complete_summary_is_left_as_it_is() -> None:
    messages = log(1)
    told = "The user booked FL10QA for $1100; reservation RES10XQ for mia_kim_1010, status done, seat SEAT10ZZ."
    assert (
        append_missing_values(
            told, collect_values(messages), limit_tokens=256, allowed_tokens=1000, count_tokens=COUNT.count
        )
        == told
    )


def test_a_good_summary_that_used_all_its_room_is_not_cut_and_little_longer() -> None:
    messages = log(40)
    told = " ".join(f"RES{n}XQ for mia_kim_{1000 + n} by FL{n}QA." for n in range(10, 34))
    limit = COUNT.count(told)
    text = append_missing_values(
        told, collect_values(messages), limit_tokens=limit, allowed_tokens=10_000, count_tokens=COUNT.count
    )
    assert text.startswith(f"{told}\n{HEADINGS['kept']}")
    assert COUNT.count(text) <= limit + max(limit * OVERSHOOT_SHARE, MIN_OVERSHOOT_TOKENS) + 2


def test_a_poor_summary_makes_room_for_values() -> None:
    messages = log(12)
    text = append_missing_values(
        f"{NONSENSE} " * 60, collect_values(messages), limit_tokens=256, allowed_tokens=10_000, count_tokens=COUNT.count
    )
    assert COUNT.count(text) <= 256
    assert text.startswith(NONSENSE)
    assert text.count("RES") >= 6


@pytest.mark.parametrize(("sentences", "limit"), [(4, 2048), (400, 2048), (4, 400), (60, 400)])
def test_the_values_of_a_poor_summary_take_the_room_of_its_text(sentences: int, limit: int) -> None:
    text = append_missing_values(
        f"{NONSENSE} " * sentences,
        collect_values(log(120)),
        limit_tokens=limit,
        allowed_tokens=10_000,
        count_tokens=COUNT.count,
    )
    length = COUNT.count(f"{NONSENSE} " * sentences)
    usual = max(MAX_APPENDIX_TOKENS, limit // APPENDIX_DIVISOR)
    assert COUNT.count(text) <= min(limit, max(length, usual) + min(length, usual))
    if length > limit:
        assert COUNT.count(text[text.index(HEADINGS["kept"]) :]) > limit * 0.6


def test_no_more_is_added_than_what_still_gains() -> None:
    text = append_missing_values(
        NONSENSE, collect_values(log(6)), limit_tokens=256, allowed_tokens=40, count_tokens=COUNT.count
    )
    assert COUNT.count(text) <= 40


def test_what_the_appendix_of_a_summary_carries_is_found_again_in_a_fold() -> None:
    messages = log(3)
    first = append_missing_values(
        NONSENSE, collect_values(messages), limit_tokens=256, allowed_tokens=10_000, count_tokens=COUNT.count
    )
    folded = append_missing_values(
        NONSENSE, collect_values((), [chunk(first)]), limit_tokens=256, allowed_tokens=10_000, count_tokens=COUNT.count
    )
    assert {kept.text for kept in parse_appendix(first)} == {kept.text for kept in parse_appendix(folded)}
    assert {kept.text for kept in parse_appendix(first) if kept.source == "result"} == {
        f"SEAT{n}ZZ" for n in (10, 11, 12)
    } | {"done"}


def test_each_value_stands_under_the_heading_that_says_where_it_comes_from() -> None:
    messages = log_of(
        [
            {"role": "user", "content": "I am 38 years old, from Oslo, and my order id is ZX81QL."},
            {"role": "assistant", "content": "Lyon is nice, and Rita has 45 cats."},
            {"role": "tool", "tool_call_id": "a", "content": '{"seat": "QQ12RT"}'},
        ]
    )
    assert render_appendix(collect_values(messages), 200, COUNT.count).splitlines() == [
        "Values mentioned: order id: ZX81QL; Oslo",
        "Also mentioned: 38 years, 45 cats, Rita",
        "Seen in results: seat: QQ12RT",
    ]
    assert HEADINGS["result"] not in render_appendix(collect_values(messages[:2]), 200, COUNT.count)


def test_appendices_of_earlier_versions_are_read() -> None:
    told = f'{NONSENSE}\nValues mentioned: name: Mia; RES10XQ\nSeen in results: seat: QQ12RT, "50,000"'
    assert [(one.label, one.text, one.source) for one in parse_appendix(told)] == [
        ("name", "Mia", "kept"),
        ("", "RES10XQ", "kept"),
        ("seat", "QQ12RT", "result"),
        ("seat", "50,000", "result"),
    ]


def test_a_fold_keeps_names_and_units_under_their_headings() -> None:
    told = "Values mentioned: Oslo; 12,000 people\nAlso mentioned: 38 years, Rita"
    values = collect_values((), [chunk(f"{NONSENSE}\n{told}")])
    assert (
        render_appendix(values, 200, COUNT.count)
        == "Values mentioned: Oslo, 12,000 people\nAlso mentioned: 38 years, Rita"
    )


def test_a_fold_keeps_what_was_said_before_what_tools_told() -> None:
    told = f"{NONSENSE}\n{HEADINGS['kept']}id: RES10XQ, RES11XQ\n{HEADINGS['result']}seat: " + ", ".join(
        f"SEAT{n}ZZ" for n in range(60)
    )
    text = append_missing_values(
        NONSENSE, collect_values((), [chunk(told)]), limit_tokens=80, allowed_tokens=10_000, count_tokens=COUNT.count
    )
    assert "RES10XQ, RES11XQ" in text


def test_labels_and_values_that_look_like_punctuation_come_back_whole() -> None:
    arguments = (
        '{"note; to: self": "a, b; c: \\"d\\"", "plain": "San Diego", "5\\" disk": "Cape Town", "z": "Rome, Italy"}'
    )
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    values = collect_values(log_of([{"role": "assistant", "tool_calls": [call]}]))
    kept = parse_appendix(render_appendix(values, 200, COUNT.count))
    assert {"San Diego", 'a, b; c: "d"', "Cape Town", "Rome, Italy"} == {one.text for one in kept}


def test_a_part_of_a_value_is_not_repeated_beside_it() -> None:
    values = collect_values(
        log_of([{"role": "user", "content": "Edit src/app/main.py; main.py is long, setup.py is not."}])
    )
    assert {one.text for one in parse_appendix(render_appendix(values, 200, COUNT.count))} == {
        "src/app/main.py",
        "setup.py",
    }


def test_values_of_one_thing_stand_at_the_same_place_under_their_labels() -> None:
    text = render_appendix(collect_values(log(3)), 1000, COUNT.count)
    assert "reservation_id: RES10XQ, RES11XQ, RES12XQ" in text
    assert "user_id: mia_kim_1010, mia_kim_1011, mia_kim_1012" in text


def test_a_mechanical_summary_has_an_appendix_within_its_limit() -> None:
    messages = log(40)
    text = build_mechanical_summary(messages, (), 256, COUNT.count)
    assert COUNT.count(text) <= 256
    assert HEADINGS["kept"] in text
    assert text.startswith("user: Please book the flight FL10QA")
    assert build_mechanical_summary(log(1), (), 1000, COUNT.count).count("RES10XQ") == 1


@pytest.mark.parametrize(("kept", "taken"), [(40, "first"), (115, "second")])
async def test_a_second_summary_is_taken_only_if_it_keeps_more_than_the_first(kept: int, taken: str) -> None:
    def told(last: int) -> str:
        return " ".join(f"RES{n}XQ for mia_kim_{1000 + n} by FL{n}QA." for n in range(10, last))

    scene = Scene(
        window=128_000, said=saying(f"The first: {told(70)}" + " and so on" * 1000, f"The second: {told(kept)}")
    )
    [chunk] = (await scene.compactor.compact(job_for(log(120), window=128_000))).summaries
    assert len(scene.router.calls) == 2, "it was asked for again"
    assert chunk.text.startswith(f"The {taken}: ")


def test_a_second_call_is_worth_it_only_where_many_values_neither_survive_nor_fit() -> None:
    messages = log(120)
    values = collect_values(messages)
    half = " ".join(f"RES{n}XQ for mia_kim_{1000 + n} by FL{n}QA." for n in range(10, 70))
    lacking = choose_values_to_request(half + " and so on" * 1000, values, 2048, COUNT.count)
    assert 8 <= len(lacking) <= 60
    assert choose_values_to_request(half, collect_values(log(70)), 2048, COUNT.count) == []
    assert choose_values_to_request(half, values, 256, COUNT.count) == []
    assert choose_values_to_request(NONSENSE, values, 2048, COUNT.count) == []


def test_nothing_to_keep_is_all_kept() -> None:
    assert compute_kept_share(collect_values(log_of([{"role": "user", "content": "hello there"}])), "") == 1.0


WORDS = st.from_regex(r"[A-Z]{2}[0-9]{3}[a-z_]{0,6}|[a-z]{2,8}|\$[0-9]{2,5}", fullmatch=True)


@given(st.lists(WORDS, max_size=60), st.integers(0, 200), st.integers(0, 300))
def test_a_completed_summary_keeps_its_limits_and_is_always_the_same(
    words: list[str], limit: int, allowed: int
) -> None:
    values = collect_values(log_of([{"role": "user", "content": " ".join(words)}]))
    first, again = (
        append_missing_values(NONSENSE, values, limit_tokens=limit, allowed_tokens=allowed, count_tokens=COUNT.count)
        for _ in range(2)
    )
    assert first == again
    most = limit + max(limit * OVERSHOOT_SHARE, MIN_OVERSHOOT_TOKENS) + 2
    assert COUNT.count(first) <= max(COUNT.count(NONSENSE), most)
    lines = [kept.text for kept in parse_appendix(first)]
    assert len(lines) == len(set(lines))


@given(st.lists(WORDS, max_size=60), st.integers(0, 120))
def test_an_appendix_fits_its_room_and_tells_nothing_new(words: list[str], room: int) -> None:
    text = " ".join(words)
    lines = render_appendix(collect_values(log_of([{"role": "user", "content": text}])), room, COUNT.count)
    assert COUNT.count(lines) <= room
    assert all(kept.text in text for kept in parse_appendix(lines))
