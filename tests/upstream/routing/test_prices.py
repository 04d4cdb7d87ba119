"""List prices, and what calls cost by them. What is not known is never nothing."""

from __future__ import annotations

import pytest

from app.upstream.provider import Deployment, Price
from app.upstream.routing.prices import cost_usd, input_usd, list_price, price_of
from tests.upstream.scripted_provider import ScriptedProvider

PRICE = Price(input=2.0, cached_input=0.5, output=8.0)


def deployment(model: str, price: Price | None = None) -> Deployment:
    return Deployment(ScriptedProvider("p"), model, price=price or Price())


@pytest.mark.parametrize("name", ["gpt-4o", "openai/gpt-4o", "GPT-4o"])
def test_a_model_is_found_by_its_name_as_windows_are(name: str) -> None:
    price = list_price(name)
    assert price.input is not None
    assert price.output is not None
    assert 0 < price.input < price.output


def test_a_model_that_no_list_knows_has_no_price() -> None:
    assert list_price("a-model-of-our-own") == Price()


def test_configuration_wins_over_the_list() -> None:
    assert price_of(deployment("gpt-4o", PRICE)) == PRICE
    assert price_of(deployment("gpt-4o")) == list_price("gpt-4o")


def test_a_price_of_nothing_is_a_price() -> None:
    free = Price(input=0.0, output=0.0)
    assert price_of(deployment("gpt-4o", free)) == free
    assert cost_usd(free, prompt_tokens=10, cached_tokens=0, completion_tokens=10) == 0


@pytest.mark.parametrize("price", [Price(), Price(input=1.0), Price(output=1.0)])
def test_half_a_price_is_none(price: Price) -> None:
    assert cost_usd(price, prompt_tokens=10, cached_tokens=0, completion_tokens=10) is None


def test_cached_tokens_cost_what_is_said_of_them() -> None:
    tokens = {"prompt_tokens": 1_000_000, "cached_tokens": 400_000, "completion_tokens": 100_000}
    assert cost_usd(PRICE, **tokens) == pytest.approx(1.2 + 0.2 + 0.8)
    assert cost_usd(Price(input=2.0, output=8.0), **tokens) == pytest.approx(2.8)


def test_what_was_not_sent_would_have_cost() -> None:
    assert input_usd(PRICE, 500_000) == pytest.approx(1.0)
    assert input_usd(Price(), 500_000) is None
