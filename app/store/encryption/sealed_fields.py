"""Says which fields are encrypted and what each is bound to. Pure, except for the random nonces.

Encrypted is what people and models wrote: bodies and meta of messages, texts of summaries, a conversation's state
(which holds its instructions), parameters and instructions of stored completions. JSON columns hold `{"enc": "…"}`
instead, lists of texts one text. Messages are bound to tenant and link, not to their conversation: erasing a
conversation hands its messages over to a branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final, TypeVar

import orjson
from msgspec.structs import replace

from app.conversation.conversation_types import (
    AnswerProof,
    ClientVersion,
    Conversation,
    LogMessage,
    StoredCompletion,
    Summary,
)
from app.dialects.item_decoding import decode_item
from app.store.contract.conversations import ConversationHit, LinkMatch, MessageVectors, SearchHit
from app.store.encryption.cipher import SEALED_PREFIX, Cipher

SEALED_JSON_KEY: Final = "enc"
Value = TypeVar("Value")


class FieldSealer:
    """Encrypts structs before they are stored, and decrypts them after reading."""

    def __init__(self, cipher: Cipher) -> None:
        self.is_encrypting = cipher.active_key is not None
        """Whether a key is active. Without one, text is only decrypted."""
        self._sealing = _Sealing(cipher)
        self._unsealing = _Unsealing(cipher)

    def seal(self, tenant: str, value: Value) -> Value:
        """Returns a message, client version, summary, conversation or stored completion as it is stored."""
        return _convert(self._sealing, tenant, value) if self.is_encrypting else value

    def unseal(self, tenant: str, value: Value) -> Value:
        """Returns a struct that was read, decrypted. The state of a conversation is decrypted at its first use: one
        whose state cannot be decrypted can then still be listed and erased.

        Raises:
            StoreUnreadable: its key is not configured; or it was altered, or stored at another place.
        """
        # The usual case without encryption.
        if isinstance(value, LogMessage) and not is_sealed_message(value):
            return value
        unsealed: Value = _convert(self._unsealing, tenant, value)
        return unsealed


def is_sealed_message(entry: LogMessage) -> bool:
    """Whether a stored message may be encrypted. Looks at the prefix only, so it is cheap."""
    return entry.message.raw.startswith(SEALED_PREFIX) or SEALED_JSON_KEY in (entry.meta or ())


class _Sealing:
    """Converts fields to the form in which they are stored. An empty field has no text and stays as it is."""

    def __init__(self, cipher: Cipher) -> None:
        self.text: Callable[[bytes, bytes], bytes] = cipher.seal

    def convert_json(self, value: Any, place: bytes) -> Any:
        return {SEALED_JSON_KEY: self.text(orjson.dumps(dict(value)), place).decode()} if value else value

    convert_state = convert_json

    def convert_list(self, texts: tuple[str, ...], place: bytes) -> tuple[str, ...]:
        return (self.text(orjson.dumps(texts), place).decode(),) if texts else texts


class _Unsealing:
    """Converts stored fields back. Plain ones stay as they are."""

    def __init__(self, cipher: Cipher) -> None:
        self.text: Callable[[bytes, bytes], bytes] = cipher.unseal

    def convert_json(self, value: Any, place: bytes) -> Any:
        stored = value.get(SEALED_JSON_KEY) if value and len(value) == 1 else None
        if not isinstance(stored, str):
            return value
        plain = self.text(sealed := stored.encode(), place)
        return value if plain is sealed else orjson.loads(plain)

    def convert_state(self, state: Mapping[str, Any], place: bytes) -> Any:
        return _LazyMapping(lambda: self.convert_json(state, place)) if SEALED_JSON_KEY in state else state

    def convert_list(self, texts: tuple[str, ...], place: bytes) -> tuple[str, ...]:
        if len(texts) != 1:
            return texts
        plain = self.text(sealed := texts[0].encode(), place)
        return texts if plain is sealed else tuple(orjson.loads(plain))


class _LazyMapping(Mapping[str, Any]):
    """A mapping that is loaded at its first use."""

    def __init__(self, load: Callable[[], Mapping[str, Any]]) -> None:
        self._load = cache(load)

    def __getitem__(self, name: str) -> Any:
        return self._load()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())


def _convert(codec: _Sealing | _Unsealing, tenant: str, value: Any) -> Any:
    """Converts the encrypted fields of a struct, and those of the structs in it."""
    match value:
        case LogMessage():
            link = value.link.hex()
            raw = codec.text(value.message.raw, _build_place("body", tenant, link))
            meta = codec.convert_json(value.meta, _build_place("meta", tenant, link))
            return replace(value, message=decode_item(raw), meta=meta)
        case ClientVersion(seq=seq, to_seq=to_seq, since_seq=since_seq, bodies=bodies) if bodies:
            # Not the conversation: erasing it hands its versions over to a branch.
            place = _build_place("version", tenant, str(seq), str(to_seq), str(since_seq))
            texts = codec.convert_list(tuple(body.decode() for body in bodies), place)
            return replace(value, bodies=tuple(text.encode() for text in texts))
        case Summary():
            # Not the revision, since the store assigns its number. "chunk" is part of what is stored: another word
            # would make all summaries unreadable.
            place = _build_place("chunk", tenant, value.from_link.hex(), value.to_link.hex(), value.id)
            return replace(value, text=codec.text(value.text.encode(), place).decode())
        case Conversation():
            place = _build_place("state", value.tenant, value.id)
            state = codec.convert_state(value.state, place)
            return value if state is value.state else replace(value, state=state)
        case MessageVectors():
            # Vectors are bytes, and sealed text is text: sealed bytes are its ASCII.
            place = _build_place("vectors", tenant, value.link.hex())
            return replace(value, vectors=codec.text(value.vectors, place))
        case StoredCompletion(tenant=owner, id=completion_id):
            return replace(
                value,
                parameters=codec.convert_json(value.parameters, _build_place("parameters", owner, completion_id)),
                instructions=codec.convert_list(value.instructions, _build_place("instructions", owner, completion_id)),
            )
        case LinkMatch() | ConversationHit():
            conversation = _convert(codec, tenant, value.conversation)
            return replace(value, conversation=conversation, message=_convert(codec, tenant, value.message))
        case SearchHit():
            return replace(value, message=_convert(codec, tenant, value.message))
        case AnswerProof():
            return replace(value, conversation=_convert(codec, tenant, value.conversation))
    return value


def _build_place(kind: str, tenant: str, *names: str) -> bytes:
    return orjson.dumps(("concertina", kind, tenant, *names))
