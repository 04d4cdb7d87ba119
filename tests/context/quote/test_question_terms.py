from __future__ import annotations

import pytest

from app.context.quote.question_terms import choose_answer_pattern


@pytest.mark.parametrize(
    ("question", "answer", "other"),
    [
        ("How old is my nephew?", "He turned six in May.", "He lives at number 6."),
        ("How long was the flight?", "It took a couple of hours.", "It was on 3 May."),
        ("How often do I swim?", "I swim twice a week.", "I swim in the lake."),
        ("How many guests were there?", "Two dozen came.", "Nobody stayed late."),
        ("How much was the lamp?", "It was forty bucks.", "It was 40 cm high."),
        ("What's the price of the lamp?", "It is 30 EUR.", "It is on page 30."),
        ("When did the lamp break?", "It broke last week.", "It broke in the hall."),
        ("So when did it break?", "Two months ago.", "I dropped it."),
        ("What is the deadline?", "It's due on Sept 4.", "It's due soon."),
        ("Why did it break?", "It broke because of the cat.", "It broke in the hall."),
        ("What colour is the lamp?", "We painted it green.", "We sold it."),
        ("Who broke the lamp?", "It was Ingrid.", "it was the cat."),
        ("Wann kommt der Zug?", "Er kommt um 17:40.", "Er kommt bald."),
        ("¿Cuánto cuesta la lámpara?", "Cuesta 30 EUR.", "Cuesta mucho."),
        ("Combien de chaises y a-t-il ?", "Il y a 14 chaises.", "Il y a des chaises."),
    ],
)
def test_an_answer_looks_like_what_is_asked_for(question: str, answer: str, other: str) -> None:
    pattern = choose_answer_pattern(question)
    assert pattern is not None
    assert pattern.search(answer)
    assert not pattern.search(other)


@pytest.mark.parametrize("question", ["What did Ann say when the bus came?", "Is the bus late?", "I like buses."])
def test_only_the_question_word_says_what_is_asked_for(question: str) -> None:
    assert choose_answer_pattern(question) is None
