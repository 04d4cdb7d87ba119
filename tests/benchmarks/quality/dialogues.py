"""Whether the model sees the answer to a question about a dialogue of two named speakers over many dated sessions.

`dialogue_talk` tells how the dialogues are made: 340 to 560 short turns, about 15,000 tokens, names and facts anew for
each seed. For most questions the answer stands in one turn; the words of the question may stand in the turn before or
after it. A temporal question is answered if what happened is in the prompt with its date before it. `--data FOLDER`
names a folder with FriendsQA (`friends_dev.json`): scenes of a series, joined to dialogues of about 10,000 tokens, with
questions that people asked about them.
"""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from tests.benchmarks.quality.asking import add_talk_options, ask_about
from tests.benchmarks.quality.dialogue_talk import build_dialogue
from tests.benchmarks.quality.talks import Evidence, Talk, TalkQuestion

SCENES_PER_TALK: Final = 30
FRIENDS: Final = "friends_dev.json"


def read_friends(folder: Path) -> list[Talk]:
    """Returns dialogues of FriendsQA, with the questions whose answer is text of one turn."""
    scenes = json.loads((folder / FRIENDS).read_text())["data"]
    return [
        _join_scenes(f"friends-{first}", scenes[first : first + SCENES_PER_TALK])
        for first in range(0, len(scenes), SCENES_PER_TALK)
    ]


def _join_scenes(name: str, scenes: list[dict[str, Any]]) -> Talk:
    texts: list[str] = []
    questions: list[TalkQuestion] = []
    for scene in scenes:
        for paragraph in scene["paragraphs"]:
            first = len(texts)
            texts += (f"{_name_speakers(one)}: {_tidy(one['utterance'])}" for one in paragraph["utterances:"])
            questions += _read_questions(paragraph["qas"], texts, first)
    if len(texts) % 2:
        texts.append("(End of the scene.)")
    return Talk(name, texts[::2], questions, texts[1::2])


def _read_questions(asked: list[dict[str, Any]], texts: list[str], first: int) -> Iterator[TalkQuestion]:
    for one in asked:
        answers = [answer for answer in one["answers"] if not answer["is_speaker"]]
        for answer in answers[:1]:
            words, turn = _tidy(answer["answer_text"]).strip(" .,!?"), first + int(answer["utterance_id"])
            if words and words in texts[turn]:
                # The whole turn, because short answers occur in many of them.
                evidence = Evidence(words, _cut_around(words, texts[turn]), is_unique=False)
                yield TalkQuestion(one["question"], "question", [evidence])


def _cut_around(words: str, turn: str) -> str:
    at = turn.index(words)
    start = turn.rfind(" ", 0, max(0, at - 25)) + 1
    end = turn.find(" ", at + len(words) + 25)
    return turn[start : end if end > 0 else len(turn)]


def _name_speakers(utterance: dict[str, Any]) -> str:
    return " and ".join(speaker.split()[0] for speaker in utterance["speakers"]) or "Narrator"


def _tidy(text: str) -> str:
    joined = re.sub(r"\s+([.,!?;:%)])", r"\1", text)
    return re.sub(r"\s+('(?:re|s|m|ll|ve|d|t)|n't)\b", r"\1", joined)


def add_options(parser: ArgumentParser) -> None:
    add_talk_options(parser)
    parser.add_argument("--data", type=Path, help=f"a folder with {FRIENDS}, instead of generated dialogues")


async def run(options: Namespace, console: Console) -> dict[str, Any]:
    if options.data is None:
        return await ask_about(build_dialogue, options, console)
    talks = read_friends(options.data)
    options.first_seed, options.seeds = 0, min(options.seeds, len(talks))
    return await ask_about(lambda seed: talks[seed], options, console)
