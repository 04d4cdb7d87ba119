"""Renders user text in a view: one user message, fenced. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from app.context.user_text.user_text import UserLine
from app.conversation.item import Item
from app.dialects.body.message import ChatMessage
from app.dialects.item_decoding import decode_item

USER_TEXT_LABEL: Final = (
    "What I said earlier, word for word. It still holds; a later line overrides an earlier one.\n<user_said>\n"
)
USER_TEXT_END: Final = "</user_said>"
_FENCE_IN_TEXT: Final = re.compile(r"<(?=\s*/?\s*(?:user_said|earlier_conversation|quoted))", re.IGNORECASE)


def build_user_text_message(lines: Sequence[UserLine], find_raw_message: Callable[[int], bytes]) -> Item:
    """Returns the message that shows user text. The words come from the log; a line whose message was erased since is
    left out.

    Args:
        find_raw_message: returns the raw log message at a seq.
    """
    rendered = []
    for one in lines:
        message = decode_item(bytes(find_raw_message(one.seq)))
        if text := message.text[one.start : one.end]:
            rendered.append(render_user_line(text, message.name, one.day))
    return ChatMessage.from_text("user", USER_TEXT_LABEL + "".join(rendered) + USER_TEXT_END)


def render_user_line(text: str, name: str | None, day: str = "") -> str:
    """Returns the line of a text, which may have several lines itself. It cannot close the fence. If it names its
    speaker, none of its own lines can pass for another speaker's."""
    text = _FENCE_IN_TEXT.sub("&lt;", text.strip())
    text = f"({day}) {text}" if day else text
    speaker = " ".join((name or "").split())
    if not speaker:
        return f"- {text}\n"
    indented = text.replace("\n", "\n  ")
    return f"- {speaker}: {indented}\n"


def count_user_text_frame_tokens(count_message: Callable[[Item], int]) -> int:
    """Returns the tokens of the message without its lines. Lines end in a line break, so that token counts add up."""
    return count_message(ChatMessage.from_text("user", USER_TEXT_LABEL + USER_TEXT_END))
