"""Files as other programs write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def chatgpt_message(role: str, text: str, create_time: float | None = None, **fields: Any) -> dict[str, Any]:
    """A message of a ChatGPT export."""
    return {
        "id": f"message-{text[:8]}",
        "author": {"role": role, "name": None, "metadata": {}},
        "create_time": create_time,
        "update_time": None,
        "content": {"content_type": "text", "parts": [text]},
        "status": "finished_successfully",
        "weight": 1.0,
        "metadata": {},
        "recipient": "all",
        **fields,
    }


def node(parent: str | None, message: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"message": message, "parent": parent}


def chatgpt_conversation(
    nodes: Mapping[str, Mapping[str, Any]], current_node: str | None, **fields: Any
) -> dict[str, Any]:
    """A conversation of a ChatGPT export; ids and children are filled in."""
    mapping = {
        name: {**one, "id": name, "children": [child for child, other in nodes.items() if other["parent"] == name]}
        for name, one in nodes.items()
    }
    return {"title": None, "mapping": mapping, "current_node": current_node, **fields}
