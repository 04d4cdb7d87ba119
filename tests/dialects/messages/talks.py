"""Draws talks for property tests: the same talk as chat messages and as messages of the Messages API."""

from __future__ import annotations

import base64
from typing import Any

import orjson
from hypothesis import strategies as st

from app.dialects.messages.request import split_messages

TEXTS = st.text(alphabet="ab é\n{\"'<", min_size=1, max_size=12).filter(lambda text: bool(text.strip()))
INPUTS = st.sampled_from([{}, {"city": "Paris"}, {"n": 1, "long": "x" * 300}])
Messages = list[dict[str, Any]]
Talk = tuple[Messages, Messages]


def split(messages: Messages, *, may_begin_with_result: bool = False) -> list[bytes]:
    """Returns messages of the API as the log has them."""
    return split_messages([orjson.dumps(one) for one in messages], may_begin_with_result=may_begin_with_result)[0]


def make_part(kind: str, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    data = base64.b64encode(text.encode()).decode()
    if kind == "image":
        source = {"type": "base64", "media_type": "image/png", "data": data}
        chat = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return chat, {"type": "image", "source": source}
    if kind == "link":
        url = f"https://images.test/{data}"
        return {"type": "image_url", "image_url": {"url": url}}, {
            "type": "image",
            "source": {"type": "url", "url": url},
        }
    if kind == "file":
        source = {"type": "base64", "media_type": "application/pdf", "data": data}
        chat = {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{data}"}}
        return chat, {"type": "document", "source": source, "title": "a.pdf"}
    return {"type": "text", "text": text}, {"type": "text", "text": text}


@st.composite
def spoken(draw: st.DrawFn) -> Talk:
    if draw(st.booleans()):
        text = draw(TEXTS)
        return [{"role": "user", "content": text}], [{"role": "user", "content": text}]
    kinds = st.sampled_from(["text", "image", "link", "file"])
    parts = [make_part(*one) for one in draw(st.lists(st.tuples(kinds, TEXTS), min_size=2, max_size=3))]
    return [{"role": "user", "content": [chat for chat, _ in parts]}], [
        {"role": "user", "content": [block for _, block in parts]}
    ]


@st.composite
def answered(draw: st.DrawFn) -> Talk:
    """An answer of a text and calls, and the results of the calls."""
    calls = draw(st.lists(st.tuples(st.uuids(), INPUTS, TEXTS), max_size=3, unique_by=lambda one: one[0]))
    text = draw(TEXTS) if not calls or draw(st.booleans()) else None
    chat: Messages = [{"role": "assistant", "content": text}]
    blocks: Messages = [] if text is None else [{"type": "text", "text": text}]
    results: Messages = []
    for number, call_input, result in calls:
        call_id = f"toolu_{number.hex[:12]}"
        function = {"name": "f", "arguments": orjson.dumps(call_input).decode()}
        chat[0].setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})
        blocks.append({"type": "tool_use", "id": call_id, "name": "f", "input": call_input})
        chat.append({"role": "tool", "tool_call_id": call_id, "content": result})
        results.append({"type": "tool_result", "tool_use_id": call_id, "content": [{"type": "text", "text": result}]})
    answer = {"role": "assistant", "content": blocks}
    return chat, [answer, {"role": "user", "content": results}] if results else [answer]


def join_turns(turns: list[tuple[Talk, Talk]]) -> Talk:
    """Joins turns: what the user says beside results stands in the message of the results."""
    chat: Messages = []
    messages: Messages = []
    for (asked, asked_blocks), (said, said_blocks) in turns:
        chat += [*asked, *said]
        if messages and messages[-1]["role"] == "user":
            content = asked_blocks[0]["content"]
            messages[-1]["content"] += [{"type": "text", "text": content}] if isinstance(content, str) else content
        else:
            messages += asked_blocks
        messages += said_blocks
    return chat, messages


TALKS = st.lists(st.tuples(spoken(), answered()), min_size=1, max_size=4).map(join_turns)
"""Talks of which both protocols express everything."""
