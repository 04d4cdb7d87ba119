"""`concertina simulate`: runs the simulated model as a server of its own."""

from __future__ import annotations

import argparse

from app.context.count.token_counter import TokenCounter, choose_token_counter_name, load_token_counter
from app.simulator.options_and_faults import SimulatorOptions
from app.simulator.server import run_simulator_server


def run(arguments: argparse.Namespace) -> int:
    options = SimulatorOptions(
        first_token_seconds=arguments.first_token_seconds,
        seconds_per_token=arguments.seconds_per_token,
        summary_seconds=arguments.summary_seconds,
        default_window=arguments.window,
    )
    return run_simulator_server(arguments.host, arguments.port, options, _load_simulator_counter)


def _load_simulator_counter(model: str) -> TokenCounter:
    return load_token_counter(choose_token_counter_name(model))
