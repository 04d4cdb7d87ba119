from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.quote.question_terms import extract_question_terms, is_request, merge_aliases
from app.conversation.search_terms import extract_query_terms
from app.conversation.word_aliases import SearchTerm


@pytest.mark.parametrize(
    "text",
    ["Where is it?", "Remind me where it is.", "ok, what was the code", "It rains. Can you tell me why", "你好吗？"],
)
def test_a_question_or_a_demand_is_a_request(text: str) -> None:
    assert is_request(text)


@pytest.mark.parametrize("text", ["I bought a car.", "That is what I meant.", "", "Thanks!"])
def test_a_statement_is_no_request(text: str) -> None:
    assert not is_request(text)


def test_a_question_is_searched_for_in_other_words_and_a_statement_in_its_own() -> None:
    assert extract_question_terms("Which car did I buy?")["vehicl"].stands_for == "car"
    assert list(extract_question_terms("I bought a car.")) == ["bought", "car"]


@pytest.mark.parametrize(
    "question", ["{}", "Could you tell me {}", "Do you recall {}", "Didn't I tell you? {}", "I told you earlier: {}"]
)
def test_words_about_the_asking_are_not_searched_for(question: str) -> None:
    asked = "which zebra was it?"
    assert list(extract_question_terms(question.format(asked))) == list(extract_question_terms(asked))


def test_several_aliases_of_one_word_count_once() -> None:
    terms = {
        "car": SearchTerm("car", 1.0),
        "auto": SearchTerm("car", 0.5),
        "volvo": SearchTerm("car", 0.5),
        "red": SearchTerm("red", 1.0),
    }
    assert merge_aliases({"auto": 4.0, "volvo": 6.0, "red": 1.0}, terms) == {"car": 3.0, "red": 1.0}
    assert merge_aliases({"auto": 4.0, "car": 5.0}, terms) == {"car": 5.0}


@given(st.text(max_size=500))
def test_a_question_keeps_its_own_terms(text: str) -> None:
    terms = extract_question_terms(text)
    own_terms = [term for term, counts in terms.items() if counts.weight == 1.0]
    assert set(own_terms) <= set(extract_query_terms(text))
    assert all(terms[term].stands_for == term for term in own_terms)
