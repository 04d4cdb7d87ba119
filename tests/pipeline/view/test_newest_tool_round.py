"""A newest tool round that does not fit beside the question: the agent is told, and does not loop."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import ScriptedUpstream
from tests.support.gateway import assistant, call, result, user, world
from tests.support.raw_http import summarizing


def agent_log(calls: int, argument_words: int = 1, result_words: int = 100) -> list[dict[str, Any]]:
    made = [call("read_file", '{"path": "' + f"folder{n}/" * argument_words + '"}', f"call_{n}") for n in range(calls)]
    results = [result(f"Result {n}: " + f"line{n} " * result_words, f"call_{n}") for n in range(calls)]
    return [user("Read all files and tell me what is wrong."), assistant(None, tool_calls=made), *results]


@pytest.mark.parametrize("policy", ["additive", "checkpoint", "fade", "prune", "window"])
async def test_a_newest_round_that_cannot_fit_is_refused_with_the_breakdown(policy: str) -> None:
    upstream = ScriptedUpstream()
    async with world(upstream, window=2048, policy=policy) as w:
        answer = await w.post(agent_log(120))

    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded"), answer.text
    assert "The instructions and tools take" in answer.text
    assert upstream.bodies == []


@pytest.mark.parametrize("policy", ["additive", "checkpoint", "fade", "prune", "window"])
@pytest.mark.parametrize("sizes", [(1, 900), (1500, 100)], ids=["results", "arguments"])
async def test_a_newest_round_that_fits_when_shortened_reaches_the_model(sizes: tuple[int, int], policy: str) -> None:
    upstream = summarizing()
    async with world(upstream, window=2048, policy=policy) as w:
        answer = await w.post(agent_log(3, *sizes))

    assert answer.status_code == 200, answer.text
    sent = upstream.requests[-1]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", *["tool"] * 3]
