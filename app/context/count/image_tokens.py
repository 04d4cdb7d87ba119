"""Counts tokens of images: by width, height and the model's rule, never by the length of the base64 text."""

from __future__ import annotations

import binascii
import struct
from typing import Final

from app.context.count.image_rules import DEFAULT_IMAGE_RULE, ImageRule

ASSUMED_IMAGE_SIZE: Final = (1024, 1024)
"""Size of an image that is not in the request (a remote URL) or cannot be read."""

HEADER_BASE64_CHARS: Final = (4_096, 700_000)
"""How much base64 is decoded to find the size. The first amount is nearly always enough, but a JPEG may have a
colour profile and a preview before its size."""

_JPEG_FRAME_MARKERS: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def count_image_tokens(url: str, detail: object = "auto", rule: ImageRule = DEFAULT_IMAGE_RULE) -> int:
    """Returns the tokens of an image given by a `data:` or remote URL. `auto` and unknown details count as `high`."""
    width, height = read_image_dimensions(url) or ASSUMED_IMAGE_SIZE
    return rule.cost(width, height, detail == "low")


def read_image_dimensions(url: str) -> tuple[int, int] | None:
    """Returns width and height in pixels of a PNG, JPEG, GIF or WebP in a base64 `data:` URL; None for
    anything else.
    """
    head, comma, _ = url[:200].partition(",")
    if not comma or not head.lower().startswith("data:") or not head.lower().endswith(";base64"):
        return None
    for chars in HEADER_BASE64_CHARS:
        size = _read_image_header_dimensions(decode_base64_start(url, len(head) + 1, chars))
        if size is not None and min(size) > 0:
            return size
    return None


def decode_base64_start(text: str, start: int, chars: int) -> bytes:
    """Returns the bytes of the first `chars` characters of base64 from `start` on; empty if it is not base64."""
    encoded = text[start : start + chars - chars % 4]
    try:
        return binascii.a2b_base64(encoded + "=" * (-len(encoded) % 4))
    except ValueError:
        return b""


def _read_image_header_dimensions(header: bytes) -> tuple[int, int] | None:
    try:
        if header.startswith(b"\x89PNG\r\n\x1a\n"):
            return struct.unpack_from(">II", header, 16)
        if header.startswith((b"GIF87a", b"GIF89a")):
            return struct.unpack_from("<HH", header, 6)
        if header.startswith(b"\xff\xd8"):
            return _read_jpeg_dimensions(header)
        if header.startswith(b"RIFF") and header[8:12] == b"WEBP":
            return _read_webp_dimensions(header)
    # The header breaks off or is damaged: the size is unknown.
    except (struct.error, IndexError):
        pass
    return None


def _read_jpeg_dimensions(header: bytes) -> tuple[int, int] | None:
    """Reads the size from the first frame header, skipping the segments before it (ITU-T T.81, annex B)."""
    offset = 2
    while offset < len(header):
        marker = header[offset + 1]
        if header[offset] != 0xFF:
            return None
        if marker in _JPEG_FRAME_MARKERS:
            height, width = struct.unpack_from(">HH", header, offset + 5)
            return width, height
        # Fill bytes may stand before a marker.
        if marker == 0xFF:
            offset += 1
        # Markers without a segment have no length field.
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:
            offset += 2
        else:
            offset += 2 + max(2, struct.unpack_from(">H", header, offset + 2)[0])
    return None


def _read_webp_dimensions(header: bytes) -> tuple[int, int] | None:
    """Reads the size of a lossy, lossless or extended WebP (RFC 9649)."""
    match header[12:16]:
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", header, 26)
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", header, 21)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            low_width, high_width, low_height, high_height = struct.unpack_from("<HBHB", header, 24)
            return (high_width << 16 | low_width) + 1, (high_height << 16 | low_height) + 1
    return None
