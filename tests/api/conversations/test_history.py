"""The course of a conversation over HTTP: its answers in numbers, its log by place, the branches of its family."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from app.conversations.history.readable_log import MAX_TEXT_CHARS
from tests.live import Reply, ScriptedUpstream, completion
from tests.support.conversations_client import KEY, WINDOW, done, question, refused, talk
from tests.support.gateway import World, answered, answering, assistant, long_history, result, user, world
from tests.support.gateway import call as tool_call
from tests.support.memory_store import MemoryStore

UNKNOWN = (
    "policy", "status", "window", "limit", "threshold_tokens", "prompt_tokens", "reported_tokens", "cached_tokens",
    "completion_tokens", "log_tokens", "saved_tokens", "parts", "compaction", "summaries", "boundary_seq", "model",
    "finish_reason",
)  # fmt: skip


async def turns(gateway: World, conversation: str = "c", **query: Any) -> list[dict[str, Any]]:
    """All answers, page by page."""
    found: list[dict[str, Any]] = []
    while True:
        page = await done(gateway, "GET", f"{conversation}/turns", **query)
        found += page["data"]
        if not page["has_more"]:
            return found
        assert page["last_id"] == page["data"][-1]["id"]
        query["after"] = page["last_id"]


async def log(gateway: World, conversation: str = "c", **query: Any) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = (await done(gateway, "GET", f"{conversation}/log", **query))["data"]
    return data


async def every(gateway: World, **query: str | list[str]) -> httpx.Response:
    """The list of conversations."""
    return await gateway.client.get(
        f"{gateway.base_url}/conversations", params=query, headers={"authorization": f"Bearer {KEY}"}
    )


async def taken_in(gateway: World, messages: list[dict[str, Any]]) -> str:
    answer = await gateway.client.post(
        f"{gateway.base_url}/conversations/import",
        json={"messages": messages},
        headers={"authorization": f"Bearer {KEY}"},
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["data"][0]["id"])


async def test_each_answer_is_told_as_it_said_of_itself() -> None:
    async with world(ScriptedUpstream(default=answering), window=WINDOW) as gateway:
        answers = [await talk(gateway, 1, first=number, words=120) for number in range(16)]
        rows = await turns(gateway)
        assert [row["seq"] for row in rows] == list(range(1, 32, 2))
        assert [row["turn"] for row in rows] == list(range(1, 17))
        for row, answer in zip(rows, answers, strict=True):
            context = answer["context"]
            for name in ("policy", "window", "limit", "prompt_tokens", "compaction", "recovered"):
                assert row[name] == context[name]
            assert (row["status"], row["model"]) == (answer["context_status"], "m")
            assert row["summaries"] == len(context["summaries"])
            assert row["boundary_seq"] == (context["summaries"][-1]["to_seq"] if context["summaries"] else 0)
            assert (row["finish_reason"], row["incomplete"]) == ("stop", False)
            assert row["completion_tokens"] == 2
            assert row["reported_tokens"] == context["calibration"]["reported_tokens"]
            assert row["saved_tokens"] == row["log_tokens"] - row["prompt_tokens"]
        assert {row["status"] for row in rows} == {"full", "summarized"}
        assert all(row["saved_tokens"] == 0 for row in rows if row["status"] == "full")
        assert all(row["saved_tokens"] > 0 for row in rows if row["status"] == "summarized")
        assert [row["log_tokens"] for row in rows] == sorted(row["log_tokens"] for row in rows)
        preview = await done(gateway, "GET", "c/context")
        assert rows[-1]["threshold_tokens"] == preview["compacts_above"]


async def test_the_prompt_of_each_answer_is_told_by_its_parts() -> None:
    rules = {"role": "system", "content": "Answer from what was said, in one sentence. " * 12}
    async with world(ScriptedUpstream(default=answering), window=WINDOW) as gateway:
        contexts = [
            (await gateway.say([rules, user(question(number, 120))], conversation="c"))["context"]
            for number in range(20)
        ]
        rows = await turns(gateway)
        for row, context in zip(rows, contexts, strict=True):
            parts, slope = row["parts"], context["calibration"]["slope"]
            assert sum(parts.values()) == row["prompt_tokens"]
            assert parts["summaries"] == round(slope * sum(one["tokens"] for one in context["summaries"]))
            assert parts["user_text"] == context["user_text"]["tokens"]
            assert parts["quotations"] == context["quoted_tokens"]
            assert all(tokens >= 0 for tokens in parts.values())
        assert {row["status"] for row in rows} == {"full", "summarized"}
        assert rows[-1]["parts"]["summaries"] > 0
        first = rows[0]["prompt_tokens"] - (await log(gateway))[0]["tokens"]
        assert rows[0]["parts"]["instructions"] == first > 100
        for row, context in zip(rows, contexts, strict=True):
            told = first * context["calibration"]["slope"] + context["calibration"]["offset"]
            assert row["parts"]["instructions"] == pytest.approx(told, abs=2)
        item = (await log(gateway))[2]["id"]
        await done(gateway, "DELETE", f"c/items/{item}")
        after = [row["parts"] for row in await turns(gateway)]
        assert {parts["instructions"] for parts in after} == {None}
        assert after[0]["verbatim"] == rows[0]["prompt_tokens"]


@pytest.mark.parametrize("limit", [1, 3, 7, 1000])
@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_have_no_gaps_and_no_repeats(limit: int, order: str) -> None:
    async with world(ScriptedUpstream(default=answering), window=WINDOW) as gateway:
        await talk(gateway, 9)
        whole = await turns(gateway)
        paged = await turns(gateway, limit=limit, order=order)
        assert paged == (whole if order == "asc" else whole[::-1])


async def test_the_answers_of_a_tool_loop_share_a_turn() -> None:
    async with world(ScriptedUpstream()) as gateway:
        history = [
            assistant("Welcome."),
            user("Look"),
            assistant(None, tool_calls=[tool_call("look")]),
            result("dry"),
            assistant("It is dry."),
            user("Thanks"),
            user("And?"),
            assistant("Nothing."),
        ]
        found = await taken_in(gateway, history)
        rows = await turns(gateway, found)
        assert [(row["seq"], row["turn"]) for row in rows] == [(0, 1), (2, 2), (4, 2), (7, 4)]
        assert [row["turn"] for row in await log(gateway, found)] == [1, 2, 2, 2, 2, 3, 4, 4]
        for row in rows:
            assert [name for name in UNKNOWN if row[name] is not None] == []
            assert row["recovered"] is False


async def test_turns_are_numbered_the_same_wherever_one_begins() -> None:
    async with world(ScriptedUpstream()) as gateway:
        found = await taken_in(gateway, long_history(700, words=4))
        assert [row["turn"] for row in await log(gateway, found, from_seq=1390, limit=4)] == [696, 696, 697, 697]
        newest = await done(gateway, "GET", f"{found}/turns", limit=2, order="desc")
        assert [row["turn"] for row in newest["data"]] == [700, 699]
        assert [row["turn"] for row in await turns(gateway, found)] == list(range(1, 701))
        assert [row["turn"] for row in await log(gateway, found, from_seq=600, limit=2)] == [301, 301]


async def test_turns_numbered_by_summaries_are_those_that_are_counted() -> None:
    async with world(ScriptedUpstream(default=answering), window=WINDOW) as gateway:
        await talk(gateway, 20, words=120)
        rows = await log(gateway, from_seq=34)
        assert [row["turn"] for row in rows] == [18, 18, 19, 19, 20, 20]
        first = await log(gateway, limit=2)
        assert first[0]["summary_id"] is not None
        assert rows[-1]["summary_id"] is None


async def test_the_log_is_read_from_any_place() -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        await talk(gateway, 5, words=5)
        items = (await done(gateway, "GET", "c/items", order="asc", limit=100))["data"]
        for from_seq, limit, seqs in (
            (0, 3, [0, 1, 2]),
            (7, 200, [7, 8, 9]),
            (9, 1, [9]),
            (10, 5, []),
            (2**31 - 1, 5, []),
        ):
            page = await done(gateway, "GET", "c/log", from_seq=from_seq, limit=limit)
            assert (page["total"], [row["seq"] for row in page["data"]]) == (10, seqs)
            assert [row["id"] for row in page["data"]] == [items[seq]["id"] for seq in seqs]
        rows = await log(gateway)
        assert [row["text"] for row in rows[:2]] == [question(0, 5), f"You said: {question(0, 5)[:40]}"]
        assert (rows[1]["model"], rows[1]["finish_reason"], rows[0]["model"]) == ("m", "stop", None)


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("log?limit=0", "limit"),
        ("log?limit=201", "limit"),
        ("log?from_seq=-1", "from_seq"),
        ("log?from_seq=99999999999", "from_seq"),
        ("turns?limit=1001", "limit"),
        ("turns?order=up", "order"),
    ],
)
async def test_what_cannot_be_told_is_refused(path: str, param: str) -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        await talk(gateway, 1)
        assert (await refused(gateway, 400, "GET", f"c/{path}"))["param"] == param
        missing = await refused(gateway, 404, "GET", "c/turns?after=msg_" + "0" * 34)
        assert missing["code"] == "item_not_found"


async def test_everything_that_a_message_holds_is_told_without_its_bytes() -> None:
    base64 = "QUJD" * 100
    parts = [
        {"type": "text", "text": "See"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64}"}},
        {"type": "image_url", "image_url": {"url": "https://host.example/a.png"}},
        {"type": "input_audio", "input_audio": {"data": base64, "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{base64}"}},
    ]
    custom = {"id": "call_2", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
    history = [
        {"role": "user", "name": "ada", "content": parts},
        assistant("Hm.", reasoning_content="Let me think.", tool_calls=[tool_call("look", '{"a":1}'), custom]),
        result("x" * (MAX_TEXT_CHARS + 1)),
        result("", "call_2"),
        {"role": "assistant", "content": None, "refusal": "No."},
    ]
    async with world(ScriptedUpstream()) as gateway:
        found = await taken_in(gateway, history)
        rows = await log(gateway, found)
        assert base64 not in str(rows)
        assert (rows[0]["text"], rows[0]["name"]) == ("See", "ada")
        assert rows[0]["attachments"] == [
            {"type": "image", "detail": "data:image/png"},
            {"type": "image", "detail": "https://host.example/a.png"},
            {"type": "audio", "detail": "wav"},
            {"type": "file", "detail": "a.pdf"},
        ]
        assert rows[1]["reasoning"] == "Let me think."
        assert rows[1]["tool_calls"] == [
            {"id": "call_1", "name": "look", "arguments": '{"a":1}'},
            {"id": "call_2", "name": "shell", "arguments": "ls"},
        ]
        assert (len(rows[2]["text"]), rows[2]["truncated"], rows[2]["tool_call_id"]) == (MAX_TEXT_CHARS, True, "call_1")
        assert (rows[3]["text"], rows[3]["truncated"]) == ("", False)
        assert (rows[4]["text"], rows[4]["refusal"]) == ("", "No.")


@pytest.mark.parametrize("erase", [False, True])
async def test_what_was_deleted_is_told_nowhere(erase: bool) -> None:
    upstream = ScriptedUpstream(completion("The word is swordfish.", reasoning_content="swordfish it is"))
    async with world(upstream) as gateway:
        await gateway.say([user("Tell me: swordfish?")], conversation="c")
        for item in (await done(gateway, "GET", "c/items"))["data"]:
            if item["type"] == "message":
                await done(gateway, "DELETE", f"c/items/{item['id']}", **({"erase": "true"} if erase else {}))
        rows = await log(gateway)
        assert [(row["deleted"], row["erased"], row["text"]) for row in rows] == [(True, erase, "")] * 2
        listed = await every(gateway, **{"include[]": "title"})
        told = [rows, await turns(gateway), await done(gateway, "GET", "c/branches"), listed.json()]
        assert "swordfish" not in str(told)
        assert "[deleted]" not in str(told)
        assert "[erased]" not in str(told)
        assert listed.json()["data"][0]["title"] is None


async def test_a_family_is_told_whole_whichever_of_it_is_asked_for() -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        history: list[dict[str, Any]] = []
        for number in range(4):
            history.append(user(question(number, 5)))
            root = (await gateway.say(history))["conversation_id"]
            history.append(answered(question(number, 5)))
        edited = (await gateway.say([*history[:4], user("Something else")]))["conversation_id"]
        again = (await gateway.say(history[:7]))["conversation_id"]
        deeper = (await gateway.say([*await gateway.log(edited), user("Deeper")]))["conversation_id"]
        assert deeper == edited
        deeper = (await gateway.say([*(await gateway.log(edited))[:6], user("Deepest")]))["conversation_id"]
        beside = (await gateway.say([user(question(0, 5)), assistant("Otherwise."), user("!")]))["conversation_id"]
        for asked in (root, edited, again, deeper):
            page = await done(gateway, "GET", f"{asked}/branches")
            family = {row["id"]: row for row in page["data"]}
            assert page["has_more"] is False
            assert family.keys() == {root, edited, again, deeper}
            assert [row["id"] for row in page["data"] if row["current"]] == [asked]
            assert (family[root]["parent_id"], family[root]["fork_seq"]) == (None, None)
            assert (family[edited]["parent_id"], family[edited]["fork_seq"]) == (root, 4)
            assert (family[deeper]["parent_id"], family[deeper]["fork_seq"]) == (edited, 6)
            assert family[edited]["title"] == "Something else"
            assert family[root]["title"].startswith("Question 0")
            assert (family[again]["parent_id"], family[again]["fork_seq"]) == (root, 7)
            assert family[again]["title"] == family[root]["title"], "nothing was said in it"
        assert [row["id"] for row in (await done(gateway, "GET", f"{beside}/branches"))["data"]] == [beside]


async def test_conversations_that_only_begin_alike_are_no_family() -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        first, second = [(await gateway.say([user("Hi")], conversation=name))["conversation_id"] for name in "ab"]
        assert first[:21] == second[:21], "they share a root"
        for asked in (first, second):
            assert [row["id"] for row in (await done(gateway, "GET", f"{asked}/branches"))["data"]] == [asked]


async def test_titles_come_where_they_are_asked_for() -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        await gateway.say([user("  What\n\nis   " + "long " * 40)], conversation="long")
        await gateway.say([user("Named")], conversation="named")
        await done(gateway, "POST", "named", json={"metadata": {"title": "My own"}})
        begun = await gateway.client.post(
            f"{gateway.base_url}/conversations", json={}, headers={"authorization": f"Bearer {KEY}"}
        )
        assert begun.status_code == 200
        assert all("title" not in one for one in (await every(gateway)).json()["data"])
        titled = (await every(gateway, **{"include[]": "title"})).json()["data"]
        empty, named, long = [one["title"] for one in titled]
        assert (empty, named) == (None, "My own")
        assert long.startswith("What is long long")
        assert len(long) <= 80
        assert long.endswith("…")
        assert (await every(gateway, **{"include[]": "secrets"})).status_code == 400
        assert "title" not in await done(gateway, "GET", "long")
        assert (await done(gateway, "GET", "long", **{"include[]": "title"}))["title"] == long
        assert (await done(gateway, "GET", "named", **{"include[]": "title"}))["title"] == "My own"


async def test_a_list_tells_the_last_answer_and_what_nobody_answered() -> None:
    upstream = ScriptedUpstream(default=answering)
    wanted = {"include[]": "last_answer"}
    async with world(upstream) as gateway:
        await gateway.say([user("Hi")], conversation="c")
        (one,) = (await every(gateway, **wanted)).json()["data"]
        assert one["last_answer"] == {"model": "m", "context_status": "full", "incomplete": False}
        assert one["unanswered"] == 0
        assert "title" not in one
        upstream.default = lambda _: Reply(status=400, body={"error": {"message": "No."}})
        assert (await gateway.post([user("And now?")], conversation="c")).status_code == 400
        (one,) = (await every(gateway, **wanted)).json()["data"]
        assert (one["last_answer"]["model"], one["unanswered"]) == ("m", 1)
        (one,) = (await every(gateway)).json()["data"]
        assert not {"last_answer", "unanswered"} & one.keys()


async def test_a_list_reads_each_log_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        await gateway.say([user("Hi")], conversation="c")
        reads: list[Any] = []
        read = MemoryStore.read_log_ranges

        async def count(store: MemoryStore, *arguments: Any) -> Any:
            reads.append(arguments)
            return await read(store, *arguments)

        monkeypatch.setattr(MemoryStore, "read_log_ranges", count)
        page = await every(gateway, **{"include[]": ["title", "last_answer"]})
        assert page.json()["data"][0]["title"] == "Hi"
        assert len(reads) == 1


async def test_conversations_are_listed_by_their_mode_and_their_client_s_name() -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        for name in ("one", "two"):
            await gateway.say([user("Hi")], conversation=name)
        await gateway.say([user("Go on")], conversation="two")

        async def names(**query: str) -> list[str]:
            answer = await every(gateway, **query)
            assert answer.status_code == 200, answer.text
            return [one["external_id"] for one in answer.json()["data"]]

        assert await names(external_id="one") == ["one"]
        assert await names(external_id="three") == []
        assert await names(mode="append") == ["two"]
        assert await names(mode="append", external_id="one") == []
        assert (await every(gateway, mode="shouting")).status_code == 400
        assert (await every(gateway, external_id="no blanks")).status_code == 400


async def test_what_is_encrypted_is_told_all_the_same() -> None:
    encryption = {"keys": {"k1": "11" * 32}, "active": "k1"}
    async with world(ScriptedUpstream(default=answering), window=WINDOW, encryption=encryption) as gateway:
        await talk(gateway, 12, words=120)
        rows = await turns(gateway)
        assert len(rows) == 12
        assert rows[-1]["saved_tokens"] > 0
        assert (await log(gateway, limit=1))[0]["text"] == question(0, 120)
        assert (await done(gateway, "GET", "c/branches"))["data"][0]["title"].startswith("Question 0")
