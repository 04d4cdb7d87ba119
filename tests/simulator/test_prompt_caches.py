"""What the simulated providers read from their prompt caches, by each rule."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.simulator.options_and_faults import SimulatorOptions
from tests.simulator.counting import RoughCounter
from tests.support.messages_simulator import CachingSimulator
from tests.support.prompt_caches import CacheRule

LONG = "word " * 2000
EXPLICIT = {"mode": "explicit"}


class Clock:
    """Seconds, as set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def simulator(cache: CacheRule, clock: Clock | None = None) -> CachingSimulator:
    return CachingSimulator(
        cache, SimulatorOptions(), lambda _: RoughCounter(), clock=clock or Clock(), new_id=lambda: "1"
    )


async def call(server: CachingSimulator, path: str, **body: Any) -> tuple[int, Any]:
    response = await server.handle("POST", path, {}, orjson.dumps({"model": "sim-8k", **body}))
    return response.status, orjson.loads(b"".join([piece async for piece in response.pieces]))


async def chat(server: CachingSimulator, *contents: Any, **fields: Any) -> tuple[int, int, int]:
    """Prompt tokens, those read and those written; the messages are the user's."""
    messages = [{"role": "user", "content": content} for content in contents]
    status, body = await call(server, "/chat/completions", messages=messages, **fields)
    assert status == 200, body
    details = body["usage"]["prompt_tokens_details"]
    return body["usage"]["prompt_tokens"], details["cached_tokens"], details.get("cache_write_tokens", 0)


async def anthropic(server: CachingSimulator, *blocks: dict[str, Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": list(blocks)}]
    status, body = await call(server, "/messages", messages=messages, max_tokens=10)
    assert status == 200, body
    usage: dict[str, Any] = body["usage"]
    return usage


def part(text: str, **mark: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **mark}


def marked(text: str, **fields: Any) -> dict[str, Any]:
    return part(text, prompt_cache_breakpoint={**EXPLICIT, **fields})


async def test_a_prefix_cache_reads_steps_of_128_tokens_and_writes_for_nothing() -> None:
    server = simulator("prefix")
    prompt, *first = await chat(server, LONG)
    assert first == [0, 0]
    _, read, written = await chat(server, LONG + "more of it", "And?")
    assert (read % 128, written) == (0, 0)
    assert prompt - 256 <= read <= prompt
    assert await chat(server, "other " + LONG) == (prompt + 2, 0, 0)


async def test_a_short_prompt_is_never_cached() -> None:
    for rule in ("prefix", "breakpoints"):
        server = simulator(rule)
        await chat(server, "word " * 500)
        assert (await chat(server, "word " * 500))[1:] == (0, 0)


async def test_breakpoints_are_read_only_where_the_prompt_has_them_again() -> None:
    server = simulator("breakpoints")
    prompt, *first = await chat(server, LONG)
    assert first == [0, prompt]
    longer, *unmarked = await chat(server, LONG, "And?")
    assert unmarked == [0, longer]
    again, read, written = await chat(server, [marked(LONG)], "And what then?")
    assert read == prompt
    assert 0 < written <= again - read
    assert (await chat(server, LONG, "And?"))[1:] == (longer, 0)


async def test_explicit_mode_sets_no_breakpoint_at_the_end() -> None:
    server, options = simulator("breakpoints"), {"prompt_cache_options": EXPLICIT}
    assert (await chat(server, LONG, **options))[1:] == (0, 0)
    assert (await chat(server, LONG, **options))[1:] == (0, 0)


@pytest.mark.parametrize(
    ("rule", "mark", "code"),
    [
        ("prefix", EXPLICIT, "unknown_parameter"),
        ("breakpoints", {"mode": "implicit"}, "invalid_value"),
        ("breakpoints", {**EXPLICIT, "ttl": "1h"}, "invalid_value"),
    ],
)
async def test_what_openai_refuses_is_refused(rule: CacheRule, mark: dict[str, Any], code: str) -> None:
    messages = [{"role": "user", "content": [part("Hi", prompt_cache_breakpoint=mark)]}]
    status, body = await call(simulator(rule), "/chat/completions", messages=messages)
    assert (status, body["error"]["code"]) == (400, code)


async def test_options_of_breakpoints_are_unknown_to_older_models() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    status, body = await call(
        simulator("prefix"), "/chat/completions", messages=messages, prompt_cache_options=EXPLICIT
    )
    assert (status, body["error"]["param"]) == (400, "prompt_cache_options")


async def test_a_cache_is_kept_for_its_lifetime_since_it_was_read() -> None:
    clock = Clock()
    server = simulator("breakpoints", clock)
    await chat(server, [marked(LONG, ttl="12h")])
    prompt = (await chat(server, "x " + LONG))[0]
    for now, read in ((1700.0, prompt), (3400.0, prompt), (5300.0, 0)):
        clock.now = now
        assert (await chat(server, "x " + LONG))[1] == read
    assert (await chat(server, [marked(LONG, ttl="12h")]))[1] > 0


async def test_anthropics_marks_look_twenty_blocks_back() -> None:
    server, control = simulator("none"), {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    first = await anthropic(server, part(LONG, **control))
    assert first["cache_creation"]["ephemeral_1h_input_tokens"] == first["cache_creation_input_tokens"] > 0
    between = [part(f"{number}") for number in range(20)]
    assert (await anthropic(server, part(LONG), *between[1:], part("?", **control)))["cache_read_input_tokens"] > 0
    assert (await anthropic(server, part(LONG), *between, part("!", **control)))["cache_read_input_tokens"] == 0
    assert (await anthropic(server, part(LONG)))["cache_read_input_tokens"] == 0
