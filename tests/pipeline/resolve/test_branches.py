"""Regenerated and edited turns: branches that share their log and their summaries."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.live import DROP, Reply, ScriptedUpstream, chunk, completion
from tests.support.gateway import (
    World,
    answered,
    answering,
    assistant,
    is_summary,
    long_history,
    material,
    shown,
    summaries_asked,
    system,
    user,
    world,
)

WINDOW = 8192
MARKS = re.compile(r"\b[QA]\d{3}\b")


async def play(gateway: World, history: list[dict[str, Any]], **options: Any) -> str:
    """Send a history turn by turn as a resending client does; the conversation it ends up in."""
    body: dict[str, Any] = {}
    for end in range(1, len(history), 2):
        body = await gateway.say(history[:end], **options)
    return str(body["conversation_id"])


async def test_a_regenerated_answer_is_a_branch_that_stores_only_itself() -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        history = long_history(4, words=20)
        first = await play(gateway, history)
        rows = gateway.rows()
        gateway.upstream.replies = [completion("Another answer.")]
        again = (await gateway.say(history[:-1]))["conversation_id"]
        assert again != first
        assert gateway.rows() == rows + 1
        assert [m["content"] for m in await gateway.log(first)] == [m["content"] for m in history]
        expected = [*(m["content"] for m in history[:-1]), "Another answer."]
        assert [m["content"] for m in await gateway.log(again)] == expected


async def test_an_edited_question_is_a_branch_and_both_go_on() -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        history = long_history(4, words=20)
        first = await play(gateway, history)
        edited = [*history[:4], user("Quite another question")]
        second = (await gateway.say(edited))["conversation_id"]
        assert second != first
        left = [*history, user("On the left")]
        right = [*edited, answered("Quite another question"), user("On the right")]
        assert (await gateway.say(left))["conversation_id"] == first
        assert (await gateway.say(right))["conversation_id"] == second
        assert [m["content"] for m in await gateway.log(first)][-2] == "On the left"
        assert [m["content"] for m in await gateway.log(second)][-2] == "On the right"
        assert len(await gateway.log(second)) == 8


async def test_the_first_question_can_be_asked_again_under_its_id() -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        headers = {"x-openwebui-chat-id": "c"}
        first = (await gateway.say([user("Hi")], headers=headers))["conversation_id"]
        gateway.upstream.replies = [completion("Another answer.")]
        again = (await gateway.say([user("Hi")], headers=headers))["conversation_id"]
        assert again != first
        assert [m["content"] for m in await gateway.log(again)] == ["Hi", "Another answer."]
        history = [user("Hi"), assistant("Another answer."), user("Go on")]
        assert (await gateway.say(history, headers=headers))["conversation_id"] == again


async def test_branches_of_branches_read_back_whole() -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        history = long_history(3, words=20)
        await play(gateway, history)
        logs = {}
        for depth in range(12):
            asked = f"Variant {depth}"
            history = [*history[:-2], user(asked), answered(asked)]
            await gateway.say(history[:-1])
            more = f"And then, {depth}?"
            history = [*history, user(more), answered(more)]
            branch = (await gateway.say(history[:-1]))["conversation_id"]
            logs[branch] = [m["content"] for m in history]
        assert len(logs) == 12
        for branch, expected in logs.items():
            assert [m["content"] for m in await gateway.log(branch)] == expected
        assert max(len(one.lineage) for one in gateway.conversations()) >= 12


@pytest.mark.parametrize("count", [2, 5])
async def test_resends_at_once_from_one_head_are_as_many_branches(count: int) -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        history = long_history(2, words=20)
        first = await play(gateway, history)
        answers = await asyncio.gather(*(gateway.say([*history, user(f"Way {way}")]) for way in range(count)))
        ids = [body["conversation_id"] for body in answers]
        assert len(set(ids)) == count
        assert first in ids
        for way, branch in enumerate(ids):
            log = [m["content"] for m in await gateway.log(branch)]
            assert log == [*(m["content"] for m in history), f"Way {way}", f"You said: Way {way}"]
        for way, branch in enumerate(ids):
            asked = [*history, user(f"Way {way}"), answered(f"Way {way}"), user("On")]
            assert (await gateway.say(asked))["conversation_id"] == branch


async def test_a_branch_behind_a_summary_uses_it_and_costs_no_new_one() -> None:
    upstream = ScriptedUpstream(default=answering)
    async with world(upstream, window=WINDOW) as gateway:
        history = long_history(40, words=280)
        first = await play(gateway, history)
        calls = len(summaries_asked(upstream))
        assert calls >= 1
        edited = [*history[:-2], user("Quite another question")]
        body = await gateway.say(edited)
        assert body["conversation_id"] != first
        assert body["context_status"] == "summarized"
        assert len(summaries_asked(upstream)) == calls
        regenerated = await gateway.say(history[:-1])
        assert regenerated["context_status"] == "summarized"
        assert len(summaries_asked(upstream)) == calls
        assert shown(upstream)[-1][0] == shown(upstream)[-2][0]


async def test_a_branch_before_a_summary_does_not_see_it() -> None:
    upstream = ScriptedUpstream(default=answering)
    async with world(upstream, window=WINDOW) as gateway:
        history = long_history(40, words=280)
        await play(gateway, history)
        assert gateway.chunks()
        edited = [*history[:4], user("Quite another question")]
        body = await gateway.say(edited)
        assert body["context_status"] == "full"
        assert shown(upstream)[-1] == edited


@pytest.mark.parametrize("turns_shared", [2, 6, 9])
@pytest.mark.parametrize("policy", ["additive", "checkpoint", "fade", "prune", "window"])
async def test_a_branch_is_shown_as_if_nothing_had_followed_the_log_that_it_shares(
    policy: str,
    turns_shared: int,
) -> None:
    history, views = long_history(26, words=280), []
    shared = history[: 2 * turns_shared]
    for trunk in (history, shared):
        upstream = ScriptedUpstream(default=answering)
        policies = {name: {"token_floor": 1, "recall": "off"} for name in ("additive", "checkpoint")}
        async with world(upstream, window=4096, policies=policies) as gateway:
            headers = {"x-context-policy": policy}
            await play(gateway, trunk, headers=headers)
            before = len(shown(upstream))
            branch = [*shared, user("Quite another question")]
            for number in range(4):
                await gateway.say(branch, headers=headers)
                branch += [answered(branch[-1]["content"]), user(f"And on {number}: " + "word " * 200)]
            views.append(shown(upstream)[before:])
    assert views[0] == views[1]


async def test_a_first_contact_with_a_long_history_pays_for_its_summary_once() -> None:
    """The upstream fails after the summary was made; the retry finds it."""
    refused = completion()
    refused.status, refused.body = 400, {"error": {"message": "no", "type": "x", "param": None, "code": None}}
    failing = iter([refused])

    def once(body: dict[str, Any]) -> Any:
        reply = answering(body)
        return reply if reply.body and "many things" in str(reply.body) else next(failing, reply)

    upstream = ScriptedUpstream(default=once)
    async with world(upstream, window=WINDOW) as gateway:
        history = [*long_history(40, words=280), user("Well?")]
        assert (await gateway.post(history)).status_code == 400
        calls = len(summaries_asked(upstream))
        assert calls >= 1
        body = await gateway.say(history)
        assert body["context_status"] == "summarized"
        assert len(summaries_asked(upstream)) == calls


async def test_other_choices_of_an_answer_are_kept_beside_it() -> None:
    double = completion("Left")
    double.body["choices"].append({"index": 1, "message": assistant("Right"), "finish_reason": "stop"})
    upstream = ScriptedUpstream(completion("Fine."), double, completion("On."), completion("On."))
    async with world(upstream) as gateway:
        begun = [user("Hi"), assistant("Fine."), user("Choose")]
        first = (await gateway.say(begun[:1]))["conversation_id"]
        assert (await gateway.say(begun, n=2))["conversation_id"] == first
        (conversation,) = gateway.conversations()
        (entry,) = await gateway.store.read_log(conversation, 3, 4)
        assert entry.message.text == "Left"
        assert [other["content"] for other in entry.meta["alternatives"]] == ["Right"]
        taken = [*begun, assistant("Right"), user("Go on")]
        assert (await gateway.say(taken))["conversation_id"] == first
        assert upstream.requests[-1]["messages"] == taken
        assert [m["content"] for m in await gateway.log(first)] == ["Hi", "Fine.", "Choose", "Left", "Go on", "On."]
        other = [*begun, assistant("Left"), user("Go on")]
        assert (await gateway.say(other))["conversation_id"] != first
        assert upstream.requests[-1]["messages"] == other


def listing(body: dict[str, Any]) -> Any:
    """A summary that names every question and answer it has read."""
    if not is_summary(body):
        return answering(body)
    return completion("Covers " + " ".join(sorted(set(MARKS.findall(material(body))))))


@pytest.mark.parametrize("reminded_first", [True, False])
async def test_logs_that_differ_in_a_system_message_leave_no_gap_behind_a_shared_summary(reminded_first: bool) -> None:
    plain: list[dict[str, Any]] = []
    for turn in range(40):
        plain.append(user(f"Q{turn:03} " + " ".join(f"item{turn}n{word}" for word in range(60))))
        plain.append(assistant(f"A{turn:03}"))
    reminded = [*plain[:2], system("Remember the milk."), *plain[2:]]
    upstream = ScriptedUpstream(default=listing)
    # Without user text: each message is told once.
    async with world(upstream, window=WINDOW, policies={"additive": {"user_text_ratio": 0}}) as gateway:
        for history in (reminded, plain) if reminded_first else (plain, reminded):
            for newest in ("Well?", "And?"):
                body = await gateway.say([*history, user(newest)])
                assert body["context_status"] == "summarized"
                marks = MARKS.findall(" ".join(str(m["content"]) for m in shown(upstream)[-1]))
                assert sorted(marks) == sorted(f"{who}{turn:03}" for who in "QA" for turn in range(40))


@pytest.mark.parametrize("skipped", [[], [assistant("")]])
async def test_of_branches_with_equal_answers_the_one_goes_on_that_the_history_reaches(skipped: list[Any]) -> None:
    """Equal answers prove neither of two branches. The conversation must not go on in a third one, which broke off."""
    async with world(ScriptedUpstream(default=answering)) as gateway:
        history = [*long_history(4, words=20)]
        broken = await play(gateway, history)
        question = user("What is in the archive?")
        gateway.upstream.replies = [Reply(pieces=[chunk({"content": "It holds "}), DROP])]
        await gateway.post([*history, question], stream=True)
        for _ in range(2):
            gateway.upstream.replies = [completion("It holds the locker code.")]
            other = (await gateway.say([*history, question], headers={"cache-control": "no-store"}))["conversation_id"]
            assert other != broken
            await asyncio.sleep(0.01)
        told = [*history, question, assistant("It holds the locker code."), user("And what else?")]
        # The chain skips an empty message, so that indexes of the history are not those of the log.
        conversation_id = (await gateway.say([*told[:1], *skipped, *told[1:]]))["conversation_id"]
        log = [message["content"] for message in await gateway.log(conversation_id)]
        assert log[: len(told)] == [message["content"] for message in told]
