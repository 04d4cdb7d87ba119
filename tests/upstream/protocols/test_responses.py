"""A provider of the Responses API over real HTTP: its answers and errors as they are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from opentelemetry.sdk.trace import Span, TracerProvider

from app.errors import UpstreamUnavailable
from app.observability import metric_families
from app.observability.metrics import Metrics
from app.pipeline.call.upstream_reply import StreamReply, read_first_event_or_body
from app.upstream.protocols.overflow_detection import detect_overflow
from app.upstream.protocols.responses_provider import ResponsesProvider
from app.upstream.provider_contract import ModelDeployment, RoutedReply, UpstreamReply, UpstreamRequest
from app.upstream.routing.measured_calls import MeasuredReply
from app.upstream.routing.router import BufferedReply, RetryPolicy, Router
from app.upstream.routing.routes import ConfiguredDeployment, ModelRoute
from app.upstream.routing.traced_calls import CallSpan
from tests.live import DROP, Reply, ScriptedUpstream, serving
from tests.support.responses_upstream import (
    ResponsesUpstream,
    ScriptedResponse,
    function_call_item,
    render_event,
    respond,
)

CALL = function_call_item("a", '{"x": 1}', "call_a")
LONG = "word " * 100
HTML = Reply(b"<html>Hello.</html>", headers={"content-type": "text/html"})


class Bench:
    """A router with one provider, and the strict upstream behind it."""

    def __init__(self, upstream: ResponsesUpstream, provider: ResponsesProvider) -> None:
        self.upstream = upstream
        self.provider = provider
        self.metrics = Metrics()
        self.router = Router(
            {"m": ModelRoute((ConfiguredDeployment("p"),))},
            {"p": provider},
            RetryPolicy(attempts=1),
            sleep=asyncio.sleep,
            clock=asyncio.get_running_loop().time,
            random=lambda: 0.0,
            metrics=self.metrics,
        )

    async def send(self, **fields: Any) -> RoutedReply:
        async def build_body(deployment: ModelDeployment) -> bytes:
            return orjson.dumps({"model": deployment.upstream_model, "store": False, "input": "Hi.", **fields})

        return await self.router.send(self.router.resolve("m"), build_body)

    async def read(self, *, stream: bool = False, **fields: Any) -> tuple[StreamReply | BufferedReply, bytes | None]:
        routed = await self.send(stream=stream, **fields)
        return await read_first_event_or_body(routed.reply, routed.deployment, stream=stream)


@asynccontextmanager
async def bench(*answers: ScriptedResponse | Reply, **options: Any) -> AsyncIterator[Bench]:
    upstream = ResponsesUpstream(*answers, **options)
    async with serving(upstream, lifespan="off") as address:
        provider = ResponsesProvider("p", f"{address}/v1", "secret")
        try:
            yield Bench(upstream, provider)
        finally:
            await provider.aclose()


async def read_pieces(reply: UpstreamReply) -> bytes:
    pieces = [piece async for piece in reply.iter_bytes()]
    await reply.aclose()
    return b"".join(pieces)


async def test_a_call_goes_to_responses_with_the_providers_key() -> None:
    async with bench(respond("Hello.")) as made:
        routed = await made.send()
        body = await routed.reply.read()

    assert (routed.reply.status, orjson.loads(body)["output"][0]["content"][0]["text"]) == (200, "Hello.")
    assert made.upstream.paths == ["/v1/responses"]
    assert made.upstream.headers[0]["authorization"] == "Bearer secret"


async def test_replies_come_untouched() -> None:
    async with bench(respond("Hello, world."), respond("Hello, world.")) as made:
        whole, whole_error = await made.read()
        reply, error_body = await made.read(stream=True)
        assert isinstance(reply, StreamReply)
        events = [*reply.first_events]
        async for more in reply.iter_events():
            events += more
        await reply.aclose()

    assert isinstance(whole, BufferedReply)
    assert (whole_error, error_body) == (None, None)
    assert (whole.protocol, reply.protocol) == ("responses", "responses")
    assert orjson.loads(whole.body)["object"] == "response"
    kinds = [json.loads(event.data or b"")["type"] for event in events]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")


@pytest.mark.parametrize(("stream", "fails_in_stream"), [(False, False), (True, False), (True, True)])
async def test_an_overflow_is_recognised(*, stream: bool, fails_in_stream: bool) -> None:
    async with bench(window=50, fails_in_stream=fails_in_stream) as made:
        reply, error_body = await made.read(stream=stream, input=LONG)
        await reply.aclose()

    assert reply.status == (200 if fails_in_stream else 400)
    assert error_body is not None
    assert detect_overflow(reply.status, error_body) is not None


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_response_is_an_error(*, stream: bool) -> None:
    failed = ScriptedResponse(error={"code": "server_error", "message": "Broken."})
    async with bench(failed) as made:
        reply, error_body = await made.read(stream=stream)
        await reply.aclose()

    assert orjson.loads(error_body or b"")["error"]["message"] == "Broken."


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
async def test_an_error_passes_unchanged(status: int) -> None:
    body = b'{"error":{"message":"No.","type":"t","param":null,"code":"c"}} '
    async with bench(Reply(body, status=status)) as made:
        reply = (await made.send()).reply
        assert (reply.status, await reply.read()) == (status, body)
        await reply.aclose()


@pytest.mark.parametrize(
    "answer",
    [
        HTML,
        Reply(b""),
        Reply([]),
        Reply({"object": "list", "data": []}),
        Reply({"choices": [{"message": {"content": "Of another protocol."}}]}),
        Reply(pieces=[b"data: {}\n\n"]),
    ],
)
async def test_anything_but_a_response_is_refused_with_a_hint(answer: Reply) -> None:
    async with bench(answer) as made:
        with pytest.raises(UpstreamUnavailable, match="'p' answered with something that is not a response") as caught:
            await made.read()

    assert str(caught.value).endswith("Check providers.p.base_url and providers.p.protocol.")


async def test_a_page_in_place_of_a_stream_is_refused() -> None:
    async with bench(HTML) as made:
        with pytest.raises(UpstreamUnavailable, match="is not a response"):
            await made.read(stream=True)


async def test_a_stream_of_chat_chunks_has_no_answer() -> None:
    chunks = Reply(pieces=[b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', b"data: [DONE]\n\n"])
    async with bench(chunks) as made:
        with pytest.raises(UpstreamUnavailable, match="ended before its answer began"):
            await made.read(stream=True)


@pytest.mark.parametrize("ending", [(), (DROP,)])
async def test_a_stream_that_breaks_off_has_no_end(ending: tuple[object, ...]) -> None:
    begun = [
        render_event({"type": "response.created", "response": {"id": "resp_1"}}),
        render_event({"type": "response.output_text.delta", "output_index": 0, "delta": "Hello"}),
        b'event: response.output_text.delta\ndata: {"type":"response.outp',
    ]
    async with bench(Reply(pieces=[*begun, *ending])) as made:
        reply, error_body = await made.read(stream=True)
        assert isinstance(reply, StreamReply)
        body = b""
        try:
            async for events in reply.iter_events():
                body += b"".join(event.raw for event in events)
        except UpstreamUnavailable:
            assert ending
        else:
            assert not ending
        await reply.aclose()

    assert error_body is None
    assert begun[-1].startswith(body) or body.endswith(begun[-1])


async def test_a_call_that_is_passed_through_is_not_translated() -> None:
    body = b'{"object":"response","output":[]}'
    upstream = ScriptedUpstream(default=lambda _: Reply(body))
    async with serving(upstream, lifespan="off") as address:
        provider = ResponsesProvider("p", f"{address}/v1", "secret")
        for path, method in (("/responses/input_tokens", "POST"), ("/responses", "PUT")):
            reply = await provider.send(UpstreamRequest(path, b"{}", method=method))
            assert await reply.read() == body
            await reply.aclose()
        await provider.aclose()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_is_counted_and_timed(*, stream: bool) -> None:
    async with bench(respond("Hello.")) as made:
        reply = (await made.send(stream=stream)).reply
        await (read_pieces(reply) if stream else reply.read())
        await reply.aclose()

    labels = {"provider": "p", "model": "m", "purpose": "answer"}
    numbers = made.metrics.read_snapshot()
    assert numbers.sum_series(metric_families.UPSTREAM_REQUESTS, **labels, outcome="ok") == 1
    assert sum(numbers.sum_histogram(metric_families.UPSTREAM_SECONDS, **labels)) == 1


def start_span() -> Span:
    """Starts a span that keeps what it is told."""
    span = TracerProvider().get_tracer("tests").start_span("call")
    assert isinstance(span, Span)
    return span


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("error", [None, {"code": "server_error", "message": "Broken."}])
async def test_a_span_tells_of_the_answer(*, stream: bool, error: dict[str, str] | None) -> None:
    span = start_span()
    call = CallSpan(span, protocol="responses")
    body = orjson.dumps({"model": "m", "store": False, "input": "Hi.", "stream": stream})
    async with bench(respond("Hello.", CALL, error=error)) as made:
        request = UpstreamRequest("/responses", body)
        reply = MeasuredReply(await call.send(made.provider, request), call)
        await (read_pieces(reply) if stream else reply.read())
        await reply.aclose()

    attributes: dict[str, Any] = dict(span.attributes or {})
    if error is not None:
        assert attributes["error.type"] == "error_in_answer"
        return
    assert "error.type" not in attributes
    assert attributes["gen_ai.response.id"].startswith("resp_")
    assert attributes["gen_ai.response.finish_reasons"] == ("tool_calls",)
    assert attributes["gen_ai.usage.input_tokens"] > 0


async def test_a_span_reads_no_id_of_an_event() -> None:
    span = start_span()
    call = CallSpan(span, protocol="responses")
    pieces = [b'data: {"type":"keepalive","id":"no_answer"}\n\n']
    pieces += [render_event({"type": "response.completed", "response": {"id": "resp_1", "status": "completed"}})]
    async with bench(Reply(pieces=pieces)) as made:
        body = orjson.dumps({"model": "m", "store": False, "input": "Hi.", "stream": True})
        reply = await call.send(made.provider, UpstreamRequest("/responses", body))
        await read_pieces(MeasuredReply(reply, call))

    assert (span.attributes or {})["gen_ai.response.id"] == "resp_1"
