from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import orjson
import pytest

from app.compaction.acceptance.summary_acceptance import accept_summary
from app.compaction.summarizer.summary_request import NoUsableSummary, SummaryRequest
from app.context.plan.budget import compute_max_input_tokens
from app.context.plan.policy import ContextPolicy, SummarizerPolicy, make_policy
from app.dialects.chat.stream_decoder import ChatStreamDecoder
from app.dialects.first_choice import FirstChoice, read_first_choice
from app.errors import UpstreamRefused
from app.simulator.options_and_faults import SimulatedFaults, SimulatorOptions
from app.upstream.provider_contract import ProviderQuirks
from tests.compaction.simulated_compaction import COUNT, Scene, log_of, summary_request_for, talk


def request_for(
    turns: int = 20, *, policy: ContextPolicy | None = None, model: str = "sim", **fields: Any
) -> SummaryRequest:
    log = fields.pop("messages", None) or log_of(talk(turns))
    return summary_request_for(log, policy=policy or ContextPolicy(), model=model, **fields)


def read(body: dict[str, Any]) -> FirstChoice:
    decoder = ChatStreamDecoder()
    raw = orjson.dumps(body)
    decoder.add_whole(raw)
    return read_first_choice(decoder, decoder.decode_whole(raw))


def answer(message: dict[str, Any], finish_reason: str | None = "stop") -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": finish_reason}]}


async def test_facts_survive_and_usage_is_told() -> None:
    summary = await Scene().summarizer.generate_summary(request_for())
    assert "Number7 has code 65433" in summary.text
    assert summary.usage is not None
    assert COUNT.count(summary.text) <= 400


async def test_the_call_has_a_limit_and_neither_tools_nor_formats() -> None:
    scene = Scene()
    await scene.summarizer.generate_summary(request_for(focus="the lockers"))
    [body] = scene.router.calls
    assert set(body) == {"model", "messages", "max_tokens", "stream", "stream_options"}
    assert body["max_tokens"] == 400
    assert "Pay particular attention to: the lockers" in body["messages"][0]["content"]


@pytest.mark.parametrize(
    ("model", "quirks", "field"),
    [
        ("gpt-4o", ProviderQuirks(), "max_tokens"),
        ("openai/o3-mini", ProviderQuirks(), "max_completion_tokens"),
        ("gpt-4o", ProviderQuirks(max_tokens_field="max_completion_tokens"), "max_completion_tokens"),
    ],
)
async def test_the_limit_has_the_name_that_the_model_knows(model: str, quirks: ProviderQuirks, field: str) -> None:
    scene = Scene()
    scene.router.quirks = quirks
    await scene.summarizer.generate_summary(request_for(model=model))
    assert scene.router.calls[0][field] == 400


async def test_another_model_and_prompt_may_be_configured() -> None:
    scene = Scene()
    policy = make_policy(summarizer=SummarizerPolicy(model="sim-cheap", prompt="Summarize like a nurse."))
    summary = await scene.summarizer.generate_summary(request_for(policy=policy))
    assert summary.model == scene.router.calls[0]["model"] == "sim-cheap"
    assert scene.router.calls[0]["messages"][0]["content"].startswith("Summarize like a nurse.")
    assert summary.prompt_version != (await scene.summarizer.generate_summary(request_for())).prompt_version


@pytest.mark.parametrize("window", [2048, 4096, 16_384])
async def test_the_input_always_fits_the_summarizers_window(window: int) -> None:
    scene = Scene(window=window)
    await scene.summarizer.generate_summary(request_for(200, model=f"sim-{window}"))
    assert all(COUNT.count_request(body["messages"]) + body["max_tokens"] <= window for body in scene.router.calls)


@pytest.mark.parametrize("window", [2048, 8192, 128_000])
async def test_ranges_are_cut_to_what_a_call_can_read_unshortened(window: int) -> None:
    log = log_of(talk(600))
    limit = compute_max_input_tokens(ContextPolicy(), window)
    fitting = [message for message in log if message.tokens_total <= limit]
    scene = Scene(window=window)
    request = request_for(model=f"sim-{window}")
    await scene.summarizer.generate_summary(replace(request, messages=fitting))
    assert "left out" not in scene.router.calls[0]["messages"][0]["content"].partition("<transcript")[2]


async def test_a_window_that_is_smaller_than_believed_halves_the_input() -> None:
    scene = Scene(window=8192)
    await scene.summarizer.generate_summary(request_for(64, model="sim-6000"))
    first, second = (COUNT.count_request(body["messages"]) for body in scene.router.calls)
    assert second < first * 0.6


async def test_half_of_what_was_read_is_less_than_half_of_a_large_room() -> None:
    scene = Scene(window=128_000)
    await scene.summarizer.generate_summary(request_for(64, model="sim-2500"))
    sizes = [COUNT.count_request(body["messages"]) for body in scene.router.calls]
    assert len(sizes) in (2, 3)
    assert all(after < before * 0.8 for before, after in pairwise(sizes))


async def test_a_third_overflow_is_the_callers_to_handle() -> None:
    with pytest.raises(UpstreamRefused):
        await Scene(window=8192).summarizer.generate_summary(request_for(80, model="sim-1000"))


async def test_a_refusal_of_another_kind_is_not_repeated() -> None:
    scene = Scene(options=SimulatorOptions(faults=SimulatedFaults(status=400)))
    with pytest.raises(UpstreamRefused):
        await scene.summarizer.generate_summary(request_for())
    assert len(scene.router.calls) == 1


async def test_an_allowance_spent_on_thinking_is_raised_once() -> None:
    said = [
        {"content": "<think>hm, what", "finish_reason": "length"},
        {"content": "<think>aha</think>The code is 4711."},
    ]
    scene = Scene(said=lambda body: said.pop(0))
    summary = await scene.summarizer.generate_summary(request_for())
    assert summary.text.splitlines()[0] == "The code is 4711."
    assert [body["max_tokens"] for body in scene.router.calls] == [400, 1600]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (answer({"content": "  \n"}), "blank"),
        (answer({"content": "<think>only thoughts</think>"}), "blank"),
        (answer({"content": None, "tool_calls": [{"id": "a"}]}, "tool_calls"), "tool"),
        (answer({"content": "The code is 1."}, None), "finish reason"),
        (answer({"content": "The code is 1."}, "content_filter"), "filtered"),
        (answer({"content": "word " * 5000}), "shorter"),
        ({"choices": []}, "finish reason"),
    ],
)
def test_an_unusable_answer_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(NoUsableSummary, match=reason):
        accept_summary(read(given), request_for(), COUNT)


def test_a_summary_that_was_cut_at_its_limit_is_still_one() -> None:
    cut_off = read(answer({"content": "The code is 1."}, "length"))
    assert accept_summary(cut_off, request_for(), COUNT) == "The code is 1."
