"""How much of `context` an answer has: a few members, or all."""

from __future__ import annotations

from typing import Any

import pytest

from app.pipeline.turn.chat_request import BRIEF_FIELDS
from tests.live import ScriptedUpstream
from tests.support.gateway import World, answering, user, world

FULL = {"x-context-detail": "full"}
BRIEF = {"x-context-detail": "brief"}
SERVES_BRIEF: dict[str, Any] = {"server": {"context_detail": "brief"}}
SOME_OF_THE_OTHERS = {"policy", "pressure", "compaction", "calibration", "recalls"}
PATHS: list[tuple[str, dict[str, Any]]] = [
    ("/chat/completions", {"messages": [user("Hi")]}),
    ("/responses", {"input": "Hi"}),
    ("/messages", {"messages": [user("Hi")], "max_tokens": 100}),
]


async def contexts(w: World, path: str, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
    answer = await w.client.post(
        f"{w.base_url}{path}",
        json={"model": "m", **body},
        headers={"authorization": "Bearer sk-one", **headers},
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["context"]
    return found


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_an_answer_is_brief_where_the_configuration_says_so(path: str, body: dict[str, Any]) -> None:
    async with world(ScriptedUpstream(default=answering), **SERVES_BRIEF) as w:
        brief = await contexts(w, path, body, {})
        full = await contexts(w, path, body, FULL)
    assert set(brief) == set(BRIEF_FIELDS)
    assert set(full) - set(brief) > SOME_OF_THE_OTHERS
    assert (brief["window"], brief["warnings"]) == (full["window"], full["warnings"])


async def test_an_answer_has_all_unless_it_shall_be_brief() -> None:
    async with world(ScriptedUpstream(default=answering)) as w:
        assert set(await contexts(w, *PATHS[0], {})) > SOME_OF_THE_OTHERS
        assert set(await contexts(w, *PATHS[0], BRIEF)) == set(BRIEF_FIELDS)


async def test_a_stream_ends_with_as_much_as_a_whole_answer_has() -> None:
    async with world(ScriptedUpstream(default=answering), **SERVES_BRIEF) as w:
        for headers, members in (({}, set(BRIEF_FIELDS)), (FULL, None)):
            events = await w.stream([user(f"Hi {len(headers)}")], headers=headers)
            (context,) = [event["context"] for event in events if "context" in event]
            assert set(context) == members if members else set(context) > SOME_OF_THE_OTHERS


async def test_an_answer_that_is_given_again_has_what_its_retry_asks_for() -> None:
    async with world(ScriptedUpstream(default=answering), **SERVES_BRIEF) as w:
        key = {"idempotency-key": "one"}
        first = await w.say([user("Hi")], headers=key)
        again = await w.post([user("Hi")], headers={**key, **FULL})
    assert again.headers["idempotent-replayed"] == "true"
    assert set(first["context"]) == set(BRIEF_FIELDS)
    assert set(again.json()["context"]) > SOME_OF_THE_OTHERS
    assert again.headers["x-context-tokens"].split("/")[0] == str(first["context"]["prompt_tokens"])


async def test_another_word_is_refused() -> None:
    async with world(ScriptedUpstream(default=answering)) as w:
        answer = await w.post([user("Hi")], headers={"x-context-detail": "much"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-context-detail")
