"""Runs of one script: an evaluation, a load test, a greeting. Equal words cost no copies, and runs stay apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.live import Reply, completion
from tests.scenarios.proof import SMALL_WINDOW, list_conversations, read
from tests.scenarios.rewriting import LOGS_ONLY, Client, Kept, StrictModel, kept, question, slide
from tests.support.gateway import is_summary, user

RUNS = 3
TURNS = 40


class SummaryOfWords(StrictModel):
    """Its summaries keep the one word that matters."""

    def _reply(self, body: Any) -> Reply:
        if is_summary(body):
            return completion("They said quincunx." if "quincunx" in str(body["messages"]) else "They spoke.")
        return super()._reply(body)


async def run_script(client: Client, turns: int = TURNS, count: int = 60) -> None:
    for turn in range(turns):
        await client.say(question(turn, count))


async def run_scripts(place: Kept, turns: int, count: int, **fields: Any) -> list[Client]:
    """One after the other, as an evaluation runs them."""
    clients = [Client(place, **fields) for _ in range(RUNS)]
    for client in clients:
        await run_script(client, turns, count)
    return clients


async def measure_one(path: Path, turns: int, count: int, **options: Any) -> tuple[int, int]:
    """Stored bytes and summaries of a single run."""
    model = StrictModel()
    async with kept(path, model, **options) as place:
        empty = place.used_bytes()
        await run_script(Client(place), turns, count)
        await place.settle()
        return place.used_bytes() - empty, model.summaries


async def test_three_runs_of_a_script_cost_at_most_twice_the_storage_of_one(tmp_path: Path) -> None:
    one, _ = await measure_one(tmp_path / "one.db", TURNS, 60, **LOGS_ONLY)
    async with kept(tmp_path / "kept.db", StrictModel(), **LOGS_ONLY) as place:
        empty = place.used_bytes()
        await run_scripts(place, TURNS, 60)
        await place.settle()
        used = place.used_bytes() - empty
    print(f"one run {one}, {RUNS} runs {used}")
    assert used <= 2 * one


@pytest.mark.parametrize(("window", "turns", "count"), [(SMALL_WINDOW, 12, 120), (8192, 20, 150)])
async def test_a_script_that_runs_again_pays_for_no_summary_twice(
    window: int, turns: int, count: int, tmp_path: Path
) -> None:
    _, summaries = await measure_one(tmp_path / "one.db", turns, count, window=window)
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model, window=window) as place:
        await run_scripts(place, turns, count)
        assert summaries > 0
        # At a small window a later run is shown other summaries of the same log, so the model answers otherwise and the
        # runs say the same no longer. No range of messages is summarized twice.
        ((stored,),) = place.query("SELECT count(*) FROM chunks")
        assert model.summaries == stored
        assert window == SMALL_WINDOW or stored == summaries


async def test_each_run_is_one_row_in_the_list_of_conversations(tmp_path: Path) -> None:
    async with kept(tmp_path / "kept.db", StrictModel(), window=1_000_000) as place:
        clients = await run_scripts(place, TURNS, 20)
        last = [client.bodies[-1]["conversation_id"] for client in clients]
        assert len(set(last)) == RUNS
        listed = await list_conversations(place)
        assert len(listed) <= 2 * RUNS
        for conversation_id in last:  # folded, not gone
            assert len(await place.items(conversation_id)) == 2 * TURNS


async def test_runs_at_once_of_one_script_stay_apart(tmp_path: Path) -> None:
    async with kept(tmp_path / "kept.db", StrictModel(), window=1_000_000) as place:
        clients = [Client(place) for _ in range(RUNS)]
        for turn in range(TURNS // 2):
            for client in clients:
                await client.say(question(turn, 20))
        assert len({client.bodies[-1]["conversation_id"] for client in clients}) == RUNS
        for number, client in enumerate(clients):
            await client.say(user(f"I am run {number}."))
        for number, client in enumerate(clients):
            told = str(await place.items(client.bodies[-1]["conversation_id"]))
            assert [other for other in range(RUNS) if f"I am run {other}." in told] == [number]


@pytest.mark.parametrize("gone", range(RUNS))
async def test_deleting_the_conversations_of_one_run_leaves_the_others_readable(gone: int, tmp_path: Path) -> None:
    async with kept(tmp_path / "kept.db", StrictModel(), window=1_000_000) as place:
        clients = await run_scripts(place, 12, 20)
        for conversation_id in clients[gone].ids:
            await read(place, conversation_id, "DELETE", branches="true")
        for number, client in enumerate(clients):
            last = client.bodies[-1]["conversation_id"]
            if number == gone:
                assert (await read(place, last)).status_code == 404
                continue
            told = [item["content"][0]["text"] for item in await place.items(last)]
            assert told == [message["content"] for message in client.messages]
            body = await client.say(question(90))
            told = [item["content"][0]["text"] for item in await place.items(body["conversation_id"])]
            assert told == [message["content"] for message in client.messages]


async def test_the_branch_of_one_run_outlives_its_trunk_and_the_other_run(tmp_path: Path) -> None:
    async with kept(tmp_path / "kept.db", StrictModel(), window=1_000_000) as place:
        alice, bob = Client(place), Client(place)
        await run_script(alice, 4, 20)
        (trunk,) = alice.ids
        alices_history = list(alice.messages)
        branched = Client(place)
        branched.messages = alices_history[:4]
        branch = (await branched.say(user("Alice asks otherwise.")))["conversation_id"]
        assert branch != trunk
        await run_script(bob, 4, 20)
        bobs = (await bob.say(user("I am Bob.")))["conversation_id"]
        assert [row[0] for row in place.query("SELECT lineage FROM conversations WHERE id = ?", bobs)] != ["[]"]

        await read(place, trunk, "DELETE")
        assert (await read(place, trunk)).status_code == 404
        rows = (await place.call("GET", f"{branch}/branches"))["data"]
        assert [(row["id"], row["parent_id"]) for row in rows] == [(branch, None)]
        alice.messages = alices_history
        assert (await alice.say(user("I am Alice.")))["conversation_id"] not in {*bob.ids, branch, trunk}
        assert (await bob.say(user("Bob goes on.")))["conversation_id"] == bobs
        assert "Alice" not in str(await place.items(bobs))

        for conversation_id in bob.ids:
            await read(place, conversation_id, "DELETE", branches="true")
        told = [item["content"][0]["text"] for item in await place.items(branch)]
        assert told == [message["content"] for message in branched.messages]
        assert (await branched.say(user("And then?")))["conversation_id"] == branch


async def test_what_one_run_erases_the_other_keeps_and_no_summary_brings_back(tmp_path: Path) -> None:
    model = SummaryOfWords()
    async with kept(tmp_path / "kept.db", model, window=SMALL_WINDOW) as place:
        alice, bob = Client(place), Client(place)
        for client in (alice, bob):
            await client.say(user("The word is quincunx."))
            await run_script(client, 4, 40)
        for client, name in ((alice, "Alice"), (bob, "Bob")):
            await client.say(user(f"I am {name}."))
        hers, his = (client.bodies[-1]["conversation_id"] for client in (alice, bob))
        assert hers != his
        (item,) = [one for one in await place.items(hers) if "quincunx" in str(one["content"])]
        await place.call("DELETE", f"{hers}/items/{item['id']}", erase="true")
        assert "quincunx" not in str(await place.items(hers))
        assert "quincunx" in str(await place.items(his))
        for client in (bob, alice):
            for turn in range(4, 12):
                await client.say(question(turn, 120))
        assert bob.bodies[-1]["conversation_id"] == his
        summaries = (await read(place, f"{his}/summaries")).text
        assert "quincunx" in summaries
        assert "quincunx" not in (await read(place, f"{hers}/summaries")).text
        assert "quincunx" not in (await read(place, f"{hers}/context", limit=100)).text


async def test_erasing_the_conversations_of_all_runs_leaves_no_word(tmp_path: Path) -> None:
    async with kept(tmp_path / "kept.db", StrictModel(), window=1_000_000) as place:
        clients = await run_scripts(place, 8, 20)
        word = question(3, 20)["content"].split()[5].encode()
        assert word in place.stored_bytes()
        for conversation_id in {one for client in clients for one in client.ids}:
            await read(place, conversation_id, "DELETE", branches="true")
        assert place.contents() == []
        assert place.ids() == []
        assert word not in place.stored_bytes()


async def test_runs_with_a_sliding_window_stay_apart(tmp_path: Path) -> None:
    async with kept(tmp_path / "kept.db", StrictModel(), window=1_000_000) as place:
        clients = [Client(place, slide(7)) for _ in range(RUNS)]
        for turn in range(16):
            for number, client in enumerate(clients):
                await client.say(question(turn, 20) if turn < 12 else user(f"Run {number} says {turn}."))
        for conversation_id in place.ids():
            told = str(await place.items(conversation_id))
            assert sum(f"Run {number} says" in told for number in range(RUNS)) <= 1
