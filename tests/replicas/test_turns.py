"""Turns of one conversation at several replicas: one order, nothing lost, and what one changes all others see."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.conversations.api_keys import ApiKeys, NewApiKey
from app.store.store_factory import create_store
from tests.replicas.fleet import REPLICAS, Fleet, answer_to, fleet, fresh_name, history_of, question, reached
from tests.support.gateway import assistant, user

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

CACHE_SECONDS = 1.0
WAIT_SECONDS = 3.0
WAITING_SECONDS = 0.2
"""By then, what was asked elsewhere waits."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    async with fleet(
        Path(tmp_path_factory.mktemp("turns")),
        auth={"mode": "keys", "cache_seconds": CACHE_SECONDS},
        compaction={"wait_seconds": WAIT_SECONDS},
        models={"*": {"provider": "upstream", "context_window": 32_768}},
    ) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(shared: Fleet) -> str:
    """The first key of all, made beside the gateways."""
    store = create_store(shared.stage.database_url)
    await store.open()
    try:
        issuing = ApiKeys(
            store, usage=store, policies=[], now=lambda: datetime.now(UTC), random_bytes=secrets.token_bytes
        )
        secret, _ = await issuing.create_key(NewApiKey(name="operator", tenant="operator", scopes=("admin",)))
    finally:
        await store.close()
    return secret


@pytest_asyncio.fixture(loop_scope="module")
async def key(replicas: Fleet, admin: str) -> str:
    """A key of a tenant that the test has to itself, made on the first replica and known on all."""
    wish = {"name": "test", "tenant": fresh_name(), "scopes": ["chat", "read", "manage"]}
    made: dict[str, Any] = await replicas.call(0, "POST", "/admin/keys", key=admin, json=wish)
    return str(made["key"])


async def test_of_two_appends_at_once_one_waits_and_sees_the_other(replicas: Fleet, key: str) -> None:
    name = fresh_name()
    await replicas.say(2, [user("Before")], conversation=name, key=key)
    replicas.model.answer_gate = gate = asyncio.Event()
    first = asyncio.ensure_future(replicas.say(0, [user("First")], conversation=name, key=key))
    await reached(replicas.model.turns, 2)
    second = asyncio.ensure_future(replicas.say(1, [user("Second")], conversation=name, key=key))
    await asyncio.sleep(WAITING_SECONDS)
    assert len(replicas.model.turns) == 2
    gate.set()
    await asyncio.gather(first, second)
    (seen,) = replicas.model.asked("Second")
    said = [("user", "Before"), ("user", "First"), ("user", "Second")]
    whole = [one for role, text in said for one in ((role, text), ("assistant", answer_to(text)))]
    assert [(one["role"], one["content"]) for one in seen["messages"]] == whole[:-1]
    assert await replicas.log(2, name, key=key) == whole


async def test_appends_at_all_replicas_at_once_are_all_stored_in_one_order(replicas: Fleet, key: str) -> None:
    name = fresh_name()
    await replicas.say(None, [user("Start")], conversation=name, key=key)
    texts = [f"Note {number}" for number in range(3 * REPLICAS)]

    async def ask(number: int) -> int:
        asked = [user(texts[number])]
        answer = await replicas.post(None, asked, conversation=name, key=key, stream=number % 2 == 0)
        return answer.status_code

    assert await asyncio.gather(*map(ask, range(len(texts)))) == [200] * len(texts)
    log = await replicas.log(None, name, key=key)
    assert log[0] == ("user", "Start")
    assert sorted(text for _, text in log[2::2]) == sorted(texts)
    for (_, asked), (role, told) in zip(log[::2], log[1::2], strict=True):
        assert (role, told.strip()) == ("assistant", answer_to(asked))


async def test_whoever_waits_for_longer_than_it_may_is_told_when_to_come_again(replicas: Fleet, key: str) -> None:
    name = fresh_name()
    await replicas.say(0, [user("Before")], conversation=name, key=key)
    replicas.model.answer_gate = gate = asyncio.Event()
    holds = asyncio.ensure_future(replicas.say(0, [user("Holds")], conversation=name, key=key))
    await reached(replicas.model.turns, 2)
    began = time.monotonic()
    refused = await replicas.post(1, [user("Wants")], conversation=name, key=key)
    assert time.monotonic() - began >= WAIT_SECONDS
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conversation_busy")
    assert int(refused.headers["retry-after"]) >= 1
    assert not replicas.model.asked("Wants")
    gate.set()
    await holds
    await replicas.say(1, [user("Wants")], conversation=name, key=key)
    asked = [text for role, text in await replicas.log(2, name, key=key) if role == "user"]
    assert asked == ["Before", "Holds", "Wants"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_key_is_answered_once_by_whichever_replica_gets_it_first(
    replicas: Fleet, key: str, stream: bool
) -> None:
    replicas.model.answer_gate = gate = asyncio.Event()
    headers = {"idempotency-key": f"once-{stream}"}

    async def ask(replica: int) -> Any:
        return await replicas.post(replica, [user("Once")], key=key, headers=headers, stream=stream)

    running = [asyncio.ensure_future(ask(0))]
    await reached(replicas.model.turns, 1)
    running += [asyncio.ensure_future(ask(replica)) for replica in (1, 2)]
    await asyncio.sleep(WAITING_SECONDS)
    gate.set()
    answers = [*await asyncio.gather(*running), *[await ask(replica) for replica in range(REPLICAS)]]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.headers["x-conversation-id"] for answer in answers}) == 1
    assert [answer.headers.get("idempotent-replayed") for answer in answers] == [None, *["true"] * 5]
    assert len(replicas.model.turns) == 1
    other = await replicas.post(1, [user("Another")], key=key, headers=headers, stream=stream)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")


async def test_a_resent_history_goes_on_wherever_it_arrives(replicas: Fleet, key: str) -> None:
    """Long enough to be recognised by its bytes, which the replica that stored them has remembered for all."""
    history = history_of(12)
    first = await replicas.say(0, history[:-1], key=key)
    ids, history = {first["conversation_id"]}, [*history[:-1], assistant(first["choices"][0]["message"]["content"])]
    for turn in range(12, 12 + 2 * REPLICAS):
        history.append(question(turn))
        told = await replicas.say(turn % REPLICAS, history, key=key)
        ids.add(told["conversation_id"])
        history.append(assistant(told["choices"][0]["message"]["content"]))
    assert len(ids) == 1
    log = await replicas.log(1, ids.pop(), key=key)
    assert [text for _, text in log] == [one["content"] for one in history]


async def test_two_replicas_that_get_the_same_history_at_once_keep_both_answers(replicas: Fleet, key: str) -> None:
    history = history_of(5)
    first = await replicas.say(0, [*history, user("Go on")], key=key)
    history += [user("Go on"), assistant(first["choices"][0]["message"]["content"])]
    replicas.model.answer_gate = gate = asyncio.Event()
    ways = [
        asyncio.ensure_future(replicas.say(replica, [*history, user(f"Way {replica}")], key=key))
        for replica in range(REPLICAS)
    ]
    await reached(replicas.model.turns, 1 + REPLICAS)
    gate.set()
    answers = await asyncio.gather(*ways)
    assert len({answer["conversation_id"] for answer in answers}) == REPLICAS
    for replica, answer in enumerate(answers):
        log = await replicas.log((replica + 1) % REPLICAS, answer["conversation_id"], key=key)
        asked = f"Way {replica}"
        assert [text for _, text in log] == [*(one["content"] for one in history), asked, answer_to(asked)]


async def test_what_is_erased_on_one_replica_is_shown_by_none(replicas: Fleet, key: str) -> None:
    name = fresh_name()
    for replica in range(REPLICAS):
        await replicas.say(replica, [user(f"Secret of {replica}")], conversation=name, key=key)
    page = await replicas.call(1, "GET", f"/conversations/{name}/items?order=asc", key=key)
    item = page["data"][0]["id"]
    await replicas.call(1, "DELETE", f"/conversations/{name}/items/{item}?erase=true", key=key)
    for replica in (0, 2):
        asked = f"Now {replica}"
        await replicas.say(replica, [user(asked)], conversation=name, key=key)
        (seen,) = replicas.model.asked(asked)
        assert "Secret of 0" not in str([one["content"] for one in seen["messages"] if one["role"] == "user"])
        assert "Secret of 1" in str(seen)


async def test_a_deleted_conversation_is_gone_everywhere(replicas: Fleet, key: str) -> None:
    told = await replicas.say(0, [user("Hi")], conversation=fresh_name(), key=key)
    ours = told["conversation_id"]
    await replicas.say(1, [user("And")], conversation=ours, key=key)
    await replicas.call(2, "DELETE", f"/conversations/{ours}", key=key)
    for replica in range(REPLICAS):
        answer = await replicas.post(replica, [user("Still there?")], conversation=ours, key=key)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "conversation_not_found")


async def test_a_key_works_everywhere_at_once_and_nowhere_soon_after_it_is_revoked(replicas: Fleet, admin: str) -> None:
    wish = {"name": "short", "tenant": fresh_name(), "scopes": ["chat"]}
    made = await replicas.call(0, "POST", "/admin/keys", key=admin, json=wish)
    for replica in range(REPLICAS):
        await replicas.say(replica, [user("Hi")], key=made["key"])
    await replicas.call(1, "DELETE", f"/admin/keys/{made['id']}", key=admin)
    assert (await replicas.post(1, [user("Hi")], key=made["key"])).status_code == 401
    await asyncio.sleep(CACHE_SECONDS)
    for replica in range(REPLICAS):
        assert (await replicas.post(replica, [user("Hi")], key=made["key"])).status_code == 401
