"""Generated talks with questions about them: how they are held, asked about and judged."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from app.compaction.acceptance.values_appendix import strip_appendix
from tests.benchmarks.quality.model import Call, ScriptedModel
from tests.benchmarks.quality.summaries import COUNTER, SUMMARIES
from tests.benchmarks.quality.talk import Client, Variant, at_rest, talking
from tests.benchmarks.quality.texts import all_text, normalised, occurs, text_of

ACKNOWLEDGED: Final = "All right, thank you for telling me."
AROUND_CHARS: Final = 25
DATE_CHARS: Final = 2_000
"""How far before a fact, in characters, its date may stand in a prompt."""
KEPT_SHARE: Final = 0.95
"""Of the window, what keeping the newest messages may fill."""
_QUOTED: Final = re.compile(r"^<quoted \S+>$", re.MULTILINE)
_DATE: Final = re.compile(r"\d{1,2} [A-Z][a-z]+,? \d{4}")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What must be in a prompt for one step of an answer.

    Attributes:
        words: the answer, or the words that a date belongs to.
        passage: the words with their surroundings in the turn that says them.
        is_unique: whether `words` occur nowhere else in the talk; else the whole passage must be there.
        date: which must be the last date before the words; blank if none is asked for.
    """

    words: str
    passage: str
    is_unique: bool = True
    date: str = ""

    def is_in(self, text: str) -> bool:
        """Whether a text holds the evidence."""
        if self.date:
            return any(
                _DATE.findall(text[max(0, match.start() - DATE_CHARS) : match.start()])[-1:] == [self.date]
                for match in re.finditer(re.escape(self.words), text)
            )
        said = normalised(text)
        return occurs(normalised(self.words), said) if self.is_unique else normalised(self.passage) in said


@dataclass(frozen=True, slots=True)
class TalkQuestion:
    """A question, of some kind, and all that its answer needs."""

    text: str
    kind: str
    evidence: Sequence[Evidence]


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation; turns of the user and the assistant alternate, if `replies` are given.

    Attributes:
        said: what the user says.
        replies: what the assistant answers to each; blank if it only acknowledges.
    """

    name: str
    said: Sequence[str]
    questions: Sequence[TalkQuestion]
    replies: Sequence[str] = ()

    @property
    def messages(self) -> list[dict[str, str]]:
        """All messages in order."""
        replies = self.replies or [ACKNOWLEDGED] * len(self.said)
        pairs = zip(self.said, replies, strict=True)
        return [
            message
            for text, reply in pairs
            for message in ({"role": "user", "content": text}, {"role": "assistant", "content": reply})
        ]

    @property
    def tokens(self) -> int:
        """Of all messages."""
        return COUNTER.count_request(self.messages)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a prompt held of a question's evidence.

    Attributes:
        there: steps whose words stand outside value lists.
        listed: steps that only a value list has.
        steps: how many there are.
    """

    question: TalkQuestion
    there: int
    listed: int
    prompt_tokens: int = 0
    quoted_tokens: int = 0

    @property
    def is_answered(self) -> bool:
        """Whether all evidence is there."""
        return self.there == len(self.question.evidence)

    @property
    def is_only_listed(self) -> bool:
        """Whether all is there only if value lists count."""
        return not self.is_answered and self.there + self.listed == len(self.question.evidence)

    @property
    def share(self) -> float:
        """Of the evidence, what is there."""
        return self.there / len(self.question.evidence)


@dataclass(slots=True)
class Outcome:
    """A talk in one configuration."""

    talk: Talk
    verdicts: list[Verdict] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    """The requests of the questions that were answered, as they reached the model."""
    summary_calls: int = 0
    failed_turns: int = 0

    def compute_share(self, kind: str | None = None) -> float:
        """Returns the share of questions, of a kind or of all, whose evidence is all there."""
        chosen = [one for one in self.verdicts if kind in {None, one.question.kind}]
        return sum(one.is_answered for one in chosen) / max(1, len(chosen))

    def compute_mean(self, name: str) -> float:
        """Returns the mean of a verdict's attribute."""
        total: float = sum(getattr(one, name) for one in self.verdicts)
        return total / max(1, len(self.verdicts))


def find_passage(words: str, turn: str) -> str:
    """Returns words with up to 25 characters on either side in a turn."""
    at = turn.find(words)
    if at < 0:
        raise ValueError(f"{words!r} is not in the turn")
    start, end = max(0, at - AROUND_CHARS), at + len(words) + AROUND_CHARS
    passage = turn[start:end]
    # Words that are cut off at the passage's ends are no words of the turn.
    if start:
        passage = passage.partition(" ")[2] if " " in turn[start:at] else turn[at:end]
    if end < len(turn):
        passage = passage.rpartition(" ")[0] if " " in turn[at + len(words) : end] else passage
    return passage


def judge(question: TalkQuestion, messages: Sequence[Mapping[str, Any]]) -> Verdict:
    """Returns what a prompt holds of a question's evidence; the question itself does not count."""
    reached = all_text(messages).replace(question.text, " ")
    prose = strip_appendix(reached)
    lists = "\n".join(set(reached.splitlines()) - set(prose.splitlines()))
    there = listed = 0
    for one in question.evidence:
        if one.is_in(prose):
            there += 1
        elif not one.date and occurs(normalised(one.words), normalised(lists)):
            listed += 1
    return Verdict(question, there, listed)


def count_quoted_tokens(messages: Sequence[Mapping[str, Any]]) -> int:
    """Returns the tokens of all messages that hold quotations."""
    return sum(COUNTER.count_message(one) for one in messages if _QUOTED.search(text_of(one.get("content"))))


async def hold_talk(variant: Variant, talk: Talk, *, window: int, summaries: str) -> Outcome:
    """Hold a talk with a client that re-sends its history, then ask each question as its next turn.

    Raises:
        NotThere: the gateway does not know the variant.
    """
    outcome = Outcome(talk)
    replies = talk.replies or [ACKNOWLEDGED] * len(talk.said)
    model = ScriptedModel(
        summaries=SUMMARIES[summaries],
        reply=lambda body: {"role": "assistant", "content": replies[body["x_bench_place"]]},
    )
    async with talking(model, variant, window=window) as client:
        history = await _feed(client, model, talk, outcome)
        outcome.summary_calls = len(model.summary_calls)
        if variant.changes.get("recall_embeddings"):
            # The first question has the talk embedded, which takes longer than the next one takes to come.
            await client.ask([*history, {"role": "user", "content": talk.questions[0].text}])
            await client.wait_for_background_tasks()
        for question in talk.questions:
            asked = await client.ask([*history, {"role": "user", "content": question.text}])
            if asked.status != 200:
                outcome.failed_turns += 1
                outcome.verdicts.append(Verdict(question, 0, 0))
                continue
            call = model.answers[-1]
            outcome.calls.append(call)
            outcome.verdicts.append(
                replace(
                    judge(question, call.messages),
                    prompt_tokens=call.prompt_tokens,
                    quoted_tokens=count_quoted_tokens(call.messages),
                )
            )
    return outcome


def keep_newest(talk: Talk, *, window: int) -> Outcome:
    """Returns what the newest messages that fit into the window would have held."""
    outcome = Outcome(talk)
    for question in talk.questions:
        sent = cut_to_newest(talk, question.text, window=window)
        outcome.verdicts.append(replace(judge(question, sent), prompt_tokens=COUNTER.count_request(sent)))
    return outcome


def cut_to_newest(talk: Talk, question: str, *, window: int) -> list[Mapping[str, Any]]:
    """Returns a question with the newest messages that fit into the window beside it."""
    kept: list[Mapping[str, Any]] = [{"role": "user", "content": question}]
    left = window * KEPT_SHARE - COUNTER.count_request(kept)
    for message in reversed(talk.messages):
        left -= COUNTER.count_message(message)
        if left < 0:
            break
        kept.append(message)
    return kept[::-1]


async def _feed(client: Client, model: ScriptedModel, talk: Talk, outcome: Outcome) -> list[dict[str, Any]]:
    history: list[dict[str, Any]] = []
    for place, text in enumerate(talk.said):
        history.append({"role": "user", "content": text})
        asked = await client.ask(history, place=place)
        if asked.status != 200:
            outcome.failed_turns += 1
            history.pop()
            continue
        history.append(dict(asked.message))
        await at_rest(model)
    return history
