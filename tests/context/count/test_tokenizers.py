"""Both tokenizers: the same counts, whatever the text, and never a stall."""

from __future__ import annotations

import asyncio
import base64
import random
import socket
import string
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.context.count import tokenizers
from app.context.count.tokenizers import (
    MAX_PIECE_CHARS,
    TiktokenTokenizer,
    Tokenizer,
    ToktokTokenizer,
    load_tokenizer,
    split_at_word_ends,
)
from app.context.count.vocabulary import VOCABULARIES, find_encoding_name

MEGABYTE = 1_000_000
ENCODINGS = list(VOCABULARIES)
TIKTOKEN = {name: TiktokenTokenizer(name) for name in ENCODINGS}
TOKTOK = {name: ToktokTokenizer(name) for name in ENCODINGS}
needs_toktok = pytest.mark.skipif(tokenizers._toktok is None, reason="toktok-rs is not installed")
IMPLEMENTATIONS = [
    pytest.param(TIKTOKEN, id="tiktoken"),
    pytest.param(TOKTOK, id="toktok", marks=needs_toktok),
]

chance = random.Random(7)
PATHOLOGICAL = {
    "one letter": "a" * MEGABYTE,
    "spaces": " " * (MEGABYTE + 50_000),
    "no-break spaces": "\u00a0" * MEGABYTE,
    "tabs": "\t" * MEGABYTE,
    "line ends": "\n" * MEGABYTE,
    "spaces and line ends": " \n" * (MEGABYTE // 2),
    "dashes": "-" * MEGABYTE,
    "digits": "7" * MEGABYTE,
    "abc": "abc" * (MEGABYTE // 3),
    "letters": "".join(chance.choices(string.ascii_letters, k=MEGABYTE)),
    "base64": base64.b64encode(chance.randbytes(MEGABYTE * 3 // 4)).decode(),
    "hexadecimal": chance.randbytes(MEGABYTE // 2).hex(),
    "emoji": "😀" * (MEGABYTE // 4),
    "Chinese": "".join(chr(chance.randint(0x4E00, 0x9FFF)) for _ in range(MEGABYTE // 3)),
    "combining marks": "e" + "\u0301" * (MEGABYTE // 2),
}

PROSE = (
    "Le café est prêt, 12345 fois.\n\n    if x == 'it''s':  # こんにちは、世界。\t😀 "
    "don't WON'T x²  \r\n <|endoftext|> "
)
fuzz = st.one_of(st.text(max_size=200), st.text("aZ é9 \n\r\t'.-/_字。、²\u0301😀<|>", max_size=200))


REFERENCE = {name: TiktokenTokenizer(name) for name in ENCODINGS}


def tiktoken_whole(name: str, text: str) -> int:
    return REFERENCE[name]._count(text)


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_shipped_patterns_are_those_that_were_published(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    published = import_module("tiktoken_ext.openai_public")
    monkeypatch.setattr(published, "load_tiktoken_bpe", lambda *_, **__: {})
    assert VOCABULARIES[name].pattern == getattr(published, name)()["pat_str"]


def test_a_damaged_table_is_refused() -> None:
    with pytest.raises(ValueError, match="damaged"):
        replace(VOCABULARIES["cl100k_base"], sha256="0" * 64).read_ranks()


@pytest.mark.parametrize("make", [TiktokenTokenizer, pytest.param(ToktokTokenizer, marks=needs_toktok)])
def test_counting_never_touches_the_network(make: Callable[[str], Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert make("o200k_base").count("hello world") == 2


@pytest.mark.parametrize("tokenizer", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("encoding", "text", "tokens"),
    [
        ("cl100k_base", "tiktoken is great!", 6),
        ("o200k_base", "tiktoken is great!", 6),
        ("cl100k_base", "antidisestablishmentarianism", 6),
        ("cl100k_base", "お誕生日おめでとう", 9),
        ("o200k_base", "お誕生日おめでとう", 8),
        ("o200k_base", "", 0),
        ("cl100k_base", "<|endoftext|>", 7),
        ("o200k_base", "<|endoftext|><|endofprompt|>", 13),
        ("o200k_base", "\ud800", 1),
        ("o200k_base", "\ud83d\ude00", 1),
    ],
)
def test_counts_are_those_of_the_published_examples(
    tokenizer: Mapping[str, Tokenizer], encoding: str, text: str, tokens: int
) -> None:
    assert tokenizer[encoding].count(text) == tokens


@pytest.mark.parametrize("tokenizer", IMPLEMENTATIONS)
@pytest.mark.parametrize("text", PATHOLOGICAL.values(), ids=PATHOLOGICAL.keys())
def test_a_megabyte_of_anything_is_counted_quickly_and_nearly_exactly(
    tokenizer: Mapping[str, Tokenizer], text: str
) -> None:
    started = time.process_time()
    tokens = tokenizer["o200k_base"].count(text)
    assert time.process_time() - started < 2.0  # at most 0.5 on the machine where it was written
    if tokenizers._toktok is not None:
        exact = tokenizers._toktok.batch_count([text], "o200k_base", threads=1)[0]
        assert tokens == pytest.approx(exact, rel=0.005)


@needs_toktok
@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("text", PATHOLOGICAL.values(), ids=PATHOLOGICAL.keys())
def test_both_tokenizers_cut_a_long_text_alike(name: str, text: str) -> None:
    sample = text[: MAX_PIECE_CHARS + 10_000]
    assert TIKTOKEN[name].count(sample) == TOKTOK[name].count(sample)


@needs_toktok
@pytest.mark.parametrize("name", ENCODINGS)
def test_both_tokenizers_agree_on_real_files(name: str) -> None:
    library = Path(string.__file__).parent
    for path in sorted(library.glob("*.py"))[:60]:
        text = path.read_text(encoding="utf-8", errors="replace")
        assert TIKTOKEN[name].count(text) == TOKTOK[name].count(text), path.name


@needs_toktok
@given(fuzz)
@example(PROSE)
@example("\ud800 \udfff\ud83d")
def test_both_tokenizers_agree_on_any_text(text: str) -> None:
    for name in ENCODINGS:
        assert TIKTOKEN[name].count(text) == TOKTOK[name].count(text)


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_long_text_with_words_is_counted_exactly(name: str) -> None:
    text = PROSE * (3 * MAX_PIECE_CHARS // len(PROSE))
    assert TIKTOKEN[name].count(text) == tiktoken_whole(name, text)


@given(fuzz)
@example(PROSE)
@example("a'sb a\u0301 b9c x²y.z_\n/w\r\n ok")
def test_a_text_may_be_cut_where_a_word_always_ends(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    for cut in tokenizers._WORD_END.finditer(text):
        left, right = text[: cut.start()], text[cut.start() :]
        for name in ENCODINGS:
            assert tiktoken_whole(name, left) + tiktoken_whole(name, right) == tiktoken_whole(name, text)


@given(st.integers(0, 3 * MAX_PIECE_CHARS), st.sampled_from(["a", "ab ", "字", "x9", "a\n"]))
def test_pieces_are_the_whole_text_and_none_is_too_long(length: int, pattern: str) -> None:
    text = (pattern * (length // len(pattern) + 1))[:length]
    pieces = list(split_at_word_ends(text))
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= MAX_PIECE_CHARS for piece in pieces) or text == ""


@pytest.mark.parametrize("tokenizer", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", ["one letter", "spaces", "base64", "Chinese"])
async def test_counting_in_a_thread_leaves_the_event_loop_running(
    tokenizer: Mapping[str, Tokenizer], kind: str
) -> None:
    counter = tokenizer["o200k_base"]
    counter.count("loaded")
    for _ in range(5):
        worst = await _worst_gap_seconds(counter, PATHOLOGICAL[kind])
        if worst < 0.02:
            return
    pytest.fail(f"the event loop stood still for {worst * 1000:.0f} ms")


async def _worst_gap_seconds(counter: Tokenizer, text: str) -> float:
    """The most CPU time of this process between two turns of its event loop. Other processes do not count."""
    job = asyncio.ensure_future(asyncio.to_thread(counter.count, text))
    worst, last = 0.0, time.process_time()
    while not job.done():
        await asyncio.sleep(0.0005)
        now = time.process_time()
        worst, last = max(worst, now - last), now
    await job
    return worst


def test_the_fastest_tokenizer_there_is_gets_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "_toktok", None)
    load_tokenizer.cache_clear()
    assert isinstance(load_tokenizer("o200k_base"), TiktokenTokenizer)
    monkeypatch.setattr(tokenizers, "_toktok", sys)
    load_tokenizer.cache_clear()
    assert isinstance(load_tokenizer("o200k_base"), ToktokTokenizer)
    load_tokenizer.cache_clear()


def test_an_unknown_encoding_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'p50k_base'; expected one of o200k_base, cl100k_base"):
        load_tokenizer("p50k_base")


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("gpt-4o", "o200k_base"),
        ("gpt-4o-2024-08-06", "o200k_base"),
        ("GPT-4o-mini", "o200k_base"),
        ("gpt-4.1-nano", "o200k_base"),
        ("gpt-5", "o200k_base"),
        ("gpt-5.1-codex", "o200k_base"),
        ("o1-preview", "o200k_base"),
        ("o3", "o200k_base"),
        ("o4-mini-2025-04-16", "o200k_base"),
        ("gpt-4", "cl100k_base"),
        ("gpt-4-turbo-2024-04-09", "cl100k_base"),
        ("gpt-4-32k", "cl100k_base"),
        ("gpt-3.5-turbo-0125", "cl100k_base"),
        ("gpt-35-turbo", "cl100k_base"),
        ("openai/gpt-4", "cl100k_base"),
        ("openrouter/openai/gpt-4o-mini", "o200k_base"),
        ("ft:gpt-3.5-turbo:acme::8abc", "cl100k_base"),
        ("ft:gpt-4o-mini-2024-07-18:acme:name:8abc", "o200k_base"),
        ("gpt-45x", "o200k_base"),
        ("claude-sonnet-4", "o200k_base"),
        ("qwen3-32b", "o200k_base"),
        ("", "o200k_base"),
    ],
)
def test_a_model_has_an_encoding(model: str, encoding: str) -> None:
    assert find_encoding_name(model) == encoding
