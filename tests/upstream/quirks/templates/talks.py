"""Generated conversations that OpenAI accepts and strict providers do not.

Several system messages anywhere, consecutive users and assistants, parallel calls, reused and empty ids, interrupted
tool loops, nulls and vendors' properties.

Each text is a word of its own, so that a lost, doubled or moved one is seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Message = dict[str, Any]

EXTRAS: dict[str, Any] = {
    "refusal": None,
    "annotations": [],
    "audio": None,
    "function_call": None,
    "tool_calls": None,
    "reasoning": "r",
    "reasoning_details": [{"type": "reasoning.encrypted", "data": "Zm9v/+=", "n": 1.0}],
    "provider_specific_fields": {"x": 1},
    "name": "ann",
}
IDS = ("call_1", "call_1", "call_2", "", "abcdefghi", "toolu_01-_x")


@st.composite
def talks(draw: st.DrawFn, *, tools: bool = True, reasons: bool = False) -> list[Message]:
    """Messages; with `reasons` every assistant message has a `reasoning_content`."""
    words = (f"w{number}." for number in itertools.count())
    kinds = ["system", "developer", "user", "user", "assistant", "empty", "refusal"] + ["round"] * 3 * tools
    messages: list[Message] = []
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=9)):
        messages.extend(_said(draw, kind, words, reasons=reasons))
    return [*messages, {"role": "user", "content": next(words)}]


def _said(draw: st.DrawFn, kind: str, words: Iterator[str], *, reasons: bool) -> Iterator[Message]:
    if kind in ("system", "developer", "user"):
        yield {"role": kind, "content": _content(draw, words)}
        return
    answer: Message = {"role": "assistant", "content": None}
    extras = draw(st.lists(st.sampled_from(sorted(EXTRAS)), max_size=3))
    answer.update({name: EXTRAS[name] for name in extras})
    if kind == "assistant" or (kind == "round" and draw(st.booleans())):
        answer["content"] = _content(draw, words)
    elif kind == "refusal":
        answer["refusal"] = next(words)
    else:
        answer["content"] = draw(st.sampled_from([None, "", []]))
    if reasons:
        answer["reasoning_content"] = f"thought {next(words)}"
    if kind != "round":
        yield answer
        return
    ids = draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=3, unique=True))
    answer["tool_calls"] = [_call(call_id, place) for place, call_id in enumerate(ids)]
    yield answer
    for call_id in ids:
        yield {"role": "tool", "tool_call_id": call_id, "content": next(words)}


def _call(call_id: str, place: int) -> Message:
    called = {"name": f"f{place}", "arguments": "{}"}
    return {"id": call_id, "type": "function", "function": called, "extra_content": {"google": {"signature": "s/+="}}}


def _content(draw: st.DrawFn, words: Iterator[str]) -> Any:
    texts = [next(words) for _ in range(draw(st.integers(1, 2)))]
    if len(texts) == 1 and draw(st.booleans()):
        return texts[0]
    return [{"type": "text", "text": text} for text in texts]
