"""A conversation is joined only by an answer that one conversation owns, and nobody is shown another's words.

Alice and Bob share a key and send no ids. The application answers frequent questions always the same. Alice asks them
among private messages. Each test is one way in which Bob comes to hold the same answers while the store knows them as
Alice's only.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.store.sql.rows import encode_time
from app.store.store_factory import create_store
from tests.live import TEST_DEPENDENCIES
from tests.scenarios.proof import (
    FAQ,
    PRIVATE_MESSAGES,
    SECRET,
    SMALL_WINDOW,
    FaqModel,
    SwitchedStore,
    Watch,
    answer_faq,
    ask_faq,
    check_apart,
    go_on,
    import_messages,
    ordinary,
    private,
    read,
    talk_as_alice,
)
from tests.scenarios.rewriting import Body, Client, Kept, kept, message_in, slide
from tests.support.gateway import assistant, system, until, user

FEW = 9
"""Private messages of Alice where their number does not matter."""
FAQ_SHARE = 0.6
"""Of what people with sliding windows say."""


@asynccontextmanager
async def alice_at(path: Path, **options: Any) -> AsyncIterator[tuple[Kept, FaqModel, Client]]:
    """A gateway in which Alice has had her conversation."""
    model = FaqModel()
    async with kept(path, model, **{"window": SMALL_WINDOW, **options}) as place:
        alice = Client(place)
        await talk_as_alice(alice, FEW)
        await place.settle()
        yield place, model, alice


async def check_bob(place: Kept, model: FaqModel, alice: Client, bob: Client, **fields: Any) -> None:
    """Bob goes on with what he holds: nothing of Alice's is sent, or can be read by him, and she keeps her own."""
    bob.bodies.clear()
    watch = Watch(model)
    await go_on(bob, **fields)
    assert watch.find_requests(SECRET) == []
    await check_apart(place, bob, alice)
    assert len(bob.ids) == 1
    await check_alice(place, alice)


async def check_alice(place: Kept, alice: Client) -> None:
    alice.bodies.clear()
    await alice.say(private(900))
    assert len(alice.ids) == 1
    items = await place.items(*alice.ids)
    texts = [item["content"][0]["text"] for item in items if item.get("role") in ("user", "assistant")]
    assert texts == [message["content"] for message in alice.messages]


@pytest.mark.parametrize("private_messages", [PRIVATE_MESSAGES])
async def test_answers_of_turns_that_are_not_stored_prove_nothing(private_messages: int, tmp_path: Path) -> None:
    model = FaqModel()
    async with kept(tmp_path / "kept.db", model, window=SMALL_WINDOW) as place:
        alice, bob = Client(place), Client(place)
        await talk_as_alice(alice, private_messages)
        await ask_faq(bob, store=False)
        await check_bob(place, model, alice, bob)


async def test_answers_of_a_deleted_conversation_prove_nothing(tmp_path: Path) -> None:
    async with alice_at(tmp_path / "kept.db") as (place, model, alice):
        bob = Client(place)
        await ask_faq(bob)
        await place.call("DELETE", *bob.ids)
        await check_bob(place, model, alice, bob)


async def test_answers_that_were_erased_one_by_one_prove_nothing(tmp_path: Path) -> None:
    async with alice_at(tmp_path / "kept.db") as (place, model, alice):
        bob = Client(place)
        await ask_faq(bob)
        (conversation_id,) = bob.ids
        for item in await place.items(conversation_id):
            await place.call("DELETE", f"{conversation_id}/items/{item['id']}", erase="true")
        await check_bob(place, model, alice, bob)


async def test_answers_of_an_expired_conversation_prove_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    async with alice_at(path, retention={"days": 1, "sweep_seconds": 0.1}) as (place, model, alice):
        bob = Client(place)
        await ask_faq(bob)
        (conversation_id,) = bob.ids
        age_conversation(path, conversation_id)
        await until(lambda: conversation_id not in place.ids(), seconds=5)
        await check_bob(place, model, alice, bob)


def age_conversation(path: Path, conversation_id: str) -> None:
    """Put its last activity three days back."""
    with closing(sqlite3.connect(path, timeout=5)) as connection, connection:
        statement = "UPDATE conversations SET updated_at = ? WHERE id = ?"
        connection.execute(statement, (encode_time(datetime.now(UTC) - timedelta(days=3)), conversation_id))


@pytest.mark.parametrize("way", ["file", "items"])
async def test_answers_that_bob_imported_prove_nothing(way: str, tmp_path: Path) -> None:
    async with alice_at(tmp_path / "kept.db") as (place, model, alice):
        bob = Client(place)
        await ask_faq(bob, store=False)
        if way == "file":
            await import_messages(place, bob.messages)
        else:
            await create_with_items(place, bob.messages)
        await check_bob(place, model, alice, bob)


@pytest.mark.parametrize("way", ["file", "items"])
async def test_answers_in_what_alice_imported_prove_nothing(way: str, tmp_path: Path) -> None:
    """Her conversation was held elsewhere: no answer in it is this gateway's."""
    model = FaqModel()
    async with kept(tmp_path / "kept.db", model, window=SMALL_WINDOW) as place:
        history: list[Body] = []
        for number, text in enumerate(FAQ):
            history += [private(number), assistant(f"I see, number {number}."), user(text), answer_faq(text)]
        history += [private(8), assistant("I see.")]
        imported = await (import_messages if way == "file" else create_with_items)(place, history)
        bob = Client(place)
        await ask_faq(bob, store=False)
        bob.bodies.clear()
        watch = Watch(model)
        await go_on(bob)
        assert watch.find_requests(SECRET) == []
        assert imported not in bob.ids
        await check_apart(place, bob)


async def create_with_items(place: Kept, messages: list[Body]) -> str:
    """A conversation with items that were added to it; returns its id."""
    types = {"user": "input_text", "assistant": "output_text"}
    items = [
        {"type": "message", "role": one["role"], "content": [{"type": types[one["role"]], "text": one["content"]}]}
        for one in messages
    ]
    headers = {"authorization": "Bearer sk-one"}
    begun = await place.client.post(f"{place.base_url}/conversations", json={"items": items[:20]}, headers=headers)
    assert begun.status_code == 200, begun.text
    conversation_id: str = begun.json()["id"]
    return conversation_id


@pytest.mark.parametrize("own_turns", [0, 3])
async def test_an_answer_of_alice_that_a_cache_serves_to_bob_proves_nothing(own_turns: int, tmp_path: Path) -> None:
    """The application kept the answer and gives it to Bob itself, alone or after turns of his own."""
    async with alice_at(tmp_path / "kept.db") as (place, model, alice):
        bob = Client(place)
        await go_on(bob, turns=own_turns, count=20)
        before = set(bob.ids)
        bob.messages += [user(FAQ[0]), answer_faq(FAQ[0])]
        await check_bob(place, model, alice, bob)
        if own_turns:
            assert bob.ids == before


async def test_the_newest_answer_of_alice_from_a_cache_shows_nothing_else_of_hers(tmp_path: Path) -> None:
    """What Bob carries looks like a window over the end of her conversation. He reads what he carries only."""
    model = FaqModel()
    async with kept(tmp_path / "kept.db", model, window=SMALL_WINDOW) as place:
        alice, bob = Client(place), Client(place)
        for number in range(FEW):
            await alice.say(private(number))
        await alice.say(user(FAQ[0]))
        bob.messages += [user(FAQ[0]), answer_faq(FAQ[0])]
        watch = Watch(model)
        await go_on(bob)
        assert watch.find_requests(SECRET) == []
        await check_apart(place, bob)


async def test_an_answer_that_became_the_greeting_of_an_application_proves_nothing(tmp_path: Path) -> None:
    async with alice_at(tmp_path / "kept.db") as (place, model, alice):
        people = [Client(place) for _ in range(3)]
        for number, person in enumerate(people):
            person.messages.append(answer_faq(FAQ[1]))
            await go_on(person, f"person{number}", turns=2, count=20)
        await check_people(place, model, alice, people)


async def test_an_answer_that_became_an_example_of_an_application_proves_nothing(tmp_path: Path) -> None:
    async with alice_at(tmp_path / "kept.db") as (place, model, alice):
        people = [Client(place) for _ in range(3)]
        for number, person in enumerate(people):
            for text in FAQ[:2]:
                person.messages += [user(text), answer_faq(text)]
            await go_on(person, f"person{number}", turns=2, count=20)
        await check_people(place, model, alice, people)


async def check_people(place: Kept, model: FaqModel, alice: Client, people: list[Client]) -> None:
    for number, person in enumerate(people):
        name, watch = f"person{number}", Watch(model)
        await go_on(person, name)
        assert len(person.ids) == 1
        await check_apart(place, person, alice, *people[:number], *people[number + 1 :])
        for other in range(len(people)):
            if other != number:
                assert watch.find_requests(f"person{other}") == []
                await check_apart(place, person, word=f"person{other}")
        assert watch.find_requests(SECRET) == []


async def test_answers_that_are_pasted_into_a_message_prove_nothing(tmp_path: Path) -> None:
    """Under a hint that the whole application shares."""
    async with alice_at(tmp_path / "kept.db") as (place, model, alice):
        hint: dict[str, Any] = {"prompt_cache_key": "application"}
        other = Client(place, **hint)
        await talk_as_alice(other, FEW)
        bob = Client(place, **hint)
        texts = "\n\n".join(answer_faq(text)["content"] for text in FAQ)
        bob.messages += [user(f"What do you think of these?\n\n{texts}"), assistant("They are fine.")]
        await check_bob(place, model, alice, bob)
        assert bob.ids.isdisjoint(other.ids)


@pytest.mark.parametrize("store_is_away_for", ["all of his turns", "his last turn"])
async def test_answers_that_were_given_while_the_database_was_away_prove_nothing(
    store_is_away_for: str, tmp_path: Path
) -> None:
    store = SwitchedStore(create_store)
    dependencies = dataclasses.replace(TEST_DEPENDENCIES, create_store=store.create)
    async with alice_at(tmp_path / "kept.db", dependencies=dependencies) as (place, model, alice):
        bob = Client(place)
        if store_is_away_for == "his last turn":
            await ask_faq(bob, FAQ[:3], store=False)
        store.is_away = True
        await ask_faq(bob, FAQ[len(bob.messages) // 2 :])
        assert bob.bodies[-1]["context_status"] == "degraded"
        store.is_away = False
        await place.settle()
        await check_bob(place, model, alice, bob)


async def test_a_branch_that_was_deleted_leaves_its_answers_without_proof(tmp_path: Path) -> None:
    async with alice_at(tmp_path / "kept.db") as (place, model, alice):
        bob = Client(place)
        await go_on(bob, turns=2, count=20)
        (first,) = bob.ids
        bob.messages = bob.messages[:2]
        bob.bodies.clear()
        await ask_faq(bob)
        (branch,) = bob.ids
        assert branch != first
        await place.call("DELETE", branch)
        bob.messages = bob.messages[2:]
        await check_bob(place, model, alice, bob)


async def test_a_conversation_that_was_forked_from_alice_reads_nothing_that_she_said_later(tmp_path: Path) -> None:
    """Bob begins with her first turn, which an application shares with everybody, and asks what she asks later."""
    model = FaqModel()
    async with kept(tmp_path / "kept.db", model, window=SMALL_WINDOW) as place:
        alice, bob = Client(place), Client(place)
        await alice.say(user("Hello, what can you do?"))
        bob.messages = list(alice.messages)
        await talk_as_alice(alice, FEW)
        await ask_faq(bob, store=False)
        await check_bob(place, model, alice, bob)


async def test_an_external_id_that_moved_leaves_nothing_of_its_first_log(tmp_path: Path) -> None:
    model = FaqModel()
    async with kept(tmp_path / "kept.db", model, window=SMALL_WINDOW) as place:
        alice, bob = Client(place, conversation="desk"), Client(place, conversation="desk")
        await talk_as_alice(alice, FEW)
        bob.messages += [ordinary("bob", 800, 20), assistant("So it is."), ordinary("bob", 801, 20), assistant("Yes.")]
        watch = Watch(model)
        await go_on(bob)
        assert watch.find_requests(SECRET) == []
        await check_apart(place, bob, alice)
        assert SECRET not in (await read(place, "desk/items", limit=100)).text
        nameless = Client(place)
        await ask_faq(nameless, store=False)
        nameless.bodies.clear()
        await go_on(nameless, "nameless")
        assert watch.find_requests(SECRET) == []
        await check_apart(place, nameless, alice, bob)


async def test_a_conversation_that_its_client_names_is_continued_by_nobody_else(tmp_path: Path) -> None:
    model = FaqModel()
    async with kept(tmp_path / "kept.db", model, window=SMALL_WINDOW) as place:
        alice, bob = Client(place, conversation="alice"), Client(place)
        await talk_as_alice(alice, FEW)
        await ask_faq(bob, store=False)
        await check_bob(place, model, alice, bob)


@pytest.mark.parametrize(("hers", "his"), [("alice", "bob"), ("alice", None), (None, "bob")])
async def test_end_users_never_meet_by_equal_answers(hers: str | None, his: str | None, tmp_path: Path) -> None:
    model = FaqModel()
    async with kept(tmp_path / "kept.db", model, window=SMALL_WINDOW) as place:
        alice, bob = Client(place), Client(place)
        alice.fields |= {"user": hers} if hers else {}
        bob.fields |= {"user": his} if his else {}
        await talk_as_alice(alice, FEW)
        await ask_faq(bob, store=False)
        await check_bob(place, model, alice, bob)


@pytest.mark.parametrize("gone", ["not stored", "deleted"])
async def test_a_hint_that_a_whole_application_sends_proves_nothing(gone: str, tmp_path: Path) -> None:
    model = FaqModel()
    async with kept(tmp_path / "kept.db", model, window=SMALL_WINDOW) as place:
        alice, bob = (Client(place, prompt_cache_key="application") for _ in range(2))
        await talk_as_alice(alice, FEW)
        await ask_faq(bob, store=gone == "deleted")
        if gone == "deleted":
            await place.call("DELETE", *bob.ids)
        await check_bob(place, model, alice, bob)


@pytest.mark.parametrize("size", [5, 9])
@pytest.mark.parametrize(("people", "turns"), [(3, 24), (8, 14)])
async def test_people_with_sliding_windows_over_the_same_answers_never_meet(
    people: int, turns: int, size: int, tmp_path: Path
) -> None:
    """Everything is stored. Now and then a window holds nothing but answers that others have, too."""
    model, draw = FaqModel(), random.Random(people * size)
    async with kept(tmp_path / "kept.db", model, window=SMALL_WINDOW) as place:
        clients = [Client(place, slide(size)) for _ in range(people)]
        sent: dict[int, int] = {}
        for turn in range(turns):
            for number, client in enumerate(clients):
                begun, is_frequent = len(model.bodies), draw.random() < FAQ_SHARE
                await client.say(user(draw.choice(FAQ)) if is_frequent else ordinary(f"person{number}z", turn, 20))
                sent |= dict.fromkeys(range(begun, len(model.bodies)), number)
        await check_windows(place, model, clients, sent)


async def check_windows(place: Kept, model: FaqModel, clients: list[Client], sent: dict[int, int]) -> None:
    """Nobody's request, items, or view has a word of another."""
    for index, own in sent.items():
        words = {number for number in range(len(clients)) if f"person{number}z".encode() in model.bodies[index]}
        assert words <= {own}
    for conversation_id in place.ids():
        told = str(await place.items(conversation_id))
        assert sum(f"person{number}z" in told for number in range(len(clients))) <= 1


async def test_two_who_ask_the_same_at_once_never_meet(tmp_path: Path) -> None:
    model = FaqModel()
    async with kept(tmp_path / "kept.db", model, window=SMALL_WINDOW) as place:
        clients = [Client(place, slide(5)) for _ in range(4)]
        for _ in range(2):
            for text in FAQ:
                await asyncio.gather(*(client.say(user(text)) for client in clients))
            for number, client in enumerate(clients):
                await go_on(client, f"person{number}z", turns=1, count=20)
        for conversation_id in place.ids():
            told = str(await place.items(conversation_id))
            assert sum(f"person{number}z" in told for number in range(len(clients))) <= 1


async def test_other_choices_of_turns_that_are_not_stored_prove_nothing(tmp_path: Path) -> None:
    async with alice_at(tmp_path / "kept.db") as (place, model, alice):
        bob = Client(place)
        body = await place.say([system("You help with gardens."), user(FAQ[0])], store=False, n=2)
        bob.messages += [user(FAQ[0]), message_in(body)]
        await ask_faq(bob, FAQ[1:], store=False)
        await check_bob(place, model, alice, bob)
