"""Counts before a tokenizer's own table is loaded: the same counts, for as long as there is little to count."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.context.count import interim_token_counter
from app.context.count.interim_token_counter import StartupTokenCounter
from app.context.count.tokenizers import TiktokenTokenizer, Tokenizer, load_tokenizer
from app.context.count.vocabulary import VOCABULARIES
from app.context.count.vocabulary.rank_lookup import pack_ranks

ENCODINGS = list(VOCABULARIES)
REFERENCE = {name: TiktokenTokenizer(name) for name in ENCODINGS}
texts = st.one_of(
    st.text(max_size=200),
    st.text(st.characters(max_codepoint=0x2FFF), max_size=200),
    st.text("sSdDtTlLvVrReE aZ9 \n\r\t\x0b\x1c\x85\xa0'.-/_<|>ſÉéǅʰ字。、²\u0301\u0903😀", max_size=200),
)


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_lookup_holds_the_pinned_table_and_nothing_else(name: str) -> None:
    vocabulary = VOCABULARIES[name]
    ranks, lookup = vocabulary.read_ranks(), vocabulary.read_rank_lookup()
    assert lookup._table == pack_ranks(ranks), "run tools/update_vocabulary.py"
    assert all(lookup.find_rank(token) == rank for token, rank in ranks.items())
    assert lookup.find_rank(b"no such token at all") is None


@given(texts)
@example("I'LL don't WON'T it's 12345 \r\n\n  end   ")
@example("   \n")
@example("Le café naïve, モデル 12 345\u202f€ 😀 it'ſ ok")
def test_first_texts_count_as_all_others_do(text: str) -> None:
    for name in ENCODINGS:
        assert _fresh(name).count(text) in (None, REFERENCE[name].count(text))


@pytest.mark.parametrize("name", ENCODINGS)
def test_real_files_count_the_same(name: str) -> None:
    for path in sorted(Path(string.__file__).parent.glob("*.py"))[:10]:
        text = path.read_text(encoding="utf-8", errors="ignore")[:4_000]
        assert StartupTokenCounter(name).count(text) == REFERENCE[name].count(text), path.name


@pytest.mark.parametrize(
    "text",
    [
        "a " * interim_token_counter.MAX_TEXT_CHARS,
        "a" * (interim_token_counter.MAX_WORD_BYTES + 1),
        "\ud800",
        "\U00020000",
    ],
    ids=["long", "a long word", "half a character", "a rare character"],
)
def test_what_would_take_long_or_may_be_read_in_two_ways_is_left_to_the_table(text: str) -> None:
    assert StartupTokenCounter("o200k_base").count(text) is None


def test_whoever_has_counted_enough_gives_up_for_good() -> None:
    first = StartupTokenCounter("o200k_base")
    text = "a word " * 100
    counted = [first.count(text) for _ in range(interim_token_counter.MAX_PROCESS_CHARS // len(text) + 1)]
    assert counted[-2] is not None
    assert counted[-1] is None


@pytest.mark.parametrize("text", ["Größe, naïve café", "モデルは速い。", "Привет, мир", "😀 👍🏽", "안녕하세요"])
def test_any_language_has_first_texts(text: str) -> None:
    assert StartupTokenCounter("o200k_base").count(text) == REFERENCE["o200k_base"].count(text)


def test_a_tokenizer_loads_no_table_for_a_few_short_texts() -> None:
    load_tokenizer.cache_clear()
    tokenizer = load_tokenizer("o200k_base")
    assert tokenizer.count("hello world") == 2
    assert not _is_loaded(tokenizer)


def test_a_tokenizer_that_has_its_table_counts_with_nothing_else() -> None:
    load_tokenizer.cache_clear()
    tokenizer = load_tokenizer("o200k_base")
    assert tokenizer.count("\ud800") == 1
    assert _is_loaded(tokenizer)
    assert tokenizer.count("hello world") == 2


def _fresh(name: str, made: dict[str, StartupTokenCounter] = {}) -> StartupTokenCounter:  # noqa: B006 - a cache
    """One that has counted nothing; its table is read once."""
    first = made.setdefault(name, StartupTokenCounter(name))
    first._remaining_chars = interim_token_counter.MAX_PROCESS_CHARS
    return first


def _is_loaded(tokenizer: Tokenizer) -> bool:
    return getattr(tokenizer, "_startup_counter") is None  # noqa: B009 - of either kind
