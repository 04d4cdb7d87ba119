"""Images cost what their pixels cost."""

from __future__ import annotations

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.images import ASSUMED_PIXELS, BASE_TOKENS, image_size, image_tokens, tile_tokens

ASSUMED_TOKENS = tile_tokens(*ASSUMED_PIXELS)


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + bytes(9)


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(3)


def jpeg(width: int, height: int, before: int = 0) -> bytes:
    """With `before` bytes of other segments ahead of the frame header."""
    profile = b"\xff\xe2" + struct.pack(">H", 60_000) + bytes(59_998)
    frame = b"\xff\xc2" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return b"\xff\xd8\xff\xe0" + struct.pack(">H", 16) + bytes(14) + profile * (before // 60_000) + b"\xff" + frame


def webp_lossy(width: int, height: int) -> bytes:
    return b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0" + b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height)


def webp_lossless(width: int, height: int) -> bytes:
    return b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14)


def webp_extended(width: int, height: int) -> bytes:
    canvas = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF\0\0\0\0WEBPVP8X\0\0\0\0" + bytes(4) + canvas


def url(image: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(image).decode()}"


@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [
        (1024, 1024, 765),
        (2048, 4096, 1105),
        (512, 512, 255),
        (1, 1, 255),
        (513, 512, 425),
        (768, 768, 765),
        (20_000, 10, 765),
        (65_535, 65_535, 765),
    ],
)
def test_an_image_costs_its_tiles(width: int, height: int, tokens: int) -> None:
    assert tile_tokens(width, height) == tokens
    assert tile_tokens(height, width) == tokens


@given(st.integers(1, 16_383), st.integers(1, 16_383))
def test_the_size_is_read_from_the_header_of_each_format(width: int, height: int) -> None:
    for make in (png, gif, jpeg, webp_lossy, webp_lossless, webp_extended):
        image = make(width, height)
        assert image_size(url(image)) == (width, height), make.__name__


def test_a_frame_header_behind_a_large_colour_profile_is_found() -> None:
    assert image_size(url(jpeg(4000, 3000, before=240_000), "image/jpeg")) == (4000, 3000)


def test_the_length_of_the_base64_makes_no_difference() -> None:
    assert image_tokens(url(png(512, 512))) == image_tokens(url(png(512, 512) + bytes(3_000_000))) == 255


def test_low_detail_costs_the_base_whatever_the_size() -> None:
    assert image_tokens(url(png(4000, 4000)), "low") == image_tokens("https://example.org/a.png", "low") == BASE_TOKENS


@pytest.mark.parametrize("detail", ["high", "auto", "original", None, 7])
def test_any_other_detail_is_high(detail: object) -> None:
    assert image_tokens(url(png(2048, 4096)), detail) == 1105


@pytest.mark.parametrize(
    "unreadable",
    [
        "https://example.org/a.png",
        "",
        "data:image/png;base64,",
        "data:image/png;base64,!!!!",
        "data:image/svg+xml;utf8,<svg/>",
        url(b"\x89PNG\r\n\x1a\n"),
        url(png(0, 0)),
        url(b"\xff\xd8" + b"\xff" * 10_000),
        url(b"\xff\xd8\xff\xe0\x00\x00\xff\xe0"),
        url(b"RIFF\0\0\0\0WEBPVP8 "),
        url(b"<svg/>", "image/svg+xml"),
    ],
)
def test_an_image_that_cannot_be_read_costs_the_stated_default(unreadable: str) -> None:
    assert image_size(unreadable) is None
    assert image_tokens(unreadable) == ASSUMED_TOKENS == 765


@given(
    st.binary(max_size=200), st.sampled_from([b"", b"\xff\xd8", b"GIF89a", b"RIFF\0\0\0\0WEBP", b"\x89PNG\r\n\x1a\n"])
)
def test_no_bytes_make_it_raise(data: bytes, start: bytes) -> None:
    assert image_tokens(url(start + data)) >= BASE_TOKENS
