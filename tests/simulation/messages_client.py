"""What a client of the Messages API sends and reads, from and to the chat messages that each client keeps."""

from __future__ import annotations

import json
from typing import Any

from tests.simulation.gateway import Answer

Message = dict[str, Any]
GATEWAY_FIELDS = ("conversation_id", "context_status", "context")
MAX_TOKENS = 500


def build_messages_body(body: dict[str, Any]) -> dict[str, Any]:
    """Returns the body of a chat completion request as that of a message."""
    history: list[Message] = body["messages"]
    first = next((at for at, one in enumerate(history) if one["role"] != "system"), len(history))
    fields = {name: body[name] for name in ("model", "stream")} | {"max_tokens": MAX_TOKENS}
    if first:
        fields["system"] = "\n".join(one["content"] for one in history[:first])
    if "tools" in body:
        functions = [tool["function"] for tool in body["tools"]]
        fields["tools"] = [{"name": one["name"], "input_schema": one["parameters"]} for one in functions]
    messages: list[Message] = []
    for one in history[first:]:
        if one["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": one["tool_call_id"], "content": one["content"]}
            if not (messages and messages[-1]["role"] == "user" and isinstance(messages[-1]["content"], list)):
                messages.append({"role": "user", "content": []})
            messages[-1]["content"].append(block)
        elif calls := one.get("tool_calls"):
            said = [{"type": "text", "text": one["content"]}] if one["content"] else []
            messages.append({"role": "assistant", "content": said + [build_tool_use(call) for call in calls]})
        else:
            messages.append({"role": one["role"], "content": one["content"]})
    return {**fields, "messages": messages}


def build_tool_use(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": json.loads(function["arguments"])}


def read_message(answer: Answer) -> tuple[Message | None, dict[str, Any]]:
    """As `clients.read_answer`."""
    if answer.status != 200:
        return None, {}
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return (build_chat_message(answer.body["content"]), answer.body) if answer.is_whole else (None, {})
    blocks: list[dict[str, Any]] = []
    fields: dict[str, Any] = {}
    for event in answer.events:
        match event:
            case {"type": "error"}:
                message = build_chat_message(blocks)
                return (message, fields) if not answer.is_whole and message["content"] else (None, fields)
            case {"type": "message_start", "message": message}:
                fields |= {name: message[name] for name in GATEWAY_FIELDS if name in message}
            case {"type": "content_block_start", "content_block": block}:
                blocks.append({**block, "input": ""} if block["type"] == "tool_use" else dict(block))
            case {"type": "content_block_delta", "delta": {"text": text}}:
                blocks[-1]["text"] += text
            case {"type": "content_block_delta", "delta": {"partial_json": text}}:
                blocks[-1]["input"] += text
            case {"type": "message_delta"}:
                fields |= {name: event[name] for name in GATEWAY_FIELDS if name in event}
    calls = [block for block in blocks if block["type"] == "tool_use"] if answer.is_whole else []
    for call in calls:
        call["input"] = json.loads(call["input"] or "{}")
    return build_chat_message([block for block in blocks if block["type"] != "tool_use"] + calls), fields


def build_chat_message(blocks: list[dict[str, Any]]) -> Message:
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = [
        {
            "id": block["id"],
            "type": "function",
            "function": {"name": block["name"], "arguments": json.dumps(block["input"])},
        }
        for block in blocks
        if block["type"] == "tool_use"
    ]
    return {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}
