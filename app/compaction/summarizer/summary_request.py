"""What a summary is wanted of, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.compaction.partial_summaries import LogParts
from app.compaction.summarizer.prompts import Wish
from app.context.plan.outline import Style
from app.context.plan.policy import Policy
from app.conversation.messages import Chunk, LogMessage
from app.upstream.provider import ClientKey

SAME_MODEL = "same"
"""As `SummarizerPolicy.model`: the request's own."""


class SummaryRefused(Exception):
    """The model answered, but not with a summary that can be used, or is not asked just now; the text says why."""


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """What is to be summarized: log messages, or the chunks that are folded into one."""

    messages: Sequence[LogMessage]
    folded: Sequence[Chunk]
    policy: Policy
    model: str
    """The model of the request that needs the summary."""
    limit_tokens: int
    """The most tokens that the summary may have."""
    replaced_tokens: int
    """Raw tokens of what it stands for."""
    encoding: str
    """In which `replaced_tokens` are counted."""
    client_key: ClientKey | None = None
    focus: str | None = None
    """What the caller asked to pay attention to."""
    style: Style = "additive"
    base: Chunk | None = None
    """The summary before this one, of a rolling summary or a checkpoint."""
    prefix: Sequence[bytes] = ()
    """JSON text of the messages of the last view up to the end of the range."""
    meant: int = 0
    """How many of its last messages are in the range; 0: as many as there are `messages`."""
    fields: Mapping[str, bytes] = field(default_factory=dict)
    """The request's other top-level fields."""
    parts: LogParts | None = None
    """Of a checkpoint: summaries of parts of its log, read in place of messages where all cannot be read at once."""
    tenant: str = ""
    root: str = ""
    """Whose failures these are, if it fails."""

    @property
    def wish(self) -> Wish:
        is_update = self.style == "checkpoint" and self.base is not None
        return Wish(style=self.style, is_fold=bool(self.folded), is_update=is_update)

    @property
    def earlier(self) -> Sequence[Chunk]:
        """Summaries that are read in place of messages."""
        if self.folded or self.base is None or self.style != "recursive":
            return self.folded
        return (self.base,)

    @property
    def allowed_tokens(self) -> int:
        """The longest summary that still gains what the policy asks for."""
        return int(self.replaced_tokens * (1 - self.policy.min_gain_ratio))


@dataclass(frozen=True, slots=True)
class Summary:
    """An accepted summary; `model` is the one that wrote it, by its provider's name."""

    text: str
    model: str
    prompt_version: str
    duration_ms: int
    usage: Mapping[str, Any] | None = None
    """Sum over the calls that it took."""
