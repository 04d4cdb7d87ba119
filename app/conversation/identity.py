"""Which conversation a request means: the chain of links over its messages, and the ids that carry its root.

A link names a message and everything before it, for one tenant. Two chains run side by side: over every message, and
(the skeleton) over user texts and final assistant texts only, since some clients drop tool traffic. Both are exact.
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

from app.conversation.canonical_form import canonical, in_skeleton, skeleton_part
from app.conversation.messages import Message

__all__ = [
    "Position",
    "PrefixMemory",
    "advance",
    "anchor_digest",
    "canonical",
    "is_valid_id",
    "landmark_digests",
    "new_conversation_id",
    "prefix_digests",
    "root_of",
    "root_of_conversation",
    "seed",
    "skeleton_part",
    "start_of",
    "walk",
]

ALGORITHM = "concertina-1-sha256"
"""Part of every seed: another hash or another canonical form gets another name, and old links simply never match."""

LINK_BYTES = 16
ROOT_HEX = 16
RANDOM_BYTES = 16
REMEMBERED_BOUNDARIES = 16
REMEMBERED_TENANTS: Final = 4_096
"""Of so many tenants the seeds are not worked out again."""

ID_PATTERN = "[A-Za-z0-9._:-]{1,128}"
_VALID_ID = re.compile(ID_PATTERN)
_OUR_ID = re.compile(rf"conv_([0-9a-f]{{{ROOT_HEX}}})[0-9a-f]{{{2 * RANDOM_BYTES}}}")

Value = TypeVar("Value")


def _domain_hash(purpose: str, data: bytes) -> bytes:
    return hashlib.sha256(f"{ALGORITHM}/{purpose}\0".encode() + data).digest()


def _tenant_bytes(tenant: str) -> bytes:
    return tenant.encode("utf-8", "surrogatepass")


def seed(tenant: str) -> bytes:
    """The link before a tenant's first message: 16 bytes."""
    return _domain_hash("link", _tenant_bytes(tenant))[:LINK_BYTES]


def advance(link: bytes, part: bytes | None) -> bytes:
    """The next link: the first 16 bytes of sha256(link ‖ part). Without a part (a message looked through) it stays."""
    if part is None:
        return link
    return hashlib.sha256(link + part).digest()[:LINK_BYTES]


class Position(msgspec.Struct, frozen=True):
    """Where both chains stand after a message."""

    link: bytes
    skeleton: bytes
    in_skeleton: bool
    """Whether this message advanced the skeleton."""


@lru_cache(maxsize=REMEMBERED_TENANTS)
def start_of(tenant: str) -> Position:
    """Where both chains stand before a tenant's first message."""
    skeleton = _domain_hash("skeleton", _tenant_bytes(tenant))[:LINK_BYTES]
    return Position(link=seed(tenant), skeleton=skeleton, in_skeleton=False)


def walk(messages: Iterable[Message], start: Position) -> Iterator[Position]:
    """The position after each message.

    Raises:
        InvalidRequest: a message is not a JSON object.
    """
    link, skeleton = start.link, start.skeleton
    for message in messages:
        body = message.body
        part = canonical(body)
        if part is None:
            yield Position(link, skeleton, False)
            continue
        link = advance(link, part)
        if joins_skeleton := in_skeleton(body):
            skeleton = advance(skeleton, part)
        yield Position(link, skeleton, joins_skeleton)


def root_of(tenant: str, first_link: bytes) -> str:
    """What all branches of one family share: 16 hex digits from the tenant and the first message's link."""
    return _domain_hash("root", first_link + _tenant_bytes(tenant)).hex()[:ROOT_HEX]


def new_conversation_id(root: str, random: Callable[[int], bytes]) -> str:
    """`conv_`, the root, 32 hex digits of randomness. `random(n)` gives n bytes, such as `secrets.token_bytes`."""
    return f"conv_{root}{random(RANDOM_BYTES).hex()}"


def root_of_conversation(conversation_id: str) -> str | None:
    """The root in an id of ours; None for any other id."""
    ours = _OUR_ID.fullmatch(conversation_id)
    return ours[1] if ours else None


def is_valid_id(text: str) -> bool:
    """Whether a client may use this as a conversation id: 1 to 128 of letters, digits and `._:-`."""
    return _VALID_ID.fullmatch(text) is not None


def prefix_digests(
    raws: Sequence[bytes | memoryview], tenant: str, last: int = REMEMBERED_BOUNDARIES
) -> list[tuple[int, bytes]]:
    """Digests of the raw prefixes that end at the last boundaries, shallowest first, in one pass of sha256.

    Args:
        raws: JSON text of each log message as it came, instructions left out.
        tenant: seeds the hash, so that tenants never meet.
        last: how many prefixes; the longest is the whole.

    Returns:
        (message count, 32-byte digest) of each: of all bytes, and of every message's length, so that no two splits of
        the same bytes collide.
    """
    settled = max(0, len(raws) - last)
    said, lengths = _prefix_hash(tenant).copy(), hashlib.sha256()
    said.update(b"".join(raws[:settled]))
    lengths.update(array("Q", map(len, raws[:settled])).tobytes())
    digests = []
    for count, raw in enumerate(raws[settled:], settled + 1):
        said.update(raw)
        lengths.update(array("Q", (len(raw),)).tobytes())
        digests.append((count, hashlib.sha256(said.digest() + lengths.digest()).digest()))
    return digests


def landmark_digests(raws: Sequence[bytes | memoryview], tenant: str, every: int) -> list[tuple[int, bytes]]:
    """Digests as `prefix_digests` gives them, of the prefixes of each so many messages."""
    said, lengths = _prefix_hash(tenant).copy(), hashlib.sha256()
    digests = []
    for count in range(every, len(raws) + 1, every):
        stretch = raws[count - every : count]
        said.update(b"".join(stretch))
        lengths.update(array("Q", map(len, stretch)).tobytes())
        digests.append((count, hashlib.sha256(said.digest() + lengths.digest()).digest()))
    return digests


@lru_cache(maxsize=REMEMBERED_TENANTS)
def _prefix_hash(tenant: str) -> Any:
    """A sha256 that has taken in nothing but the tenant; to be copied."""
    return hashlib.sha256(_domain_hash("prefix", _tenant_bytes(tenant)))


def anchor_digest(tenant: str, kind: str, value: bytes) -> bytes:
    """The name of an anchor: 16 bytes that tenants do not share.

    Args:
        kind: what `value` is, such as ``answer``, ``call`` or the name of a header.
    """
    return _domain_hash(f"anchor/{kind}", _tenant_bytes(tenant) + b"\0" + value)[:LINK_BYTES]


class PrefixMemory(Generic[Value]):
    """What is known of raw prefixes seen lately, by `prefix_digests`: a history that comes back byte for byte is
    recognised without decoding it. Bounded; the least recently used is forgotten first."""

    def __init__(self, max_entries: int = 10_000) -> None:
        self._values: OrderedDict[bytes, Value] = OrderedDict()
        self._max_entries = max_entries

    def __len__(self) -> int:
        return len(self._values)

    def remember(self, digest: bytes, value: Value) -> None:
        self._values[digest] = value
        self._values.move_to_end(digest)
        while len(self._values) > self._max_entries:
            self._values.popitem(last=False)

    def recall(self, digests: Sequence[tuple[int, bytes]]) -> tuple[int, Value] | None:
        """The deepest known prefix of these, as (message count, value)."""
        for count, digest in reversed(digests):
            if digest in self._values:
                self._values.move_to_end(digest)
                return count, self._values[digest]
        return None

    def forget(self, digest: bytes) -> None:
        """Drop a value that has turned out to be out of date."""
        self._values.pop(digest, None)
