from __future__ import annotations

import contextlib
from itertools import count
from typing import Any

import orjson
import pytest

from app.errors import UpstreamUnavailable
from app.simulator.options_and_faults import SimulatedFaults, SimulatorOptions
from app.simulator.simulated_provider import SimulatedProvider, SimulatedReply
from app.simulator.simulator import Simulator
from app.upstream.provider_contract import CallTimes, UpstreamProvider, UpstreamReply, UpstreamRequest
from tests.simulator.counting import RoughCounter


class Slept(list[float]):
    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def provider_with(options: SimulatorOptions | None = None, slept: Slept | None = None) -> SimulatedProvider:
    ids = count(1)
    simulator = Simulator(
        options or SimulatorOptions(),
        counter_for=lambda model: RoughCounter(),
        clock=lambda: 1_800_000_000.0,
        new_id=lambda: f"{next(ids):04d}",
        sleep=slept if slept is not None else Slept(),
    )
    return SimulatedProvider(simulator)


async def post(provider: UpstreamProvider, content: str = "My name is Ada.", **fields: Any) -> UpstreamReply:
    body = {"model": "sim", "messages": [{"role": "user", "content": content}], **fields}
    return await provider.send(UpstreamRequest("/chat/completions", orjson.dumps(body), authorization="Bearer k"))


async def streamed(reply: UpstreamReply) -> list[Any]:
    text = (await reply.read()).decode()
    assert text.endswith("data: [DONE]\n\n")
    return [orjson.loads(line[6:]) for line in text.split("\n\n") if line and not line.endswith("[DONE]")]


async def test_a_completion_has_the_shape_and_usage_of_openais() -> None:
    reply = await post(provider_with())
    body = orjson.loads(await reply.read())
    assert reply.status == 200
    assert body["object"] == "chat.completion"
    assert body["created"] == 1_800_000_000
    assert body["choices"][0]["message"]["content"] == "Noted: My name is Ada."
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(("model", "is_whole"), [("sim", True), ("sim!break_after=2", False)])
async def test_the_end_of_a_stream_is_known_unless_it_broke_off(model: str, *, is_whole: bool) -> None:
    times = CallTimes(started_at=0.0)
    body = orjson.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": "My name is Ada."}]})
    reply = await provider_with().send(UpstreamRequest("/chat/completions", body, times=times))
    with contextlib.suppress(UpstreamUnavailable):
        await reply.read()
    assert times.first_byte_at is not None
    assert (times.ended_at is not None) == is_whole


async def test_a_stream_says_the_same_as_the_completion() -> None:
    chunks = await streamed(await post(provider_with(), stream=True))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    assert "".join(delta.get("content") or "" for delta in deltas) == "Noted: My name is Ada."
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


async def test_usage_comes_last_and_is_null_before_when_asked_for() -> None:
    chunks = await streamed(await post(provider_with(), stream=True, stream_options={"include_usage": True}))
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] > 0


async def test_the_first_requests_fail_as_told_and_later_ones_do_not() -> None:
    provider = provider_with(SimulatorOptions(faults=SimulatedFaults(status=429, retry_after=2, first=2)))
    replies = [await post(provider) for _ in range(3)]
    assert [reply.status for reply in replies] == [429, 429, 200]
    assert replies[0].headers["retry-after"] == "2"
    assert set(orjson.loads(await replies[0].read())["error"]) == {"message", "type", "param", "code"}


async def test_a_model_name_brings_its_own_faults() -> None:
    provider = provider_with()
    assert [(await post(provider, model="sim!status=503,first=1")).status for _ in range(2)] == [503, 200]
    assert (await post(provider)).status == 200
    assert (await post(provider, model="sim!nonsense")).status == 400


async def test_faults_may_strike_summaries_only() -> None:
    provider = provider_with(SimulatorOptions(faults=SimulatedFaults(empty=True, on="summary")))
    transcript = "Summarize.\n<transcript ab>\n--- ab [0] user\nThe code is 12.\n</transcript ab>"
    assert orjson.loads(await (await post(provider, transcript)).read())["choices"][0]["message"]["content"] == ""
    assert orjson.loads(await (await post(provider)).read())["choices"][0]["message"]["content"]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_breaks_off_is_an_unavailable_upstream(stream: bool) -> None:
    reply = await post(provider_with(), model="sim!break_after=2", stream=stream)
    assert reply.status == 200
    with pytest.raises(UpstreamUnavailable):
        await reply.read()


async def test_garbage_is_no_json() -> None:
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(await (await post(provider_with(), model="sim!garbage")).read())


async def test_speed_is_slept_where_it_is_told() -> None:
    slept = Slept()
    options = SimulatorOptions(first_token_seconds=0.5, seconds_per_token=0.1, summary_seconds=9)
    reply = await post(provider_with(options, slept), "One two three.", stream=True)
    assert slept == [0.5]
    await reply.read()
    assert slept[1:] == [0.1] * 6


async def test_a_hanging_model_waits_for_longer_than_anybody() -> None:
    slept = Slept()
    await post(provider_with(slept=slept), model="sim!hang")
    assert slept == [86_400.0]


async def test_requests_are_recorded_within_bounds() -> None:
    provider = provider_with(SimulatorOptions(max_recorded_requests=2))
    for number in range(3):
        await post(provider, f"Number {number}.")
    told = [record["body"]["messages"][0]["content"] for record in provider.simulator.recorded_requests]
    assert told == ["Number 1.", "Number 2."]
    assert provider.simulator.recorded_requests[0]["headers"]["authorization"] == "Bearer k"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/models", 200),
        ("GET", "/models/sim-8k", 404),
        ("GET", "/chat/completions", 404),
        ("POST", "/audio/speech", 404),
        ("POST", "/chat/completions", 400),
    ],
)
async def test_other_paths_answer_like_an_api(method: str, path: str, status: int) -> None:
    reply = await provider_with().send(UpstreamRequest(path, b"not json", method=method))
    assert reply.status == status
    body = orjson.loads(await reply.read())
    assert status == 200 or set(body["error"]) == {"message", "type", "param", "code"}


async def test_the_model_list_tells_windows() -> None:
    assert {model["id"]: model["context_window"] for model in await provider_with().list_models(None)}["sim-8k"] == 8192


async def test_an_unread_reply_can_be_closed() -> None:
    reply = await post(provider_with(), stream=True)
    assert isinstance(reply, SimulatedReply)
    await reply.aclose()
