"""Clients that change what they resend keep their conversation, and nobody gets another's.

Each test is named for a fault that was seen by running it.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from app.conversation.identity import extract_family_root
from tests.live import DROP, Reply, ScriptedUpstream, chunk, completion, stream
from tests.scenarios.rewriting import (
    COUNTER,
    LOGS_ONLY,
    LOOK,
    SYSTEM,
    WINDOW,
    Client,
    StrictModel,
    hand_over,
    inject,
    kept,
    mask,
    message_in,
    question,
    run_agent,
    slide,
    summarize_and_keep,
    summarize_users,
    words,
)
from tests.support.gateway import assistant, is_summary, user


def make_examples(count: int) -> list[dict[str, Any]]:
    """Exchanges that an application puts before each conversation."""
    return [
        {"role": role, "content": f"Example {number}: {words(f'{role}{number}', 30)}"}
        for number in range(count)
        for role in ("user", "assistant")
    ]


async def test_notes_before_the_newest_message_neither_orphan_results_nor_lose_messages(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        client = Client(place, inject(lambda length: f"It is minute {length}. {words(f'note{length}', 120)}"))
        client.fields["tools"] = [LOOK]
        for turn in range(45):
            body = await client.say(user(f"TOOL {turn}: {words(f'q{turn}', 60)}"))
            (asked,) = body["choices"][0]["message"]["tool_calls"]
            await client.say({"role": "tool", "tool_call_id": asked["id"], "content": words(f"r{turn}", 80)})
        assert model.refused == []
        assert len(client.ids) == 1
        assert len(place.ids()) == 1
        asked_users = [message["content"] for message in client.messages if message["role"] == "user"]
        stored = [content for content in place.contents() if content in set(asked_users)]
        assert stored == asked_users
        for body, sent in zip(client.bodies, model.asked, strict=True):
            counted = COUNTER.count_request(sent["messages"], tools=sent["tools"])
            assert body["context"]["prompt_tokens"] == pytest.approx(counted, rel=0.1)
            assert any(str(message["content"]).startswith("It is minute") for message in sent["messages"])


async def test_a_pin_behind_a_note_pins_the_message_that_is_meant(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        client = Client(place, inject(lambda length: f"It is minute {length}."))
        for turn in range(4):
            await client.say(question(turn))
        place_of_newest = len([SYSTEM, *client.messages, "note"])
        body = await client.say(user("The code is 7719."), context={"pin": [place_of_newest]})
        told = await place.call("GET", f"{body['conversation_id']}/context", order="asc", limit=100)
        assert [row["text"] for row in told["messages"]["data"] if row["pinned"]] == ["The code is 7719."]


async def test_people_who_say_the_same_are_never_joined(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        one, other = Client(place), Client(place)
        await one.say(user("Hi"))
        await other.say(user("Hi"))
        assert one.messages == other.messages
        await place.settle()
        await other.say(user("My secret is 7719."))
        await one.say(user("I grow beans."))
        await other.say(user("Remember it."))
        await one.say(user("And peas."))
        own, others = one.bodies[-1]["conversation_id"], other.bodies[-1]["conversation_id"]
        assert own != others
        assert "My secret is 7719." not in place.contents(own)
        for body in await place.items(own):
            assert "7719" not in str(body)
        deleted = await place.call("DELETE", own, branches="true")
        assert deleted["deleted"] is True
        told = [item["content"][0]["text"] for item in await place.items(others)]
        assert told[0] == "Hi"
        assert told[2] == "My secret is 7719."
        assert told[4] == "Remember it."


async def test_people_with_the_same_examples_who_say_the_same_are_never_joined(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        examples = make_examples(5)
        people = [Client(place, lambda messages: [*examples, *messages], prompt_cache_key="app") for _ in range(3)]
        for person in people:
            await person.say(user("Hi"))
        for number, person in enumerate(people):
            await person.say(user(f"I am person {number}."))
        for number, person in enumerate(people):
            await person.say(user(f"I still am person {number}."))
        ids = [person.bodies[-1]["conversation_id"] for person in people]
        assert len(set(ids)) == 3
        for number, conversation_id in enumerate(ids):
            stored = place.contents(conversation_id)
            assert [text for text in stored if "am person" in text] == [
                f"I am person {number}.",
                f"I still am person {number}.",
            ]
        await place.call("DELETE", ids[0], branches="true")
        assert set(ids[1:]) <= set(place.ids())


@pytest.mark.parametrize(("length", "conversations"), [(40, 1), (2, 3)], ids=["long messages", "short messages"])
async def test_a_history_goes_on_with_its_answers_and_not_with_a_greeting_that_another_got_too(
    length: int, conversations: int, tmp_path: Path
) -> None:
    """The other's conversation ends where this one's client leaves out what followed. The greeting has two owners, so
    it proves nothing. Answers of three words prove only together with those before them, which the window leaves out:
    then each turn begins a conversation."""
    path, model = tmp_path / "kept.db", StrictModel(length)
    async with kept(path, model) as place:
        ann, bob = Client(place, lambda messages: [*messages[:2], *messages[2:][-5:]]), Client(place)
        await ann.say(user("Hi"))
        for turn in range(4):
            await ann.say(question(turn, length))
        await bob.say(user("Hi"))
        assert bob.messages == ann.messages[:2]
        await place.settle()
    async with kept(path, model) as place:
        ann.place = bob.place = place
        await ann.say(question(4, length))
        assert len(ann.ids) == conversations
        await bob.say(user("I grow beans."))
        await bob.say(user("And peas."))
        assert len(bob.ids) == 2, "one with the greeting alone, and one that his own answers prove"
        assert ann.ids.isdisjoint(bob.ids)


async def test_a_prefix_of_examples_makes_no_family(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        examples = make_examples(5)
        people = [Client(place, lambda messages: [*examples, *messages]) for _ in range(3)]
        for turn in range(3):
            for number, person in enumerate(people):
                await person.say(user(f"I am person {number}, and this is my message {turn}."))
        assert [len(person.ids) for person in people] == [1, 1, 1]
        assert len(place.ids()) == 3
        gone, *stay = [person.bodies[-1]["conversation_id"] for person in people]
        await place.call("DELETE", gone, branches="true")
        assert sorted(place.ids()) == sorted(stay)
        for number, conversation_id in enumerate(stay, 1):
            assert len(await place.items(conversation_id)) == len(examples) + 6
            assert f"person {number}" in str(await place.items(conversation_id))


@pytest.mark.parametrize("field", ["user", "safety_identifier"])
async def test_two_end_users_are_never_joined(field: str, tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        ann: dict[str, Any] = {field: "ann", "prompt_cache_key": "app"}
        bob: dict[str, Any] = {field: "bob", "prompt_cache_key": "app"}
        one = Client(place, **ann)
        await one.say(question(0))
        await one.say(question(1))
        await place.settle()
        for tell in (list, slide(3), mask(1)):
            other = Client(place, tell, **bob)
            other.messages = list(one.messages)
            await other.say(user("What do you know of me?"))
            assert other.ids.isdisjoint(one.ids)
        await one.say(question(2))
        assert len(one.ids) == 1


@pytest.mark.parametrize("named", [False, True])
async def test_a_sliding_window_keeps_its_conversation(named: bool, tmp_path: Path) -> None:
    model = StrictModel(answer_words=64)
    async with kept(tmp_path / "kept.db", model) as place:
        client = Client(place, slide(24))
        if named:
            client.fields["conversation"] = "c"
        for turn in range(60):
            await client.say(question(turn, 64))
        assert model.refused == []
        assert len(client.ids) == len(place.ids()) == 1
        assert "bypassed" not in client.statuses
        assert place.contents() == [message["content"] for message in client.messages]
        assert len(client.messages) == 120
        # Without a name, no summary of what the window has passed may be shown: the window is sent while it fits.
        assert model.summaries > 0 or not named
        assert model.summaries <= 12


async def test_what_a_sliding_window_has_passed_is_never_summarized(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        client, reads = Client(place, slide(8)), list[set[int]]()
        for turn in range(20):
            await client.say(question(turn, 30 if turn < 12 else 640))
            window = client.tell(client.messages[:-1])
            asked = [body for body in model.requests if is_summary(body)]
            for body in asked[len(reads) :]:
                read = {number for number in range(turn + 1) if f"Question {number}:" in str(body)}
                sent = {number for number in range(turn + 1) if f"Question {number}:" in str(window)}
                assert read <= sent
                reads.append(read)
        assert reads, "summaries were made"
        assert len(reads) <= 2 * 8, "at most two in each turn in which the window is longer than the model's"
        assert not any(read & set(range(8)) for read in reads)
        assert client.statuses == {"full", "summarized"}
        assert model.refused == []


async def test_nothing_is_prepared_for_a_window_that_slides_and_fits(tmp_path: Path) -> None:
    model = StrictModel(answer_words=110)
    async with kept(tmp_path / "kept.db", model, policies={"additive": {"prepare_ratio": 0.5}}) as place:
        client = Client(place, slide(12))
        for turn in range(16):
            await client.say(question(turn, 110))
            await asyncio.sleep(0.02)
        assert client.bodies[-1]["context"]["prompt_tokens"] > 0.5 * WINDOW
        assert client.statuses == {"full"}
        assert model.summaries <= 1, "one may be prepared before the window begins to slide"


async def test_an_agent_that_masks_old_results_keeps_its_conversation(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        client = Client(place, mask(5))
        await run_agent(client, 60)
        assert model.refused == []
        assert len(client.ids) == len(place.ids()) == 1
        assert place.contents() == [message["content"] for message in client.messages]
        print(f"summaries {model.summaries}, waits {client.waits}")
        assert client.waits <= 6


async def test_masking_costs_no_storage_and_no_time(tmp_path: Path) -> None:
    used, cpu = {}, {}
    for name, tell in (("masked", mask(5)), ("unmasked", list)):
        async with kept(tmp_path / f"{name}.db", StrictModel(), **LOGS_ONLY) as place:
            client = Client(place, tell)
            seconds: list[float] = []

            async def say(*messages: Any, say: Any = client.say, seconds: list[float] = seconds, **fields: Any) -> Any:
                begun = time.process_time()
                body = await say(*messages, **fields)
                seconds.append(time.process_time() - begun)
                return body

            client.say = say  # type: ignore[method-assign]
            await run_agent(client, 200, result_words=60)
            assert len(client.ids) == len(place.ids()) == 1
            assert place.contents() == [message["content"] for message in client.messages]
            used[name], cpu[name] = place.used_bytes(), (sum(seconds[60:80]) / 20, sum(seconds[-20:]) / 20)
    print(used, cpu)
    assert used["masked"] <= 1.2 * used["unmasked"]


async def test_a_summary_of_the_client_replaces_what_it_stands_for(tmp_path: Path) -> None:
    habits: tuple[tuple[Any, dict[str, Any]], ...] = (
        (summarize_users, {"conversation": "c"}),
        (summarize_and_keep(6), {}),
        (summarize_and_keep(6), {"headers": {"session-id": "0198f2c4-codex-session"}}),
    )
    for number, (tell, fields) in enumerate(habits):
        model = StrictModel()
        async with kept(tmp_path / f"kept{number}.db", model) as place:
            client = Client(place, **fields)
            for turn in range(8):
                await client.say(question(turn))
            client.tell = tell(len(client.messages))
            for turn in range(8, 14):
                await client.say(question(turn))
            assert model.refused == []
            assert (number, len(client.ids), len(place.ids())) == (number, 1, 1)
            assert place.contents() == [message["content"] for message in client.messages]
            assert [message["content"] for message in model.asked[-1]["messages"]] == [
                message["content"] for message in [SYSTEM, *client.tell(client.messages[:-1])]
            ]


async def test_what_a_client_kept_of_a_cut_answer_continues(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        for turns in (1, 4, 7):
            client = Client(place)
            for turn in range(turns):
                await client.say(user(f"{turns} {turn}: {words((turns, turn), 20)}"))
            whole = client.messages[-1]["content"]
            client.messages[-1] = client.messages[-1] | {"content": whole[:-30]}
            await client.say(question(90))
            await client.say(question(91))
            assert len(client.ids) == 1
            stored = place.contents(client.bodies[0]["conversation_id"])
            expected = [message["content"] for message in client.messages]
            expected[2 * turns - 1] = whole
            assert stored == expected
            assert whole[:-30] in [message["content"] for message in model.asked[-1]["messages"]]


@pytest.mark.parametrize("turns", [1, 4, 7])
async def test_another_choice_that_a_client_takes_up_continues(turns: int, tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        client = Client(place)
        for turn in range(turns - 1):
            await client.say(question(turn))
        texts = ["The first of two.", "The second of two."]
        reply = completion(texts[0])
        choice = reply.body["choices"][0]
        reply.body["choices"].append({**choice, "index": 1, "message": {**choice["message"], "content": texts[1]}})
        model.replies = [reply]
        await client.say(user("Say something."), n=2)
        client.messages[-1] = {"role": "assistant", "content": texts[1]}
        await client.say(question(90))
        await client.say(question(91))
        assert len(client.ids) == len(place.ids()) == 1
        assert len(place.contents()) == len(client.messages)
        assert texts[1] in [message["content"] for message in model.asked[-1]["messages"]]
        assert texts[0] not in [message["content"] for message in model.asked[-1]["messages"]]


HABITS: dict[str, tuple[Any, dict[str, Any]]] = {
    "slides": (slide(9), {}),
    "slides under an id": (slide(9), {"conversation": "c"}),
    "injects notes": (inject(lambda length: f"It is minute {length}."), {}),
    "summarizes": (lambda messages: summarize_and_keep(6)(8)(messages) if len(messages) > 14 else list(messages), {}),
}


PAIRED: dict[str, Any] = {
    "resends": list,
    "slides": slide(5),
    "summarizes": summarize_users(4),
    "injects notes": inject(lambda length: f"It is minute {length}."),
}


@pytest.mark.parametrize("habit", PAIRED)
async def test_two_who_say_the_same_at_the_same_time_under_one_hint_are_never_joined(
    habit: str, tmp_path: Path
) -> None:
    async with kept(tmp_path / "kept.db", StrictModel()) as place:
        pair = [Client(place, PAIRED[habit], prompt_cache_key="app") for _ in range(2)]
        for text in ("Hi", "What are your opening hours?", "And on Sunday?"):
            for client in pair:
                await client.say(user(text))
        for turn in range(3):
            for number, client in enumerate(pair):
                await client.say(user(f"person{number} says {turn}"))
        for conversation_id in place.ids():
            told = str(await place.items(conversation_id))
            assert not ("person0" in told and "person1" in told)
        gone, *others = [client.bodies[-1]["conversation_id"] for client in pair]
        await place.call("DELETE", gone, branches="true")
        assert set(others) <= set(place.ids()), "who says the same is no relative"
        assert pair[0].bodies[-1]["conversation_id"] != pair[1].bodies[-1]["conversation_id"]


@pytest.mark.parametrize("habit", HABITS)
async def test_other_replicas_and_later_processes_recognise_the_same(habit: str, tmp_path: Path) -> None:
    tell, fields = HABITS[habit]
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as one, kept(tmp_path / "kept.db", model) as other:
        client = Client(one, tell, **fields)
        for turn in range(6):
            await client.say(question(turn))
        await one.settle()
        client.place = other
        for turn in range(6, 12):
            await client.say(question(turn))
        await other.settle()
        client.place = one
        await client.say(question(12))
    async with kept(tmp_path / "kept.db", model) as later:
        client.place = later
        for turn in range(13, 18):
            await client.say(question(turn))
        assert len(client.ids) == len(later.ids()) == 1
        notes = [text for text in later.contents() if not text.startswith("It is minute")]
        assert notes == [message["content"] for message in client.messages]


@pytest.mark.parametrize("habit", ["masks", *HABITS])
async def test_what_the_model_saw_of_rewritten_messages_is_exact(habit: str, tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model, window=1_000_000) as place:
        if habit == "masks":
            client = Client(place, mask(2))
            await run_agent(client, 14, result_words=20)
        else:
            tell, fields = HABITS[habit]
            client = Client(place, tell, **fields)
            for turn in range(14):
                await client.say(question(turn))
        (conversation_id,) = client.ids
        answers = [item for item in await place.items(conversation_id) if item.get("role") == "assistant"]
        answers += [item for item in await place.items(conversation_id) if item["type"] == "function_call"]
        for item, sent in zip(answers, model.asked, strict=True):
            path = f"{conversation_id}/items/{item['id']}/context"
            seen = await place.call("GET", path, **{"include[]": "sent", "limit": 1000})
            assert seen["exact"] is True
            assert seen["sent"] == sent["messages"]


async def test_an_erased_message_is_erased_in_every_version(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        secret, reworded = "xylograph7781", "zephyr5512"

        def reword(messages: Any) -> list[dict[str, Any]]:
            late = len(messages) > 8
            return [
                message | {"content": message["content"].replace(secret, reworded)} if late else message
                for message in messages
            ]

        client = Client(place, reword)
        await client.say(question(0))
        await client.say(user(f"My secret is {secret}."))
        for turn in range(2, 8):
            await client.say(question(turn))
        (conversation_id,) = client.ids
        assert place.ids() == [conversation_id]
        assert secret.encode() in place.stored_bytes()
        assert reworded.encode() in place.stored_bytes()
        (item,) = [item for item in await place.items(conversation_id) if secret in str(item)]
        await place.call("DELETE", f"{conversation_id}/items/{item['id']}", erase="true")
        assert secret.encode() not in place.stored_bytes()
        assert reworded.encode() not in place.stored_bytes()
        await client.say(question(8))
        await place.settle()
        assert len(client.ids) == 1
        assert reworded not in str(model.asked[-1])
        assert reworded.encode() not in place.stored_bytes()


@pytest.mark.parametrize("habit", ["slides", "injects notes"])
async def test_regenerated_and_edited_turns_branch_where_they_differ(habit: str, tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        client = Client(place, HABITS[habit][0])
        for turn in range(10):
            await client.say(question(turn))
        (first,) = client.ids
        before = place.contents(first)
        model.replies = [completion("Another answer: " + words("another", 40))]
        history = client.messages
        client.messages = history[:-2]
        regenerated = (await client.say(history[-2]))["conversation_id"]
        assert regenerated != first
        shown = [text for text in place.contents(regenerated) if not text.startswith("It is minute")]
        if habit == "slides":
            # The window leaves out what was said before, and who has a branch's id could read that.
            assert shown == [message["content"] for message in client.tell(client.messages[:-1])] + shown[-1:]
        else:
            assert shown == [client.messages[-1]["content"]]
        client.messages = history[:-2]
        edited = (await client.say(user("Quite another question.")))["conversation_id"]
        assert edited not in {first, regenerated}
        shown = [text for text in place.contents(edited) if not text.startswith("It is minute")]
        assert shown[-2:] == ["Quite another question.", client.messages[-1]["content"]]
        assert habit == "slides" or len(shown) == 2
        assert (await client.say(question(11)))["conversation_id"] == edited
        client.messages = history
        assert (await client.say(question(12)))["conversation_id"] == first
        assert place.contents(first)[: len(before)] == before
        if habit != "slides":
            log = [item["content"][0]["text"] for item in await place.items(edited) if item["type"] == "message"]
            assert [text for text in log if not text.startswith("It is minute")][:18] == [
                message["content"] for message in history[:18]
            ]


async def test_appends_are_never_aligned(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        said = [user("Shall we?"), user("yes"), user("Really?"), user("yes"), user("Really?"), user("yes")]
        answers = [message_in(await place.say([message], conversation="c")) for message in said]
        (conversation_id,) = place.ids()
        turns = zip(said, answers, strict=True)
        expected = [message["content"] for turn in turns for message in turn]
        assert place.contents(conversation_id) == expected


async def test_agents_that_append_may_send_their_last_call_again(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        expected = []
        new = [user("TOOL: look.")]
        for turn in range(6):
            body = await place.say(new, conversation="c", tools=[LOOK])
            asked = message_in(body)
            expected += [new[-1], asked]
            result = {"role": "tool", "tool_call_id": asked["tool_calls"][0]["id"], "content": f"TOOL output {turn}"}
            new = [asked, result]
        assert model.refused == []
        assert len(place.ids()) == 1
        assert place.contents() == [message["content"] for message in expected]


async def test_equal_threads_stay_apart_after_their_client_compacts(tmp_path: Path) -> None:
    """Two threads with the same words get the same answers, the summary included. Only their session ids differ."""
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        threads = [Client(place, headers={"session-id": f"0198f2c4-thread-{name}"}) for name in "ab"]
        for turn in range(3):
            for thread in threads:
                await thread.say(question(turn))
        for thread in threads:
            await thread.say(user("Write a summary of everything for another model."))
            thread.tell = hand_over(len(thread.messages))
        for turn in (7, 8):
            for thread in threads:
                await thread.say(question(turn))
        assert [len(thread.ids) for thread in threads] == [1, 1]
        assert len(place.ids()) == 2
        for thread in threads:
            assert place.contents(*thread.ids) == [message["content"] for message in thread.messages]
        asked = [message["content"] for message in model.asked[-1]["messages"]]
        assert asked == [message["content"] for message in [SYSTEM, *thread.tell(thread.messages[:-1])]]


@pytest.mark.parametrize("form", ["{}", "<analysis>\nFirst a1.\n</analysis>\n\n<summary>\n{}\n</summary>"])
async def test_a_client_that_keeps_nothing_but_its_summary_and_the_newest_answer_keeps_its_conversation(
    form: str, tmp_path: Path
) -> None:
    """As Claude Code does, which also adds messages of its own, and shows the text of the summary without its tags. An
    agent of the same session that is asked about the summary begins a conversation."""
    told, later = f"The archive says: {words('archive', 40)}", f"Later: {words('later', 40)}"
    said = ["Done.", form.format(told), later, "More.", "Yes."]
    async with kept(tmp_path / "kept.db", ScriptedUpstream(*map(completion, said))) as place:
        session: dict[str, Any] = {"headers": {"x-claude-code-session-id": "0198f2c4-session"}}
        first = await place.say([user("Open the archive.")], **session)
        await place.say([user("Open the archive."), user("Write a summary of everything.")], **session)
        history = [
            user(f"This session is being continued.\n\nSummary:\n{told}\n\nGo on."),
            assistant("Done."),
            user("/compact"),
            assistant("No response requested."),
            user("What now?"),
        ]
        second = await place.say(history, **session)
        third = await place.say([*history, assistant(later), user("And then?")], **session)
        other = await place.say([user(f"Is this true?\n\nSummary:\n{told}")], **session)
        ids = [body["conversation_id"] for body in (first, second, third, other)]
        assert ids[1] == ids[2]
        roots = [extract_family_root(one) for one in ids]
        assert roots[0] == roots[1] != roots[3]
        contents = place.contents(ids[1])
        assert contents[0] == "Open the archive."
        assert [contents.count(text) for text in ("Done.", "No response requested.", "What now?", later)] == [1] * 4
        assert place.contents(ids[3])[-1] == "Yes."


async def test_an_answer_that_came_twice_proves_neither_conversation(tmp_path: Path) -> None:
    """The first stream brings all words and breaks off. The client sends its request again, and keeps that answer. Two
    people under one session id would send the same. So a conversation begins, which the next answer proves."""
    said = f"The archive says: {words('archive', 40)}"
    broken = Reply(pieces=[chunk({"role": "assistant", "content": said}), DROP])
    async with kept(tmp_path / "kept.db", ScriptedUpstream(broken, stream(said), completion("Yes."))) as place:
        thread: dict[str, Any] = {"headers": {"session-id": "0198f2c4-thread-a"}}
        answer = await place.post([user("What does it say?")], stream=True, **thread)
        assert '"error"' in answer.text
        events = await place.stream([user("What does it say?")], **thread)
        history = [user("What does it say?"), assistant(said), user("Is that all?")]
        body = await place.say(history, **thread)
        assert body["conversation_id"] != events[0]["conversation_id"]
        assert len(await place.items(body["conversation_id"])) == 4
        again = await place.say([*history, assistant("Yes."), user("Thanks.")], **thread)
        assert again["conversation_id"] == body["conversation_id"]
