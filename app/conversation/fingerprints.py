"""Fingerprints of the answers that this gateway gave. A request without an id joins a stored conversation only by an
answer that was given in one conversation alone, so each answer is counted by its fingerprints, stored or not.

The promise: nobody joins another's conversation. A wrong proof would show one person's words to another; a missing one
costs a copy of what the request carries. So a fingerprint is exact for what it names: the same words, the same ids.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from app.conversation.canonical_form import encode_utf8
from app.conversation.identity import ALGORITHM, LinkPosition
from app.conversation.item import Item

FINGERPRINT_BYTES: Final = 16
FEW_WORDS: Final = 12
"""An answer is known by this many words. A shorter one is known together with the answers before it."""
MANY_WORDS: Final = 32
"""An answer is known by this many words, too: answers of different conversations often begin alike."""
MAX_READ_CHARACTERS: Final = 2_000
"""Words are looked for in this many first characters."""

_SUMMARY = re.compile(r"<summary>(.*?)(?:</summary>|\Z)", re.DOTALL)
"""How Claude Code asks for a summary. It shows the text within, without the analysis before it."""

FingerprintKind = Literal["link", "skeleton", "calls", "words"]

_CITATION = re.compile(r"\[\^?\d+(?:\s*[,–-]\s*\d+)*\]|【[^】]{0,80}】|(?<=\])\([^)\s]*\)|https?://\S+")
# A character of Chinese, Japanese or Korean counts as a word: these languages put no spaces between words.
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]|[^\W_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]+"
)


class Fingerprint(msgspec.Struct, frozen=True):
    """Something by which an answer is known."""

    kind: FingerprintKind
    """link: the answer after exactly this history. skeleton: the same without tool traffic. calls: the ids, names and
    arguments of its tool calls. words: its first words."""
    digest: bytes


class FingerprintScope:
    """Within whom answers are counted: a tenant, its named end user if there is one, and a client's hint if there is
    one. Those who name no end user count together.

    Args:
        end_user: a digest of the end user's name.
        hint: the name and the value of an id that the client sends for its own purposes, such as a session id.
    """

    __slots__ = ("_hash",)

    def __init__(self, tenant: str, end_user: str | None, hint: tuple[str, str] | None = None) -> None:
        parts = [tenant, end_user or "", *(hint or ())]
        self._hash = hashlib.sha256(f"{ALGORITHM}/fingerprint\0".encode())
        for part in parts:
            encoded = encode_utf8(part)
            self._hash.update(len(encoded).to_bytes(8, "big") + encoded)

    def compute_fingerprint(self, kind: FingerprintKind, value: bytes) -> Fingerprint:
        own = self._hash.copy()
        own.update(f"\0{kind}\0".encode() + value)
        return Fingerprint(kind, own.digest()[:FINGERPRINT_BYTES])

    def list_fingerprints(
        self, position: LinkPosition, answer: Item, earlier_answers: Iterable[Item], *, has_tool_traffic: bool
    ) -> list[Fingerprint]:
        """Returns the fingerprints of an answer, the strongest first.

        Args:
            position: the position of the chains after the answer.
            earlier_answers: the assistant messages before it, the newest first. Read only if the answer is short.
            has_tool_traffic: whether the history has messages that the skeleton leaves out.
        """
        found = [self.compute_fingerprint("link", position.link)]
        if has_tool_traffic and position.is_in_skeleton:
            found.append(self.compute_fingerprint("skeleton", position.skeleton_link))
        if answer.calls_tools:
            # Names and arguments in their canonical form: many clients write the JSON of the arguments anew.
            ids = encode_utf8("\1".join(str(call.id) for call in answer.calls))
            found.append(self.compute_fingerprint("calls", ids + b"\0" + (answer.canonical_form or b"")))
            return found
        return found + [
            self.compute_fingerprint("words", encode_utf8(words)) for words in list_known_words(answer, earlier_answers)
        ]


def list_known_words(answer: Item, earlier_answers: Iterable[Item]) -> list[str]:
    """Returns the texts by whose words a final answer is known, the longest first: its first `MANY_WORDS` and its first
    `FEW_WORDS` words. A shorter answer is known together with as many answers before it as make `FEW_WORDS` words, and
    by nothing if there are too few."""
    words = list_words(answer.text)
    if len(words) >= FEW_WORDS:
        return list(dict.fromkeys([" ".join(words), " ".join(words[:FEW_WORDS])]))
    if not words:
        return []
    answers, count = [" ".join(words)], len(words)
    for earlier in earlier_answers:
        if earlier.calls_tools:
            continue
        words = list_words(earlier.text)
        answers.append(" ".join(words))
        count += len(words)
        if count >= FEW_WORDS:
            return ["\n".join(reversed(answers))]
    return []


def list_words(text: str, limit: int = MANY_WORDS) -> list[str]:
    """Returns the first words of a text in lower case, without marks and citations."""
    plain = text[:MAX_READ_CHARACTERS]
    if "[" in plain or "【" in plain or "://" in plain:
        plain = _CITATION.sub(" ", plain)
    if not plain.isascii():
        plain = unicodedata.normalize("NFKC", plain)
    return [match[0] for match in itertools.islice(_WORD.finditer(plain.casefold()), limit)]


def is_text_contained(one: str, other: str) -> bool:
    """Returns whether one of two texts equals the other or contains it as whole words, white space aside. An empty text
    is contained in none."""
    short, long = sorted((" ".join(one.split()), " ".join(other.split())), key=len)
    return bool(short) and re.search(rf"(?<!\w){re.escape(short)}(?!\w)", long) is not None


def extract_summary(answer: str) -> str:
    """Returns what of an answer stands in the place of a history, if its client has asked for a summary: the text
    within its tag, or else all of it."""
    found = _SUMMARY.search(answer) if "<summary>" in answer else None
    return found[1].strip() if found and len(list_words(found[1])) >= FEW_WORDS else answer


def list_digests(fingerprints: Sequence[Fingerprint]) -> tuple[bytes, ...]:
    """Returns the digests in ascending order, each once: two writers that lock rows in one order cannot deadlock."""
    return tuple(sorted({one.digest for one in fingerprints}))
