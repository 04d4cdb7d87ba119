"""A log as items of OpenAI's Conversations API: ids that name a message in its place. Pure."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from app.conversation.messages import LogMessage

ItemKind = Literal["msg", "fc", "fco", "ctc", "ctco", "rs"]
"""Message, function call and its output, custom tool call and its output, reasoning."""
LINK_HEX: Final = 24
"""How much of a link an id carries: 96 bits."""
_ITEM_ID: Final = re.compile(rf"(?:msg|fc|fco|ctc|ctco|rs)_([0-9a-f]{{8}})([0-9a-f]{{{LINK_HEX}}})([0-9a-f]{{2,6}})")


class ItemPlace(msgspec.Struct, frozen=True):
    """What an item id says: which message, by its place and its link, and which of the items that it makes."""

    seq: int
    link_start: str
    """The first `LINK_HEX` hex digits of the message's link."""
    part: int

    def names(self, entry: LogMessage) -> bool:
        """Whether this is the place of that message: the same in every conversation that shares it."""
        return entry.seq == self.seq and entry.link.hex().startswith(self.link_start)


def item_id(kind: ItemKind, entry: LogMessage, part: int) -> str:
    """The id of one of the items that a message makes. Parts count from 0 in the order reasoning, text, calls."""
    return f"{kind}_{entry.seq:08x}{entry.link.hex()[:LINK_HEX]}{part:02x}"


def parse_item_id(text: str) -> ItemPlace | None:
    """The place that an item id names; None if it is the id of something else."""
    found = _ITEM_ID.fullmatch(text)
    return ItemPlace(int(found[1], 16), found[2], int(found[3], 16)) if found else None
