"""The checker sees what it is there to see: turns that are lost, doubled, out of order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.faults.checking import Checking, Said, Verdict
from tests.faults.journal import Promise, Talk, Turn

PAIRS = (("q1", "a1"), ("q2", "a2"))


class Pretending(Checking):
    """Reads a log that a test made up."""

    def __init__(self, log: Sequence[Said]) -> None:
        self._made_up = list(log)
        self.verdict = Verdict()

    async def _log(self, talk: Talk, conversation_id: str) -> list[Said]:
        return self._made_up


def said(*texts: str) -> list[Said]:
    """`q…` is asked, `a…` is an answer, `b…` one that broke off."""
    return [Said("user" if one[0] == "q" else "assistant", one.replace("b", "a"), one[0] != "b") for one in texts]


async def verdict_on(talk: Talk, *texts: str) -> Verdict:
    return await Pretending(said(*texts)).all([talk])


def appended() -> Talk:
    turns = [Turn(question, answer, 1) for question, answer in PAIRS]
    return Talk("t", "append", "k", turns=[*turns, Turn("q3")], conversation_id="c")


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ("q1 a1 q2 a2", ""),
        ("q1 a1 q2 a2 q3", ""),
        ("q1 b1 q1 a1 q2 a2", ""),
        ("q1 a1 q2", "lost"),
        ("q1 a1 q2 b2", "lost"),
        ("q2 a2 q1 a1", "lost"),
        ("q1 a1 q1 a1 q2 a2", "doubled"),
        ("q1 a1 q2 a2 q3 a3 q3 a4", "doubled"),
    ],
)
async def test_an_appended_turn_must_stand_once_and_in_its_place(texts: str, found: str) -> None:
    verdict = await verdict_on(appended(), *texts.split())
    assert {name for name in ("lost", "doubled") if getattr(verdict, name)} == ({found} if found else set())


@pytest.mark.parametrize(
    ("texts", "found"),
    [("q1 a1 q2 a2", ""), ("q1 a1 q2 a2 q3", ""), ("q1 a1", "lost"), ("q1 a1 q1 a1 q2 a2", "doubled")],
)
async def test_a_log_must_begin_with_what_was_promised_of_it(texts: str, found: str) -> None:
    talk = Talk("t", "resend", "k")
    talk.promised(Promise("c", ("q1", "a1")))
    talk.promised(Promise("c", ("q1", "a1", "q2", "a2")))
    assert len(talk.promises) == 1
    verdict = await verdict_on(talk, *texts.split())
    assert {name for name in ("lost", "doubled") if getattr(verdict, name)} == ({found} if found else set())


async def test_answers_must_not_name_several_conversations() -> None:
    talk = appended()
    talk.moved = True
    told: Any = await verdict_on(talk, "q1", "a1", "q2", "a2")
    assert told.moved
    assert not told.is_clean
