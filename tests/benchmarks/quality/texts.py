"""What a request says in all, and made-up prose whose names and numbers are never the same twice."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

NORMALISED_TEXTS: Final = 4_096
"""How many texts are remembered with their words: each question is looked for in the same turns."""
_NOT_WORDS: Final = re.compile(r"[^\w.$%@/&+]+|\.(?=\s|$)")

PEOPLE: Final = (
    "Amara Okafor",
    "Jonas Lindqvist",
    "Mei Tanaka",
    "Rafael Duarte",
    "Sana Qureshi",
    "Piotr Zielinski",
    "Hannah Doyle",
    "Luca Marchetti",
    "Nadia Haddad",
    "Owen Pritchard",
    "Keiko Mori",
    "Tomas Novak",
)
THINGS: Final = (
    "the payment export",
    "the search index",
    "the onboarding form",
    "the nightly import",
    "the invoice archive",
    "the customer portal",
    "the mobile build",
    "the reporting job",
    "the access review",
    "the warehouse feed",
    "the mail relay",
    "the staging cluster",
)
PLACES: Final = ("Leeds", "Porto", "Gdansk", "Lyon", "Aarhus", "Bergen", "Graz", "Ghent", "Turku", "Split")
SENTENCES: Final = (
    "{person} said that {thing} has to be looked at again before the {day}th, because ticket {ticket} is still open.",
    "We moved {thing} to host {host} and it has been running there for {number} days without anybody noticing.",
    "The supplier in {place} charged {amount} EUR for it, which is a little more than what we had agreed on.",
    "After the last change {thing} needs about {number} minutes, and most of that is spent waiting for a lock.",
    "I checked the log under {path} and found the same warning {number} times within a single afternoon.",
    "As far as I remember, {person} wanted to keep the old behaviour until the people in {place} have been asked.",
    "It would help to know whether {thing} can be switched off for an hour without stopping the rest.",
    "The order {ticket} was confirmed by {person}, who also asked for a copy to be sent to the office in {place}.",
    "If nothing else comes up, we go ahead with version {version} and have a look at the figures on the {day}th.",
    "There are {number} records left over that belong to nobody, and I would rather not delete them by hand.",
    "In the meeting we agreed that {thing} stays as it is, although {person} would have liked it to be simpler.",
    "The limit was raised to {amount} EUR a month, since the earlier one was reached in the second week.",
    "Somebody changed the setting in {path}, and that explains why {thing} behaved differently in {place}.",
    "My impression is that this is less about {thing} than about how the two teams talk to each other.",
    "Please keep in mind that the contract {ticket} ends in {number} weeks and has to be renewed in writing.",
    "The second attempt failed with code {code}, and the third went through without anything being changed.",
)


class Prose:
    """Made-up English of a working day; the same seed gives the same text."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def of(self, chars: int) -> str:
        """Sentences of about so many characters; the last one ends where it ends."""
        written: list[str] = []
        size = 0
        while size < chars:
            written.append(self.sentence())
            size += len(written[-1]) + 1
        return " ".join(written)

    def sentence(self) -> str:
        return self._draw.choice(SENTENCES).format(
            person=self._draw.choice(PEOPLE),
            thing=self._draw.choice(THINGS),
            place=self._draw.choice(PLACES),
            day=self._draw.randint(4, 20),
            number=self._draw.randint(3, 980),
            amount=f"{self._draw.randint(200, 98_000):,}",
            ticket=f"{self._draw.choice(('OPS', 'PO', 'CR', 'INV'))}-{self._draw.randint(1_000, 99_999)}",
            host=f"{self._draw.choice(('app', 'db', 'edge'))}-{self._draw.randint(1, 99):02d}",
            path=f"/srv/{self._draw.choice(('jobs', 'etc', 'var', 'share'))}/{self._draw.randint(100, 999)}.log",
            version=f"{self._draw.randint(1, 9)}.{self._draw.randint(0, 40)}.{self._draw.randint(0, 9)}",
            code=self._draw.randint(11, 255),
        )


def text_of(content: object) -> str:
    """The text of a message's content: a string, or its text parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in content if isinstance(part, dict))


def all_text(messages: Iterable[Mapping[str, Any]]) -> str:
    """Everything that messages say, names and arguments of tool calls included."""
    said: list[str] = []
    for message in messages:
        said.append(text_of(message.get("content")))
        for call in message.get("tool_calls") or ():
            called = call.get("function") or {}
            said += (str(called.get("name", "")), str(called.get("arguments", "")))
    return "\n".join(said)


@lru_cache(maxsize=NORMALISED_TEXTS)
def normalised(text: str) -> str:
    """Lower case, words apart by one space, punctuation between them left out: ``long-term`` is ``long term``."""
    return " ".join(_NOT_WORDS.sub(" ", text.lower()).split())


def occurs(words: str, text: str) -> bool:
    """Whether normalised words occur as whole words in a normalised text."""
    return words in text and re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) is not None


def serialized(messages: Sequence[Mapping[str, Any]], dumps: Any) -> str:
    """Messages as one string of which a longer history's is a continuation."""
    return "".join(dumps(message).decode() + "\n" for message in messages)
