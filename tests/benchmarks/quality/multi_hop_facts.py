"""Questions that need several turns: lists told one by one, and chains from a role to a person to what they do."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.benchmarks.quality.relations import fill_person
from tests.benchmarks.quality.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Hops:
    """A question and what is told for it: sentences of one speaker, each with the words that the answer needs.

    Attributes:
        beside: sentences on the same subject that the answer does not need.
    """

    question: str
    told: Sequence[tuple[str, str]]
    beside: Sequence[str] = ()


LISTS: Final[Sequence[tuple[str, str, Sequence[str]]]] = (
    (
        "Which books {has} {who} read?",
        "title",
        (
            'I read "{x}" in one go, what a book.',
            'My aunt lent me "{x}" and I finished it on the train.',
            '"{x}" is the best book I read this year.',
            'I gave up television and got through "{x}" in a week, all four hundred pages.',
        ),
    ),
    (
        "Which towns {has} {who} visited on trips?",
        "place",
        (
            "We took a trip to {x} and ate far too much fish.",
            "I visited {x} for two days, the old town is a maze.",
            "Back from {x}, my suitcase is still full of sand.",
            "On our way home we stopped in {x} and stayed for three nights.",
        ),
    ),
    (
        "What instruments or other things {has} {who} repaired in the workshop?",
        "thing",
        (
            "I spent the evening in the workshop and repaired the {x}.",
            "The {x} works again, I only had to glue one part.",
            "I fixed the {x}, it took a new screw and a lot of patience.",
            "My workshop smells of varnish because I repaired a {x}.",
        ),
    ),
    (
        "What dishes {has} {who} cooked for friends?",
        "dish",
        (
            "I had friends over and cooked {x}.",
            "My {x} was gone in five minutes, they even licked the spoons.",
            "For Friday I tried {x}, a friend brought the wine.",
            "Everybody wanted the recipe for my {x}.",
        ),
    ),
    (
        "Which people {has} {who} met at the evening class?",
        "name",
        (
            "At the evening class I met {x}, who restores old maps.",
            "I sat next to {x} on Thursday, she draws better than all of us.",
            "{x} from the class drove me home.",
            "There is somebody new in class, {x}, very funny.",
        ),
    ),
    (
        "Which films {has} {who} seen with the children?",
        "title",
        (
            'We watched the film "{x}" and the children hid behind the sofa.',
            'The little ones made me see "{x}" twice.',
            'Rainy afternoon, so I took the children to see "{x}".',
            'My boy quotes "{x}" all day since we saw it.',
        ),
    ),
    (
        "Where {has} {who} gone camping?",
        "place",
        (
            "We went camping near {x} and the tent leaked.",
            "I slept under the stars by {x}, there was not a soul around.",
            "Camping at {x} was cold but so quiet.",
            "We pitched the tent at {x} and a goat ate our bread.",
        ),
    ),
    (
        "What gifts did {who} get from colleagues?",
        "thing",
        (
            "My colleagues gave me a {x}, I did not know what to say.",
            "There was a {x} on my desk this morning, with a ribbon.",
            "From the whole department I got a {x} for my anniversary.",
            "They all chipped in and I am now the owner of a {x}.",
        ),
    ),
)
ROLES: Final = (
    ("My hairdresser is called {name}.", "{my} hairdresser"),
    ("{name} is the one who waters my plants when I am away.", "the person who waters {my} plants"),
    ("I carpool with {name} now.", "the person {who} carpool{s} with"),
    ("The godfather of my daughter is {name}.", "the godfather of {my} daughter"),
    ("I share my desk at work with {name}.", "the person {who} share{s} a desk with"),
    ("{name} is my tennis partner, we meet on Mondays.", "{my} tennis partner"),
    ("I bought my house from {name}.", "the person {who} bought the house from"),
    ("The man who sold me the goats is {name}.", "the man who sold {me} the goats"),
    ("{name} runs the book club that I go to.", "the person who runs {my} book club"),
    ("I babysit for {name} once a week.", "the person {who} babysit{s} for"),
)
ATTRIBUTES: Final = (
    ("place", "{name} moved to {x} last month.", "Where did {role} move to?"),
    ("place", "{name} comes from {x}, you can hear it.", "Where does {role} come from?"),
    ("thing", "{name} collects all kinds of things and showed me a {x}.", "What did {role} show {me}?"),
    ("dish", "{name} swears by {x} when it is cold outside.", "What does {role} swear by in cold weather?"),
    ("brand", "{name} works for {x} these days.", "Which company does {role} work for?"),
    ("amount", "{name} won {x} in the lottery, imagine!", "How much did {role} win in the lottery?"),
    ("title", '{name} wrote a book, it is called "{x}".', "What is the title of the book that {role} wrote?"),
    ("code", "I wrote down the number plate of {name}, it is {x}.", "What is the number plate of {role}?"),
    ("first", "{name} has a baby girl now, little {x}.", "What is the baby of {role} called?"),
    ("date", "{name} turns fifty on {x}.", "When does {role} turn fifty?"),
)
LIST_LENGTHS: Final = (2, 2, 3, 4)
OTHER_PEOPLE: Final = 3
"""Of whom the same is told as of the person that a chain is about."""
_ARTICLE: Final = re.compile(r"\b([Aa]) (?=[aeiou])")


def make_lists(draw: random.Random, words: Vocabulary, count: int, who: str) -> list[Hops]:
    """Returns questions for all of several things, of different subjects."""
    made = []
    for question, kind, told in draw.sample(LISTS, count):
        sentences = draw.sample(told, draw.choice(LIST_LENGTHS))
        answers = [words.make(kind) for _ in sentences]
        pairs = zip(sentences, answers, strict=True)
        made.append(Hops(fill_person(question, who), [(_insert(text, x=answer), answer) for text, answer in pairs]))
    return made


def make_chains(draw: random.Random, words: Vocabulary, count: int, who: str) -> list[Hops]:
    """Returns questions for what somebody does who is named only by a role; the name stands in another turn."""
    made = []
    chosen = zip(draw.sample(ROLES, count), draw.sample(ATTRIBUTES, count), strict=True)
    for (role_told, role), (kind, told, question) in chosen:
        name, answer = words.make("name"), words.make(kind)
        asked = fill_person(question.replace("{role}", role), who)
        role_sentence, sentence = role_told.format(name=name), _insert(told, name=name, x=answer)
        # A name occurs in both turns, so the first step needs its whole sentence.
        beside = [_insert(told, name=words.make("name"), x=words.make(kind)) for _ in range(OTHER_PEOPLE)]
        made.append(Hops(asked, [(role_sentence, role_sentence.rstrip(".")), (sentence, answer)], beside))
    return made


def _insert(text: str, **answers: str) -> str:
    return _ARTICLE.sub(lambda match: f"{match[1]}n ", text.format(**answers))
