from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.compaction.acceptance.values_appendix import collect_values, render_appendix
from tests.compaction.simulated_compaction import COUNT, log_of


def found(*bodies: dict[str, Any]) -> dict[str, str]:
    """Values, and their passages with the words before them."""
    return {value.text: f"{value.before} {value.passage}".strip() for value in collect_values(log_of(bodies))}


def appended(*bodies: dict[str, Any]) -> str:
    """The appendix with all values."""
    return render_appendix(collect_values(log_of(bodies)), 10_000, COUNT.count)


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "a", "content": text}


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


@pytest.mark.parametrize(
    "text",
    [
        "hello and well-known, Yes I don't",
        "the 27th of 7, e.g. and/or his/her …",
        "You are right.Everything is.",
        "We met Mia Kim of VertexSoft in Oslo, on a Tuesday in May.",
        'She said "you were right." and "blue whale".',
        "x" * 300 + "1",
    ],
)
def test_ordinary_words_and_names_are_no_values(text: str) -> None:
    assert found(user(text)) == {}


@pytest.mark.parametrize(
    ("text", "passage"),
    [
        ("Well, my order number is 88123. Bye.", "order number is 88123"),
        ("- **Flight Number**: HAT112", "- Flight Number: HAT112"),
        ("I think it listens on port 8080 now.", "listens on port 8080 now"),
        ("It is 1250 metres high.", "It is 1250 metres"),
        ("They paid $50 million for it.", "They paid $50 million"),
        ("See you on May 26th, 2023 at 14:30, I hope.", "on May 26th, 2023 at 14:30"),
        ("Our ticket OPS-4711 is closed.", "Our ticket OPS-4711"),
        ("Send it as user_id=mia_43.", "Send it as user_id=mia_43"),
        ("First line\nline 4711", "line 4711"),
    ],
)
def test_a_value_stands_with_the_words_around_it_as_they_stood(text: str, passage: str) -> None:
    assert passage in found(user(text)).values()
    assert passage.split()[-1] in text


def test_arguments_and_results_give_the_keys_before_their_values() -> None:
    values = found(
        calling('{"reservation": {"id": "H9ZU1C", "bags": [1725, 2]}, "max_bags": true}'),
        result('{"cards": {"card_7407366": {"last_four": "6437"}}, "log": "a\\nline 4711"}'),
    )
    assert values == {
        "H9ZU1C": "id: H9ZU1C",
        "1725": "bags: 1725",
        "card_7407366": "card_7407366",
        "6437": "last_four: 6437",
        "4711": "line 4711",
    }


def test_values_behind_the_same_words_stand_together_in_order() -> None:
    bodies = [result(f'{{"flight": "HAT{n}Q", "date": "2024-05-{n}"}}') for n in (21, 23)]
    assert appended(*bodies) == "Values mentioned: flight: HAT21Q, HAT23Q … date: 2024-05-21, 2024-05-23"


def test_a_short_number_is_no_value_by_itself() -> None:
    assert found(result("[17, 45, 2]\n33\n(21) Begin.\nTurn 10 is over.\n12345")).keys() == {"12345"}
    assert found(user("It was 12 May 2023.")) == {"2023": "It was 12 May 2023"}


def test_values_beside_scripts_without_spaces_are_found() -> None:
    assert {"ABC1234", "2024-05-23"} <= found(user("订单号ABC1234已于2024-05-23发货。")).keys()
    assert "ABC1234" in found(user("주문번호 ABC1234입니다"))


def test_what_was_said_or_passed_on_comes_before_what_a_tool_told_once() -> None:
    bodies = [user("It is about ZX81QL, at $45."), calling('{"flight": "HAT178"}'), result('{"seat": "QQ12RT"}')]
    values = collect_values(log_of(bodies))
    assert [value.text for value in values] == ["ZX81QL", "HAT178", "QQ12RT", "$45"]
    assert {value.text for value in values if value.is_important} == {"ZX81QL", "HAT178"}


def test_what_several_messages_mention_is_important() -> None:
    [value] = collect_values(log_of([result('{"seat": "QQ12RT"}'), {"role": "assistant", "content": "Seat qq12rt."}]))
    assert value.is_important


def test_a_long_list_of_results_does_not_push_out_a_short_one() -> None:
    listed = ", ".join(f'"P{n}XY"' for n in range(100, 200))
    bodies = [result(f'{{"parts": [{listed}]}}'), result('{"ticket": "T900AB"}')]
    assert [value.text for value in collect_values(log_of(bodies))].index("T900AB") <= 17


@pytest.mark.parametrize("parameter", ["order_id", "orderId", "orders"])
def test_a_value_that_a_tool_may_take_comes_before_others_of_its_result(parameter: str) -> None:
    body = result('{"tracking": "QQ12RTX", "order_id": "AB34CD"}')
    assert [value.text for value in collect_values(log_of([body]))] == ["QQ12RTX", "AB34CD"]
    assert [value.text for value in collect_values(log_of([body]), (), {parameter})] == ["AB34CD", "QQ12RTX"]


def test_reasoning_is_not_searched() -> None:
    assert found({"role": "assistant", "content": "<think>QX77ZZ</think>Fine.", "reasoning_content": "QX77ZZ"}) == {}


@given(st.text(max_size=2000))
def test_any_text_can_be_searched_and_stands_in_the_appendix_as_it_stood(text: str) -> None:
    for value in collect_values(log_of([user(text)])):
        assert value.text in text
        assert "\n" not in value.passage


@given(st.text(max_size=300))
def test_any_arguments_and_results_can_be_searched(text: str) -> None:
    collect_values(log_of([calling(text), result(text)]))


@pytest.mark.parametrize("piece", ["x", "a1", "_a", "/a", ".a", "Aa ", '"', "1,234", "named ", "a://", "12 "])
def test_a_megabyte_of_anything_takes_no_time(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    started = time.process_time()
    collect_values(log_of([result(text), user(text)]))
    assert time.process_time() - started < 5
