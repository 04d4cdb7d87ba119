"""Texts under a key: read only under it, only at their place, and only as they were written."""

from __future__ import annotations

import base64
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import GatewayError, StoreUnreadable
from app.store.encryption.cipher import Cipher, Place

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
HERE, THERE = ("here",), ("there",)


@given(st.binary(), st.lists(st.text()).map(tuple))
def test_what_was_sealed_opens_at_its_place_and_does_not_show(plain: bytes, place: Place) -> None:
    cipher = Cipher({"k-1.a": OLD}, "k-1.a")
    sealed = cipher.seal(plain, place)
    assert cipher.unseal(sealed, place) == plain
    assert re.fullmatch(rb"enc1:k-1\.a:[A-Za-z0-9+/]+=*", sealed)
    assert len(plain) < 4 or plain not in base64.b64decode(sealed.rpartition(b":")[2])


def test_the_same_text_never_looks_the_same() -> None:
    cipher = Cipher({"k": OLD}, "k")
    assert len({cipher.seal(b"hello", HERE) for _ in range(100)}) == 100


def test_a_text_at_another_place_is_refused() -> None:
    cipher = Cipher({"k": OLD}, "k")
    with pytest.raises(StoreUnreadable, match="altered or moved"):
        cipher.unseal(cipher.seal(b"hello", HERE), THERE)


@given(st.data())
def test_a_change_of_any_bit_is_noticed(data: st.DataObject) -> None:
    cipher = Cipher({"k": OLD}, "k")
    name, _, text = cipher.seal(b"hello world", HERE).rpartition(b":")
    raw = bytearray(base64.b64decode(text))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(StoreUnreadable):
        cipher.unseal(name + b":" + base64.b64encode(raw), HERE)


def test_a_text_under_a_key_that_is_not_there_names_it_and_says_what_to_do() -> None:
    sealed = Cipher({"k2025": OLD}, "k2025").seal(b"hello", HERE)
    with pytest.raises(GatewayError, match=r"'k2025', which is not configured.*encryption\.keys\.k2025") as caught:
        Cipher({"k2026": NEW}, "k2026").unseal(sealed, HERE)
    assert (caught.value.status, caught.value.retryable) == (500, False)


def test_another_key_under_the_same_name_is_noticed() -> None:
    sealed = Cipher({"k": OLD}, "k").seal(b"hello", HERE)
    with pytest.raises(StoreUnreadable, match="another key has this name"):
        Cipher({"k": NEW}, "k").unseal(sealed, HERE)


def test_every_key_is_read_with_and_the_active_one_is_written_with() -> None:
    old, both = Cipher({"a": OLD}, "a"), Cipher({"a": OLD, "b": NEW}, "b")
    sealed = old.seal(b"hello", HERE)
    assert both.unseal(sealed, HERE) == b"hello"
    assert both.seal(b"hello", HERE).startswith(b"enc1:b:")


@pytest.mark.parametrize("plain", [b"", b"hello", b"enc1:", b"enc1:k:short", b"enc1:k:" + b"!" * 60, b'{"enc1:k:": 1}'])
def test_plain_text_is_read_as_it_is(plain: bytes) -> None:
    cipher = Cipher({"k": OLD}, "k")
    assert cipher.unseal(plain, HERE) == plain


def test_without_an_active_key_plain_text_is_written() -> None:
    cipher = Cipher({"k": OLD}, None)
    assert cipher.seal(b"hello", HERE) == b"hello"


def test_nonces_are_fresh() -> None:
    numbers = itertools.count()
    cipher = Cipher({"k": OLD}, "k", random_bytes=lambda count: next(numbers).to_bytes(count, "big"))
    nonces = [base64.b64decode(cipher.seal(b"x", HERE).rpartition(b":")[2])[:12] for _ in range(3)]
    assert nonces == [number.to_bytes(12, "big") for number in range(3)]
