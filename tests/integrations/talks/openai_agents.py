"""Conversations through the Agents SDK for Python, as its defaults send them.

Takes one argument, a JSON object: `base_url`, `model`, `prompts`, and `talks`, a list of `{"key", "stream", "state"}`.
The state is `history` (the SDK resends everything), `compacted` (it compacts what it resends every few turns, by
`POST /v1/responses/compact`), `previous_response_id` or `conversation`. Prints the final answers
to the prompts of each talk, a JSON array of arrays.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from agents import (  # type: ignore[import-not-found]  # it has an environment of its own
    Agent,
    OpenAIResponsesCompactionSession,
    Runner,
    SQLiteSession,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

COMPACTED_ITEMS = 3
"""After so many items of answers, the history is compacted."""


@function_tool  # type: ignore[untyped-decorator]
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"-4 degrees in {city}"


async def talk(base_url: str, model: str, prompts: list[str], key: str, stream: bool, state: str) -> list[str]:
    client = AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0)
    set_default_openai_client(client)
    agent = Agent(name="Clerk", instructions="Answer briefly.", model=model, tools=[get_weather])
    options: dict[str, Any] = {}
    if state == "history":
        options["session"] = SQLiteSession("talk")
    elif state == "compacted":
        session = OpenAIResponsesCompactionSession(
            "talk",
            SQLiteSession("talk"),
            client=client,
            should_trigger_compaction=lambda context: len(context["compaction_candidate_items"]) >= COMPACTED_ITEMS,
        )
        session.model = model  # the session takes OpenAI's names only
        options["session"] = session
    elif state == "conversation":
        options["conversation_id"] = (await client.conversations.create()).id
    said = []
    for prompt in prompts:
        if stream:
            run: Any = Runner.run_streamed(agent, prompt, **options)
            async for _ in run.stream_events():
                pass
        else:
            run = await Runner.run(agent, prompt, **options)
        said.append(run.final_output)
        if state == "previous_response_id":
            options["previous_response_id"] = run.last_response_id
    if state == "compacted":
        assert any(item.get("type") == "compaction" for item in await options["session"].get_items())
    return said


async def main(talks: list[dict[str, Any]], **options: Any) -> None:
    set_tracing_disabled(True)
    print(json.dumps([await talk(**options, **one) for one in talks]))


asyncio.run(main(**json.loads(sys.argv[1])))
