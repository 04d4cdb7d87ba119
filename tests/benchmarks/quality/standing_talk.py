"""Makes talks in which the user sets rules, changes some of them, and says much that only looks like a rule.

Rules stand at the top (the first three turns) or in the middle of a talk of about 13,000 tokens, alone, within a
paragraph or as lines of a list. Each has a word that is made anew for the seed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Final

from tests.benchmarks.quality.chatter import LINES, Chatter
from tests.benchmarks.quality.talks import ACKNOWLEDGED, Talk, TalkQuestion
from tests.benchmarks.quality.vocabulary import FLAVOURS, Vocabulary

TURNS: Final = 120
TOP_TURNS: Final = 3
MIDDLE: Final = (0.42, 0.58)
"""Shares of the turns between which the middle lies."""
CHANGES: Final = 3
DISTRACTORS: Final = 9
RULES: Final[Mapping[str, Sequence[str]]] = {
    "safety": (
        "I am allergic to {flavour}, so never put it into anything you suggest.",
        "Always warn me before a step that deletes something in {brand}.",
        "You must not give the code {code} to anybody.",
        "Never tell anyone that I live in {street}.",
        "Always ask me before you send money to {name}.",
        "If I mention chest pain, always tell me to ring Doctor {name} first.",
    ),
    "format": (
        "From now on end every answer with the word {first}.",
        "Please keep your answers below {number} words.",
        "Always give me prices in {brand} points.",
        "Every list should be sorted by price and start with {brand}.",
        "Always put the date and the place {place} at the top of a letter.",
        "Use bullet points instead of tables whenever you write about {brand}.",
    ),
    "language": (
        "Always answer me in {tongue}, even if I write in English.",
        "From now on, write to {name} in {tongue} only.",
        "Letters to {place} must always be in {tongue}.",
        "Please use {tongue} for everything that concerns {brand}.",
        "From today on, I want short {tongue} words with a translation in brackets.",
    ),
    "names": (
        "Call me {first}, please.",
        "My name is {first}, and I want to be greeted with it.",
        "From now on, call my company {brand}.",
        "Please refer to my wife as {first}.",
        "When you write about the boat, always call it the {first}.",
    ),
    "preferences": (
        "I prefer the train to the plane when I go to {place}.",
        "I prefer metric units, except for {brand}.",
        "I would rather have recipes with {flavour} than with meat.",
        "For hotels in {place}, I prefer a room to the yard.",
        "I always want the aisle seat on the way to {place}.",
        "Remember that I prefer {name} to any other dentist.",
    ),
    "prohibitions": (
        "Don't mention {name} when you write to my mother.",
        "Never suggest a restaurant in {place}.",
        "Do not use emojis in anything about {brand}.",
        "Stop recommending {brand} to me.",
        "Please don't ever book anything before {time} in the morning.",
        "You must never quote from {title}.",
    ),
}
"""Rules by their kind."""
CHANGED_RULES: Final = (
    ("Please call me {first}.", "Actually, call me {other} from now on."),
    ("Always answer in {tongue}.", "From now on, always answer in {other} instead."),
    ("Keep your answers below {number} words.", "You can write more now, keep your answers below {other} words."),
    ("I prefer hotels in {place}.", "I have changed my mind, I prefer hotels in {other} now."),
    ("Always sign my letters with {name}.", "Please always sign my letters with {other} from today on."),
    ("Never book anything with {brand}.", "You may book with {brand} again, never mind what I said."),
)
"""A rule and the one that replaces it."""
SUBJECTS: Final = {
    "Call me {first}, please.": "my name",
    "My name is {first}, and I want to be greeted with it.": "my name",
    "Please call me {first}.": "my name",
    "Always answer me in {tongue}, even if I write in English.": "answers' language",
    "Always answer in {tongue}.": "answers' language",
    "Please keep your answers below {number} words.": "answers' length",
    "Keep your answers below {number} words.": "answers' length",
    "For hotels in {place}, I prefer a room to the yard.": "hotels",
    "I prefer hotels in {place}.": "hotels",
    "Please don't ever book anything before {time} in the morning.": "booking",
    "Never book anything with {brand}.": "booking",
}
"""What templates are about that may stand for each other; a talk has one of each subject."""
LOOKALIKES: Final = (
    "I always loved {place} in the rain.",
    "Never mind what {name} said.",
    "Do you prefer tea or something from {brand}?",
    "My uncle never went to {place} again.",
    "{name} always calls me when I am in the bath.",
    "We never found out who had paid for {title}.",
    "From now on it is downhill, said {name} on the pass.",
    "They call me at the oddest times from {place}.",
    "She prefers {place} to the mountains, that is all I know.",
    "I must have left it in {place}, as always.",
    "I have never been to {place}, have you?",
    "You should never have seen {name} dance, it was terrible.",
    "Don't you think that {name} looks tired?",
    "Why does {brand} always send two letters?",
)
"""What the user says that looks like a rule and is none."""
QUOTED: Final = (
    "My boss wrote to everybody:\n> Always copy {name} on your mails.",
    "On the door of the shop it said:\n> Never park in front of {brand}.",
    "The mail goes like this:\n> From now on call us before you come to {place}.",
    "This is what is in the file:\n```\nalways run {brand} first and never skip it\n```",
)
"""Rules of others, in quotations and in code; the rule is the last line but for the end of the code."""
ANSWERED: Final = (
    "Fine. One should always keep a copy in {place}, as people say.",
    "Noted. I never forget a thing about {brand}.",
    "All right. From now on I prefer {place}, too.",
)
"""Replies of the assistant that look like rules."""
CLOSING: Final = (
    "So, could you help me plan something nice for tomorrow?",
    "What would you cook if you were me?",
    "Can you write a short message that thanks an old friend?",
)


@dataclass(frozen=True, slots=True)
class Rule:
    """A sentence that sets a rule.

    Attributes:
        place: `top` or `middle`.
        replaced_by: the sentence of the newer rule; blank if the rule still holds.
    """

    sentence: str
    kind: str
    place: str
    replaced_by: str = ""


@dataclass(frozen=True, slots=True)
class StandingTalk:
    """A talk and what is looked for at its end.

    Attributes:
        rules: those that hold at the end.
        replaced: those that do not.
        distractors: sentences that are no rules.
    """

    talk: Talk
    rules: Sequence[Rule]
    replaced: Sequence[Rule]
    distractors: Sequence[str]


def build_standing_talk(seed: int, *, turns: int = TURNS) -> StandingTalk:
    """Returns the talk of a seed."""
    draw = random.Random(seed)
    words = Vocabulary(draw)
    chatter = Chatter(draw, [line for line in LINES if "never" not in line])
    changed = draw.sample(CHANGED_RULES, CHANGES)
    replaced, newer = _fill_changes(words, changed)
    rules = _draw_rules(draw, words, {SUBJECTS.get(before, before) for before, _ in changed})
    templates = [*draw.sample(LOOKALIKES, DISTRACTORS - 2), *draw.sample(QUOTED, 2)]
    distractors = [_fill(template, draw, words) for template in templates]
    answered = [_fill(template, draw, words) for template in ANSWERED]
    said = [chatter.make_paragraph(draw.randint(150, 550)) for _ in range(turns)]
    replies = [ACKNOWLEDGED] * turns
    middle = range(round(turns * MIDDLE[0]), round(turns * MIDDLE[1]))
    top = [rule.sentence for rule in (*rules, *replaced) if rule.place == "top"]
    _insert_at_top(draw, said, top)
    for sentence in (*(rule.sentence for rule in (*rules, *newer) if rule.place == "middle"),):
        _insert(draw, said, draw.choice(middle), sentence)
    for sentence in distractors:
        _insert(draw, said, draw.choice((*range(TOP_TURNS), *middle)), sentence)
    for turn, sentence in zip(draw.sample(middle, len(answered)), answered, strict=True):
        replies[turn] = sentence
    questions = [TalkQuestion(text, "closing", ()) for text in CLOSING]
    talk = Talk(f"standing-{seed}", said, questions, replies)
    cores = [one.removesuffix("\n```").rpartition("\n")[2].lstrip("> ") for one in (*distractors, *answered)]
    return StandingTalk(talk, [*rules, *newer], replaced, cores)


def _draw_rules(draw: random.Random, words: Vocabulary, subjects: set[str]) -> list[Rule]:
    """Two rules of each kind, one for the top and one for the middle, of other subjects than those given."""
    rules = []
    taken = set(subjects)
    for kind, templates in RULES.items():
        for place in ("top", "middle"):
            left = [one for one in templates if SUBJECTS.get(one, one) not in taken]
            template = draw.choice(left)
            taken.add(SUBJECTS.get(template, template))
            rules.append(Rule(_fill(template, draw, words), kind, place))
    return rules


def _fill_changes(words: Vocabulary, changed: Sequence[tuple[str, str]]) -> tuple[list[Rule], list[Rule]]:
    """Rules of the top and those of the middle that replace them."""
    replaced, newer = [], []
    for before, after in changed:
        kind = next(name for _, name, _, _ in Formatter().parse(before) if name)
        one, other = words.make(kind), words.make(kind)
        while other == one:
            other = words.make(kind)
        sentence = after.format(**{kind: one, "other": other})
        replaced.append(Rule(before.format(**{kind: one}), "replaced", "top", sentence))
        newer.append(Rule(sentence, "newer", "middle"))
    return replaced, newer


def _fill(template: str, draw: random.Random, words: Vocabulary) -> str:
    kinds = [name for _, name, _, _ in Formatter().parse(template) if name]
    return template.format(**{kind: draw.choice(FLAVOURS) if kind == "flavour" else words.make(kind) for kind in kinds})


def _insert_at_top(draw: random.Random, said: list[str], sentences: list[str]) -> None:
    """Puts sentences into the first turns: as a list in one of them, or one by one."""
    draw.shuffle(sentences)
    listed = sentences[: len(sentences) // 2] if draw.random() < 0.5 else []
    if listed:
        lines = "\n".join(f"- {sentence}" for sentence in listed)
        said[0] = f"{said[0]}\n\nA few things first:\n{lines}"
    for sentence in sentences[len(listed) :]:
        _insert(draw, said, draw.randrange(1 if listed else 0, TOP_TURNS), sentence)


def _insert(draw: random.Random, said: list[str], turn: int, sentence: str) -> None:
    """Puts a sentence at the beginning, the end or somewhere within a turn; one of several lines gets its own."""
    if "\n" in sentence:
        said[turn] = f"{said[turn]}\n\n{sentence}\n"
        return
    if "\n" in said[turn]:
        said[turn] = f"{sentence} {said[turn]}"
        return
    pieces = said[turn].split(". ")
    at = draw.randint(0, len(pieces))
    if at in {0, len(pieces)}:
        said[turn] = f"{sentence} {said[turn]}" if at == 0 else f"{said[turn]} {sentence}"
        return
    said[turn] = f"{'. '.join(pieces[:at])}. {sentence} {'. '.join(pieces[at:])}"
