"""The instruments of context quality, at tiny sizes: they run, and tell what is there from what is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from app.context.plan.policy import ContextPolicy
from tests.benchmarks.quality import cost, economy, economy_kinds, facts, late_use, planning, poc, stall
from tests.benchmarks.quality.cache import PrefixCache, common_prefix
from tests.benchmarks.quality.model import by_length
from tests.benchmarks.quality.recordings import Chat, LateUse, Question, Run, longer
from tests.benchmarks.quality.spread import Spread
from tests.benchmarks.quality.summaries import COUNTER, SUMMARIES, allowance
from tests.benchmarks.quality.talk import NotThere, Variant
from tests.benchmarks.quality.texts import Prose, all_text, normalised, occurs

FACT = "The spare key hangs behind the blue door of cabinet 4417."
CHAT = Chat(
    "small",
    [FACT, *(Prose(at).of(400) for at in range(40))],
    [Question("Which cabinet has the key?", ["4417"], [FACT], [FACT])],
)


def body(*texts: str, **fields: Any) -> Mapping[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text} for text in texts], **fields}


def test_words_are_found_whole_and_whatever_their_punctuation() -> None:
    assert occurs(normalised("long term"), normalised("A Long-term  view."))
    assert not occurs("35", normalised("It costs 1350 EUR."))
    assert occurs("$4.50", normalised("($4.50)"))


def test_arguments_of_tool_calls_are_part_of_what_is_said() -> None:
    call = {"function": {"name": "look_up", "arguments": '{"id": "K-7"}'}}
    assert "K-7" in all_text([{"role": "assistant", "content": None, "tool_calls": [call]}])


def test_an_answer_counts_only_in_what_is_not_the_question() -> None:
    question = CHAT.questions[0]
    assert facts.seen(question, f"{FACT}\n{question.text}").in_its_words
    assert not facts.seen(question, question.text).answer
    assert facts.seen(question, "Room 4417 is closed.").answer
    assert not facts.seen(question, "Room 4417 is closed.").in_its_words


def test_without_a_verbatim_answer_the_passage_nearest_to_the_question_must_be_there() -> None:
    turn = f"{Prose(1).of(300)} We drop the kids at daycare by 8 AM on weekdays. {Prose(2).of(300)}"
    question = Question("When is the daycare drop-off for the kids?", ["08:00 AM"], [turn], [])
    assert "daycare" in facts.best_passage(question, turn)
    assert facts.seen(question, turn).answer
    assert not facts.seen(question, Prose(1).of(300)).answer


def test_a_longer_chat_keeps_every_turn_in_order() -> None:
    other = Chat("other", ["Something else."], [])
    made = longer(CHAT, [other], 5, seed=1)
    assert [text for text in made.said if text in CHAT.said] == CHAT.said
    assert sum(map(len, made.said)) == pytest.approx(5 * sum(map(len, CHAT.said)), rel=0.1)


@pytest.mark.parametrize("name", ["extractive", "nonsense"])
def test_summaries_keep_to_their_allowance(name: str) -> None:
    call = body("\n".join(CHAT.said), max_tokens=200)
    written = SUMMARIES[name](call)
    assert written is not None
    assert 100 < COUNTER.count(written) <= allowance(call)


def test_what_is_extracted_comes_from_what_was_said() -> None:
    lines = ("Summarize rule 7.", "<transcript 0a1b2c3d>", "--- 0a1b2c3d [1] user", FACT, "</transcript 0a1b2c3d>")
    assert SUMMARIES["extractive"](body("\n".join(lines))) == FACT


def test_a_cached_prefix_is_told_in_steps_from_a_thousand_tokens_up() -> None:
    cache = PrefixCache()
    long = "word " * 2_000
    assert cache.cached_tokens(body(long)) == 0
    assert cache.cached_tokens(body(long, "more")) == pytest.approx(by_length(body(long)), abs=128)
    assert cache.cached_tokens(body("other", long)) == 0
    assert common_prefix("abcd", "abxd") == 2


async def test_facts_are_fed_and_asked_for() -> None:
    whole = await facts.measure(Variant("additive"), [CHAT], window=32_000, summaries="failing")
    assert (whole.share, whole.failed_turns, whole.summary_calls) == (1.0, 0, 0)
    assert facts.keep_newest([CHAT], window=2_000).misses == CHAT.questions


async def test_economy_counts_what_went_to_the_model() -> None:
    held = await economy.hold(Variant("additive"), turns=24, window=8_192)
    found = economy.facts_of(held)
    assert found["errors"] == []
    assert found["client_tokens"] >= found["upstream_tokens"] - found["summary_prompt_tokens"]
    assert found["summary_calls"] >= 1
    assert found["over_the_window"] == 0
    assert found["stalled_turns"] <= found["summary_calls"]
    assert 0 < found["uncached_tokens"] < found["upstream_tokens"]
    assert economy.bounds_of(held)[0]["calls_keeping_nothing"] >= 1


async def test_a_policy_that_is_not_there_is_said_to_be() -> None:
    with pytest.raises(NotThere):
        await economy.hold(Variant("unheard of", policy="unheard-of"), turns=1)


def agent_run() -> Run:
    """Looks a value up, reads a lot, and needs the value at the end."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Book."}, {"role": "user", "content": "Book it."}]
    results = ["The card is card_5521.", *(Prose(at).of(500) for at in range(30))]
    for at, text in enumerate(results):
        called = {"id": f"call_{at}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [called]})
        messages.append({"role": "tool", "tool_call_id": f"call_{at}", "content": text})
    last = {"role": "assistant", "content": "Booked with card_5521."}
    return Run("small", [*messages, last], [], [LateUse("card_5521", len(messages))])


async def test_late_values_are_looked_for_where_they_are_used() -> None:
    seen = await late_use.measure(Variant("additive"), [agent_run()], room_tokens=20_000, summaries="failing")
    assert (seen.share, list(seen.errors)) == (1.0, [])
    assert late_use.keep_newest([agent_run()], room_tokens=1_000).share == 0.0
    assert late_use.keep_newest([agent_run()], room_tokens=20_000).share == 1.0


def test_the_newest_messages_begin_with_no_result_without_its_call() -> None:
    messages = agent_run().messages
    kept = [late_use.newest(messages, limit)[0]["role"] for limit in range(200, 2_000, 50)]
    assert "tool" not in kept


async def test_the_demo_is_held_and_its_tokens_are_counted() -> None:
    found = await cost.measure(turns=3)
    assert (found["share"], found["summary_calls"], found["compactions"]) == (1.0, 0, 0)


async def test_the_facts_in_reach_are_counted() -> None:
    held = await poc.hold(Variant("additive"), turns=3)
    assert held.share_at(3) == 1.0
    assert held.facts_at(3)["billing service"] == 3
    assert held.facts_at(1)["billing service"] == 1


async def test_a_turn_that_waits_for_a_summary_is_told_from_the_others() -> None:
    changes = {"prepare_ratio": 1.0}
    found = await stall.measure(Variant("additive", changes=changes), turns=11, summary_seconds=0.3)
    assert found["cutting_turns"] >= 1
    assert found["slowest_cutting_ms"] >= 300 > found["ordinary_ms"]


def test_planning_is_timed_for_each_case() -> None:
    assert all(taken > 0 for taken in planning.measure(ContextPolicy(), messages=400).values())
    assert len(planning.growth(ContextPolicy(), results=3, times=(1, 2))) == 2


@pytest.mark.parametrize("kind", economy_kinds.KINDS)
def test_a_talk_is_made_anew_for_each_seed(kind: str) -> None:
    made = [economy_kinds.build_script(kind, seed, 30) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]
    texts = [turn.question for turn in made[0].turns]
    assert len(set(texts)) == len(texts)


async def test_economy_holds_every_kind_of_talk() -> None:
    for kind in economy_kinds.KINDS:
        held = await economy.hold(Variant("additive"), turns=12, kind=kind, seed=5)
        assert economy.facts_of(held)["errors"] == []
        assert len(held.turns) == len(economy_kinds.build_script(kind, 5, 12).turns)


def test_figures_of_several_seeds_have_a_mean_and_a_spread() -> None:
    assert Spread([1.0, 2.0, 4.5]).render(".2f") == "2.50 ± 1.75"
    assert Spread([3.0, 3.0]).render(".1f") == "3.0"
