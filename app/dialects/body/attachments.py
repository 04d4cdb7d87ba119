"""Describes the images, audio and files of a message for people. Pure.

Parts of the Responses protocol that no chat message has stand in the chat form as they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.conversation.item import Item
from app.conversation.json_text import keep_text, list_objects
from app.dialects.body.message import decode_body

MAX_NAME_CHARS = 200


def describe_attachments(message: Item) -> list[dict[str, str]]:
    """Returns `type` and `detail` of each attachment of a message, without its data."""
    body = decode_body(message)
    attachments = [_describe_attachment(part) for part in list_objects(body.get("content"))]
    if isinstance(body.get("audio"), Mapping):
        attachments.append({"type": "audio", "detail": "spoken"})
    return [one for one in attachments if one is not None]


def _describe_attachment(part: Mapping[str, Any]) -> dict[str, str] | None:
    """Describes an attachment without its base64 data; None for a part that is no attachment."""
    match part:
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            return {"type": "image", "detail": _shorten_url(url)}
        case {"type": "input_image", "file_id": str(file_id)}:
            return {"type": "image", "detail": file_id[:MAX_NAME_CHARS]}
        case {"type": "input_file", "file_url": str(url)}:
            return {
                "type": "file",
                "detail": keep_text(part.get("filename"))[:MAX_NAME_CHARS] or _shorten_url(url),
            }
        case {"type": "input_audio", "input_audio": dict(audio)}:
            return {"type": "audio", "detail": keep_text(audio.get("format"))}
        case {"type": "file", "file": dict(file)}:
            file_name = keep_text(file.get("filename")) or keep_text(file.get("file_id"))
            return {"type": "file", "detail": file_name[:MAX_NAME_CHARS]}
    return None


def _shorten_url(url: str) -> str:
    """Returns the beginning of a URL; for a data URL its media type."""
    return url[: url.find(",")][:100].removesuffix(";base64") if url.startswith("data:") else url[:MAX_NAME_CHARS]
