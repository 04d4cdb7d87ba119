"""The OpenAPI document is complete and true: requests made from it get the answers it describes."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import deque
from pathlib import Path
from typing import Any

import orjson
import pytest
from fastapi.routing import APIRoute, iter_route_contexts
from jsonschema_rs import Draft202012Validator

from app.api.openapi import EXAMPLES
from app.settings import load_settings
from tests.api.admin.test_metrics import told as metrics_of
from tests.live import create_test_app, serving
from tests.pipeline.call.test_failing_upstreams import ANSWERS, failing, keep_a_conversation

TESTS = Path(__file__).parents[1]
REPORT_CHARS = 20_000
ASKS_A_PROVIDER = "^/v1/(chat/completions|responses|models|models/.model.|conversations/.conversation_id./compact)$"
UNUSABLE = (
    *("hangs up", "hangs up in the head", "no HTTP", "only continue", "a body that is shorter than it says"),
    *("says nothing", "a length that is none", "chunks that are none", "empty", "half of JSON", "no JSON"),
    *("nested without end", "no choices", "choices that are none", "events of nothing", "events that are none"),
)
"""Of `ANSWERS`, those that a provider's failure is made of: none is an error of its own that would pass unchanged."""


def application() -> Any:
    """The gateway with the simulated model, over a store in memory."""
    return create_test_app(load_settings(environ={}, arguments={("database",): {"url": "memory://"}}))


async def check_generated_requests(address: str, folder: Path, *options: str) -> None:
    """Send requests made from the document of the gateway at `address`; fail with the report if an answer is wrong."""
    run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(TESTS / "schemathesis.toml")),
        *("run", f"{address}/openapi.json", *options, "--max-examples", "20", "--seed", "7"),
        *("--generation-database", "none", "--no-color"),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await run.communicate()
    told = output.decode(errors="replace")
    assert run.returncode == 0, told[-REPORT_CHARS:]
    assert "Tested" in told


@pytest.mark.timeout(300)
@pytest.mark.parametrize("phases", ["examples,coverage,fuzzing", "stateful"])
async def test_generated_requests_get_what_is_described(phases: str, tmp_path: Path) -> None:
    async with serving(application()) as address:
        await check_generated_requests(address, tmp_path, "--phases", phases)


@pytest.mark.timeout(300)
async def test_generated_requests_get_what_is_described_while_the_provider_fails(tmp_path: Path) -> None:
    async with failing() as (upstream, w):
        await keep_a_conversation(upstream, w)
        upstream.answers = deque(ANSWERS[name] for name in UNUSABLE)
        options = ["--phases", "coverage,fuzzing", "--include-path-regex", ASKS_A_PROVIDER]
        # That the provider fails is a server error; which ones there were is counted below.
        options += ["--exclude-checks", "not_a_server_error,positive_data_acceptance"]
        await check_generated_requests(w.base_url.removesuffix("/v1"), tmp_path, *options)
        seen = await metrics_of(w)
    assert seen("errors_total", code="upstream_unavailable") > 10
    assert seen("errors_total", code="internal_error") == 0
    assert seen("requests_total", code="500") == 0


def read_operations() -> dict[tuple[str, str], dict[str, Any]]:
    """The operations of the document, by method and path."""
    document = application().application.openapi()
    return {(method, path): operation for path, item in document["paths"].items() for method, operation in item.items()}


def test_every_tag_is_described_and_every_example_has_its_operation() -> None:
    operations = read_operations()
    bodies = {tuple(key.split(" ")) for key in orjson.loads(EXAMPLES.read_bytes())["bodies"]}
    assert {tag for operation in operations.values() for tag in operation["tags"]} == {
        tag["name"] for tag in application().application.openapi()["tags"]
    }
    assert bodies <= operations.keys()
    with_bodies = {key for key, operation in operations.items() if "requestBody" in operation}
    # The one without: it takes pairs that only the application knows.
    assert with_bodies - bodies == {("post", "/v1/chat/completions/{completion_id}")}


def test_every_route_of_the_application_is_described_in_a_sentence() -> None:
    routes = {
        (method.lower(), (context.path or "").replace(":path}", "}"))
        for context in iter_route_contexts(application().application.routes)
        if isinstance(context.original_route, APIRoute) and context.include_in_schema
        for method in context.methods or ()
    }
    operations = read_operations()
    assert routes == operations.keys()
    assert {("post", "/v1/chat/completions"), ("post", "/v1/responses"), ("get", "/v1/models/{model}")} <= routes
    summaries = [operation["summary"] for operation in operations.values()]
    assert all(3 < len(summary) < 80 and summary[0].isupper() and "\n" not in summary for summary in summaries)
    assert all("HTTPValidationError" not in str(operation) for operation in operations.values())


def test_every_example_of_a_body_is_valid_by_its_schema() -> None:
    document = application().application.openapi()
    count = 0
    for path, item in document["paths"].items():
        for operation in item.values():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            validator = Draft202012Validator({**content.get("schema", {}), "components": document["components"]})
            for example in content.get("examples", {}).values():
                assert list(validator.iter_errors(example["value"])) == [], path
                count += 1
    assert count > 15


@pytest.mark.parametrize(
    ("path", "request_name", "answer_name", "fields"),
    [
        ("/v1/chat/completions", "ChatCompletionRequest", "ChatCompletion", {"model", "messages", "stream", "context"}),
        ("/v1/responses", "ResponsesRequest", "ModelResponse", {"model", "input", "stream", "previous_response_id"}),
    ],
)
def test_model_calls_are_described_with_their_bodies_and_headers(
    path: str, request_name: str, answer_name: str, fields: set[str]
) -> None:
    document = application().application.openapi()
    operation, schemas = document["paths"][path]["post"], document["components"]["schemas"]
    reference = {"$ref": f"#/components/schemas/{request_name}"}
    assert operation["requestBody"] == {"required": True, "content": operation["requestBody"]["content"]}
    assert operation["requestBody"]["content"]["application/json"]["schema"] == reference
    answer = operation["responses"]["200"]["content"]
    assert answer["application/json"]["schema"] == {"$ref": f"#/components/schemas/{answer_name}"}
    assert "text/event-stream" in answer
    assert fields <= schemas[request_name]["properties"].keys()
    assert {"context_status", "context", "id"} <= set(schemas[answer_name]["required"])
    assert {one["name"]: one["in"] for one in operation["parameters"]} == dict.fromkeys(
        (
            *("X-Conversation-Id", "X-Context-Mode", "X-Context-Policy", "X-Context-Detail", "X-Context-Events"),
            "Idempotency-Key",
        ),
        "header",
    )
    assert {"400", "401", "403", "404", "409", "413", "422", "502", "503", "504", "default"} < set(
        operation["responses"]
    )


async def test_the_samples_of_code_for_python_run() -> None:
    descriptions = [operation.get("description", "") for operation in read_operations().values()]
    samples = [code for text in descriptions for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]
    assert len(samples) == 3
    async with serving(application()) as address:
        for sample in samples:
            code = sample.replace("http://127.0.0.1:8000", address)
            ran = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
            output, _ = await ran.communicate()
            assert (ran.returncode, bool(output.strip())) == (0, True)
