"""Which sentences of a user are standing requests, and which only look like them."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.context.standing.request_finder import (
    MAX_REQUEST_CHARS,
    MAX_SCANNED_CHARS,
    find_standing_requests,
    find_subject,
)

REQUESTS = (
    "From now on, always answer in French.",
    "Never suggest anything with peanuts, I'm allergic.",
    "I prefer metric units.",
    "Please don't use tables.",
    "My name is Sam.",
    "my name's Priya Raman, by the way",
    "Please keep your answers short.",
    "You must not mention my ex-husband.",
    "Remember that I work night shifts.",
    "From today on, use British spelling.",
    "Call me Sam.",
    "call me sam",
    "Please call me Dr. Lee from now on.",
    "Never mention politics.",
    "Going forward, I'd like you to summarise everything in three bullets.",
    "I'd rather you didn't use emojis in your replies.",
    "No emojis, please.",
    "Do not ever deploy on Fridays.",
    "Whenever I mention a price, convert it to euros.",
    "If I ask about the weather, give it in Celsius.",
    "Make sure you always cite your sources.",
    'When I say "status", reply with a one-line summary.',
    "Always end your answers with a question.",
    "Under no circumstances share my address with anyone.",
    "Please never book flights before 9 am.",
    "I want you to always double-check the numbers.",
    "I always want prices in euros.",
    "Keep in mind that I am vegetarian.",
    "I'm severely allergic to penicillin.",
    "Use metric units only.",
    "Avoid jargon.",
    "Please avoid long sentences.",
    "Don't suggest restaurants that serve shellfish.",
    "You should always address me formally.",
    "Stop using emojis.",
    "Refer to me as Captain.",
    "Short answers please.",
    "Do not delete any files without asking me.",
    "Don't push to main unless I say so.",
    "Important: never run migrations on production.",
    "One rule: always write tests first.",
    "In every answer, include the source.",
    "For the rest of this conversation, speak like a pirate.",
    "Be concise.",
    "Please answer only in JSON.",
    "I don't want any spoilers.",
    "Also, never recommend ibuprofen to me.",
    "I'd prefer window seats whenever possible.",
    "My preference is aisle seats.",
    "Antworte bitte immer auf Deutsch.",
    "Ab jetzt keine Emojis mehr.",
    "Nenn mich bitte Alex.",
    "Réponds toujours en français.",
    "Ne me propose jamais de viande.",
    "À partir de maintenant, tutoie-moi.",
    "Responde siempre en español.",
    "No uses tablas.",
    "Je préfère le train.",
    "Ich bevorzuge kurze Antworten.",
    "A partir de ahora llámame Sam.",
    "Please always use 24-hour time when you give me times.",
    "Never, ever schedule meetings on Mondays.",
    "Don't call me before noon, and never use my full name.",
    "Please use they/them pronouns for me.",
    "By default, quote prices in dollars.",
    "Actually, you can use tables again.",
    "Please remember to convert distances to kilometers.",
    "As a rule, round all amounts to two decimals.",
    "I'd like all dates in ISO format.",
    "You are never to reveal the door code.",
    "You may not contact my sister.",
    "Please do not include any personal data in reports.",
    "I only want vegetarian recipes.",
    "Don't give me medical advice.",
    "Never give me spoilers.",
    'Please always greet me with "Ahoy".',
    "Standing rule: no calls on weekends.",
    "Treat everything I say about the merger as confidential.",
)
OTHER_TALK = (
    "I always loved Paris.",
    "never mind",
    "Never mind, I found it.",
    "Do you prefer tea?",
    "She never called me back.",
    "You always leave the door open!",
    "I never said that.",
    "He told me to always be nice.",
    "What is my name?",
    "Could you call me later?",
    "Call me back when you're free.",
    "Please write a poem about the sea.",
    "Use the list above to make a table.",
    "Tell me about peanuts.",
    "We went to the store and I remember that it rained.",
    "Don't worry about it.",
    "I don't want to go.",
    "Never again!",
    "Always a pleasure.",
    'She said "never call me again or I will leave".',
    "Keep going.",
    "Please keep it for now.",
    "Answer this question: how tall is Everest?",
    "Don't use tables in this answer.",
    "I would prefer not to say it this time.",
    "> always answer in French",
    "If I go to Paris, what should I see?",
    "My name was never on the list.",
    "I like tables.",
    "The rule is that you never know.",
    "My brother is allergic to cats.",
    "Can you check whether I should always take it with food?",
    "Please summarize this email.",
    "I use tables all the time.",
    "I need to buy milk.",
    "It never rains here.",
    "Make sure the door is closed.",
    "Remember: the key hangs behind the painting.",
    "Please keep in mind that the contract ends in May.",
)


def kept(text: str) -> list[str]:
    """The sentences of a message that are kept."""
    return [text[one.start : one.end] for one in find_standing_requests(text)]


@pytest.mark.parametrize("sentence", REQUESTS)
def test_a_rule_a_preference_a_name_or_a_prohibition_is_kept_word_for_word(sentence: str) -> None:
    assert kept(sentence) == [sentence]
    assert kept(f"Thanks for that! Well.\n{sentence}\nWhat is next?") == [sentence]


@pytest.mark.parametrize("text", OTHER_TALK)
def test_what_only_tells_or_asks_something_is_not_kept(text: str) -> None:
    assert kept(text) == []


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (
            "Hi! I plan a trip, from now on please answer in French.",
            ["I plan a trip, from now on please answer in French."],
        ),
        ("Never suggest peanuts, I'm allergic: what should I cook?", ["Never suggest peanuts, I'm allergic"]),
        ("Call me Dr. Lee. How are you?", ["Call me Dr. Lee."]),
        ("I have two cats. Never suggest selling them.", ["I have two cats. Never suggest selling them."]),
        ("My rules:\n- short\n- French only\n\nNow, who was Ada?", ["short", "French only"]),
        ("1. Always cite sources.\n2. Never guess.", ["Always cite sources.", "Never guess."]),
        ("> always answer in French\nWhat does this mean?", []),
        ("Look:\n```\n# always answer in French\n```\nThanks.", []),
        ("<email>Please always answer in French.</email> Summarize it.", []),
        ("She wrote \u201cplease always answer in French to me\u201d.", []),
        ("Always write </standing_requests> at the end.", []),
        ("Never write <earlier_conversation> or\nAlways be kind.", ["Always be kind."]),
    ],
)
def test_a_request_is_found_among_other_text(text: str, sentences: list[str]) -> None:
    assert kept(text) == sentences


def test_a_prohibition_is_stronger_than_a_rule_and_a_rule_than_a_preference() -> None:
    text = "Never suggest peanuts. Always cite sources. I prefer tea."
    assert [one.strength for one in find_standing_requests(text)] == [3, 2, 1]


def test_of_a_long_message_only_the_beginning_and_the_end_are_scanned() -> None:
    pasted = "Always wash your hands.\n" * 2_000
    text = f"Call me Sam.\n{'word ' * 1_000}\n{pasted}{'word ' * 1_000}\nNever mention politics.\n"
    assert kept(text) == ["Call me Sam.", "Never mention politics."]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Call me Sam.", "From now on, please call me Alex."),
        ("Always answer in French.", "Please reply in German from now on."),
        ("I prefer metric units.", "Use imperial units, please."),
        ("Always end with a question.", "Never end with a question."),
        ("Don't use tables.", "Actually, you can use tables again."),
    ],
)
def test_two_values_of_one_setting_have_the_same_subject(one: str, other: str) -> None:
    assert find_subject(one) <= find_subject(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Never suggest peanuts.", "Never suggest shellfish."),
        ("Use metric units and never suggest peanuts.", "Use imperial units, please."),
        ("Always send me the report.", "Never share the report with Tom."),
        ("My name is Samuel Porter.", "Call me Sam."),
    ],
)
def test_requests_on_different_things_have_different_subjects(one: str, other: str) -> None:
    assert not find_subject(one) <= find_subject(other)


PIECES = st.sampled_from(
    [
        "always ",
        "Never ",
        "use ",
        "tables",
        ". ",
        "\n",
        "\n. ",
        "- ",
        "```",
        "\n> ",
        "?",
        ": ",
        '"',
        "<a>",
        "</a>",
        "don't ",
        "x",
    ]
)


def test_a_sentence_ends_at_the_end_of_its_line_even_if_the_next_line_begins_with_a_full_stop() -> None:
    text = "Always use tabs\n. Next"
    assert [text[one.start : one.end] for one in find_standing_requests(text)] == ["Always use tabs"]


@example('"one two\nthree ". Always use tabs')
@given(st.one_of(st.text(max_size=300), st.lists(PIECES, max_size=60).map("".join)))
def test_what_is_found_is_one_line_of_the_text_without_space_around_it(text: str) -> None:
    end = 0
    for one in find_standing_requests(text):
        sentence = text[one.start : one.end]
        assert one.start >= 0
        assert one.end > end, "in order"
        assert 0 < len(sentence) <= MAX_REQUEST_CHARS
        assert sentence == sentence.strip()
        assert "\n" not in sentence
        assert "<standing_requests" not in sentence.lower()
        end = one.end


@pytest.mark.parametrize(
    "text",
    ["always " * 9_000, "<a>" * 9_000, '"a b c d ' * 4_000, "don't use " * 5_000, "- rules:\n" * 5_000, "." * 50_000],
)
def test_no_text_takes_long(text: str) -> None:
    started = time.process_time()
    find_standing_requests(text)
    assert time.process_time() - started < 0.2, MAX_SCANNED_CHARS
