"""Summary calls are streams: their limit counts the silence, not the whole answer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from app.compaction.summarizer.summary_request import NoUsableSummary
from app.context.plan.policy import SummarizerPolicy
from app.errors import UpstreamUnavailable
from app.upstream.provider_contract import ProviderQuirks
from tests.compaction.simulated_compaction import Scene, saying
from tests.compaction.summarizer.test_responses_summarizer import GOOD, generator, request_for
from tests.live import DONE, DROP, Reply, ScriptedUpstream, chunk, completion, stream, usage_chunk
from tests.support.responses_upstream import (
    ResponsesUpstream,
    ScriptedResponse,
    build_events,
    build_response,
    number_events,
    render_event,
    respond,
    text_item,
)

SILENCE_SECONDS = 1.0
PAUSE_SECONDS = 0.12
PIECES = 12


def stream_chat() -> bytes:
    return b"".join(stream(*GOOD.split(" ")).pieces or ()).replace(b'"content": "', b'"content": " ')


def stream_response() -> bytes:
    answer = respond(GOOD)
    response = build_response(answer, {"model": "m"}, "resp_1", [{"id": "msg_1", **text_item(GOOD)}], 100)
    return b"".join(render_event(event) for event in number_events(build_events(response, answer)))


def upstream_of(protocol: str, pieces: Sequence[Any]) -> ScriptedUpstream:
    reply = Reply(pieces=pieces)
    return ResponsesUpstream(reply) if protocol == "responses" else ScriptedUpstream(reply)


def cut(protocol: str) -> list[bytes]:
    """The bytes of an answer, cut without regard to its events."""
    whole = stream_response() if protocol == "responses" else stream_chat()
    size = -(-len(whole) // PIECES)
    return [whole[start : start + size] for start in range(0, len(whole), size)]


LIMITED = SummarizerPolicy(timeout_seconds=SILENCE_SECONDS)


@pytest.mark.parametrize("protocol", ["openai", "responses"])
async def test_a_slow_stream_may_take_longer_than_the_limit_for_its_silence(protocol: str) -> None:
    pieces = [part for piece in cut(protocol) for part in (PAUSE_SECONDS, piece)]
    assert PAUSE_SECONDS * PIECES > SILENCE_SECONDS
    upstream = upstream_of(protocol, pieces)
    async with generator(upstream) as summaries:
        summary = await summaries.generate_summary(request_for(summarizer=LIMITED))

    assert GOOD in summary.text
    assert summary.usage is not None
    assert upstream.requests[0]["stream"] is True


@pytest.mark.parametrize("protocol", ["openai", "responses"])
@pytest.mark.parametrize("sent", [0, PIECES // 2])
async def test_a_stream_that_falls_silent_is_given_up(protocol: str, sent: int) -> None:
    upstream = upstream_of(protocol, [*cut(protocol)[:sent], 60])
    limit = SummarizerPolicy(timeout_seconds=0.2)
    async with generator(upstream) as summaries:
        with pytest.raises(UpstreamUnavailable, match=r"silent for 0\.2 s"):
            await summaries.generate_summary(request_for(summarizer=limit))

    await upstream.left.wait()  # nobody waits for the rest: the provider is told


async def test_usage_is_asked_for_where_the_provider_takes_the_field() -> None:
    for quirks, options in ((ProviderQuirks(), {"include_usage": True}), (ProviderQuirks(stream_usage=False), None)):
        scene = Scene(said=saying(GOOD))
        scene.router.quirks = quirks
        await scene.summarizer.generate_summary(request_for())
        assert scene.router.calls[0].get("stream_options") == options


async def test_a_server_that_does_not_stream_is_understood() -> None:
    async with generator(ScriptedUpstream(completion(GOOD))) as summaries:
        assert GOOD in (await summaries.generate_summary(request_for())).text


async def test_a_stream_that_breaks_off_after_its_answer_is_an_answer() -> None:
    pieces = [chunk({"content": GOOD}), chunk({}, "stop"), DROP]
    async with generator(ScriptedUpstream(Reply(pieces=pieces))) as summaries:
        assert GOOD in (await summaries.generate_summary(request_for())).text


@pytest.mark.parametrize(
    "pieces", [[chunk({"content": GOOD}), DROP], [chunk({"content": GOOD}), usage_chunk(), DONE], [b": ping\n\n"]]
)
async def test_a_stream_that_ends_before_its_answer_is_no_summary(pieces: list[Any]) -> None:
    async with generator(ScriptedUpstream(Reply(pieces=pieces))) as summaries:
        with pytest.raises((NoUsableSummary, UpstreamUnavailable)):
            await summaries.generate_summary(request_for())


@pytest.mark.parametrize("protocol", ["openai", "responses"])
async def test_an_overflow_inside_a_stream_is_asked_again_with_less(protocol: str) -> None:
    error = {"code": "context_length_exceeded", "message": "maximum context length is 900 tokens"}
    upstream: ScriptedUpstream
    if protocol == "responses":
        upstream = ResponsesUpstream(ScriptedResponse(error=error), respond(GOOD))
    else:
        data = orjson.dumps({"error": {**error, "type": "invalid_request_error"}})
        upstream = ScriptedUpstream(Reply(pieces=[b"data: " + data + b"\n\n"]), completion(GOOD))
    async with generator(upstream) as summaries:
        assert GOOD in (await summaries.generate_summary(request_for())).text

    sizes = [len(body) for body in upstream.bodies]
    assert all(later < earlier for earlier, later in itertools.pairwise(sizes))
    assert len(sizes) == 2
