"""What people tell of themselves, read from `relations.txt`, and facts made of it with fresh answers."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from tests.benchmarks.quality.vocabulary import UNTIED, Vocabulary

FILE: Final = Path(__file__).with_name("relations.txt")
MARKS: Final = {"+": "told", ">": "prompts", "-": "replies", "~": "mentions", "?": "asked", "o": "otherwise"}
_ARTICLE: Final = re.compile(r"\b([Aa]) (?=[aeiou])")


@dataclass(frozen=True, slots=True)
class Relation:
    """One thing that can be told of oneself; `relations.txt` explains the fields."""

    name: str
    kind: str
    told: list[str] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    mentions: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    otherwise: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Fact:
    """A relation with its answer in one talk.

    Attributes:
        who: whose it is; blank for the user, who says "I".
    """

    relation: Relation
    answer: str
    who: str = ""

    @property
    def is_unique(self) -> bool:
        """Whether the answer's words alone tell it from other facts."""
        return self.relation.kind not in UNTIED

    def tell(self, draw: random.Random) -> str:
        """Returns one sentence with the answer."""
        return _insert(draw.choice(self.relation.told), self.answer)

    def reply(self, draw: random.Random) -> str:
        """Returns what answers the prompt without its words."""
        return _insert(draw.choice(self.relation.replies), self.answer)

    def ask(self, draw: random.Random) -> str:
        """Returns a question in the words that the fact is told in."""
        return fill_person(draw.choice(self.relation.asked), self.who)

    def list_other_questions(self) -> list[str]:
        """Returns the questions in other words."""
        return [fill_person(text, self.who) for text in self.relation.otherwise]


@cache
def read_relations() -> Sequence[Relation]:
    """Returns all relations of the file."""
    found: list[Relation] = []
    for line in FILE.read_text().splitlines():
        mark, _, text = line.partition(" ")
        if mark == "=":
            name, _, kind = text.partition(" | ")
            found.append(Relation(name, kind))
        elif mark in MARKS and text:
            getattr(found[-1], MARKS[mark]).append(text.strip())
    return found


def make_facts(draw: random.Random, words: Vocabulary, count: int, who: str = "") -> list[Fact]:
    """Returns so many facts of different relations, at most all of them."""
    relations = read_relations()
    chosen = draw.sample(relations, min(count, len(relations)))
    return [Fact(relation, words.make(relation.kind), who) for relation in chosen]


def fill_person(text: str, who: str) -> str:
    """Returns a question about somebody, or about the user who asks it, if `who` is blank."""
    slots = (
        {"who": who, "do": "does", "has": "has", "is": "is", "was": "was", "my": f"{who}'s", "me": who, "s": "s"}
        if who
        else {"who": "I", "do": "do", "has": "have", "is": "am", "was": "was", "my": "my", "me": "me", "s": ""}
    )
    filled = text.format(**slots, es="es" if who else "")
    return filled[0].upper() + filled[1:]


def _insert(text: str, answer: str) -> str:
    filled = text.replace("{x}", answer)
    return _ARTICLE.sub(lambda match: f"{match[1]}n ", filled)
