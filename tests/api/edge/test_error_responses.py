"""Errors have one shape on every path, say whether a retry helps, and an upstream's own stay its own."""

from __future__ import annotations

import re
from typing import Any

import pytest

from app.api.edge.auth import Authenticator
from app.api.edge.error_responses import build_error_headers
from app.errors import StoreUnavailable, UpstreamUnavailable
from app.pipeline.call import upstream_call
from tests.live import Reply, ScriptedUpstream, completion, serving
from tests.support.gateway import user, world
from tests.support.raw_http import raw

KEYS = {"message", "type", "param", "code"}
ONE_TRY = {"attempts": 1, "base_seconds": 0.01}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("POST", "/chat/completions", 404),
        ("PUT", "/healthz", 405),
        ("POST", "/readyz", 405),
        ("PUT", "/v1/chat/completions", 405),
        ("PATCH", "/v1/chat/completions", 405),
        ("OPTIONS", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v1/chat/completions/unknown", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("POST", "/v1//chat//completions", 404),
        ("TRACE", "/v1/embeddings", 405),
        ("POST", "/v1/context/count", 400),
    ],
)
async def test_every_path_and_status_answers_in_one_shape(method: str, path: str, status: int) -> None:
    async with world(ScriptedUpstream()) as w:
        answer = await w.client.request(method, w.base_url.removesuffix("/v1") + path)
        assert w.upstream.paths == []
    assert answer.status_code == status, answer.text
    assert answer.json()["error"].keys() == KEYS
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-should-retry"] == "false"
    assert answer.headers["x-request-id"].startswith("req_")


async def test_every_answer_has_a_request_id_of_its_own() -> None:
    async with world(ScriptedUpstream()) as w:
        root = w.base_url.removesuffix("/v1")
        answers = [await w.client.get(root + path) for path in ("/healthz", "/readyz", "/v1/models", "/openapi.json")]
        answers += [await w.post([user("x")]), await w.post([user("x")], stream=True), await raw(w, b"")]
    ids = [answer.headers.get_list("x-request-id") for answer in answers]
    assert all(len(own) == 1 for own in ids)
    assert len({own[0] for own in ids}) == len(ids)


@pytest.mark.parametrize(("body", "told"), [(b"", "is empty"), (b" \n", "is empty"), (b"{", "is not valid JSON")])
async def test_a_body_that_cannot_be_read_is_told_from_one_that_is_not_there(body: bytes, told: str) -> None:
    async with world(ScriptedUpstream()) as w:
        answer = await raw(w, body)
    assert answer.status_code == 400
    assert f"The request body {told}" in answer.json()["error"]["message"]


async def test_no_cache_may_keep_what_is_below_v1() -> None:
    async with world(ScriptedUpstream()) as w:
        answers = [await w.client.get(f"{w.base_url}/{path}") for path in ("models", "conversations", "nothing")]
        answers += [await w.post([user("x")]), await w.post([user("x")], stream=True), await raw(w, b"")]
    assert ["no-store" in answer.headers["cache-control"] for answer in answers] == [True] * 6


@pytest.mark.parametrize("place", [(Authenticator, "authorize_request"), (upstream_call, "build_upstream_body")])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_fault_of_our_own_says_no_more_than_that(
    monkeypatch: pytest.MonkeyPatch, streamed: bool, place: tuple[Any, str]
) -> None:
    def fault(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret")

    async with world(ScriptedUpstream()) as w:
        monkeypatch.setattr(*place, fault)
        answer = await w.post([user("x")], stream=streamed)
        assert w.rows() == 0
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (500, "internal_error")
    assert error.keys() == KEYS
    assert answer.headers["x-request-id"]
    for leaked in ("secret", "Traceback", "ZeroDivision", ".py"):
        assert leaked not in answer.text


async def test_a_fault_of_our_own_on_another_path_says_no_more_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(Authenticator, "authenticate", fault)
    async with world(ScriptedUpstream()) as w:
        answer = await w.client.get(f"{w.base_url}/models")
    assert answer.status_code == 500
    assert answer.json()["error"].keys() == KEYS
    assert answer.headers["x-request-id"].startswith("req_")
    assert "secret" not in answer.text


OWN_ERRORS: dict[str, Reply] = {
    "key refused": Reply(
        {"error": {"message": "Bad key", "type": "t", "param": None, "code": "invalid_api_key"}}, status=401
    ),
    "forbidden": Reply({"error": {"message": "no"}}, status=403),
    "model unknown": Reply({"error": {"message": "no such model", "code": "model_not_found"}}, status=404),
    "list": Reply(b'[{"error":{"code":400,"message":"Bad","status":"INVALID_ARGUMENT"}}]\n', status=400),
    "text": Reply(b"Unexpected role 'user' after role 'tool'", status=400, headers={"content-type": "text/plain"}),
    "unprocessable": Reply({"detail": [{"loc": ["body"]}]}, status=422),
    "teapot": Reply(b"", status=418),
    "odd JSON": Reply(b'{ "error" : "\xc3\xbc"}', status=409),
    "redirect": Reply(b"moved", status=451),
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", OWN_ERRORS)
async def test_an_upstreams_own_error_keeps_status_and_body(name: str, streamed: bool) -> None:
    reply = OWN_ERRORS[name]
    async with world(ScriptedUpstream(reply)) as w:
        answer = await w.post([user("x")], stream=streamed)
        assert w.rows() == 0
    assert answer.status_code == reply.status
    if isinstance(reply.body, bytes):
        assert answer.content == reply.body
    else:
        assert answer.json() == reply.body
    assert answer.headers["content-type"] == reply.headers.get("content-type", "application/json")
    assert answer.headers["x-request-id"]
    assert answer.headers["x-context-status"] == "full"
    used, limit = answer.headers["x-context-tokens"].split("/")
    assert 0 < int(used) < int(limit) == 7782


async def test_a_rate_limit_passes_with_its_pause_after_the_retries() -> None:
    limited = Reply(
        {"error": {"message": "slow down"}},
        status=429,
        headers={"retry-after": "0.01", "x-ratelimit-limit-tokens": "9"},
    )
    async with world(ScriptedUpstream(default=lambda _: limited)) as w:
        answer = await w.post([user("x")])
        tries = len(w.upstream.bodies)
    assert (answer.status_code, answer.json(), tries) == (429, {"error": {"message": "slow down"}}, 3)
    assert (answer.headers["retry-after"], answer.headers["x-ratelimit-limit-tokens"]) == ("0.01", "9")


async def test_a_failure_that_passes_is_retried_and_not_seen() -> None:
    for status in (408, 429, 500, 502, 503, 504):
        async with world(ScriptedUpstream(Reply({}, status=status))) as w:
            assert (await w.say([user("x")]))["choices"][0]["message"]["content"] == "Fine."
            assert len(w.upstream.bodies) == 2


async def test_a_provider_that_is_down_is_said_to_be() -> None:
    async with world(ScriptedUpstream(), providers={"upstream": {"base_url": "http://127.0.0.1:9/v1"}}) as w:
        for streamed in (False, True):
            answer = await w.post([user("x")], stream=streamed)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error.keys()) == (502, "upstream_unavailable", KEYS)
            assert "127.0.0.1" not in answer.text
            assert "x-should-retry" not in answer.headers
        assert w.rows() == 0


async def test_a_provider_that_keeps_failing_is_left_alone_for_a_while() -> None:
    retries = {**ONE_TRY, "breaker_failures": 2}
    providers = {"upstream": {"base_url": "http://127.0.0.1:9/v1"}}
    async with world(ScriptedUpstream(), providers=providers, retries=retries) as w:
        answers = [await w.post([user(text)]) for text in ("x", "y", "z")]
    assert [answer.status_code for answer in answers] == [502, 502, 503]
    assert answers[-1].json()["error"]["code"] == "upstream_unavailable"
    assert int(answers[-1].headers["retry-after"]) > 1


async def test_a_provider_that_does_not_answer_in_time_is_said_to_have_timed_out() -> None:
    slow = Reply(pieces=[5])

    from_provider = {"timeouts": {"first_byte_seconds": 0.05, "between_bytes_seconds": 0.05}}
    async with slow_provider(slow) as address:
        providers = {"upstream": {"base_url": f"{address}/v1", **from_provider}}
        async with world(ScriptedUpstream(), providers=providers, retries=ONE_TRY) as w:
            answer = await w.post([user("x")])
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error.keys()) == (504, "upstream_unavailable", KEYS)


def slow_provider(reply: Reply) -> Any:
    return serving(ScriptedUpstream(default=lambda _: reply), lifespan="off")


async def test_a_fallback_model_answers_for_one_that_is_down() -> None:
    async with serving(
        ScriptedUpstream(default=lambda body: completion(f"I am {body['model']}")), lifespan="off"
    ) as address:
        sections: dict[str, Any] = {
            "providers": {"down": {"base_url": "http://127.0.0.1:9/v1"}, "up": {"base_url": f"{address}/v1"}},
            "models": {
                "m": {"provider": "down", "context_window": 8192, "fallbacks": ["spare"]},
                "spare": {"provider": "up", "model": "spare-1", "context_window": 8192},
            },
            "retries": ONE_TRY,
        }
        async with world(ScriptedUpstream(), **sections) as w:
            body = await w.say([user("x")])
            streamed = await w.post([user("x"), {"role": "assistant", "content": "I am spare-1"}, user("y")])
    assert body["choices"][0]["message"]["content"] == "I am spare-1"
    assert body["context"]["warnings"] == ["'up/spare-1' answered in place of the first deployment."]
    assert streamed.headers["x-model-fallback"] == "up/spare-1"


async def test_a_store_that_is_away_is_said_with_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(ScriptedUpstream()) as w:

        async def away(**_: object) -> None:
            raise StoreUnavailable("The database does not answer.")

        monkeypatch.setattr(w.store, "find_conversation", away)
        monkeypatch.setattr(w.store, "find_link_matches", away)
        appended = await w.post([user("x")], headers={"x-conversation-id": "mine"})
        resent = await w.post([user("x"), {"role": "assistant", "content": "y"}, user("z")])
    assert (appended.status_code, appended.json()["error"]["code"]) == (503, "store_unavailable")
    assert int(appended.headers["retry-after"]) >= 1
    assert "x-should-retry" not in appended.headers
    assert (resent.status_code, resent.headers["x-context-status"]) == (200, "degraded")


@pytest.mark.parametrize(("seconds", "said"), [(0.2, "1"), (1.0, "1"), (1.2, "2"), (59.01, "60")])
def test_nobody_is_told_to_come_again_too_early(seconds: float, said: str) -> None:
    error = UpstreamUnavailable("Not now.", status=503, retry_after_seconds=seconds)
    assert build_error_headers(error)["retry-after"] == said


async def test_a_conversation_that_is_busy_is_said_to_be_with_a_pause() -> None:
    async with world(ScriptedUpstream(), compaction={"wait_seconds": 0.05}) as w:
        body = await w.say([user("x")], headers={"x-conversation-id": "mine"})
        (kept,) = w.conversations()
        await w.store.claim_lease(root=kept.root, key=kept.id, holder="another", seconds=60)
        answer = await w.post([user("more")], headers={"x-conversation-id": "mine"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conversation_busy")
    assert body["conversation_id"] == kept.id
    assert int(answer.headers["retry-after"]) >= 1
    assert "x-should-retry" not in answer.headers


async def test_what_cannot_fit_is_refused_in_the_words_that_clients_look_for() -> None:
    async with world(ScriptedUpstream()) as w:
        answer = await w.post([user("far too much " * 5000)])
        assert (w.rows(), w.upstream.bodies) == (0, [])
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert error["message"].startswith(
        "This model's maximum context length is 8192 tokens. However, your messages resulted in "
    )
    assert answer.headers["x-should-retry"] == "false"
    used, limit = answer.headers["x-context-tokens"].split("/")
    assert int(used) > int(limit) == 7782


async def test_an_error_in_a_known_conversation_names_it() -> None:
    refused = Reply({"error": {"message": "no"}}, status=403)
    async with world(ScriptedUpstream(completion(), refused)) as w:
        first = await w.say([user("x")])
        answer = await w.post([user("x"), first["choices"][0]["message"], user("more")])
    assert answer.status_code == 403
    assert answer.headers["x-conversation-id"] == first["conversation_id"]


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({}, "The header `Content-Type` is missing."),
        ({"content-type": "application/x-www-form-urlencoded"}, "The header `Content-Type` is 'application/x-www-"),
    ],
)
async def test_every_endpoint_that_takes_json_names_the_header_that_is_missing(sent: dict[str, str], told: str) -> None:
    token = "cop_" + "0123456789abcdef" * 3
    async with world(ScriptedUpstream(), auth={"operator_token": token}) as gateway:
        root = gateway.base_url.removesuffix("/v1")
        document = (await gateway.client.get(f"{root}/openapi.json")).json()
        own_reading = {"/v1/chat/completions", "/v1/responses", "/v1/responses/input_tokens", "/v1/context/count"}
        own_reading |= {
            "/v1/responses/compact",
            "/v1/conversations/import",
            "/v1/messages",
            "/v1/messages/count_tokens",
        }
        asked = 0
        for path, item in document["paths"].items():
            for method, operation in item.items():
                content = operation.get("requestBody", {}).get("content", {})
                if "application/json" not in content or path in own_reading:
                    continue
                headers = {"authorization": f"Bearer {token}", **sent}
                url = root + re.sub(r"\{\w+\}", "x", path)
                refused = await gateway.client.request(method, url, content=b'{"name": "x"}', headers=headers)
                error = refused.json()["error"]
                assert (refused.status_code, error["code"]) == (400, "invalid_type"), f"{path}: {refused.text}"
                assert error["message"].startswith(told)
                assert "Send `Content-Type: application/json`." in error["message"]
                asked += 1
        assert asked >= 9
