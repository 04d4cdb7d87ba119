"""An answer broke off, and its question was asked twice more with equal answers: what the next question finds."""

from __future__ import annotations

from typing import Any

from tests.live import DROP, Reply, ScriptedUpstream, chunk, completion, stream
from tests.support.gateway import user, world

WHOLE = "Noted: " + " ".join(f"fact{number}" for number in range(36, 90))
BROKEN = (
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": WHOLE[: len(WHOLE) // 2]}),
    DROP,
)


def answer(body: dict[str, Any]) -> Reply:
    if body.get("stream"):
        return Reply(pieces=[*BROKEN])
    asked = body["messages"][-1]["content"]
    return completion({"One?": "First.", "Two?": WHOLE}.get(asked, f"Noted: {asked}"))


async def ask_again_and_go_on() -> tuple[str, str]:
    """Returns the second answer as the log of the last turn has it, and as the model was shown it then."""
    upstream = ScriptedUpstream(default=answer)
    async with world(upstream) as w:
        history = [user("One?")]
        history += [(await w.say(history))["choices"][0]["message"], user("Two?")]
        await w.post(history, stream=True)
        for _ in range(2):
            body = await w.say(history)
        history += [body["choices"][0]["message"], user("Three?")]
        body = await w.say(history)
        log = await w.log(body["conversation_id"])
        return log[3]["content"], upstream.requests[-1]["messages"][3]["content"]


async def test_the_model_sees_the_whole_answer() -> None:
    assert (await ask_again_and_go_on())[1] == WHOLE


async def test_the_log_of_the_next_turn_has_the_whole_answer() -> None:
    assert (await ask_again_and_go_on())[0] == WHOLE


async def test_a_note_of_the_client_after_a_broken_answer_begins_no_branch() -> None:
    upstream = ScriptedUpstream(default=answer)
    async with world(upstream) as w:
        history = [user("One?")]
        history += [(await w.say(history))["choices"][0]["message"], user("Two?")]
        conversation_id = (await w.post(history, stream=True)).headers["x-conversation-id"]
        shown = f"{WHOLE[: len(WHOLE) // 2]}\n\n[Response interrupted by user]"
        body = await w.say([*history, {"role": "assistant", "content": shown}, user("Three?")])
    assert body["conversation_id"] == conversation_id
    assert upstream.requests[-1]["messages"][3]["content"] == shown


async def test_an_id_goes_on_in_the_branch_that_it_names_last() -> None:
    """The client's chain ends at its first message, since it has no broken answers. Both branches have that message."""
    named = {"x-conversation-id": "mine"}
    broken = Reply(pieces=[*BROKEN])
    upstream = ScriptedUpstream(broken, stream("First."), broken, stream(WHOLE), stream("Third."))
    async with world(upstream) as w:

        async def say(*history: dict[str, Any]) -> str:
            answered = await w.post([*history], stream=True, headers=named)
            return answered.headers["x-conversation-id"]

        one, two, three = user("One?"), user("Two?"), user("Three?")
        first = {"role": "assistant", "content": "First."}
        await say(one)
        await say(one)
        await say(one, first, user("What is in the second box?"))
        branch_id = await say(one, first, two)
        last_id = await say(one, first, two, {"role": "assistant", "content": WHOLE}, three)
        log = await w.log(last_id)
    assert [message["content"] for message in log if message["role"] == "user"] == ["One?", "Two?", "Three?"]
    assert last_id == branch_id
