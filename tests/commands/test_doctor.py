"""`concertina doctor` says in plain sentences what works and what does not, and never shows a key."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from app.__main__ import main
from app.commands import doctor
from app.commands.configured_store import open_configured_store
from app.settings import load_settings
from app.settings.providers_and_models import Timeouts

KEY = "sk-canary-1234567890abcdef"
MODELS = {"object": "list", "data": [{"id": "gpt-4o"}, {"id": "mine", "max_model_len": 4096}, {"id": "strange"}]}
ANSWER = (
    'data: {"choices": [{"index": 0, "delta": {"content": "OK"}, "finish_reason": null}]}\n\n'
    'data: {"choices": [], "usage": {"prompt_tokens": 14, "completion_tokens": 1, "total_tokens": 15}}\n\n'
    "data: [DONE]\n\n"
)


class Upstream(ThreadingHTTPServer):
    """A provider whose answers a test sets: status, body and headers for the model list and for a question."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models: tuple[int, Any, dict[str, str]] = (200, MODELS, {})
        self.outside: tuple[int, Any, dict[str, str]] = (404, "404 page not found", {})
        """What is answered outside of `/v1`."""
        self.answer: tuple[int, Any, dict[str, str]] = (200, ANSWER, {"content-type": "text/event-stream"})
        self.wait: Callable[[], object] = lambda: None
        self.asked: list[dict[str, Any]] = []
        self.calls = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Upstream

    def do_GET(self) -> None:
        self.server.calls += 1
        self.server.wait()
        self._send(*(self.server.models if self.path.startswith("/v1/") else self.server.outside))

    def do_POST(self) -> None:
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self._send(*self.server.answer)

    def _send(self, status: int, body: Any, headers: dict[str, str]) -> None:
        content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response_only(status)
        for name, value in ({"date": formatdate(usegmt=True)} | headers).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


@contextmanager
def serving() -> Iterator[Upstream]:
    with Upstream() as upstream:
        thread = threading.Thread(target=upstream.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield upstream
        finally:
            upstream.shutdown()
            thread.join()


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with serving() as server:
        yield server


def examine(folder: Path, *options: str, **sections: Any) -> int:
    file = folder / "c.yaml"
    values = {
        "database": {"url": f"sqlite:////{folder}/c.db"},
        "retries": {},
        "compaction": {"capsule_key": ["0" * 64]},
        **sections,
    }
    file.write_text(json.dumps(values))
    return main(["doctor", "--config", str(file), *options])


def provider(upstream: Upstream, **section: Any) -> dict[str, Any]:
    return {"main": {"base_url": upstream.address, "api_key": KEY, **section}}


def test_what_works_is_said_and_the_status_is_0(
    upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = {"gpt-4o": {"provider": "main"}, "alias": {"provider": "main", "model": "mine"}, "*": {"provider": "main"}}
    assert examine(tmp_path, providers=provider(upstream), models=models) == 0
    told = capsys.readouterr().out
    assert "It opens (sqlite), and its schema is" in told
    assert f"Provider main, {upstream.address}\n  ok       It is reachable, and answered after " in told
    assert "It does not refuse the key." in told
    assert "It lists 3 models." in told
    assert "Model 'gpt-4o': its window is 128,000 tokens, as is known of this model." in told
    assert "Model 'alias' ('mine' there): its window is 4,096 tokens, by the provider's list." in told
    assert "the windows of 2 of 3 listed models are known; the others count as 8,192 tokens." in told
    assert "0 faults, 0 warnings" in told
    assert (upstream.calls, upstream.asked) == (1, []), "each provider is called once"


def test_a_missing_key_of_capsules_is_a_warning(
    upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examine(tmp_path, providers=provider(upstream), compaction={}) == 0
    told = capsys.readouterr().out
    assert "warning  compaction.capsule_key is not set" in told
    assert "0 faults, 1 warning," in told


def test_with_ask_the_cheapest_model_answers(
    upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = {"gpt-4o": {"provider": "main"}, "small": {"provider": "main", "model": "gpt-4o-mini"}}
    quirks = {"developer_to_system": True, "strip_fields": ["stream_options"]}
    assert examine(tmp_path, "--ask", providers=provider(upstream, quirks=quirks), models=models) == 0
    told = capsys.readouterr().out
    assert "Model 'gpt-4o-mini' streamed an answer after" in told
    assert "It reports usage: 14 prompt tokens for the question." in told
    assert [body["model"] for body in upstream.asked] == ["gpt-4o-mini"]
    assert "stream_options" not in upstream.asked[0], "the provider's quirks hold"


@pytest.mark.parametrize("protocol", ["openai", "responses"])
def test_a_refused_question_is_a_fault(
    protocol: str, upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.answer = (404, {"error": {"message": "No such model."}}, {})
    assert examine(tmp_path, "--ask", providers=provider(upstream, protocol=protocol)) == 1
    assert "Model 'gpt-4o' refused a question (404: No such model.)" in capsys.readouterr().out
    assert ("input" in upstream.asked[0]) is (protocol == "responses")


def test_a_stream_without_usage_is_a_warning(
    upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.answer = (200, ANSWER.partition("\n\n")[0] + "\n\ndata: [DONE]\n\n", {})
    assert examine(tmp_path, "--ask", providers=provider(upstream)) == 0
    assert "warning  Its stream reports no usage" in capsys.readouterr().out


@pytest.mark.parametrize(
    "message",
    [
        f"Incorrect API key provided: {KEY}. See our pages.",
        f"Incorrect API key provided: {KEY[:7]}*****{KEY[-4:]}. See our pages.",
        f"Incorrect API key provided: ('{KEY[:6]}...'). See our pages.",
    ],
)
def test_a_refused_key_is_told_without_the_key(
    message: str, upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.models = (401, {"error": {"message": message}}, {})
    assert examine(tmp_path, providers=provider(upstream)) == 1
    told = capsys.readouterr().out
    reason = "401: Incorrect API key provided: … See our pages."
    assert f"fault    It refuses the key ({reason}). Check providers.main.api_key." in told
    assert "canary" not in told
    assert "sk-c" not in told


def test_secrets_of_an_address_are_not_shown(
    upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = upstream.address.replace("://", "://me:url-password@") + "?key=query-canary"
    upstream.models = (500, {"error": "Not for me or url-password or query-canary."}, {})
    assert examine(tmp_path, providers={"main": {"base_url": url}}) == 1
    told = capsys.readouterr().out
    assert "500: Not for … or … or …" in told
    assert "password" not in told
    assert "canary" not in told


def test_a_provider_that_gets_clients_keys_may_refuse_the_doctor(
    upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.models = (401, {"error": {"message": "Who?"}}, {})
    assert examine(tmp_path, providers={"main": {"base_url": upstream.address}}) == 0
    assert "It wants a key, and gets the client's" in capsys.readouterr().out
    assert examine(tmp_path, providers={"main": {"base_url": upstream.address}}, auth={"mode": "keys"}) == 1
    told = capsys.readouterr().out
    assert "It wants a key (401: Who?). Set providers.main.api_key." in told
    assert "There is no key yet" in told


EMPTY_KEY = (
    "warning  providers.main.api_key is empty, because the variable OWN_KEY is unset or empty: requests carry the "
    "client's key. Set the variable before the start: export OWN_KEY=…"
)


@pytest.mark.parametrize("value", [None, "", " "])
def test_a_key_that_is_empty_because_its_variable_is_unset_is_a_warning(
    value: str | None,
    upstream: Upstream,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OWN_KEY", raising=False) if value is None else monkeypatch.setenv("OWN_KEY", value)
    upstream.models = (401, {"error": {"message": "Who?"}}, {})
    assert examine(tmp_path, "--ask", providers=provider(upstream, api_key="${OWN_KEY:-}")) == 0
    told = capsys.readouterr().out
    assert EMPTY_KEY in told
    assert "warning  The question of --ask was skipped: no key." in told
    assert "0 faults, 2 warnings" in told


@pytest.mark.parametrize("section", [{"api_key": ""}, {}, {"headers": {"x-api-key": "x"}, "api_key": "${OWN_KEY:-}"}])
def test_a_key_that_is_left_out_on_purpose_is_no_warning(
    section: dict[str, Any], upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examine(tmp_path, providers={"main": {"base_url": upstream.address, **section}}) == 0
    assert "0 faults, 0 warnings" in capsys.readouterr().out


def test_a_list_for_everybody_does_not_prove_a_key(
    upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.answer = (401, {"error": {"message": "Who?"}}, {})
    assert examine(tmp_path, "--ask", providers={"main": {"base_url": upstream.address}}) == 0
    assert "warning  The question of --ask was skipped: no key." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("models", "status", "told"),
    [
        ((404, "Not Found", {}), 0, "It has no model list (404)"),
        ((503, "<html>busy</html>", {}), 1, "Its model list is answered with 503: <html>busy</html>"),
        ((200, "<html>", {}), 1, "is not JSON. Is providers.main.base_url right?"),
        ((200, {"data": []}, {"date": "Mon, 01 Jan 2024 00:00:00 GMT"}), 0, "seconds ahead of the provider's."),
    ],
)
def test_what_else_a_provider_answers_is_told(
    models: Any, status: int, told: str, upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.models = models
    assert examine(tmp_path, providers=provider(upstream)) == status
    assert told in capsys.readouterr().out


@pytest.mark.parametrize("outside", [(404, "404 page not found", {}), (200, "Ollama is running", {})])
@pytest.mark.parametrize("models", [(200, MODELS, {}), (401, {"error": {"message": "Who?"}}, {})])
@pytest.mark.parametrize("section", [{}, {"api_key": KEY}])
def test_an_address_that_lacks_v1_is_a_fault_with_the_address_that_was_meant(
    section: dict[str, Any],
    models: Any,
    outside: Any,
    upstream: Upstream,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    upstream.models, upstream.outside = models, outside
    address = upstream.address.removesuffix("/v1").replace("://", "://me:url-password@")
    assert examine(tmp_path, providers={"main": {"base_url": address + "/", **section}}) == 1
    told = capsys.readouterr().out
    assert f"Change providers.main.base_url: did you mean {upstream.address}?\n" in told
    assert "1 fault, 0 warnings" in told
    assert "password" not in told
    assert "Try: " not in told


def test_an_address_with_another_ending_may_be_right(
    upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.models = (404, "", {})
    assert examine(tmp_path, providers={"main": {"base_url": upstream.address.removesuffix("/v1")}}) == 0
    told = capsys.readouterr().out
    assert "It has no model list (404). Is providers.main.base_url right?" in told
    assert "Try: " not in told, "no model is known to exist"


REQUEST = "Try: curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json'%s -d '%s'\n"
HELLO = '{"model": "%s", "messages": [{"role": "user", "content": "Hello"}]}'


@pytest.mark.parametrize(
    ("sections", "model", "header"),
    [
        ({}, "gpt-4o", ""),
        ({"models": {"gone": {"provider": "main"}, "alias": {"provider": "main", "model": "strange"}}}, "alias", ""),
        ({"auth": {"mode": "keys"}, "server": {"host": "0.0.0.0"}}, "gpt-4o", " -H 'Authorization: Bearer KEY'"),
    ],
)
def test_a_first_request_names_a_model_that_exists(
    sections: dict[str, Any],
    model: str,
    header: str,
    upstream: Upstream,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # A list may begin with a model that does not chat.
    upstream.models = (200, {"data": [{"id": "strange"}, {"id": "gpt-4o"}]}, {})
    assert examine(tmp_path, providers=provider(upstream), **sections) == 0
    *_, serve, request = capsys.readouterr().out.splitlines(keepends=True)
    assert serve == f"Start the gateway with: concertina serve --config {tmp_path}/c.yaml\n"
    assert request == REQUEST % (header, HELLO % model)


def test_models_that_are_missing_and_windows_that_are_unknown_are_warnings(
    upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = {"gpt-4": {"provider": "main"}, "strange": {"provider": "main"}}
    assert examine(tmp_path, providers=provider(upstream), models=models) == 0
    told = capsys.readouterr().out
    assert "Model 'gpt-4' is not in the provider's list; did you mean 'gpt-4o'?" in told
    assert "Model 'strange': its window is not known, so 8,192 tokens are assumed." in told
    upstream.models = (200, {**MODELS, "has_more": True}, {})
    assert examine(tmp_path, providers=provider(upstream), models=models) == 0
    assert "is not in the provider's list" not in capsys.readouterr().out, "further pages may have it"


def test_providers_are_called_at_the_same_time(
    upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as second:
        together = threading.Barrier(2, timeout=5)
        upstream.wait = second.wait = together.wait
        sections = {"one": {"base_url": upstream.address}, "two": {"base_url": second.address}}
        assert examine(tmp_path, providers=sections, models={"*": {"provider": "one"}}) == 0
    assert capsys.readouterr().out.count("It lists 3 models.") == 2


def test_one_that_cannot_be_reached_or_says_nothing_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "LIST_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sections = {
            "silent": {"base_url": f"http://127.0.0.1:{silent.getsockname()[1]}/v1"},
            "gone": {"base_url": "http://127.0.0.1:9/v1"},
        }
        assert examine(tmp_path, providers=sections, models={"*": {"provider": "gone"}}) == 1
    told = capsys.readouterr().out
    assert "It did not answer within 0.2 seconds." in told
    assert "It cannot be called: Provider 'gone' could not be reached" in told
    assert "2 faults" in told


def test_a_database_that_cannot_be_used_is_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert examine(tmp_path, database={"url": "postgresql://me:db-canary@127.0.0.1:9/c"}) == 1
    told = capsys.readouterr().out
    assert "Database postgresql://127.0.0.1:9/c\n  fault    It cannot be used: " in told
    assert "canary" not in told


def test_a_new_database_on_postgresql_gets_its_tables(
    empty_postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examine(tmp_path, database={"url": empty_postgres_url}) == 0
    assert "It opens (postgresql), and its schema is" in capsys.readouterr().out


def test_without_a_provider_the_simulated_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert examine(tmp_path, database={"url": "memory://"}) == 0
    told = capsys.readouterr().out
    assert "answers are made up" in told
    assert "It forgets everything" in told
    assert '-d \'{"model": "sim-8k"' in told


def test_wrong_settings_end_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert examine(tmp_path, server={"prot": 1}) == 2
    assert "server.port" in capsys.readouterr().err
    assert Timeouts().first_byte_seconds > 60, "a provider's own timeouts are too long for somebody who waits"


def test_a_limit_that_refusals_have_taught_is_a_warning(
    upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"providers": provider(upstream), "models": {"gpt-4o": {"provider": "main"}}}
    assert examine(tmp_path, **settings) == 0
    assert "refused prompts" not in capsys.readouterr().out
    limit = {"tokens": 4096, "learned_at": time.time(), "address": upstream.address}

    async def store_limit() -> None:
        async with open_configured_store(load_settings(str(tmp_path / "c.yaml"))) as store:
            await store.merge_model_facts(model="main/gpt-4o", facts={"limit": limit})

    asyncio.run(store_limit())
    assert examine(tmp_path, **settings) == 0
    told = capsys.readouterr().out
    assert "'main/gpt-4o' has refused prompts as too long for a window of 4,096 tokens" in told
    assert "DELETE /v1/admin/learned-limits/main/gpt-4o" in told
