"""What is said in long conversations of several kinds, for `economy`. Kind, seed and length decide the talk.

| kind | turns of 300 | of what |
| --- | --- | --- |
| `office` | 300 | paragraphs of about 100 tokens; every third turn calls a tool |
| `agent` | 45 | a task, then three to eight calls with results of 100 to 1,200 tokens |
| `chat` | 450 | one or two sentences on either side, about 25 tokens each |
| `monologue` | 100 | 200 to 700 tokens from the user, answers of 60 to 250 |
| `look_back` | 200 | every second question asks for something that was said 4 to 120 turns before |
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from tests.benchmarks.quality.chatter import Chatter
from tests.benchmarks.quality.texts import Prose
from tests.benchmarks.quality.vocabulary import Vocabulary

TOOL_TURN_EVERY: Final = 3
QUESTION_CHARS, ANSWER_CHARS, RESULT_CHARS = 395, 375, 540
LEAST_AGE, MOST_AGE = 4, 120
"""Turns between a statement and the question that looks back to it."""
REMARKS: Final = (
    "For your files: the {what} for the {thing} is {code}, {name} sent it from {place}.",
    "{name} in {place} ordered the {thing}; write down {code} as the {what}, please.",
    "Before I forget, the {thing} went to {place} and {name} signed for it. The {what} says {code}.",
    "I talked to {name} about the {thing}: {place} only accepts it with the {what} {code}.",
)
LOOKS_BACK: Final = (
    "What was the {what} for the {thing} again?",
    "Who was it that dealt with the {thing}, and from which town?",
    "Remind me where the {thing} went, I have lost the note.",
    "Somebody asks for the {what} of the {thing}. Do you still have it?",
)
LOG_LEVELS: Final = ("info", "warn", "error")
WHATS: Final = ("order number", "customs code", "receipt number", "warranty code", "delivery number", "locker code")


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """A question, tool calls as pairs of arguments and result, and the answer."""

    question: str
    answer: str
    calls: Sequence[tuple[Mapping[str, Any], str]] = ()


@dataclass(frozen=True, slots=True)
class Script:
    """What is said. Any answer is a function of its place `(turn, step)`."""

    turns: Sequence[ScriptedTurn]
    has_tools: bool = field(default=False)

    def count_requests(self, turn: int) -> int:
        """Returns how many requests a turn takes: one, and one for each tool call."""
        return 1 + len(self.turns[turn].calls)

    def build_reply(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the assistant's message at the place that a request names."""
        turn, step = body["x_bench_place"]
        calls = self.turns[turn].calls
        if step >= len(calls):
            return {"role": "assistant", "content": self.turns[turn].answer}
        called = {"name": "look_up", "arguments": orjson.dumps(calls[step][0]).decode()}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": _build_call_id(turn, step), "type": "function", "function": called}],
        }

    def build_result(self, turn: int, step: int) -> dict[str, Any]:
        """Returns the message with the result of a turn's call number `step`."""
        result = self.turns[turn].calls[step][1]
        return {"role": "tool", "tool_call_id": _build_call_id(turn, step), "content": result}


def build_script(kind: str, seed: int, turns: int) -> Script:
    """Returns a talk.

    Args:
        kind: one of `KINDS`.
        turns: of 300; kinds with longer turns have fewer of them.
    """
    share, build = KINDS[kind]
    return build(seed, max(2, round(turns * share)))


def _build_call_id(turn: int, step: int) -> str:
    return f"call_{turn}_{step}" if step else f"call_{turn}"


def _build_office(seed: int, turns: int) -> Script:
    prose = Prose(seed)
    questions = [f"({turn}) {prose.of(QUESTION_CHARS)}" for turn in range(turns)]
    answers = [prose.of(ANSWER_CHARS) for _ in range(turns)]
    results = [prose.of(RESULT_CHARS) for _ in range(turns)]
    topics = [prose.sentence() for _ in range(turns)]
    made = [
        ScriptedTurn(
            questions[turn],
            answers[turn],
            [({"topic": topics[turn]}, results[turn])] if turn % TOOL_TURN_EVERY == TOOL_TURN_EVERY - 1 else (),
        )
        for turn in range(turns)
    ]
    return Script(made, has_tools=True)


def _build_agent(seed: int, turns: int) -> Script:
    draw = random.Random(seed)
    words, prose = Vocabulary(draw), Prose(seed)
    made = []
    for _ in range(turns):
        calls = [_build_agent_call(draw, words, prose) for _ in range(draw.randint(3, 8))]
        made.append(ScriptedTurn(prose.of(draw.randint(200, 600)), prose.of(draw.randint(150, 600)), calls))
    return Script(made, has_tools=True)


def _build_agent_call(draw: random.Random, words: Vocabulary, prose: Prose) -> tuple[Mapping[str, Any], str]:
    """A listing of records, a log, or a page of text."""
    subject = words.make("brand")
    form = draw.randrange(3)
    if form == 0:
        records = [
            {
                "id": words.make("code"),
                "owner": words.make("name"),
                "site": words.make("place"),
                "state": draw.choice(("open", "closed", "waiting")),
            }
            for _ in range(draw.randint(3, 25))
        ]
        return {"topic": subject, "since": words.make("date")}, orjson.dumps({"records": records}).decode()
    if form == 1:
        lines = (
            f"{draw.randint(0, 23):02d}:{draw.randint(0, 59):02d} {draw.choice(LOG_LEVELS)} {prose.sentence()}"
            for _ in range(draw.randint(4, 40))
        )
        return {"topic": f"log of {subject}"}, "\n".join(lines)
    return {"topic": f"{subject} handbook"}, prose.of(draw.randint(400, 4_800))


def _build_chat(seed: int, turns: int) -> Script:
    chatter = Chatter(random.Random(seed))
    return Script([ScriptedTurn(chatter.make_turn(), chatter.make_turn()) for _ in range(turns)])


def _build_monologue(seed: int, turns: int) -> Script:
    draw = random.Random(seed)
    chatter, prose = Chatter(draw), Prose(seed)
    made = []
    for _ in range(turns):
        parts = [chatter.make_paragraph(draw.randint(300, 900)), prose.of(draw.randint(400, 1_800))]
        draw.shuffle(parts)
        made.append(ScriptedTurn("\n\n".join(parts), prose.of(draw.randint(200, 900))))
    return Script(made)


def _build_look_back(seed: int, turns: int) -> Script:
    draw = random.Random(seed)
    words, chatter = Vocabulary(draw), Chatter(draw)
    told: list[dict[str, str]] = []
    made = []
    for turn in range(turns):
        if turn % 2 and len(told) > LEAST_AGE:
            fact = told[-draw.randint(LEAST_AGE, min(MOST_AGE // 2, len(told)))]
            question = draw.choice(LOOKS_BACK).format(**fact)
            answer = f"{fact['name']}, {fact['place']}: the {fact['what']} is {fact['code']}."
        else:
            fact = {name: words.make(name) for name in ("thing", "code", "name", "place")}
            told.append(fact | {"what": draw.choice(WHATS)})
            question = draw.choice(REMARKS).format(**told[-1])
            answer = "I have noted that."
        made.append(
            ScriptedTurn(
                f"{chatter.make_paragraph(draw.randint(60, 300))} {question}",
                f"{answer} {chatter.make_paragraph(draw.randint(100, 500))}",
            )
        )
    return Script(made)


KINDS: Final[Mapping[str, tuple[float, Callable[[int, int], Script]]]] = {
    "office": (1.0, _build_office),
    "agent": (0.15, _build_agent),
    "chat": (1.5, _build_chat),
    "monologue": (1 / 3, _build_monologue),
    "look_back": (2 / 3, _build_look_back),
}
"""By name: turns of each that `--turns` counts, and who makes the talk."""
