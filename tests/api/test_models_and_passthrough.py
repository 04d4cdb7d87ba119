"""Models over all providers, probes, and every other path of a provider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from app.errors import StoreUnavailable
from app.settings import load_settings
from tests.live import DROP, Reply, ScriptedUpstream, completion, create_test_app, serving
from tests.support.gateway import user, world

KEYS = {"message", "type", "param", "code"}


@asynccontextmanager
async def two_providers(one: Any, two: Any, **first: Any) -> AsyncIterator[Any]:
    async with serving(one, lifespan="off") as first_address, serving(two, lifespan="off") as second_address:
        sections: dict[str, Any] = {
            "providers": {
                "one": {"base_url": f"{first_address}/v1", "api_key": "sk-configured", **first},
                "two": {"base_url": f"{second_address}/v1"},
            },
            "models": {
                "alias": {"provider": "two", "model": "upstream-model", "context_window": 4242},
                "*": {"provider": "one", "context_window": 9000},
            },
        }
        async with world(ScriptedUpstream(), **sections) as w:
            yield w


async def test_models_are_merged_with_their_windows() -> None:
    async with two_providers(ScriptedUpstream(), ScriptedUpstream()) as w:
        listed = (await w.client.get(f"{w.base_url}/models")).json()
        one = (await w.client.get(f"{w.base_url}/models/alias")).json()
    assert listed["object"] == "list"
    assert {model["id"]: model["context_window"] for model in listed["data"]} == {"alias": 4242, "upstream-model": 9000}
    assert all(model.keys() >= {"id", "object", "created", "owned_by"} for model in listed["data"])
    assert one == next(model for model in listed["data"] if model["id"] == "alias")
    names = ("context_window", "context_length", "max_model_len", "max_input_tokens")
    assert [one[name] for name in names] == [4242] * 4, "clients read one of these"


async def test_a_model_that_only_a_pattern_covers_is_described() -> None:
    async with world(ScriptedUpstream(), models={"*": {"provider": "upstream"}}) as w:
        known = (await w.client.get(f"{w.base_url}/models/gpt-4o")).json()
        unknown = (await w.client.get(f"{w.base_url}/models/some/model-of-nobody")).json()
    assert (known["id"], known["object"], known["context_window"]) == ("gpt-4o", "model", 128_000)
    assert unknown["context_window"] == 8192
    async with world(ScriptedUpstream(), models={"m": {"provider": "upstream"}}) as w:
        assert (await w.client.get(f"{w.base_url}/models/gpt-4o")).status_code == 404


async def test_models_are_listed_while_a_provider_is_down() -> None:
    providers = {"upstream": {"base_url": "http://127.0.0.1:9/v1"}}
    models = {"here": {"provider": "upstream", "context_window": 5000}}
    async with world(ScriptedUpstream(), providers=providers, models=models) as w:
        listed = (await w.client.get(f"{w.base_url}/models")).json()
    assert [model["id"] for model in listed["data"]] == ["here"]


async def test_probes_tell_a_process_that_lives_from_one_that_can_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(ScriptedUpstream()) as w:
        root = w.base_url.removesuffix("/v1")
        assert (await w.client.get(f"{root}/healthz")).json()["status"] == "ok"
        assert (await w.client.get(f"{root}/readyz")).json()["status"] == "ready"

        async def away() -> None:
            raise StoreUnavailable("The database does not answer.")

        monkeypatch.setattr(w.store, "check", away)
        refused = await w.client.get(f"{root}/readyz")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        assert refused.headers["retry-after"]
        assert (await w.client.get(f"{root}/healthz")).status_code == 200


async def test_a_gateway_whose_every_upstream_fails_stays_ready() -> None:
    retries = {"attempts": 1, "base_seconds": 0.01, "breaker_failures": 1}
    providers = {"upstream": {"base_url": "http://127.0.0.1:9/v1"}}
    async with world(ScriptedUpstream(), providers=providers, retries=retries) as w:
        for text in ("x", "y", "z"):
            assert (await w.post([user(text)])).status_code in (502, 503)
        assert (await w.client.get(w.base_url.removesuffix("/v1") + "/readyz")).status_code == 200


async def test_a_body_of_another_path_is_passed_through_untouched() -> None:
    body = b'{ "input" : "h\\u00e9", "model":"text-embedding-3-small","x":1.0 }'
    answered = b'{"data":[ {"embedding":[0.10]} ]}'
    upstream = ScriptedUpstream(Reply(answered, headers={"x-request-id": "theirs", "openai-processing-ms": "3"}))
    async with world(upstream) as w:
        answer = await w.client.post(
            f"{w.base_url}/embeddings?x=%C3%A9&y=1", content=body, headers={"content-type": "application/json"}
        )
        assert w.rows() == 0
    assert (answer.status_code, answer.content, upstream.bodies) == (200, answered, [body])
    assert upstream.paths == ["/v1/embeddings"]
    assert (answer.headers["x-request-id"], answer.headers["openai-processing-ms"]) == ("theirs", "3")
    for name in ("date", "server", "x-request-id"):
        assert len(answer.headers.get_list(name)) <= 1


async def test_other_media_methods_and_errors_pass_through() -> None:
    audio = bytes(range(256)) * 40
    upstream = ScriptedUpstream(
        Reply(audio, headers={"content-type": "audio/mpeg"}),
        Reply(b"[1]", 422, {"content-type": "application/problem+json", "retry-after": "7"}),
        Reply({"deleted": True}),
    )
    async with world(upstream) as w:
        spoken = await w.client.post(f"{w.base_url}/audio/speech", json={"model": "tts", "input": "x"})
        refused = await w.client.post(f"{w.base_url}/images/generations", json={"model": "i"})
        form = await w.client.post(f"{w.base_url}/files", files={"file": ("a.txt", b"x\r\n")}, data={"purpose": "p"})
    assert (spoken.content, spoken.headers["content-type"]) == (audio, "audio/mpeg")
    assert (refused.status_code, refused.content, refused.headers["retry-after"]) == (422, b"[1]", "7")
    assert refused.headers["content-type"] == "application/problem+json"
    assert form.json() == {"deleted": True}
    assert upstream.headers[2]["content-type"].startswith("multipart/form-data; boundary=")
    assert b"x\r\n" in upstream.bodies[2]


async def test_another_path_goes_to_the_provider_of_its_model_under_its_name_there() -> None:
    one, two = ScriptedUpstream(), ScriptedUpstream()
    async with two_providers(one, two) as w:
        await w.client.post(f"{w.base_url}/completions", json={"model": "alias", "prompt": "x"})
        await w.client.post(f"{w.base_url}/completions", json={"model": "other", "prompt": "x"})
    assert [body["model"] for body in two.requests] == ["upstream-model"]
    assert [body["model"] for body in one.requests] == ["other"]


async def test_another_path_goes_there_with_whatever_nesting() -> None:
    one, two = ScriptedUpstream(), ScriptedUpstream()
    deep = f"{'[' * 300}1.10{']' * 300}"
    async with two_providers(one, two) as w:
        sent = f'{{"prompt":{deep},"model":"alias"}}'
        await w.client.post(f"{w.base_url}/completions", content=sent, headers={"content-type": "application/json"})
    assert two.bodies == [f'{{"prompt":{deep},"model":"upstream-model"}}'.encode()]


async def test_a_stream_of_another_path_flows_and_may_break() -> None:
    pieces = [b"event: response.created\r\ndata: {}\r\n\r\n", b": ping\n\n", b"data: x\n\n"]
    async with world(ScriptedUpstream(Reply(pieces=pieces), Reply(pieces=[pieces[0], DROP]))) as w:
        whole = await w.client.post(f"{w.base_url}/completions", json={"model": "m", "stream": True})
        assert whole.content == b"".join(pieces)
        assert whole.headers["content-type"] == "text/event-stream"
        with pytest.raises(Exception, match=r"peer closed|incomplete"):
            await w.client.post(f"{w.base_url}/completions", json={"model": "m", "stream": True})
        assert (await w.post([user("x")])).status_code == 200


@pytest.mark.parametrize("status", [204, 300, 304, 307, 399, 799])
async def test_a_status_that_is_of_no_use_to_a_client_is_an_error_that_says_so(status: int) -> None:
    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d Odd\r\nlocation: http://127.0.0.1:9/\r\nconnection: close\r\n\r\n" % status)
        writer.close()

    server = await asyncio.start_server(answering, "127.0.0.1", 0)
    providers = {"odd": {"base_url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"}}
    models = {"*": {"provider": "odd"}}
    async with server, world(ScriptedUpstream(), providers=providers, models=models) as w:
        answer = await w.client.post(f"{w.base_url}/embeddings", json={"model": "m"})
        deleted = await w.client.delete(f"{w.base_url}/files/file-1")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (502, "upstream_unavailable")
    assert f"Provider 'odd' answered with status {status}" in error["message"]
    assert deleted.status_code == (204 if status == 204 else 502)


async def test_a_head_and_a_length_pass_through() -> None:
    upstream = ScriptedUpstream(
        Reply(b"", headers={"content-length": "1234", "content-type": "audio/wav"}),
        Reply(b"abc", headers={"content-length": "3"}),
        Reply(b"gone", 404, headers={"content-length": "4"}),
    )
    async with world(upstream) as w:
        head = await w.client.head(f"{w.base_url}/files/file-1/content")
        whole = await w.client.get(f"{w.base_url}/files/file-1/content")
        missing = await w.client.head(f"{w.base_url}/files/file-2/content")
        own = await w.client.head(f"{w.base_url}/models")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "1234", b"")
    assert (whole.headers["content-length"], "transfer-encoding" in whole.headers) == ("3", False)
    assert (missing.status_code, missing.headers["content-length"]) == (404, "4")
    assert own.status_code == 405


@pytest.mark.parametrize("path", ["completions", "engines/m/completions", "threads/runs", "threads/t/runs"])
async def test_a_conversation_that_is_passed_through_is_said_to_be_bypassed(path: str) -> None:
    upstream = ScriptedUpstream(
        completion(), Reply(pieces=[b"data: {}\n\n"]), Reply({"error": {}}, 400), Reply({}, 307)
    )
    async with world(upstream) as w:
        answers = [await w.client.post(f"{w.base_url}/{path}", json={"model": "m"}) for _ in range(4)]
        answers.append(await w.client.post(f"{w.base_url}/{path}?model=other", json={"model": "m"}))
        assert w.rows() == 0
    assert [answer.status_code for answer in answers] == [200, 200, 400, 502, 400]
    assert [answer.headers["x-context-status"] for answer in answers] == ["bypassed"] * 5


async def test_what_is_no_conversation_is_not_said_to_be_bypassed() -> None:
    upstream = ScriptedUpstream(*[completion()] * 4)
    async with world(upstream) as w:
        answers = [await w.client.post(f"{w.base_url}/{path}", json={}) for path in ("embeddings", "files", "threads")]
        answers.append(await w.client.get(f"{w.base_url}/files/file_1"))
    assert [answer.headers.get("x-context-status") for answer in answers] == [None] * 4


async def test_a_provider_that_is_down_is_said_to_be_on_every_path() -> None:
    providers = {"upstream": {"base_url": "http://127.0.0.1:9/v1"}}
    async with world(ScriptedUpstream(), providers=providers) as w:
        answer = await w.client.post(f"{w.base_url}/embeddings", json={"model": "m"})
    assert (answer.status_code, answer.json()["error"].keys()) == (502, KEYS)
    assert answer.headers["x-request-id"].startswith("req_")


async def test_a_path_cannot_climb_out_of_the_provider() -> None:
    upstream = ScriptedUpstream()
    async with world(upstream) as w:
        for path in ("files/%2e%2e/%2e%2e/admin", "files/..%2f..%2fadmin"):
            answer = await w.client.post(f"{w.base_url}/{path}", json={"model": "m"})
            assert (answer.status_code, answer.json()["error"].keys()) == (400, KEYS)
    assert upstream.paths == []


async def test_escapes_in_a_path_pass_through_as_they_came() -> None:
    asked: list[bytes] = []
    upstream = ScriptedUpstream()

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            asked.append(scope["raw_path"])
        await upstream(scope, receive, send)

    async with world(noting) as w:  # type: ignore[arg-type]
        paths = ["files/a%2Fb", "files/a%25b", "files/a%3Fb", "files/%C3%BC"]
        for path in paths:
            await w.client.post(f"{w.base_url}/{path}", json={"model": "m"})
    assert asked == [f"/v1/{path}".encode() for path in paths]


async def test_paths_of_the_gateway_do_not_go_round_it() -> None:
    upstream = ScriptedUpstream()
    async with world(upstream) as w:
        statuses = {}
        for path in ("chat/completions", "models", "context/count", "conversations", "search", "%2e/chat/completions"):
            answer = await w.client.put(f"{w.base_url}/{path}", json={"model": "m"})
            assert answer.json()["error"].keys() == KEYS
            statuses[path] = answer.status_code
    assert list(statuses.values()) == [405, 405, 405, 405, 405, 404]
    assert upstream.paths == []


@pytest.mark.parametrize("path", ["chat/completions", "embeddings"])
async def test_a_configured_key_replaces_the_clients_and_none_passes_it_on(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = ScriptedUpstream(), ScriptedUpstream()
    async with two_providers(one, two) as w:
        for model in ("other", "alias"):
            await w.client.post(
                f"{w.base_url}/{path}",
                json={"model": model, "messages": [user("x")]},
                headers={"authorization": "Bearer sk-of-the-client", "api-key": "sk-of-the-client"},
            )
    assert one.headers[-1]["authorization"] == "Bearer sk-configured"
    assert "sk-of-the-client" not in str(one.headers)
    assert two.headers[-1]["authorization"] == "Bearer sk-of-the-client"
    assert "sk-configured" not in str(two.headers)
    assert "api-key" not in two.headers[-1]
    assert "sk-" not in caplog.text


async def test_a_key_in_the_header_of_azures_clients_is_passed_on_too() -> None:
    one, two = ScriptedUpstream(), ScriptedUpstream()
    async with two_providers(one, two) as w:
        for path in ("chat/completions", "embeddings"):
            await w.client.post(
                f"{w.base_url}/{path}",
                json={"model": "alias", "messages": [user("x")]},
                headers={"api-key": "sk-of-the-client"},
            )
    assert [headers["authorization"] for headers in two.headers] == ["Bearer sk-of-the-client"] * 2


async def test_no_key_is_ever_logged_or_told(capfd: pytest.CaptureFixture[str]) -> None:
    upstream = ScriptedUpstream(Reply({"error": {"message": "Bad key"}}, 401), Reply(b"", 500), Reply(pieces=[DROP]))
    async with world(upstream) as w:
        answers = [
            await w.post([user("x")], key="sk-of-the-client", stream=streamed) for streamed in (False, False, True)
        ]
    told = "".join(answer.text + str(answer.headers) for answer in answers)
    logged = capfd.readouterr()
    for text in (told, logged.out, logged.err):
        assert "sk-of-the-client" not in text
        assert "sk-upstream" not in text


async def test_a_count_says_what_a_request_would_weigh() -> None:
    async with world(ScriptedUpstream()) as w:
        counted = (
            await w.client.post(f"{w.base_url}/context/count", json={"model": "m", "messages": [user("x " * 100)]})
        ).json()
        assert (w.rows(), w.upstream.bodies) == (0, [])
    assert 100 < counted["prompt_tokens"] < 130
    assert counted["window"] == 8192
    assert 0 < counted["pressure"] < 0.1


async def test_without_a_provider_only_simulated_models_answer() -> None:
    app = create_test_app(load_settings(environ={}, arguments={("database",): {"url": "memory://"}}))
    async with serving(app) as address, httpx.AsyncClient(base_url=f"{address}/v1") as client:
        for model, status in (("sim-8k", 200), ("sim-gpt-4o", 200), ("gpt-4o", 404)):
            said = await client.post("/chat/completions", json={"model": model, "messages": [user("Hi")]})
            assert said.status_code == status
        listed = (await client.get("/conversations")).json()
    error = said.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "concertina init" in error["message"]
    assert len(listed["data"]) == 2, "nothing is stored of what was refused"
