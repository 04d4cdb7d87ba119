from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.compaction.acceptance.text_values import find_proper_names, find_text_values, rate_word
from app.compaction.acceptance.value_finding import MentionCollector
from app.compaction.acceptance.values_appendix import collect_values
from tests.compaction.simulated_compaction import log_of


def found(*bodies: dict[str, Any]) -> dict[str, str]:
    """Values and their labels."""
    return {value.text: value.label for value in collect_values(log_of(bodies))}


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


@pytest.mark.parametrize(
    ("text", "label", "value"),
    [
        ("My order number is 88123.", "order number", "88123"),
        ("Send it as user_id=mia_43.", "user_id", "mia_43"),
        ("Please note the Order ID: 7712 of it.", "order id", "7712"),
        ("- **Flight Number**: HAT112", "flight number", "HAT112"),
        ('She wrote {"port": "8080"} in it.', "port", "8080"),
        ("It listens on port 8080 now.", "port", "8080"),
        ("Is seat #17 free?", "seat", "#17"),
        ("Sarah's budget is $1,500 this year.", "budget", "$1,500"),
    ],
)
def test_a_label_is_what_the_text_calls_the_value(text: str, label: str, value: str) -> None:
    assert found(user(text))[value] == label


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("We are about $25 short.", "$25"),
        ("He lives in the Paris of 2024-05-23.", "2024-05-23"),
        ("Ross: 8812 it was.", "8812"),
        ("I closed my first $14.2B last Tuesday.", "$14.2B"),
    ],
)
def test_the_word_before_a_value_is_no_label_by_itself(text: str, value: str) -> None:
    assert found(user(text))[value] == ""


@pytest.mark.parametrize(
    "text",
    [
        "See you at 10:30 or 9am.",
        "They met in 2019 and again in 2021.",
        "I bought 25 of them, the 7th time, about 15%.",
        "He works 9-to-5 and 3x as much, e.g. here.",
        "You are right.Everything is.",
    ],
)
def test_numbers_that_nothing_explains_are_no_values(text: str) -> None:
    assert found(user(text)) == {}


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("I am 38 years old.", "38 years"),
        ("It took 1.8 inches off.", "1.8 inches"),
        ("They paid $50 million for it.", "$50 million"),
        ("You get a 17% discount.", "17% discount"),
        ("We saw 12,000 people.", "12,000 people"),
    ],
)
def test_a_number_has_the_unit_that_follows_it(text: str, rendered: str) -> None:
    [value] = collect_values(log_of([user(text)]))
    assert f"{value.text} {value.unit}" == rendered


def test_dates_in_words_are_values_as_a_whole() -> None:
    assert found(user("We met on May 26th, 2023, then on 7 June, and in March 2024.")).keys() == {
        "May 26th, 2023",
        "7 June",
        "March 2024",
    }


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


@pytest.mark.parametrize(
    "text",
    [
        "Hi there. Hey, Thanks and Good Morning to you.",
        "See you on Tuesday, in May or December.",
        "Well, said the Mom, Okay.",
        "**Flight Number**: see below. **Current Cabin**: unknown.",
        "the First Name and the last name, the first as well, your name too",
        "I think Whenever is fine; it was AI-driven.",
        "a friend called out when I was there, named after her",
    ],
)
def test_greetings_days_and_headings_are_no_names(text: str) -> None:
    assert found(user(text)) == {}


def test_what_begins_a_sentence_is_no_part_of_a_name() -> None:
    told = "Hey Mel, it rained. Since Seattle we waited for Mrs. Waltham. Look Ross, O'Hare's closed."
    assert list(find_proper_names(told)) == ["Mel", "Seattle", "Waltham", "Ross", "O'Hare"]


def test_a_sentence_in_quotation_marks_is_no_value() -> None:
    assert found(user('She said "you were right." and "Stop!", then "a b c d e f g h i".')) == {}


def test_quoted_values_are_found() -> None:
    assert {"blue whale", "make all"} <= found(user('The word is "blue whale", run `make all`.')).keys()


def test_values_beside_scripts_without_spaces_are_found() -> None:
    assert {"ABC1234", "2024-05-23"} <= found(user("订单号ABC1234已于2024-05-23发货。")).keys()
    assert "ABC1234" in found(user("주문번호 ABC1234입니다"))


def test_what_was_said_or_passed_on_comes_before_what_a_tool_told_once() -> None:
    values = collect_values(
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
    values = collect_values(
        log_of(
            [
                {"role": "tool", "content": f'{{"parts": [{listed}]}}'},
                {"role": "tool", "content": '{"ticket": "T900AB"}'},
            ]
        )
    )
    assert values[0].text == "T900AB"


@pytest.mark.parametrize(
    ("parameter", "key"), [("order_id", "orders"), ("orderId", "order"), ("contact_id", "contacts")]
)
def test_a_value_that_a_tool_may_take_comes_before_others_of_its_result(parameter: str, key: str) -> None:
    body = {"role": "tool", "content": f'{{"tracking": ["QQ12RT"], "{key}": ["AB34CD", "EF56GH"]}}'}
    assert [value.text for value in collect_values(log_of([body]))].index("QQ12RT") == 0
    assert [value.text for value in collect_values(log_of([body]), (), {parameter})][-1] == "QQ12RT"


def test_keys_of_earlier_calls_name_parameters_too() -> None:
    values = collect_values(
        log_of(
            [
                calling('{"order_id": "XY99ZZ"}'),
                {"role": "tool", "content": '{"tracking": ["QQ12RT"], "orders": ["AB34CD", "EF56GH"]}'},
            ]
        )
    )
    assert [value.text for value in values][-1] == "QQ12RT"


def test_places_in_files_are_found_as_paths() -> None:
    told = "src/app/main.py:12: def start():\ntests/test_app.py::test_start FAILED\nsee http://localhost:8080/x"
    assert found({"role": "tool", "content": told}).keys() == {
        "src/app/main.py",
        "tests/test_app.py",
        "http://localhost:8080/x",
    }


def test_numbers_of_plain_results_need_a_label_and_identifiers_do_not() -> None:
    told = "On Mar 28 it rose 15% to $210, 1.25 in 3000; port 8080; | 1008292230 | 200-day"
    assert found({"role": "tool", "content": told}) == {"8080": "port", "1008292230": ""}


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
    assert all(value.text for value in find_text_values(text))


@given(st.text(max_size=300))
def test_any_arguments_and_results_can_be_searched(text: str) -> None:
    collect_values(log_of([calling(text), {"role": "tool", "content": text}]))


@pytest.mark.parametrize("piece", ["x", "a1", "_a", "/a", ".a", "Aa ", '"', "1,234", "named "])
def test_a_megabyte_of_anything_takes_no_time(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    collect_values(log_of([{"role": "tool", "content": text}, user(text)]))
