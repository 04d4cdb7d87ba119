"""Fingerprints and anchors in memory: by what conversations are found beside their links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from app.conversation.conversation_types import AnswerAnchor, AnswerProof, Conversation, IssuedAnswer
from app.store.contract.conversations import MAX_ANCHORS
from app.store.lineage import build_proof, list_owner_places
from app.store.memory.summaries import ConversationKey

_Place = tuple[str, str, int]
"""Root, conversation id, seq."""


class MemoryAnswers:
    """The part of `MemoryStore` for fingerprints and anchors."""

    def __init__(self) -> None:
        self._conversations: dict[ConversationKey, Conversation] = {}
        self._anchors: dict[bytes, dict[AnswerAnchor, None]] = defaultdict(dict)
        self._places: dict[bytes, _Place | None] = {}
        """Fingerprint → its only place; None: it is spent."""

    async def add_anchors(self, anchors: Sequence[AnswerAnchor]) -> None:
        for anchor in anchors:
            self._anchors[anchor.digest].setdefault(anchor)

    async def find_anchors(self, digests: Sequence[bytes]) -> list[AnswerAnchor]:
        return [anchor for digest in digests for anchor in list(reversed(self._anchors.get(digest, {})))[:MAX_ANCHORS]]

    async def issue_answer(self, issued: IssuedAnswer) -> None:
        owners = dict(list_owner_places(issued))
        new = None if issued.conversation_id is None else (issued.root, issued.conversation_id, issued.seq)
        for digest in issued.fingerprints:
            place = self._places.setdefault(digest, new)
            if place is not None and place[2] >= owners.get(place[1], -1):
                self._places[digest] = None

    async def find_proofs(self, *, tenant: str, fingerprints: Sequence[bytes]) -> list[AnswerProof]:
        return [self._build_proof(tenant, digest) for digest in dict.fromkeys(fingerprints) if digest in self._places]

    def _build_proof(self, tenant: str, digest: bytes) -> AnswerProof:
        root, conversation_id, seq = self._places[digest] or ("", "", -1)
        found = self._conversations.get((root, conversation_id))
        return build_proof(digest, found if found is not None and found.tenant == tenant else None, seq)

    def _move_or_delete_answers(
        self, key: ConversationKey, is_gone: Callable[[int], bool], heir: str | None = None
    ) -> None:
        """Deletes the anchors and places of a conversation for which `is_gone(seq)`, and moves the others to the
        heir."""
        for anchors in self._anchors.values():
            for anchor in [one for one in anchors if (one.root, one.conversation_id) == key]:
                if is_gone(anchor.seq) or heir is not None:
                    del anchors[anchor]
                if not is_gone(anchor.seq) and heir is not None:
                    anchors[replace(anchor, conversation_id=heir)] = None
        for digest, place in self._places.items():
            if place is not None and place[:2] == key:
                if is_gone(place[2]):
                    self._places[digest] = None
                elif heir is not None:
                    self._places[digest] = (key[0], heir, place[2])
