"""The quirks of `config/providers.yaml` against the rules of the templates and providers they are written for."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.context.count.tokenizers import load_tokenizer
from app.settings import load_settings
from app.upstream.provider_contract import ProviderQuirks
from app.upstream.quirks import fit_to_quirks
from app.upstream.quirks.role_alternation import BRIDGING_ASSISTANT_TEXT, OPENING_USER_TEXT
from tests.support.chat_counter import ChatCounter
from tests.upstream.quirks.templates import rules
from tests.upstream.quirks.templates.talks import talks

PROVIDERS = Path(__file__).parents[3] / "config/providers.yaml"
WORD = re.compile(r"w\d+\.")

PROVIDER_RULES = {"mistral": rules.mistral_api, "groq": rules.groq_api, "deepseek": rules.deepseek_api}
MODEL_RULES = {
    "gemma-3": rules.gemma_3_template,
    "mistral-small": rules.mistral_template,
    "qwen3": rules.qwen_3_5_template,
    "llama3.1": rules.llama_3_1_template,
}
PRESETS = [*PROVIDER_RULES, *MODEL_RULES]


@cache
def preset(name: str) -> ProviderQuirks:
    """The quirks of a provider or of a model of the example file, as the gateway puts them together."""
    settings = load_settings(str(PROVIDERS), environ={})
    if name in settings.providers:
        return ProviderQuirks(**settings.providers[name].quirks.model_dump())
    model = settings.models[name]
    return ProviderQuirks(**model.quirks.merge_over(settings.providers[model.provider].quirks).model_dump())


def through(quirks: ProviderQuirks, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    shown, _ = fit_to_quirks("openai", quirks, [json.dumps(message).encode() for message in messages], {})
    return [json.loads(raw) for raw in shown]


def words(messages: list[dict[str, Any]]) -> list[str]:
    """Everything said, system messages first, without reasoning."""
    first = [m for m in messages if m["role"] in ("system", "developer")]
    others = [m for m in messages if m["role"] not in ("system", "developer")]
    return [
        word
        for message in (*first, *others)
        for word in WORD.findall(json.dumps([message["content"], message.get("refusal")]))
    ]


@pytest.mark.parametrize("name", PRESETS)
@given(data=st.data())
def test_any_conversation_fits_the_rules_of_its_preset(name: str, data: st.DataObject) -> None:
    rule = (PROVIDER_RULES | MODEL_RULES)[name]
    messages = data.draw(talks(reasons=name == "deepseek"))

    rule(through(preset(name), messages))


@given(talks(tools=False))
def test_talks_without_tools_fit_the_template_of_gemma_2(messages: list[dict[str, Any]]) -> None:
    rules.gemma_2_template(through(preset("gemma-3"), messages))


@pytest.mark.parametrize("name", PRESETS)
@given(data=st.data())
def test_no_word_is_lost_doubled_or_moved(name: str, data: st.DataObject) -> None:
    messages = data.draw(talks())

    assert words(through(preset(name), messages)) == words(messages)


@pytest.mark.parametrize("name", PRESETS)
@given(data=st.data())
def test_what_fits_is_not_changed_again(name: str, data: st.DataObject) -> None:
    shown, _ = fit_to_quirks("openai", preset(name), [json.dumps(m).encode() for m in data.draw(talks())], {})

    assert fit_to_quirks("openai", preset(name), shown, {})[0] is shown


@pytest.mark.parametrize("name", PRESETS)
@given(data=st.data())
def test_calls_and_results_stay_paired(name: str, data: st.DataObject) -> None:
    messages = data.draw(talks())

    assert pairs(through(preset(name), messages), by_id=preset(name).tool_call_ids != "keep") == pairs(messages)


def pairs(messages: list[dict[str, Any]], *, by_id: bool = False) -> list[tuple[str, list[str]]]:
    """The name of each call with the words of its result, by their ids or by their places."""
    found: list[tuple[str, list[str]]] = []
    for place, message in enumerate(messages):
        calls = message.get("tool_calls") or []
        for number, call in enumerate(calls):
            results = [m for m in messages[place + 1 :] if m["role"] == "tool" and m["tool_call_id"] == call["id"]]
            result = results[0] if by_id else messages[place + 1 + number]
            assert not by_id or len(results) == 1
            found.append((call["function"]["name"], WORD.findall(json.dumps(result["content"]))))
    return found


@pytest.mark.parametrize("name", [name for name in PRESETS if preset(name).reasoning in ("keep", "drop")])
@given(data=st.data())
def test_a_growing_conversation_keeps_its_beginning(name: str, data: st.DataObject) -> None:
    messages = data.draw(talks())
    end = data.draw(st.integers(1, len(messages)))
    assume(all(message["role"] not in ("system", "developer", "tool") for message in messages[end:][:1]))
    assume(all(message["role"] not in ("system", "developer") for message in messages[end:]))

    before = through(preset(name), messages[:end])

    assert through(preset(name), messages)[: len(before[:-1])] == before[:-1]


COUNTER = ChatCounter(load_tokenizer("o200k_base"))


@given(talks(tools=False))
def test_merging_and_hoisting_never_weigh_more(messages: list[dict[str, Any]]) -> None:
    flat = through(ProviderQuirks(flatten_text=True), messages)

    for quirks in (
        ProviderQuirks(system_messages="first"),
        ProviderQuirks(system_messages="into_user"),
        ProviderQuirks(merge_same_role=True),
    ):
        assert COUNTER.count_request(through(quirks, flat)) <= COUNTER.count_request(flat)


@given(talks())
def test_filled_in_turns_are_all_that_is_added(messages: list[dict[str, Any]]) -> None:
    flat = through(ProviderQuirks(flatten_text=True), messages)
    shown = through(ProviderQuirks(alternate_roles=True, system_messages="first"), flat)
    added = [message for message in shown if message["content"] in (BRIDGING_ASSISTANT_TEXT, OPENING_USER_TEXT)]

    assert COUNTER.count_request(shown) <= COUNTER.count_request(flat) + sum(
        COUNTER.count_message(message) for message in added
    )


def test_the_rules_refuse_what_openai_takes() -> None:
    interrupted: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    for rule in (rules.mistral_api, rules.mistral_template, rules.gemma_3_template, rules.llama_3_1_template):
        with pytest.raises(rules.Refused):
            rule(interrupted)
    with pytest.raises(rules.Refused, match="System role"):
        rules.gemma_2_template([{"role": "system", "content": "a"}])
    with pytest.raises(rules.Refused, match="at the beginning"):
        rules.qwen_3_5_template([{"role": role, "content": "a"} for role in ("user", "system")])
