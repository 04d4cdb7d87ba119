from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversation.search_terms import (
    MAX_MESSAGE_CHARS,
    MAX_QUERY_TERMS,
    MAX_TERM_CHARS,
    extract_message_terms,
    extract_query_terms,
    extract_terms,
)
from app.dialects.body.message import ChatMessage


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        ("name", "Names"),
        ("make", "making"),
        ("study", "studies studied studying"),
        ("run", "running"),
        ("box", "boxes"),
        ("Michael", "Michael's"),
        ("cafe", "Café"),
        ("ABC", "\uff21\uff22\uff23"),
        ("1234567", "1,234,567"),
        ("иванов", "ИВАНОВ"),
    ],
)
def test_a_word_is_found_in_its_other_forms(asked: str, written: str) -> None:
    assert set(extract_terms(written)) == set(extract_terms(asked))


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("foo_bar.py", {"foo_bar.py", "foo", "bar", "py"}),
        ("/srv/user-id", {"srv/user-id", "srv", "user", "id"}),
        ("getHTTPCode", {"gethttpcod", "get", "http", "cod"}),
        ("order42", {"order42", "order", "42"}),
        ("v3.50", {"v3.50", "v3", "v", "3", "50"}),
    ],
)
def test_identifiers_are_kept_whole_and_in_their_parts(text: str, terms: set[str]) -> None:
    assert set(extract_terms(text)) == terms


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("我叫迈克", ["我叫", "叫迈", "迈克"]),
        ("用iPhone拍", ["用", "iphon", "i", "phon", "拍"]),
        ("สวัส", ["สว", "วั", "ัส"]),
        ("이름은", ["이름", "름은"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
    ],
)
def test_scripts_without_spaces_are_pairs_of_characters(text: str, terms: list[str]) -> None:
    assert extract_terms(text) == terms


def test_words_of_other_languages_are_not_stemmed() -> None:
    assert extract_terms("мосты") == ["мосты"]


def test_a_question_asks_for_what_is_not_common() -> None:
    assert extract_query_terms("What is my first name? My name!") == ["first", "nam"]
    assert extract_query_terms("And what was it then?") == []


def test_a_pasted_text_asks_for_its_beginning_and_its_end() -> None:
    asked = extract_query_terms(" ".join(f"w{number}" for number in range(1000)))
    assert len(asked) == MAX_QUERY_TERMS
    assert asked[0] == "w0"
    assert asked[-1] == "999"


@pytest.mark.parametrize("unit", ["a", "aB", "a1", "我", "é", "e\u0301", "'s", "\u0301"])
def test_a_megabyte_without_spaces_is_read_in_one_pass(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    assert all(len(term) <= MAX_TERM_CHARS for term in set(extract_terms(text)))


def test_a_message_is_found_by_its_calls_and_results() -> None:
    call = {
        "type": "function",
        "function": {"name": "write_file", "arguments": '{"text": "one\\ntwo", "n": [7, null]}'},
    }
    broken = {"type": "function", "function": {"name": "run", "arguments": '{"half'}}
    custom = {"type": "custom", "custom": {"name": "shell", "input": "make all"}}
    message = ChatMessage.from_body(
        {"role": "assistant", "content": "Done.", "tool_calls": [call, broken, custom, "odd"]}
    )
    terms = set(extract_message_terms(message))
    assert {"don", "write_file", "writ", "fil", "text", "two", "7", "half", "shell", "mak"} <= terms
    assert "none" not in terms
    assert "result" in extract_message_terms(
        ChatMessage.from_body({"role": "tool", "tool_call_id": "1", "content": "results"})
    )


def test_only_the_beginning_of_a_long_message_is_indexed() -> None:
    message = ChatMessage.from_body({"role": "tool", "content": "word\n" * MAX_MESSAGE_CHARS + "last"})
    assert set(extract_message_terms(message)) <= {"word", "w", "wo", "wor"}


@given(st.text())
def test_any_text_has_terms_that_find_it(text: str) -> None:
    terms = extract_terms(text)
    assert terms == extract_terms(text)
    assert all(terms)
    assert all(len(term) <= MAX_TERM_CHARS for term in terms)
    assert set(extract_query_terms(text)) <= set(terms)
