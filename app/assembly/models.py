"""From settings to models: providers, what each name stands for, policies, token counters."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Final

from app.context.count.token_counter import LONG_BYTES, TokenCounter, counter_for, counter_name
from app.context.plan.policy import (
    MOST_SUMMARY_TOKENS,
    ClearReasoning,
    ClearToolResults,
    Policy,
    SummarizerPolicy,
    Trigger,
)
from app.observability.metrics import Metrics
from app.settings import Settings
from app.settings.sections import EVERY_MODEL
from app.settings.sections import Deployment as DeploymentSettings
from app.settings.sections import Provider as ProviderSettings
from app.simulator.context_window import window_of
from app.simulator.options import SimulatorOptions
from app.simulator.provider import SimulatedProvider
from app.simulator.simulator import Simulator
from app.upstream.http.dial import tls_context
from app.upstream.protocols.openai import OpenAIProvider, Timeouts
from app.upstream.provider import NO_QUIRKS, Price, Provider, Quirks
from app.upstream.routing import window_registry
from app.upstream.routing.router import ModelRoute, Place, RetryPolicy, Router
from app.upstream.routing.windows import Windows

SIMULATOR: Final = "simulator"
FREE: Final = Price(input=0.0, output=0.0)
"""Of the simulated model, whichever name it answers to."""
POLICY_PARTS: Final[Mapping[str, Callable[..., object]]] = {
    "trigger": Trigger,
    "clear_tool_results": ClearToolResults,
    "clear_reasoning": ClearReasoning,
    "summarizer": SummarizerPolicy,
}


def policy_of(settings: Settings, name: str) -> Policy:
    """A configured policy as the planner takes it."""
    values = dict(settings.policies[name])
    for part, made in POLICY_PARTS.items():
        facts = dict(values[part])
        if part == "summarizer" and facts["max_summary_tokens"] is None:
            facts["max_summary_tokens"] = MOST_SUMMARY_TOKENS[values["kind"]]
        values[part] = made(**facts)
    return Policy(name=name, **values)


def windows_of(settings: Settings) -> Windows:
    """What is known of context windows before anybody is asked."""
    return Windows(
        default_tokens=settings.window_default,
        known=_simulated_window if settings.uses_simulated_model else window_registry.find,
        clock=time.monotonic,
    )


def router_of(
    settings: Settings,
    routes: Mapping[str, ModelRoute],
    providers: Mapping[str, Provider],
    metrics: Metrics,
    purpose: str,
) -> Router:
    """A router with breakers of its own: summaries that fail must not keep a client from its answer.

    Args:
        purpose: what its calls are counted as.
    """
    return Router(
        routes,
        providers,
        RetryPolicy(**settings.retries.model_dump()),
        sleep=asyncio.sleep,
        clock=time.monotonic,
        random=random.random,
        metrics=metrics,
        purpose=purpose,
    )


def providers_of(settings: Settings) -> dict[str, Provider]:
    """Every configured provider by name; the simulated model where there is none."""
    if settings.uses_simulated_model:
        simulator = Simulator(SimulatorOptions(), _counter_for_model, clock=time.time, new_id=lambda: uuid.uuid4().hex)
        return {SIMULATOR: SimulatedProvider(simulator, SIMULATOR)}
    return {name: _provider(name, section) for name, section in settings.providers.items()}


def _provider(name: str, section: ProviderSettings) -> Provider:
    timeouts = section.timeouts
    return OpenAIProvider(
        name,
        section.base_url,
        section.api_key.get_secret_value() if section.api_key else None,
        Timeouts(
            connect_seconds=timeouts.connect_seconds,
            first_byte_seconds=timeouts.first_byte_seconds,
            between_bytes_seconds=timeouts.between_bytes_seconds,
            whole_seconds=timeouts.total_seconds,
        ),
        headers={header: value.get_secret_value() for header, value in section.headers.items()},
        auth_header=section.auth_header,
        proxy=section.proxy.get_secret_value() if section.proxy else None,
        ssl_context=tls_context(section.ca_file) if section.ca_file else None,
        client_key_rule=section.client_key_rule,
    )


def routes_of(settings: Settings) -> dict[str, ModelRoute]:
    """What each model name stands for."""
    if settings.uses_simulated_model:
        return {EVERY_MODEL: ModelRoute((Place(SIMULATOR, price=FREE),))}
    return {
        name: ModelRoute(
            tuple(_place(deployment, settings) for deployment in model.expanded()), fallbacks=model.fallbacks
        )
        for name, model in settings.served_models.items()
    }


def _place(deployment: DeploymentSettings, settings: Settings) -> Place:
    section = deployment.quirks.over(settings.providers[deployment.provider].quirks)
    quirks = Quirks(**section.model_dump())
    return Place(
        provider=deployment.provider,
        model=deployment.model,
        context_window=deployment.context_window,
        max_output_tokens=deployment.max_output_tokens,
        encoding=deployment.encoding,
        quirks=NO_QUIRKS if quirks == NO_QUIRKS else quirks,
        price=Price(**deployment.price.model_dump()),
    )


def _simulated_window(model: str) -> tuple[int, None, None]:
    return window_of(model), None, None


def warm_up(settings: Settings) -> None:
    """Make the tokenizers in use ready: for their first texts, or for all with `server.preload`."""
    text = "warm " * (LONG_BYTES if settings.server.preload else 1)
    deployments = [deployment for model in settings.served_models.values() for deployment in model.expanded()]
    named = {counter_name(deployment.model or "", deployment.encoding) for deployment in deployments}
    for name in named or {counter_name("")}:
        counter_for(name).count(text)


def _counter_for_model(model: str) -> TokenCounter:
    return counter_for(counter_name(model))
