"""Recorded conversations that live beside the repository: chats with questions about them, runs of agents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.quality.texts import Prose

FOLDER: Final = Path(__file__).resolve().parents[4] / "shared" / "eval"
CHATS, RUNS, TOOLS = "bfcl_memory_dev.jsonl", "agent_trajectories_dev.jsonl", "agent_tools.json"
CHATTER_CHARS: Final = 320
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about a chat; `evidence` is what the user said that answers it, `verbatim` the turns that hold an
    accepted answer word for word."""

    text: str
    answers: Sequence[str]
    evidence: Sequence[str]
    verbatim: Sequence[str]


@dataclass(frozen=True, slots=True)
class Chat:
    """What a user said in one long conversation."""

    name: str
    said: Sequence[str]
    questions: Sequence[Question]


@dataclass(frozen=True, slots=True)
class LateUse:
    """A value that the assistant's message at index `used_at` needs and that was last seen before."""

    value: str
    used_at: int


@dataclass(frozen=True, slots=True)
class Run:
    """An agent's run: its messages, its tools and what it needed late."""

    name: str
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]]
    late_uses: Sequence[LateUse]

    @property
    def instructions(self) -> Sequence[Message]:
        """The leading system messages."""
        first = next(at for at, message in enumerate(self.messages) if message["role"] not in {"system", "developer"})
        return self.messages[:first]

    def requests(self) -> Iterator[int]:
        """Before which messages the model was asked."""
        for at, message in enumerate(self.messages):
            if message["role"] == "assistant" and at:
                yield at


def chats(folder: Path) -> list[Chat]:
    """The recorded chats."""
    return [_chat(line) for line in _lines(folder / CHATS)]


def longer(chat: Chat, others: Sequence[Chat], times: int, *, seed: int) -> Chat:
    """The chat made `times` as long, by characters: between its turns come those of the others, then chatter."""
    if times <= 1:
        return chat
    due = sum(map(len, chat.said)) * (times - 1)
    fillers = [text for pair in zip_longest(*(other.said for other in others)) for text in pair if text]
    prose = Prose(seed)
    size = sum(map(len, fillers))
    if size > due:
        fillers = _within(fillers, due)
    while size < due:
        fillers.append(prose.of(CHATTER_CHARS))
        size += len(fillers[-1])
    said: list[str] = []
    for at, text in enumerate(chat.said):
        said.append(text)
        said += fillers[at * len(fillers) // len(chat.said) : (at + 1) * len(fillers) // len(chat.said)]
    return Chat(chat.name, said, chat.questions)


def runs(folder: Path) -> list[Run]:
    """The recorded runs."""
    tools = json.loads((folder / TOOLS).read_text())
    return [
        Run(
            name=line["id"],
            messages=line["messages"],
            tools=tools.get(line.get("tools_ref", ""), []),
            late_uses=[LateUse(str(use["value"]), use["used_at"]) for use in line["late_use"]],
        )
        for line in _lines(folder / RUNS)
    ]


def _chat(line: Mapping[str, Any]) -> Chat:
    said = [message["content"] for message in line["messages"]]
    questions = [
        Question(
            text=one["question"],
            answers=one["answers"],
            evidence=[said[at] for at in one["evidence_turns"]],
            verbatim=[said[at] for at in one["answer_verbatim_turns"]],
        )
        for one in line["qa"]
    ]
    return Chat(line["id"], said, questions)


def _within(texts: Sequence[str], chars: int) -> list[str]:
    taken: list[str] = []
    for text in texts:
        if chars < len(text):
            break
        taken.append(text)
        chars -= len(text)
    return taken


def _lines(file: Path) -> list[dict[str, Any]]:
    with file.open() as lines:
        return [json.loads(line) for line in lines]
