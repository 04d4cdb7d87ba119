"""Reads a completion object that is not stored as an answer, such as a summarizer's. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from app.dialects.answer_decoding import AnswerDecoder
from app.dialects.answer_events import AnswerValue
from app.dialects.assembled_answer import AssembledAnswer


class FirstChoice(msgspec.Struct, frozen=True):
    """What a completion says in its first choice; the other choices are not read."""

    text: str
    has_calls: bool
    """Whether it calls a tool."""
    finish: str
    """The provider's word for how it ended; empty if it does not say."""
    usage: Mapping[str, Any] | None = None

    @property
    def is_cut_off(self) -> bool:
        """Whether it ended at the limit of its tokens."""
        return self.finish == "length"

    @property
    def is_filtered(self) -> bool:
        return self.finish == "content_filter"


def read_first_choice(answer: AnswerDecoder, values: Sequence[AnswerValue]) -> FirstChoice:
    """Reads the first choice of an answer. What the answer lacks is empty.

    Args:
        values: what the decoder said.
    """
    text = AssembledAnswer(values).build_item().text
    return FirstChoice(text, answer.build_item().calls_tools, answer.finish or "", answer.usage)
