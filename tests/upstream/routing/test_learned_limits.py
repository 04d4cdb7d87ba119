"""What is learned from refusals: for how long it counts, and what refutes it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from app.upstream.routing.learned_limits import LIMIT_SECONDS, LearnedLimits
from tests.upstream.scripted_provider import Time

KEY = "p/m"


def tokens(limits: LearnedLimits) -> int | None:
    limit = limits.find_limit(KEY)
    return None if limit is None else limit.tokens


def learned(*sizes: int, time: Time | None = None, address: str = "https://one") -> LearnedLimits:
    limits = LearnedLimits({"p": address}, now=(time or Time()).clock)
    for size in sizes:
        limits.learn(KEY, size)
    return limits


def test_of_two_limits_the_smaller_one_counts() -> None:
    assert tokens(learned(6000, 4096)) == tokens(learned(4096, 6000)) == 4096


@pytest.mark.parametrize("size", [0, -1, 100, 10**12])
def test_an_implausible_limit_is_not_learned(size: int) -> None:
    assert tokens(learned(size)) is None


def test_only_news_is_stored() -> None:
    limits = learned()

    assert limits.learn(KEY, 4096) is not None
    assert limits.learn(KEY, 4096) is None
    assert limits.learn_from_passed_prompt(KEY, 4096) is None
    assert limits.learn_from_passed_prompt("p/other", 9000) is None


def test_a_limit_expires_after_a_day_and_is_learned_anew() -> None:
    time = Time()
    limits = learned(4096, time=time)

    time.now += LIMIT_SECONDS - 1
    assert tokens(limits) == 4096
    time.now += 1
    assert tokens(limits) is None
    limits.learn(KEY, 6000)
    assert tokens(limits) == 6000


def test_a_larger_prompt_that_passes_refutes_a_limit() -> None:
    limits = learned(4096)
    limits.learn_from_passed_prompt(KEY, 4096)
    assert tokens(limits) == 4096

    limits.learn_from_passed_prompt(KEY, 4097)

    assert tokens(limits) is None


def test_hosts_of_different_windows_behind_one_name_do_not_make_the_limit_flap() -> None:
    limits, seen = learned(), []
    for prompt in (9000, 3000, 9000, 9000, 3000, 9000, 9000):
        limits.learn(KEY, 4096)
        seen.append(tokens(limits))
        limits.learn_from_passed_prompt(KEY, prompt)
        seen.append(tokens(limits))

    changes = sum(one != other for one, other in pairwise(seen))
    assert changes == 2
    assert seen[-1] == 4096


def test_a_stated_limit_beats_a_derived_one() -> None:
    limits = learned(6000)
    limits.learn(KEY, 4000, is_stated=False)
    assert tokens(limits) == 6000

    derived = learned()
    derived.learn(KEY, 4000, is_stated=False)
    derived.learn(KEY, 6000)
    assert tokens(derived) == 6000


def test_what_is_stored_is_known_after_a_restart_at_the_same_address_only() -> None:
    facts: Any = {KEY: json.loads(json.dumps(learned().learn(KEY, 4096)))}
    for address, expected in (("https://one", 4096), ("https://two", None)):
        limits = learned(address=address)
        limits.restore(facts)
        assert tokens(limits) == expected


@pytest.mark.parametrize("fact", [None, 4096, "4096", {"tokens": "many"}, {}, []])
def test_facts_that_cannot_be_read_are_ignored(fact: object) -> None:
    limits = learned(4096)

    limits.restore({KEY: {"limit": fact, "window": 2000, "limits_cleared_at": "today"}})

    assert tokens(limits) is None


def test_a_limit_whose_write_is_under_way_is_not_forgotten_when_the_facts_are_read() -> None:
    limits = learned(4096)

    limits.restore({KEY: {"slopes": {}}})

    assert tokens(limits) == 4096


def test_a_cleared_limit_is_forgotten_by_every_process_that_reads_the_facts() -> None:
    time = Time()
    limits, other = learned(4096, time=time), learned(4096, time=time)
    assert not limits.was_cleared_since(KEY, time.now)

    other.restore({KEY: limits.clear(KEY)})

    for one in (limits, other):
        assert tokens(one) is None
        assert one.was_cleared_since(KEY, time.now)
        assert not one.was_cleared_since(KEY, time.now + 1)
