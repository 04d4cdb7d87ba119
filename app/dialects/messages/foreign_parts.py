"""Builds blocks of the Messages API from content parts of Chat Completions. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from app.dialects.items.left_out_kinds import LeftOutKinds
from app.dialects.messages.message_body import Block

EXPRESSED_FIELDS: Final = frozenset({"type", "text", "refusal", "image_url", "file", "prompt_cache_breakpoint"})
"""Fields of parts that blocks express, or that say nothing to a model."""
PDF: Final = "application/pdf"
_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w=.-]+)*;base64,(.*)", re.DOTALL)


def express_part(part: object, left_out: LeftOutKinds) -> Block | None:
    """Returns a content part as a block; None for an empty text, and for what blocks cannot express.

    Args:
        left_out: gets the names of parts and of their fields that blocks do not have.
    """
    if isinstance(part, str):
        return _build_text_block(part)
    if not isinstance(part, dict):
        left_out.add("content that is no part")
        return None
    if part.get("type") in ("text", "image_url", "file"):
        left_out.add_fields(part, EXPRESSED_FIELDS, "content parts")
    match part:
        case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            return _build_text_block(text)
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            return {"type": "image", "source": _build_source(url)}
        case {"type": "file", "file": {"file_data": str(data)} as file}:
            document = _build_document(data)
            if document is not None:
                title = file.get("filename")
                return {**document, "title": title} if isinstance(title, str) and title else document
    left_out.add_type(part.get("type"), "parts")
    return None


def _build_text_block(text: str) -> Block | None:
    return {"type": "text", "text": text} if text.strip() else None


def _build_source(url: str) -> Block:
    found = _DATA_URL.fullmatch(url)
    if found is None:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": found[1], "data": found[2]}


def _build_document(data: str) -> Block | None:
    found = _DATA_URL.fullmatch(data)
    if found is not None and found[1] == PDF:
        return {"type": "document", "source": {"type": "base64", "media_type": PDF, "data": found[2]}}
    if found is not None and found[1].startswith("text/"):
        try:
            text = base64.b64decode(found[2], validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None
        return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}}
    return None
