"""A gateway in this process, a client that re-sends its history, and policies that may not be there yet."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import orjson

from app.context.plan.policy import ContextPolicy
from app.observability.metric_families import BACKGROUND_TASKS
from app.settings.configuration_errors import ConfigurationError
from tests.benchmarks.quality.model import MARK, ScriptedModel
from tests.live import gateway, serving

GRACE_SECONDS: Final = 0.02
"""In which work behind an answer begins, if it does."""
TIMEOUT_SECONDS: Final = 60.0


class NotThere(Exception):
    """This gateway refuses the configuration; the text says what of it."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A configuration under measurement: a policy and what is changed of it."""

    name: str
    policy: str = "additive"
    changes: Mapping[str, Any] = field(default_factory=dict)

    def sections(self) -> dict[str, Any]:
        if self.policy != "additive":
            changed = {"policies": {self.policy: dict(self.changes)}} if self.changes else {}
            return {"policy": self.policy, **changed}
        usual = ContextPolicy()
        changes = {
            "prepare_ratio": usual.compaction.prepare_ratio,
            "blocking": usual.compaction.blocking,
            **self.changes,
        }
        return {"policies": {"additive": changes}}


ADDITIVE: Final = Variant("additive")
POLICIES: Final = (
    ADDITIVE,
    Variant("additive, recursive", changes={"strategy": "recursive"}),
    *(Variant(name, policy=name) for name in ("checkpoint", "fade", "prune", "window")),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One answer with what it took. Times are of the monotonic clock, in seconds."""

    status: int
    body: Mapping[str, Any]
    began: float
    first_byte: float
    ended: float

    @property
    def message(self) -> Mapping[str, Any]:
        message: Mapping[str, Any] = self.body["choices"][0]["message"]
        return message

    @property
    def context(self) -> Mapping[str, Any]:
        context: Mapping[str, Any] = self.body.get("context") or {}
        return context

    @property
    def summaries(self) -> Sequence[Mapping[str, Any]]:
        """Those that the model was shown."""
        summaries: Sequence[Mapping[str, Any]] = self.context.get("summaries") or ()
        return summaries


class Client:
    """Sends whole histories to a gateway."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def ask(
        self, messages: Sequence[Mapping[str, Any]], *, place: object = 0, tenant: str = "bench", **fields: Any
    ) -> Asked:
        """Ask for the next message.

        Args:
            place: where in the model's script this is.
            tenant: conversations of one never meet those of another.
            fields: of the request, besides its messages.
        """
        content = orjson.dumps({"model": "scripted", **fields, "messages": messages, MARK: place})
        headers = {"authorization": f"Bearer {tenant}", "content-type": "application/json"}
        began = time.monotonic()
        async with self._http.stream("POST", "/chat/completions", content=content, headers=headers) as answer:
            pieces = []
            first_byte = 0.0
            async for piece in answer.aiter_bytes():
                first_byte = first_byte or time.monotonic()
                pieces.append(piece)
        raw = b"".join(pieces)
        body = {} if fields.get("stream") else orjson.loads(raw)
        return Asked(answer.status_code, body, began, first_byte, time.monotonic())

    async def wait_for_background_tasks(self) -> None:
        """Wait until the gateway does nothing more for the answers that it has given."""
        while True:
            metrics = await self._http.get(str(self._http.base_url.join("/metrics")))
            (running,) = re.findall(rf"^{BACKGROUND_TASKS.full_name} (\S+)$", metrics.text, re.MULTILINE)
            if not float(running):
                return
            await asyncio.sleep(GRACE_SECONDS)


@asynccontextmanager
async def talking(model: ScriptedModel, variant: Variant = ADDITIVE, **facts: Any) -> AsyncIterator[Client]:
    """A client of a gateway in front of a model.

    Args:
        facts: `window`, or other sections of the configuration.

    Raises:
        NotThere: the variant names what this gateway does not know.
    """
    try:
        async with (
            serving(model, lifespan="off") as upstream,
            gateway(upstream, **variant.sections(), **facts) as base_url,
            httpx.AsyncClient(base_url=base_url, timeout=TIMEOUT_SECONDS) as http,
        ):
            yield Client(http)
    except ConfigurationError as error:
        raise NotThere(str(error)) from error


async def at_rest(model: ScriptedModel) -> None:
    """Wait, as a person who reads would, until no summary is being written."""
    await asyncio.sleep(GRACE_SECONDS)
    while model.summarizing:
        while model.summarizing:  # noqa: ASYNC110 - the model runs in this very loop
            await asyncio.sleep(GRACE_SECONDS / 2)
        await asyncio.sleep(GRACE_SECONDS)
