"""Anthropic's client for JavaScript against a gateway, with providers of all three protocols."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest

from tests.live import DONE, Reply, ScriptedUpstream, chunk, completion, stream, usage_chunk
from tests.node.packages import HERE, node_with_packages
from tests.support.messages_world import Block, MessagesUpstream, messages_world, text, thinking, tool_use
from tests.support.responses_upstream import ResponsesUpstream, ScriptedResponse, function_call_item, respond

FOLDER = HERE / "anthropic"
SCRIPT_SECONDS = 60
ARGUMENTS = '{"at":"gate"}'


@pytest.fixture(scope="session")
def node() -> str:
    return node_with_packages(FOLDER)


@pytest.mark.parametrize("provider", ["anthropic", "responses", "openai"])
async def test_anthropics_client_for_javascript_works(provider: str, node: str) -> None:
    async with messages_world(make_upstream(provider)) as w:
        process = await asyncio.create_subprocess_exec(
            node,
            "messages.mjs",
            cwd=FOLDER,
            env={**os.environ, "GATEWAY_URL": w.base_url.removesuffix("/v1")},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), SCRIPT_SECONDS)
    assert process.returncode == 0, output.decode()


def make_upstream(provider: str) -> ScriptedUpstream:
    """An upstream that calls the tool once in each conversation that offers it."""
    if provider == "anthropic":
        return MessagesUpstream(default=answer_as_anthropic)
    return (
        ResponsesUpstream(default=answer_as_response) if provider == "responses" else ScriptedUpstream(default=answer)
    )


def choose(body: dict[str, Any]) -> str | None:
    """What the model says; None for a call."""
    if not body.get("tools"):
        return "Fine."
    return "It is open." if '"open"' in json.dumps(body) else None


def answer_as_anthropic(body: dict[str, Any]) -> list[Block]:
    said = choose(body)
    return [thinking(), tool_use(at="gate")] if said is None else [text(said)]


def answer_as_response(body: dict[str, Any]) -> ScriptedResponse:
    said = choose(body)
    return respond(function_call_item("look", ARGUMENTS, "toolu_1") if said is None else said)


def answer(body: dict[str, Any]) -> Reply:
    said = choose(body)
    if said is not None:
        return stream(said) if body.get("stream") else completion(said)
    call = {"id": "toolu_1", "type": "function", "function": {"name": "look", "arguments": ARGUMENTS}}
    if not body.get("stream"):
        return completion(None, tool_calls=[call])
    delta = {"role": "assistant", "content": None, "tool_calls": [{"index": 0, **call}]}
    return Reply(pieces=[chunk(delta), chunk({}, "tool_calls"), usage_chunk(), DONE])
