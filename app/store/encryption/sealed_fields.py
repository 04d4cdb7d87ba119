"""What of the nouns is kept under a key, and what each piece is bound to. Pure but for the nonces.

Sealed are what people and models said: bodies and meta of messages, texts of summaries, a conversation's state (which
holds its instructions), parameters and instructions of stored completions. Columns of JSON hold `{"enc": "…"}` instead.
Messages are bound to tenant and link and not to their conversation: erasing one hands its messages over to a branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson
from msgspec.structs import replace

from app.conversation.messages import Chunk, ClientVersion, Conversation, LogMessage, Message, StoredCompletion
from app.store.encryption.cipher import Cipher, is_sealed, is_sealed_text

ENCRYPTED: Final = "enc"


class Sealing:
    """Seals nouns before they are stored, and opens them again."""

    def __init__(self, cipher: Cipher) -> None:
        self._cipher = cipher

    @property
    def is_active(self) -> bool:
        """Whether anything is encrypted; otherwise it is only decrypted."""
        return self._cipher.active is not None

    def seal_message(self, tenant: str, entry: LogMessage) -> LogMessage:
        raw = self._cipher.seal(entry.message.raw, _place("body", tenant, entry.link.hex()))
        return replace(
            entry,
            message=entry.message if raw is entry.message.raw else Message(raw),
            meta=self._seal_json(entry.meta, _place("meta", tenant, entry.link.hex())),
        )

    def open_message(self, tenant: str, entry: LogMessage) -> LogMessage:
        stored = entry.message.raw
        if not is_sealed(stored) and (entry.meta is None or ENCRYPTED not in entry.meta):
            return entry
        link = entry.link.hex()
        raw = self._cipher.open(stored, _place("body", tenant, link))
        meta = self._open_json(entry.meta, _place("meta", tenant, link))
        return replace(entry, message=entry.message if raw is stored else Message(raw), meta=meta)

    def seal_conversation(self, conversation: Conversation) -> Conversation:
        if not self.is_active:
            return conversation
        place = _place("state", conversation.tenant, conversation.id)
        return replace(conversation, state=self._seal_json(conversation.state, place))

    def open_conversation(self, conversation: Conversation) -> Conversation:
        if ENCRYPTED not in conversation.state:
            return conversation
        place = _place("state", conversation.tenant, conversation.id)
        state = self._open_json(conversation.state, place)
        return conversation if state is conversation.state else replace(conversation, state=state)

    def open_later(self, conversation: Conversation) -> Conversation:
        """A conversation whose state is opened when somebody looks: one that cannot be read is listed among the others
        all the same, and can be erased."""
        if ENCRYPTED not in conversation.state:
            return conversation
        return replace(conversation, state=_Later(lambda: self.open_conversation(conversation).state))

    def seal_version(self, tenant: str, version: ClientVersion) -> ClientVersion:
        """All bodies of a version become one sealed text; a message left out says nothing and stays as it is."""
        if not self.is_active or not version.bodies:
            return version
        listed = orjson.dumps([body.decode() for body in version.bodies])
        return replace(version, bodies=(self._cipher.seal(listed, _place_of_version(tenant, version)),))

    def open_version(self, tenant: str, version: ClientVersion) -> ClientVersion:
        if not version.bodies or not is_sealed(version.bodies[0]):
            return version
        listed = orjson.loads(self._cipher.open(version.bodies[0], _place_of_version(tenant, version)))
        return replace(version, bodies=tuple(body.encode() for body in listed))

    def seal_chunk(self, tenant: str, chunk: Chunk) -> Chunk:
        if not self.is_active:
            return chunk
        text = self._cipher.seal(chunk.text.encode(), _place_of_chunk(tenant, chunk))
        return replace(chunk, text=text.decode())

    def open_chunk(self, tenant: str, chunk: Chunk) -> Chunk:
        if not is_sealed_text(chunk.text):
            return chunk
        text = self._cipher.open(chunk.text.encode(), _place_of_chunk(tenant, chunk))
        return replace(chunk, text=text.decode())

    def seal_completion(self, completion: StoredCompletion) -> StoredCompletion:
        parameters, instructions = _places_of_completion(completion)
        texts = completion.instructions
        if texts:
            listed = orjson.dumps(texts)
            sealed = self._cipher.seal(listed, instructions)
            texts = texts if sealed is listed else (sealed.decode(),)
        return replace(completion, parameters=self._seal_json(completion.parameters, parameters), instructions=texts)

    def open_completion(self, completion: StoredCompletion) -> StoredCompletion:
        parameters, instructions = _places_of_completion(completion)
        texts = completion.instructions
        if len(texts) == 1:
            stored = texts[0].encode()
            plain = self._cipher.open(stored, instructions)
            texts = texts if plain is stored else tuple(orjson.loads(plain))
        return replace(completion, parameters=self._open_json(completion.parameters, parameters), instructions=texts)

    def is_current(self, stored: LogMessage | Conversation | Chunk | ClientVersion | StoredCompletion) -> bool:
        """Whether something is stored as it would be now."""
        if isinstance(stored, ClientVersion):
            return not stored.bodies or self._cipher.is_current(stored.bodies[0])
        if isinstance(stored, LogMessage):
            return self._cipher.is_current(stored.message.raw) and self._is_current_json(stored.meta)
        if isinstance(stored, Conversation):
            return self._is_current_json(stored.state)
        if isinstance(stored, Chunk):
            return self._cipher.is_current(stored.text.encode())
        texts = stored.instructions
        is_current = not texts or self._cipher.is_current(texts[0].encode() if len(texts) == 1 else b"")
        return is_current and self._is_current_json(stored.parameters)

    def _is_current_json(self, value: Mapping[str, Any] | None) -> bool:
        return not value or self._cipher.is_current(_sealed_text(value) or b"")

    def _seal_json(self, value: Any, place: bytes) -> Any:
        """An empty one says nothing and stays as it is."""
        if not value:
            return value
        plain = orjson.dumps(value if type(value) is dict else dict(value))
        sealed = self._cipher.seal(plain, place)
        return value if sealed is plain else {ENCRYPTED: sealed.decode()}

    def _open_json(self, value: Any, place: bytes) -> Any:
        stored = _sealed_text(value) if value else None
        if stored is None:
            return value
        plain = self._cipher.open(stored, place)
        return value if plain is stored else orjson.loads(plain)


class _Later(Mapping[str, Any]):
    """A mapping that is made when somebody looks into it."""

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self._make = make
        self._made: Mapping[str, Any] | None = None

    def _look(self) -> Mapping[str, Any]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __getitem__(self, name: str) -> Any:
        return self._look()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._look())

    def __len__(self) -> int:
        return len(self._look())


def _sealed_text(value: Mapping[str, Any]) -> bytes | None:
    text = value.get(ENCRYPTED) if len(value) == 1 else None
    return text.encode() if isinstance(text, str) else None


def _place(kind: str, tenant: str, *names: str) -> bytes:
    return orjson.dumps(("concertina", kind, tenant, *names))


def _place_of_chunk(tenant: str, chunk: Chunk) -> bytes:
    """Not the revision: the store numbers those."""
    return _place("chunk", tenant, chunk.from_link.hex(), chunk.to_link.hex(), chunk.id)


def _place_of_version(tenant: str, version: ClientVersion) -> bytes:
    """Not the conversation: erasing one hands its versions over to a branch."""
    return _place("version", tenant, str(version.seq), str(version.to_seq), str(version.since_seq))


def _places_of_completion(completion: StoredCompletion) -> tuple[bytes, bytes]:
    return (
        _place("parameters", completion.tenant, completion.id),
        _place("instructions", completion.tenant, completion.id),
    )
