"""Builds from the settings what concerns models: providers, routes, routers, context windows, policies, token
counters."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from app.context.count.token_counter import choose_token_counter_name, load_token_counter
from app.context.plan.policy import (
    MAX_SUMMARY_TOKENS,
    CheckpointTrigger,
    ContextPolicy,
    EmbeddingModel,
    SummarizerPolicy,
    make_policy,
)
from app.conversation.context_edits import ReasoningClearing, ToolResultClearing
from app.settings import Settings
from app.settings.providers_and_models import EVERY_MODEL
from app.settings.providers_and_models import Deployment as DeploymentSettings
from app.settings.providers_and_models import Provider as ProviderSettings
from app.settings.value_types import strip_credentials
from app.simulator.options_and_faults import SimulatorOptions
from app.simulator.request_checks import SIMULATED_PREFIX, parse_window_from_name
from app.simulator.simulated_provider import SimulatedProvider
from app.simulator.simulator import Simulator
from app.upstream.embeddings import Embedder, LocalEmbedder, ProviderEmbedder
from app.upstream.http.aiohttp_transport import load_trusted_ca_context
from app.upstream.http.http_client_contract import HttpTimeouts
from app.upstream.protocols.anthropic_provider import AnthropicProvider
from app.upstream.protocols.openai_provider import OpenAIProvider
from app.upstream.protocols.responses_provider import ResponsesProvider
from app.upstream.provider_contract import NO_QUIRKS, ProviderQuirks, TokenPrice, UpstreamProvider
from app.upstream.routing.context_windows import ContextWindows
from app.upstream.routing.known_model_windows import find_known_window
from app.upstream.routing.learned_limits import LearnedLimits
from app.upstream.routing.routes import ConfiguredDeployment, ModelRoute

SIMULATOR: Final = "simulator"
NO_PROVIDER_HINT: Final = (
    "No provider is configured, so only the simulated model answers, under names such as 'sim-8k'. "
    "Run `concertina init` to write a configuration with a provider, or set `providers` and restart; "
    "if there is a configuration, start with `concertina serve --config FILE`."
)
"""Answers a model name that no simulated model has. Made-up text under a real model's name would pass for an answer."""
FREE_PRICE: Final = TokenPrice(input=0.0, output=0.0)
"""The price of the simulated model under every name. Without it, a real model's list price would be applied."""
POLICY_PART_CLASSES: Final[Mapping[str, Callable[..., object]]] = {
    "trigger": CheckpointTrigger,
    "clear_tool_results": ToolResultClearing,
    "clear_reasoning": ReasoningClearing,
    "summarizer": SummarizerPolicy,
}


def build_policy(settings: Settings, name: str) -> ContextPolicy:
    """Builds the planner's policy from the policy of that name in the settings."""
    values = dict(settings.policies[name])
    for part, part_class in POLICY_PART_CLASSES.items():
        part_values = dict(values[part])
        # The default depends on the kind of policy, which the settings' class for the summarizer does not know.
        if part == "summarizer" and part_values["max_summary_tokens"] is None:
            part_values["max_summary_tokens"] = MAX_SUMMARY_TOKENS[values["kind"]]
        values[part] = part_class(**part_values)
    embeddings = settings.policies[name].recall_embeddings
    values["recall_embeddings"] = embeddings.model and EmbeddingModel(embeddings.provider, embeddings.model)
    return make_policy(name=name, **values)


def build_embedders(
    policies: Iterable[ContextPolicy], providers: Mapping[str, UpstreamProvider]
) -> dict[EmbeddingModel, Embedder]:
    """Builds each embedding model that a policy names."""
    return {
        model: LocalEmbedder(model.model)
        if model.provider is None
        else ProviderEmbedder(providers[model.provider], model.model)
        for model in {policy.quotations.recall_embeddings for policy in policies}
        if model is not None
    }


def build_learned_limits(settings: Settings, unix_seconds: Callable[[], float] = time.time) -> LearnedLimits:
    """Builds the memory for limits that are learned from overflows."""
    addresses = {name: strip_credentials(provider.base_url) for name, provider in settings.providers.items()}
    return LearnedLimits(addresses, now=unix_seconds)


def build_context_windows(settings: Settings, learned_limits: LearnedLimits) -> ContextWindows:
    """Builds the context windows, with what is known before any provider is asked."""
    return ContextWindows(
        learned_limits,
        default_tokens=settings.window_default,
        find_known=(lambda model: (parse_window_from_name(model), None, None))
        if settings.uses_simulated_model
        else find_known_window,
        clock=time.monotonic,
    )


PROVIDER_CLASSES: Final[Mapping[str, type[OpenAIProvider]]] = {
    "openai": OpenAIProvider,
    "responses": ResponsesProvider,
    "anthropic": AnthropicProvider,
}


def build_providers(settings: Settings) -> dict[str, UpstreamProvider]:
    """Builds every configured provider, by name; the simulated model if no provider is configured."""
    if settings.uses_simulated_model:
        simulator = Simulator(
            SimulatorOptions(),
            lambda model: load_token_counter(choose_token_counter_name(model)),
            clock=time.time,
            new_id=lambda: uuid.uuid4().hex,
        )
        return {SIMULATOR: SimulatedProvider(simulator, SIMULATOR)}
    return {name: _build_provider(name, section) for name, section in settings.providers.items()}


def _build_provider(name: str, section: ProviderSettings) -> UpstreamProvider:
    return PROVIDER_CLASSES[section.protocol](
        name,
        section.base_url,
        section.api_key.get_secret_value() if section.api_key else None,
        HttpTimeouts(**section.timeouts.model_dump()),
        headers={header: value.get_secret_value() for header, value in section.headers.items()},
        auth_header=section.auth_header,
        proxy=section.proxy.get_secret_value() if section.proxy else None,
        # Without a file of its own, a provider uses the context that all providers share.
        ssl_context=load_trusted_ca_context(section.ca_file) if section.ca_file else None,
        client_key_rule=section.client_key_rule,
    )


def build_deployment_routes(settings: Settings) -> dict[str, ModelRoute]:
    """Builds the route of each model name: its deployments and fallbacks."""
    if settings.uses_simulated_model:
        simulated = ConfiguredDeployment(SIMULATOR, price=FREE_PRICE)
        return {EVERY_MODEL: ModelRoute((simulated,), name_prefix=SIMULATED_PREFIX, hint=NO_PROVIDER_HINT)}
    return {
        name: ModelRoute(
            tuple(_build_deployment(deployment, settings) for deployment in model.expand_deployments()),
            fallbacks=model.fallbacks,
        )
        for name, model in settings.served_models.items()
    }


def _build_deployment(deployment: DeploymentSettings, settings: Settings) -> ConfiguredDeployment:
    quirk_settings = deployment.quirks.merge_over(settings.providers[deployment.provider].quirks)
    quirks = ProviderQuirks(**quirk_settings.model_dump())
    return ConfiguredDeployment(
        provider=deployment.provider,
        model=deployment.model,
        context_window=deployment.context_window,
        max_output_tokens=deployment.max_output_tokens,
        encoding=deployment.encoding,
        # One shared object if there are none: `pipeline.call.upstream_request_body` compares identity first, for each
        # request.
        quirks=NO_QUIRKS if quirks == NO_QUIRKS else quirks,
        price=TokenPrice(**deployment.price.model_dump()),
        cache=deployment.cache,
        is_openai=settings.providers[deployment.provider].is_openai,
    )


def warm_up_tokenizers(settings: Settings) -> None:
    """Loads the tokenizers' tables of all configured models."""
    deployments = [deployment for model in settings.served_models.values() for deployment in model.expand_deployments()]
    counter_names = {
        choose_token_counter_name(deployment.model or "", deployment.encoding) for deployment in deployments
    }
    for name in counter_names or {choose_token_counter_name("")}:
        load_token_counter(name).count("warm")
