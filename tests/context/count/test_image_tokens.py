"""Images cost what their pixels cost."""

from __future__ import annotations

import base64
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.context.count.image_rules import DEFAULT_IMAGE_RULE, IMAGE_RULES, choose_image_rule, find_named_image_rule
from app.context.count.image_tokens import ASSUMED_IMAGE_SIZE, count_image_tokens, read_image_dimensions
from app.context.count.token_counter import choose_token_counter_name, load_token_counter
from tests.support.chat_counter import as_item

ASSUMED_TOKENS = DEFAULT_IMAGE_RULE.cost(*ASSUMED_IMAGE_SIZE, False)
BASE_TOKENS = 85


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
    assert DEFAULT_IMAGE_RULE.cost(width, height, False) == tokens
    assert DEFAULT_IMAGE_RULE.cost(height, width, False) == tokens


@given(st.integers(1, 16_383), st.integers(1, 16_383))
def test_the_size_is_read_from_the_header_of_each_format(width: int, height: int) -> None:
    for make in (png, gif, jpeg, webp_lossy, webp_lossless, webp_extended):
        image = make(width, height)
        assert read_image_dimensions(url(image)) == (width, height), make.__name__


def test_a_frame_header_behind_a_large_colour_profile_is_found() -> None:
    assert read_image_dimensions(url(jpeg(4000, 3000, before=240_000), "image/jpeg")) == (4000, 3000)


def test_the_length_of_the_base64_makes_no_difference() -> None:
    assert count_image_tokens(url(png(512, 512))) == count_image_tokens(url(png(512, 512) + bytes(3_000_000))) == 255


def test_low_detail_costs_the_base_whatever_the_size() -> None:
    assert (
        count_image_tokens(url(png(4000, 4000)), "low")
        == count_image_tokens("https://example.org/a.png", "low")
        == BASE_TOKENS
    )


@pytest.mark.parametrize("detail", ["high", "auto", "original", None, 7])
def test_any_other_detail_is_high(detail: object) -> None:
    assert count_image_tokens(url(png(2048, 4096)), detail) == 1105


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
    assert read_image_dimensions(unreadable) is None
    assert count_image_tokens(unreadable) == ASSUMED_TOKENS == 765


@given(
    st.binary(max_size=200), st.sampled_from([b"", b"\xff\xd8", b"GIF89a", b"RIFF\0\0\0\0WEBP", b"\x89PNG\r\n\x1a\n"])
)
def test_no_bytes_make_it_raise(data: bytes, start: bytes) -> None:
    assert count_image_tokens(url(start + data)) >= BASE_TOKENS


@pytest.mark.parametrize(
    ("model", "size", "tokens"),
    [
        # OpenAI, images and vision: worked examples, and base and tile tokens for four tiles
        ("gpt-4o", (1024, 1024), 765),
        ("gpt-4.1-2025-04-14", (2048, 4096), 1105),
        ("gpt-4o-mini-2024-07-18", (1024, 1024), 2833 + 4 * 5667),
        ("o1", (1024, 1024), 675),
        ("o3-pro", (1024, 1024), 675),
        ("gpt-5", (1024, 1024), 630),
        ("openai/gpt-5-chat-latest", (1024, 1024), 630),
        ("ft:gpt-4.1-mini:acme::id", (1024, 1024), 1659),
        ("gpt-4.1-mini", (1800, 2400), 2353),
        ("gpt-4.1-nano", (1800, 2400), 3572),
        ("o4-mini", (1024, 1024), 1762),
        # what the API reported to its users
        ("gpt-5-mini", (256, 256), 77),
        ("gpt-5-mini", (768, 1024), 922),
        ("gpt-5-mini-2025-08-07", (1280, 720), 1104),
        ("gpt-5-mini", (2048, 768), 1844),
        ("gpt-5.4-mini", (1024, 1024), 1229),
        ("gpt-5-nano", (1024, 1024), 1536),
        ("gpt-5.4", (1600, 1600), 3000),
        # Anthropic
        ("claude-sonnet-4-5", (1092, 1092), 39 * 39),
        ("anthropic/claude-3.5-sonnet", (200, 200), 64),
        ("us.anthropic.claude-3-7-sonnet-20250219-v1:0", (4000, 3000), 1568),
        ("claude-opus-4-7", (2576, 1449), 92 * 52),
        ("claude-opus-4-6", (2576, 1449), 1568),
        # Google
        ("gemini-2.5-flash", (384, 384), 258),
        ("google/gemini-2.0-flash-001", (960, 540), 6 * 258),
        ("gemini-2.5-pro", (8000, 6000), 12 * 258),
        ("gemini-3-pro-preview", (4000, 4000), 1120),
        ("google/gemma-3-27b-it", (4000, 4000), 256),
        # open models
        ("Qwen/Qwen2.5-VL-7B-Instruct", (3584, 3584), 16_384 + 2),
        ("qwen2-vl", (10_000, 10_000), 16_384 + 2),
        ("qwen2.5vl:7b", (28, 28), 4 + 2),
        ("Qwen3-VL-8B-Instruct", (1024, 1024), 1024 + 2),
        ("mistral-community/pixtral-12b", (2048, 2048), 64 * 65),
        ("mistral-small-latest", (1540, 1540), 55 * 56),
        ("llava:7b", (4000, 4000), 576),
        ("llava-v1.6-mistral-7b", (4000, 4000), 2880),
        # stated default
        ("some-model", (1024, 1024), 765),
    ],
)
def test_an_image_costs_what_the_documentation_of_its_model_says(
    model: str, size: tuple[int, int], tokens: int
) -> None:
    assert choose_image_rule(model).cost(*size, False) == tokens
    counter = load_token_counter(choose_token_counter_name(model))
    image = {"type": "image_url", "image_url": {"url": url(png(*size))}}
    message = {"role": "user", "content": [image]}
    assert (
        counter.count_message(as_item(message)) - counter.count_message(as_item({"role": "user", "content": []}))
        == tokens
    )


@pytest.mark.parametrize(
    ("model", "tokens"), [("gpt-4o", 85), ("gpt-4o-mini", 2833), ("gpt-5", 70), ("o1", 75), ("gpt-5-mini", 1229)]
)
def test_low_detail_costs_the_base_of_models_that_count_tiles(model: str, tokens: int) -> None:
    assert count_image_tokens(url(png(1024, 1024)), "low", choose_image_rule(model)) == tokens


@pytest.mark.parametrize("pixels", [200, 1000, 1092])
def test_claude_is_near_the_formula_that_its_documentation_had_before(pixels: int) -> None:
    assert choose_image_rule("claude-sonnet-4-5").cost(pixels, pixels, False) == pytest.approx(pixels**2 / 750, abs=70)


@given(st.integers(1, 70_000), st.integers(1, 70_000), st.booleans())
@example(1, 70_000, False)
@example(1, 385, False)
@example(70_000, 70_000, False)
def test_every_rule_takes_every_size(width: int, height: int, is_low: bool) -> None:
    for rule in (*IMAGE_RULES, DEFAULT_IMAGE_RULE):
        assert 1 <= find_named_image_rule(rule.name).cost(width, height, is_low) <= 50_000, rule.name


def test_a_conversation_keeps_the_name_of_its_counter() -> None:
    assert choose_token_counter_name("gpt-4o") == choose_token_counter_name("unknown") == "o200k_base"
    assert choose_token_counter_name("claude-sonnet-4-5") == "o200k_base+claude"
    assert choose_token_counter_name("gemini-2.5-pro", "cl100k_base") == "cl100k_base+gemini"
    assert load_token_counter("o200k_base+gone").count_message(as_item({"role": "user", "content": "Hello"})) > 0
    assert find_named_image_rule("gone") is DEFAULT_IMAGE_RULE
    assert len({rule.name for rule in IMAGE_RULES}) == len(IMAGE_RULES)
