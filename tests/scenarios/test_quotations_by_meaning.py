"""A question in other words than those of its answer finds it, if a policy names an embedding model."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.live import Reply, ScriptedUpstream, completion, gateway, serving

FACT = "The boiler has leaked since Tuesday."
QUESTION = "Which craftsman do I need?"
SENSES = (("boiler", "craftsman"), ("weather", "rain"))
TURNS = 30


def embed(texts: list[str]) -> Reply:
    """Vectors that say which sense a text has."""
    vectors = [[0.01, *(float(any(word in text for word in sense)) for sense in SENSES)] for text in texts]
    data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)]
    return Reply({"object": "list", "data": data, "model": "small"})


def answer(body: dict[str, Any]) -> Reply:
    return embed(body["input"]) if "input" in body else completion("All right.")


def content_of(upstream: ScriptedUpstream) -> str:
    """What the model saw last."""
    asked = [one for one, path in zip(upstream.requests, upstream.paths, strict=True) if path.endswith("completions")]
    return str(asked[-1]["messages"])


@pytest.mark.parametrize("is_configured", [True, False])
async def test_what_is_asked_for_in_other_words_is_quoted(is_configured: bool) -> None:
    upstream = ScriptedUpstream(default=answer)
    embeddings = {"provider": "upstream", "model": "small"} if is_configured else {}
    # The fact is the user's: user text would show it without any search.
    policy = {"recall_embeddings": embeddings, "user_text_ratio": 0}
    async with (
        serving(upstream, lifespan="off") as address,
        gateway(address, window=2_000, policies={"additive": policy}) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):

        async def ask(text: str) -> None:
            body = {"model": "m", "messages": [{"role": "user", "content": text}]}
            reply = await client.post("/chat/completions", json=body, headers={"X-Conversation-Id": "talk"})
            assert reply.status_code == 200, reply.text

        await ask(FACT)
        for turn in range(TURNS):
            await ask(f"Note {turn}: " + " ".join(f"item{turn}n{word}" for word in range(20)))
        await ask("Why does it rain?")
        await ask(QUESTION)
    assert (FACT in content_of(upstream)) is is_configured
    assert any(path.endswith("/embeddings") for path in upstream.paths) is is_configured
