"""Conversations as a resource over plain HTTP: the list, branches, limits, and what no SDK would send."""

from __future__ import annotations

import secrets
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from app.conversation.conversation_types import SHARED_THROUGH
from app.conversation.identity import make_conversation_id
from app.conversations.history import conversation_history
from app.pipeline.turn.conversation_builders import build_branch
from app.store.contract.conversations import LogAppend
from tests.live import ScriptedUpstream
from tests.support.gateway import World, answered, answering, user, world


async def ask(w: World, method: str, path: str, key: str = "sk-one", **options: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}", **options.pop("headers", {})}
    return await w.client.request(method, f"{w.base_url}{path}", headers=headers, **options)


async def told(w: World, method: str, path: str, **options: Any) -> Any:
    answer = await ask(w, method, path, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def begun(w: World, **fields: Any) -> str:
    return str((await told(w, "POST", "/conversations", json=fields))["id"])


def ids(page: Any) -> list[str]:
    return [one["id"] for one in page["data"]]


async def test_the_list_is_newest_first_and_turns_its_pages() -> None:
    async with world(ScriptedUpstream()) as w:
        made = [await begun(w) for _ in range(5)]
        assert ids(await told(w, "GET", "/conversations")) == made[::-1]
        assert ids(await told(w, "GET", "/conversations?order=asc")) == made
        page = await told(w, "GET", "/conversations?limit=2")
        assert (page["has_more"], page["first_id"], page["last_id"]) == (True, made[4], made[3])
        page = await told(w, "GET", f"/conversations?limit=3&after={made[3]}")
        assert (ids(page), page["has_more"]) == (made[2::-1], False)
        page = await told(w, "GET", f"/conversations?after={made[0]}")
        assert page == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


async def test_the_list_is_told_apart_by_metadata_and_time() -> None:
    async with world(ScriptedUpstream()) as w:
        red = await begun(w, metadata={"colour": "red", "size": "1"})
        blue = await begun(w, metadata={"colour": "blue", "size": "1"})
        assert ids(await told(w, "GET", "/conversations?metadata[colour]=red")) == [red]
        assert ids(await told(w, "GET", "/conversations?metadata[colour]=blue&metadata[size]=1")) == [blue]
        assert ids(await told(w, "GET", "/conversations?metadata[colour]=red&metadata[size]=2")) == []
        now = (await told(w, "GET", f"/conversations/{red}"))["created_at"]
        for name in ("created", "updated"):
            assert ids(await told(w, "GET", f"/conversations?{name}_after={now + 100}")) == []
            assert ids(await told(w, "GET", f"/conversations?{name}_before={now - 100}")) == []
            between = f"{name}_after={now - 100}&{name}_before={now + 100}"
            assert ids(await told(w, "GET", f"/conversations?{between}")) == [blue, red]


@pytest.mark.parametrize("query", ["metadata=5", "order=asc&order=desc"])
@pytest.mark.parametrize("path", ["/conversations", "/chat/completions"])
async def test_a_filter_that_is_not_understood_is_refused(path: str, query: str) -> None:
    async with world(ScriptedUpstream()) as w:
        answer = await ask(w, "GET", f"{path}?{query}")
        assert answer.status_code == 400, answer.text
        assert query.partition("=")[0] in answer.json()["error"]["message"]


async def test_the_list_is_ordered_by_activity_and_filtered_by_length() -> None:
    async with world(ScriptedUpstream()) as w:
        made = [await begun(w) for _ in range(3)]
        for text in ("one", "two"):
            await w.say([user(text)], headers={"x-conversation-id": made[0]})
        assert ids(await told(w, "GET", "/conversations")) == made[::-1]
        assert ids(await told(w, "GET", "/conversations?sort=updated_at")) == [made[0], *made[:0:-1]]
        page = await told(w, "GET", f"/conversations?sort=updated_at&limit=1&after={made[0]}")
        assert (ids(page), page["has_more"]) == ([made[2]], True)
        assert ids(await told(w, "GET", "/conversations?min_messages=4")) == [made[0]]
        assert ids(await told(w, "GET", "/conversations?model=none")) == []


@pytest.mark.parametrize(
    "query",
    [
        "sort=id",
        "min_messages=0",
        "limit=0",
        "limit=101",
        "limit=x",
        "order=up",
        "created_after=-1",
        "created_after=1e99",
        "updated_before=x",
    ],
)
async def test_a_list_that_cannot_be_made_is_refused(query: str) -> None:
    async with world(ScriptedUpstream()) as w:
        answer = await ask(w, "GET", f"/conversations?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == query.split("=")[0]


async def test_a_list_after_what_is_not_there_is_not_found() -> None:
    async with world(ScriptedUpstream()) as w:
        answer = await ask(w, "GET", "/conversations?after=conv_x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "conversation_not_found")


async def test_what_one_tenant_has_another_does_not_find() -> None:
    async with world(ScriptedUpstream()) as w:
        mine = await begun(w, items=[user("Hi")])
        item = ids(await told(w, "GET", f"/conversations/{mine}/items"))[0]
        for method, path, body in (
            ("GET", f"/conversations/{mine}", None),
            ("POST", f"/conversations/{mine}", {"metadata": {}}),
            ("DELETE", f"/conversations/{mine}", None),
            ("GET", f"/conversations/{mine}/items", None),
            ("POST", f"/conversations/{mine}/items", {"items": [user("x")]}),
            ("GET", f"/conversations/{mine}/items/{item}", None),
            ("DELETE", f"/conversations/{mine}/items/{item}", None),
            ("GET", f"/conversations?after={mine}", None),
        ):
            answer = await ask(w, method, path, key="sk-two", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "conversation_not_found"), path
        assert ids(await told(w, "GET", "/conversations", key="sk-two")) == []
        assert await w.log(mine) == [user("Hi")]


async def test_a_conversation_that_merely_shares_rows_is_no_branch_and_outlives_their_owner() -> None:
    async with world(ScriptedUpstream(default=answering)) as w:
        history = [user("a"), answered("a"), user("b")]
        await w.say(history[:1])
        first = (await w.say(history))["conversation_id"]
        (owner,) = w.conversations()
        (last,) = await w.store.read_log(owner, 3, 4)
        twin = build_branch(owner, last, make_conversation_id(owner.root, secrets.token_bytes))
        twin = replace(twin, marks={**twin.marks, SHARED_THROUGH: 3})
        await w.store.append(LogAppend(twin, 3, [], creates_conversation=True))
        assert (await told(w, "GET", f"/conversations/{twin.id}"))["parent"] is None
        for asked in (first, twin.id):
            rows = (await told(w, "GET", f"/conversations/{asked}/branches"))["data"]
            assert [(row["id"], row["parent_id"], row["fork_seq"]) for row in rows] == [(asked, None, None)]
        await told(w, "DELETE", f"/conversations/{first}?branches=true")
        assert [one.id for one in w.conversations()] == [twin.id]
        assert await w.log(twin.id) == [*history, answered("b")]


async def test_a_branch_is_listed_however_many_conversations_merely_share_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conversation_history, "MAX_BRANCHES", 2)
    async with world(ScriptedUpstream(default=answering)) as w:
        history = [user("a"), answered("a"), user("b")]
        await w.say(history[:1])
        first = (await w.say(history))["conversation_id"]
        (owner,) = w.conversations()
        (last,) = await w.store.read_log(owner, 3, 4)
        for _ in range(5):
            twin = build_branch(owner, last, make_conversation_id(owner.root, secrets.token_bytes))
            twin = replace(twin, marks={SHARED_THROUGH: 3})
            await w.store.append(LogAppend(twin, 3, [], creates_conversation=True))
        branch = (await w.say([*history[:2], user("c")]))["conversation_id"]
        listed = await told(w, "GET", f"/conversations/{first}/branches")
        assert (ids(listed), listed["has_more"]) == ([first, branch], False)


@pytest.mark.parametrize("with_branches", [False, True])
async def test_branches_stay_unless_they_are_meant_too(with_branches: bool) -> None:
    upstream = ScriptedUpstream(default=answering)
    async with world(upstream) as w:
        history = [user("a"), answered("a"), user("b")]
        await w.say(history[:1])
        first = (await w.say(history))["conversation_id"]
        other = (await w.say([*history[:2], user("c")]))["conversation_id"]
        further = (await w.say([*history[:2], user("c"), answered("c"), user("d")]))["conversation_id"]
        assert further == other != first
        branch = await told(w, "GET", f"/conversations/{other}")
        items = ids(await told(w, "GET", f"/conversations/{first}/items?order=asc"))
        assert branch["parent"] == {"conversation_id": first, "through_item": items[1]}
        gone = await told(w, "DELETE", f"/conversations/{first}?branches={str(with_branches).lower()}")
        assert gone == {"id": first, "object": "conversation.deleted", "deleted": True}
        left = [one.id for one in w.conversations()]
        assert left == ([] if with_branches else [other])
        if not with_branches:
            told_items = await told(w, "GET", f"/conversations/{other}/items?order=asc")
            assert [item["content"][0]["text"] for item in told_items["data"]] == [
                "a",
                "You said: a",
                "c",
                "You said: c",
                "d",
                "You said: d",
            ]


async def test_an_item_is_erased_wherever_it_is_shared() -> None:
    async with world(ScriptedUpstream(default=answering)) as w:
        history = [user("a"), answered("a"), user("b")]
        await w.say(history[:1])
        first = (await w.say(history))["conversation_id"]
        other = (await w.say([*history[:2], user("c")]))["conversation_id"]
        item = ids(await told(w, "GET", f"/conversations/{first}/items?order=asc"))[0]
        changed = await told(w, "DELETE", f"/conversations/{first}/items/{item}?erase=true")
        assert changed["id"] == first
        for conversation_id in (first, other):
            assert item not in ids(await told(w, "GET", f"/conversations/{conversation_id}/items"))
            assert (await ask(w, "GET", f"/conversations/{conversation_id}/items/{item}")).status_code == 404
        again = await ask(w, "DELETE", f"/conversations/{first}/items/{'msg_' + '0' * 34}")
        assert (again.status_code, again.json()["error"]["code"]) == (404, "item_not_found")


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"metadata": {"a": 1}}, "invalid_type", "metadata.a"),
        ({"metadata": {"a": "x" * 513}}, "invalid_value", "metadata.a"),
        ({"metadata": {"x" * 65: "a"}}, "invalid_value", f"metadata.{'x' * 65}.[key]"),
        ({"metadata": {str(at): "a" for at in range(17)}}, "invalid_value", "metadata"),
        ({"metadata": {"a": "\0"}}, "invalid_value", "metadata.a"),
        ({"metadata": []}, "invalid_type", "metadata"),
        ({"items": [user("x")] * 21}, "array_above_max_length", "items"),
        ({"items": "x"}, "invalid_type", "items"),
        ({"items": [7]}, "invalid_type", "items.0"),
        ([], "invalid_type", None),
    ],
)
async def test_a_conversation_that_cannot_be_begun_is_refused(body: Any, code: str, param: str | None) -> None:
    async with world(ScriptedUpstream()) as w:
        answer = await ask(w, "POST", "/conversations", json=body)
        assert answer.status_code == 400, answer.text
        assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == (code, param)
        assert answer.headers["x-request-id"]
        assert w.conversations() == []


@pytest.mark.parametrize("body", [b"{", b'{"metadata": {"a": "\\ud800"}}', b'{"a": NaN}', b"\xff", b"[" * 100_000])
async def test_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    async with world(ScriptedUpstream()) as w:
        answer = await ask(w, "POST", "/conversations", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, None)


@pytest.mark.parametrize("body", [None, {}, {"metadata": None, "items": None}])
async def test_a_conversation_may_begin_with_nothing(body: Any) -> None:
    async with world(ScriptedUpstream()) as w:
        made = await told(w, "POST", "/conversations", json=body)
    assert (made["metadata"], made["messages"], made["parent"]) == ({}, 0, None)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/conversations"),
        ("DELETE", "/conversations"),
        ("PATCH", "/conversations/conv_x"),
        ("PUT", "/conversations/conv_x/items"),
        ("POST", "/conversations/conv_x/items/msg_x"),
    ],
)
async def test_another_method_is_not_allowed(method: str, path: str) -> None:
    upstream = ScriptedUpstream()
    async with world(upstream) as w:
        answer = await ask(w, method, path)
    assert answer.status_code == 405
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert upstream.paths == []


@pytest.mark.parametrize("conversation_id", ["%00", "%2F", "x y", "conv_" + "0" * 48, "x" * 129])
async def test_ids_of_nothing_are_not_found(conversation_id: str) -> None:
    async with world(ScriptedUpstream()) as w:
        for path in ("", "/items", "/items/msg_x"):
            answer = await ask(w, "GET", f"/conversations/{conversation_id}{path}")
            assert answer.status_code == 404


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_beyond_the_limit_is_refused(announced: bool) -> None:
    body = b'{"metadata": {"a": "' + b"x" * 5000 + b'"}}'

    async def pieces() -> Any:
        yield body[:2500]
        yield body[2500:]

    async with world(ScriptedUpstream(), server={"body_limit_bytes": 4096}) as w:
        answer = await ask(
            w,
            "POST",
            "/conversations",
            content=body if announced else pieces(),
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "request_too_large"
        assert (await ask(w, "POST", "/conversations", json={"metadata": {"a": "x" * 500}})).status_code == 200


async def test_items_wait_for_the_answer_that_is_under_way_and_give_up() -> None:
    async with world(ScriptedUpstream(), compaction={"wait_seconds": 0.05}) as w:
        mine = await begun(w)
        (conversation,) = w.conversations()
        lease = await w.store.claim_lease(root=conversation.root, key=mine, holder="another", seconds=60)
        busy = await ask(w, "POST", f"/conversations/{mine}/items", json={"items": [user("x")]})
        assert (busy.status_code, busy.json()["error"]["code"]) == (409, "conversation_busy")
        assert busy.headers["retry-after"]
        await w.store.release_lease(lease)
        assert (await ask(w, "POST", f"/conversations/{mine}/items", json={"items": [user("x")]})).status_code == 200
        assert await w.log(mine) == [user("x")]


@pytest.mark.parametrize(
    "items",
    [
        [user("x"), user("y")],
        [{"role": "system", "content": "Be kind."}],
        [{"role": "system", "content": "Be kind."}, user("x")],
        [
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "42"},
        ],
    ],
)
async def test_a_retry_adds_nothing_that_was_added(items: Any) -> None:
    async with world(ScriptedUpstream()) as w:
        mine = await begun(w)
        path, retried = f"/conversations/{mine}/items", {"x-stainless-retry-count": "1"}
        first = await told(w, "POST", path, json={"items": items}, headers=retried)
        again = await told(w, "POST", path, json={"items": items}, headers=retried)
        assert again == first
        assert len((await told(w, "GET", path))["data"]) == len(items)
        await told(w, "POST", path, json={"items": [user("z")]}, headers=retried)
        assert len((await told(w, "GET", path))["data"]) == len(items) + 1
        await told(w, "POST", path, json={"items": [user("z")]})
        assert len((await told(w, "GET", path))["data"]) == len(items) + 2
