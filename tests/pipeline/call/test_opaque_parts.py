"""Encrypted reasoning goes to the provider and model that it comes from, and to no other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.live import Reply
from tests.support.responses_upstream import ENCRYPTED_INCLUDE, ResponsesUpstream, reasoning_item, respond
from tests.support.responses_world import ResponsesWorld, message, responses_world

MODELS = {
    "m": {"deployments": [{"provider": "upstream"}, {"provider": "second"}], "context_window": 8192},
    "n": {"provider": "upstream", "context_window": 8192},
}
DOWN = Reply({"error": {"message": "Down.", "code": "server_error"}}, 503)
WAYS = pytest.mark.parametrize("way", ["previous_response_id", "resent", "resent without content"])
EITHER = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
SEALED = "gAAAA"


def thinking(*words: str) -> ResponsesUpstream:
    return ResponsesUpstream(*(respond(reasoning_item("Hm."), one) for one in words))


class Talk:
    """A client that continues one conversation in one of the ways."""

    def __init__(self, w: ResponsesWorld, way: str, *, stream: bool) -> None:
        self._w, self._way, self._stream = w, way, stream
        self._history: list[dict[str, Any]] = []
        self._last_id: str | None = None

    async def say(self, text: str, model: str = "m") -> dict[str, Any]:
        fields: dict[str, Any] = {"stream": self._stream, "model": model}
        self._history.append(message(text))
        given = self._history
        if self._way == "resent":
            fields["include"] = [ENCRYPTED_INCLUDE]
        elif self._way == "previous_response_id" and self._last_id is not None:
            given, fields["previous_response_id"] = [message(text)], self._last_id
        answer = await self._w.respond_either(given, **fields)
        self._history += answer["output"]
        self._last_id = answer["id"]
        return answer


def warnings(answer: dict[str, Any]) -> str:
    return " ".join(answer["context"]["warnings"])


@EITHER
@WAYS
async def test_it_goes_back_to_its_own_model(way: str, stream: bool) -> None:
    upstream = thinking("One.", "Two.", "Three.")
    async with responses_world(upstream, thinking(), models=MODELS) as w:
        talk = Talk(w, way, stream=stream)
        answers = [await talk.say(text) for text in ("a", "b", "c")]
        assert len(w.conversations()) == 1
    assert upstream.refusals == []
    assert [json.dumps(body["input"]).count(SEALED) for body in upstream.requests] == [0, 1, 2]
    assert [warnings(answer) for answer in answers] == ["", "", ""]


@EITHER
@WAYS
async def test_it_does_not_go_to_a_fallback_nor_to_another_model(way: str, stream: bool) -> None:
    upstream, second = thinking("One.", "Two."), ResponsesUpstream()
    async with responses_world(upstream, second, models=MODELS, retries={"attempts": 1}) as w:
        talk = Talk(w, way, stream=stream)
        await talk.say("a")
        upstream.replies = [DOWN]
        fallback = await talk.say("b")
        assert "encrypted reasoning" in warnings(fallback)
        assert "rs_" not in json.dumps(second.requests[0]["input"])
        # The fallback brought no reasoning of its own, so the first model gets its own back.
        again = await talk.say("c")
        assert warnings(again) == ""
        assert json.dumps(upstream.requests[-1]["input"]).count(SEALED) == 1
        other = await talk.say("d", model="n")
        assert "encrypted reasoning" in warnings(other)
        assert SEALED not in json.dumps(upstream.requests[-1]["input"])
    assert upstream.refusals + second.refusals == []


@EITHER
@WAYS
async def test_each_reasoning_goes_to_its_own_origin(way: str, stream: bool) -> None:
    other = f"{SEALED}other"
    upstream = thinking("One.", "Two.")
    second = ResponsesUpstream(
        respond({**reasoning_item("Hm."), "id": "rs_other", "encrypted_content": other}, "Other.")
    )
    second.issued_secrets.add(other)
    async with responses_world(upstream, second, models=MODELS, retries={"attempts": 1}) as w:
        talk = Talk(w, way, stream=stream)
        await talk.say("a")
        (own,) = upstream.issued_secrets
        upstream.replies = [DOWN]
        await talk.say("b")
        last = await talk.say("c")
        assert "encrypted reasoning" in warnings(last)
        sent = json.dumps(upstream.requests[-1]["input"])
        assert own in sent
        assert other not in sent
        upstream.replies = [DOWN]
        await talk.say("d")
        sent = json.dumps(second.requests[-1]["input"])
        assert other in sent
        assert sent.count(SEALED) == 1
    assert upstream.refusals + second.refusals == []


@EITHER
async def test_what_a_client_brings_goes_to_the_model_that_it_asks(stream: bool) -> None:
    upstream, second = thinking("One."), ResponsesUpstream()
    upstream.issued_secrets.add("brought")
    given = [
        message("a"),
        {"type": "reasoning", "id": "rs_0", "summary": [], "encrypted_content": "brought"},
        message("One.", "assistant"),
        message("b"),
    ]
    async with responses_world(upstream, second, models=MODELS, retries={"attempts": 1}) as w:
        await w.respond_either(given, stream=stream)
        assert "brought" in upstream.bodies[0].decode()
        upstream.replies = [DOWN]
        answer = await w.respond_either([*given[:-1], message("c")], stream=stream)
    assert "encrypted reasoning" in warnings(answer)
    assert "brought" not in second.bodies[0].decode()
    assert upstream.refusals + second.refusals == []
