"""How many facts of a long chat are in front of the model when it is asked for them.

Each chat is fed turn by turn by a client that re-sends its history; the model answers with one sentence that says
nothing. Then each question is asked as the next turn of the same history. A question counts as answerable when an
accepted answer stands, as whole words, in the messages that reached the model (the question itself left out). Where no
turn holds the answer word for word, the passage of about 60 characters of the evidence that has most words in common
with the question must be there. `in its words` counts stricter: the answer with 25 characters around it on either side,
as the user wrote them, so that a number that happens to occur elsewhere does not count. `without lists` leaves out what
only the list of values at the end of a summary has.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from app.compaction.acceptance.values_appendix import strip_appendix
from tests.benchmarks.quality.model import ScriptedModel
from tests.benchmarks.quality.recordings import FOLDER, Chat, Question, chats, longer
from tests.benchmarks.quality.summaries import COUNTER, SUMMARIES
from tests.benchmarks.quality.talk import Client, NotThere, Variant, at_rest, talking
from tests.benchmarks.quality.talks import count_quoted_tokens
from tests.benchmarks.quality.texts import all_text, normalised, occurs

WINDOWS: Final = (2_000, 4_000, 8_000)
AROUND_CHARS: Final = 25
PASSAGE_CHARS: Final = 60
KEPT_SHARE: Final = 0.95
"""Of the window, what keeping the newest messages may fill."""
COSTS: Final = ("prompt tokens", "quoted tokens", "summary calls", "failed turns")
LEAST_WORD_CHARS: Final = 4
STEM_CHARS: Final = 5


@dataclass(frozen=True, slots=True)
class Found:
    """A question, whether its answer and the words around it were there, and whether only a list of values has it."""

    question: Question
    answer: bool
    in_its_words: bool
    only_listed: bool = False
    prompt_tokens: int = 0
    quoted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """All questions of all chats in one configuration."""

    found: Sequence[Found]
    failed_turns: int = 0
    summary_calls: int = 0

    @property
    def share(self) -> float:
        return sum(one.answer for one in self.found) / max(1, len(self.found))

    @property
    def share_in_its_words(self) -> float:
        return sum(one.in_its_words for one in self.found) / max(1, len(self.found))

    @property
    def share_without_lists(self) -> float:
        """Of the questions, those whose answer stands outside of value lists."""
        return sum(one.answer and not one.only_listed for one in self.found) / max(1, len(self.found))

    def compute_mean(self, name: str) -> float:
        """Returns the mean of a figure of all questions."""
        total: float = sum(getattr(one, name) for one in self.found)
        return total / max(1, len(self.found))

    @property
    def misses(self) -> list[Question]:
        return [one.question for one in self.found if not one.answer]


async def measure(variant: Variant, told: Sequence[Chat], *, window: int, summaries: str) -> Result:
    """Feed the chats and ask.

    Raises:
        NotThere: the gateway does not know the variant.
    """
    model = ScriptedModel(summaries=SUMMARIES[summaries])
    found: list[Found] = []
    failed = 0
    async with talking(model, variant, window=window) as client:
        for chat in told:
            history, failures = await _feed(client, model, chat)
            failed += failures
            for question in chat.questions:
                asked = await client.ask([*history, _user(question.text)], tenant=chat.name)
                failed += asked.status != 200
                if asked.status != 200:
                    found.append(seen(question, ""))
                    continue
                call = model.answers[-1]
                one = seen(question, all_text(call.messages))
                quoted = count_quoted_tokens(call.messages)
                found.append(replace(one, prompt_tokens=call.prompt_tokens, quoted_tokens=quoted))
    return Result(found, failed, len(model.summary_calls))


def keep_newest(told: Sequence[Chat], *, window: int) -> Result:
    """What the newest messages that fit into the window would have held."""
    found = []
    for chat in told:
        for question in chat.questions:
            left = window * KEPT_SHARE - COUNTER.count_request([_user(question.text)])
            kept: list[str] = []
            for text in reversed(chat.said):
                left -= COUNTER.count_message(_user(text))
                if left < 0:
                    break
                kept.append(text)
            found.append(seen(question, "\n".join(kept)))
    return Result(found)


def seen(question: Question, reached: str) -> Found:
    """Whether a text that reached the model answers a question."""
    found = _look_for(question, reached)
    if not found.answer:
        return found
    return replace(found, only_listed=not _look_for(question, strip_appendix(reached)).answer)


def _look_for(question: Question, reached: str) -> Found:
    text = normalised(reached.replace(question.text, " "))
    passages = [passage for answer in question.answers for passage in _passages(answer, question.verbatim)]
    if passages:
        answer = any(occurs(normalised(one), text) for one in question.answers)
    else:
        passages = [best_passage(question, turn) for turn in question.evidence]
        answer = any(passage in text for passage in passages)
    return Found(question, answer, any(passage in text for passage in passages))


def best_passage(question: Question, turn: str) -> str:
    """The passage of a turn, about 60 characters, normalised, with most words of a question and its answers."""
    said = normalised(turn)
    wanted = {word[:STEM_CHARS] for word in _words(" ".join([question.text, *question.answers]))}
    starts = [match.start() for match in re.finditer(r"(?<!\S)\S", said)]
    passages = [f"{said} "[start : start + PASSAGE_CHARS].rpartition(" ")[0] for start in starts]
    return max(passages, key=lambda one: len(wanted & {word[:STEM_CHARS] for word in _words(one)}), default=said)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=FOLDER, help=f"the folder of recordings (default {FOLDER.name})")
    parser.add_argument("--windows", type=int, nargs="+", default=WINDOWS)
    parser.add_argument("--summaries", choices=SUMMARIES, nargs="+", default=list(SUMMARIES))
    parser.add_argument("--policy", default="additive")
    parser.add_argument("--recall", choices=("off", "quote", "tool"), help="instead of the policy's own")
    parser.add_argument("--times", type=int, default=1, help="make each chat so many times as long")
    parser.add_argument("--misses", action="store_true", help="list the questions that could not be answered")


async def run(options: Namespace, console: Console) -> dict[str, Any]:
    recorded = chats(options.data)
    told = [
        longer(chat, [other for other in recorded if other is not chat], options.times, seed=at)
        for at, chat in enumerate(recorded)
    ]
    changes = {"recall": options.recall} if options.recall else {}
    variant = Variant(options.policy, policy=options.policy, changes=changes)
    results: dict[str, Any] = {}
    table = Table("window", "summaries", "answer there", "without lists", "in its words", *COSTS)
    for window in options.windows:
        for name, result in [*[one async for one in _measured(variant, told, window, options, console)]]:
            results[f"{window} {name}"] = _facts(result)
            shares = (result.share, result.share_without_lists, result.share_in_its_words)
            costs = (result.compute_mean("prompt_tokens"), result.compute_mean("quoted_tokens"))
            counts = (str(result.summary_calls), str(result.failed_turns))
            table.add_row(
                f"{window:,}", name, *(f"{one:.3f}" for one in shares), *(f"{one:,.0f}" for one in costs), *counts
            )
    console.print(table)
    if options.misses:
        _print_misses(console, results)
    return results


async def _measured(variant: Variant, told: Sequence[Chat], window: int, options: Namespace, console: Console) -> Any:
    yield "keep newest", keep_newest(told, window=window)
    for name in options.summaries:
        try:
            yield name, await measure(variant, told, window=window, summaries=name)
        except NotThere as error:
            console.print(f"not there: {error}", markup=False)


async def _feed(client: Client, model: ScriptedModel, chat: Chat) -> tuple[list[dict[str, Any]], int]:
    """Say everything; gives the history that the client holds then, and how many turns failed."""
    history: list[dict[str, Any]] = []
    failed = 0
    for text in chat.said:
        history.append(_user(text))
        asked = await client.ask(history, tenant=chat.name)
        if asked.status != 200:
            failed += 1
            history.pop()
            continue
        history.append(dict(asked.message))
        await at_rest(model)
    return history, failed


def _facts(result: Result) -> dict[str, Any]:
    return {
        "share": result.share,
        "share_without_lists": result.share_without_lists,
        "share_in_its_words": result.share_in_its_words,
        "prompt_tokens": result.compute_mean("prompt_tokens"),
        "quoted_tokens": result.compute_mean("quoted_tokens"),
        "summary_calls": result.summary_calls,
        "failed_turns": result.failed_turns,
        "misses": [f"{one.text} → {one.answers[0]}" for one in result.misses],
    }


def _print_misses(console: Console, results: dict[str, Any]) -> None:
    for name, facts in results.items():
        console.print(f"{name}: {len(facts['misses'])} missed")
        for miss in facts["misses"]:
            console.print(f"  {miss}", markup=False)


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _passages(answer: str, turns: Sequence[str]) -> Iterator[str]:
    wanted = normalised(answer)
    for turn in turns:
        said = normalised(turn)
        for match in re.finditer(rf"(?<!\w){re.escape(wanted)}(?!\w)", said):
            yield said[max(0, match.start() - AROUND_CHARS) : match.end() + AROUND_CHARS]


def _words(text: str) -> list[str]:
    return [word for word in normalised(text).split() if len(word) >= LEAST_WORD_CHARS]
