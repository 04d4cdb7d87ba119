"""What the server is told."""

from __future__ import annotations

from fastapi import FastAPI

from app.api.edge.connections import ClientConnections, ConnectionLimits
from app.server import build_uvicorn_config
from app.settings.sections import Server

IDLE_SECONDS_OF_LOAD_BALANCERS = 60


def test_an_idle_connection_outlasts_those_of_load_balancers() -> None:
    """Whoever closes first must be the side that sends: a request on a connection that is just closed is lost."""
    connections = ClientConnections(ConnectionLimits())
    assert build_uvicorn_config(FastAPI, Server(), connections).timeout_keep_alive > IDLE_SECONDS_OF_LOAD_BALANCERS
