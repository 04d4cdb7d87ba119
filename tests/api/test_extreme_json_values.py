"""Values that no double holds, of the wrong type or nested too deeply: a 400 that names the field, or untouched bytes;
never a failure of ours, on any endpoint that reads JSON."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from app.settings import load_settings
from tests.live import ScriptedUpstream, create_test_app, serving
from tests.support.gateway import world
from tests.support.raw_http import raw

HUGE = b"1" + b"0" * 400
DEEP = b"[" * 300 + b"]" * 300
VALUES = (
    *(b"1e400", b"-1e400", HUGE, b"NaN", b"-Infinity", b"[1e400]", b'{"a":1e400}', b'{"a":{"b":[NaN]}}', DEEP),
    *(b"-1", b"2147483648", b"18446744073709551616", b"1e308", b"true", b"null", b'"x"', b"[1]", b"{}"),
)
FIELDS = (
    *("n", "stream", "stream_options", "max_tokens", "max_completion_tokens", "stop", "tools", "tool_choice"),
    *("functions", "function_call", "response_format", "temperature", "logit_bias", "metadata", "store", "context"),
    *("conversation", "conversation_id", "user", "safety_identifier", "seed", "modalities", "x", "messages", "model"),
)
MESSAGES = (
    *(b'{"role":"user","content":%b}', b'{"role":%b,"content":"x"}', b'{"role":"user","content":"x","y":%b}'),
    *(b'{"role":"assistant","tool_calls":[%b]}', b'{"role":"assistant","function_call":%b}'),
    b'{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":%b}}]}',
    b'{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x.test/a.png","detail":%b}}]}',
)
READ = ("tools", "functions", "response_format", "stream_options", "metadata", "context")
PASSED_ON = ("temperature", "seed", "logit_bias", "x")
MESSAGE = b'{"role":"user","content":"x"}'


def chat(name: str, value: bytes, more: bytes = b"") -> bytes:
    fields = {"model": b'"sim-8k"', "messages": b"[%b]" % MESSAGE, name: value}
    return b"{" + b",".join(b'"%b":%b' % (key.encode(), text) for key, text in fields.items()) + more + b"}"


async def failures(client: httpx.AsyncClient, path: str, bodies: list[bytes], method: str = "POST") -> list[Any]:
    """The requests that the gateway could not answer itself."""
    found = []
    for body in bodies:
        answer = await client.request(method, path, content=body, headers={"content-type": "application/json"})
        if answer.status_code >= 500:
            found.append((path, body[:200], answer.status_code))
    return found


async def test_no_value_in_any_body_is_a_failure_of_the_gateway() -> None:
    settings = load_settings(environ={}, arguments={("database", "url"): "memory://", ("auth", "end_users"): True})
    async with (
        serving(create_test_app(settings)) as address,
        httpx.AsyncClient(base_url=address, timeout=30, headers={"authorization": "Bearer k"}) as client,
    ):
        bodies = [chat(name, value) for name in FIELDS for value in VALUES]
        bodies += [chat(name, value, b',"store":true') for name in FIELDS if name != "store" for value in VALUES]
        bodies += [chat("messages", b"[%b,%b]" % (one % value, MESSAGE)) for one in MESSAGES for value in VALUES]
        found = await failures(client, "/v1/chat/completions", bodies)
        for path in ("/v1/embeddings", "/v1/completions"):
            found += await failures(client, path, [chat(name, value) for name in ("input", "n") for value in VALUES])
        listed = (await client.get("/v1/conversations")).json()["data"]
        api = (await client.get("/openapi.json")).json()
        for path, operations in api["paths"].items():
            for method, operation in operations.items():
                if "requestBody" in operation:
                    place = path.replace("{conversation_id}", listed[0]["id"]).replace("{", "").replace("}", "")
                    bodies = [body for value in VALUES for body in (value, *filled(api, operation, value))]
                    found += await failures(client, place, bodies, method.upper())
    assert found == []


def filled(api: Any, operation: Any, value: bytes) -> list[bytes]:
    """A body for each property of an endpoint, that alone set, bare and in a list."""
    schema = next(iter(operation["requestBody"]["content"].values())).get("schema", {})
    if "$ref" in schema:
        schema = api["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    names = [name.encode() for name in schema.get("properties", {})]
    return [b'{"%b":%b}' % (name, one) for name in names for one in (value, b"[%b]" % value)]


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("value", [b'{"a":1e400}', b'{"a":%b}' % DEEP], ids=["number", "depth"])
async def test_a_field_that_cannot_be_read_is_named(name: str, value: bytes) -> None:
    more = b',"stream":true'
    async with world(ScriptedUpstream()) as w:
        # With the id in a header nobody looks for one in `metadata`, which is changed all the same.
        answer = await raw(w, chat(name, value, more), headers={"x-conversation-id": "named"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    assert w.upstream.bodies == []


async def test_numbers_in_fields_that_nobody_reads_reach_the_provider_as_they_came() -> None:
    async with world(ScriptedUpstream()) as w:
        bodies = [chat(name, value) for name in PASSED_ON for value in (b"1e400", HUGE, b'{"a":-1e400}')]
        statuses = {(await raw(w, body)).status_code for body in bodies}
        sent = [bytes(body) for body in w.upstream.bodies]
    assert statuses == {200}
    assert sent == bodies
