"""Rows ↔ nouns. Column orders here are those of the dataclasses, so that a row unpacks straight into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import orjson

from app.conversation.messages import Chunk, Conversation, LogMessage, Message

CONVERSATION_COLUMNS: Final = (
    "id",
    "root",
    "tenant",
    "head_seq",
    "head_link",
    "head_skeleton",
    "head_tokens_total",
    "answered",
    "encoding",
    "lineage",
    "external_id",
    "mode",
    "chunk_count",
    "state",
    "metadata",
    "created_at",
    "updated_at",
)
MESSAGE_COLUMNS: Final = (
    "seq",
    "body",
    "link",
    "skeleton",
    "in_skeleton",
    "tokens",
    "tokens_total",
    "answered",
    "incomplete",
    "created_at",
    "meta",
)
CHUNK_COLUMNS: Final = (
    "id",
    "conversation_id",
    "from_seq",
    "to_seq",
    "from_link",
    "to_link",
    "to_skeleton",
    "text",
    "tokens",
    "tokens_total",
    "anchor_seq",
    "anchor_tokens",
    "through_turn",
    "kind",
    "model",
    "prompt_version",
    "created_at",
    "folds",
    "duration_ms",
    "usage",
)

Lineage = tuple[tuple[str, int], ...]


def as_json(value: Mapping[str, Any]) -> str:
    return orjson.dumps(value if type(value) is dict else dict(value)).decode()


def as_optional_json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else as_json(value)


def lineage_json(lineage: Lineage) -> str:
    return orjson.dumps(lineage).decode() if lineage else "[]"


def lineage_of(text: str) -> Lineage:
    if text == "[]":
        return ()
    return tuple((conversation_id, upto_seq) for conversation_id, upto_seq in orjson.loads(text))


def as_text(moment: datetime) -> str:
    """How SQLite keeps a time; always with microseconds, so that text order is time order."""
    return moment.isoformat(timespec="microseconds")


def moment_of(value: datetime | str) -> datetime:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def conversation_of(row: Sequence[Any]) -> Conversation:
    """A row of `CONVERSATION_COLUMNS`."""
    (
        conversation_id,
        root,
        tenant,
        head_seq,
        head_link,
        head_skeleton,
        head_tokens_total,
        answered,
        encoding,
        lineage,
        external_id,
        mode,
        chunk_count,
        state,
        metadata,
        created_at,
        updated_at,
    ) = row
    return Conversation(
        conversation_id,
        root,
        tenant,
        head_seq,
        head_link,
        head_skeleton,
        head_tokens_total,
        bool(answered),
        encoding,
        lineage_of(lineage),
        external_id,
        mode,
        chunk_count,
        {} if state == "{}" else orjson.loads(state),
        {} if metadata == "{}" else orjson.loads(metadata),
        moment_of(created_at),
        moment_of(updated_at),
    )


def log_message_of(row: Sequence[Any]) -> LogMessage:
    """A row of `MESSAGE_COLUMNS`."""
    seq, body, link, skeleton, in_skeleton, tokens, tokens_total, answered, incomplete, created_at, meta = row
    return LogMessage(
        seq,
        Message(body.encode()),
        link,
        skeleton,
        bool(in_skeleton),
        tokens,
        tokens_total,
        bool(answered),
        bool(incomplete),
        moment_of(created_at),
        None if meta is None else orjson.loads(meta),
    )


def chunk_of(row: Sequence[Any]) -> Chunk:
    """A row of `CHUNK_COLUMNS`."""
    values: dict[str, Any] = dict(zip(CHUNK_COLUMNS, row, strict=True))
    usage = values["usage"]
    values["created_at"] = moment_of(values["created_at"])
    values["folds"] = tuple(orjson.loads(values["folds"]))
    values["usage"] = None if usage is None else orjson.loads(usage)
    return Chunk(**values)


def chunk_values(chunk: Chunk, created_at: datetime | str) -> tuple[Any, ...]:
    """The values of `CHUNK_COLUMNS`."""
    return (
        chunk.id,
        chunk.conversation_id,
        chunk.from_seq,
        chunk.to_seq,
        chunk.from_link,
        chunk.to_link,
        chunk.to_skeleton,
        chunk.text,
        chunk.tokens,
        chunk.tokens_total,
        chunk.anchor_seq,
        chunk.anchor_tokens,
        chunk.through_turn,
        chunk.kind,
        chunk.model,
        chunk.prompt_version,
        created_at,
        orjson.dumps(chunk.folds).decode(),
        chunk.duration_ms,
        as_optional_json(chunk.usage),
    )
