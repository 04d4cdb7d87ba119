"""What one process takes on at once, and what it takes in."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from app.settings.value_types import Seconds, Section

Bound = Annotated[int, Field(ge=0)]


class Limits(Section):
    """What one process takes on at once and what it takes in; several workers have each their own."""

    max_concurrent_requests: Bound = 2000
    """How many requests that ask a model run at once: chat completions until their answer's end, compactions on
    request, summaries written anew, and what is passed through. `0`: as many as come."""
    max_concurrent_per_tenant: Bound = 1000
    """How many of them one tenant may have running: half of all by default, so that one tenant's requests never take
    every place. `0`: as many as there is room for; when there is none left, tenants take turns all the same."""
    max_waiting: Bound = 1000
    """How many requests wait for a place, all tenants together. Where that many wait, the newest of whoever has most
    of them makes room for a tenant that has fewer. `0`: nobody waits, and what finds no place is refused at once."""
    max_wait_seconds: Seconds = 20.0
    """How long a request waits for a place before it is refused."""
    max_connections: Bound = 10_000
    """Connections beyond that are answered with 503 and closed. `0`: as many as come."""
    max_head_bytes: Annotated[int, Field(ge=4096)] = 65_536
    """The address and all headers of a request. Larger ones are answered with 431."""
    slow_client_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """How long a request's head may take, its body may rest, and a client may leave unread what is sent to it. Then
    the connection is cut; an answer that has begun is finished and stored all the same. `0`: for ever."""
    min_bytes_per_second: Bound = 500
    """A client that sends or reads more slowly than this, once `limits.slow_client_seconds` have passed, counts as
    one that rests."""
    max_messages: Annotated[int, Field(gt=0)] = 20_000
    """Messages in a chat completion. More are answered with 400. A history that is new costs processor time for each
    of them: 20,000 take about ten seconds where a small window has to summarize them."""
    max_tools: Annotated[int, Field(gt=0)] = 1000
    """Tools in a chat completion. More are answered with 400."""
