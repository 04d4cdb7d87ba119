"""Search over HTTP: one conversation, all of a tenant's, and nobody else's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import ScriptedUpstream
from tests.support.gateway import World, answering, user, world


async def found(gateway: World, path: str, query: str, *, key: str = "sk-one", **parameters: Any) -> dict[str, Any]:
    answer = await gateway.client.get(
        f"{gateway.base_url}/{path}",
        params={"q": query, **parameters},
        headers={"authorization": f"Bearer {key}"},
    )
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_what_was_said_is_found_in_its_conversation_and_among_all() -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        first = await gateway.say([user("My passport number is K4471, keep it.")])
        second = await gateway.say([user("The garden needs a new fence.")])
        await gateway.say([user("My passport number is Z9, keep it.")], key="sk-two")

        within = await found(gateway, f"conversations/{first['conversation_id']}/search", "passport")
        assert [hit["seq"] for hit in within["data"]] == [1, 0]
        assert within["data"][1]["text"] == "My passport number is K4471, keep it."
        assert (within["complete"], within["has_more"]) == (True, False)

        everywhere = await found(gateway, "search", "passport fence")
        assert {hit["conversation_id"] for hit in everywhere["data"]} == {
            first["conversation_id"],
            second["conversation_id"],
        }
        assert all("Z9" not in hit["text"] for hit in everywhere["data"])
        assert all("title" not in hit for hit in everywhere["data"])
        (titled,) = (await found(gateway, "search", "fence", **{"include[]": "title"}))["data"]
        assert titled["title"] == "The garden needs a new fence."
        assert (await found(gateway, "search", "unheard"))["data"] == []
        nothing = await found(gateway, "search", "what is the")
        assert (nothing["data"], nothing["terms"]) == ([], [])


async def test_what_is_added_later_is_found_too() -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        asked = user("Where do zebras live?")
        answer = await gateway.say([asked])
        assert len((await found(gateway, "search", "zebra"))["data"]) == 1
        history = [asked, answer["choices"][0]["message"], user("And where do giraffes live?")]
        await gateway.say(history)
        (hit,) = (await found(gateway, "search", "giraffe"))["data"]
        assert hit["conversation_id"] == answer["conversation_id"]


@pytest.mark.parametrize(("parameters", "param"), [({"q": ""}, "q"), ({}, "q"), ({"q": "word", "limit": "0"}, "limit")])
async def test_a_search_that_cannot_be_made_says_why(parameters: dict[str, str], param: str) -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        answer = await gateway.client.get(f"{gateway.base_url}/search", params=parameters)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param


async def test_a_conversation_of_another_tenant_is_not_searched() -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        said = await gateway.say([user("My passport number is K4471, keep it.")])
        answer = await gateway.client.get(
            f"{gateway.base_url}/conversations/{said['conversation_id']}/search",
            params={"q": "passport"},
            headers={"authorization": "Bearer sk-two"},
        )
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "conversation_not_found"
