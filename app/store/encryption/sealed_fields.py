"""Says which fields are encrypted and what each is bound to. Pure, except for the random nonces.

Encrypted is what people and models wrote: bodies and meta of messages, texts of summaries, a conversation's state
(which holds its instructions), parameters and instructions of stored completions. JSON columns hold `{"enc": "…"}`
instead. Messages are bound to tenant and link, not to their conversation: erasing a conversation hands its messages
over to a branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson
from msgspec.structs import replace

from app.conversation.conversation_types import ClientVersion, Conversation, LogMessage, StoredCompletion, Summary
from app.dialects.item_decoding import decode_item
from app.store.encryption.cipher import Cipher, is_sealed, is_sealed_text

SEALED_JSON_KEY: Final = "enc"


class FieldSealer:
    """Encrypts structs before they are stored, and decrypts them after reading."""

    def __init__(self, cipher: Cipher) -> None:
        self._cipher = cipher
        self.is_encrypting = cipher.active_key is not None
        """Whether a key is active. Without one, text is only decrypted."""

    def seal_message(self, tenant: str, entry: LogMessage) -> LogMessage:
        raw = self._cipher.seal(entry.message.raw, _associated_data("body", tenant, entry.link.hex()))
        return replace(
            entry,
            message=entry.message if raw is entry.message.raw else decode_item(raw),
            meta=self._seal_json(entry.meta, _associated_data("meta", tenant, entry.link.hex())),
        )

    def unseal_message(self, tenant: str, entry: LogMessage) -> LogMessage:
        stored = entry.message.raw
        # Plain messages pass without the work below: the usual case without encryption.
        if not is_sealed(stored) and (entry.meta is None or SEALED_JSON_KEY not in entry.meta):
            return entry
        link = entry.link.hex()
        raw = self._cipher.unseal(stored, _associated_data("body", tenant, link))
        meta = self._unseal_json(entry.meta, _associated_data("meta", tenant, link))
        return replace(entry, message=entry.message if raw is stored else decode_item(raw), meta=meta)

    def seal_conversation_state(self, conversation: Conversation) -> Conversation:
        if not self.is_encrypting:
            return conversation
        associated_data = _associated_data("state", conversation.tenant, conversation.id)
        return replace(conversation, state=self._seal_json(conversation.state, associated_data))

    def unseal_conversation_state(self, conversation: Conversation) -> Conversation:
        if SEALED_JSON_KEY not in conversation.state:
            return conversation
        associated_data = _associated_data("state", conversation.tenant, conversation.id)
        state = self._unseal_json(conversation.state, associated_data)
        return conversation if state is conversation.state else replace(conversation, state=state)

    def unseal_state_lazily(self, conversation: Conversation) -> Conversation:
        """Returns the conversation with a state that is decrypted at its first use. A conversation whose state cannot
        be decrypted can then still be listed and erased.
        """
        if SEALED_JSON_KEY not in conversation.state:
            return conversation
        return replace(conversation, state=_LazyMapping(lambda: self.unseal_conversation_state(conversation).state))

    def seal_client_version(self, tenant: str, version: ClientVersion) -> ClientVersion:
        """Encrypts all bodies of a version as one text. A version without bodies (a message left out) has no text and
        stays as it is.
        """
        if not self.is_encrypting or not version.bodies:
            return version
        listed = orjson.dumps([body.decode() for body in version.bodies])
        return replace(version, bodies=(self._cipher.seal(listed, _client_version_associated_data(tenant, version)),))

    def unseal_client_version(self, tenant: str, version: ClientVersion) -> ClientVersion:
        if not version.bodies or not is_sealed(version.bodies[0]):
            return version
        listed = orjson.loads(self._cipher.unseal(version.bodies[0], _client_version_associated_data(tenant, version)))
        return replace(version, bodies=tuple(body.encode() for body in listed))

    def seal_summary(self, tenant: str, summary: Summary) -> Summary:
        if not self.is_encrypting:
            return summary
        text = self._cipher.seal(summary.text.encode(), _summary_associated_data(tenant, summary))
        return replace(summary, text=text.decode())

    def unseal_summary(self, tenant: str, summary: Summary) -> Summary:
        if not is_sealed_text(summary.text):
            return summary
        text = self._cipher.unseal(summary.text.encode(), _summary_associated_data(tenant, summary))
        return replace(summary, text=text.decode())

    def seal_completion(self, completion: StoredCompletion) -> StoredCompletion:
        parameters, instructions = _completion_associated_data(completion)
        texts = completion.instructions
        if texts:
            listed = orjson.dumps(texts)
            sealed = self._cipher.seal(listed, instructions)
            texts = texts if sealed is listed else (sealed.decode(),)
        return replace(completion, parameters=self._seal_json(completion.parameters, parameters), instructions=texts)

    def unseal_completion(self, completion: StoredCompletion) -> StoredCompletion:
        parameters, instructions = _completion_associated_data(completion)
        texts = completion.instructions
        if len(texts) == 1:
            stored = texts[0].encode()
            plain = self._cipher.unseal(stored, instructions)
            texts = texts if plain is stored else tuple(orjson.loads(plain))
        return replace(completion, parameters=self._unseal_json(completion.parameters, parameters), instructions=texts)

    def is_in_current_form(
        self, stored: LogMessage | Conversation | Summary | ClientVersion | StoredCompletion
    ) -> bool:
        """Whether a struct is stored in the form in which it would be stored now."""
        if isinstance(stored, ClientVersion):
            return not stored.bodies or self._cipher.is_in_current_form(stored.bodies[0])
        if isinstance(stored, LogMessage):
            return self._cipher.is_in_current_form(stored.message.raw) and self._is_json_current(stored.meta)
        if isinstance(stored, Conversation):
            return self._is_json_current(stored.state)
        if isinstance(stored, Summary):
            return self._cipher.is_in_current_form(stored.text.encode())
        texts = stored.instructions
        # A sealed list is one text. Several texts are a plain list, for which b"" stands.
        is_current = not texts or self._cipher.is_in_current_form(texts[0].encode() if len(texts) == 1 else b"")
        return is_current and self._is_json_current(stored.parameters)

    def _is_json_current(self, value: Mapping[str, Any] | None) -> bool:
        return not value or self._cipher.is_in_current_form(_find_sealed_text(value) or b"")

    def _seal_json(self, value: Any, associated_data: bytes) -> Any:
        """Encrypts a JSON object. An empty one has no text and stays as it is."""
        if not value:
            return value
        plain = orjson.dumps(value if type(value) is dict else dict(value))
        sealed = self._cipher.seal(plain, associated_data)
        # `Cipher.seal` returns its argument itself if no key is active.
        return value if sealed is plain else {SEALED_JSON_KEY: sealed.decode()}

    def _unseal_json(self, value: Any, associated_data: bytes) -> Any:
        stored = _find_sealed_text(value) if value else None
        if stored is None:
            return value
        plain = self._cipher.unseal(stored, associated_data)
        return value if plain is stored else orjson.loads(plain)


class _LazyMapping(Mapping[str, Any]):
    """A mapping that is loaded at its first use."""

    def __init__(self, load: Callable[[], Mapping[str, Any]]) -> None:
        self._load = load
        self._value: Mapping[str, Any] | None = None

    def _load_once(self) -> Mapping[str, Any]:
        if self._value is None:
            self._value = self._load()
        return self._value

    def __getitem__(self, name: str) -> Any:
        return self._load_once()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._load_once())

    def __len__(self) -> int:
        return len(self._load_once())


def _find_sealed_text(value: Mapping[str, Any]) -> bytes | None:
    text = value.get(SEALED_JSON_KEY) if len(value) == 1 else None
    return text.encode() if isinstance(text, str) else None


def _associated_data(kind: str, tenant: str, *names: str) -> bytes:
    return orjson.dumps(("concertina", kind, tenant, *names))


def _summary_associated_data(tenant: str, summary: Summary) -> bytes:
    """Returns what a summary's text is bound to; not the revision, since the store assigns its number."""
    # "chunk" is part of what is stored: another word would make all summaries unreadable.
    return _associated_data("chunk", tenant, summary.from_link.hex(), summary.to_link.hex(), summary.id)


def _client_version_associated_data(tenant: str, version: ClientVersion) -> bytes:
    """Returns what a client version is bound to; not the conversation, since erasing it hands its versions over to a
    branch.
    """
    return _associated_data("version", tenant, str(version.seq), str(version.to_seq), str(version.since_seq))


def _completion_associated_data(completion: StoredCompletion) -> tuple[bytes, bytes]:
    return (
        _associated_data("parameters", completion.tenant, completion.id),
        _associated_data("instructions", completion.tenant, completion.id),
    )
