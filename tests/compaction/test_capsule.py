"""A capsule is opened only whole and unchanged, by its tenant and end user, with its key. Else there is an error."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.compaction.capsule import (
    CAPSULE_PREFIX,
    MAX_CAPSULE_BYTES,
    MAX_USER_DIGESTS,
    Capsule,
    CapsuleSealer,
    digest_tenant,
    digest_user_message,
    fit_into_capsule,
)
from app.errors import InvalidCapsule

SEALER: Final = CapsuleSealer([b"k" * 32])
SECRET: Final = "the gate code is 4711"
CAPSULE: Final = Capsule(
    tenant=digest_tenant("acme"),
    end_user="alice",
    root="0" * 16,
    family_id="conv_1",
    conversation_id="conv_1",
    is_context_only=False,
    to_seq=12,
    to_link=b"l" * 16,
    made_at=1_700_000_000.5,
    summary=SECRET,
    user_text=("Open the gate.",),
    pins=("Never lose this.",),
    newest="assistant: done",
    user_digests=digest_user_message(b"one") + digest_user_message(b"two"),
)
SEALED: Final = SEALER.seal(CAPSULE)
TEXTS: Final = st.text(max_size=60_000)


def open_capsule(text: str, *, sealer: CapsuleSealer = SEALER, tenant: str = "acme", user: str | None = "alice") -> Any:
    return sealer.open(text, tenant=tenant, end_user=user, param="input[3]")


def check_refused(text: str, **options: Any) -> InvalidCapsule:
    with pytest.raises(InvalidCapsule) as caught:
        open_capsule(text, **options)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_compaction_item", "input[3]")
    assert SECRET not in str(caught.value)
    return caught.value


def test_what_was_sealed_is_opened() -> None:
    assert SEALED.startswith(CAPSULE_PREFIX)
    assert open_capsule(SEALED) == CAPSULE
    assert SECRET.encode() not in SEALED.encode()
    assert SEALER.seal(CAPSULE) != SEALED, "each has a nonce of its own"


@given(st.data())
def test_a_changed_capsule_is_refused(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(SEALED) - 1))
    changed = SEALED[:place] + chr(ord(SEALED[place]) ^ 1 << data.draw(st.integers(0, 6))) + SEALED[place + 1 :]
    check_refused(changed)


@given(st.integers(0, len(SEALED) - 1), st.booleans())
def test_a_cut_capsule_is_refused(length: int, keeps_end: bool) -> None:
    check_refused(SEALED[-length:] if keeps_end and length else SEALED[:length])


@given(st.one_of(st.text(), st.binary().map(lambda data: CAPSULE_PREFIX + data.hex())))
def test_other_texts_are_refused(text: str) -> None:
    check_refused(text)


@given(st.text().filter(lambda name: name != "acme"))
def test_the_capsule_of_another_tenant_is_refused(tenant: str) -> None:
    assert "somebody else" in check_refused(SEALED, tenant=tenant).message


@given(st.text().filter(lambda name: name != "alice"))
def test_the_capsule_of_another_end_user_is_refused(user: str) -> None:
    assert "somebody else" in check_refused(SEALED, user=user).message


def test_an_end_user_that_nobody_names_is_no_other_one() -> None:
    assert open_capsule(SEALED, user=None) == CAPSULE
    unnamed = replace(CAPSULE, end_user=None)
    assert open_capsule(SEALER.seal(unnamed)) == unnamed


@given(st.binary(min_size=32, max_size=32).filter(lambda key: key != b"k" * 32))
def test_the_capsule_of_an_unknown_key_is_refused(key: bytes) -> None:
    message = check_refused(SEALED, sealer=CapsuleSealer([key])).message
    assert "a key that this gateway does not have" in message
    assert "compaction.capsule_key" in message


def test_the_first_key_seals_and_all_open() -> None:
    rotated = CapsuleSealer([b"n" * 32, b"k" * 32])
    assert open_capsule(SEALED, sealer=rotated) == CAPSULE
    check_refused(rotated.seal(CAPSULE))
    stored = CapsuleSealer([b"n" * 32])
    stored.add_key(b"k" * 32)
    assert open_capsule(rotated.seal(CAPSULE), sealer=stored) == open_capsule(SEALED, sealer=stored)


@given(TEXTS, st.lists(TEXTS, max_size=4), st.lists(TEXTS, max_size=2), TEXTS, st.integers(0, 3 * MAX_USER_DIGESTS))
def test_a_capsule_has_at_most_64_kilobytes(
    summary: str, said: list[str], pins: list[str], newest: str, users: int
) -> None:
    digests = b"".join(digest_user_message(b"%d" % number) for number in range(users))
    fitted = fit_into_capsule(
        replace(
            CAPSULE,
            summary=summary,
            user_text=(*said, "last words \ud800"),
            pins=tuple(pins),
            newest=newest,
            user_digests=digests,
        )
    )
    assert len(SEALER.seal(fitted)) <= MAX_CAPSULE_BYTES
    assert fitted.user_text[-1] == "last words ?"
    assert newest.endswith(fitted.newest)
    assert summary.startswith(fitted.summary)
    assert fitted.knows_all_users is (users <= MAX_USER_DIGESTS)
    assert digests.endswith(fitted.user_digests)


def test_a_short_capsule_loses_nothing() -> None:
    assert fit_into_capsule(CAPSULE) == CAPSULE


def test_a_long_capsule_loses_the_oldest_words_first() -> None:
    said = tuple(f"{number} " + "word " * 400 for number in range(40))
    fitted = fit_into_capsule(replace(CAPSULE, user_text=said, summary="s" * 90_000, newest="n" * 90_000 + "end"))
    assert 0 < len(fitted.user_text) < len(said)
    assert fitted.user_text == said[-len(fitted.user_text) :]
    assert fitted.newest.endswith("end")
    assert len(fitted.newest) > 5_000
    assert len(fitted.summary) > 15_000


def test_user_messages_are_known_by_their_digests() -> None:
    assert CAPSULE.knows_user_message(b"one")
    assert CAPSULE.knows_user_message(b"two")
    assert not CAPSULE.knows_user_message(b"three")
    assert replace(CAPSULE, knows_all_users=False).knows_user_message(b"three")
