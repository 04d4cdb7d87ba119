"""The instruments of context quality, at tiny sizes: they run, and tell what is there from what is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from app.context.plan.policy import ContextPolicy
from tests.benchmarks.quality import (
    bill,
    cost,
    economy,
    economy_kinds,
    facts,
    late_use,
    monologues,
    multi_hop,
    paraphrases,
    planning,
    poc,
    stall,
    talks,
    user_text,
)
from tests.benchmarks.quality.cache import PrefixCache, common_prefix
from tests.benchmarks.quality.dialogue_talk import build_dialogue
from tests.benchmarks.quality.model import by_length
from tests.benchmarks.quality.recordings import Chat, LateUse, Question, Run, longer
from tests.benchmarks.quality.spread import Spread
from tests.benchmarks.quality.summaries import COUNTER, SUMMARIES, allowance
from tests.benchmarks.quality.talk import NotThere, Variant
from tests.benchmarks.quality.texts import Prose, all_text, normalised, occurs
from tests.benchmarks.quality.user_text_talk import SCENES, build_scene
from tests.support.prompt_caches import CacheRule

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


def test_an_answer_of_a_recording_that_only_a_value_list_has_is_told_apart() -> None:
    question = CHAT.questions[0]
    assert not facts.seen(question, f"{FACT}\nValues mentioned: cabinet 4417").only_listed
    listed = facts.seen(question, "They talked about keys.\nValues mentioned: cabinet 4417")
    assert (listed.answer, listed.only_listed, listed.in_its_words) == (True, True, False)
    assert not facts.seen(question, "They talked about keys.").only_listed


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


@pytest.mark.parametrize("rule", bill.TARIFFS)
async def test_a_short_talk_is_billed_as_the_gateways_books_have_it(rule: CacheRule) -> None:
    marked = bill.facts_of(await bill.hold(rule, "marks", turns=14))
    assert marked["summary_calls"] == marked["cuts"] == 0
    assert marked["books_off"] == pytest.approx(0, abs=1e-9)
    assert marked["read_tokens"] > 0.5 * marked["prompt_tokens"]
    if rule != "prefix":
        assert bill.facts_of(await bill.hold(rule, "no marks", turns=14))["read_tokens"] == 0


async def test_the_books_have_each_summary_of_a_long_talk_once() -> None:
    held = await bill.hold("prefix", "marks", turns=48)
    answers = [call for call in held.meter.calls if not call.is_summary]
    # What is written after the last answer, no answer can tell.
    while held.meter.calls[-1].is_summary:
        held.meter.calls.pop()
    facts = bill.facts_of(held)
    assert len(held.costs) == len(answers)
    assert facts["summary_calls"] >= 2
    assert facts["books_off"] == pytest.approx(0, abs=1e-9)


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
    found = await stall.measure(Variant("additive", changes=stall.WAITING), turns=11, summary_seconds=0.3)
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
    assert Spread([0.5, 0.7]).render(".0%") == "60 ± 10%"
    assert Spread([3.0, 3.0]).render(".1f") == "3.0"


SEEDED: dict[str, Callable[[int], talks.Talk]] = {
    "paraphrases": paraphrases.build_talk,
    "dialogues": build_dialogue,
    "multi_hop": multi_hop.build_talk,
    "monologues": monologues.build_talk,
}


@pytest.mark.parametrize("name", SEEDED)
def test_a_talk_and_its_questions_are_made_anew_for_each_seed(name: str) -> None:
    one, again, other = (SEEDED[name](seed) for seed in (1, 1, 2))
    assert (one.messages, one.questions) == (again.messages, again.questions)
    assert not set(one.said) & {text for text in other.said if len(text) > 200}
    answers = {evidence.words for question in one.questions for evidence in question.evidence if evidence.is_unique}
    assert not answers & {
        evidence.words for question in other.questions for evidence in question.evidence if not evidence.date
    }


@pytest.mark.parametrize("name", SEEDED)
def test_the_whole_talk_holds_every_answer_and_only_once(name: str) -> None:
    talk = SEEDED[name](3)
    assert len(talk.questions) >= 20
    turns = [normalised(message["content"]) for message in talk.messages]
    for question in talk.questions[:20]:
        assert talks.judge(question, [*talk.messages, {"role": "user", "content": question.text}]).is_answered
        assert not talks.judge(question, [{"role": "user", "content": question.text}]).there
        for one in question.evidence:
            if one.is_unique and not one.date:
                assert sum(occurs(normalised(one.words), turn) for turn in turns) == 1


def asked_question(*evidence: talks.Evidence) -> talks.TalkQuestion:
    return talks.TalkQuestion("Where does Ann keep the key?", "single", evidence)


def view(*texts: str) -> list[Mapping[str, Any]]:
    return [{"role": "user", "content": text} for text in texts]


def test_an_answer_that_stands_only_in_a_value_list_is_told_apart() -> None:
    question = asked_question(talks.Evidence("K-4417", "hangs in K-4417 behind"))
    planted = talks.judge(question, view("The key hangs in K-4417 behind the door."))
    assert (planted.is_answered, planted.is_only_listed) == (True, False)
    listed = talks.judge(question, view("They talked.\nValues mentioned: Ann, K-4417, 12 May\n</earlier_conversation>"))
    assert (listed.is_answered, listed.is_only_listed) == (False, True)
    missed = talks.judge(question, view("The key hangs in K-44 behind the door.\nValues mentioned: K-44"))
    assert (missed.is_answered, missed.is_only_listed) == (False, False)


def test_words_that_are_not_unique_need_their_surroundings() -> None:
    evidence = talks.Evidence("Friday", "comes on Friday at", is_unique=False)
    assert talks.judge(asked_question(evidence), view("Bob comes on Friday at noon.")).is_answered
    assert not talks.judge(asked_question(evidence), view("It rained on Friday.")).is_answered


def test_an_event_counts_with_its_date_before_it() -> None:
    evidence = talks.Evidence("saw a whale", "I saw a whale today", date="8 May, 2021")
    assert evidence.is_in("[8 May, 2021] Ann: Guess what, I saw a whale today!")
    assert not evidence.is_in("[8 May, 2021] Bob: Hello.\n[9 May, 2021] Ann: I saw a whale today!")
    assert not evidence.is_in("Ann: I saw a whale today!")


def test_a_question_of_several_steps_is_answered_by_all_of_them() -> None:
    question = asked_question(talks.Evidence("Velmoor", "to Velmoor"), talks.Evidence("Tarsen", "met Tarsen"))
    some = talks.judge(question, view("We went to Velmoor."))
    assert (some.is_answered, some.share) == (False, 0.5)
    assert talks.judge(question, view("We went to Velmoor.", "I met Tarsen.")).is_answered


def test_tokens_of_quotations_are_those_of_the_messages_that_hold_them() -> None:
    quoted = {"role": "user", "content": "Quoted.\n<quoted 0123abcd>\n--- 0123abcd [3] user\nHello\n</quoted 0123abcd>"}
    assert talks.count_quoted_tokens([*view("Hello"), quoted]) == COUNTER.count_message(quoted)
    short = {"role": "user", "content": "<quoted §>\n§user: Hello\n</quoted §>"}
    assert talks.count_quoted_tokens([short]) == COUNTER.count_message(short)
    assert talks.count_quoted_tokens(view("Hello", "He said <quoted> things.")) == 0


async def test_a_generated_talk_is_held_and_asked_about() -> None:
    talk = paraphrases.build_talk(1, facts=3, turns=6)
    outcome = await talks.hold_talk(Variant("additive"), talk, window=16_000, summaries="failing")
    assert outcome.compute_share() == 1.0
    assert outcome.compute_mean("prompt_tokens") > talk.tokens
    assert (outcome.summary_calls, outcome.failed_turns) == (0, 0)
    assert talks.keep_newest(talk, window=16_000).compute_share() == 1.0
    assert talks.keep_newest(talk, window=100).compute_share() == 0.0


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_says_its_rules_once_and_is_made_from_its_seed(name: str) -> None:
    made = build_scene(name, 1)
    assert made == build_scene(name, 1) != build_scene(name, 2)
    text = normalised(all_text(made.messages))
    said = [*made.rules, *(sentence for pair in made.withdrawn for sentence in pair), *made.foreign]
    assert said
    assert all(normalised(sentence) in text for sentence in said)
    assert made.messages[-1]["role"] == "user"


def test_rules_are_looked_for_word_for_word_outside_of_value_lists() -> None:
    made = build_scene("top", 1)
    assert user_text.look_for_rules(made, view(*made.rules))["shown"] == 1.0
    assert user_text.look_for_rules(made, view("Values mentioned: " + "; ".join(made.rules)))["shown"] == 0.0


def test_a_withdrawn_rule_is_wrong_only_without_its_withdrawal() -> None:
    made = build_scene("retractions", 1)
    rules, ends = zip(*made.withdrawn, strict=True)
    found = [user_text.look_for_rules(made, view(*said))["alone"] for said in (rules, [*rules, *ends], ends)]
    assert found == [1.0, 0.0, 0.0]


def test_words_of_others_are_wrong_only_as_the_users() -> None:
    made = build_scene("foreign", 1)
    rule = made.others["bob"][0]
    own, named, bare = (
        user_text.look_for_rules(made, view(f"<user_said>\n{line}\n</user_said>"))["foreign"]
        for line in (f"- {made.foreign[0]}", f"- bob: {rule}", f"- ann: {rule}")
    )
    assert (own > 0, named, bare > 0) == (True, 0.0, True)


async def test_rules_of_a_scene_that_fits_are_all_there() -> None:
    made = build_scene("middle", 2, turns=10)
    found = await user_text.measure(Variant("additive"), made, window=16_000, summaries="failing")
    assert (found["shown"], found["failed"], found["misses"]) == (1.0, 0, [])
