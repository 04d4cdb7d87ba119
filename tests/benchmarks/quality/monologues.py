"""Whether the model sees short facts that stand in long monologues: a generated twin of the recorded chats of `facts`.

A user talks at length in 74 turns (about 11,000 tokens): paragraphs to a shop, long reflections about work, and notes
of a day. Fifty short facts stand in them, none to three to a turn, between opinions that have names, amounts and dates,
too; for some of them somebody else is quoted with the same and another answer. Names, places, things and numbers are
made anew for each seed. Each fact is then asked for, sometimes behind a few words of small talk: in the words of the
telling, in words that stand in the sentence before the answer, or with synonyms.
"""

from __future__ import annotations

import random
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from string import Formatter
from typing import Any, Final

from rich.console import Console

from tests.benchmarks.quality.asking import add_talk_options, ask_about
from tests.benchmarks.quality.chatter import Chatter
from tests.benchmarks.quality.paraphrases import build_evidence
from tests.benchmarks.quality.relations import Fact, make_facts
from tests.benchmarks.quality.talks import Talk, TalkQuestion
from tests.benchmarks.quality.vocabulary import WEEKDAYS, Vocabulary

FACTS: Final = 50
MANNERS: Final = (("shop", 46, (200, 480)), ("work", 18, (700, 1_300)), ("notes", 10, (60, 160)))
"""How the user talks, in how many turns, and how many characters there are beside the facts."""
MENTION_SHARE: Final = 0.4
OTHERS_SHARE: Final = 0.4
"""Of the facts, those that somebody else is quoted with, with another answer."""
SYNONYM_SHARE: Final = 0.1
"""Of the questions, those that are asked with synonyms."""
NEXT_SENTENCE_SHARE: Final = 0.3
"""Of the facts, those whose answer stands in the sentence after the one with the question's words."""
OPINIONS: Final = (
    "I have dealt with {brand} before and, to be honest, their service was slower than their advertising.",
    "What I look for is something that lasts, because I am tired of replacing things every other year.",
    "A friend of mine, {name}, swears by a cheaper model, but I am not convinced that it would survive our household.",
    "I read through the reviews for an hour and half of them seem to be written by people who never opened the box.",
    "If there is a way to speed this up, I would appreciate it, although I know that you only follow the rules.",
    "The last time I ordered something like this, it cost {amount} and arrived with a scratch on the side.",
    "Looking back, the whole thing taught me more about patience than about machines.",
    "It looks fine on the shelf, yet I keep wondering whether the other finish would have been the better choice.",
    "My better half thinks that I overthink these things, and there may be some truth in that.",
    "I would like to understand how the warranty works, since the leaflet contradicts the page on your site.",
    "The colleague I spoke to in {place} was friendly but could not find anything under my name.",
    "There is a certain satisfaction in getting the small things right before anybody notices them.",
    "Every quarter we tell ourselves that the next one will be quieter, and every quarter proves us wrong.",
    "The numbers looked impressive on paper, {amount} in the first week alone, but paper does not pay salaries.",
    "I told {name} that discipline beats brilliance over ten years, and he laughed as young people do.",
    "Negotiations are mostly waiting, and whoever is better at waiting gets the better deal.",
    "When {brand} entered the market, everybody panicked, and two years later nobody remembered why.",
    "People underestimate how much of this work is listening to what is not said.",
    "A good team forgives a bad plan, while a good plan has never yet forgiven a bad team.",
    "We had a long discussion about risk in {place}, with the usual graphs and the usual coffee.",
    "I have learned not to trust any forecast that comes with more than one decimal place.",
    "By {date} we should know whether it was worth it, and I am prepared for either answer.",
    "The committee wanted certainty, which is the one thing that I cannot sell.",
    "What keeps me going is the feeling that tomorrow something might finally fall into place.",
    "There was talk of moving the whole department, but {name} stopped it with a single question.",
    "I keep a list of mistakes in my drawer, and it is the most useful document I own.",
)
NOTES: Final = (
    "Printer out of order again.",
    "Send minutes to {name}.",
    "Lunch moved to the small room.",
    "Budget talk went on for too long.",
    "Call back {brand} about the offer.",
    "Order more paper and folders.",
    "Reminder: time sheets.",
    "Nobody answered the mail from {place}.",
    "Check the draft once more before it goes out.",
    "Parking lot closed in the afternoon.",
)
LEADS: Final = (
    "",
    "",
    "",
    "By the way, this may matter: ",
    "I should also mention one thing. ",
    "Just so that you know: ",
    "I may have told you this before. ",
    "On another note: ",
)
OTHERS: Final = (
    '{name} told me something funny: "{sentence}"',
    'You know what {name} said? "{sentence}"',
    'Then {name} went on and on. "{sentence}" I did not even ask.',
)
ASKED_BACK: Final = (
    'People keep asking me: "{prompt}" {reply}',
    'My aunt rang only to ask: "{prompt}" {reply}',
    'And then this question again, "{prompt}" {reply}',
)
ASKED_BEHIND: Final = (
    "{question}",
    "{question}",
    "I forget this all the time. {question}",
    "Wait a minute. {question}",
    "I am filling in a form and need to know this. {question}",
    "Somebody just asked me and I went blank. {question}",
    "Remind me, please. {question}",
)


def build_talk(seed: int, *, facts: int = FACTS, manners: Sequence[tuple[str, int, tuple[int, int]]] = MANNERS) -> Talk:
    """Returns the talk of a seed."""
    draw = random.Random(seed)
    words, chatter = Vocabulary(draw), Chatter(draw)
    told = make_facts(draw, words, facts)
    tellings = [_tell(draw, fact) for fact in told]
    manner_of = [(manner, chars) for manner, count, chars in manners for _ in range(count)]
    draw.shuffle(manner_of)
    places = [draw.randrange(len(manner_of)) for _ in told]
    by_turn: list[list[str]] = [[] for _ in manner_of]
    for place, (_, sentence) in zip(places, tellings, strict=True):
        by_turn[place].append(sentence)
    for fact in told:
        if draw.random() < MENTION_SHARE:
            draw.choice(by_turn).append(draw.choice(fact.relation.mentions))
        if draw.random() < OTHERS_SHARE:
            other = Fact(fact.relation, words.make(fact.relation.kind)).tell(draw)
            draw.choice(by_turn).append(draw.choice(OTHERS).format(name=words.make("first"), sentence=other))
    said = [
        _build_turn(draw, words, chatter, manner, draw.randint(*chars), inside)
        for (manner, chars), inside in zip(manner_of, by_turn, strict=True)
    ]
    questions = []
    for place, (kind, sentence), fact in zip(places, tellings, told, strict=True):
        asked = fact.list_other_questions()[0] if kind == "synonyms" else fact.ask(draw)
        evidence = build_evidence(fact, sentence, said, place)
        if evidence:
            questions.append(TalkQuestion(draw.choice(ASKED_BEHIND).format(question=asked), kind, [evidence]))
    return Talk(f"monologues-{seed}", said, questions)


def _tell(draw: random.Random, fact: Fact) -> tuple[str, str]:
    """Returns how a fact is asked for, and what tells it."""
    if draw.random() < NEXT_SENTENCE_SHARE:
        prompt = draw.choice(fact.relation.prompts)
        return "next sentence", draw.choice(ASKED_BACK).format(prompt=prompt, reply=fact.reply(draw))
    return "synonyms" if draw.random() < SYNONYM_SHARE else "same words", fact.tell(draw)


def _build_turn(
    draw: random.Random, words: Vocabulary, chatter: Chatter, manner: str, chars: int, inside: Sequence[str]
) -> str:
    """Returns a turn: filling of so many characters with the sentences strewn in."""
    filling: list[str] = []
    while sum(map(len, filling)) < chars:
        if manner == "notes":
            filling.append(_fill(draw.choice(NOTES), words))
        else:
            filling.append(_fill(draw.choice(OPINIONS), words) if draw.random() < 0.7 else chatter.make_line())
    filling = list(dict.fromkeys(filling))
    for sentence in inside:
        lead = "" if manner == "notes" else draw.choice(LEADS)
        filling.insert(draw.randint(0, len(filling)), f"{lead}{sentence}")
    text = " ".join(filling)
    return f"{draw.choice(WEEKDAYS)}: {text}" if manner == "notes" else text


def _fill(template: str, words: Vocabulary) -> str:
    return template.format(**{kind: words.make(kind) for _, kind, _, _ in Formatter().parse(template) if kind})


def add_options(parser: ArgumentParser) -> None:
    add_talk_options(parser)


async def run(options: Namespace, console: Console) -> dict[str, Any]:
    return await ask_about(build_talk, options, console)
