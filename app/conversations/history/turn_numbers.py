"""Which turn of a conversation a message belongs to. A log is only ever added to, so what was counted stays known."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from app.conversation.messages import Conversation, LogMessage
from app.store.contract import Store

STRIDE_MESSAGES: Final = 512
"""Read at a time, and how far apart the places are whose number is kept."""
KEPT_CONVERSATIONS: Final = 1_000


class _Spoken(msgspec.Struct):
    """Of a message, who speaks: the rest of a long one is passed over without being decoded."""

    role: str = ""


_spoken = msgspec.json.Decoder(_Spoken).decode


def role_of(entry: LogMessage) -> str:
    """The role of a message."""
    try:
        return _spoken(entry.message.raw).role
    except msgspec.DecodeError:
        return entry.message.role


def opens_turn(entry: LogMessage) -> bool:
    """Whether a turn begins with this message: a user's, or whatever a log begins with (`context.plan.log_cuts`)."""
    return entry.seq == 0 or role_of(entry) == "user"


def numbered(entries: Sequence[LogMessage], before: int) -> list[int]:
    """Of each of these messages, which follow on each other, the number of its turn, counted from 1.

    Args:
        before: how many turns begin in the log before the first of them.
    """
    numbers = []
    for entry in entries:
        before += opens_turn(entry)
        numbers.append(before)
    return numbers


class Numbering:
    """Counts turns, and remembers the counts of the conversations that were asked for last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[str, dict[int, int]] = OrderedDict()

    async def before(self, conversation: Conversation, seq: int, known: Mapping[int, int] | None = None) -> int:
        """How many turns begin in a conversation's log before a seq.

        Args:
            known: the same for other places, as summaries have it.

        Raises:
            StoreUnavailable: the log cannot be read.
        """
        places = self._places(conversation.id)
        nearest, turns = max(place for place in {**(known or {}), **places}.items() if place[0] <= seq)
        while nearest < seq:
            past = min(seq, nearest - nearest % STRIDE_MESSAGES + STRIDE_MESSAGES)
            turns += sum(map(opens_turn, await self._store.read(conversation, nearest, past)))
            nearest = past
            if nearest % STRIDE_MESSAGES == 0:
                places[nearest] = turns
        return turns

    def _places(self, conversation_id: str) -> dict[int, int]:
        places = self._known.setdefault(conversation_id, {0: 0})
        self._known.move_to_end(conversation_id)
        if len(self._known) > KEPT_CONVERSATIONS:
            self._known.popitem(last=False)
        return places
