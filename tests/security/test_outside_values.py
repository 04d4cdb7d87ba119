"""Each name, number and text field that comes from outside, at its bounds and beyond: from clients and from providers,
on both databases. The gateway refuses it or takes it; it neither fails nor stands still, and other tenants' turns
beside it are answered."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from app.conversation.names import MAX_NAME_CHARS
from tests.live import DONE, Reply, ScriptedUpstream, completion, gateway, serving

STALL_SECONDS: Final = 0.1
MAX_METRICS_BYTES: Final = 1_000_000
MEGABYTE: Final = 1 << 20
OPERATOR_TOKEN: Final = "operator-" + "7d1f" * 8
OPERATOR: Final = {"authorization": f"Bearer {OPERATOR_TOKEN}"}
TEXTS: Final[dict[str, bytes]] = {
    "empty": b'""',
    "one": b'"a"',
    "limit": b'"%b"' % (b"b" * MAX_NAME_CHARS),
    "limit + 1": b'"%b"' % (b"c" * (MAX_NAME_CHARS + 1)),
    "1 MB": b'"%b"' % (b"-1" * (MEGABYTE // 2)),
    "NUL": b'"a\\u0000b"',
    "escape": b'"a\\u001b[2Jb"',
    "C1": b'"a\\u009bb"',
    "surrogate": b'"a\\ud800b"',
}
NUMBERS: Final[dict[str, bytes]] = {
    "0": b"0",
    "1": b"1",
    "-1": b"-1",
    "2^31": b"%d" % 2**31,
    "2^63": b"%d" % 2**63,
    "2^64": b"%d" % 2**64,
    "10^30": b"%d" % 10**30,
    "10^400": b"%d" % 10**400,
    "1e400": b"1e400",
    "NaN": b"NaN",
}
DEEP: Final = {"deep": b"[" * 300 + b"]" * 300, "deeper": b'{"a":' * 5000 + b"1" + b"}" * 5000}
VALUES: Final = TEXTS | NUMBERS | DEEP
REFUSED_NAMES: Final = ("limit + 1", "1 MB", "NUL", "escape", "C1", "surrogate")
MESSAGE: Final = b'{"role":"user","content":"Hi."}'
CALL: Final = b'{"id":%b,"type":"function","function":{"name":"f","arguments":"{}"}}'
RESULT: Final = b'{"role":"tool","content":"r","tool_call_id":%b}'

CHAT_NAMES: Final[dict[str, bytes]] = {
    "model": b'"model":%b,"messages":[' + MESSAGE + b"]",
    "user": b'"model":"m","messages":[' + MESSAGE + b'],"user":%b',
    "safety_identifier": b'"model":"m","messages":[' + MESSAGE + b'],"safety_identifier":%b',
    "prompt_cache_key": b'"model":"m","messages":[' + MESSAGE + b'],"prompt_cache_key":%b',
    "conversation_id": b'"model":"m","messages":[' + MESSAGE + b'],"conversation_id":%b',
    "conversation": b'"model":"m","messages":[' + MESSAGE + b'],"conversation":{"id":%b}',
    "metadata": b'"model":"m","messages":[' + MESSAGE + b'],"metadata":{%b:"v"},"store":true',
    "tools": b'"model":"m","messages":[' + MESSAGE + b'],"tools":[{"type":"function","function":{"name":%b}}]',
    "functions": b'"model":"m","messages":[' + MESSAGE + b'],"functions":[{"name":%b}]',
    "context.policy": b'"model":"m","messages":[' + MESSAGE + b'],"context":{"policy":%b}',
    "messages[0].name": b'"model":"m","messages":[{"role":"user","content":"Hi.","name":%b}]',
}
"""By the field that the error names: the fields of a chat request with a name that the client chooses."""
CHAT_OTHERS: Final = (
    *(b'"model":"m","messages":[{"role":"user","content":%b}]', b'"model":"m","messages":[{"role":%b,"content":"x"}]'),
    b'"model":"m","messages":[' + MESSAGE + b',{"role":"assistant","tool_calls":[' + CALL + b"]}," + MESSAGE + b"]",
    b'"model":"m","messages":[{"role":"assistant","tool_calls":[' + CALL % b'"c"' + b"]}," + RESULT + b"]",
    b'"model":"m","messages":[' + MESSAGE + b'],"metadata":{"k":%b},"store":true',
    b'"model":"m","messages":[' + MESSAGE + b'],"context":{"instructions":%b}',
    b'"model":"m","messages":[' + MESSAGE + b'],"context":{"pin":[%b]}',
    *(
        b'"model":"m","messages":[%b],"store":true,"%b":%%b' % (MESSAGE, name)
        for name in (b"n", b"max_tokens", b"max_completion_tokens", b"seed", b"temperature", b"service_tier", b"x")
    ),
)
RESPONSES: Final = (
    *(b'"model":%b,"input":"Hi."', b'"model":"m","input":%b', b'"model":"m","input":"Hi.","instructions":%b'),
    b'"model":"m","input":[{"type":"item_reference","id":%b}]',
    b'"model":"m","input":[{"type":"function_call_output","call_id":%b,"output":"r"}]',
    b'"model":"m","input":[{"type":"message","role":"user","content":"Hi.","id":%b}]',
    b'"model":"m","input":"Hi.","tools":[{"type":"function","name":%b}]',
    b'"model":"m","input":"Hi.","tool_choice":{"type":"function","name":%b}',
    *(b'"model":"m","input":"Hi.","metadata":{%b:"v"}', b'"model":"m","input":"Hi.","metadata":{"k":%b}'),
    *(
        b'"model":"m","input":"Hi.","%b":%%b' % name
        for name in (
            *(b"previous_response_id", b"conversation", b"user", b"safety_identifier", b"prompt_cache_key", b"x"),
            *(b"max_output_tokens", b"top_logprobs", b"temperature", b"max_tool_calls", b"service_tier"),
        )
    ),
)
HEADERS: Final = (
    *("x-conversation-id", "x-context-policy", "x-context-mode", "idempotency-key", "x-request-id", "x-chat-id"),
    *("session-id", "openai-organization", "traceparent", "x-end-user", "x-stainless-retry-count"),
)
HEADER_VALUES: Final = ("", "a", "b" * MAX_NAME_CHARS, "c" * (MAX_NAME_CHARS + 1), "9" * 5000, "a\x9bb", "NaN")
PATH_VALUES: Final = ("a", "b" * MAX_NAME_CHARS, "c" * 5000, "a%00b", "a%1bb", "%ED%A0%80", f"{2**64}", "NaN", "-1")


OUR_FAULTS: Final = (b"internal_error", b'"type":"invalid_request_error"')
"""In an answer to a request that was right, however the provider answered it."""


class Scene:
    """A gateway with hostile clients or a hostile provider, and a bystander: another tenant that asks all the time."""

    def __init__(self, base_url: str, client: httpx.AsyncClient) -> None:
        self.base_url, self.client = base_url, client
        self.api: Any = None
        self.label: Any = ""
        self.found: list[Any] = []
        """What must not happen, with the value at which it did."""
        self.bystander_turns = 0

    async def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Sends a request; a status of ours above 499 is found."""
        sent = {"authorization": "Bearer sk-hostile", "content-type": "application/json", **(headers or {})}
        answer = await self.client.request(
            method,
            f"{self.base_url}{path}",
            content=body,
            headers=[(name.encode(), value.encode("latin-1")) for name, value in sent.items()],
        )
        if answer.status_code >= 500:
            self.found.append((self.label, answer.status_code, answer.text[:200]))
        return answer

    async def stand_by(self) -> None:
        ask = {"model": "m", "messages": [{"role": "user", "content": "bystander"}]}
        while True:
            answer = await self.client.post(
                f"{self.base_url}/chat/completions", json=ask, headers={"authorization": "Bearer sk-bystander"}
            )
            self.bystander_turns += 1
            if answer.status_code != 200:
                self.found.append((self.label, "the bystander", answer.status_code, answer.text[:200]))
            await asyncio.sleep(0.02)

    async def watch_loop(self) -> None:
        """Finds stalls of the event loop, in CPU time of its thread: other processes' load is none of them."""
        before = time.thread_time()
        while True:
            await asyncio.sleep(0.002)
            after = time.thread_time()
            if after - before > STALL_SECONDS:
                self.found.append((self.label, "a stall of", round(after - before, 3)))
            before = after

    async def check_numbers(self) -> None:
        """The gateway's own numbers can be read, and names from outside have not filled them."""
        self.label = "numbers"
        for path in ("/admin/overview", "/admin/costs", "/admin/requests", "/conversations"):
            answer = await self.send("GET", path, headers=OPERATOR)
            assert answer.status_code == 200, (path, answer.text[:300])
        root = self.base_url.removesuffix("/v1")
        metrics = await self.client.get(f"{root}/metrics")
        assert metrics.status_code == 200
        assert len(metrics.content) < MAX_METRICS_BYTES
        assert "bbbbbbbb" not in metrics.text
        assert (await self.client.get(f"{root}/readyz")).status_code == 200


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'gateway.db'}"
    return str(request.getfixturevalue("empty_postgres_url"))


@asynccontextmanager
async def scene(
    database: str, upstream: ScriptedUpstream, protocol: str = "openai", **sections: Any
) -> AsyncIterator[Scene]:
    options: dict[str, Any] = {
        "auth": {"end_users": True, "end_user_header": "X-End-User", "operator_token": OPERATOR_TOKEN},
        "retries": {"attempts": 1},
        **sections,
    }
    async with (
        serving(upstream, lifespan="off") as address,
        gateway(
            address,
            database=database,
            providers={"upstream": {"base_url": f"{address}/v1", "api_key": "sk-upstream", "protocol": protocol}},
            **options,
        ) as base_url,
        httpx.AsyncClient(timeout=30) as client,
    ):
        world = Scene(base_url, client)
        # The first reader builds it, which takes a third of a second.
        world.api = (await client.get(f"{base_url.removesuffix('/v1')}/openapi.json")).json()
        # The first request loads a tokenizer. What other tests have left in memory is none of the collector's business.
        for path, field in (
            ("/chat/completions", b'"messages":[%b]' % MESSAGE),
            ("/responses", b'"input":"bystander"'),
        ):
            await world.send("POST", path, b'{"model":"m",%b}' % field)
        gc.collect()
        gc.freeze()
        tasks = [asyncio.ensure_future(one) for one in (world.stand_by(), world.watch_loop())]
        try:
            yield world
            await asyncio.sleep(0.05)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert not world.found, "\n".join(map(repr, world.found))
        assert world.bystander_turns >= 3


def hostile_provider(answers: list[Reply], protocol: str = "openai") -> ScriptedUpstream:
    """Answers the bystander properly, and all others by the list."""

    def answer(body: dict[str, Any]) -> Reply:
        is_bystander = "bystander" in json.dumps(body.get("messages", body.get("input")))
        if is_bystander or not answers:
            usual = {key.encode(): one for key, one in USUAL_RESPONSE.items()}
            return completion() if protocol == "openai" else Reply(RESPONSE % usual)
        return answers.pop(0)

    return ScriptedUpstream(default=answer)


async def test_no_value_of_a_client_harms_anybody(database: str) -> None:
    async with scene(database, hostile_provider([])) as world:
        for param, template in CHAT_NAMES.items():
            for name, value in VALUES.items():
                world.label = (param, name)
                if param == "metadata" and name not in TEXTS:
                    continue
                answer = await world.send("POST", "/chat/completions", b"{%b}" % template.replace(b"%b", value))
                if name in REFUSED_NAMES:
                    assert answer.status_code == 400, world.label
                    assert len(answer.content) < 1000, world.label
                    if name != "surrogate":
                        assert answer.json()["error"]["param"].startswith(param), world.label
                elif name in ("one", "limit") and "conversation" not in param and "policy" not in param:
                    assert answer.status_code == 200, (world.label, answer.text[:300])
        for path, templates in (("/chat/completions", CHAT_OTHERS), ("/responses", RESPONSES)):
            for template in templates:
                for name, value in VALUES.items():
                    world.label = (path, template[-40:], name)
                    await world.send("POST", path, b"{%b}" % template.replace(b"%b", value))
        for header in HEADERS:
            for text in HEADER_VALUES:
                world.label = (header, text[:20])
                body = b'{"model":"m","messages":[%b]}' % MESSAGE
                await world.send("POST", "/chat/completions", body, {header: text})
        await world.check_numbers()


async def test_no_value_of_a_client_harms_anybody_at_any_other_endpoint(database: str) -> None:
    async with scene(database, hostile_provider([]), auth={"operator_token": OPERATOR_TOKEN}) as world:
        await world.send("POST", "/chat/completions", b'{"model":"m","messages":[%b]}' % MESSAGE, headers=OPERATOR)
        (known, *_) = (await world.send("GET", "/conversations", headers=OPERATOR)).json()["data"]
        for path, operations in world.api["paths"].items():
            for method, operation in operations.items():
                if path.startswith("/v1/") and (method, path) != ("post", "/v1/chat/completions"):
                    for place, body in _endpoint_requests(world.api, path, operation, known["id"]):
                        world.label = (method, place[:60], (body or b"")[:60])
                        await world.send(method.upper(), place, body, OPERATOR)
        await world.check_numbers()


def _endpoint_requests(api: Any, path: str, operation: Any, conversation_id: str) -> Iterator[tuple[str, bytes | None]]:
    """Yields path and body: with each value in each place of the path, of the query and of the body."""
    path = path.removeprefix("/v1")
    usual = path.replace("{conversation_id}", conversation_id).replace("{", "").replace("}", "")
    for parameter in operation.get("parameters", ()):
        for text in PATH_VALUES:
            if parameter["in"] == "path":
                name = parameter["name"]
                place = path.replace(f"{{{name}}}", text).replace("{conversation_id}", conversation_id)
                yield place.replace("{", "").replace("}", ""), None
            elif parameter["in"] == "query":
                yield f"{usual}?{parameter['name']}={text}", None
    if "requestBody" in operation:
        schema = next(iter(operation["requestBody"]["content"].values())).get("schema", {})
        if "$ref" in schema:
            schema = api["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        for name in schema.get("properties", {}):
            for value in VALUES.values():
                yield usual, b'{"%b":%b}' % (name.encode(), value)


WHOLE: Final = (
    b'{"id":%(id)b,"object":"chat.completion","created":%(created)b,"model":%(model)b,"choices":[{"index":%(index)b,'
    b'"message":{"role":"assistant","content":%(content)b%(more)b},"finish_reason":%(finish)b}],'
    b'"usage":{"prompt_tokens":%(prompt)b,"completion_tokens":%(output)b,"x":%(x)b,'
    b'"prompt_tokens_details":{"cached_tokens":%(cached)b}}}'
)
CHUNK: Final = WHOLE.replace(b'"message"', b'"delta"').replace(b'completion"', b'completion.chunk"')
USUAL: Final[dict[str, bytes]] = {
    "id": b'"i"',
    "created": b"1",
    "model": b'"m"',
    "index": b"0",
    "content": b'"Fine."',
    "more": b"",
    "finish": b'"stop"',
    "prompt": b"10",
    "output": b"2",
    "x": b"3",
    "cached": b"0",
}
MORE: Final = (
    b',"tool_calls":[{"index":%b,"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]',
    b',"tool_calls":[{"index":0,"id":%b,"type":"function","function":{"name":"f","arguments":"{}"}}]',
    b',"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":%b,"arguments":"{}"}}]',
    b',"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":%b}}]',
    b',"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":"{}"},"x":%b}]',
    *(b',"annotations":[%b]', b',"x":%b', b',"reasoning":%b', b',"refusal":%b'),
)
ERROR: Final = b'{"error":{"message":%(message)b,"type":%(type)b,"param":%(param)b,"code":%(code)b}}'


def _provider_answers(*, streamed: bool) -> Iterator[tuple[Any, Reply]]:
    template = CHUNK if streamed else WHOLE
    for field in USUAL:
        for name, value in VALUES.items():
            for more in MORE if field == "more" else (b"%b",):
                body = template % {
                    key.encode(): one for key, one in (USUAL | {field: more.replace(b"%b", value)}).items()
                }
                pieces = [b"data: %b\n\n" % body, DONE] if streamed else None
                yield (field, more[:40], name), Reply(body, pieces=pieces)
    for field in ("message", "type", "param", "code"):
        for name, value in VALUES.items():
            usual = dict.fromkeys((b"message", b"type", b"param", b"code"), b'"e"') | {field.encode(): value}
            yield ("error", field, name), Reply(ERROR % usual, 400)
    for header in ("retry-after", "x-request-id", "openai-processing-ms", "x-ratelimit-remaining-tokens"):
        for text in HEADER_VALUES:
            for status in (200, 429):
                body = template % {key.encode(): one for key, one in USUAL.items()}
                pieces = [b"data: %b\n\n" % body, DONE] if streamed and status == 200 else None
                headers = {header: text.replace("\x9b", "~")}
                yield ("header", header, text[:20]), Reply(body, status, headers, pieces=pieces)


RESPONSE: Final = (
    b'{"id":%(id)b,"object":"response","created_at":%(created)b,"status":"completed","model":%(model)b,"output":['
    b'{"type":"message","id":%(item)b,"role":"assistant","status":"completed","content":[{"type":"output_text",'
    b'"text":%(content)b,"annotations":[%(note)b],"logprobs":[]}]},{"type":"reasoning","id":"r","summary":[],"x":%(x)b},'
    b'{"type":"function_call","id":"fc","call_id":%(call)b,"name":%(name)b,"arguments":%(arguments)b}],'
    b'"usage":{"input_tokens":%(prompt)b,"output_tokens":%(output)b,"total_tokens":%(x)b,'
    b'"input_tokens_details":{"cached_tokens":%(cached)b},"output_tokens_details":{"reasoning_tokens":%(x)b}}}'
)
USUAL_RESPONSE: Final[dict[str, bytes]] = {
    **{name: USUAL[name] for name in ("created", "model", "content", "prompt", "output", "cached", "x")},
    "id": b'"resp_1"',
    "item": b'"msg_1"',
    "note": b'{"type":"a"}',
    "call": b'"c"',
    "name": b'"f"',
    "arguments": b'"{}"',
}


def _response_answers(*, streamed: bool) -> Iterator[tuple[Any, Reply]]:
    for field in USUAL_RESPONSE:
        for name, value in VALUES.items():
            body = RESPONSE % {key.encode(): one for key, one in (USUAL_RESPONSE | {field: value}).items()}
            event = b'data: {"type":"response.completed","sequence_number":%b,"response":%b}\n\n' % (
                value if field == "x" else b"1",
                body,
            )
            yield (field, name), Reply(body, pieces=[event] if streamed else None)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ["/chat/completions", "/responses"])
@pytest.mark.parametrize("protocol", ["openai", "responses"])
async def test_no_value_of_a_provider_harms_anybody(database: str, protocol: str, path: str, streamed: bool) -> None:
    answers: list[Reply] = []
    ask = {"model": "m", "stream": streamed} | (
        {"input": "Hi."} if path == "/responses" else {"messages": [{"role": "user", "content": "Hi."}]}
    )
    readable_by_none = {"NaN", "1e400", "10^400", "surrogate", "deep", "deeper"}
    listed = _provider_answers if protocol == "openai" else _response_answers
    async with scene(database, hostile_provider(answers, protocol), protocol) as world:
        for label, reply in listed(streamed=streamed):
            answers[:], world.label = [reply], label
            try:
                answer = await world.client.post(
                    f"{world.base_url}{path}", json=ask, headers={"authorization": "Bearer sk-hostile"}
                )
            except httpx.TransportError as error:
                world.found.append((label, repr(error)))
                continue
            # What no reader of JSON takes is the provider's fault, and said to be.
            allowed = {reply.status, 502} if label[-1] in readable_by_none else {reply.status}
            if answer.status_code not in allowed or any(code in answer.content for code in OUR_FAULTS):
                world.found.append((label, answer.status_code, answer.text[:300]))
        await world.check_numbers()


async def test_no_value_in_a_list_of_models_harms_anybody(database: str) -> None:
    upstream = hostile_provider([])
    async with scene(database, upstream) as world:
        for field in ("id", "context_window", "created", "x"):
            for name, value in VALUES.items():
                world.label = (field, name)
                entry = {"id": b'"m1"', "object": b'"model"', field: value}
                listed = b",".join(b'"%b":%b' % (key.encode(), text) for key, text in entry.items())
                upstream.models = Reply(b'{"object":"list","data":[{%b},{"id":"m2"}]}' % listed)
                answer = await world.send("GET", "/models")
                assert field != "id" or len(answer.content) < MAX_METRICS_BYTES, world.label
        await world.check_numbers()
