"""What clients know of their conversations: what they asked and what was acknowledged. On disk as it happens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

Style = Literal["append", "keyed", "resend"]
"""`append`: new messages under the client's own id. `keyed`: and with an `Idempotency-Key`. `resend`: all of it."""


@dataclass(slots=True)
class Turn:
    """One question of a client, asked until it is answered or given up."""

    question: str
    answer: str | None = None
    """What was received to its end; None while nothing was acknowledged."""
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Promise:
    """A conversation's log, as far as it was acknowledged, begins like this: questions and answers in turn."""

    conversation_id: str
    texts: Sequence[str]


@dataclass(slots=True)
class Talk:
    """One client's conversation."""

    name: str
    style: Style
    tenant: str
    turns: list[Turn] = field(default_factory=list)
    conversation_id: str | None = None
    history: list[str] = field(default_factory=list)
    """`resend`: what the client sends again, questions and answers in turn."""
    promises: list[Promise] = field(default_factory=list)
    """`resend`: of each conversation that it went through, the last."""
    moved: bool = False
    """`append`: answers named more than one conversation, which they never may."""

    @property
    def acknowledged(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.answer is not None]

    def promised(self, promise: Promise) -> None:
        """The log of a conversation was acknowledged up to here."""
        last = self.promises[-1] if self.promises else None
        goes_on = last is not None and list(promise.texts[: len(last.texts)]) == list(last.texts)
        if last is not None and goes_on and last.conversation_id == promise.conversation_id:
            self.promises.pop()
        self.promises.append(promise)


class Journal:
    """Every attempt and how it ended, a line each."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb")
        self._began = time.monotonic()
        self.talks: list[Talk] = []
        self.attempts = 0
        self.outcomes: dict[str, int] = {}
        """How often each kind of end was seen."""

    def begin(self, talk: Talk) -> None:
        self.talks.append(talk)

    def note(self, talk: Talk, outcome: str, **facts: Any) -> None:
        self.attempts += 1
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self.write("attempt", talk=talk.name, style=talk.style, outcome=outcome, **facts)

    def write(self, event: str, **facts: Any) -> None:
        line = {"seconds": round(time.monotonic() - self._began, 3), "event": event, **facts}
        self._file.write(orjson.dumps(line) + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
