"""Retries, deployments, fallbacks and breakers; no time passes but what is slept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from app.errors import ContextLengthExceeded, UpstreamUnavailable
from app.upstream.protocols.openai_provider import OpenAIProvider
from app.upstream.provider_contract import (
    AnswerTimedOut,
    CallTimes,
    ClientKey,
    ConnectionDropped,
    ModelDeployment,
    RoutedReply,
    UpstreamReply,
    UpstreamRequest,
)
from app.upstream.routing.circuit_breaker import CircuitBreaker
from app.upstream.routing.deployment_breaker import MAX_TENANTS, DeploymentBreaker
from app.upstream.routing.router import RetryPolicy, Router, parse_retry_after
from app.upstream.routing.routes import ConfiguredDeployment, ModelRoute
from tests.upstream.http.loopback_server import Received, loopback, whole
from tests.upstream.scripted_provider import ScriptedProvider, Time, answer, by_name

UNREACHABLE = UpstreamUnavailable("no connection")
DROPPED = ConnectionDropped("dropped")
QUOTA = b'{"error":{"code":"insufficient_quota","message":"You exceeded your current quota"}}'


class Bench:
    """A router for model `m` at the given providers, in order."""

    def __init__(self, *providers: ScriptedProvider, policy: RetryPolicy | None = None, jitter: float = 0.0) -> None:
        self.time = Time()
        self.router = Router(
            {"m": ModelRoute(tuple(ConfiguredDeployment(provider.name) for provider in providers))},
            by_name(*providers),
            policy,
            sleep=self.time.sleep,
            clock=self.time.clock,
            random=lambda: jitter,
        )
        self.bodies: list[str] = []

    async def open(self, prompt: str = "", tenant: str = "t") -> RoutedReply:
        async def body_for(deployment: ModelDeployment) -> bytes:
            self.bodies.append(deployment.key)
            return f"{deployment.key}{prompt}".encode()

        return await self.router.send(
            self.router.resolve("m"),
            body_for,
            tenant=tenant,
            client_key=ClientKey("Bearer x", "a"),
            headers={"h": "1"},
        )


async def test_a_call_goes_to_the_first_deployment() -> None:
    first, second = ScriptedProvider("a"), ScriptedProvider("b")
    bench = Bench(first, second)

    opened = await bench.open()

    assert (opened.reply.status, opened.deployment.key, opened.attempt_count) == (200, "a/m", 1)
    times = CallTimes(bench.time.now)
    assert first.calls == [
        UpstreamRequest("/chat/completions", b"a/m", authorization="Bearer x", headers={"h": "1"}, times=times)
    ]
    assert second.calls == []


@pytest.mark.parametrize("failure", [answer(500), answer(503), answer(529), answer(429), answer(408), UNREACHABLE])
async def test_what_may_pass_is_tried_again_with_growing_pauses(failure: UpstreamReply | BaseException) -> None:
    provider = ScriptedProvider("a", failure, failure, answer())
    bench = Bench(provider)

    opened = await bench.open()

    assert (opened.reply.status, opened.attempt_count) == (200, 3)
    assert bench.time.slept == [0.5, 1.0]
    assert bench.bodies == ["a/m"]


async def test_pauses_are_shortened_at_random_and_bounded() -> None:
    bench = Bench(
        ScriptedProvider("a", answer(500)),
        policy=RetryPolicy(attempts=6, max_seconds=2, breaker_failures=99),
        jitter=0.5,
    )

    await bench.open()

    assert bench.time.slept == [0.375, 0.75, 1.5, 1.5, 1.5]


@pytest.mark.parametrize("status", [200, 301, 400, 401, 403, 404, 409, 413, 422])
async def test_an_answer_that_trying_again_does_not_change_is_given_back(status: int) -> None:
    first, second = ScriptedProvider("a", answer(status, b"as it was")), ScriptedProvider("b")

    opened = await Bench(first, second).open()

    assert (opened.reply.status, await opened.reply.read()) == (status, b"as it was")
    assert (len(first.calls), second.calls) == (1, [])


async def test_an_overflow_is_given_back_whatever_its_status() -> None:
    body = json.dumps({"error": {"message": "prompt is too long: 3 tokens > 2 maximum"}}).encode()
    provider = ScriptedProvider("a", answer(500, body))

    opened = await Bench(provider).open()

    assert (opened.reply.status, await opened.reply.read(), len(provider.calls)) == (500, body, 1)


async def test_then_comes_the_next_deployment_with_a_body_of_its_own() -> None:
    first, second = ScriptedProvider("a", answer(500)), ScriptedProvider("b")
    bench = Bench(first, second)

    opened = await bench.open()

    assert (opened.deployment.key, opened.attempt_count) == ("b/m", 4)
    assert bench.bodies == ["a/m", "b/m"]
    assert second.calls[0].body == b"b/m"


async def test_when_all_fail_the_last_answer_reaches_the_client_as_it_was() -> None:
    bench = Bench(
        ScriptedProvider("a", answer(429, b"slow down", retry_after="1")),
        ScriptedProvider("b", answer(503, b"overloaded", x_request_id="r")),
        ScriptedProvider("c", UNREACHABLE),
    )

    opened = await bench.open()

    assert (opened.reply.status, await opened.reply.read()) == (503, b"overloaded")
    assert opened.reply.headers == {"x-request-id": "r"}
    assert [piece async for piece in opened.reply.iter_bytes()] == [b"overloaded"]
    assert opened.attempt_count == 9


async def test_when_nobody_answers_that_is_the_error() -> None:
    with pytest.raises(UpstreamUnavailable, match="no connection"):
        await Bench(ScriptedProvider("a", UNREACHABLE)).open()


@pytest.mark.parametrize(("failure", "how"), [(answer(503), "It answered 503."), (UNREACHABLE, "no connection")])
async def test_the_log_says_how_a_deployment_failed(
    failure: UpstreamReply | BaseException, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    await Bench(ScriptedProvider("a", failure), ScriptedProvider("b")).open()
    assert caplog.messages == [f"a/m gave no usable answer, tries so far: 3. {how}"]


async def test_the_log_says_how_long_a_deployment_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    policy = RetryPolicy(breaker_failures=2, breaker_seconds=30)
    bench = Bench(ScriptedProvider("a", answer(500)), ScriptedProvider("b"), policy=policy)
    await bench.open("one prompt")
    await bench.open("another")
    assert caplog.messages == [
        "a/m gave no usable answer, tries so far: 3. It answered 500.",
        "a/m gave no usable answer, tries so far: 1. It answered 500. It gets no calls of this tenant for 30 s.",
    ]


async def test_a_dropped_connection_is_tried_again_at_once_but_only_once() -> None:
    bench = Bench(ScriptedProvider("a", DROPPED, DROPPED, answer()))

    await bench.open()

    assert bench.time.slept == [0.0, 1.0]


async def test_a_call_that_timed_out_goes_to_the_next_deployment() -> None:
    slow, second = ScriptedProvider("a", AnswerTimedOut("slow", status=504)), ScriptedProvider("b")
    bench = Bench(slow, second)

    assert (await bench.open()).deployment.key == "b/m"
    assert (len(slow.calls), bench.time.slept) == (1, [])


@pytest.mark.parametrize(
    ("headers", "pauses"),
    [
        ({"retry-after": "3"}, [3.0]),
        ({"retry-after-ms": "250", "retry-after": "9"}, [0.25]),
        ({"retry-after": "0"}, [0.0]),
        ({"retry-after": "soon"}, [0.5]),
        ({"retry-after": "-1"}, [0.5]),
        ({"retry-after": "nan"}, [0.5]),
    ],
)
async def test_the_pause_that_is_asked_for_is_kept(headers: dict[str, str], pauses: Sequence[float]) -> None:
    refused = answer(429)
    refused.headers = headers
    bench = Bench(ScriptedProvider("a", refused, answer()))

    assert (await bench.open()).reply.status == 200
    assert bench.time.slept == pauses


async def test_a_pause_beyond_patience_means_the_next_deployment() -> None:
    first, second = ScriptedProvider("a", answer(429, retry_after="21")), ScriptedProvider("b")
    bench = Bench(first, second)

    assert (await bench.open()).deployment.key == "b/m"
    assert (len(first.calls), bench.time.slept) == (1, [])


async def test_without_another_deployment_it_reaches_the_client() -> None:
    bench = Bench(ScriptedProvider("a", answer(429, b"later", retry_after="3600")))

    opened = await bench.open()

    assert (opened.reply.status, opened.reply.headers["retry-after"], opened.attempt_count) == (429, "3600", 1)


async def test_waiting_has_a_limit_over_all_tries() -> None:
    bench = Bench(
        ScriptedProvider("a", answer(429, retry_after="15")), policy=RetryPolicy(attempts=20, total_wait_seconds=40)
    )

    await bench.open()

    assert bench.time.slept == [15.0, 15.0]


@pytest.mark.parametrize("refused", [answer(429, QUOTA), answer(503, x_should_retry="false")])
async def test_what_waiting_cannot_mend_is_not_tried_again(refused: UpstreamReply) -> None:
    first, second = ScriptedProvider("a", refused), ScriptedProvider("b")

    assert (await Bench(first, second).open()).deployment.key == "b/m"
    assert len(first.calls) == 1


async def test_a_body_that_cannot_be_made_for_the_first_deployment_is_an_error() -> None:
    bench = Bench(ScriptedProvider("a"))

    async def too_long(_: ModelDeployment) -> bytes:
        raise ContextLengthExceeded("too long")

    with pytest.raises(ContextLengthExceeded):
        await bench.router.send(bench.router.resolve("m"), too_long)


async def test_a_fallback_that_the_conversation_does_not_fit_is_left_out() -> None:
    bench = Bench(ScriptedProvider("a", answer(503, b"down")), ScriptedProvider("b"))

    async def fits_only_the_first(deployment: ModelDeployment) -> bytes:
        if deployment.key == "b/m":
            raise ContextLengthExceeded("too long")
        return b"{}"

    opened = await bench.router.send(bench.router.resolve("m"), fits_only_the_first)
    assert (opened.reply.status, await opened.reply.read()) == (503, b"down")


class TestBreaker:
    POLICY = RetryPolicy(attempts=1, breaker_failures=3, breaker_seconds=10, breaker_max_seconds=30)

    async def fail(self, bench: Bench, times: int, tenant: str = "t") -> None:
        """Sends several prompts, of which each fails."""
        for number in range(times):
            with pytest.raises(UpstreamUnavailable):
                await bench.open(f"{number}", tenant)

    async def test_one_tenants_failures_pause_no_other_tenant(self) -> None:
        provider = ScriptedProvider("a", *[UNREACHABLE] * 3, answer())
        bench = Bench(provider, policy=self.POLICY)
        await self.fail(bench, 20, "hostile")

        assert len(provider.calls) == 3
        assert (await bench.open("hello", "innocent")).reply.status == 200

    async def test_the_failures_of_one_prompt_pause_nobody(self) -> None:
        provider = ScriptedProvider("a", *[UNREACHABLE] * 20, answer())
        bench = Bench(provider, policy=self.POLICY)
        for _ in range(10):
            for tenant in ("one", "another"):
                with pytest.raises(UpstreamUnavailable, match="no connection"):
                    await bench.open("a prompt that crashes the server", tenant)

        assert (await bench.open("hello", "another")).reply.status == 200

    async def test_failures_that_follow_one_clients_key_are_that_keys(self) -> None:
        bench = Bench(ScriptedProvider("a", *[UNREACHABLE] * 3, answer()), policy=self.POLICY)
        for number in range(6):
            with pytest.raises(UpstreamUnavailable):
                await bench.open(f"{number}", f"key/user-{number}")

        assert (await bench.open("hello", "another")).reply.status == 200

    async def test_failures_of_several_tenants_pause_all(self) -> None:
        provider = ScriptedProvider("a", UNREACHABLE)
        bench = Bench(provider, policy=self.POLICY)
        await self.fail(bench, 2, "one")
        await self.fail(bench, 1, "another")

        with pytest.raises(UpstreamUnavailable, match="gets no calls") as caught:
            await bench.open("hello", "a third")

        assert (caught.value.status, caught.value.retry_after_seconds) == (503, 10)
        assert len(provider.calls) == 3

    async def test_a_tenant_whose_trial_failed_does_not_keep_the_others_from_theirs(self) -> None:
        bench = Bench(ScriptedProvider("a", *[UNREACHABLE] * 4, answer()), policy=self.POLICY)
        await self.fail(bench, 2, "one")
        await self.fail(bench, 1, "hostile")
        bench.time.now += 10.1
        await self.fail(bench, 1, "hostile")

        bench.time.now += 20.1
        await self.fail(bench, 3, "hostile")
        assert (await bench.open("hello", "one")).reply.status == 200

    async def test_a_trial_that_hangs_stops_nobody_for_ever(self) -> None:
        class Hanging(ScriptedProvider):
            async def send(self, call: UpstreamRequest) -> UpstreamReply:
                if len(self.calls) == 3:
                    self.calls.append(call)
                    await asyncio.Event().wait()
                return await super().send(call)

        bench = Bench(Hanging("a", *[UNREACHABLE] * 3, answer()), policy=self.POLICY)
        await self.fail(bench, 3)
        bench.time.now += 10.1
        trial = asyncio.ensure_future(bench.open())
        await asyncio.sleep(0)
        await self.fail(bench, 1)
        bench.time.now += 10.1

        assert (await bench.open()).reply.status == 200
        trial.cancel()

    async def test_tenants_that_clients_make_up_do_not_pile_up(self) -> None:
        breaker = DeploymentBreaker(lambda: CircuitBreaker(2, 10, 30, lambda: 0.0))
        for number in range(MAX_TENANTS + 5):
            breaker.record_failure(f"t{number}", b"")

        assert not breaker.is_open
        assert len(breaker._tenants) == MAX_TENANTS

    async def test_it_opens_after_failures_in_a_row_and_says_when_to_come_back(self) -> None:
        provider = ScriptedProvider("a", UNREACHABLE)
        bench = Bench(provider, policy=self.POLICY)
        await self.fail(bench, 3)

        with pytest.raises(UpstreamUnavailable, match="gets no calls") as caught:
            await bench.open()

        assert (caught.value.status, caught.value.retry_after_seconds) == (503, 10)
        assert len(provider.calls) == 3

    async def test_a_success_in_between_starts_the_count_again(self) -> None:
        provider = ScriptedProvider("a", UNREACHABLE, UNREACHABLE, answer(), UNREACHABLE, UNREACHABLE, answer())
        bench = Bench(provider, policy=self.POLICY)

        for _ in range(2):
            await self.fail(bench, 2)
            assert (await bench.open()).reply.status == 200

    async def test_after_the_pause_one_call_tries_and_a_failure_doubles_the_pause(self) -> None:
        provider = ScriptedProvider("a", *[UNREACHABLE] * 6, answer())
        bench = Bench(provider, policy=self.POLICY)
        await self.fail(bench, 3)

        for pause in (10, 20, 30):
            bench.time.now += pause - 0.1
            await self.fail(bench, 1)
            bench.time.now += 0.2
            await self.fail(bench, 1)
        assert len(provider.calls) == 6
        bench.time.now += 30
        assert (await bench.open()).reply.status == 200
        assert (await bench.open()).reply.status == 200

    async def test_meanwhile_the_others_are_asked(self) -> None:
        broken, second = ScriptedProvider("a", UNREACHABLE), ScriptedProvider("b")
        bench = Bench(broken, second, policy=self.POLICY)

        for number in range(10):
            assert (await bench.open(f"{number}")).deployment.key == "b/m"
        assert len(broken.calls) == 3

    @pytest.mark.parametrize("status", [400, 401, 404, 408, 429])
    async def test_it_never_opens_for_what_is_said_of_a_request(self, status: int) -> None:
        provider = ScriptedProvider("a", answer(status))
        bench = Bench(provider, policy=self.POLICY)

        for _ in range(10):
            assert (await bench.open()).reply.status == status

    async def test_only_one_call_tries_at_a_time_and_a_cancelled_one_gives_its_place_back(self) -> None:
        hanging = asyncio.Event()

        class Hanging(ScriptedProvider):
            async def send(self, call: UpstreamRequest) -> UpstreamReply:
                if len(self.calls) == 3:
                    self.calls.append(call)
                    hanging.set()
                    await asyncio.Event().wait()
                return await super().send(call)

        provider = Hanging("a", UNREACHABLE, UNREACHABLE, UNREACHABLE, answer())
        bench = Bench(provider, policy=self.POLICY)
        await self.fail(bench, 3)
        bench.time.now += 11

        trial = asyncio.ensure_future(bench.open())
        await hanging.wait()
        await self.fail(bench, 1)
        assert len(provider.calls) == 4
        trial.cancel()
        await asyncio.gather(trial, return_exceptions=True)

        assert (await bench.open()).reply.status == 200

    async def test_names_that_clients_make_up_do_not_pile_up(self) -> None:
        routes = {f"m{number}": ModelRoute((ConfiguredDeployment("a", f"m{number}"),)) for number in range(4)}
        time = Time()
        router = Router(
            routes,
            by_name(ScriptedProvider("a", UNREACHABLE)),
            RetryPolicy(attempts=1, breaker_failures=2),
            sleep=time.sleep,
            clock=time.clock,
            random=lambda: 0.0,
            max_breakers=2,
        )

        async def fail(name: str, prompt: bytes) -> str:
            async def body_for(deployment: ModelDeployment) -> bytes:
                return prompt

            with pytest.raises(UpstreamUnavailable) as caught:
                await router.send(router.resolve(name), body_for)
            return caught.value.message

        for name in routes:
            for prompt in (b"one", b"two"):
                await fail(name, prompt)

        assert [await fail(name, b"three") == "no connection" for name in ("m3", "m2", "m1")] == [False, False, True]


def test_a_date_to_retry_after_is_taken_against_the_answers_own_clock() -> None:
    date, later = "Sat, 21 Nov 2026 22:00:00 GMT", "Sat, 21 Nov 2026 22:00:07 GMT"

    assert parse_retry_after({"date": date, "retry-after": later}) == 7
    assert parse_retry_after({"date": later, "retry-after": date}) == 0
    assert parse_retry_after({"retry-after": later}) is None
    assert parse_retry_after({}) is None


async def test_an_idle_connection_that_the_server_closed_does_not_fail_a_call() -> None:
    async def close_every_second(_: Received, writer: asyncio.StreamWriter) -> None:
        if len(server.requests) == 2:
            writer.close()
        else:
            writer.write(whole(b"{}"))

    async with loopback(close_every_second) as server:
        provider = OpenAIProvider("a", server.url)
        time = Time()
        router = Router(
            {"*": ModelRoute((ConfiguredDeployment("a"),))},
            {"a": provider},
            sleep=time.sleep,
            clock=time.clock,
            random=lambda: 0.0,
        )

        async def body_for(_: ModelDeployment) -> bytes:
            return b"{}"

        for attempts in (1, 2):
            opened = await router.send(router.resolve("m"), body_for)
            assert (opened.reply.status, opened.attempt_count) == (200, attempts)
            await opened.reply.read()
        assert time.slept == [0.0]
        await provider.aclose()
