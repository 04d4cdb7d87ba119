"""A capsule goes from protocol to protocol, provider to provider, replica to replica, and to another gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.live import ScriptedUpstream, completion, gateway, serving
from tests.support.messages_world import MessagesUpstream, text
from tests.support.responses_upstream import ResponsesUpstream, respond
from tests.support.responses_world import message

KEY: Final = "ab" * 32
FACT: Final = "The courier is called Ada Quince."
RULE: Final = "Never write the courier's name in full."
SUMMARY: Final = f"They spoke of deliveries. {FACT}"


def is_summary(body: dict[str, Any]) -> bool:
    return "material to be summarized" in json.dumps(body)


def say(body: dict[str, Any]) -> str:
    return SUMMARY if is_summary(body) else "Fine."


class Upstreams:
    """A provider of each protocol; a model is named after its provider."""

    def __init__(self) -> None:
        self.by_name = {
            "chat": ScriptedUpstream(default=lambda body: completion(say(body))),
            "responses": ResponsesUpstream(default=lambda body: respond(say(body))),
            "messages": MessagesUpstream(default=lambda body: [text(say(body))]),
        }

    def last_view(self, name: str) -> str:
        return json.dumps([body for body in self.by_name[name].requests if not is_summary(body)][-1])

    @asynccontextmanager
    async def gateways(self, *databases: str) -> AsyncIterator[list[str]]:
        """A gateway for each database."""
        async with AsyncExitStack() as stack:
            providers: dict[str, Any] = {}
            for name, upstream in self.by_name.items():
                address = await stack.enter_async_context(serving(upstream, lifespan="off"))
                protocol = {"chat": "openai", "responses": "responses", "messages": "anthropic"}[name]
                base_url = address if protocol == "anthropic" else f"{address}/v1"
                providers[name] = {"base_url": base_url, "api_key": "sk-up", "protocol": protocol}
            yield [
                await stack.enter_async_context(
                    gateway(
                        "",
                        database=database,
                        providers=providers,
                        models={name: {"provider": name, "context_window": 8192} for name in providers},
                        compaction={"capsule_key": [KEY]},
                        auth={"mode": "open", "pepper": "a pepper of twenty-odd"},
                    )
                )
                for database in databases
            ]


async def post(address: str, path: str, body: dict[str, Any]) -> Any:
    headers = {"authorization": "Bearer sk-one", "anthropic-version": "2023-06-01"}
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(f"{address}/{path}", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def talk() -> list[dict[str, Any]]:
    said = [message(RULE), message(FACT, "assistant")]
    for turn in range(12):
        said.append(message(f"Question {turn}? " + f"ask{turn} " * 120))
        said.append(message(f"Fine {turn}. " + f"word{turn} " * 120, "assistant"))
    return said


@pytest.mark.timeout(120)
async def test_a_compaction_is_continued_everywhere(tmp_path: Path) -> None:
    upstreams, shared = Upstreams(), f"sqlite:///{tmp_path}/shared.db"
    async with upstreams.gateways(shared, shared, "memory://") as (first, second, elsewhere):
        trigger = {"type": "compaction_trigger"}
        compacted = await post(first, "responses", {"model": "responses", "input": [*talk(), trigger]})
        sealed = compacted["output"][0]["encrypted_content"]

        block = {"type": "compaction", "content": None, "signature": sealed}
        asked = [{"role": "assistant", "content": [block]}, {"role": "user", "content": "By messages?"}]
        answered = await post(second, "messages", {"model": "messages", "max_tokens": 99, "messages": asked})
        assert answered["conversation_id"] == compacted["conversation_id"]
        assert answered["context_status"] == "summarized"
        view = upstreams.last_view("messages")
        assert "Ada Quince" in view
        assert "word1 word1" not in view

        part = {"type": "compaction", "encrypted_content": sealed}
        chat = [
            {"role": "assistant", "content": [part]},
            {"role": "user", "content": "By messages?"},
            {"role": "assistant", "content": answered["content"][0]["text"]},
            {"role": "user", "content": "By chat?"},
        ]
        continued = await post(first, "chat/completions", {"model": "chat", "messages": chat})
        assert continued["conversation_id"] == compacted["conversation_id"]
        view = upstreams.last_view("chat")
        assert "Ada Quince" in view
        assert "By messages?" in view
        assert "word1 word1" not in view

        alone = await post(elsewhere, "chat/completions", {"model": "chat", "messages": chat})
        assert alone["conversation_id"] != compacted["conversation_id"]
        view = upstreams.last_view("chat")
        for kept in ("Ada Quince", RULE, "Question 11?", "By messages?", "By chat?"):
            assert kept in view, kept
