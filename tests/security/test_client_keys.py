"""A client's key reaches the provider that it is meant for, and no other: every endpoint, whatever fails on the way.

Each provider of the sweep is a server of its own that keeps what it was sent. Two tenants ask with keys that stand
nowhere else; afterwards nobody may have seen one who was not meant.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import httpx
import pytest

from app.conversations.api_keys import ApiKeys, NewApiKey
from tests.api.edge.test_tenant_isolation import WITH_IDS, WITHOUT_IDS
from tests.live import TEST_DEPENDENCIES, Reply, gateway, serving
from tests.support.gateway import answering, is_summary, long_history, user
from tests.support.memory_store import MemoryStore

CANARIES: Final = ("sk-canary-of-tenant-one-5d1c", "sk-canary-of-tenant-two-93ae")
SHOWN_AS: Final = ("authorization", "api-key", "x-api-key", "both")
WINDOW: Final = 4096
PROVIDERS: Final = ("main", "spare", "writer", "own", "friend")
"""The first provider of model `m`; that of its fallback; of its summarizer; one with a key of its own; one with
`pass_client_key`, where the last fallback stands."""
MODELS: Final = {
    "m": {"provider": "main", "fallbacks": ["s", "f"]},
    "s": {"provider": "spare"},
    "w": {"provider": "writer"},
    "o": {"provider": "own", "fallbacks": ["s"]},
    "f": {"provider": "friend"},
}


class Recorder:
    """A provider that keeps all that it is sent.

    Attributes:
        fails: every call is answered with 500.
        wants_key: calls without a key are answered with 401; lists of models always are.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.fails = False
        self.wants_key = False
        self.received: list[str] = []
        self.paths: list[str] = []
        self.authorizations: list[str | None] = []
        self.summaries = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.received.append(f"{scope['raw_path']!r}?{scope['query_string']!r} {headers} {body!r}")
        self.paths.append(scope["path"])
        self.authorizations.append(headers.get("authorization"))
        reply = self._reply(scope, headers, body)
        kind = "text/event-stream" if reply.pieces is not None else "application/json"
        start = {"status": reply.status, "headers": [(b"content-type", kind.encode())]}
        await send({"type": "http.response.start", **start})
        for piece in reply.pieces if reply.pieces is not None else (json.dumps(reply.body).encode(),):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def _reply(self, scope: Any, headers: dict[str, str], body: bytes) -> Reply:
        if self.fails:
            return Reply({"error": {"message": "No."}}, 500)
        is_list = scope["path"].endswith("/models")
        if "authorization" not in headers and (self.wants_key or is_list):
            return Reply({"error": {"message": "You did not provide an API key."}}, 401)
        if is_list:
            return Reply({"object": "list", "data": [{"id": name, "context_window": WINDOW} for name in MODELS]})
        if not scope["path"].endswith("/chat/completions"):
            return Reply({"object": "whatever"})
        asked = json.loads(body)
        self.summaries += is_summary(asked)
        return answering(asked)

    def saw(self, secret: str) -> bool:
        return any(secret in text for text in self.received)

    def forget(self) -> None:
        self.received.clear()
        self.paths.clear()
        self.authorizations.clear()
        self.summaries = 0


class Scene:
    """A gateway before several providers, and clients that show their keys in various ways."""

    def __init__(self, base_url: str, store: MemoryStore, client: httpx.AsyncClient) -> None:
        self.base_url = base_url
        self.store = store
        self.client = client
        self.providers = {name: Recorder(name) for name in PROVIDERS}

    async def ask(self, method: str, path: str, key: str, shown_as: str = "authorization", **more: Any) -> Any:
        """A request below the gateway's root."""
        headers = dict(more.pop("headers", {}))
        if shown_as in ("authorization", "both"):
            headers["authorization"] = f"Bearer {key}"
        if shown_as != "authorization":
            headers["x-api-key" if shown_as == "both" else shown_as] = key
        url = self.base_url.removesuffix("/v1") + path
        return await self.client.request(method, url, headers=headers, **more)

    def who_saw(self, *keys: str) -> set[str]:
        return {name for name, provider in self.providers.items() if any(map(provider.saw, keys))}

    def forget(self) -> None:
        for provider in self.providers.values():
            provider.forget()


@asynccontextmanager
async def scene(**sections: Any) -> AsyncIterator[Scene]:
    """All providers but `own` are without a key; window sizes are theirs to tell."""
    store = MemoryStore(clock=lambda: datetime.now(UTC))
    dependencies = dataclasses.replace(TEST_DEPENDENCIES, create_store=lambda *_, **__: store)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=30))
        made = Scene("", store, client)
        providers: dict[str, Any] = {}
        for name, recorder in made.providers.items():
            address = await stack.enter_async_context(serving(recorder, lifespan="off"))
            providers[name] = {"base_url": f"{address}/v1"}
        providers["own"]["api_key"] = "sk-of-the-operator"
        providers["friend"]["pass_client_key"] = True
        options: dict[str, Any] = {
            "providers": providers,
            "models": MODELS,
            "policies": {"additive": {"summarizer": {"model": "w"}}},
            "retries": {"attempts": 1, "base_seconds": 0.01, "breaker_failures": 1_000_000},
            **sections,
        }
        made.base_url = await stack.enter_async_context(gateway("", dependencies=dependencies, **options))
        yield made


CHAT: Final = {"model": "m", "messages": [user("Hello")]}
LONG: Final = {"model": "m", "messages": [*long_history(60), user("And now?")]}
Request = tuple[str, str, dict[str, Any]]
"""Method, path below the root, and what httpx takes."""


def form(model: str | None) -> dict[str, Any]:
    fields = {"response_format": "json"} | ({} if model is None else {"model": model})
    return {"files": {"file": ("a.wav", b"RIFF\r\n")}, "data": fields}


def bodies_without_ids() -> dict[str, Any]:
    """What the operations that take no id are asked with."""
    return {
        "POST /v1/admin/keys": {"json": {"name": "x"}},
        "POST /v1/admin/keys/{key_id}": {"json": {"budget_usd": 5}},
        "POST /v1/context/count": {"json": CHAT},
        "POST /v1/chat/completions": {"json": CHAT},
        "POST /v1/messages": {"json": {**CHAT, "max_tokens": 5}},
        "POST /v1/messages/count_tokens": {"json": CHAT},
        "POST /v1/responses": {"json": {"model": CHAT["model"], "input": "Hi"}},
        "POST /v1/responses/compact": {"json": {"model": LONG["model"], "input": LONG["messages"]}},
        "POST /v1/responses/input_tokens": {"json": {"model": CHAT["model"], "input": "Hi"}},
        "POST /v1/conversations": {"json": {"items": [{"type": "message", "role": "user", "content": "Hi"}]}},
        "POST /v1/conversations/import": {"content": b'{"messages": [{"role": "user", "content": "Hi"}]}\n'},
        "GET /v1/lookup": {"params": {"id": "item"}},
        "GET /v1/search": {"params": {"q": "item"}},
    }


def operations_of_the_gateway(ids: dict[str, str]) -> Iterator[Request]:
    """Every operation of the gateway's own; those that destroy what others need come last."""
    ids = {"model": "m", "key_id": "key_x", "request_id": "sr_x", "limit_id": "up/m", **ids}
    bodies = bodies_without_ids()
    every = {operation: {"json": taking.body, "params": taking.query} for operation, taking in WITH_IDS.items()}
    every |= {operation: bodies.get(operation, {}) for operation in WITHOUT_IDS}
    for operation in sorted(every, key=lambda operation: (operation.startswith("DELETE"), operation)):
        method, path = operation.split(" ")
        yield method, path.format(**ids), every[operation]


def calls_of_models(model: str) -> Iterator[Request]:
    """Whatever makes the gateway ask a provider of this model."""
    yield "POST", "/v1/chat/completions", {"json": {**CHAT, "model": model}}
    yield "POST", "/v1/chat/completions", {"json": {**CHAT, "model": model, "stream": True}}
    yield "POST", "/v1/chat/completions", {"json": {**LONG, "model": model}}
    yield "POST", "/v1/chat/completions", {"json": {**LONG, "model": model, "context": {"policy": "checkpoint"}}}
    yield "POST", "/v1/chat/completions", {"json": {**LONG, "model": model, "context": {"recall": "tool"}}}
    yield "POST", "/v1/context/count", {"json": {**LONG, "model": model}}
    yield "GET", f"/v1/models/{model}", {}
    yield "POST", "/v1/embeddings?x=1", {"json": {"model": model, "input": "x"}}
    yield "POST", "/v1/responses", {"json": {"model": model, "input": "x", "stream": True}}
    yield "POST", "/v1/messages", {"json": {**LONG, "model": model, "max_tokens": 5}}


def multipart(model: str) -> Iterator[Request]:
    yield "POST", "/v1/audio/transcriptions", form(model)


def calls_of_whole() -> Iterator[Request]:
    """What names no model: with several providers without a key, no key is meant for any of them."""
    yield "GET", "/v1/models", {}
    yield "GET", "/v1/files", {}
    yield "GET", "/v1/files/a", {}
    yield "DELETE", "/v1/files/a", {}
    yield "POST", "/v1/files", form(None)
    yield "POST", "/v1/embeddings", {"json": {"input": "x"}}
    yield "POST", "/v1/embeddings", {"content": b"no JSON", "headers": {"content-type": "text/plain"}}


async def sweep(s: Scene, requests: list[Request], meant: set[str]) -> list[str]:
    """Send each request with each key in each way; every provider that saw a key and is not meant."""
    wrong = []
    for method, path, more in requests:
        for shown_as in SHOWN_AS:
            for key, other in (CANARIES, CANARIES[::-1]):
                s.forget()
                answer = await s.ask(method, path, key, shown_as, **more)
                leaks = s.who_saw(key) - meant | s.who_saw(other)
                wrong += [f"{name}: {method} {path} {shown_as} → {answer.status_code}" for name in sorted(leaks)]
    return wrong


FIRST_FAILS: Final = {"every provider answers": (), "the first one fails": ("main", "own"), "all fail": PROVIDERS}


@pytest.mark.parametrize("failing", FIRST_FAILS.values(), ids=FIRST_FAILS.keys())
@pytest.mark.parametrize("model", ["m", "s", "o"])
async def test_a_clients_key_stays_with_the_first_provider_of_its_model(
    model: str,
    failing: tuple[str, ...],
) -> None:
    first = {"m": {"main"}, "s": {"spare"}, "o": set[str]()}[model]
    async with scene() as s:
        for name in failing:
            s.providers[name].fails = True
        assert await sweep(s, list(calls_of_models(model)), first | {"friend"}) == []


@pytest.mark.parametrize("model", ["m", "s", "o"])
async def test_a_forms_key_stays_with_the_provider_of_its_model(model: str) -> None:
    first = {"m": {"main"}, "s": {"spare"}, "o": set[str]()}[model]
    async with scene() as s:
        assert await sweep(s, list(multipart(model)), first) == []
        called = {name for name, provider in s.providers.items() if "/v1/audio/transcriptions" in provider.paths}
        assert called == (first or {"own"})
        assert s.who_saw(CANARIES[1]) == first, "the last one that asked"


@pytest.mark.parametrize("fails", [False, True])
async def test_a_key_that_comes_without_a_model_reaches_nobody_who_did_not_ask_for_it(fails: bool) -> None:
    async with scene() as s:
        s.providers["main"].fails = fails
        assert await sweep(s, list(calls_of_whole()), {"friend"}) == []


@pytest.mark.parametrize("fails", [False, True])
async def test_no_operation_of_the_gateway_shows_a_key_to_another_provider(fails: bool) -> None:
    async with scene() as s:
        ids = await conversation_with_a_summary(s, CANARIES[0])
        s.providers["main"].fails = fails
        requests = list(operations_of_the_gateway(ids))
        assert len(requests) == len(WITH_IDS) + len(WITHOUT_IDS)
        assert await sweep(s, requests, {"main", "friend"}) == []


async def conversation_with_a_summary(s: Scene, key: str) -> dict[str, str]:
    """The ids of everything that operations take."""
    answer = (await s.ask("POST", "/v1/chat/completions", key, json={**LONG, "store": True})).json()
    conversation = answer["conversation_id"]
    path = f"/v1/conversations/{conversation}"
    items = (await s.ask("GET", f"{path}/items", key)).json()["data"]
    summaries = (await s.ask("GET", f"{path}/summaries", key)).json()["data"]
    asked = {"model": CHAT["model"], "input": "Hi", "conversation": conversation}
    response = (await s.ask("POST", "/v1/responses", key, json=asked)).json()
    return {
        "conversation_id": conversation,
        "item_id": items[-1]["id"],
        "summary_id": summaries[0]["id"],
        "completion_id": answer["id"],
        "response_id": response["id"],
    }


async def test_the_sweep_reaches_what_it_is_about() -> None:
    """First providers see the key; fallbacks, summarizers and lists are really asked, without it."""
    async with scene() as s:
        key = CANARIES[0]
        assert (await s.ask("POST", "/v1/chat/completions", key, json=LONG)).status_code == 200
        assert s.providers["writer"].summaries > 0
        assert s.who_saw(key) == {"main"}
        s.providers["main"].fails = True
        s.forget()
        assert (await s.ask("POST", "/v1/chat/completions", key, json=CHAT)).status_code == 200
        assert [len(s.providers[name].paths) for name in ("main", "spare", "friend")] == [1, 1, 0]
        assert s.providers["spare"].authorizations == [None]
        s.providers["spare"].fails = True
        assert (await s.ask("POST", "/v1/chat/completions", key, json=CHAT)).status_code == 200
        assert "/v1/chat/completions" in s.providers["friend"].paths
        assert set(s.providers["friend"].authorizations) == {f"Bearer {key}"}
        s.forget()
        listed = (await s.ask("GET", "/v1/models", key)).json()
        assert {model["id"] for model in listed["data"]} == MODELS.keys()
        assert all("/v1/models" in provider.paths for provider in s.providers.values())
        assert s.who_saw(key) == {"friend"}
        assert s.providers["own"].authorizations == ["Bearer sk-of-the-operator"]


async def test_a_summarizer_at_the_provider_that_is_meant_gets_the_key() -> None:
    policies = {"additive": {"summarizer": {"model": "w2"}}}
    async with scene(policies=policies, models={**MODELS, "w2": {"provider": "main"}}) as s:
        s.providers["main"].wants_key = True
        answer = await s.ask("POST", "/v1/chat/completions", CANARIES[0], json=LONG)
        assert answer.json()["context_status"] == "summarized"
        assert s.providers["main"].summaries > 0
        assert s.who_saw(CANARIES[0]) == {"main"}


async def test_who_answers_401_to_a_call_without_a_key_is_named_with_the_setting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "app.compaction")
    async with scene() as s:
        for name in ("main", "spare", "writer"):
            s.providers[name].wants_key = True
        summarized = await s.ask("POST", "/v1/chat/completions", CANARIES[0], json=LONG)
        s.providers["main"].fails = True
        whole = await s.ask("POST", "/v1/chat/completions", CANARIES[0], json=CHAT)
        streamed = await s.ask("POST", "/v1/chat/completions", CANARIES[0], json={**CHAT, "stream": True})
        s.providers["main"].fails = False
        files = await s.ask("GET", "/v1/files", CANARIES[0])
        nobodys = await s.client.get(f"{s.base_url}/files")
    for answer, provider in ((whole, "spare"), (streamed, "spare"), (files, "main")):
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (401, "client_key_withheld")
        assert f"providers.{provider}.pass_client_key: true" in error["message"]
        assert f"providers.{provider}.api_key" in error["message"]
        assert CANARIES[0] not in answer.text
    assert summarized.status_code == 200
    assert "providers.writer.pass_client_key: true" in caplog.text
    assert nobodys.json()["error"]["message"] == "You did not provide an API key.", "who shows none is told so"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/files", "/v1/models/m"])
async def test_a_key_without_a_model_is_meant_for_the_only_provider_without_one(path: str) -> None:
    recorder, other = Recorder("main"), Recorder("own")
    async with serving(recorder, lifespan="off") as address, serving(other, lifespan="off") as elsewhere:
        providers = {
            "main": {"base_url": f"{address}/v1"},
            "own": {"base_url": f"{elsewhere}/v1", "api_key": "sk-of-the-operator"},
        }
        models = {"o": {"provider": "own"}, "*": {"provider": "main"}}
        async with gateway("", providers=providers, models=models) as base_url, httpx.AsyncClient() as client:
            url = base_url.removesuffix("/v1") + path
            answer = await client.get(url, headers={"authorization": f"Bearer {CANARIES[0]}"})
        assert answer.status_code == 200
        assert recorder.authorizations[-1] == f"Bearer {CANARIES[0]}"
        assert not other.saw(CANARIES[0])


async def test_in_mode_keys_no_provider_sees_anything_of_a_credential() -> None:
    async with scene(auth={"mode": "keys", "cache_seconds": 0}) as s:
        issuing = ApiKeys(
            s.store, usage=s.store, policies=["fade"], now=lambda: datetime.now(UTC), random_bytes=secrets.token_bytes
        )
        keys = [
            (await issuing.create_key(NewApiKey(name="x", scopes=("chat", "read", "manage", "admin"))))[0] for _ in "ab"
        ]
        ids = await conversation_with_a_summary(s, keys[0])
        requests = [
            *(one for model in ("m", "s", "o", "f") for one in (*calls_of_models(model), *multipart(model))),
            *calls_of_whole(),
            *operations_of_the_gateway(ids),
        ]
        calls = 0
        for shown_as in SHOWN_AS:
            s.providers["main"].fails = shown_as == "x-api-key"
            for key in keys:
                for method, path, more in requests:
                    answer = await s.ask(method, path, key, shown_as, **more)
                    # No response runs in the background, so none can be cancelled.
                    assert answer.status_code != 400 or path.endswith("/cancel"), (method, path, answer.text)
        for provider in s.providers.values():
            calls += len(provider.paths)
            operators = {"Bearer sk-of-the-operator"} if provider.name == "own" else set[str]()
            assert set(provider.authorizations) <= {None, *operators}, provider.name
            assert not any(provider.saw(key) for key in (*keys, "ck_")), provider.name
        assert calls > 100
