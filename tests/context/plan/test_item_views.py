"""Views of Responses items, whatever the history, the window and the policy: no call without its output, no output
without its call, and reasoning together with the item after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from app.context.plan.outline import LastView
from app.conversation.conversation_types import LogMessage
from app.dialects.item_decoding import decode_item
from app.dialects.items.item_kinds import CALL_OUTPUT_TYPES, OUTPUT_TYPES, is_client_call, read_call_id
from app.dialects.message_rendering import render_messages_for_chat, render_messages_for_responses
from tests.context.conversation_strategies import POLICIES, TEXTS
from tests.context.plan_checks import check_ranges, check_rounds_stay_whole
from tests.context.planned_conversation import COUNT, World, words
from tests.support.input_items import group_input_items

Item = dict[str, Any]
IMAGE: Item = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}
CALLS: dict[str, Item] = {
    "function_call": {"name": "look", "arguments": '{"q": "' + "x" * 400 + '"}'},
    "custom_tool_call": {"name": "run", "input": "ls " * 100},
    "shell_call": {"action": {"commands": ["ls"]}},
    "local_shell_call": {"action": {"type": "exec", "command": ["ls"], "env": {}}, "status": "completed"},
    "apply_patch_call": {"operation": {"type": "delete_file", "path": "a"}, "status": "completed"},
    "computer_call": {"action": {"type": "screenshot"}, "pending_safety_checks": [], "status": "completed"},
}
CLEARING_POLICIES = [name for name, policy in POLICIES.items() if policy.clear_reasoning.keep_turns is not None]
HOSTED: Item = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}


def build_call(kind: str, number: int) -> Item:
    return {"type": kind, "id": f"fc_{number}", "call_id": f"call_{number}", **CALLS[kind]}


def build_output(kind: str, number: int, text: str, with_image: bool) -> Item:
    output: object = text
    match kind:
        case "computer_call":
            output = {"type": "computer_screenshot", "image_url": IMAGE["image_url"]}
        case "shell_call":
            output = [{"stdout": text, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
        case "function_call" if with_image:
            output = [{"type": "input_text", "text": text}, IMAGE]
    return {"type": CALL_OUTPUT_TYPES[kind], "call_id": f"call_{number}", "output": output}


@st.composite
def histories(draw: st.DrawFn) -> list[Item]:
    """Turns of an agent. Each reasoning has encrypted content of its own; outputs come in any order, and a user may
    speak before them."""
    items: list[Item] = []
    for turn in range(draw(st.integers(1, 12))):
        items.append({"type": "message", "role": "user", "content": draw(TEXTS)})
        for step in range(draw(st.integers(0, 4))):
            place = 100 * turn + 10 * step
            if draw(st.booleans()):
                text = draw(st.sampled_from(["", words(60, "think")]))
                summary = [{"type": "summary_text", "text": text}] if text else []
                reasoning = {"type": "reasoning", "id": f"rs_{place}", "summary": summary}
                items.append({**reasoning, "encrypted_content": f"sealed {place}"})
            if draw(st.booleans()):
                said = {"type": "output_text", "text": draw(TEXTS), "annotations": []}
                items.append({"type": "message", "id": f"msg_{place}", "role": "assistant", "content": [said]})
            kinds = draw(st.lists(st.sampled_from(sorted(CALLS)), min_size=1, max_size=3))
            if draw(st.booleans()):
                items.append(HOSTED)
            items += [build_call(kind, place + at) for at, kind in enumerate(kinds)]
            outputs = [
                build_output(kind, place + at, draw(TEXTS), draw(st.booleans())) for at, kind in enumerate(kinds)
            ]
            if draw(st.integers(0, 3)) == 0:
                items.append({"type": "message", "role": "user", "content": "Hurry."})
            items += draw(st.permutations(outputs))
        said = {"type": "output_text", "text": draw(TEXTS), "annotations": []}
        items.append({"type": "message", "id": f"msg_end_{turn}", "role": "assistant", "content": [said]})
    return [*items, {"type": "message", "role": "user", "content": "And now?"}]


class ItemWorld(World):
    """A conversation whose log has items."""

    def __post_init__(self) -> None:
        self.log = []

    def say_items(self, raws: Sequence[bytes]) -> None:
        self.new_from_seq = len(self.log)
        for raw in raws:
            message = decode_item(raw)
            tokens = COUNT.count_message(message)
            total = tokens + (self.log[-1].tokens_total if self.log else 0)
            link = len(self.log).to_bytes(16, "big")
            self.log.append(LogMessage(len(self.log), message, link, link, True, tokens, total, False))


@settings(max_examples=120)
@given(
    items=histories(),
    name=st.sampled_from([*POLICIES, *CLEARING_POLICIES * 5]),
    windows=st.lists(st.sampled_from([600, 1_024, 2_000, 4_096]), min_size=1, max_size=2),
    pins=st.lists(st.integers(0, 60), max_size=2),
    keeps_opaque=st.booleans(),
)
def test_calls_have_their_outputs_and_reasoning_its_items(
    items: list[Item], name: str, windows: list[int], pins: list[int], keeps_opaque: bool
) -> None:
    world = ItemWorld(policy=POLICIES[name])
    raws = group_input_items([orjson.dumps(item) for item in items], may_begin_with_result=False)
    world.say_items(raws)
    for window in windows:
        world.window, world.last = window, LastView()
        world.pin(*pins)
        world.pins = tuple(pin for pin in world.pins if pin.tokens < window // 8)
        plan = world.settle()
        check_ranges(world, plan)
        check_rounds_stay_whole(world, plan)
        view = world.render(plan)
        own_contents = None if keeps_opaque else frozenset[str]()
        rendered = render_messages_for_responses(view, own_contents=own_contents)
        sent = [orjson.loads(raw) for raw in rendered.messages]
        check_items(sent, items)
        check_chat_messages([orjson.loads(raw) for raw in render_messages_for_chat(view)[0]])


def check_items(sent: list[Item], items: list[Item]) -> None:
    """Checks what a provider of the Responses API gets."""
    calls = Counter(read_call_id(item) for item in sent if is_client_call(item))
    outputs = Counter(read_call_id(item) for item in sent if item["type"] in OUTPUT_TYPES)
    assert calls == outputs
    places = {read_call_id(item): at for at, item in enumerate(sent) if is_client_call(item)}
    for at, item in enumerate(sent):
        if item["type"] in OUTPUT_TYPES:
            assert places[read_call_id(item)] < at
            # Between a call and its output are calls of the same answer and their outputs only.
            assert all(one.get("role") != "user" for one in sent[places[read_call_id(item)] : at])
    following = {
        one["encrypted_content"]: identify(after) for one, after in pairwise(items) if one["type"] == "reasoning"
    }
    needing = {after.get("id") for one, after in pairwise(items) if one["type"] == "reasoning"}
    for before, item in zip([{}, *sent], sent, strict=False):
        if before.get("type") == "reasoning" and "encrypted_content" in before:
            assert identify(item) == following[before["encrypted_content"]]
        # OpenAI refuses an item with its id if the reasoning in front of it is missing.
        if item.get("id") in needing and item["type"] in ("message", "function_call", "custom_tool_call"):
            assert before.get("type") == "reasoning"
    assert not sent or sent[-1]["type"] != "reasoning"


def identify(item: Item) -> tuple[Any, ...]:
    """Returns what an item is, whatever of it is shortened."""
    return item["type"], item.get("role"), read_call_id(item)


def check_chat_messages(messages: list[Item]) -> None:
    """Checks what a provider of Chat Completions gets."""
    open_ids: Counter[str] = Counter()
    for message in messages:
        if message["role"] == "tool":
            assert open_ids[message["tool_call_id"]] > 0
            open_ids[message["tool_call_id"]] -= 1
        else:
            assert not +open_ids
            open_ids = Counter(call["id"] for call in message.get("tool_calls") or ())
    assert not +open_ids
