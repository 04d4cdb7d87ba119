"""Requests that come again while, or after, they are answered: one call of the model, one turn in the log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.live import DONE, Reply, ScriptedUpstream, chunk, completion, stream
from tests.support.gateway import World, is_summary, until, user, world
from tests.support.raw_http import SUMMARY, long_talk, summarizing

RETRY = {"x-stainless-retry-count": "1"}
FAILURE = {"error": {"message": "broken", "type": "server_error", "param": None, "code": None}}
NOTICED_SECONDS = 0.05
"""By then a server in this process has seen a hang-up."""


def held(reply: Reply) -> asyncio.Event:
    reply.gate = asyncio.Event()
    return reply.gate


def text_of(body: dict[str, Any]) -> str:
    return str(body["choices"][0]["message"]["content"])


def words_of(answer: httpx.Response) -> str:
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    choices = [choice for event in map(json.loads, events[:-1]) for choice in event.get("choices", ())]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def leave(*asking: asyncio.Task[Any]) -> None:
    """Hang up, and give the server the time to see it."""
    for one in asking:
        one.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    await asyncio.sleep(NOTICED_SECONDS)


class Listening:
    """A client that reads a stream line by line as it comes."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()
        self.heard = ""

    async def until(self, words: str) -> None:
        """Read until these words have come."""
        while words not in self.heard:
            line = await anext(self._lines)
            if line.startswith("data: {"):
                choices = json.loads(line.removeprefix("data: ")).get("choices", ())
                self.heard += "".join(choice["delta"].get("content") or "" for choice in choices)

    async def to_the_end(self) -> str:
        last = [line async for line in self._lines if line]
        assert last[-1] == "data: [DONE]"
        events = [json.loads(line.removeprefix("data: ")) for line in last[:-1]]
        said = [choice["delta"].get("content") or "" for event in events for choice in event.get("choices", ())]
        return self.heard + "".join(said)


@asynccontextmanager
async def listening(w: World, said: str = "Hi", headers: dict[str, str] | None = None) -> AsyncIterator[Listening]:
    body = {"model": "m", "stream": True, "messages": [user(said)]}
    headers = {"authorization": "Bearer sk-one", **(headers or {})}
    async with (
        httpx.AsyncClient(timeout=30) as client,
        client.stream("POST", f"{w.base_url}/chat/completions", json=body, headers=headers) as answer,
    ):
        assert answer.status_code == 200
        yield Listening(answer)


class Tap:
    """A streamed reply whose pieces a test lets out one after the other."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.hung_up = asyncio.Event()
        self.calls = 0

    def say(self, words: str) -> None:
        self._pieces.put_nowait(chunk({"content": words}))

    def end(self) -> None:
        for piece in (chunk({}, "stop"), DONE, None):
            self._pieces.put_nowait(piece)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        if scope["method"] == "GET":
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})
            return
        self.calls += 1
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(receive())
        await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not sending.done():
            self.hung_up.set()
        for task in (sending, leaving):
            task.cancel()

    async def _send(self, send: Any) -> None:
        while (piece := await self._pieces.get()) is not None:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def test_a_retry_joins_the_attempt_that_still_runs() -> None:
    slow = completion("The answer.")
    gate = held(slow)
    async with world(ScriptedUpstream(slow)) as w:
        first = asyncio.ensure_future(w.post([user("Hi")]))
        await until(lambda: w.rows() == 1)
        second = asyncio.ensure_future(w.post([user("Hi")], headers=RETRY))
        await asyncio.sleep(NOTICED_SECONDS)
        gate.set()
        one, two = await first, await second
        assert one.json() == two.json()
        assert text_of(two.json()) == "The answer."
        assert one.headers["x-request-id"] != two.headers["x-request-id"]
        assert ("idempotent-replayed" in one.headers, two.headers["idempotent-replayed"]) == (False, "true")
        assert (len(w.upstream.bodies), w.rows()) == (1, 2)


async def test_a_request_that_nobody_waits_for_any_more_is_joined_by_the_same_one() -> None:
    """Some clients count no retries; that the first one hung up tells as much."""
    slow = completion("The answer.")
    gate = held(slow)
    async with world(ScriptedUpstream(slow)) as w:
        first = asyncio.ensure_future(w.post([user("Hi")]))
        await until(lambda: w.rows() == 1)
        await leave(first)
        second = asyncio.ensure_future(w.post([user("Hi")]))
        await asyncio.sleep(NOTICED_SECONDS)
        gate.set()
        assert text_of((await second).json()) == "The answer."
        assert (len(w.upstream.bodies), w.rows()) == (1, 2)


async def test_a_client_that_leaves_behind_a_long_body_is_noticed() -> None:
    slow = completion("The answer.")
    gate = held(slow)
    long = user("word " * 60_000)
    async with world(ScriptedUpstream(slow), window=200_000) as w:
        first = asyncio.ensure_future(w.post([long]))
        await until(lambda: w.rows() == 1)
        await leave(first)
        second = asyncio.ensure_future(w.post([long]))
        await asyncio.sleep(4 * NOTICED_SECONDS)
        gate.set()
        assert text_of((await second).json()) == "The answer."
        assert len(w.upstream.bodies) == 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_two_equal_requests_at_once_are_two(streamed: bool) -> None:
    replies = [stream("One."), stream("Two.")] if streamed else [completion("One."), completion("Two.")]
    gates = [held(reply) for reply in replies]
    async with world(ScriptedUpstream(*replies)) as w:
        asked = [asyncio.ensure_future(w.post([user("Hi")], stream=streamed)) for _ in range(2)]
        await until(lambda: len(w.upstream.bodies) == 2)
        for gate in gates:
            gate.set()
        answers = [await one for one in asked]
        assert all("idempotent-replayed" not in answer.headers for answer in answers)
        said = {words_of(answer) if streamed else text_of(answer.json()) for answer in answers}
        assert said == {"One.", "Two."}


@pytest.mark.parametrize(
    "difference", [{"temperature": 0.5}, {"key": "sk-two"}, {"headers": {"x-context-mode": "append"}}]
)
async def test_what_differs_in_anything_is_not_joined(
    difference: dict[str, Any],
) -> None:
    slow = completion("First.")
    gate = held(slow)
    options = {**difference, "headers": {**RETRY, **difference.get("headers", {})}}
    async with world(ScriptedUpstream(slow, completion("Second."))) as w:
        first = asyncio.ensure_future(w.say([user("Hi")]))
        await until(lambda: w.rows() == 1)
        assert text_of(await w.say([user("Hi")], **options)) == "Second."
        gate.set()
        assert text_of(await first) == "First."


async def test_a_stream_is_joined_from_its_beginning_and_outlives_its_first_client() -> None:
    tap = Tap()
    async with world(tap) as w:  # type: ignore[arg-type]
        tap.say("Once ")
        async with listening(w) as first:
            await first.until("Once ")
            async with listening(w, headers=RETRY) as second:
                await second.until("Once ")
                await first.answer.aclose()
                await asyncio.sleep(NOTICED_SECONDS)
                assert not tap.hung_up.is_set()
                tap.say("upon ")
                await second.until("upon ")
                tap.say("a time.")
                tap.end()
                assert await second.to_the_end() == "Once upon a time."
                assert second.answer.headers["idempotent-replayed"] == "true"
        (conversation,) = w.conversations()
        entries = await w.store.read_log(conversation, 0, 9)
        said = [(entry.message.text, entry.incomplete) for entry in entries]
    assert said == [("Hi", False), ("Once upon a time.", False)]
    assert tap.calls == 1


async def test_a_stream_that_waits_for_a_summary_is_joined_too() -> None:
    slow = completion(SUMMARY)
    gate = held(slow)
    async with world(summarizing(summary=slow)) as w:
        talk: dict[str, Any] = {"model": "m", "messages": long_talk(), "stream": True}
        headers = {"authorization": "Bearer sk-one"}
        url = f"{w.base_url}/chat/completions"
        async with w.client.stream("POST", url, json=talk, headers=headers) as first:
            lines = first.aiter_lines()  # kept: the stream is closed when its reader is collected
            await anext(lines)
            joining = asyncio.ensure_future(w.client.post(url, json=talk, headers={**headers, **RETRY}))
            await asyncio.sleep(NOTICED_SECONDS)
        await asyncio.sleep(NOTICED_SECONDS)
        gate.set()
        joined = await joining
        assert words_of(joined) == "Fine."
        assert joined.text.count("compaction_started") == joined.text.count("compaction_completed") == 1
        assert len([body for body in w.upstream.requests if not is_summary(body)]) == 1
        assert w.rows() == len(talk["messages"]) + 1


async def test_who_joins_a_stream_and_leaves_takes_nothing_from_the_first() -> None:
    tap = Tap()
    async with world(tap) as w:  # type: ignore[arg-type]
        tap.say("Once ")
        async with listening(w) as first:
            await first.until("Once ")
            async with listening(w, headers=RETRY) as second:
                await second.until("Once ")
            await asyncio.sleep(NOTICED_SECONDS)
            tap.say("more.")
            tap.end()
            assert await first.to_the_end() == "Once more."
        assert (tap.calls, w.rows()) == (1, 2)


async def test_the_last_to_leave_a_stream_takes_the_upstream_call_with_it() -> None:
    tap = Tap()
    async with world(tap) as w:  # type: ignore[arg-type]
        tap.say("Half an")
        async with listening(w) as first, listening(w, headers=RETRY) as second:
            await asyncio.gather(first.until("Half an"), second.until("Half an"))
            await first.answer.aclose()
            await asyncio.sleep(NOTICED_SECONDS)
            assert not tap.hung_up.is_set()
            await second.answer.aclose()
            async with asyncio.timeout(30):
                await tap.hung_up.wait()
        await until(lambda: w.rows() == 2)
        (conversation,) = w.conversations()
        (_, answer) = await w.store.read_log(conversation, 0, 2)
        assert (answer.message.text, answer.incomplete) == ("Half an", True)
        tap.say("A whole answer.")
        async with listening(w, headers=RETRY) as again:
            tap.end()
            assert await again.to_the_end() == "A whole answer."
        assert tap.calls == 2


async def test_a_stream_that_its_first_client_left_before_it_began_is_there_for_the_second() -> None:
    slow = stream("The ", "answer.")
    gate = held(slow)
    async with world(ScriptedUpstream(slow)) as w:
        first = asyncio.ensure_future(w.post([user("Hi")], stream=True))
        await until(lambda: w.rows() == 1)
        second = asyncio.ensure_future(w.post([user("Hi")], stream=True, headers=RETRY))
        await asyncio.sleep(NOTICED_SECONDS)
        await leave(first)
        gate.set()
        assert words_of(await second) == "The answer."
        assert (len(w.upstream.bodies), w.upstream.hung_up, w.rows()) == (1, 0, 2)


async def test_both_leaving_before_a_stream_begins_leaves_nothing() -> None:
    slow = stream("never")
    held(slow)
    async with world(ScriptedUpstream(slow)) as w:
        first = asyncio.ensure_future(w.post([user("Hi")], stream=True))
        await until(lambda: w.rows() == 1)
        second = asyncio.ensure_future(w.post([user("Hi")], stream=True, headers=RETRY))
        await asyncio.sleep(NOTICED_SECONDS)
        await leave(first)
        assert not w.upstream.left.is_set()
        await leave(second)
        async with asyncio.timeout(30):
            await w.upstream.left.wait()
        await until(lambda: not w.conversations())


async def test_a_first_client_that_does_not_read_holds_up_nobody() -> None:
    """A connection that was cut without a word: its buffers are full, and nobody says that it is gone."""
    words = [f"{number} " * 2000 for number in range(3000)]
    async with world(ScriptedUpstream(stream(*words))) as w:
        async with listening(w), listening(w, headers=RETRY) as again, asyncio.timeout(30):
            assert await again.to_the_end() == "".join(words)
        assert len(w.upstream.bodies) == 1


@pytest.mark.parametrize("fields", [{}, {"store": False}])
async def test_an_answer_that_nobody_received_is_given_to_who_asks_again_once(
    fields: dict[str, Any],
) -> None:
    slow = completion("The answer.")
    gate = held(slow)
    async with world(ScriptedUpstream(slow, completion("Another."))) as w:
        first = asyncio.ensure_future(w.post([user("Hi")], **fields))
        await until(lambda: len(w.upstream.bodies) == 1)
        await leave(first)
        gate.set()
        await asyncio.sleep(2 * NOTICED_SECONDS)
        again = await w.post([user("Hi")], **fields)
        assert (text_of(again.json()), again.headers["idempotent-replayed"]) == ("The answer.", "true")
        assert len(w.upstream.bodies) == 1
        regenerated = await w.post([user("Hi")], **fields)
        assert text_of(regenerated.json()) == "Another."
        assert "idempotent-replayed" not in regenerated.headers


async def test_who_joined_a_failure_is_told_of_it_and_the_next_asks_again() -> None:
    failing = Reply(FAILURE, status=400)
    gate = held(failing)
    async with world(ScriptedUpstream(completion(), failing)) as w:
        ours = (await w.say([user("One")], conversation="c"))["conversation_id"]
        first = asyncio.ensure_future(w.post([user("Two")], conversation="c"))
        await until(lambda: w.rows() == 3)
        second = asyncio.ensure_future(w.post([user("Two")], conversation="c", headers=RETRY))
        await asyncio.sleep(NOTICED_SECONDS)
        gate.set()
        answers = [await first, await second]
        assert [(answer.status_code, answer.json()) for answer in answers] == [(400, FAILURE)] * 2
        assert answers[0].headers["x-request-id"] != answers[1].headers["x-request-id"]
        await w.say([user("Two")], conversation="c", headers=RETRY)
        assert [message["content"] for message in await w.log(ours)] == ["One", "Fine.", "Two", "Fine."]


async def test_a_stream_that_breaks_breaks_for_everybody() -> None:
    broken = Reply(pieces=[chunk({"content": "Half an"}), 0.2, b"data: {broken\n\n"])
    async with world(ScriptedUpstream(broken)) as w:
        first = asyncio.ensure_future(w.post([user("Hi")], stream=True))
        await until(lambda: w.rows() == 1)
        second = await w.post([user("Hi")], stream=True, headers=RETRY)
        assert second.text == (await first).text
        assert '"error"' in second.text
        assert len(w.upstream.bodies) == 1
