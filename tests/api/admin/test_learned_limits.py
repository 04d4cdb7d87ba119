"""`/v1/admin/learned-limits`: an operator sees and clears what refusals have taught of windows."""

from __future__ import annotations

from typing import Any

from tests.live import Reply, ScriptedUpstream
from tests.support.gateway import World, user, world
from tests.support.raw_http import long_talk, until

TOKEN = "operator-token-" + "0123456789" * 3
UNCONFIGURED: dict[str, Any] = {
    "models": {"*": {"provider": "upstream"}},
    "auth": {"operator_token": TOKEN},
}


def refusal(limit: int = 2000) -> Reply:
    message = f"This model's maximum context length is {limit} tokens. However, your messages resulted in 9000 tokens."
    return Reply({"error": {"message": message, "code": "context_length_exceeded"}}, 400)


async def ask(w: World, method: str, path: str = "", key: str = TOKEN) -> Any:
    url = f"{w.base_url}/admin/learned-limits{path}"
    return await w.client.request(method, url, headers={"authorization": f"Bearer {key}"})


async def window(w: World, messages: Any) -> int:
    size: int = (await w.say(messages))["context"]["window"]
    return size


async def test_a_learned_limit_is_listed_with_its_expiry_and_is_cleared() -> None:
    async with world(ScriptedUpstream(refusal()), **UNCONFIGURED) as w:
        await w.say(long_talk(10))
        await until(lambda: "limit" in w.model_facts().get("upstream/m", {}))
        (limit,) = (await ask(w, "GET")).json()["data"]
        assert limit["expires_at"] - limit["learned_at"] == 86_400
        assert {name: limit[name] for name in ("id", "object", "tokens", "stated", "confirmed")} == {
            "id": "upstream/m",
            "object": "learned_limit",
            "tokens": 2000,
            "stated": True,
            "confirmed": False,
        }
        assert await window(w, [user("x")]) == 2000

        assert (await ask(w, "DELETE", "/upstream/m")).json() == limit
        assert (await ask(w, "GET")).json() == {"object": "list", "data": []}
        assert (await ask(w, "DELETE", "/upstream/m")).status_code == 404
        assert await window(w, [user("y")]) == 8192


async def test_clearing_a_limit_clears_what_conversations_have_learned_of_the_model() -> None:
    async with world(ScriptedUpstream(refusal()), auth=UNCONFIGURED["auth"]) as w:
        first = await w.say(long_talk(10))
        history = [*long_talk(10), first["choices"][0]["message"], user("and then?")]
        assert await window(w, history) == 2000

        assert (await ask(w, "DELETE", "/upstream/m")).status_code == 200

        assert await window(w, [*history, user("really?")]) == 8192


async def test_nobody_but_an_operator_sees_or_clears_limits() -> None:
    async with world(ScriptedUpstream(refusal()), **UNCONFIGURED) as w:
        await w.say(long_talk(10))
        assert (await ask(w, "GET", key="sk-one")).status_code == 403
        assert (await ask(w, "DELETE", "/upstream/m", key="sk-one")).status_code == 403
