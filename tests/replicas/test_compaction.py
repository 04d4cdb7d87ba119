"""Summaries at several replicas: each range is asked for once, whoever needs it, and is everybody's at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.replicas.fleet import REPLICAS, Fleet, fleet, fresh_name, history_of, question, reached
from tests.support.gateway import assistant, user

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

WAITING_SECONDS = 0.3
"""By then, whoever needs a summary has asked for it, or waits for the one who did."""
MOST_TURNS = 40
LATE = {"token_floor": 1, "prepare_ratio": 1.0, "blocking": True}
EARLY = {"token_floor": 1, "prepare_ratio": 0.5, "blocking": True}
EDITED = "They spoke of ships and of nothing else."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    async with fleet(
        Path(tmp_path_factory.mktemp("compaction")),
        policies={"additive": LATE, "early": {"kind": "additive", **EARLY}},
    ) as made:
        yield made


@pytest.fixture
def key() -> str:
    """A tenant that the test has to itself."""
    return f"sk-{fresh_name()}"


async def summarized(replicas: Fleet, name: str, *, key: str, policy: str = "additive", first: int = 0) -> int:
    """Turns of a conversation at one replica after the other until a summary stands in; how many there are then."""
    for turn in range(first, MOST_TURNS):
        told = await replicas.say(
            turn % REPLICAS, [question(turn)], conversation=name, key=key, context={"policy": policy}
        )
        if told["context_status"] == "summarized":
            return turn + 1
    raise AssertionError("no summary was needed")


async def all_at_once(replicas: Fleet, history: list[dict[str, Any]], *, key: str) -> list[dict[str, Any]]:
    """What each replica says to a history with a newest message of its own; no summary comes before all have asked."""
    replicas.model.summary_gate = gate = asyncio.Event()
    asking = [
        asyncio.ensure_future(replicas.say(replica, [*history, user(f"Way {replica}")], key=key))
        for replica in range(REPLICAS)
    ]
    await reached(replicas.model.summaries, 1)
    await asyncio.sleep(WAITING_SECONDS)
    assert not replicas.model.asked("Way")
    gate.set()
    return await asyncio.gather(*asking)


async def test_three_replicas_that_cross_the_line_at_once_ask_for_each_summary_once(replicas: Fleet, key: str) -> None:
    # Whoever resends with other text has another conversation of the same length.
    turns = await summarized(replicas, fresh_name(), key=key)
    replicas.model.forget()
    history: list[dict[str, Any]] = []
    for turn in range(turns - 1):
        told = await replicas.say(turn % REPLICAS, [*history, question(turn)], key=f"{key}-resends")
        history += [question(turn), assistant(told["choices"][0]["message"]["content"])]
    assert not replicas.model.summaries
    history.append(question(turns))
    answers = await all_at_once(replicas, history, key=f"{key}-resends")
    assert {answer["context_status"] for answer in answers} == {"summarized"}
    assert set(replicas.model.ranges().values()) == {1}
    assert len({str(body["messages"][:-1]) for body in replicas.model.asked("Way")}) == 1, "all saw the same"


async def test_a_long_history_that_arrives_at_three_replicas_at_once_is_summarized_once(
    replicas: Fleet, key: str
) -> None:
    answers = await all_at_once(replicas, history_of(24), key=key)
    assert {answer["context_status"] for answer in answers} == {"summarized"}
    assert len(replicas.model.ranges()) > 1
    assert set(replicas.model.ranges().values()) == {1}
    assert len({answer["conversation_id"] for answer in answers}) == REPLICAS
    later = await replicas.say(0, [*history_of(24), user("Another way")], key=key)
    assert later["context_status"] == "summarized"
    assert set(replicas.model.ranges().values()) == {1}


async def test_what_one_replica_has_prepared_another_uses(replicas: Fleet, key: str) -> None:
    name = fresh_name()
    prepared = 0
    while not replicas.model.summaries:
        told = await replicas.say(0, [question(prepared)], conversation=name, key=key, context={"policy": "early"})
        assert told["context_status"] == "full"
        prepared += 1
        await settled(replicas)
    asked = len(replicas.model.summaries)
    for turn in range(prepared, MOST_TURNS):
        # Policy `additive` prepares nothing: what it uses was made on the first replica.
        told = await replicas.say(1 + turn % 2, [question(turn)], conversation=name, key=key)
        if told["context_status"] == "summarized":
            break
    assert told["context"]["compaction"]["prepared"]
    assert len(replicas.model.summaries) == asked
    assert set(replicas.model.ranges().values()) == {1}


async def test_whoever_needs_what_another_replica_prepares_waits_for_it(replicas: Fleet, key: str) -> None:
    name, turn = fresh_name(), 0
    replicas.model.summary_gate = gate = asyncio.Event()
    while not replicas.model.summaries:
        await replicas.say(0, [question(turn)], conversation=name, key=key, context={"policy": "early"})
        turn += 1
        await asyncio.sleep(WAITING_SECONDS / 3)
    answered: object = True
    while answered:
        asking = asyncio.ensure_future(replicas.say(1, [question(turn)], conversation=name, key=key))
        answered, _ = await asyncio.wait({asking}, timeout=3 * WAITING_SECONDS)
        turn += 1
    assert len(replicas.model.summaries) == 1
    gate.set()
    assert (await asking)["context_status"] == "summarized"
    assert set(replicas.model.ranges().values()) == {1}


async def test_an_edited_summary_is_shown_by_every_replica_from_the_next_turn_on(replicas: Fleet, key: str) -> None:
    name = fresh_name()
    await summarized(replicas, name, key=key)
    (summary,) = (await replicas.call(0, "GET", f"/conversations/{name}/summaries", key=key))["data"]
    path = f"/conversations/{name}/summaries/{summary['id']}"
    await replicas.call(1, "PATCH", path, key=key, json={"text": EDITED, "revision": summary["revision"]})
    for replica in range(REPLICAS):
        await replicas.say(replica, [user(f"Now {replica}")], conversation=name, key=key)
        (seen,) = replicas.model.asked(f"Now {replica}")
        assert EDITED in str(seen["messages"])
        assert summary["text"] not in str(seen["messages"])


async def test_what_is_erased_leaves_the_summaries_of_every_replica(replicas: Fleet, key: str) -> None:
    name = fresh_name()
    await replicas.say(
        0, [user("Keep what follows for later, please: the password is swordfish.")], conversation=name, key=key
    )
    await summarized(replicas, name, key=key, first=1)
    item = (await replicas.call(1, "GET", f"/conversations/{name}/items?order=asc", key=key))["data"][0]["id"]
    await replicas.call(1, "DELETE", f"/conversations/{name}/items/{item}?erase=true", key=key)
    summaries = (await replicas.call(2, "GET", f"/conversations/{name}/summaries", key=key))["data"]
    assert "swordfish" not in str(summaries)
    for replica in (2, 0):
        asked = len(replicas.model.summaries)
        await replicas.say(replica, [user(f"Now {replica}")], conversation=name, key=key)
        (seen,) = replicas.model.asked(f"Now {replica}")
        assert "swordfish" not in str([*seen["messages"], *replicas.model.summaries[asked:]])


async def test_compacting_by_hand_at_all_replicas_at_once_makes_each_summary_once(replicas: Fleet, key: str) -> None:
    name = fresh_name()
    for turn in range(4):
        await replicas.say(turn % REPLICAS, [question(turn)], conversation=name, key=key)
    replicas.model.summary_gate = gate = asyncio.Event()
    path = f"/conversations/{name}/compact"
    asking = [
        asyncio.ensure_future(replicas.call(replica, "POST", path, key=key, json={"model": "m"}))
        for replica in range(REPLICAS)
    ]
    await reached(replicas.model.summaries, 1)
    await asyncio.sleep(WAITING_SECONDS)
    gate.set()
    await asyncio.gather(*asking)
    assert replicas.model.ranges()
    assert set(replicas.model.ranges().values()) == {1}


async def settled(replicas: Fleet) -> None:
    """Wait until nothing goes on behind answers."""

    async def held() -> int:
        return int((await replicas.rows("SELECT count(*) FROM leases WHERE expires_at > now()"))[0][0])

    await asyncio.sleep(WAITING_SECONDS / 3)
    async with asyncio.timeout(10):
        while await held():  # noqa: ASYNC110 - others hold them
            await asyncio.sleep(0.02)
