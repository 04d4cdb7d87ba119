"""Nothing of an item is lost silently in a chat message: each text is there, or what held it is named in a warning."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from app.dialects.message_rendering import render_messages_for_chat
from tests.support.input_items import group_input_items

Path = tuple[str | int, ...]
UNMARKED = {
    "type",
    "role",
    "id",
    "call_id",
    "approval_request_id",
    "status",
    "execution",
    "detail",
    "format",
    "logprobs",
}
"""Fields that tell kinds or pairs, and one that no model reads."""
HISTORIES: dict[str, list[dict[str, Any]]] = {
    "user text": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "T"}]}],
    "user image": [
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "x"},
                {"type": "input_image", "image_url": "U", "detail": "original"},
            ],
        }
    ],
    "user image id": [
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "x"}, {"type": "input_image", "file_id": "F", "detail": "low"}],
        }
    ],
    "user image both": [
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "U", "file_id": "F"}],
        }
    ],
    "user file": [
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_file", "file_data": "D", "filename": "N", "detail": "high"}],
        }
    ],
    "user file id": [{"type": "message", "role": "user", "content": [{"type": "input_file", "file_id": "D"}]}],
    "user file url": [
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "x"}, {"type": "input_file", "file_url": "D"}],
        }
    ],
    "user file url+data": [
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "x"}, {"type": "input_file", "file_url": "D", "file_data": "E"}],
        }
    ],
    "user phase": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}], "name": "N", "phase": "P"}
    ],
    "system image": [
        {
            "type": "message",
            "role": "system",
            "content": [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "U"}],
        }
    ],
    "asst": [
        {
            "type": "message",
            "role": "assistant",
            "content": [
                {
                    "type": "output_text",
                    "text": "T",
                    "annotations": [{"type": "file_citation", "file_id": "F", "index": 1, "filename": "n"}],
                    "logprobs": [{"token": "t"}],
                }
            ],
        }
    ],
    "asst refusal": [{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "R"}]}],
    "reasoning": [
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "S"}],
            "content": [{"type": "reasoning_text", "text": "C"}],
            "encrypted_content": "E",
        },
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "O"},
    ],
    "reasoning2": [
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "S"}],
            "encrypted_content": "E",
            "extra": "X",
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "T"}]},
    ],
    "reasoning3": [
        {"type": "reasoning", "summary": [], "encrypted_content": "E"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "T"}]},
    ],
    "fn": [
        {
            "type": "function_call",
            "call_id": "c",
            "name": "f",
            "arguments": "{}",
            "namespace": "NS",
            "extra": "X",
            "caller": {"type": "program", "caller_id": "CI"},
        },
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [
                {"type": "input_text", "text": "T"},
                {"type": "input_image", "image_url": "U"},
                {"type": "input_file", "file_data": "D", "filename": "N"},
                {"type": "input_file", "file_url": "FU"},
            ],
            "extra": "Y",
        },
    ],
    "custom": [
        {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "I", "namespace": "NS"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "O", "name": "NN"},
    ],
    "shell": [
        {
            "type": "shell_call",
            "call_id": "c",
            "action": {"commands": ["ls"], "timeout_ms": 5},
            "environment": {"type": "local"},
            "caller": {"type": "direct"},
        },
        {
            "type": "shell_call_output",
            "call_id": "c",
            "output": [{"stdout": "SO", "stderr": "SE", "outcome": {"type": "exit", "exit_code": 0}}],
            "max_output_length": "M",
        },
    ],
    "local": [
        {
            "type": "local_shell_call",
            "id": "i",
            "call_id": "c",
            "action": {"type": "exec", "command": ["C"], "env": {"A": "B"}},
            "status": "completed",
        },
        {"type": "local_shell_call_output", "id": "c", "call_id": "c", "output": "O"},
    ],
    "patch": [
        {
            "type": "apply_patch_call",
            "call_id": "c",
            "operation": {"type": "create_file", "path": "P", "diff": "D"},
            "status": "completed",
        },
        {"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": "O"},
    ],
    "patch none": [
        {
            "type": "apply_patch_call",
            "call_id": "c",
            "operation": {"type": "create_file", "path": "P", "diff": "D"},
            "status": "completed",
        },
        {"type": "apply_patch_call_output", "call_id": "c", "status": "failed"},
    ],
    "computer": [
        {
            "type": "computer_call",
            "id": "i",
            "call_id": "c",
            "action": {"type": "click", "x": 1, "y": 2, "button": "B"},
            "pending_safety_checks": [{"id": "I", "code": "C", "message": "M"}],
            "status": "completed",
        },
        {
            "type": "computer_call_output",
            "call_id": "c",
            "output": {"type": "computer_screenshot", "image_url": "U"},
            "acknowledged_safety_checks": [{"id": "I2", "message": "MM"}],
        },
    ],
    "computer fid": [
        {
            "type": "computer_call",
            "id": "i",
            "call_id": "c",
            "action": {"type": "click", "x": 1, "y": 2, "button": "B"},
            "pending_safety_checks": [],
            "status": "completed",
        },
        {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "file_id": "FID"}},
    ],
    "mcp appr": [
        {"type": "mcp_approval_request", "id": "i", "server_label": "SL", "name": "N", "arguments": "A"},
        {"type": "mcp_approval_response", "approval_request_id": "i", "approve": True, "reason": "R"},
    ],
    "toolsearch": [
        {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {"q": "Q"}},
        {
            "type": "tool_search_output",
            "call_id": "c",
            "execution": "client",
            "tools": [{"type": "function", "name": "N", "description": "DD"}],
        },
    ],
    "web": [
        {"type": "web_search_call", "id": "i", "status": "completed", "action": {"type": "search", "query": "Q"}},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "T"}]},
    ],
    "filesearch": [
        {"type": "file_search_call", "id": "i", "queries": ["Q"], "results": [{"text": "RT"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "T"}]},
    ],
    "ci": [
        {
            "type": "code_interpreter_call",
            "id": "i",
            "code": "C",
            "container_id": "CI",
            "outputs": [{"type": "logs", "logs": "L"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "T"}]},
    ],
    "img": [
        {"type": "image_generation_call", "id": "i", "result": "R64", "revised_prompt": "RP"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "T"}]},
    ],
    "mcp": [
        {"type": "mcp_call", "id": "i", "server_label": "SL", "name": "N", "arguments": "A", "output": "O"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "T"}]},
    ],
    "mcplist": [
        {"type": "mcp_list_tools", "id": "i", "server_label": "SL", "tools": [{"name": "N"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "T"}]},
    ],
    "compaction": [
        {"type": "compaction", "encrypted_content": "E"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "T"}]},
    ],
    "addtools": [
        {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "N"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "T"}]},
    ],
    "unknown": [
        {"type": "novel", "x": "X"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "T"}]},
    ],
    "user audio": [
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_audio", "input_audio": {"data": "D", "format": "wav"}}],
        }
    ],
}
"""An item of every kind, with what follows it, and all its fields."""


def list_texts(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yields the paths of the texts in a value."""
    if isinstance(value, dict):
        for name, member in value.items():
            if name not in UNMARKED:
                yield from list_texts(member, (*path, name))
    elif isinstance(value, list):
        for index, element in enumerate(value):
            yield from list_texts(element, (*path, index))
    elif isinstance(value, str):
        yield path


@pytest.mark.parametrize("name", HISTORIES)
def test_each_text_is_sent_or_what_held_it_is_named(name: str) -> None:
    items = copy.deepcopy(HISTORIES[name])
    marks: dict[str, set[str]] = {}
    for number, (*parents, last) in enumerate(list(list_texts(items))):
        # The names by which a warning may tell what was left out.
        names = {f"{key!r}" for key in (*parents, last) if isinstance(key, str)}
        holder: Any = items
        for key in parents:
            holder = holder[key]
            if isinstance(holder, dict) and "type" in holder:
                names.add(f"{holder['type']!r}")
        if {"summary", "encrypted_content"} & {*parents, last}:
            names |= {"the summary of reasoning", "encrypted reasoning"}
        holder[last] = f"mark-{number}."
        marks[holder[last]] = names
    raws = group_input_items([orjson.dumps(item) for item in items], may_begin_with_result=False)
    messages, warnings = render_messages_for_chat(raws)
    assert marks
    for mark, names in marks.items():
        is_sent = mark.encode() in b"".join(messages)
        assert is_sent or any(one in warning for one in names for warning in warnings), (mark, items, warnings)


def test_a_changed_detail_of_an_image_is_named() -> None:
    image = {"type": "input_image", "image_url": "data:x", "detail": "original"}
    messages, warnings = render_messages_for_chat([orjson.dumps([{"role": "user", "content": [image]}])])
    assert b'"detail":"high"' in messages[0]
    assert "the detail 'original' of images" in warnings[0]


def test_what_is_sent_whole_needs_no_warning() -> None:
    for name in ("user text", "user file id", "user audio", "asst refusal"):
        raws = group_input_items([orjson.dumps(item) for item in HISTORIES[name]], may_begin_with_result=False)
        assert render_messages_for_chat(raws)[1] == []
