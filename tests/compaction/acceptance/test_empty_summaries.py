"""A refusal or an empty phrase is no summary; an honest summary is one, however short."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from app.compaction.acceptance.empty_summaries import says_nothing
from app.simulator.extractive_summary import summarize_by_extraction
from app.simulator.question_answering import PromptText
from tests.compaction.acceptance.summary_samples import EMPTY_SUMMARIES, TALKS
from tests.shared_data import needs_recordings, recorded
from tests.simulator.counting import RoughCounter

MESSAGES_PER_RANGE = 8
HONEST_SUMMARIES = 200


def recorded_ranges() -> Iterator[list[PromptText]]:
    """Ranges of recorded talks of people with agents."""
    for name in ("agent_trajectories_dev.jsonl", "bfcl_memory_dev.jsonl"):
        for talk in recorded(name):
            texts = [PromptText(body["role"], text_of(body)) for body in talk["messages"] if body["role"] != "system"]
            yield from (texts[start : start + MESSAGES_PER_RANGE] for start in range(0, len(texts), MESSAGES_PER_RANGE))


def text_of(body: dict[str, Any]) -> str:
    content = body.get("content")
    return content if isinstance(content, str) else json.dumps(body.get("tool_calls"))


@pytest.mark.parametrize("summary", EMPTY_SUMMARIES)
def test_a_refusal_or_an_empty_phrase_says_nothing_whatever_its_range_is(summary: str) -> None:
    assert all(says_nothing(summary, [user, assistant]) for user, assistant, _ in TALKS)


@pytest.mark.parametrize(("user", "assistant", "summaries"), TALKS)
def test_a_short_honest_summary_says_something(user: str, assistant: str, summaries: tuple[str, ...]) -> None:
    assert [one for one in summaries if says_nothing(one, [user, assistant])] == []


@needs_recordings
def test_no_refusal_passes_for_a_summary_of_a_recorded_talk() -> None:
    for texts in recorded_ranges():
        assert [one for one in EMPTY_SUMMARIES if not says_nothing(one, [text.text for text in texts])] == []


@needs_recordings
def test_two_hundred_honest_summaries_of_recorded_talks_say_something() -> None:
    count, refused = 0, []
    for texts in recorded_ranges():
        for max_tokens in (40, 160):
            summary = summarize_by_extraction(texts, max_tokens, RoughCounter().count)
            if not summary.endswith("Nothing of note was said."):  # which says nothing
                count += 1
                refused += [summary] if says_nothing(summary, [text.text for text in texts]) else []
    assert count >= HONEST_SUMMARIES
    assert refused == []


def test_a_refusal_with_an_appendix_of_values_is_still_a_refusal() -> None:
    user, assistant, _ = TALKS[0]
    summary = "I'm sorry, but I can't help with that.\nValues mentioned: INV-70031"
    assert says_nothing(summary, [user, assistant])


def test_a_summary_that_reports_a_refusal_is_a_summary() -> None:
    user, assistant, _ = TALKS[0]
    assert not says_nothing("I'm sorry, but I can't help with that. Billing moves to Berlin.", [user, assistant])


def test_greetings_prove_nothing_about_their_summary() -> None:
    assert not says_nothing("Both exchanged pleasantries.", ["Hi there!", "Hello! How are you?"])


def test_a_foreign_script_is_taken_on_trust_if_it_names_several_things() -> None:
    user, assistant, _ = TALKS[-1]
    assert says_nothing("Something nobody discussed.", [user, assistant])
    assert not says_nothing("Boarding for a cat allergic to chicken, before a Beijing trip.", [user, assistant])


@pytest.mark.parametrize("text", ["no " * 20_000, "please " * 20_000, "." * 50_000, "there is " * 10_000])
def test_no_text_takes_long(text: str) -> None:
    started = time.process_time()
    says_nothing(text, ["Something else altogether."])
    assert time.process_time() - started < 0.5
