"""Two people greet alike, and the count of one greeting is lost with its process while the store is away."""

from __future__ import annotations

from typing import Any

from tests.live import Reply, ScriptedUpstream, completion
from tests.support.gateway import user, world

BEGINNING = "Sure, here is what I found about it, step by step, in the order in which you asked:"


def answer(body: dict[str, Any]) -> Reply:
    asked = body["messages"][-1]["content"]
    return completion(
        "Hello! How can I help you today?" if asked == "Hello" else f"{BEGINNING} one's own words {asked}"
    )


async def test_the_same_question_of_another_leads_to_no_branch_with_the_others_answer() -> None:
    async with world(ScriptedUpstream(default=answer)) as w:
        greeted = [user("Hello"), (await w.say([user("Hello")]))["choices"][0]["message"]]
        one = [*greeted, user("What is due?")]
        one += [(await w.say(one))["choices"][0]["message"], user("And then?")]
        await w.say(one)
        # The other's first answers were never counted, so the greeting proves the first one's conversation.
        other = [*greeted, user("What is due?"), {"role": "assistant", "content": f"{BEGINNING} the other's words"}]
        body = await w.say([*other, user("Why?")])
        log = [entry["content"] for entry in await w.log(body["conversation_id"])]
    assert log[:5] == [*(message["content"] for message in other), "Why?"]
