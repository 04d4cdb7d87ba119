"""A view that is being trimmed: what a stage takes and returns. Tokens are raw counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from app.context.outline import Note
from app.context.partition import Anchor, Tail
from app.context.view import Counter, summary_message_tokens
from app.conversation.messages import Chunk, Message


@dataclass(frozen=True, slots=True)
class Scene:
    """What no stage changes."""

    instructions_tokens: int
    tail: Tail
    limit_tokens: int
    """The most that the view may take."""
    count: Counter
    last_boundary_seq: int = 0
    """Where the verbatim part began in the last view made for this window."""
    regrow_tokens: int = 0
    """A view below this may show more than the last one did."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """A message in shortened form."""

    message: Message
    tokens: int


@dataclass(frozen=True, slots=True)
class Draft:
    """A view in the making: chunks, the anchor, and the log from `boundary_seq` with `replaced` messages."""

    scene: Scene
    chunks: tuple[Chunk, ...]
    boundary_seq: int
    anchor: Anchor | None
    replaced: Mapping[int, Replacement] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()

    @property
    def dropped(self) -> int:
        """Messages neither shown nor covered by a chunk."""
        forgotten_to = self.chunks[0].from_seq if self.chunks else self.scene.tail.start_seq
        cut_from = self.scene.tail.start_seq
        missing = forgotten_to + self.boundary_seq - cut_from
        if self.anchor and (self.anchor.seq < forgotten_to or cut_from <= self.anchor.seq < self.boundary_seq):
            missing -= 1
        return missing

    @property
    def tokens(self) -> int:
        return self.scene.instructions_tokens + self.summary_tokens + self.verbatim_tokens

    @property
    def summary_tokens(self) -> int:
        return summary_message_tokens(self.chunks, self.dropped, self.scene.count)

    @property
    def verbatim_tokens(self) -> int:
        """The anchor and the log from the boundary on."""
        tail = self.scene.tail
        saved = sum(tail.message(seq).tokens - shortened.tokens for seq, shortened in self.replaced.items())
        return (self.anchor.tokens if self.anchor else 0) + tail.tokens_from(self.boundary_seq) - saved

    @property
    def excess_tokens(self) -> int:
        return self.tokens - self.scene.limit_tokens

    @property
    def fits(self) -> bool:
        return self.excess_tokens <= 0

    def cut_at(self, seq: int) -> Draft:
        """The same view with its verbatim part beginning at `seq`."""
        return replace(self, boundary_seq=seq, anchor=self.scene.tail.anchor_at(seq))

    def noted(self, code: str, **facts: int | float | str) -> Draft:
        return replace(self, notes=(*self.notes, Note(code, facts)))
