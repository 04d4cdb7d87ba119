"""Finds out which conversation a request continues: the chain of links over its messages, and the ids that contain its
root.

A link names a message and everything before it, for one tenant. There are two chains: one over every message, and one
(the skeleton) over user texts and final assistant texts only, because some clients drop tool traffic. Both are exact.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

import msgspec

from app.conversation.canonical_form import encode_utf8
from app.conversation.item import Item

ALGORITHM = "concertina-1-sha256"
"""Part of every seed. Another hash or another canonical form gets another name here; then old links never match."""

LINK_BYTES = 16
ROOT_HEX_DIGITS = 16
RANDOM_BYTES = 16
PREFIX_DIGEST_COUNT = 16
TENANT_CACHE_SIZE: Final = 4_096
"""The seeds of this many tenants are cached."""

ID_PATTERN = "[A-Za-z0-9._:-]{1,128}"
_VALID_ID = re.compile(ID_PATTERN)
_CONVERSATION_ID = re.compile(rf"conv_([0-9a-f]{{{ROOT_HEX_DIGITS}}})[0-9a-f]{{{2 * RANDOM_BYTES}}}")

Value = TypeVar("Value")


def _hash_for_purpose(purpose: str, data: bytes) -> bytes:
    return hashlib.sha256(f"{ALGORITHM}/{purpose}\0".encode() + data).digest()


def compute_first_link(tenant: str) -> bytes:
    """Returns the link before a tenant's first message: 16 bytes."""
    return _hash_for_purpose("link", encode_utf8(tenant))[:LINK_BYTES]


class LinkPosition(msgspec.Struct, frozen=True):
    """The position of both chains after a message."""

    link: bytes
    skeleton_link: bytes
    is_in_skeleton: bool
    """Whether this message is part of the skeleton."""


@lru_cache(maxsize=TENANT_CACHE_SIZE)
def compute_start_position(tenant: str) -> LinkPosition:
    """Returns the position of both chains before a tenant's first message."""
    skeleton = _hash_for_purpose("skeleton", encode_utf8(tenant))[:LINK_BYTES]
    return LinkPosition(link=compute_first_link(tenant), skeleton_link=skeleton, is_in_skeleton=False)


def compute_links_after_messages(messages: Iterable[Item], start: LinkPosition) -> Iterator[LinkPosition]:
    """Yields the position of both chains after each message. A link is the first 16 bytes of sha256(link before ‖
    canonical form).

    Raises:
        InvalidRequest: a message is not a JSON object.
    """
    link, skeleton = start.link, start.skeleton_link
    for message in messages:
        part, joins_skeleton = message.canonical_form, False
        # A message without a canonical form moves neither chain.
        if part is not None:
            link = hashlib.sha256(link + part).digest()[:LINK_BYTES]
            joins_skeleton = message.is_in_skeleton
            if joins_skeleton:
                skeleton = hashlib.sha256(skeleton + part).digest()[:LINK_BYTES]
        yield LinkPosition(link, skeleton, joins_skeleton)


def compute_family_root(tenant: str, first_link: bytes) -> str:
    """Returns the root that all branches of one family share: 16 hex digits, computed from the tenant and the first
    message's link."""
    return _hash_for_purpose("root", first_link + encode_utf8(tenant)).hex()[:ROOT_HEX_DIGITS]


def make_conversation_id(root: str, random: Callable[[int], bytes]) -> str:
    """Returns a new id: `conv_`, the root, 32 random hex digits. `random(n)` returns n bytes, as `secrets.token_bytes`
    does."""
    return f"conv_{root}{random(RANDOM_BYTES).hex()}"


def extract_family_root(conversation_id: str) -> str | None:
    """Returns the root in an id of ours, or None for any other id."""
    match = _CONVERSATION_ID.fullmatch(conversation_id)
    return match[1] if match else None


def is_valid_conversation_id(text: str) -> bool:
    """Returns whether a client may use the text as a conversation id: 1 to 128 characters of letters, digits and
    `._:-`."""
    return _VALID_ID.fullmatch(text) is not None


def compute_prefix_digests(
    raws: Sequence[bytes | memoryview], tenant: str, last: int = PREFIX_DIGEST_COUNT
) -> list[tuple[int, bytes]]:
    """Returns digests of the history's last prefixes, the shortest first, in one pass of sha256.

    Args:
        raws: the JSON text of each message of the history as it came, without instructions.
        tenant: seeds the hash, so that digests of two tenants never match.
        last: how many prefixes. The longest prefix is the whole history.

    Returns:
        (message count, 32-byte digest) of each prefix. The digest covers all bytes and the length of every message, so
        that no two splits of the same bytes have the same digest.
    """
    first_count = max(0, len(raws) - last)
    bytes_hash, lengths = _make_prefix_hash(tenant).copy(), hashlib.sha256()
    bytes_hash.update(b"".join(raws[:first_count]))
    lengths.update(array("Q", map(len, raws[:first_count])).tobytes())
    digests = []
    for count, raw in enumerate(raws[first_count:], first_count + 1):
        bytes_hash.update(raw)
        lengths.update(array("Q", (len(raw),)).tobytes())
        digests.append((count, hashlib.sha256(bytes_hash.digest() + lengths.digest()).digest()))
    return digests


@lru_cache(maxsize=TENANT_CACHE_SIZE)
def _make_prefix_hash(tenant: str) -> Any:
    """Returns a sha256 that has hashed only the tenant. The caller must copy it."""
    return hashlib.sha256(_hash_for_purpose("prefix", encode_utf8(tenant)))


def compute_anchor_digest(tenant: str, kind: str, value: bytes) -> bytes:
    """Returns the digest of an anchor: 16 bytes, different for each tenant.

    Args:
        kind: what `value` is, such as ``answer``, ``call`` or the name of a header.
    """
    return _hash_for_purpose(f"anchor/{kind}", encode_utf8(tenant) + b"\0" + value)[:LINK_BYTES]


class PrefixCache(Generic[Value]):
    """Remembers values for raw prefixes, by their digests (`compute_prefix_digests`), so that a history that comes back
    byte for byte is recognised without decoding it. If the cache is full, the least recently used value is removed."""

    def __init__(self, max_entries: int = 10_000) -> None:
        self._values: OrderedDict[bytes, Value] = OrderedDict()
        self._max_entries = max_entries

    def __len__(self) -> int:
        return len(self._values)

    def put(self, digest: bytes, value: Value) -> None:
        self._values[digest] = value
        self._values.move_to_end(digest)
        while len(self._values) > self._max_entries:
            self._values.popitem(last=False)

    def find_longest_prefix(self, digests: Sequence[tuple[int, bytes]]) -> tuple[int, Value] | None:
        """Returns the longest known prefix as (message count, value), or None."""
        for count, digest in reversed(digests):
            if digest in self._values:
                self._values.move_to_end(digest)
                return count, self._values[digest]
        return None

    def discard(self, digest: bytes) -> None:
        """Removes a value that is out of date."""
        self._values.pop(digest, None)


def digest_texts(texts: Iterable[bytes]) -> str:
    """Returns 64 hexadecimal digits that name some texts in their order."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(len(text).to_bytes(8, "big"))
        digest.update(text)
    return digest.hexdigest()
