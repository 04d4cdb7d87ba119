"""Renders standing requests in a view: one user message, fenced and labelled as the user's own words. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.context.standing.standing_requests import StandingRequest
from app.conversation.item import Item
from app.dialects.body.message import ChatMessage
from app.dialects.item_decoding import decode_item

STANDING_LABEL = (
    "My standing requests, word for word, from earlier messages that are no longer shown. Follow them in each answer. "
    "Where two of them differ, or one differs from a message below, the later one counts.\n\n<standing_requests>\n"
)
STANDING_END = "</standing_requests>"


def build_standing_message(requests: Sequence[StandingRequest], find_raw_message: Callable[[int], bytes]) -> Item:
    """Returns the message that shows standing requests. Its lines come from the log; a line whose message was erased
    since is left out.

    Args:
        find_raw_message: returns the raw log message at a seq.
    """
    lines = []
    for one in requests:
        text = decode_item(bytes(find_raw_message(one.seq))).text[one.start : one.end]
        if text:
            lines.append(render_standing_line(text))
    return ChatMessage.from_text("user", STANDING_LABEL + "".join(lines) + STANDING_END)


def render_standing_line(text: str) -> str:
    """Returns the line of a request. No line has a line break or a fence's tag in it (`request_finder`), so it cannot
    pass for anything else."""
    return f"- {text}\n"


def count_standing_frame_tokens(count_message: Callable[[Item], int]) -> int:
    """Returns the tokens of the message without its lines. Lines end in a line break, so that token counts add up."""
    return count_message(ChatMessage.from_text("user", STANDING_LABEL + STANDING_END))
