"""A very long history that a small window meets for the first time."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from app.context.plan.planner import plan_view
from app.pipeline.view import view_builder
from tests.scenarios.test_known_faults import FILLER, WINDOW, talking


def history(messages: int, filler: str) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[seq % 2], "content": f"Entry {seq}: {filler}"} for seq in range(messages)]


async def test_all_of_it_is_told_in_the_first_answer_and_nothing_is_done_again() -> None:
    async with talking() as talk:
        talk.messages = history(300, FILLER * 2)
        body = await talk.say("Where were we?")
        assert len(talk.summary_calls) > 40
        assert (body["context_status"], body["context"]["dropped_messages"]) == ("summarized", 0)
        assert body["context"]["summaries"][0]["from_seq"] == 0
        assert sum(summary["tokens"] for summary in body["context"]["summaries"]) <= 0.3 * WINDOW
        asked = len(talk.simulator.recorded_requests)
        first = talk.sent
        assert (await talk.say("And now?"))["context"]["summaries"] == body["context"]["summaries"]
        assert len(talk.simulator.recorded_requests) == asked + 1
        assert talk.sent[: len(first)] == first


async def test_its_view_is_planned_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    planned_in: list[threading.Thread] = []

    def noting(*args: Any, **keywords: Any) -> Any:
        planned_in.append(threading.current_thread())
        return plan_view(*args, **keywords)

    monkeypatch.setattr(view_builder, "plan_view", noting)
    async with talking() as talk:
        talk.messages = history(1_500, "Short.")
        await talk.say("Where were we?", context={"summarize": "never"})
    assert planned_in
    assert threading.main_thread() not in planned_in
