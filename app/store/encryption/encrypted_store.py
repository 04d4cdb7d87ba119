"""A store around another store that encrypts texts. `store.encryption.cipher` says how.

Encrypted is what people and models wrote: bodies and meta of messages, texts of summaries, a conversation's state
(which holds its instructions), parameters and instructions of stored completions. JSON columns hold `{"enc": "…"}`
instead, lists of texts one text. Messages are bound to tenant and link, not to their conversation: erasing a
conversation hands its messages over to a branch.

While a key is active, no message is indexed, since hashes of words would reveal them. A search in a conversation
decrypts the newest messages instead (`store.search.unindexed_search`). Rows that were written in plain text, or under
another key, are still readable; to read and to write them again (`concertina reencrypt`) rewrites them. Without any
key, this store only makes sure that ciphertext is never taken for text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar, cast

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
from app.store.contract.conversations import (
    ConversationHit,
    LinkMatch,
    LogAppend,
    MessageVectors,
    PendingAppend,
    SearchHit,
)
from app.store.contract.store import Store
from app.store.encryption.cipher import SEALED_PREFIX, Cipher, Place
from app.store.search.unindexed_search import UnindexedSearch

Value = TypeVar("Value")

SEALED_JSON_KEY: Final = "enc"
INLINE_LIMIT_BYTES: Final = 256 * 1024
"""More bytes than this are encrypted or decrypted in a thread; this many take half a millisecond."""
MESSAGE_OVERHEAD_BYTES: Final = 8 * 1024
"""The fixed cost of a message, in bytes that take as long."""
UNSEALED_OPERATIONS: Final = (
    *("find_link_matches", "find_conversation", "find_conversation_of_any_tenant", "find_proofs", "list_conversations"),
    *("replace_metadata", "read_log", "read_log_ranges", "read_client_versions", "find_summaries"),
    *("read_summary_revisions", "search_tenant", "list_completions", "find_completion"),
)
"""Operations of which only the result is decrypted. They take the tenant, or a conversation first."""


def encrypt_store(inner: Store, cipher: Cipher) -> Store:
    """Returns a store that encrypts what people and models wrote, and keeps it in `inner`."""
    return cast(Store, EncryptedStore(inner, cipher))


class EncryptedStore:
    """`Store` around `inner`. Operations that are not defined here have nothing to encrypt: `inner` runs them."""

    def __init__(self, inner: Store, cipher: Cipher) -> None:
        self.inner = inner
        self._sealer = FieldSealer(cipher)
        self._unindexed_search = UnindexedSearch(inner, self._sealer.unseal)
        self.is_fully_searchable = not self._sealer.is_encrypting
        for name in UNSEALED_OPERATIONS:
            setattr(self, name, self._unseal_result(getattr(inner, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _unseal_result(self, operation: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **named: Any) -> Any:
            tenant = named["tenant"] if "tenant" in named else getattr(arguments[0], "tenant", "")
            found = await operation(*arguments, **named)
            return await self._unseal_all(tenant, found) if type(found) is list else self._sealer.unseal(tenant, found)

        return call

    async def _unseal_all(self, tenant: str, found: list[Value]) -> list[Value]:
        sealed = [one for one in found if isinstance(one, LogMessage) and is_sealed_message(one)]
        if not sealed and found and isinstance(found[0], LogMessage):
            return found  # the usual case without encryption
        return await _convert_all(self._sealer.unseal, tenant, found, sealed)

    async def _seal_messages(self, tenant: str, entries: Sequence[LogMessage]) -> Sequence[LogMessage]:
        return await _convert_all(self._sealer.seal, tenant, entries, entries) if entries else entries

    def append(self, write: LogAppend) -> PendingAppend:
        return self._seal_and_append(write) if self._sealer.is_encrypting else self.inner.append(write)

    async def _seal_and_append(self, write: LogAppend) -> None:
        tenant, seal = write.conversation.tenant, self._sealer.seal
        messages = await self._seal_messages(tenant, write.messages)
        versions = [seal(tenant, one) for one in write.versions]
        sealed = seal(tenant, write.conversation)
        await self.inner.append(replace(write, conversation=sealed, messages=messages, versions=versions))

    async def add_summary(self, *, tenant: str, summary: Summary, **named: Any) -> None:
        await self.inner.add_summary(tenant=tenant, summary=self._sealer.seal(tenant, summary), **named)

    async def revise_summary(self, *, tenant: str, summary: Summary, **named: Any) -> None:
        await self.inner.revise_summary(tenant=tenant, summary=self._sealer.seal(tenant, summary), **named)

    async def redact_messages(self, conversation: Conversation, entries: Sequence[LogMessage]) -> list[Summary]:
        sealed = await self._seal_messages(conversation.tenant, entries)
        return await self._unseal_all(conversation.tenant, await self.inner.redact_messages(conversation, sealed))

    async def rewrite_sealed_fields(
        self,
        conversation: Conversation,
        *,
        entries: Sequence[LogMessage] = (),
        summaries: Sequence[Summary] = (),
        client_versions: Sequence[ClientVersion] = (),
    ) -> None:
        tenant, seal = conversation.tenant, self._sealer.seal
        await self.inner.rewrite_sealed_fields(
            seal(tenant, conversation),
            entries=await self._seal_messages(tenant, entries),
            summaries=[seal(tenant, summary) for summary in summaries],
            client_versions=[seal(tenant, version) for version in client_versions],
        )

    async def save_completion(self, completion: StoredCompletion) -> None:
        await self.inner.save_completion(self._sealer.seal(completion.tenant, completion))

    async def index_messages(self, conversation: Conversation, entries: Sequence[LogMessage]) -> None:
        """Indexes messages; does nothing while a key is active, since an index would reveal the words."""
        if self.is_fully_searchable:
            await self.inner.index_messages(conversation, entries)

    async def add_vectors(self, conversation: Conversation, *, model: str, vectors: Sequence[MessageVectors]) -> None:
        sealed = [self._sealer.seal(conversation.tenant, one) for one in vectors]
        await self.inner.add_vectors(conversation, model=model, vectors=sealed)

    async def read_vectors(self, conversation: Conversation, **named: Any) -> list[MessageVectors]:
        found = await self.inner.read_vectors(conversation, **named)
        # In a thread: those of a long conversation have megabytes.
        return await asyncio.to_thread(lambda: [self._sealer.unseal(conversation.tenant, one) for one in found])

    async def search_log(self, conversation: Conversation, **named: Any) -> list[SearchHit]:
        """As `ConversationStore.search_log`. While a key is active, only the newest messages of a long range are
        searched.
        """
        search = self.inner if self.is_fully_searchable else self._unindexed_search
        return await self._unseal_all(conversation.tenant, await search.search_log(conversation, **named))


async def _convert_all(
    convert: Callable[[str, Value], Value], tenant: str, values: Sequence[Value], costly: Sequence[LogMessage]
) -> list[Value]:
    """Encrypts or decrypts values one after the other; in a thread if the `costly` messages among them are large."""
    size_bytes = sum([len(one.message.raw) + MESSAGE_OVERHEAD_BYTES for one in costly])
    if size_bytes <= INLINE_LIMIT_BYTES:
        return [convert(tenant, value) for value in values]
    return await asyncio.to_thread(lambda: [convert(tenant, value) for value in values])


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
        self.text: Callable[[bytes, Place], bytes] = cipher.seal

    def convert_json(self, value: Any, place: Place) -> Any:
        return {SEALED_JSON_KEY: self.text(orjson.dumps(dict(value)), place).decode()} if value else value

    convert_state = convert_json

    def convert_list(self, texts: tuple[str, ...], place: Place) -> tuple[str, ...]:
        return (self.text(orjson.dumps(texts), place).decode(),) if texts else texts


class _Unsealing:
    """Converts stored fields back. Plain ones stay as they are."""

    def __init__(self, cipher: Cipher) -> None:
        self.text: Callable[[bytes, Place], bytes] = cipher.unseal

    def convert_json(self, value: Any, place: Place) -> Any:
        stored = value.get(SEALED_JSON_KEY) if value and len(value) == 1 else None
        if not isinstance(stored, str):
            return value
        plain = self.text(sealed := stored.encode(), place)
        return value if plain is sealed else orjson.loads(plain)

    def convert_state(self, state: Mapping[str, Any], place: Place) -> Any:
        return _LazyMapping(lambda: self.convert_json(state, place)) if SEALED_JSON_KEY in state else state

    def convert_list(self, texts: tuple[str, ...], place: Place) -> tuple[str, ...]:
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
    place: Place
    match value:
        case LogMessage():
            link = value.link.hex()
            raw = codec.text(value.message.raw, ("body", tenant, link))
            meta = codec.convert_json(value.meta, ("meta", tenant, link))
            return replace(value, message=decode_item(raw), meta=meta)
        case ClientVersion(seq=seq, to_seq=to_seq, since_seq=since_seq, bodies=bodies) if bodies:
            # Not the conversation: erasing it hands its versions over to a branch.
            place = ("version", tenant, str(seq), str(to_seq), str(since_seq))
            texts = codec.convert_list(tuple(body.decode() for body in bodies), place)
            return replace(value, bodies=tuple(text.encode() for text in texts))
        case Summary():
            # Not the revision, since the store assigns its number. "chunk" is part of what is stored: another word
            # would make all summaries unreadable.
            place = ("chunk", tenant, value.from_link.hex(), value.to_link.hex(), value.id)
            return replace(value, text=codec.text(value.text.encode(), place).decode())
        case Conversation():
            place = ("state", value.tenant, value.id)
            state = codec.convert_state(value.state, place)
            return value if state is value.state else replace(value, state=state)
        case MessageVectors():
            # Vectors are bytes, and sealed text is text: sealed bytes are its ASCII.
            place = ("vectors", tenant, value.link.hex())
            return replace(value, vectors=codec.text(value.vectors, place))
        case StoredCompletion(tenant=owner, id=completion_id):
            return replace(
                value,
                parameters=codec.convert_json(value.parameters, ("parameters", owner, completion_id)),
                instructions=codec.convert_list(value.instructions, ("instructions", owner, completion_id)),
            )
        case LinkMatch() | ConversationHit():
            conversation = _convert(codec, tenant, value.conversation)
            return replace(value, conversation=conversation, message=_convert(codec, tenant, value.message))
        case SearchHit():
            return replace(value, message=_convert(codec, tenant, value.message))
        case AnswerProof():
            return replace(value, conversation=_convert(codec, tenant, value.conversation))
    return value
