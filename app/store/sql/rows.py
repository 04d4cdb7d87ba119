"""Rows ↔ nouns. Column orders here are those of the dataclasses, so that a row unpacks straight into one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import orjson

from app.conversation.api_keys import ApiKey
from app.conversation.messages import (
    Anchor,
    Chunk,
    ClientVersion,
    Conversation,
    LogMessage,
    Message,
    StoredCompletion,
)

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
    "marks",
    "indexed_before",
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
    "revision",
)
VERSION_COLUMNS: Final = ("seq", "since_seq", "to_seq", "bodies", "tokens_delta")
ANCHOR_COLUMNS: Final = ("digest", "root", "conversation_id", "seq")
COMPLETION_COLUMNS: Final = (
    "id",
    "tenant",
    "root",
    "conversation_id",
    "seq",
    "model",
    "created_at",
    "metadata",
    "parameters",
    "instructions",
)
KEY_COLUMNS: Final = (
    "id",
    "digest",
    "hint",
    "name",
    "tenant",
    "scopes",
    "created_at",
    "policy",
    "models",
    "retention_days",
    "expires_at",
    "revoked_at",
)

Lineage = tuple[tuple[str, int], ...]


def as_json(value: Mapping[str, Any]) -> str:
    if not value:
        return "{}"
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
        marks,
        indexed_before,
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
        {} if marks == "{}" else orjson.loads(marks),
        indexed_before,
    )


def conversation_values(new: Conversation, created_at: datetime | str, updated_at: datetime | str) -> tuple[Any, ...]:
    """The values of `CONVERSATION_COLUMNS`."""
    return (
        new.id,
        new.root,
        new.tenant,
        new.head_seq,
        new.head_link,
        new.head_skeleton,
        new.head_tokens_total,
        new.answered,
        new.encoding,
        lineage_json(new.lineage),
        new.external_id,
        new.mode,
        new.chunk_count,
        as_json(new.state),
        as_json(new.metadata),
        created_at,
        updated_at,
        as_json(new.marks),
        new.indexed_before,
    )


def names_itself(new: Conversation) -> bool:
    """Whether a new conversation is the first that its client's own id means."""
    return new.external_id is not None and not new.lineage


def advance_values(
    after: Conversation, after_seq: int, tokens_total_before: int, updated_at: datetime | str
) -> tuple[Any, ...]:
    """Which head moves, and the values of `statements.HEAD` that it moves to."""
    return (
        after.root,
        after.id,
        after.tenant,
        after_seq,
        tokens_total_before,
        after.head_seq,
        after.head_link,
        after.head_skeleton,
        after.head_tokens_total,
        after.answered,
        after.mode,
        after.chunk_count,
        as_json(after.state),
        updated_at,
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


def message_values(entry: LogMessage, created_at: datetime | str) -> tuple[Any, ...]:
    """The values of `MESSAGE_COLUMNS`."""
    return (
        entry.seq,
        entry.message.raw.decode(),
        entry.link,
        entry.skeleton,
        entry.in_skeleton,
        entry.tokens,
        entry.tokens_total,
        entry.answered,
        entry.incomplete,
        created_at,
        as_optional_json(entry.meta),
    )


def version_of(row: Sequence[Any]) -> ClientVersion:
    """A row of `VERSION_COLUMNS`."""
    seq, since_seq, to_seq, bodies, tokens_delta = row
    texts = None if bodies is None else tuple(text.encode() for text in orjson.loads(bodies))
    return ClientVersion(seq, since_seq, to_seq, texts, tokens_delta)


def version_values(version: ClientVersion) -> tuple[Any, ...]:
    """The values of `VERSION_COLUMNS`."""
    bodies = version.bodies
    text = None if bodies is None else orjson.dumps([body.decode() for body in bodies]).decode()
    return (version.seq, version.since_seq, version.to_seq, text, version.tokens_delta)


def anchor_values(anchor: Anchor) -> tuple[Any, ...]:
    """The values of `ANCHOR_COLUMNS`."""
    return (anchor.digest, anchor.root, anchor.conversation_id, anchor.seq)


def chunk_of(row: Sequence[Any]) -> Chunk:
    """A row of `CHUNK_COLUMNS`."""
    (
        chunk_id,
        conversation_id,
        from_seq,
        to_seq,
        from_link,
        to_link,
        to_skeleton,
        text,
        tokens,
        tokens_total,
        anchor_seq,
        anchor_tokens,
        through_turn,
        kind,
        model,
        prompt_version,
        created_at,
        folds,
        duration_ms,
        usage,
        revision,
    ) = row
    return Chunk(
        chunk_id,
        conversation_id,
        from_seq,
        to_seq,
        from_link,
        to_link,
        to_skeleton,
        text,
        tokens,
        tokens_total,
        anchor_seq,
        anchor_tokens,
        through_turn,
        kind,
        model,
        prompt_version,
        moment_of(created_at),
        () if folds == "[]" else tuple(orjson.loads(folds)),
        duration_ms,
        None if usage is None else orjson.loads(usage),
        revision,
    )


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
        chunk.revision,
    )


def completion_of(row: Sequence[Any]) -> StoredCompletion:
    """A row of `COMPLETION_COLUMNS`."""
    values: dict[str, Any] = dict(zip(COMPLETION_COLUMNS, row, strict=True))
    values["created_at"] = moment_of(values["created_at"])
    values["metadata"] = orjson.loads(values["metadata"])
    values["parameters"] = orjson.loads(values["parameters"])
    values["instructions"] = tuple(orjson.loads(values["instructions"]))
    return StoredCompletion(**values)


def completion_values(completion: StoredCompletion, created_at: datetime | str) -> dict[str, Any]:
    """The values of `COMPLETION_COLUMNS`."""
    values = {name: getattr(completion, name) for name in COMPLETION_COLUMNS}
    return values | {
        "created_at": created_at,
        "metadata": as_json(completion.metadata),
        "parameters": as_json(completion.parameters),
        "instructions": orjson.dumps(completion.instructions).decode(),
    }


def key_of(row: Sequence[Any]) -> ApiKey:
    """A row of `KEY_COLUMNS`."""
    values: dict[str, Any] = dict(zip(KEY_COLUMNS, row, strict=True))
    for name in ("created_at", "expires_at", "revoked_at"):
        values[name] = None if values[name] is None else moment_of(values[name])
    for name in ("scopes", "models"):
        values[name] = tuple(orjson.loads(values[name]))
    return ApiKey(**values)


def key_values(key: ApiKey, moment: Callable[[datetime], Any]) -> dict[str, Any]:
    """The values of `KEY_COLUMNS`; `moment` makes a time what is stored."""
    values = {name: getattr(key, name) for name in KEY_COLUMNS}
    for name in ("created_at", "expires_at", "revoked_at"):
        values[name] = None if values[name] is None else moment(values[name])
    for name in ("scopes", "models"):
        values[name] = orjson.dumps(values[name]).decode()
    return values
