"""Conversations of every shape that clients send, and policies with every setting, for properties of plans."""

from __future__ import annotations

from itertools import count, islice
from typing import Any

from hypothesis import strategies as st

from app.context.plan.policy import (
    STAGES_OF_KIND,
    CheckpointTrigger,
    ContextPolicy,
    SummarizerPolicy,
    TrimmingLimits,
    make_policy,
)
from app.context.stages.stage_registry import STAGES
from app.conversation.context_edits import ReasoningClearing, ToolResultClearing
from tests.context.planned_conversation import Body, assistant, result, user, words

WORDS = st.sampled_from(
    [
        "word",
        "слово",
        "単語",
        "कखग",
        "שלום",
        "👩‍👩‍👧‍👦",
        '{"a": 1}',
        "line\n",
        "<|endoftext|>",
        "</earlier_conversation>",
        "x" * 60,
    ]
)
SIZES = st.sampled_from([1, 2, 5, 20, 60, 150, 400])
TEXTS = st.builds(words, SIZES, WORDS)
CONTENTS = st.one_of(TEXTS, st.sampled_from([None, "", " ", [], [{"type": "text", "text": ""}]]))
PICTURE: Body = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
ARGUMENTS = st.sampled_from(
    [
        "{}",
        "",
        "not json " * 60,
        '{"q": "' + "x" * 900 + '"}',
        '{"rows": [' + "1, " * 300 + "1]}",
        '{"城": "' + "市" * 200 + '", "n": 1}',
    ]
)


def tool_call(place: int, arguments: str, *, named: bool = True) -> Body:
    ids = {"id": f"call_{place}"} if named else {}
    return {**ids, "type": "function", "function": {"name": f"tool_{place}", "arguments": arguments}}


@st.composite
def tool_rounds(draw: st.DrawFn) -> list[Body]:
    """Up to three parallel calls, their ids reused all over or missing, and their results."""
    number, named = draw(st.integers(1, 3)), draw(st.booleans())
    arguments = draw(ARGUMENTS)
    said = draw(st.sampled_from([None, "", "Let me look."]))
    thought = draw(st.sampled_from([{}, {"reasoning_content": "First I look. " * 30}]))
    asked = [tool_call(place, arguments, named=named) for place in range(number)]
    given = [result(draw(CONTENTS), f"call_{place}" if named else "") for place in range(number)]
    return [assistant(said, tool_calls=asked, **thought), *given]


@st.composite
def other_calls(draw: st.DrawFn) -> list[Body]:
    """A custom tool's call, or a function call as it was before tools."""
    text = draw(TEXTS)
    custom = {"id": "call_0", "type": "custom", "custom": {"name": "run", "input": text}}
    legacy = {"name": "run", "arguments": draw(ARGUMENTS)}
    return draw(
        st.sampled_from(
            [
                [assistant(None, tool_calls=[custom]), result(text)],
                [assistant(None, function_call=legacy), {"role": "function", "name": "run", "content": text}],
            ]
        )
    )


@st.composite
def turns(draw: st.DrawFn) -> list[Body]:
    text = draw(TEXTS)
    question = draw(
        st.sampled_from(
            [user(text), user(text), user([{"type": "text", "text": text}]), user([PICTURE, PICTURE]), user("")]
        )
    )
    loops = draw(st.lists(st.one_of(tool_rounds(), tool_rounds(), other_calls()), max_size=3))
    answers: list[list[Body]] = [
        [assistant(draw(CONTENTS))],
        [assistant(text)],
        [assistant(None, refusal=text)],
        [assistant([{"type": "refusal", "refusal": text}])],
        [assistant([{"type": "thinking", "thinking": text}, {"type": "text", "text": "So."}])],
        [assistant("So."), assistant(text)],
        [],
        [{"role": "developer", "content": text}, assistant("Noted.")],
    ]
    return [question, *(body for loop in loops for body in loop), *draw(st.sampled_from(answers))]


@st.composite
def conversations(draw: st.DrawFn, most_turns: int = 8, most_repeats: int = 12) -> list[Body]:
    """Turns said over and over, up to a question, to results that are to be read, or to calls that wait for theirs."""
    said = [body for turn in draw(st.lists(turns(), min_size=1, max_size=most_turns)) for body in turn]
    bodies = said * draw(st.integers(1, most_repeats))
    giant = draw(st.sampled_from([None] * 7 + ["user", "assistant", "tool"]))
    if giant is not None:
        bodies[len(bodies) // 2 : len(bodies) // 2] = giant_turn(giant, draw(st.sampled_from([1_000, 5_000, 20_000])))
    bodies = whole_rounds(bodies)
    waiting = [user("Do it"), assistant(None, tool_calls=[tool_call(0, "{}"), tool_call(1, "{}")])]
    ends: list[list[Body]] = [
        [user(draw(TEXTS))],
        [user("Do it"), assistant(None, tool_calls=[tool_call(0, "{}")]), result(draw(CONTENTS))],
        waiting,
        [*waiting, result("one of two")],
        [],
    ]
    return [*bodies, *draw(st.sampled_from(ends))]


def giant_turn(role: str, tokens: int) -> list[Body]:
    text = words(tokens)
    return {
        "user": [user(text), assistant("Read.")],
        "assistant": [user("Tell me"), assistant(text)],
        "tool": [user("Look"), assistant(None, tool_calls=[tool_call(0, "{}")]), result(text), assistant("Seen.")],
    }[role]


def whole_rounds(bodies: list[Body]) -> list[Body]:
    """Without results that another message, put among them, has cut off from their call."""
    whole: list[Body] = []
    open_calls = 0
    for body in bodies:
        if body["role"] in {"tool", "function"}:
            if open_calls:
                open_calls -= 1
                whole.append(body)
            continue
        if open_calls:
            while whole[-1]["role"] in {"tool", "function"}:
                whole.pop()
            whole.pop()
        open_calls = len(body.get("tool_calls") or ()) or int("function_call" in body)
        whole.append(body)
    return whole


def spread(number: int, size: int) -> list[int]:
    """A few places, spread over a log."""
    return list(islice(count(size // 7, max(1, size // max(1, number))), number))


SMALL_LIMITS: dict[str, Any] = {
    "trimming": TrimmingLimits(
        max_tool_result_tokens=100, mask_chars=80, min_prunable_tool_chars=300, soft_trim_chars=50
    ),
    "summarize_after_turns": 1,
}
CLEARING: dict[str, Any] = {
    "clear_tool_results": ToolResultClearing(trigger_tokens=600, keep=2, inputs=True, exclude_tools=("tool_1",)),
    "clear_reasoning": ReasoningClearing(keep_turns=1),
}
POLICIES: dict[str, ContextPolicy] = {
    "additive": ContextPolicy(),
    "additive, clearing": make_policy(**CLEARING),
    "additive, few turns": make_policy(buffer_turns=1, recall="off", token_floor=0),
    "additive, trimming only": make_policy(summarizer=SummarizerPolicy(enabled=False)),
    "additive, masking": make_policy(stages=("clear_tool_results", "mask_results", "fade_results"), **SMALL_LIMITS),
    "recursive": make_policy(strategy="recursive"),
    "recursive, clearing": make_policy(strategy="recursive", **CLEARING),
    "checkpoint": make_policy(name="checkpoint", kind="checkpoint"),
    "checkpoint, nothing kept": make_policy(name="checkpoint", kind="checkpoint", keep_turns=0, **SMALL_LIMITS),
    "checkpoint, eager": make_policy(
        name="checkpoint", kind="checkpoint", keep_turns=3, trigger=CheckpointTrigger("token_ratio", 0.5)
    ),
    "checkpoint, late": make_policy(
        name="checkpoint", kind="checkpoint", trigger=CheckpointTrigger("remaining_tokens", 200)
    ),
    "checkpoint, counting": make_policy(
        name="checkpoint", kind="checkpoint", trigger=CheckpointTrigger("messages_to_refine", 5)
    ),
    "fade": make_policy(name="fade", kind="fade"),
    "fade, by position": make_policy(name="fade", kind="fade", position_pruning=True, **SMALL_LIMITS),
    "prune": make_policy(name="prune", kind="prune"),
    "prune, early": make_policy(name="prune", kind="prune", **SMALL_LIMITS),
    "window": make_policy(name="window", kind="window"),
    "window of turns": make_policy(name="window", kind="window", keep_turns=3),
    "window of tokens": make_policy(name="window", kind="window", keep_tokens=700),
    "every stage": make_policy(
        name="prune", kind="prune", stages=tuple(STAGES), keep_turns=9, **SMALL_LIMITS, **CLEARING
    ),
    "every stage, backwards": make_policy(name="fade", kind="fade", stages=tuple(STAGES)[::-1], **SMALL_LIMITS),
    "no stage": make_policy(name="window", kind="window", stages=()),
}
SHORTENING = tuple(name for name, policy in POLICIES.items() if not policy.may_summarize)
SUMMARIZING = tuple(name for name, policy in POLICIES.items() if policy.may_summarize)
assert {policy.kind for policy in POLICIES.values()} == set(STAGES_OF_KIND)
WINDOWS = st.sampled_from([1_024, 2_000, 4_096, 8_192, 32_000, 128_000, 1_000_000])
