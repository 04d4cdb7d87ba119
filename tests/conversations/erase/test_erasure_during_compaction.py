"""Words that are erased while a summary waits to be made of them get into none, and into no request to a model."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from app.conversation.identity import compute_start_position
from app.store.leases import LeaseKeeper
from tests.live import Reply, ScriptedUpstream, completion
from tests.pipeline.compact.test_failing_summarizer import nothing_is_prepared
from tests.support.conversations_client import WINDOW, done, question
from tests.support.gateway import (
    World,
    answered,
    answering,
    is_summary,
    long_history,
    material,
    pick_word,
    system,
    until,
    user,
    world,
)

SECRET = "xylograph7781"
POLICIES = {"additive": {"token_floor": 1, "prepare_ratio": 1.0}}


def telling(body: dict[str, Any]) -> Reply:
    """An upstream whose summaries tell all that they read."""
    if is_summary(body):
        return completion(
            f"They spoke of {SECRET}." if SECRET in material(body) else f"They spoke of {pick_word(body)}."
        )
    return answering(body)


@pytest.mark.parametrize("left_out", [0, 2], ids=["going on", "branching off"])
async def test_what_was_read_before_an_erasure_is_not_summarized_after_it(
    monkeypatch: pytest.MonkeyPatch, left_out: int
) -> None:
    upstream = ScriptedUpstream(default=telling)
    async with world(upstream, window=WINDOW, policies=POLICIES) as gateway:
        secret = user(f"My secret is {SECRET}.")
        history = [secret, answered(secret["content"]), *long_history(26)]
        await gateway.say(history[:-3])  # a branch begins behind an answer that was given here
        told = await gateway.say(history[:-1])
        items = (await done(gateway, "GET", f"{told['conversation_id']}/items", order="asc", limit=100))["data"]
        (item,) = (one for one in items if one.get("role") == "user" and SECRET in json.dumps(one))
        (conversation,) = gateway.conversations()
        for chunk in gateway.chunks():
            await gateway.store.delete_summary(tenant=conversation.tenant, root=conversation.root, summary_id=chunk.id)
        waited_for = f"range:{compute_start_position(conversation.tenant).link.hex()}"
        claimed: list[str] = []
        claim_lease = gateway.store.claim_lease

        async def claim(**arguments: Any) -> Any:
            claimed.append(arguments["key"])
            return await claim_lease(**arguments)

        monkeypatch.setattr(gateway.store, "claim_lease", claim)
        await claim_lease(root=conversation.root, key=waited_for, holder="another process", seconds=60)
        known = history[: len(history) - left_out]
        waiting = asyncio.ensure_future(gateway.post([*known, user("And now?")]))
        await until(lambda: waited_for in claimed)
        await done(gateway, "DELETE", f"{conversation.id}/items/{item['id']}", erase="true")
        asked = len(upstream.requests)

        assert (await waiting).status_code == 200
        assert all(SECRET not in material(body) for body in upstream.requests[asked:] if is_summary(body))
        assert all(SECRET not in chunk.text for chunk in gateway.chunks())
        now = gateway.conversations()[-1]
        log = await gateway.store.read_log(now, 0, now.head_seq + 1)
        assert all(chunk.tokens_total == log[chunk.to_seq - 1].tokens_total for chunk in gateway.chunks())


async def test_what_was_read_before_an_erasure_is_not_summarized_ahead_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    upstream = ScriptedUpstream(default=telling)
    policies = {"additive": {"token_floor": 1, "prepare_ratio": 0.3}}
    async with world(upstream, window=WINDOW, policies=policies) as gateway:
        told = await gateway.say([user(f"My secret is {SECRET}.")], conversation="c")
        (conversation,) = gateway.conversations()
        waited_for = f"range:{compute_start_position(conversation.tenant).link.hex()}"
        claim_lease = gateway.store.claim_lease
        claimed: list[str] = []

        async def claim(**arguments: Any) -> Any:
            claimed.append(arguments["key"])
            return await claim_lease(**arguments)

        monkeypatch.setattr(gateway.store, "claim_lease", claim)
        await claim_lease(root=conversation.root, key=waited_for, holder="another process", seconds=3600)
        for number in range(40):
            # Whatever waits for the range after an answer waits in the background: none of these turns does.
            await gateway.say([user(question(number))], conversation="c")
            if waited_for in claimed or not nothing_is_prepared():
                break
        await until(lambda: waited_for in claimed)
        assert list_summary_requests(upstream) == []
        items = (await done(gateway, "GET", f"{told['conversation_id']}/items", order="asc", limit=1))["data"]
        await done(gateway, "DELETE", f"{conversation.id}/items/{items[0]['id']}", erase="true")
        await until(nothing_is_prepared)
        assert all(SECRET not in material(body) for body in list_summary_requests(upstream))
        assert all(SECRET not in chunk.text for chunk in gateway.chunks())


@pytest.mark.parametrize("is_waiting", [True, False], ids=["waiting for its range", "at the model"])
async def test_a_conversation_that_is_deleted_while_a_summary_is_prepared_gets_none(
    monkeypatch: pytest.MonkeyPatch, is_waiting: bool
) -> None:
    gate = asyncio.Event()
    upstream = ScriptedUpstream(
        default=lambda body: replace(telling(body), gate=gate) if is_summary(body) else answering(body)
    )
    policies = {"additive": {"token_floor": 1, "prepare_ratio": 0.3}}
    async with world(upstream, window=WINDOW, policies=policies) as gateway:
        await gateway.say([user(f"My secret is {SECRET}.")], conversation="c")
        (conversation,) = gateway.conversations()
        waited_for = f"range:{compute_start_position(conversation.tenant).link.hex()}"
        if is_waiting:
            claim_lease = gateway.store.claim_lease
            claimed: list[str] = []

            async def claim(**arguments: Any) -> Any:
                claimed.append(arguments["key"])
                return await claim_lease(**arguments)

            monkeypatch.setattr(gateway.store, "claim_lease", claim)
            await claim_lease(root=conversation.root, key=waited_for, holder="another process", seconds=3600)
        for number in range(40):
            await gateway.say([user(question(number))], conversation="c")
            await until(
                lambda: (
                    nothing_is_prepared()
                    or bool(list_summary_requests(upstream))
                    or (is_waiting and waited_for in claimed)
                )
            )
            if not nothing_is_prepared():
                break
        await until(lambda: waited_for in claimed if is_waiting else bool(list_summary_requests(upstream)))

        await done(gateway, "DELETE", conversation.id)
        gate.set()
        await until(nothing_is_prepared)

        assert gateway.chunks() == []
        assert not gateway.store.execute_now("SELECT id FROM chunks WHERE root = ?", conversation.root)
        assert not (is_waiting and list_summary_requests(upstream))


def list_summary_requests(upstream: ScriptedUpstream) -> list[dict[str, Any]]:
    return [body for body in upstream.requests if is_summary(body)]


async def test_an_instruction_that_is_erased_while_a_resend_is_answered_does_not_come_back() -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        instructed = [system(f"Never say {SECRET}."), user("Hi")]
        ours = (await gateway.say(instructed, conversation="c"))["conversation_id"]
        await gateway.say([user("More")], conversation="c")
        slow = completion("At last.")
        slow.gate = asyncio.Event()
        gateway.upstream.replies = [slow]
        history = [user("Hi"), answered("Hi"), user("More"), answered("More"), user("Next")]
        asking = asyncio.ensure_future(gateway.say(history, conversation="c", headers={"x-context-mode": "resend"}))
        await until(lambda: len(gateway.upstream.bodies) == 3)
        await until(lambda: gateway.rows() == 5)
        items = (await done(gateway, "GET", f"{ours}/items", order="asc", limit=100))["data"]
        (item,) = (one for one in items if one.get("role") == "system")
        await done(gateway, "DELETE", f"{ours}/items/{item['id']}", erase="true")
        slow.gate.set()
        assert (await asking)["conversation_id"] == ours
        assert SECRET not in str([conversation.state for conversation in gateway.conversations()])
        await gateway.say([user("On")], conversation=ours, headers={"x-context-mode": "append"})
        assert SECRET not in str(gateway.upstream.requests[-1])


async def erase_instruction(gateway: World, conversation_id: str) -> None:
    items = (await done(gateway, "GET", f"{conversation_id}/items", order="asc", limit=100))["data"]
    (item,) = (one for one in items if one.get("role") == "system")
    await done(gateway, "DELETE", f"{conversation_id}/items/{item['id']}", erase="true")


def list_leases(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of all leases that are wanted from now on."""
    wanted: list[str] = []
    hold = LeaseKeeper.hold_lease

    def note(keeper: LeaseKeeper, root: str, key: str, wait_seconds: float) -> Any:
        wanted.append(key)
        return hold(keeper, root, key, wait_seconds)

    monkeypatch.setattr(LeaseKeeper, "hold_lease", note)
    return wanted


def states(gateway: World) -> str:
    return str([conversation.state for conversation in gateway.conversations()])


async def test_an_instruction_that_is_erased_while_an_append_is_answered_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        await gateway.say([system(f"Never say {SECRET}."), user("Hi")], conversation="c")
        slow = completion("At last.")
        slow.gate = asyncio.Event()
        gateway.upstream.replies = [slow]
        asking = asyncio.ensure_future(gateway.say([user("More")], conversation="c"))
        await until(lambda: len(gateway.upstream.bodies) == 2)
        leases = list_leases(monkeypatch)
        erasing = asyncio.ensure_future(erase_instruction(gateway, "c"))
        await until(lambda: erasing.done() or bool(leases))
        slow.gate.set()
        await asyncio.gather(asking, erasing)
        assert SECRET not in states(gateway)
        await gateway.say([user("On")], conversation="c")
        assert SECRET not in str(gateway.upstream.requests[-1])


@pytest.mark.parametrize("left_out", [0, 2], ids=["going on", "branching off"])
async def test_an_instruction_that_is_erased_before_the_question_is_stored_does_not_come_back(
    left_out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    def reply(body: dict[str, Any]) -> Reply:
        if not is_summary(body):
            return answering(body)
        begun.set()
        return replace(answering(body), gate=gate)

    async with world(ScriptedUpstream(default=reply), window=WINDOW, policies=POLICIES) as gateway:
        ours = (await gateway.say([system(f"Never say {SECRET}."), user("Hi")], conversation="c"))["conversation_id"]
        history = [user("Hi"), answered("Hi")]
        for number in range(5):
            history += [user(question(number)), answered(question(number))]
            await gateway.say([history[-2]], conversation="c")
        new = user(question(99, words=WINDOW // 6))
        known = history[: len(history) - left_out]
        asking = asyncio.ensure_future(
            gateway.say([*known, new], conversation="c", headers={"x-context-mode": "resend"})
        )
        await asyncio.wait_for(begun.wait(), 10)
        await erase_instruction(gateway, ours)
        gate.set()
        told = (await asking)["conversation_id"]
        assert (told == ours) == (left_out == 0)
        assert SECRET not in states(gateway)


async def test_an_instruction_that_is_erased_while_a_branch_is_appended_to_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        ours = (await gateway.say([system(f"Never say {SECRET}."), user("Hi")], conversation="c"))["conversation_id"]
        await gateway.say([user("More")], conversation="c")
        edited = [user("Hi"), answered("Hi"), user("Less")]
        branch = (await gateway.say(edited, headers={"x-context-mode": "resend"}))["conversation_id"]
        assert branch != ours
        assert states(gateway).count(SECRET) == 2
        slow = completion("At last.")
        slow.gate = asyncio.Event()
        gateway.upstream.replies = [slow]
        append = {"x-context-mode": "append"}
        asking = asyncio.ensure_future(gateway.say([user("On")], conversation=branch, headers=append))
        await until(lambda: len(gateway.upstream.bodies) == 4)
        leases = list_leases(monkeypatch)
        erasing = asyncio.ensure_future(erase_instruction(gateway, ours))
        await until(lambda: erasing.done() or branch in leases)
        slow.gate.set()
        await asyncio.gather(asking, erasing)
        assert SECRET not in states(gateway)
