"""Every endpoint that takes an id is asked for one of another tenant's, and says that there is none.

The table says for each operation what it takes; an operation of the application that the table does not have fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import pytest

from app.settings import load_settings
from tests.live import Reply, ScriptedUpstream, create_test_app
from tests.support.conversations_client import WINDOW, done, talk
from tests.support.gateway import World, answering, user, world

OWNER, STRANGER = "sk-one", "sk-two"
METHODS: Final = {"get", "post", "put", "patch", "delete"}


@dataclass(frozen=True)
class Taking:
    """What an operation takes besides the ids of its path, so that it does what it is for."""

    body: Any = None
    query: dict[str, str] = field(default_factory=dict)
    status: int = 200


MESSAGE: Final = {"type": "message", "role": "user", "content": "And this."}
CONVERSATION: Final = "/v1/conversations/{conversation_id}"
ITEM: Final = CONVERSATION + "/items/{item_id}"
SUMMARY: Final = CONVERSATION + "/summaries/{summary_id}"
COMPLETION: Final = "/v1/chat/completions/{completion_id}"
RESPONSE: Final = "/v1/responses/{response_id}"
WITH_IDS: Final[dict[str, Taking]] = {
    f"GET {CONVERSATION}": Taking(),
    f"POST {CONVERSATION}": Taking(body={"metadata": {"topic": "theirs"}}),
    f"DELETE {CONVERSATION}": Taking(),
    f"GET {CONVERSATION}/items": Taking(),
    f"POST {CONVERSATION}/items": Taking(body={"items": [MESSAGE]}),
    f"GET {ITEM}": Taking(),
    f"DELETE {ITEM}": Taking(query={"erase": "true"}),
    f"GET {ITEM}/context": Taking(),
    f"POST {ITEM}/pin": Taking(),
    f"DELETE {ITEM}/pin": Taking(),
    f"GET {CONVERSATION}/context": Taking(),
    f"GET {CONVERSATION}/turns": Taking(),
    f"GET {CONVERSATION}/log": Taking(),
    f"GET {CONVERSATION}/branches": Taking(),
    f"GET {CONVERSATION}/pins": Taking(),
    f"GET {CONVERSATION}/user_text": Taking(),
    f"DELETE {CONVERSATION}/user_text/{{item_id}}": Taking(),
    f"GET {CONVERSATION}/search": Taking(query={"q": "ships"}),
    f"GET {CONVERSATION}/export": Taking(),
    f"POST {CONVERSATION}/compact": Taking(body={}),
    f"GET {CONVERSATION}/summaries": Taking(),
    f"GET {SUMMARY}": Taking(),
    f"PATCH {SUMMARY}": Taking(body={"text": "Theirs."}),
    f"DELETE {SUMMARY}": Taking(),
    f"POST {SUMMARY}/regenerate": Taking(),
    f"POST {SUMMARY}/rollback": Taking(body={"revision": 1}),
    f"GET {COMPLETION}": Taking(),
    f"POST {COMPLETION}": Taking(body={"metadata": {"topic": "theirs"}}),
    f"DELETE {COMPLETION}": Taking(),
    f"GET {COMPLETION}/messages": Taking(),
    f"GET {RESPONSE}": Taking(),
    f"DELETE {RESPONSE}": Taking(),
    f"GET {RESPONSE}/input_items": Taking(),
    f"POST {RESPONSE}/cancel": Taking(status=400),  # no response runs in the background
}
WITHOUT_IDS: Final = {
    "GET /healthz": "of the process",
    "GET /readyz": "of the process",
    "GET /metrics": "numbers of the process",
    "GET /v1/admin/overview": "numbers of everybody, and nobody's content",
    "GET /v1/admin/requests": "of everybody, for holders of an admin key: test_recent_requests",
    "GET /v1/admin/requests/{request_id}": "as above",
    "GET /v1/models": "of the providers",
    "GET /v1/models/{model}": "names a model",
    "GET /v1/admin/costs": "of everybody, for holders of an admin key: test_costs",
    "GET /v1/costs": "of the caller's key: test_costs",
    "GET /v1/admin/keys": "of everybody, for holders of an admin key: test_keys",
    "POST /v1/admin/keys": "as above",
    "POST /v1/admin/keys/{key_id}": "as above",
    "DELETE /v1/admin/keys/{key_id}": "as above",
    "GET /v1/admin/learned-limits": "of the providers, for holders of an admin key: test_learned_limits",
    "DELETE /v1/admin/learned-limits/{limit_id}": "as above",
    "GET /v1/admin/settings": "of the gateway, for holders of an admin key: test_settings_in_force",
    "POST /v1/context/count": "looks at nothing that is kept",
    "GET /v1/chat/completions": "a list: tested below",
    "POST /v1/chat/completions": "names conversations in many ways: tested below",
    "POST /v1/responses": "names conversations in many ways: tested below",
    "POST /v1/responses/compact": "as above",
    "POST /v1/responses/input_tokens": "as above",
    "POST /v1/messages": "names conversations in many ways: tested below",
    "POST /v1/messages/count_tokens": "looks at nothing that is kept",
    "GET /v1/conversations": "a list: tested below",
    "POST /v1/conversations": "begins one",
    "POST /v1/conversations/import": "begins one: tested below",
    "GET /v1/search": "a list: tested below",
    "GET /v1/lookup": "finds what is the caller's: test_lookup",
}


def operations() -> set[str]:
    """What the application offers, as `GET /v1/…`."""
    application: Any = create_test_app(
        load_settings(environ={}, arguments={("database",): {"url": "memory://"}})
    ).application
    paths: dict[str, dict[str, Any]] = application.openapi()["paths"]
    return {f"{method.upper()} {path}" for path, item in paths.items() for method in item if method in METHODS}


def test_no_operation_is_left_out() -> None:
    assert operations() == WITH_IDS.keys() | WITHOUT_IDS.keys()


@dataclass
class Kept:
    """What the owner has, and a stranger beside."""

    gateway: World
    ids: dict[str, str]
    strangers: dict[str, str]

    async def ask(
        self,
        key: str,
        operation: str,
        ids: dict[str, str],
        *,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        method, path = operation.split(" ")
        taking = WITH_IDS[operation]
        return await self.gateway.client.request(
            method,
            self.gateway.base_url.removesuffix("/v1") + path.format(**ids),
            headers={"authorization": f"Bearer {key}", **(headers or {})},
            params={**taking.query, **(query or {})},
            json=taking.body,
        )

    async def get(self, key: str, path: str, **query: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        return await self.gateway.client.get(f"{self.gateway.base_url}/{path}", headers=headers, params=query)

    async def respond(self, key: str, path: str = "responses", **fields: Any) -> httpx.Response:
        return await self.gateway.client.post(
            f"{self.gateway.base_url}/{path}",
            json={"model": "m", **fields},
            headers={"authorization": f"Bearer {key}"},
        )

    async def everything(self) -> list[str]:
        """All that the owner sees."""
        found = [
            (await self.ask(OWNER, operation, self.ids)).text
            for operation in WITH_IDS
            if operation.startswith("GET ") and not operation.endswith("/search")
        ]
        return [*found, (await self.get(OWNER, "conversations")).text, (await self.get(OWNER, "chat/completions")).text]


class Numbering:
    """A model whose completions have ids of their own."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, body: dict[str, Any]) -> Reply:
        reply = answering(body)
        self._count += 1
        reply.body["id"] = f"chatcmpl-{self._count:024x}"
        return reply


@asynccontextmanager
async def kept(**options: Any) -> AsyncIterator[Kept]:
    """A conversation of the owner's with summaries, pins and a stored completion, and one of a stranger's."""
    async with world(ScriptedUpstream(default=Numbering()), window=WINDOW, **options) as gateway:
        await talk(gateway, 8)
        await done(gateway, "POST", "c/compact", json={})
        found = Kept(gateway, {}, {})
        stored = await gateway.say(
            [user("Never mention storms. The ships again")], key=OWNER, conversation="c", store=True
        )
        ids = {"conversation_id": stored["conversation_id"], "completion_id": stored["id"]}
        named = (("items", "item_id"), ("summaries", "summary_id"))
        for kind, name in named:
            listed = await found.get(OWNER, f"conversations/c/{kind}")
            ids[name] = listed.json()["data"][0]["id"]
        ids["response_id"] = (await found.respond(OWNER, input="The ships by night")).json()["id"]
        found.ids.update(ids)
        edited = await found.ask(OWNER, f"PATCH {SUMMARY}", ids)
        pinned = await found.ask(OWNER, f"POST {ITEM}/pin", ids)
        assert (edited.status_code, pinned.status_code) == (200, 200), edited.text + pinned.text
        theirs = await gateway.say([user("Hi")], key=STRANGER, store=True)
        found.strangers = {"conversation_id": theirs["conversation_id"], "completion_id": theirs["id"]}
        found.strangers["response_id"] = (await found.respond(STRANGER, input="Hi")).json()["id"]
        yield found


@pytest.mark.parametrize("operation", WITH_IDS)
async def test_its_owner_can_do_it(operation: str) -> None:
    async with kept() as found:
        answer = await found.ask(OWNER, operation, found.ids)
        assert answer.status_code == WITH_IDS[operation].status, answer.text


async def test_ids_of_another_tenant_are_unknown_everywhere() -> None:
    async with kept() as found:
        before = await found.everything()
        by_name = {**found.ids, "conversation_id": "c"}
        beside = {**found.ids, "conversation_id": found.strangers["conversation_id"]}
        for operation in WITH_IDS:
            attempts = [found.ids, by_name]
            if re.search(r"\{(item|summary|request)_id\}", operation):
                attempts.append(beside)
            for ids in attempts:
                answer = await found.ask(STRANGER, operation, ids)
                assert answer.status_code == 404, f"{operation} with {ids}: {answer.text}"
                assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
        assert await found.everything() == before


async def test_what_is_anothers_cannot_be_told_from_what_is_not() -> None:
    async with kept() as found:
        made_up = {name: re.sub("[0-9a-f]{6}$", "f0f0f0", value) for name, value in found.ids.items()}
        assert all(made_up[name] != value for name, value in found.ids.items())
        for operation in WITH_IDS:
            told = []
            for ids in (found.ids, made_up):
                answer = await found.ask(STRANGER, operation, ids)
                text = answer.text
                for name, value in ids.items():
                    text = text.replace(value, name)
                told.append((answer.status_code, text))
            assert told[0] == told[1], operation


NAMED: Final[list[tuple[dict[str, Any], dict[str, str]]]] = [
    ({"conversation_id": "HERE"}, {}),
    ({"conversation": "HERE"}, {}),
    ({"conversation": {"id": "HERE"}}, {}),
    ({"metadata": {"conversation_id": "HERE"}}, {}),
    ({}, {"x-conversation-id": "HERE"}),
    ({}, {"x-openwebui-chat-id": "HERE"}),
    ({}, {"x-chat-id": "HERE"}),
]


@pytest.mark.parametrize("mode", ["auto", "append", "resend"])
@pytest.mark.parametrize(("fields", "headers"), NAMED)
async def test_a_chat_cannot_join_another_tenants_conversation(
    fields: dict[str, Any],
    headers: dict[str, str],
    mode: str,
) -> None:
    async with kept() as found:
        before, calls = await found.everything(), len(found.gateway.upstream.bodies)
        ours = found.ids["conversation_id"]
        told = json.loads(json.dumps(fields).replace("HERE", ours))
        shown = dict.fromkeys(headers, ours)
        answer = await found.gateway.post(
            [user("Go on")], key=STRANGER, headers={**shown, "x-context-mode": mode}, **told
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "conversation_not_found")
        assert len(found.gateway.upstream.bodies) == calls, "no model was asked"
        assert await found.everything() == before


async def test_a_message_cannot_join_another_tenants_conversation() -> None:
    async with kept() as found:
        before, calls = await found.everything(), len(found.gateway.upstream.bodies)
        ours = found.ids["conversation_id"]
        body = {"model": "m", "max_tokens": 9, "messages": [user("Go on")]}
        for named, headers in (({"conversation_id": ours}, {}), ({}, {"x-conversation-id": ours})):
            answer = await found.gateway.client.post(
                f"{found.gateway.base_url}/messages", json={**body, **named}, headers={"x-api-key": STRANGER, **headers}
            )
            assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
        assert len(found.gateway.upstream.bodies) == calls, "no model was asked"
        assert await found.everything() == before


@pytest.mark.parametrize(
    ("path", "name"),
    [
        *(("responses", name) for name in ("previous_response_id", "conversation", "conversation_id")),
        *(("responses/compact", name) for name in ("previous_response_id", "conversation", "conversation_id")),
        *(("responses/input_tokens", name) for name in ("previous_response_id", "conversation")),
    ],
)
async def test_a_response_cannot_continue_what_is_another_tenants(path: str, name: str) -> None:
    async with kept() as found:
        before, calls = await found.everything(), len(found.gateway.upstream.bodies)
        kind = "response_id" if name == "previous_response_id" else "conversation_id"
        ours = found.ids[kind]
        told = []
        for value in (ours, re.sub("[0-9a-f]{6}$", "f0f0f0", ours)):
            answer = await found.respond(STRANGER, path, input="Go on", **{name: value})
            told.append((answer.status_code, answer.text.replace(value, kind)))
        assert told[0] == told[1]
        expected = (400, "previous_response_not_found") if kind == "response_id" else (404, "conversation_not_found")
        assert (answer.status_code, answer.json()["error"]["code"]) == expected
        assert len(found.gateway.upstream.bodies) == calls, "no model was asked"
        assert await found.everything() == before


@pytest.mark.parametrize("path", ["responses", "responses/compact", "responses/input_tokens"])
async def test_a_reference_to_another_tenants_item_is_unknown(path: str) -> None:
    async with kept() as found:
        before, calls = await found.everything(), len(found.gateway.upstream.bodies)
        stored = await found.ask(OWNER, f"GET {RESPONSE}", found.ids)
        item_id = stored.json()["output"][0]["id"]
        items = [{"type": "item_reference", "id": item_id}, {"role": "user", "content": "Go on"}]
        answer = await found.respond(STRANGER, path, input=items)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[0].id"), answer.text
        assert len(found.gateway.upstream.bodies) == calls, "no model was asked"
        assert await found.everything() == before


async def test_the_same_name_is_another_conversation_for_each_tenant() -> None:
    async with kept() as found:
        before = await found.everything()
        begun = await found.gateway.say([user("Hi")], key=STRANGER, conversation="c")
        assert begun["conversation_id"] not in found.ids.values()
        mine = (await found.get(STRANGER, "conversations/c/items")).json()["data"]
        assert len(mine) == 2
        assert await found.everything() == before


LISTS: Final[list[tuple[str, dict[str, str]]]] = [
    ("conversations", {}),
    ("chat/completions", {}),
    ("search", {"q": "ships"}),
    ("search", {"q": "Hi"}),
]


@pytest.mark.parametrize(("path", "query"), LISTS)
async def test_lists_hold_what_is_ones_own(
    path: str,
    query: dict[str, str],
) -> None:
    async with kept() as found:
        await found.ask(OWNER, f"GET {CONVERSATION}/search", found.ids)
        listed = await found.get(STRANGER, path, **query)
        assert listed.status_code == 200, listed.text
        for secret in (*found.ids.values(), "ships"):
            assert secret not in re.sub(r'"terms":\[[^]]*\]', "", listed.text)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("conversations", "conversation_id"),
        ("chat/completions", "completion_id"),
        ("conversations/{conversation_id}/items", "item_id"),
        ("conversations/{conversation_id}/summaries", "summary_id"),
    ],
)
async def test_no_page_begins_behind_what_is_another_tenants(
    path: str,
    name: str,
) -> None:
    async with kept() as found:
        answer = await found.get(STRANGER, path.format(**found.strangers), after=found.ids[name])
        assert answer.status_code == 404, answer.text


async def test_what_was_exported_elsewhere_begins_a_conversation_of_ones_own() -> None:
    async with kept() as found:
        exported = await found.ask(OWNER, f"GET {CONVERSATION}/export", found.ids)
        before = await found.everything()
        imported = await found.gateway.client.post(
            f"{found.gateway.base_url}/conversations/import",
            content=exported.content,
            headers={"authorization": f"Bearer {STRANGER}", "content-type": exported.headers["content-type"]},
        )
        assert imported.status_code == 200, imported.text
        assert found.ids["conversation_id"] not in imported.text
        assert await found.everything() == before
