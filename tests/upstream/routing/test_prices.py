"""List prices, and what calls cost by them. What is not known is never nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.dialects.usage import TokenUsage
from app.upstream.provider_contract import ModelDeployment, ProviderProtocol, TokenPrice
from app.upstream.routing.prices import (
    compute_call_cost_usd,
    compute_prompt_cost_usd,
    find_cache_rule,
    find_list_price,
)
from app.upstream.routing.routes import ConfiguredDeployment, ModelRoute, Routes
from tests.upstream.scripted_provider import ScriptedProvider, by_name

PRICE = TokenPrice(input=2.0, cached_input=0.5, output=8.0)


def deployment(model: str, price: TokenPrice | None = None) -> ModelDeployment:
    route = ModelRoute((ConfiguredDeployment("p", price=price or TokenPrice()),))
    return Routes({model: route}, by_name(ScriptedProvider("p"))).resolve(model).deployments[0]


@pytest.mark.parametrize("name", ["gpt-4o", "openai/gpt-4o", "GPT-4o"])
def test_a_model_is_found_by_its_name_as_windows_are(name: str) -> None:
    price = find_list_price(name)
    assert price.input is not None
    assert price.output is not None
    assert 0 < price.input < price.output


def test_a_model_that_no_list_knows_has_no_price() -> None:
    assert find_list_price("a-model-of-our-own") == TokenPrice()


def test_configuration_wins_over_the_list() -> None:
    assert deployment("gpt-4o", PRICE).price == PRICE
    assert deployment("gpt-4o").price == find_list_price("gpt-4o")


def test_a_price_of_nothing_is_a_price() -> None:
    free = TokenPrice(input=0.0, output=0.0)
    assert deployment("gpt-4o", free).price == free
    assert compute_call_cost_usd(deployment("gpt-4o", free), TokenUsage(10, 0, 10)) == 0


@pytest.mark.parametrize("price", [TokenPrice(), TokenPrice(input=1.0), TokenPrice(output=1.0)])
def test_half_a_price_is_none(price: TokenPrice) -> None:
    assert compute_call_cost_usd(deployment("a-model-of-our-own", price), TokenUsage(10, 0, 10)) is None


def test_cached_tokens_cost_what_is_said_of_them() -> None:
    usage = TokenUsage(prompt_tokens=1_000_000, cached_tokens=400_000, output_tokens=100_000)
    assert compute_call_cost_usd(deployment("m", PRICE), usage) == pytest.approx(1.2 + 0.2 + 0.8)
    assert compute_call_cost_usd(deployment("m", TokenPrice(input=2.0, output=8.0)), usage) == pytest.approx(2.8)


def test_what_is_written_to_the_cache_costs_more_for_a_longer_lifetime() -> None:
    usage = TokenUsage(1_000_000, cached_tokens=200_000, written_tokens=500_000, long_written_tokens=100_000)
    price = replace(PRICE, cache_write=2.5, long_cache_write=4.0)
    assert compute_call_cost_usd(deployment("m", price), usage) == pytest.approx(0.3 * 2 + 0.1 + 0.4 * 2.5 + 0.4)
    assert compute_call_cost_usd(deployment("m", replace(PRICE, cache_write=2.5)), usage) == pytest.approx(1.95)
    assert compute_call_cost_usd(deployment("m", PRICE), usage) == pytest.approx(1.7)


def test_well_known_models_cost_what_their_makers_ask_for_writes_and_long_prompts() -> None:
    def cost(usage: TokenUsage) -> float | None:
        return compute_call_cost_usd(deployment("gpt-5.6"), usage)

    assert cost(TokenUsage(10_000, written_tokens=8_000)) == pytest.approx(0.048)
    assert cost(TokenUsage(272_000)) == pytest.approx(1.088)
    assert cost(TokenUsage(300_000)) == pytest.approx(2.40)
    assert cost(TokenUsage(300_000, written_tokens=300_000, output_tokens=1000)) == pytest.approx(3.03)
    claude = deployment("claude-sonnet-4-5")
    usage = TokenUsage(1_000_000, written_tokens=1_000_000, long_written_tokens=1_000_000)
    assert compute_call_cost_usd(claude, usage) == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("protocol", "model", "is_openai", "rule"),
    [
        ("anthropic", "claude-sonnet-4-5", False, "anthropic"),
        ("anthropic", "eu.anthropic.claude-sonnet-4-5-20250929-v1:0", False, "anthropic"),
        ("anthropic", "kimi-k2", False, "none"),
        ("openai", "gpt-5.6", True, "breakpoints"),
        ("responses", "gpt-5.6-luna-2026-09-01", True, "breakpoints"),
        ("openai", "gpt-4o", True, "prefix"),
        ("responses", "something-new", True, "prefix"),
        ("openai", "gpt-5.6", False, "none"),
        ("openai", "claude-sonnet-4-5", False, "none"),
    ],
)
def test_the_rule_of_a_cache_is_known_only_where_it_is_certain(
    protocol: ProviderProtocol, model: str, is_openai: bool, rule: str
) -> None:
    assert find_cache_rule(protocol, model, is_openai=is_openai) == rule


def test_what_was_not_sent_would_have_cost() -> None:
    assert compute_prompt_cost_usd(PRICE, 500_000) == pytest.approx(1.0)
    assert compute_prompt_cost_usd(TokenPrice(), 500_000) is None
