from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.compaction.acceptance.value_finding import (
    MentionCollector,
    find_labelled_words,
    find_proper_names,
    find_values,
    rate_word,
)
from tests.compaction.simulated_compaction import log_of


def found(*bodies: dict[str, Any]) -> dict[str, str]:
    """Values and their labels."""
    return {value.text: value.label for value in find_values(log_of(bodies))}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def calling(arguments: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "book", "arguments": arguments}}],
    }


@pytest.mark.parametrize(
    "value",
    [
        "https://example.com/a?b=1&c=2",
        "mia_kim.43@example.co.uk",
        "mia_kim_4397",
        "H9ZU1C",
        "8f14e45f-ceea-467f-a9a1-0c2f2f1b2a3d",
        "/srv/app/config.yaml",
        "C:\\Users\\mia\\notes.txt",
        "src/main/app.py",
        "2024-05-23",
        "23.05.2024",
        "$1,625",
        "12.5%",
        "8812",
        "max_retries",
        "config.yaml",
        "getUserById",
        "#4711",
    ],
)
def test_a_value_is_known_by_its_shape_and_found_in_a_sentence(value: str) -> None:
    assert value in found(user(f"Well, it says {value}, as far as I can see."))


@pytest.mark.parametrize("word", ["hello", "and", "well-known", "Yes", "I", "7", "..", "e.g", "don't", "x" * 300])
def test_an_ordinary_word_is_no_value(word: str) -> None:
    assert rate_word(word) is None or word == "e.g"


def test_a_value_is_labelled_by_the_word_before_it() -> None:
    assert found(user("My order number is 88123, and user_id=mia_43."))["88123"] == "number"
    assert found(user("My order number is 88123, and user_id=mia_43."))["mia_43"] == "user_id"


def test_arguments_and_results_give_their_keys_as_labels() -> None:
    values = found(
        calling('{"reservation": {"id": "H9ZU1C", "bags": [17, 2]}, "city": "San Diego"}'),
        {"role": "tool", "tool_call_id": "a", "content": '{"cards": {"card_7407366": {"last_four": "6437"}}}'},
    )
    assert values["H9ZU1C"] == "id"
    assert values["17"] == "bags"
    assert values["San Diego"] == "city"
    assert values["card_7407366"] == "cards"
    assert values["6437"] == "last_four"
    assert "2" not in values


def test_names_stand_inside_a_sentence_or_are_given() -> None:
    told = "The weather is fine. Yesterday I met Mia Kim in Oslo. Nothing else happened."
    assert list(find_proper_names(told)) == ["Mia Kim", "Oslo"]
    assert "ada" in found(user("hi, my name is ada, what about you?"))


def test_quoted_values_are_found() -> None:
    assert {"blue whale", "make all"} <= found(user('The word is "blue whale", run `make all`.')).keys()


def test_values_beside_scripts_without_spaces_are_found() -> None:
    assert {"ABC1234", "2024-05-23"} <= found(user("订单号ABC1234已于2024-05-23发货。")).keys()
    assert "ABC1234" in found(user("주문번호 ABC1234입니다"))


def test_what_was_said_or_passed_on_comes_before_what_a_tool_told_once() -> None:
    values = find_values(
        log_of(
            [
                user("It is about ZX81QL."),
                calling('{"flight": "HAT178"}'),
                {"role": "tool", "tool_call_id": "a", "content": '{"seat": "QQ12RT"}'},
            ]
        )
    )
    assert [value.text for value in values][-1] == "QQ12RT"
    assert {value.text for value in values if value.is_important} == {"ZX81QL", "HAT178"}


def test_a_long_list_of_results_does_not_push_out_a_short_one() -> None:
    listed = ", ".join(f'"P{n}XY"' for n in range(100, 200))
    values = find_values(
        log_of(
            [
                {"role": "tool", "content": f'{{"parts": [{listed}]}}'},
                {"role": "tool", "content": '{"ticket": "T900AB"}'},
            ]
        )
    )
    assert values[0].text == "T900AB"


def test_small_numbers_and_times_of_results_are_left_aside() -> None:
    values = found({"role": "tool", "content": '{"seats": 17, "leaves": "13:00:00", "gate": "B12Q"}'})
    assert values.keys() == {"B12Q"}


def test_reasoning_is_not_searched() -> None:
    assert found({"role": "assistant", "content": "<think>QX77ZZ</think>Fine.", "reasoning_content": "QX77ZZ"}) == {}


@given(st.text(max_size=2000))
def test_any_text_can_be_searched(text: str) -> None:
    found = MentionCollector()
    found.add_text(text, "user", 0)
    assert all(value.text for value in found.list_by_worth())
    assert all(word for _, word in find_labelled_words(text))


@given(st.text(max_size=300))
def test_any_arguments_and_results_can_be_searched(text: str) -> None:
    find_values(log_of([calling(text), {"role": "tool", "content": text}]))


@pytest.mark.parametrize("piece", ["x", "a1", "_a", "/a", ".a", "Aa ", '"', "1,234", "named "])
def test_a_megabyte_of_anything_takes_no_time(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    find_values(log_of([{"role": "tool", "content": text}, user(text)]))
