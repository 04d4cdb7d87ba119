"""Model names → deployments."""

from __future__ import annotations

import pytest

from app.errors import ModelNotFound
from app.upstream.provider_contract import ProviderQuirks
from app.upstream.routing.routes import ConfiguredDeployment, ModelRoute, Routes
from tests.upstream.scripted_provider import ScriptedProvider, by_name

PROVIDERS = by_name(ScriptedProvider("a"), ScriptedProvider("b"))


def route(*places: ConfiguredDeployment | str, fallbacks: tuple[str, ...] = ()) -> ModelRoute:
    return ModelRoute(tuple(ConfiguredDeployment(p) if isinstance(p, str) else p for p in places), fallbacks)


def keys(routes: Routes, model: str) -> list[str]:
    return [deployment.key for deployment in routes.resolve(model).deployments]


def test_a_models_cache_has_the_configured_rule_else_that_of_its_name_at_openai_itself() -> None:
    routes = Routes(
        {
            "gpt-5.6": route(ConfiguredDeployment("a", is_openai=True), "b"),
            "fast": route(ConfiguredDeployment("a", "gpt-5.6"), ConfiguredDeployment("b", "gpt-5.6", cache="prefix")),
            "m": route(ConfiguredDeployment("a", cache="none", is_openai=True)),
        },
        PROVIDERS,
    )

    def rules(model: str) -> list[str]:
        return [deployment.cache for deployment in routes.resolve(model).deployments]

    assert rules("gpt-5.6") == ["breakpoints", "none"]
    assert rules("fast") == ["none", "prefix"]
    assert rules("m") == ["none"]


def test_a_name_stands_for_its_places_then_its_fallbacks() -> None:
    routes = Routes(
        {
            "m": route("a", ConfiguredDeployment("b", "m-eu"), fallbacks=("n",)),
            "n": route("b", fallbacks=("o",)),
            "o": route("a"),
        },
        PROVIDERS,
    )

    assert keys(routes, "m") == ["a/m", "b/m-eu", "b/n", "a/o"]
    assert routes.resolve("m").model == "m"
    assert routes.resolve("m") is routes.resolve("m")


def test_a_deployment_reached_twice_is_tried_once() -> None:
    routes = Routes(
        {"m": route("a", fallbacks=("n", "o")), "n": route("b", fallbacks=("o",)), "o": route("b")}, PROVIDERS
    )

    assert keys(routes, "m") == ["a/m", "b/n", "b/o"]


def test_another_name_for_a_configured_model_takes_over_what_is_known_of_it() -> None:
    known = ConfiguredDeployment("a", None, 9000, 100, "cl100k_base", ProviderQuirks(merge_same_role=True))
    routes = Routes(
        {
            "m": route(known),
            "fast": route(ConfiguredDeployment("a", "m", max_output_tokens=50)),
            "far": route(ConfiguredDeployment("b", "m")),
        },
        PROVIDERS,
    )

    (fast,) = routes.resolve("fast").deployments
    assert (fast.context_window, fast.max_output_tokens, fast.encoding) == (9000, 50, "cl100k_base")
    assert fast.quirks.merge_same_role
    (far,) = routes.resolve("far").deployments
    assert far.context_window is None


def test_the_wildcard_passes_any_other_name_on() -> None:
    routes = Routes({"m": route("a"), "*": route(ConfiguredDeployment("b", context_window=5))}, PROVIDERS)

    assert keys(routes, "m") == ["a/m"]
    assert keys(routes, "vendor/any-model") == ["b/vendor/any-model"]
    assert routes.resolve("x").deployments[0].context_window == 5


@pytest.mark.parametrize("model", ["", "*", "nothing alike"])
def test_an_unknown_name_is_refused(model: str) -> None:
    with pytest.raises(ModelNotFound):
        Routes({"gpt-4o-mini": route("a")}, PROVIDERS).resolve(model)


def test_the_nearest_name_is_named() -> None:
    with pytest.raises(ModelNotFound, match="'gpt-4o-mini'") as caught:
        Routes({"gpt-4o-mini": route("a"), "sim": route("b")}, PROVIDERS).resolve("gpt4o-mini")
    assert caught.value.param == "model"


def test_a_wildcard_with_a_prefix_serves_no_other_names_and_its_error_says_why() -> None:
    wildcard = ModelRoute((ConfiguredDeployment("a"),), name_prefix="sim", hint="Configure a provider.")
    routes = Routes({"*": wildcard}, PROVIDERS)

    assert keys(routes, "sim-8k") == ["a/sim-8k"]
    with pytest.raises(ModelNotFound, match=r"'gpt-4o' does not exist.*Configure a provider\."):
        routes.resolve("gpt-4o")
