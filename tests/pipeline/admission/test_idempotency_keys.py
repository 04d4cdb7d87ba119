"""`Idempotency-Key`: one request, however often it is sent."""

from __future__ import annotations

import asyncio
import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from app.conversation.conversation_types import Conversation
from app.dialects.body.message import ChatMessage
from app.errors import StoreUnavailable
from app.store.contract.keys import IdempotencyKeyRecord
from tests.live import DROP, Reply, ScriptedUpstream, chunk, completion, stream
from tests.support.gateway import World, until, user, world
from tests.support.memory_store import MemoryStore

KEY = {"idempotency-key": "order-17"}
FAILURE = {"error": {"message": "broken", "type": "server_error", "param": None, "code": None}}


class Watched(MemoryStore):
    """Notes who asks it about keys; `elsewhere` answers in its place, once each."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: datetime.now(UTC))
        self.asked: list[dict[str, Any]] = []
        self.elsewhere: list[IdempotencyKeyRecord] = []
        self.is_away = False
        self.away_steps: set[str] = set()
        """Further steps at which it is away."""

    async def complete_idempotency_key(self, **named: Any) -> None:
        if "complete" in self.away_steps:
            raise StoreUnavailable("The database is away.")
        await super().complete_idempotency_key(**named)

    async def find_conversation(self, **named: Any) -> Conversation | None:
        if "replay" in self.away_steps:
            raise StoreUnavailable("The database is away.")
        return await super().find_conversation(**named)

    async def claim_idempotency_key(self, **asked: Any) -> IdempotencyKeyRecord:
        self.asked.append(asked)
        if self.is_away:
            raise StoreUnavailable("The database is away.")
        return self.elsewhere.pop(0) if self.elsewhere else await super().claim_idempotency_key(**asked)


def text_of(body: dict[str, Any]) -> str:
    return str(body["choices"][0]["message"]["content"])


async def words(w: World, **options: Any) -> str:
    events = await w.stream([user("Hi")], **options)
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


@pytest.mark.parametrize("key", ["", "two words", "é", "x" * 256, "tab\there"])
async def test_a_key_that_is_none_is_refused(key: str) -> None:
    async with world(ScriptedUpstream()) as w:
        content = json.dumps({"model": "m", "messages": [user("Hi")]}).encode()
        raw = [(b"idempotency-key", key.encode("latin-1")), (b"content-type", b"application/json")]
        answer = await w.client.post(f"{w.base_url}/chat/completions", content=content, headers=raw)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "Idempotency-Key"
        assert w.upstream.bodies == []


@pytest.mark.parametrize("fields", [{}, {"conversation": "c"}])
async def test_the_answer_of_a_key_is_given_again_in_full(
    fields: dict[str, Any],
) -> None:
    async with world(ScriptedUpstream(completion("The answer."))) as w:
        first = await w.post([user("Hi")], headers=KEY, **fields)
        assert "idempotent-replayed" not in first.headers
        for _ in range(2):
            again = await w.post([user("Hi")], headers=KEY, **fields)
            assert again.headers["idempotent-replayed"] == "true"
            assert again.headers["x-conversation-id"] == first.headers["x-conversation-id"]
            assert again.headers["x-context-tokens"] == first.headers["x-context-tokens"]
            body, before = again.json(), first.json()
            assert text_of(body) == text_of(before) == "The answer."
            for name in ("id", "usage", "conversation_id", "context_status"):
                assert body[name] == before[name]
        assert (len(w.upstream.bodies), w.rows()) == (1, 2)
        other = await w.post([user("Hi")], headers={"idempotency-key": "order-18"}, **fields)
        assert text_of(other.json()) == "Fine."


async def test_a_stream_is_given_again_as_a_stream() -> None:
    async with world(ScriptedUpstream(stream("The ", "answer."))) as w:
        assert [await words(w, headers=KEY) for _ in range(2)] == ["The answer.", "The answer."]
        assert (len(w.upstream.bodies), w.rows()) == (1, 2)


@pytest.mark.parametrize("other", [{"temperature": 0.5}, {"headers": {**KEY, "x-context-mode": "append"}}])
@pytest.mark.parametrize("fields", [{}, {"store": False}])
async def test_a_key_belongs_to_one_request(
    fields: dict[str, Any],
    other: dict[str, Any],
) -> None:
    async with world(ScriptedUpstream()) as w:
        await w.say([user("Hi")], headers=KEY, **fields)
        refused = await w.post([user("Hi")], **{"headers": KEY, **fields, **other})
        assert refused.status_code == 422
        assert refused.headers["x-should-retry"] == "false"
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "idempotency_key_reused")
        assert len(w.upstream.bodies) == 1


async def test_a_key_belongs_to_one_request_while_that_runs() -> None:
    slow = completion()
    slow.gate = asyncio.Event()
    async with world(ScriptedUpstream(slow)) as w:
        first = asyncio.ensure_future(w.say([user("Hi")], headers=KEY))
        await until(lambda: w.rows() == 1)
        assert (await w.post([user("Other")], headers=KEY)).status_code == 422
        slow.gate.set()
        await first


async def test_keys_of_other_tenants_are_other_keys() -> None:
    async with world(ScriptedUpstream(completion("One."), completion("Two."))) as w:
        assert text_of(await w.say([user("Hi")], headers=KEY)) == "One."
        assert text_of(await w.say([user("Hello")], headers=KEY, key="sk-two")) == "Two."


async def test_a_request_with_the_key_of_one_that_runs_joins_it() -> None:
    slow = completion("The answer.")
    slow.gate = asyncio.Event()
    async with world(ScriptedUpstream(slow)) as w:
        asked = [asyncio.ensure_future(w.say([user("Hi")], headers=KEY)) for _ in range(5)]
        await until(lambda: w.rows() == 1)
        slow.gate.set()
        assert {text_of(await one) for one in asked} == {"The answer."}
        assert (len(w.upstream.bodies), w.rows()) == (1, 2)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_request_that_failed_may_be_sent_again_with_its_key(streamed: bool) -> None:
    broken = Reply(pieces=[chunk({"content": "Half"}), 0.02, DROP])
    upstream = ScriptedUpstream(Reply(FAILURE, status=400), *([broken] if streamed else []))
    async with world(upstream) as w:
        assert (await w.post([user("Hi")], headers=KEY, stream=streamed)).status_code == 400
        if streamed:
            assert '"error"' in (await w.post([user("Hi")], headers=KEY, stream=True)).text
            assert await words(w, headers=KEY) == "Fine."
        else:
            assert text_of(await w.say([user("Hi")], headers=KEY)) == "Fine."
        conversation = w.conversations()[-1]
        assert [message["content"] for message in await w.log(conversation.id)] == ["Hi", "Fine."]


async def test_a_stream_that_was_left_may_be_sent_again_with_its_key() -> None:
    upstream = ScriptedUpstream(Reply(pieces=[chunk({"content": "Half"}), 30]))
    async with world(upstream) as w:
        body = {"model": "m", "messages": [user("Hi")], "stream": True}
        headers = {**KEY, "authorization": "Bearer sk-one"}
        async with w.client.stream("POST", f"{w.base_url}/chat/completions", json=body, headers=headers) as answer:
            lines = answer.aiter_lines()  # kept: the stream is closed when its reader is collected
            await anext(lines)
        assert await words(w, headers=KEY) == "Fine."
        assert len(w.upstream.bodies) == 2


async def test_nothing_of_a_request_that_is_not_to_be_stored_is_stored_for_its_key() -> None:
    store = Watched()
    async with world(ScriptedUpstream(completion("The answer.")), store=store) as w:
        for _ in range(3):
            assert text_of(await w.say([user("Hi")], headers=KEY, store=False)) == "The answer."
        assert (len(w.upstream.bodies), store.asked, w.rows()) == (1, [], 0)


async def test_what_is_answered_aside_is_given_again_where_it_was_given() -> None:
    aside = {"headers": {**KEY, "x-context-mode": "stateless"}}
    async with world(ScriptedUpstream(completion("The answer."))) as w:
        assert [text_of(await w.say([user("Hi")], **aside)) for _ in range(2)] == ["The answer."] * 2
        assert (len(w.upstream.bodies), w.rows()) == (1, 0)


async def test_requests_without_a_key_ask_the_store_nothing_about_keys() -> None:
    store = Watched()
    async with world(ScriptedUpstream(), store=store) as w:
        await w.say([user("Hi")], headers={"x-stainless-retry-count": "1"})
        await w.stream([user("Hello")])
    assert store.asked == []


async def test_no_text_of_a_request_is_kept_with_its_key() -> None:
    store = Watched()
    async with world(ScriptedUpstream(), store=store) as w:
        await w.say([user("Hi")], headers=KEY)
    (asked,) = store.asked
    assert (asked["key"], len(asked["digest"])) == ("order-17", hashlib.sha256().digest_size)


async def test_a_key_that_another_process_answers_is_waited_for() -> None:
    store = Watched()
    async with world(ScriptedUpstream(completion("The answer.")), store=store) as w:
        first = await w.say([user("Hi")], headers=KEY)
        store.elsewhere = [IdempotencyKeyRecord("running")] * 3
        again = await w.post([user("Hi")], headers=KEY)
        assert (again.json()["id"], again.headers["idempotent-replayed"]) == (first["id"], "true")
        assert len(w.upstream.bodies) == 1
    assert store.elsewhere == []


async def test_waiting_for_another_process_has_an_end() -> None:
    store = Watched()
    store.elsewhere = [IdempotencyKeyRecord("running")] * 100
    async with world(ScriptedUpstream(), store=store, compaction={"wait_seconds": 0.1}) as w:
        refused = await w.post([user("Hi")], headers=KEY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "idempotency_key_in_use")
        assert int(refused.headers["retry-after"]) >= 1
        assert "x-should-retry" not in refused.headers
        assert w.upstream.bodies == []


@pytest.mark.parametrize("what", ["the conversation", "its words"])
async def test_a_key_whose_answer_was_erased_is_answered_anew(what: str) -> None:
    async with world(ScriptedUpstream(completion("The answer."), completion("Another."))) as w:
        await w.say([user("Hi")], headers=KEY)
        (conversation,) = w.conversations()
        if what == "the conversation":
            await w.store.erase_conversation(tenant=conversation.tenant, conversation_id=conversation.id)
        else:
            (answer,) = await w.store.read_log(conversation, 1, 2)
            erased = replace(answer, message=ChatMessage.from_body({"role": "assistant", "content": "[erased]"}))
            await w.store.redact_messages(conversation, [erased])
        assert text_of(await w.say([user("Hi")], headers=KEY)) == "Another."


async def test_while_the_store_is_away_a_key_holds_within_the_process() -> None:
    store = Watched()
    store.is_away = True
    async with world(ScriptedUpstream(completion("The answer.")), store=store) as w:
        assert [text_of(await w.say([user("Hi")], headers=KEY)) for _ in range(2)] == ["The answer."] * 2


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_that_could_not_be_recorded_for_its_key_is_given_again_by_its_process(streamed: bool) -> None:
    store = Watched()
    store.away_steps = {"complete"}
    async with world(ScriptedUpstream(stream("Once.") if streamed else completion("Once.")), store=store) as w:
        for _ in range(3):
            if streamed:
                assert await words(w, headers=KEY) == "Once."
            else:
                assert text_of(await w.say([user("Hi")], headers=KEY)) == "Once."
        assert (await w.post([user("Other")], headers=KEY)).status_code == 422
        assert (len(w.upstream.bodies), w.rows()) == (1, 2)


async def test_a_key_whose_answer_cannot_be_read_is_not_answered_anew() -> None:
    store = Watched()
    async with world(ScriptedUpstream(completion("Once.")), store=store) as w:
        await w.say([user("Hi")], headers=KEY)
        store.away_steps = {"replay"}
        assert (await w.post([user("Hi")], headers=KEY)).status_code == 503
        store.away_steps = set()
        assert text_of(await w.say([user("Hi")], headers=KEY)) == "Once."
        assert len(w.upstream.bodies) == 1
