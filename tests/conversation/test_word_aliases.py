from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversation.search_terms import extract_query_terms, extract_terms
from app.conversation.word_aliases import ALIAS_WEIGHT, FORM_WEIGHT, MAX_ALIASES, SearchTerm, find_aliases

WORDS = ["dad", "car", "buy", "bought", "give", "up", "three", "kid", "child", "emergency", "room"]


def aliases_of(question: str) -> dict[str, SearchTerm]:
    return find_aliases(question, extract_query_terms(question))


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        ("father", "dad"),
        ("dad", "father"),
        ("the ER", "emergency"),
        ("the emergency room", "ER"),
        ("a vehicle", "cars"),
        ("the apartment", "flat"),
        ("purchased", "bought"),
        ("a dog", "beagle"),
        ("the last name", "surname"),
        ("get up", "wake"),
        ("kg", "kilograms"),
        ("January", "Jan"),
    ],
)
def test_a_word_is_found_under_another_that_means_the_same(asked: str, written: str) -> None:
    assert extract_terms(written)[0] in aliases_of(asked)


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        ("buy", "bought"),
        ("children", "child"),
        ("decided", "decision"),
        ("weight", "weighs"),
        ("designed", "designer"),
        ("allergic", "allergy"),
        ("color", "colour"),
        ("three", "3"),
        ("25", "twenty-five"),
        ("the 3rd", "third"),
        ("1,000", "thousand"),
    ],
)
def test_a_word_is_found_in_forms_that_no_stem_joins(asked: str, written: str) -> None:
    assert extract_terms(written)[0] in aliases_of(asked)
    assert set(extract_query_terms(asked)) <= aliases_of(written).keys() | {"3", "rd"}


def test_kinds_of_one_thing_do_not_stand_for_each_other() -> None:
    assert "dog" in aliases_of("my beagle")
    assert "poodl" not in aliases_of("my beagle")


def test_another_form_counts_more_than_another_word() -> None:
    aliases = aliases_of("What did I buy?")
    assert aliases["bought"] == SearchTerm("buy", FORM_WEIGHT)
    assert aliases["purchas"] == SearchTerm("buy", ALIAS_WEIGHT)


def test_words_of_a_phrase_stand_for_nothing() -> None:
    assert "last" not in aliases_of("surname")
    assert not any(" " in alias or alias == "room" for alias in aliases_of("ER"))


def test_a_phrase_of_common_words_has_aliases() -> None:
    assert extract_query_terms("get up") == []
    assert aliases_of("When do I get up?")["wak"].stands_for == "get up"


def test_a_long_question_has_few_aliases() -> None:
    aliases = aliases_of(
        "dad job doctor car phone apartment movie dog cost trip illness buy start happy pet fruit sport"
    )
    assert len(aliases) == MAX_ALIASES
    assert "father" in aliases


@given(st.text() | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_aliases_are_bounded_and_never_the_questions_own_terms(question: str) -> None:
    own_terms = extract_query_terms(question)
    aliases = find_aliases(question, own_terms)
    assert len(aliases) <= MAX_ALIASES
    assert not aliases.keys() & set(own_terms)
    assert all(0 < alias.weight < 1 for alias in aliases.values())
