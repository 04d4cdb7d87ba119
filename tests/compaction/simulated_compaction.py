"""A conversation, a shelf for chunks, leases and a simulated summarizer, for tests of compaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from itertools import count
from typing import Any, cast

import orjson

from app.compaction.compaction_job import CompactionJob, SummarySource, build_summary_sources
from app.compaction.compactor import Compactor
from app.compaction.summarizer.summary_generator import SummaryGenerator
from app.compaction.summarizer.summary_request import SummaryRequest
from app.compaction.summary_maker import SummaryMaker
from app.context.plan.log_rounds import LogTail
from app.context.plan.outline import SummaryRange
from app.context.plan.policy import ContextPolicy
from app.conversation.conversation_types import LogMessage, Summary
from app.conversation.identity import compute_links_after_messages, compute_start_position
from app.dialects.body.message import ChatMessage
from app.errors import ConversationBusy, StoreUnavailable
from app.simulator.options_and_faults import SimulatorOptions
from app.simulator.simulated_provider import SimulatedProvider
from app.simulator.simulator import Simulator
from app.store.contract.conversations import WriteConflict
from app.store.contract.leases import Lease, LeaseLost
from app.store.contract.store import Store
from app.store.leases import LeaseKeeper
from app.upstream.provider_contract import (
    CALL_PATHS,
    ClientKey,
    ClientKeyRule,
    ContextWindow,
    ModelDeployment,
    ProviderProtocol,
    ProviderQuirks,
    RoutedReply,
    RouteTarget,
    UpstreamProvider,
    UpstreamRequest,
)
from app.upstream.routing.context_windows import ContextWindows
from app.upstream.routing.router import Router
from tests.simulator.counting import RoughCounter
from tests.support.chat_counter import AnyMessage, as_body

TENANT = "tenant"
ROOT = "0123456789abcdef"
NOW = datetime(2026, 11, 21, tzinfo=UTC)
Body = dict[str, Any]


class FlatCounter(RoughCounter):
    """Four characters a token, four tokens a message; calls count too."""

    def count_message(self, message: AnyMessage) -> int:
        body = as_body(message)
        return 4 + self.count(str(body.get("content") or "")) + self.count(str(body.get("tool_calls") or ""))


COUNT = FlatCounter()


def log_of(bodies: Sequence[Body]) -> list[LogMessage]:
    messages = [ChatMessage.from_body(body) for body in bodies]
    total = 0
    log = []
    for seq, (message, place) in enumerate(
        zip(messages, compute_links_after_messages(messages, compute_start_position(TENANT)), strict=True)
    ):
        tokens = COUNT.count_message(message)
        total += tokens
        log.append(
            LogMessage(
                seq, message, place.link, place.skeleton_link, place.is_in_skeleton, tokens, total, answered=True
            )
        )
    return log


def talk(turns: int, *, facts: str = "The locker of colleague Number{n} has code {code}.") -> list[Body]:
    padding = (
        "Thank you for all of this, it was a pleasure to hear from you and it made the whole day a lot better. " * 3
    )
    bodies: list[Body] = []
    for n in range(turns):
        bodies.append({"role": "user", "content": padding + facts.format(n=n, code=n * 7919 + 10_000)})
        bodies.append({"role": "assistant", "content": "Noted."})
    return bodies


def job_for(
    log: Sequence[LogMessage], *ranges: SummaryRange, policy: ContextPolicy | None = None, **fields: Any
) -> CompactionJob:
    job = CompactionJob(
        tenant=TENANT,
        root=ROOT,
        conversation_id=f"conv_{ROOT}1",
        log_tail=LogTail(log, after=None),
        start_link=compute_start_position(TENANT).link,
        ranges=ranges or (SummaryRange(0, len(log)),),
        policy=policy or ContextPolicy(),
        window=8192,
        model="sim",
        encoding="flat",
    )
    return replace(job, **fields)


async def rewrite(compactor: Compactor, job: CompactionJob, summary: Summary) -> Summary:
    """Writes the summary of a job's only range again."""
    (source,) = build_summary_sources(job)
    return await compactor.maker.rewrite_summary(job, source, summary)


SOURCE_FIELDS = {field.name for field in fields(SummarySource)}


def summary_request_for(log: Sequence[LogMessage], *, limit_tokens: int = 400, **values: Any) -> SummaryRequest:
    """A request for a summary of a log; `values` are fields of its job and of its source."""
    source_fields = {name: values.pop(name) for name in SOURCE_FIELDS if name in values}
    job = job_for(log, **values)
    (source,) = build_summary_sources(job)
    return SummaryRequest(job, replace(source, **source_fields), log, limit_tokens)


@dataclass
class Shelf:
    """The methods of a store that compaction needs."""

    chunks_by_range: dict[tuple[bytes, bytes, bool], Summary] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    """Tokens of leases that are gone."""
    is_down: bool = False
    links_looked_up: int = 0

    async def find_summaries(
        self, *, tenant: str, root: str, path: object = (), links: Sequence[bytes] = ()
    ) -> list[Summary]:
        if self.is_down:
            raise StoreUnavailable("The database is away.")
        self.links_looked_up += len(links)
        return [chunk for chunk in self.chunks_by_range.values() if chunk.to_link in links]

    async def add_summary(self, *, tenant: str, root: str, summary: Summary, fence: Lease) -> None:
        if self.is_down:
            raise StoreUnavailable("The database is away.")
        if fence.token in self.lost:
            raise LeaseLost
        key = summary.from_link, summary.to_link, bool(summary.folds)
        known = self.chunks_by_range.get(key)
        if known is None or (known.kind == "mechanical" and summary.kind == "model"):
            self.chunks_by_range[key] = summary

    async def revise_summary(self, *, tenant: str, root: str, summary: Summary) -> None:
        key = summary.from_link, summary.to_link, bool(summary.folds)
        known = self.chunks_by_range.get(key)
        if known is None or (known.id, known.revision) != (summary.id, summary.revision - 1):
            raise WriteConflict
        self.chunks_by_range[key] = summary


@dataclass
class Keys:
    """Leases in this process."""

    shelf: Shelf
    is_busy: bool = False
    tokens: count[int] = field(default_factory=lambda: count(1))
    locks: dict[str, asyncio.Lock] = field(default_factory=dict)

    @asynccontextmanager
    async def hold_lease(self, root: str, key: str, wait_seconds: float) -> AsyncIterator[Lease]:
        if self.shelf.is_down:
            raise StoreUnavailable("The database is away.")
        if self.is_busy:
            raise ConversationBusy("Another request holds it.")
        async with self.locks.setdefault(key, asyncio.Lock()):
            yield Lease(root, key, "me", next(self.tokens))


@dataclass
class OneRouter:
    """Every model is the simulated one; `gate` holds calls back until it is set."""

    provider: UpstreamProvider
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    calls: list[Body] = field(default_factory=list)
    quirks: ProviderQuirks = field(default_factory=ProviderQuirks)
    running: int = 0
    most_running: int = 0

    async def asked(self, times: int) -> None:
        """Wait for so many calls."""
        for _ in range(times):
            await self.arrived.acquire()

    def resolve(self, model: str) -> RouteTarget:
        return RouteTarget(model, (ModelDeployment(self.provider, model, quirks=self.quirks),))

    async def send(
        self,
        target: RouteTarget,
        build_body: Callable[[ModelDeployment], Awaitable[bytes]],
        *,
        tenant: str = "",
        client_key: ClientKey | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> RoutedReply:
        deployment = target.deployments[0]
        body = await build_body(deployment)
        self.calls.append(orjson.loads(body))
        self.arrived.release()
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.gate.wait()
            shown = None if client_key is None else client_key.disclose_to_provider(deployment.provider)
            path = CALL_PATHS[deployment.provider.protocol]
            reply = await deployment.provider.send(UpstreamRequest(path, body, authorization=shown))
        finally:
            self.running -= 1
        return RoutedReply(reply, deployment, 1)


Said = Callable[[Body], Body | int]
"""What a model answers to a call: the message, or the status of a refusal."""


@dataclass
class ScriptedReply:
    status: int
    body: Body
    headers: Mapping[str, str] = field(default_factory=dict)

    async def read(self) -> bytes:
        return orjson.dumps(self.body)

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        yield await self.read()

    async def aclose(self) -> None:
        return


@dataclass
class ScriptedProvider:
    """A model that answers as a test says."""

    said: Said
    name: str = "scripted"
    protocol: ProviderProtocol = "openai"
    client_key_rule: ClientKeyRule = "if_meant"

    async def send(self, call: UpstreamRequest) -> ScriptedReply:
        message = self.said(orjson.loads(call.body))
        if isinstance(message, int):
            return ScriptedReply(message, {"error": {"message": "No.", "type": "invalid_request_error"}})
        reason = message.pop("finish_reason", "tool_calls" if message.get("tool_calls") else "stop")
        return ScriptedReply(
            200,
            {
                "choices": [{"message": message, "finish_reason": reason}],
                "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
            },
        )

    async def list_models(self, authorization: str | None) -> list[Body]:
        return []

    async def aclose(self) -> None:
        return


def saying(*texts: str) -> Said:
    """A model that says one text after the other, the last for ever."""
    left = list(texts)
    return lambda body: {"role": "assistant", "content": left.pop(0) if len(left) > 1 else left[0]}


class OneWindow(ContextWindows):
    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    async def find_window(self, deployment: ModelDeployment, client_key: ClientKey | None = None) -> ContextWindow:
        return ContextWindow(self.tokens, "config")


class Scene:
    """All of it together, with a clock that tests move."""

    def __init__(
        self,
        *,
        window: int = 8192,
        options: SimulatorOptions | None = None,
        is_open: bool = True,
        said: Said | None = None,
    ) -> None:
        ids = count(1)
        self.seconds = 0.0
        self.shelf = Shelf()
        self.keys = Keys(self.shelf)
        simulator = Simulator(
            options or SimulatorOptions(),
            counter_for=lambda model: COUNT,
            clock=lambda: 1_800_000_000.0,
            new_id=lambda: str(next(ids)),
        )
        self.router = OneRouter(ScriptedProvider(said) if said else SimulatedProvider(simulator))
        if is_open:
            self.router.gate.set()
        self.summarizer = SummaryGenerator(
            router=cast(Router, self.router),
            windows=OneWindow(window),
            counter_for=lambda encoding: COUNT,
            monotonic=lambda: self.seconds,
        )
        maker = SummaryMaker(
            store=cast(Store, self.shelf),
            leases=cast(LeaseKeeper, self.keys),
            summary_generator=self.summarizer,
            counter_for=lambda encoding: COUNT,
            clock=lambda: NOW,
            new_id=lambda: f"sum_{next(ids)}",
        )
        self.compactor = Compactor(maker=maker, monotonic=lambda: self.seconds)

    @property
    def stored(self) -> list[Summary]:
        return list(self.shelf.chunks_by_range.values())
