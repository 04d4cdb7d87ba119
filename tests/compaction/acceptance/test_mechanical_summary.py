from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.compaction.acceptance.mechanical_summary import build_mechanical_summary, render_message_lines, thin_lines
from app.conversation.conversation_types import Summary
from tests.compaction.simulated_compaction import COUNT, log_of

FINE = {"role": "assistant", "content": "Fine."}


def summary(text: str) -> Summary:
    return Summary(
        id="sum_1",
        conversation_id="conv_1",
        from_seq=0,
        to_seq=4,
        from_link=b"",
        to_link=b"",
        text=text,
        tokens=0,
        tokens_total=0,
        anchor_seq=None,
        anchor_tokens=0,
        through_turn=1,
        kind="mechanical",
        model="",
        prompt_version="1",
        created_at=datetime(2026, 11, 21, tzinfo=UTC),
    )


def call(call_id: str, name: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def test_a_line_stands_for_each_text_and_each_call() -> None:
    log = log_of(
        [
            {"role": "user", "content": "Build\n it."},
            {"role": "assistant", "content": "Sure.", "tool_calls": [call("a", "run", '{"x": 1}'), call("b", "look")]},
            result("b", "x" * 300),
            result("a", "ConnectionError: refused"),
            {"role": "assistant", "tool_calls": [call("a", "run"), call("c", "wait")]},
            result("a", '{"error": "no such file"}'),
            {"role": "assistant", "content": "Done."},
        ]
    )
    assert list(render_message_lines([entry.message for entry in log])) == [
        "user: Build it.",
        "assistant: Sure.",
        'run({"x": 1}): ERROR: ConnectionError: refused',
        f"look({{}}): {'x' * 199}…",
        'run({}): ERROR: {"error": "no such file"}',
        "wait({}): no result",
        "assistant: Done.",
    ]


def test_results_under_a_reused_id_go_to_the_calls_in_order() -> None:
    calls = [call("same", "first"), call("same", "second")]
    log = log_of([{"role": "assistant", "tool_calls": calls}, result("same", "1"), result("same", "2")])
    assert list(render_message_lines([entry.message for entry in log])) == ["first({}): 1", "second({}): 2"]


def test_first_and_newest_lines_stay_when_it_must_be_thinned() -> None:
    text = thin_lines([f"user: line {n}" for n in range(1000)], 100, COUNT.count)
    lines = text.splitlines()
    assert lines[0] == "user: line 0"
    assert lines[-1] == "user: line 999"
    [gap] = [line for line in lines if line.startswith("[")]
    assert re.fullmatch(rf"\[{1000 - len(lines) + 1} lines left out\]", gap)


@given(st.lists(st.text(max_size=80), max_size=60), st.integers(12, 400))
def test_thinned_lines_fit(lines: list[str], limit: int) -> None:
    flat = [line.replace("\n", " ") for line in lines]
    assert COUNT.count(thin_lines(flat, limit, COUNT.count)) <= limit


def test_repeated_lines_and_gaps_of_earlier_summaries_stand_once() -> None:
    earlier = summary("user: line 0\nassistant: Fine.\n[19 lines left out]\nassistant: Fine.\nuser: line 9")
    log = log_of([body for n in range(60) for body in ({"role": "user", "content": f"line {n + 10} " * 4}, FINE)])
    text = build_mechanical_summary(log, [earlier, earlier], 120, COUNT.count)
    lines = text.splitlines()
    assert len(lines) == len(set(lines))
    [gap] = [line for line in lines if line.startswith("[")]
    shown = len([line for line in lines if line.startswith(("user:", "assistant:"))])
    # The earlier summary stands for 23 lines and was given twice.
    assert gap == f"[{2 * 23 + 120 - shown} lines left out]"
    assert "19 lines" not in text
