"""Write the dumps of LangChain messages that the tests read. Needs langchain-core, which nothing else here does.

python tools/langchain_dumps.py tests/conversations/transfer/langchain_dumps
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from langchain_core.load import dumpd
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    messages_to_dict,
)

WRITTEN_CALL = {"id": "c3", "type": "function", "function": {"name": "look_up", "arguments": '{ "where": "there" }'}}
MESSAGES: list[BaseMessage] = [
    SystemMessage("Be brief."),
    HumanMessage("What is the weather?", name="ann"),
    AIMessage(
        "",
        tool_calls=[{"name": "look_up", "args": {"where": "Zürich", "days": 1.0}, "id": "c1"}],
        invalid_tool_calls=[{"name": "look_up", "args": '{"where": bad', "id": "c2", "error": "no JSON"}],
    ),
    ToolMessage("Rain.", tool_call_id="c1"),
    ToolMessage([{"type": "text", "text": "Unknown."}], tool_call_id="c2", status="error"),
    AIMessage([{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": "It rains."}]),
    HumanMessage(
        [
            "And this?",
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            {"type": "image", "base64": "AAAA", "mime_type": "image/png"},
            {"type": "audio", "base64": "AAAA", "mime_type": "audio/wav"},
        ]
    ),
    AIMessage("", additional_kwargs={"tool_calls": [WRITTEN_CALL]}),
    ToolMessage("Sun.", tool_call_id="c3"),
    RemoveMessage(id="1"),
    AIMessageChunk("The sun shines."),
    ChatMessage(role="user", content="Thanks."),
]


def main(folder: Path) -> None:
    for name, dump in (("messages_to_dict", messages_to_dict(MESSAGES)), ("dumpd", dumpd(MESSAGES))):
        file = folder / f"langchain_{name}.json"
        file.write_text(json.dumps(dump, ensure_ascii=False, indent=1) + "\n")
        print(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
