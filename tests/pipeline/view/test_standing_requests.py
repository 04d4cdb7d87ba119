"""What the user asked for once and for all stays in every view, in the user's own words."""

from __future__ import annotations

import itertools

import pytest

from tests.live import ScriptedUpstream
from tests.support.gateway import Messages, answered, answering, long_history, shown, user, world

WINDOW = 4096
RULE = "From now on, always answer in French."


def standing_lines(view: Messages) -> list[str]:
    """The lines of the standing requests in a view; none if it shows no such message."""
    contents = [message["content"] for message in view if "<standing_requests>" in str(message["content"])]
    assert len(contents) <= 1
    return [line for content in contents for line in content.split("\n") if line.startswith("- ")]


@pytest.mark.parametrize("policy", ["additive", "checkpoint", "fade", "prune", "window"])
async def test_a_request_is_shown_once_its_message_is_hidden(policy: str) -> None:
    upstream = ScriptedUpstream(default=answering)
    history = [user(f"Hello there! {RULE} How are you?"), answered("fine"), *long_history(60), user("And?")]
    async with world(upstream, window=WINDOW, policy=policy) as gateway:
        body = await gateway.say(history)
        view = shown(upstream)[-1]
        assert history[0] not in view
        assert standing_lines(view) == [f"- {RULE}"]
        assert body["context"]["prompt_tokens"] <= body["context"]["limit"]


async def test_a_request_that_the_view_shows_itself_is_not_repeated() -> None:
    upstream = ScriptedUpstream(default=answering)
    async with world(upstream, window=WINDOW) as gateway:
        history = [*long_history(60), user(RULE)]
        body = await gateway.say(history)
        assert body["context_status"] != "full"
        assert standing_lines(shown(upstream)[-1]) == []


async def test_the_view_begins_with_the_same_bytes_until_the_boundary_moves() -> None:
    upstream = ScriptedUpstream(default=answering)
    history = [user(RULE), answered(RULE), *long_history(60)]
    async with world(upstream, window=WINDOW, policies={"additive": {"recall": "off", "prepare_ratio": 1}}) as gateway:
        views = []
        for text in ("One?", "Never mention onions.", "Call me Sam.", "Two?"):
            history.append(user(text))
            body = await gateway.say(history)
            history.append({"role": "assistant", "content": body["choices"][0]["message"]["content"]})
            views.append(shown(upstream)[-1])
        for before, after in itertools.pairwise(views):
            assert after[: len(before)] == before
        assert standing_lines(views[-1]) == [f"- {RULE}"]
