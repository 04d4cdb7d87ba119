"""Converts between rows and structs. The columns are the fields of the structs, in the same order; only a message has
`body`, its JSON, in place of `message`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec
import orjson
from msgspec.structs import asdict, astuple, replace

from app.conversation.api_keys import ApiKey
from app.conversation.conversation_types import (
    AnswerAnchor,
    ClientVersion,
    Conversation,
    LogMessage,
    StoredCompletion,
    Summary,
)
from app.conversation.json_text import write_large_integers_as_text
from app.dialects.item_decoding import decode_item
from app.store.contract.conversations import LinkMatch, LogAppend
from app.store.contract.usage import UsageTotals

CONVERSATION_COLUMNS: Final = Conversation.__struct_fields__
MESSAGE_COLUMNS: Final = ("seq", "body", *LogMessage.__struct_fields__[2:])
_MESSAGE_COLUMN_COUNT: Final = len(MESSAGE_COLUMNS)
HEAD_COLUMNS: Final = (
    *("head_seq", "head_link", "head_skeleton", "head_tokens_total", "answered", "mode", "chunk_count"),
    *("state", "updated_at"),
)
"""Columns of a conversation that an append replaces."""
SUMMARY_COLUMNS: Final = Summary.__struct_fields__
CLIENT_VERSION_COLUMNS: Final = ClientVersion.__struct_fields__
ANCHOR_COLUMNS: Final = AnswerAnchor.__struct_fields__
COMPLETION_COLUMNS: Final = StoredCompletion.__struct_fields__
API_KEY_COLUMNS: Final = ApiKey.__struct_fields__
USAGE_COLUMNS: Final = UsageTotals.__struct_fields__
USAGE_KEY_COLUMNS: Final = USAGE_COLUMNS[:4]
USAGE_SUM_COLUMNS: Final = USAGE_COLUMNS[4:]

_TIME_FIELDS: Final = frozenset({"created_at", "expires_at", "revoked_at"})
_LIST_FIELDS: Final = frozenset({"folds", "instructions", "scopes", "models", "pass_through"})
_OBJECT_FIELDS: Final = frozenset({"metadata", "parameters", "usage"})
"""Fields of summaries, completions and API keys that are stored in another form."""

Lineage = tuple[tuple[str, int], ...]
EncodeTime = Callable[[datetime], Any]
StoredStruct = TypeVar("StoredStruct", bound=msgspec.Struct)


def encode_json(value: Mapping[str, Any]) -> str:
    if not value:
        return "{}"
    values = value if type(value) is dict else dict(value)
    try:
        return orjson.dumps(values).decode()
    except TypeError:
        return orjson.dumps(write_large_integers_as_text(values)).decode()


def encode_optional_json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else encode_json(value)


def encode_lineage(lineage: Lineage) -> str:
    return orjson.dumps(lineage).decode() if lineage else "[]"


def decode_lineage(text: str) -> Lineage:
    return (
        () if text == "[]" else tuple((conversation_id, upto_seq) for conversation_id, upto_seq in orjson.loads(text))
    )


def encode_time(time: datetime) -> str:
    """Encodes a time for SQLite, always with microseconds, so that text order is time order."""
    return time.isoformat(timespec="microseconds")


def decode_time(stored_time: datetime | str) -> datetime:
    return datetime.fromisoformat(stored_time) if isinstance(stored_time, str) else stored_time


def decode_conversation(row: Sequence[Any]) -> Conversation:
    """Decodes a row of `CONVERSATION_COLUMNS`."""
    stored: Any = Conversation(*row)
    decoded: Conversation = replace(
        stored,
        answered=bool(stored.answered),
        lineage=decode_lineage(stored.lineage),
        state=_decode_json(stored.state),
        metadata=_decode_json(stored.metadata),
        created_at=decode_time(stored.created_at),
        updated_at=decode_time(stored.updated_at),
        marks=_decode_json(stored.marks),
    )
    return decoded


def _decode_json(text: str) -> dict[str, Any]:
    # Empty objects are the usual case, and to compare text is faster than to parse it.
    return {} if text == "{}" else orjson.loads(text)


def conversation_values(
    conversation: Conversation, created_at: datetime | str, updated_at: datetime | str
) -> tuple[Any, ...]:
    """Returns the values of `CONVERSATION_COLUMNS`."""
    stored = replace(
        conversation,
        lineage=encode_lineage(conversation.lineage),
        state=encode_json(conversation.state),
        metadata=encode_json(conversation.metadata),
        created_at=created_at,
        updated_at=updated_at,
        marks=encode_json(conversation.marks),
    )
    return astuple(stored)


def claims_external_id(conversation: Conversation) -> bool:
    """Whether a new conversation takes the client's own id. A branch does not:
    `ConversationStore.assign_external_id` gives it the id later.
    """
    return conversation.external_id is not None and not conversation.lineage


def head_update_values(write: LogAppend, updated_at: datetime | str) -> tuple[Any, ...]:
    """Returns the arguments of the statement `UPDATE_HEAD`: which head must be stored now, then the values of
    `HEAD_COLUMNS`.
    """
    conversation = write.conversation
    key = (conversation.root, conversation.id, conversation.tenant)
    state = encode_json(conversation.state)
    return (*key, write.after_seq, write.tokens_before, *_plain_head_values(conversation), state, updated_at)


_plain_head_values: Final = attrgetter(*HEAD_COLUMNS[:-2])
lease_values: Final = attrgetter("root", "key", "holder", "token")
"""Gets the values by which statements identify a lease."""


def decode_log_message(row: Sequence[Any]) -> LogMessage:
    """Decodes a row of `MESSAGE_COLUMNS`."""
    seq, body, link, skeleton, in_skeleton, tokens, tokens_total, answered, incomplete, created_at, meta = row
    return LogMessage(
        seq,
        decode_item(body.encode()),
        link,
        skeleton,
        bool(in_skeleton),
        tokens,
        tokens_total,
        bool(answered),
        bool(incomplete),
        decode_time(created_at),
        None if meta is None else orjson.loads(meta),
    )


def decode_link_match(row: Sequence[Any]) -> LinkMatch:
    """Decodes a row of `MESSAGE_COLUMNS` and then `CONVERSATION_COLUMNS`."""
    conversation = decode_conversation(row[_MESSAGE_COLUMN_COUNT:])
    return LinkMatch(conversation, decode_log_message(row[:_MESSAGE_COLUMN_COUNT]))


def message_values(entry: LogMessage, created_at: datetime | str) -> tuple[Any, ...]:
    """Returns the values of `MESSAGE_COLUMNS`."""
    meta = encode_optional_json(entry.meta)
    return (entry.seq, entry.message.raw.decode(), *_plain_message_values(entry), created_at, meta)


_plain_message_values: Final = attrgetter(*MESSAGE_COLUMNS[2:-2])


def decode_client_version(row: Sequence[Any]) -> ClientVersion:
    """Decodes a row of `CLIENT_VERSION_COLUMNS`."""
    seq, since_seq, to_seq, bodies, tokens_delta = row
    texts = None if bodies is None else tuple(text.encode() for text in orjson.loads(bodies))
    return ClientVersion(seq, since_seq, to_seq, texts, tokens_delta)


def client_version_values(version: ClientVersion) -> tuple[Any, ...]:
    """Returns the values of `CLIENT_VERSION_COLUMNS`."""
    bodies = version.bodies
    text = None if bodies is None else orjson.dumps([body.decode() for body in bodies]).decode()
    return (version.seq, version.since_seq, version.to_seq, text, version.tokens_delta)


def decode_summary(row: Sequence[Any]) -> Summary:
    """Decodes a row of `SUMMARY_COLUMNS`."""
    stored: Any = Summary(*row)
    digest = stored.versions_digest or b""
    decoded: Summary = replace(
        stored,
        from_link=mask_from_link(stored.from_link, digest),
        created_at=decode_time(stored.created_at),
        folds=tuple(orjson.loads(stored.folds)),
        usage=None if stored.usage is None else orjson.loads(stored.usage),
        versions_digest=digest,
    )
    return decoded


def mask_from_link(from_link: bytes, versions_digest: bytes) -> bytes:
    """Returns the link as the column `from_link` has it, and back: exclusive or with the digest, if there is one. So
    summaries of what a client shows have a range of their own in the unique index, and an earlier version of this
    program, which knows no digest, uses none of them."""
    if not versions_digest:
        return from_link
    return bytes(one ^ other for one, other in zip(from_link, versions_digest, strict=True))


def summary_values(summary: Summary, encode_time: EncodeTime) -> dict[str, Any]:
    """Returns the values of `SUMMARY_COLUMNS`, by name."""
    from_link = mask_from_link(summary.from_link, summary.versions_digest)
    return encode_struct(replace(summary, from_link=from_link), encode_time)


def encode_struct(struct: msgspec.Struct, encode_time: EncodeTime) -> dict[str, Any]:
    """Returns the fields of a struct as they are stored, by name; `encode_time` converts times for the database."""
    values = asdict(struct)
    for name, value in values.items():
        if value is not None and name in _TIME_FIELDS:
            values[name] = encode_time(value)
        elif value is not None and name in _LIST_FIELDS:
            values[name] = orjson.dumps(value).decode()
        elif value is not None and name in _OBJECT_FIELDS:
            values[name] = encode_json(value)
    return values


def decode_struct(struct_type: type[StoredStruct], row: Sequence[Any]) -> StoredStruct:
    """Decodes a row of the fields of a struct."""
    values: dict[str, Any] = dict(zip(struct_type.__struct_fields__, row, strict=True))
    for name, stored in values.items():
        if stored is not None and name in _TIME_FIELDS:
            values[name] = decode_time(stored)
        elif stored is not None and name in _LIST_FIELDS:
            values[name] = tuple(orjson.loads(stored))
        elif stored is not None and name in _OBJECT_FIELDS:
            values[name] = orjson.loads(stored)
    return struct_type(**values)
