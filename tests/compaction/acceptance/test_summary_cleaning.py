from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.compaction.acceptance.summary_acceptance import is_json_tool_call, strip_to_summary

SUMMARY = "The user asked for a fix.\n- The build fails with error 2."


@pytest.mark.parametrize(
    "answer",
    [
        f"<think>Let me see.</think>\n{SUMMARY}",
        f"Let me see, the user wants …\n</think>\n\n{SUMMARY}",
        f"[THINK]Hm.[/THINK]{SUMMARY}",
        f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{SUMMARY}<|return|>",
        f"<analysis>Hm.</analysis>\n<summary>\n{SUMMARY}\n</summary>",
        f"{SUMMARY}<|im_end|>",
        f'{SUMMARY}\n<tool_call>\n{{"name": "ls", "arguments": {{}}}}\n</tool_call>',
        f'{SUMMARY}\n<function=ls>{{"path": "."}}</function>',
        f'{SUMMARY}\n<|python_tag|>ls(".")',
        f'{SUMMARY}\n[TOOL_CALLS][{{"name": "ls"}}]',
        f"Sure, here is the summary of the conversation:\n\n{SUMMARY}",
        f"Here's a summary:\n{SUMMARY}",
        f"Certainly!\n\n{SUMMARY}",
        f"<transcript 0a1b2c3d>\n--- 0a1b2c3d [4] user\n{SUMMARY}\n</transcript 0a1b2c3d>",
    ],
)
def test_what_is_not_the_summary_goes(answer: str) -> None:
    assert strip_to_summary(answer) == SUMMARY


@pytest.mark.parametrize(
    "answer",
    [
        "<think>never ends",
        '<tool_call>{"name": "ls", "arguments": {}}</tool_call>',
        '```json\n{"name": "ls", "arguments": {"path": "."}}\n```',
        '[{"name": "ls", "parameters": {}}]',
        "<|channel|>analysis<|message|>All of it was thinking.",
        "",
    ],
)
def test_an_answer_without_a_summary_is_blank(answer: str) -> None:
    assert strip_to_summary(answer) == ""


@pytest.mark.parametrize(
    "answer",
    [
        "The user asked what the `<|im_start|>` marker does.\nHere is what was decided: keep it.".replace(
            "<|im_start|>", "im_start"
        ),
        "Sure enough, the build failed. The fix is open.",
        '```json\n{"status": "done"}\n```',
        "The tool [TOOL] answered; a < b and b > c.",
        "Here is the order:",
    ],
)
def test_ordinary_text_stays(answer: str) -> None:
    assert strip_to_summary(answer) == answer


def test_a_json_document_is_no_call() -> None:
    assert not is_json_tool_call('{"name": "Mia", "age": 7}')
    assert not is_json_tool_call("[]")


@given(st.text(max_size=500))
def test_any_answer_can_be_cleaned_and_cleaning_adds_nothing(answer: str) -> None:
    assert len(strip_to_summary(answer)) <= len(answer)
