"""What is kept of the user's own text, as places in the log. The text itself is never stored here, so erasure,
encryption and branches need nothing of their own. Tokens are raw counts.

Promise: what the user said reaches the model however much is summarized. A wrong choice costs the tokens of a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec
from msgspec.structs import replace


class UserLine(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """The part `[start, end)`, in characters, of the text of the user message `seq`."""

    seq: int
    start: int
    end: int
    tokens: int
    """Tokens of its line in a view."""
    is_whole: bool = False
    """Whether it is all of the message."""
    day: str = ""
    """The day on which it was said, `2026-11-22`, if it is shown."""


class UserText(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of the user messages before `before_seq`, in the order of the log."""

    before_seq: int = 0
    head_to: int = 0
    """The first answer. The user messages before it are the head: the task and its instructions."""
    frame_tokens: int = 0
    """Tokens of the message that shows the lines, without the lines."""
    is_complete: bool = True
    """Whether everything is kept that the user said, but for pasted text."""
    lines: tuple[UserLine, ...] = ()

    def select_before(self, boundary_seq: int, shown_seqs: AbstractSet[int] = frozenset()) -> tuple[UserLine, ...]:
        """Returns the lines for a view whose verbatim part begins at `boundary_seq`.

        Args:
            shown_seqs: the messages from before the boundary that the view shows anyway.
        """
        return tuple(one for one in self.lines if one.seq < boundary_seq and one.seq not in shown_seqs)

    def count_tokens(self, lines: Iterable[UserLine]) -> int:
        """Returns the tokens of the message that shows these lines."""
        tokens = sum(one.tokens for one in lines)
        return self.frame_tokens + tokens if tokens else 0

    def shows(self, seq: int, start: int) -> bool:
        """Says whether a line shows what is at a place."""
        return any(one.seq == seq and one.start <= start < one.end for one in self.lines)

    def drop_messages(self, seqs: AbstractSet[int]) -> UserText:
        """Returns the user text without these messages."""
        if seqs.isdisjoint(one.seq for one in self.lines):
            return self
        return replace(self, lines=tuple(one for one in self.lines if one.seq not in seqs))

    def limit_to_log(self, last_seq: int) -> UserText:
        """Returns the user text of a log that ends with `last_seq`: a branch may be shorter than its parent."""
        if self.before_seq <= last_seq + 1:
            return self
        kept = tuple(one for one in self.lines if one.seq <= last_seq)
        return replace(self, before_seq=last_seq + 1, head_to=min(self.head_to, last_seq + 1), lines=kept)


NO_USER_TEXT: Final = UserText()
UserTexts = Sequence[UserText]
"""What is kept of the messages before several places, the earliest first. A view takes the first that reaches its
boundary, so what an earlier view showed stays as it was while its boundary does."""


def find_user_text(texts: UserTexts, boundary_seq: int, default: UserText = NO_USER_TEXT) -> UserText:
    """Returns the user text for a view whose verbatim part begins at `boundary_seq`.

    The default if messages before the boundary were not read yet. It shows nothing: one of them may withdraw what a
    line says.
    """
    for one in texts:
        if boundary_seq <= one.before_seq:
            return one
    return default
