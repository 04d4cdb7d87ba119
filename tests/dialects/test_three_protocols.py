"""Histories go round through the three protocols: what all can say comes back equal; what one of them cannot say is
named in a warning, and stands in the tables of the pages."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import anthropic.types.beta as anthropic_types
import openai.types.chat as chat_types
import openai.types.responses as responses_types
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.message_rendering import render_messages_for_chat, render_messages_for_responses
from app.dialects.messages.message_rendering import render_messages_for_anthropic
from app.dialects.messages.request import split_messages
from tests.dialects.messages.talks import Talk, answered, join_turns, split, spoken
from tests.dialects.sample_messages import SampleMaker, list_typed_dicts
from tests.support.input_items import group_input_items

Message = dict[str, Any]
PAGE: Final = Path(__file__).parents[2] / "docs" / "messages.md"
PROTOCOLS: Final = ("chat", "responses", "messages")
KINDS: Final = {
    "chat": chat_types.ChatCompletionMessageParam,
    "responses": responses_types.ResponseInputItemParam,
    "messages": anthropic_types.BetaContentBlockParam,
}
"""What a history of a protocol consists of, as its package has it."""
VARIANTS: Final = 6
"""No union in these types has more members."""
USER_BLOCKS: Final = frozenset(
    {"text", "image", "document", "search_result", "container_upload", "tool_addition", "tool_removal"}
)
UNREAD_FIELDS: Final = frozenset({"id", "tool_use_id", "call_id", "approval_request_id", "tool_call_id", "logprobs"})
"""Fields that only pair calls with results, and one that no model reads."""
TURNS: Final = st.lists(st.tuples(spoken(), answered()), min_size=1, max_size=4)


def render(protocol: str, raws: Sequence[bytes]) -> tuple[list[bytes], list[str]]:
    """A history as a protocol sends it, instructions first, and the warnings."""
    if protocol == "chat":
        return render_messages_for_chat(raws)
    if protocol == "responses":
        items = render_messages_for_responses(raws)
        instructions = items.fields["instructions"]
        return [*([instructions] if instructions else []), *items.messages], [*items.warnings]
    view = render_messages_for_anthropic(raws)
    return [*([view.system] if view.system else []), *view.raw_messages], view.warnings


def parse(protocol: str, sent: Sequence[bytes]) -> list[bytes]:
    """What was sent as a client of that protocol sends it: as the log has it."""
    if protocol == "responses":
        return group_input_items(list(sent), may_begin_with_result=True)
    return split_messages(list(sent), may_begin_with_result=False)[0] if protocol == "messages" else list(sent)


def decode(sent: Sequence[bytes]) -> list[Any]:
    return [orjson.loads(raw) for raw in sent]


@given(TURNS, st.data())
def test_a_history_may_change_its_protocol_at_any_turn(turns: list[tuple[Talk, Talk]], data: st.DataObject) -> None:
    mixed: list[bytes] = []
    for turn in turns:
        chat, messages = join_turns([turn])
        raws = {"chat": [orjson.dumps(one) for one in chat], "messages": split(messages)}
        raws["responses"] = parse("responses", render("responses", raws["chat"])[0])
        mixed += raws[data.draw(st.sampled_from(PROTOCOLS))]
    chat, messages = join_turns(turns)
    expected = {"chat": [orjson.dumps(one) for one in chat], "messages": split(messages)}
    expected["responses"] = expected["chat"]
    for protocol in PROTOCOLS:
        sent, warnings = render(protocol, mixed)
        assert warnings == []
        # A text alone may be a string or a block.
        assert list_texts(decode(sent)) == list_texts(decode(render(protocol, expected[protocol])[0]))


@given(TURNS, st.permutations(PROTOCOLS))
def test_a_history_comes_back_through_all_protocols(turns: list[tuple[Talk, Talk]], order: list[str]) -> None:
    chat, messages = join_turns(turns)
    raws = split(messages) if order[0] == "messages" else [orjson.dumps(one) for one in chat]
    first = parse(order[0], render(order[0], raws)[0])
    passed = first
    for protocol in (*order[1:], order[0]):
        sent, warnings = render(protocol, passed)
        assert warnings == []
        passed = parse(protocol, sent)
    assert list_texts(decode(render(order[0], passed)[0])) == list_texts(decode(render(order[0], first)[0]))


def list_texts(value: Any) -> Any:
    """A value in which each content is a list, without defaults, and without white space at the end of texts, which a
    prefill may not have."""
    if isinstance(value, list):
        return [list_texts(one) for one in value]
    if not isinstance(value, dict):
        return value
    listed = {name: one if name == "arguments" else list_texts(one) for name, one in value.items()}
    if isinstance(content := value.get("content"), str):
        kind = "input_text" if value.get("type") == "message" else "text"
        listed["content"] = [{"type": kind, "text": content.rstrip()}]
    if isinstance(text := value.get("text"), str):
        listed["text"] = text.rstrip()
    return {name: one for name, one in listed.items() if (name, one) != ("detail", "auto")}


def list_samples(protocol: str) -> list[str]:
    return [kind.__name__ for kind in list_typed_dicts(KINDS[protocol])]


def make_history(protocol: str, sample: Message) -> list[bytes]:
    """A history around a message, item or block, as the log has it."""
    if protocol == "responses":
        items = [{"type": "message", "role": "user", "content": "Hi"}, sample]
        items.append({"type": "message", "role": "assistant", "content": "Yes."})
        return group_input_items([orjson.dumps(item) for item in items], may_begin_with_result=True)
    history: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
    if protocol == "chat":
        if sample["role"] == "tool":
            function = {"name": "f", "arguments": "{}"}
            calls = [{"id": sample["tool_call_id"], "type": "function", "function": function}]
            history.append({"role": "assistant", "content": None, "tool_calls": calls})
        if sample["role"] == "function":
            called = {"name": sample["name"], "arguments": "{}"}
            history.append({"role": "assistant", "content": None, "function_call": called})
        return [orjson.dumps(one) for one in (*history, sample)]
    text = {"type": "text", "text": "Yes."}
    if sample["type"] in USER_BLOCKS:
        return split([{"role": "user", "content": [sample, text]}])
    if sample["type"] == "tool_result":
        call = {"type": "tool_use", "id": sample["tool_use_id"], "name": "f", "input": {}}
        return split([*history, {"role": "assistant", "content": [call]}, {"role": "user", "content": [sample]}])
    history.append({"role": "assistant", "content": [sample] if sample["type"] == "tool_use" else [sample, text]})
    result = {"type": "tool_result", "tool_use_id": sample.get("id"), "content": "7"}
    return split([*history, {"role": "user", "content": [result] if sample["type"] == "tool_use" else "And?"}])


def make_samples(protocol: str, name: str) -> Iterator[tuple[SampleMaker, Message]]:
    (kind,) = (one for one in list_typed_dicts(KINDS[protocol]) if one.__name__ == name)
    for variant in range(VARIANTS):
        maker = SampleMaker(variant)
        sample = maker.make(kind)
        if "function_call" in sample:  # An answer has calls of one kind.
            del sample["tool_calls" if variant % 2 else "function_call"]
        yield maker, sample


@pytest.mark.parametrize(
    ("source", "target", "name"),
    [
        (source, target, name)
        for source, target in itertools.permutations(PROTOCOLS, 2)
        for name in list_samples(source)
    ],
)
def test_each_word_is_sent_or_what_held_it_is_named(source: str, target: str, name: str) -> None:
    for maker, sample in make_samples(source, name):
        sent, warnings = render(target, make_history(source, sample))
        body, named = b"".join(sent), [one.partition(": ")[2] for one in warnings]
        history = orjson.dumps(sample)
        for word, path in maker.paths.items():
            if path[-1] in UNREAD_FIELDS or "logprobs" in path or word.encode() in body or word.encode() not in history:
                continue
            tags, fields = path[::2], path[1::2]
            assert (
                any(f"the field {field!r}" in one for field in fields for one in named)
                or any(f"s of type {tag!r}" in one and "the field" not in one for tag in tags for one in named)
                or ("reasoning" in tags and any("reasoning" in one for one in named))
            ), (word, path, named)


def test_the_page_tells_what_becomes_of_each_block() -> None:
    """Blocks of which nothing is sent are those that the page has in the row of what is left out."""
    table = PAGE.read_text().partition("| block | becomes |\n")[2].partition("\n\n")[0]
    rows = [line.strip("|").rsplit("|", 1) for line in table.splitlines()[1:]]
    left_out = {name for names, fate in rows if "left out and named" in fate for name in re.findall(r"`(\w+)`", names)}
    sent = {name for names, fate in rows if "left out" not in fate for name in re.findall(r"`(\w+)`", names)}
    found: set[str] = set()
    for name in list_samples("messages"):
        _, sample = next(make_samples("messages", name))
        warnings = [render(target, make_history("messages", sample))[1] for target in ("chat", "responses")]
        ends = tuple(f": {things} of type {sample['type']!r}." for things in ("parts", "items and parts"))
        is_left_out = [any(one.endswith(ends) for one in each) for each in warnings]
        assert is_left_out in ([True] * 2, [False] * 2)
        found |= {sample["type"]} if is_left_out[0] else set()
        assert is_left_out[0] or sample["type"] in sent | left_out
    assert found <= left_out
    # One is named by its field, the other is a field.
    assert left_out - found == {"redacted_thinking", "citations"}
    assert not left_out & sent
