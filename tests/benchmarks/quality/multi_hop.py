"""Whether the model sees everything that a question about a dialogue needs, where that stands in two or three turns.

Dialogues as in `dialogues`, with more lists ("Which books has Ann read?"), chains (who is meant stands in one turn,
what is asked in another) and pairs of questions in one. A question counts only if all its evidence is in the prompt;
`steps` is the mean share of the evidence that is.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any, Final

from rich.console import Console

from tests.benchmarks.quality.asking import add_talk_options, ask_about
from tests.benchmarks.quality.dialogue_talk import Mix, build_dialogue
from tests.benchmarks.quality.talks import Talk

MIX: Final = Mix(facts=16, events=2, lists=7, chains=8, pairs=4)
KINDS: Final = ("list", "chain", "pair")


def build_talk(seed: int) -> Talk:
    """Returns the dialogue of a seed with the questions that need several turns."""
    talk = build_dialogue(seed, MIX)
    asked = [question for question in talk.questions if question.kind in KINDS]
    return Talk(talk.name, talk.said, asked, talk.replies)


def add_options(parser: ArgumentParser) -> None:
    add_talk_options(parser)


async def run(options: Namespace, console: Console) -> dict[str, Any]:
    return await ask_about(build_talk, options, console, shows_steps=True)
