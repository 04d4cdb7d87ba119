"""An answer that was given in one conversation alone proves that conversation; nothing else does."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from tests.live import Reply, ScriptedUpstream, completion
from tests.scenarios.rewriting import words
from tests.support.gateway import World, assistant, until, user, world
from tests.support.memory_store import MemoryStore

Body = dict[str, Any]


def give_long_answer(body: Body) -> Reply:
    """An answer of twenty words that only this question gets."""
    return completion(f"About it: {words(body['messages'][-1]['content'], 20)}")


def answer_to(question: str) -> Body:
    return assistant(f"About it: {words(question, 20)}")


async def talk(gateway: World, questions: list[str], **options: Any) -> tuple[str, list[Body]]:
    """Asks questions one after the other; returns the conversation's id and the whole history."""
    history: list[Body] = []
    for question in questions:
        history.append(user(question))
        conversation_id = (await gateway.say(history, **options))["conversation_id"]
        history.append(answer_to(question))
    return conversation_id, history


async def read_texts(gateway: World, conversation_id: str) -> list[str]:
    return [message["content"] for message in await gateway.log(conversation_id)]


async def test_words_prove_only_beside_a_known_message() -> None:
    async with world(ScriptedUpstream(default=give_long_answer)) as gateway:
        alice, history = await talk(gateway, ["Beans?", "Peas?"])
        pasted = [user("Look"), history[1] | {"name": "x"}, user("And look"), history[3], user("Well?")]
        pasted[1] = assistant(history[1]["content"] + " (from a friend)")
        assert (await gateway.say(pasted))["conversation_id"] != alice
        reshaped = [history[0], pasted[1], history[2], history[3], user("Well?")]
        assert (await gateway.say(reshaped))["conversation_id"] == alice


async def test_a_log_that_lacks_an_earlier_answer_of_ours_is_refuted() -> None:
    async with world(ScriptedUpstream(default=give_long_answer)) as gateway:
        alice, history = await talk(gateway, ["Beans?", "Peas?"])
        bob, own = await talk(gateway, ["Roses?"])
        served_from_cache = [*own, *history, user("Tulips?")]
        found = (await gateway.say(served_from_cache))["conversation_id"]
        assert found != alice
        assert "Tulips?" not in await read_texts(gateway, alice)
        assert bob != alice


async def test_a_history_that_leaves_out_the_beginning_needs_two_answers() -> None:
    async with world(ScriptedUpstream(default=give_long_answer)) as gateway:
        alice, history = await talk(gateway, ["My secret is 7719.", "Beans?", "Peas?"])
        bob = (await gateway.say([*history[-2:], user("Thanks.")]))["conversation_id"]
        assert bob != alice
        assert "My secret is 7719." not in await read_texts(gateway, bob)
        assert (await gateway.say([*history[-4:], user("Lentils?")]))["conversation_id"] == alice


async def test_an_answer_that_was_lost_in_mid_stream_proves_nobody_elses_conversation() -> None:
    """Bob's gateway stops in mid-stream, so his answer is not counted. His client keeps what it has read."""
    store, gate = MemoryStore(clock=lambda: datetime.now(UTC)), asyncio.Event()
    async with world(ScriptedUpstream(default=give_long_answer), store=store) as gateway:
        alice, history = await talk(gateway, ["Beans?"])

        def hang(body: Body) -> Reply:
            reply = give_long_answer(body)
            reply.gate = gate
            return reply

        async with world(ScriptedUpstream(default=hang), store=store) as lost:
            asking = asyncio.ensure_future(lost.say([user("Beans?")]))
            await until(lambda: len(gateway.conversations()) == 2)
            cut = assistant(history[1]["content"].rsplit(" ", 3)[0])
            bob = (await gateway.say([user("Beans?"), cut, user("Go on.")]))["conversation_id"]
            assert bob != alice
            assert "Go on." not in await read_texts(gateway, alice)
            gate.set()
            await asking


async def test_a_branch_is_given_only_to_who_carries_all_that_was_said_before() -> None:
    async with world(ScriptedUpstream(default=give_long_answer)) as gateway:
        alice, history = await talk(gateway, ["My secret is 7719.", "Beans?", "Peas?", "Lentils?"])
        edited = [*history[2:6], user("Rice?")]
        other = (await gateway.say(edited))["conversation_id"]
        assert other != alice
        assert await read_texts(gateway, other) == [one["content"] for one in [*edited, answer_to("Rice?")]]
        whole = [*history[:6], user("Maize?")]
        branch = (await gateway.say(whole))["conversation_id"]
        assert branch not in {alice, other}
        assert len(await read_texts(gateway, branch)) == 8


async def test_a_conversation_that_its_caller_names_is_only_branched() -> None:
    async with world(ScriptedUpstream(default=give_long_answer)) as gateway:
        named, history = await talk(gateway, ["Beans?"], conversation="c")
        again, history = (
            (await gateway.say([*history, user("Peas?")], conversation="c"))["conversation_id"],
            [
                *history,
                user("Peas?"),
                answer_to("Peas?"),
            ],
        )
        assert again == named
        unnamed = (await gateway.say([*history, user("Lentils?")]))["conversation_id"]
        assert unnamed != named
        assert len(await read_texts(gateway, named)) == 4


async def test_an_answer_with_two_owners_proves_nothing_and_an_answer_given_again_keeps_its_owner() -> None:
    async with world(ScriptedUpstream(default=give_long_answer)) as gateway:
        alice, history = await talk(gateway, ["Beans?", "Beans?"])
        assert (await gateway.say([*history, user("Peas?")]))["conversation_id"] == alice
        for stored in (True, False):
            question = f"Rice {stored}?"
            _, own = await talk(gateway, [question])
            await gateway.say([user("First this."), assistant("Yes."), user(question)], store=stored)
            reshaped = [own[0], assistant(own[1]["content"] + " Bye."), user("Well?")]
            before = {one.id for one in gateway.conversations()}
            assert (await gateway.say(reshaped))["conversation_id"] not in before


async def test_equal_histories_share_rows_and_nothing_else() -> None:
    async with world(ScriptedUpstream(default=give_long_answer)) as gateway:
        alice, history = await talk(gateway, ["Beans?", "Peas?"])
        bob, _ = await talk(gateway, ["Beans?", "Peas?"])
        rows = gateway.rows()
        third = (await gateway.say([*history, user("Bob's secret.")]))["conversation_id"]
        assert gateway.rows() == rows + 2, "only what is new is stored"
        assert third not in {alice, bob}
        assert "Bob's secret." not in await read_texts(gateway, alice) + await read_texts(gateway, bob)
