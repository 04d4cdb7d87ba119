"""`concertina simulate`: the simulated model as a server of its own."""

from __future__ import annotations

import argparse

from app.context.count.token_counter import TokenCounter, counter_for, counter_name
from app.simulator.options import SimulatorOptions
from app.simulator.server import serve


def run(arguments: argparse.Namespace) -> int:
    options = SimulatorOptions(
        first_token_seconds=arguments.first_token_seconds,
        seconds_per_token=arguments.seconds_per_token,
        summary_seconds=arguments.summary_seconds,
        default_window=arguments.window,
    )
    return serve(arguments.host, arguments.port, options, _counter_for)


def _counter_for(model: str) -> TokenCounter:
    return counter_for(counter_name(model))
