"""Whether the model sees a short fact of a long talk when it is asked for in other words than it was told in.

The user tells some forty facts about everyday life in a talk of about 13,000 tokens; the assistant acknowledges. Names,
places, things and numbers are made anew for each seed. Then each fact is asked for three times: with synonyms, in words
that are further off (kinds for names, turned sentences), and, for comparison, in the words that it was told in.
"""

from __future__ import annotations

import random
from argparse import ArgumentParser, Namespace
from typing import Any, Final

from rich.console import Console

from tests.benchmarks.quality.asking import add_talk_options, ask_about
from tests.benchmarks.quality.chatter import Chatter
from tests.benchmarks.quality.relations import Fact, make_facts
from tests.benchmarks.quality.talks import Evidence, Talk, TalkQuestion, find_passage
from tests.benchmarks.quality.texts import normalised, occurs
from tests.benchmarks.quality.vocabulary import Vocabulary

FACTS: Final = 40
TURNS: Final = 120
MENTION_SHARE: Final = 0.5
"""Of the relations, those whose subject comes up once more without the answer."""


def build_talk(seed: int, *, facts: int = FACTS, turns: int = TURNS) -> Talk:
    """Returns the talk of a seed."""
    draw = random.Random(seed)
    chatter = Chatter(draw)
    told = make_facts(draw, Vocabulary(draw), facts)
    sentences = [(fact.tell(draw), fact) for fact in told]
    places = draw.sample(range(turns), facts)
    by_place: dict[int, list[str]] = {}
    for place, (sentence, _) in zip(places, sentences, strict=True):
        by_place.setdefault(place, []).append(sentence)
    for fact in told:
        if draw.random() < MENTION_SHARE:
            by_place.setdefault(draw.randrange(turns), []).append(draw.choice(fact.relation.mentions))
    said = [_build_turn(draw, chatter, by_place.get(turn, [])) for turn in range(turns)]
    questions: list[TalkQuestion] = []
    for place, (sentence, fact) in zip(places, sentences, strict=True):
        evidence = build_evidence(fact, sentence, said, place)
        if evidence:
            near, far = fact.list_other_questions()
            questions.append(TalkQuestion(near, "synonyms", [evidence]))
            questions.append(TalkQuestion(far, "far", [evidence]))
            questions.append(TalkQuestion(fact.ask(draw), "same words", [evidence]))
    return Talk(f"paraphrases-{seed}", said, questions)


def build_evidence(fact: Fact, sentence: str, texts: list[str], place: int) -> Evidence | None:
    """Returns what shows that a fact is in a prompt; None if its answer stands elsewhere in the talk, too."""
    elsewhere = (normalised(text) for at, text in enumerate(texts) if at != place)
    if fact.is_unique and any(occurs(normalised(fact.answer), text) for text in elsewhere):
        return None
    turn = texts[place]
    start = turn.index(sentence)
    passage = find_passage(fact.answer, turn[start : start + len(sentence)])
    return Evidence(fact.answer, passage, fact.is_unique)


def _build_turn(draw: random.Random, chatter: Chatter, sentences: list[str]) -> str:
    before, after = chatter.make_paragraph(draw.randint(40, 350)), chatter.make_paragraph(draw.randint(0, 250))
    return " ".join(part for part in (before, *sentences, after) if part)


def add_options(parser: ArgumentParser) -> None:
    add_talk_options(parser)


async def run(options: Namespace, console: Console) -> dict[str, Any]:
    return await ask_about(build_talk, options, console)
