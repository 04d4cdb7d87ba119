"""Draws talks for property tests: the same talk as chat messages and as items."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

TEXTS = st.text(alphabet="ab é\n{\"'<", min_size=1, max_size=12).filter(lambda text: bool(text.strip()))
ARGUMENTS = st.sampled_from(["{}", '{"city":"Paris"}', '{"n": 1, "long": "' + "x" * 300 + '"}', "no json"])
IDS = st.uuids().map(lambda one: f"call_{one.hex[:12]}")

ChatMessages = list[dict[str, Any]]
Items = list[dict[str, Any]]
Talk = tuple[ChatMessages, Items]


def make_parts(kinds: list[tuple[str, str]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns content parts in both protocols."""
    chat: list[dict[str, Any]] = []
    items: list[dict[str, Any]] = []
    for kind, text in kinds:
        if kind == "text":
            chat.append({"type": "text", "text": text})
            items.append({"type": "input_text", "text": text})
        elif kind == "image":
            url = "data:image/png;base64," + text.encode().hex()
            chat.append({"type": "image_url", "image_url": {"url": url, "detail": "low"}})
            items.append({"type": "input_image", "image_url": url, "detail": "low"})
        elif kind == "audio":
            audio = {"data": text.encode().hex(), "format": "wav"}
            chat.append({"type": "input_audio", "input_audio": audio})
            items.append({"type": "input_audio", "input_audio": audio})
        else:
            chat.append({"type": "file", "file": {"file_data": text.encode().hex(), "filename": "a.pdf"}})
            items.append({"type": "input_file", "file_data": text.encode().hex(), "filename": "a.pdf"})
    return chat, items


@st.composite
def spoken(draw: st.DrawFn, kinds: tuple[str, ...] = ("text", "image", "audio", "file")) -> Talk:
    role = draw(st.sampled_from(["user", "user", "user", "system", "developer"]))
    if role != "user" or draw(st.booleans()):
        text = draw(TEXTS)
        return [{"role": role, "content": text}], [{"type": "message", "role": role, "content": text}]
    # One text alone is written as a string, so it is left to the case above.
    drawn = draw(st.lists(st.tuples(st.sampled_from(kinds), TEXTS), min_size=2, max_size=3))
    chat, parts = make_parts(drawn)
    return [{"role": role, "content": chat}], [{"type": "message", "role": role, "content": parts}]


@st.composite
def answered(draw: st.DrawFn) -> Talk:
    """An answer: reasoning, a text or a refusal, calls; then the outputs of the calls."""
    body: dict[str, Any] = {"role": "assistant", "content": None}
    items: Items = []
    if draw(st.booleans()):
        thought = draw(TEXTS)
        body["reasoning_content"] = thought
        items.append({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": thought}]})
    ids = draw(st.lists(st.tuples(IDS, st.booleans(), ARGUMENTS), max_size=3, unique_by=lambda one: one[0]))
    said = draw(st.sampled_from(["text", "refusal", "none"] if ids else ["text", "refusal"]))
    if said == "text":
        body["content"] = draw(TEXTS)
        items.append({"type": "message", "role": "assistant", "content": body["content"]})
    elif said == "refusal":
        body["content"] = [{"type": "refusal", "refusal": draw(TEXTS)}]
        items.append({"type": "message", "role": "assistant", "content": body["content"]})
    results: ChatMessages = []
    outputs: Items = []
    for call_id, is_custom, arguments in ids:
        result = draw(TEXTS)
        results.append({"role": "tool", "tool_call_id": call_id, "content": result})
        kind = "custom_tool_call" if is_custom else "function_call"
        field = "input" if is_custom else "arguments"
        items.append({"type": kind, "call_id": call_id, "name": "f", field: arguments})
        outputs.append({"type": f"{kind}_output", "call_id": call_id, "output": result})
        called = {"name": "f", field: arguments}
        call = {"id": call_id, "type": "custom", "custom": called}
        if not is_custom:
            call = {"id": call_id, "type": "function", "function": called}
        body.setdefault("tool_calls", []).append(call)
    return [body, *results], [*items, *outputs]


def join_talks(talks: list[Talk]) -> Talk:
    return [one for chat, _ in talks for one in chat], [one for _, items in talks for one in items]


TURNS = st.lists(st.tuples(spoken(), answered()).map(lambda pair: join_talks(list(pair))), min_size=1, max_size=4)
TALKS = TURNS.map(join_talks)
"""Talks of which both protocols express everything. No two answers follow each other: as items they would be one."""

JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
ITEM_TYPES = [
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "computer_call",
    "computer_call_output",
    "local_shell_call",
    "local_shell_call_output",
    "shell_call",
    "shell_call_output",
    "apply_patch_call",
    "apply_patch_call_output",
    "tool_search_call",
    "tool_search_output",
    "mcp_approval_request",
    "mcp_approval_response",
    "web_search_call",
    "image_generation_call",
    "compaction",
    "item_reference",
    "additional_tools",
    "something_new",
]
FIELD_VALUES = {
    "type": st.one_of(st.sampled_from(ITEM_TYPES), JSON_VALUES),
    "role": st.one_of(st.sampled_from(["user", "assistant", "system"]), JSON_VALUES),
    "content": st.one_of(
        st.text(max_size=5),
        st.lists(
            st.fixed_dictionaries(
                {"type": st.sampled_from(["input_text", "output_text", "input_image", "input_file", "refusal", "odd"])},
                optional={
                    "text": JSON_VALUES,
                    "refusal": JSON_VALUES,
                    "image_url": JSON_VALUES,
                    "file_url": JSON_VALUES,
                    "detail": JSON_VALUES,
                },
            ),
            max_size=3,
        ),
        JSON_VALUES,
    ),
    "call_id": st.one_of(st.sampled_from(["a", "b"]), JSON_VALUES),
    "id": st.one_of(st.sampled_from(["a", "b"]), JSON_VALUES),
    "approval_request_id": st.one_of(st.sampled_from(["a", "b"]), JSON_VALUES),
    "name": JSON_VALUES,
    "namespace": JSON_VALUES,
    "arguments": JSON_VALUES,
    "input": JSON_VALUES,
    "output": JSON_VALUES,
    "summary": JSON_VALUES,
    "encrypted_content": JSON_VALUES,
    "text": JSON_VALUES,
    "result": JSON_VALUES,
    "execution": st.one_of(st.sampled_from(["client", "server"]), JSON_VALUES),
    "environment": st.one_of(st.just({"type": "container_reference"}), JSON_VALUES),
    "action": JSON_VALUES,
    "reason": JSON_VALUES,
    "tools": JSON_VALUES,
}
ODD_ITEMS = st.one_of(JSON_VALUES, st.fixed_dictionaries({}, optional=FIELD_VALUES))
"""Any JSON; often nearly an item."""
