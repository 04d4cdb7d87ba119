"""Two gateways on one database: what one of them has answered is known to the other at once, and proves the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from migrations.run import prepare_database
from tests.harness import Gateway, gateway_config
from tests.live import Reply, chunk, serving
from tests.postgres import Databases
from tests.scenarios.proof import (
    FAQ,
    SECRET,
    SMALL_WINDOW,
    FaqModel,
    Watch,
    answer_faq,
    ask_faq,
    check_apart,
    go_on,
    kept_at,
    list_conversations,
    private,
    talk_as_alice,
)
from tests.scenarios.rewriting import Body, Client, Kept, StrictModel, Tell, question, slide
from tests.support.gateway import assistant, is_summary, user

HABITS: dict[str, Tell] = {"plain": list, "sliding window": slide(9)}
HELD_SECONDS = 60.0


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a migrated database that the test has to itself."""
    if request.param == "postgresql":
        databases: Databases = request.getfixturevalue("databases")
        name = databases.create(template=request.getfixturevalue("migrated_template"))
        yield databases.url(name)
        databases.drop(name)
        return
    url = f"sqlite:///{tmp_path}/shared.db"
    prepare_database(url, auto_migrate=True)
    yield url


@pytest.mark.parametrize("habit", HABITS)
async def test_the_next_request_at_another_gateway_continues_the_conversation(habit: str, database: str) -> None:
    """The client asks the other gateway as soon as it has its answer."""
    model = StrictModel()
    async with kept_at(database, model) as one, kept_at(database, model) as other:
        client = Client(one, HABITS[habit])
        for turn in range(24):
            client.place = (one, other)[turn % 2]
            await client.say(question(turn, 20))
        assert len(client.ids) == 1
        assert set(await list_conversations(one)) == client.ids
        items = [item for item in await one.items(*client.ids) if item["type"] == "message"]
        told = [item["content"][0]["text"] for item in items]
        assert told == [message["content"] for message in client.messages]


@pytest.mark.parametrize("gone", ["not stored", "deleted"])
async def test_answers_that_are_gone_prove_nothing_at_another_gateway(gone: str, database: str) -> None:
    model = FaqModel()
    async with (
        kept_at(database, model, window=SMALL_WINDOW) as one,
        kept_at(database, model, window=SMALL_WINDOW) as other,
    ):
        alice, bob = Client(one), Client(other)
        await talk_as_alice(alice, 9)
        await ask_faq(bob, store=gone == "deleted")
        if gone == "deleted":
            await other.call("DELETE", *bob.ids)
        bob.bodies.clear()
        bob.place = one
        watch = Watch(model)
        await go_on(bob, turns=3)
        assert watch.find_requests(SECRET) == []
        await check_apart(other, bob, alice)


async def test_two_who_ask_the_same_of_two_gateways_at_once_never_meet(database: str) -> None:
    model = FaqModel()
    async with kept_at(database, model) as one, kept_at(database, model) as other:
        pair = [Client(place, slide(5)) for place in (one, other)]
        for _ in range(2):
            for text in FAQ:
                await asyncio.gather(*(client.say(user(text)) for client in pair))
            for number, client in enumerate(pair):
                await go_on(client, f"person{number}", turns=1, count=10)
        for number, client in enumerate(pair):
            await check_apart(one, client, word=f"person{1 - number}")
        assert pair[0].bodies[-1]["conversation_id"] != pair[1].bodies[-1]["conversation_id"]


class HoldingModel(FaqModel):
    """Gives all but the end of a streamed answer, and then nothing."""

    def _reply(self, body: Body) -> Reply:
        if not body.get("stream") or is_summary(body):
            return super()._reply(body)
        pieces = answer_faq(FAQ[0])["content"].split(" ")
        begin = chunk({"role": "assistant", "content": ""})
        return Reply(pieces=[begin, *(chunk({"content": f"{piece} "}) for piece in pieces[:-2]), HELD_SECONDS])


async def read_until_cut(base_url: str, last_word: str, arrived: asyncio.Event) -> None:
    """Ask as Bob and read until the connection is cut. `arrived` is set when the last word that comes is read."""
    body = {"model": "m", "messages": [user(FAQ[0])], "stream": True}
    headers = {"authorization": "Bearer sk-one"}
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", f"{base_url}/chat/completions", json=body, headers=headers) as answer,
    ):
        async for line in answer.aiter_lines():
            if last_word in line:
                arrived.set()


@pytest.mark.timeout(120)
async def test_an_answer_of_a_gateway_that_was_killed_in_mid_stream_proves_nothing(tmp_path: Path) -> None:
    """Bob has its words, and no gateway has written them down when it dies."""
    url, model = f"sqlite:///{tmp_path}/kept.db", HoldingModel()
    prepare_database(url, auto_migrate=True)
    last_word = answer_faq(FAQ[0])["content"].split(" ")[-3]
    async with kept_at(url, model, window=SMALL_WINDOW) as place, serving(model, lifespan="off") as address:
        alice, bob = Client(place), Client(place)
        await alice.say(private(0))
        await alice.say(user(FAQ[0]))
        for number in range(1, 5):
            await alice.say(private(number))
        doomed = await asyncio.to_thread(
            Gateway, tmp_path / "doomed", gateway_config(f"{address}/v1", url, window=SMALL_WINDOW)
        )
        arrived = asyncio.Event()
        reading = asyncio.create_task(read_until_cut(doomed.base_url, last_word, arrived))
        try:
            await asyncio.wait_for(arrived.wait(), 30)
        finally:
            await asyncio.to_thread(doomed.kill)
            await asyncio.wait([reading])
            await asyncio.to_thread(doomed.stop)
        bob.messages = [user(FAQ[0]), assistant(answer_faq(FAQ[0])["content"].rpartition(" ")[0])]
        await check_bob_apart(place, model, alice, bob)


async def check_bob_apart(place: Kept, model: FaqModel, alice: Client, bob: Client) -> None:
    watch = Watch(model)
    await go_on(bob)
    assert watch.find_requests(SECRET) == []
    assert len(bob.ids) == 1
    await check_apart(place, bob, alice)


HOT_REQUESTS = 200


async def test_equal_greetings_at_once_are_all_answered(database: str) -> None:
    """All of them write the same fingerprint."""
    model = StrictModel()
    async with kept_at(database, model) as one, kept_at(database, model) as other:
        asking = [(one, other)[number % 2].post([user("Hello!")]) for number in range(HOT_REQUESTS)]
        answers = await asyncio.gather(*asking)
        assert {answer.status_code for answer in answers} == {200}
        ids = [answer.json()["conversation_id"] for answer in answers]
        assert len(set(ids)) == HOT_REQUESTS
        assert {answer.json()["context_status"] for answer in answers} == {"full"}
        assert len(await list_conversations(one)) == HOT_REQUESTS
