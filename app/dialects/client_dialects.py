"""What the pipeline asks of the protocol of a request: how its answer is written by default, and what is kept of its
fields. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.dialects.answer_format import AnswerFormat
from app.dialects.chat.answer_format import ChatAnswerFormat
from app.dialects.chat.stored_completion import select_kept_fields
from app.dialects.request_schemas import Protocol
from app.dialects.responses.stored_response import read_parameters


def make_default_answer_format() -> AnswerFormat:
    """Makes the format of an answer of Chat Completions."""
    return ChatAnswerFormat()


def read_kept_parameters(protocol: Protocol, fields: Mapping[str, bytes], request_id: str) -> dict[str, Any]:
    """Returns the fields of a request that its stored completion or response repeats."""
    return read_parameters(fields) if protocol == "responses" else select_kept_fields(fields, request_id)
