"""Scripts of steps by seed, their run with all invariants checked, and the search for the shortest that fails."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.simulation.clients import ALL_KINDS, KINDS, Client, Message, list_user_markers
from tests.simulation.gateway import WINDOWS, SimulatedGateway, seed_ids
from tests.simulation.provider import CURRENT, MARKER, ScriptedProvider, SentRequest, find_markers, find_others
from tests.simulation.virtual_time import Deadlock, VirtualTimeLoop, run_in_virtual_time

NAMES = ("anna", "bertram", "cem", "dora", "emil", "fatma", "gero", "hana")
FAULTS = ("provider_fails", "store_fails", "kill")
QUIET_SECONDS = 120.0
"""After the last fault: longer than a lease and a breaker's pause."""
CUT_OFF_SECONDS = 10.0
"""How long after its client hung up the beginning of an answer may be written: a provider may take so long to stop."""
LONGEST_SECONDS = 3000.0
"""How much longer than its steps a script may take: each waits for a busy conversation up to 300 seconds."""
SHORTENING_SECONDS = 20.0
Statistics = collections.Counter[str]


@dataclasses.dataclass(frozen=True)
class Person:
    name: str
    kind: str
    model: str
    voice: str


@dataclasses.dataclass(frozen=True)
class Step:
    """What a person, or a fault (`who` is empty), does at a time. `seed` decides what is said and answered."""

    at: float
    who: str
    act: str
    seed: int


@dataclasses.dataclass(frozen=True)
class Script:
    seed: int
    people: tuple[Person, ...]
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        people = [f"  {one.name}: {one.kind}, {one.model}, says ⟦{one.voice}:…⟧" for one in self.people]
        steps = [f"  {step.at:7.2f} s  {step.who or '(fault)'}: {step.act}  #{step.seed}" for step in self.steps]
        return "\n".join([f"seed {self.seed}", *people, *steps])


@dataclasses.dataclass(frozen=True)
class Failure:
    invariant: str
    text: str


def make_script(seed: int, kinds: Sequence[str] = tuple(KINDS), faults: bool | None = None) -> Script:
    """Draws a script. Half of the scripts have faults, unless `faults` decides it."""
    rng = random.Random(seed)
    people: list[Person] = []
    steps: list[Step] = []
    for name in NAMES[: rng.randint(2, 6)]:
        kind, model, voice = rng.choice(kinds), rng.choice(list(WINDOWS)), name
        twin = people[-1] if people and rng.random() < 0.2 else None
        if twin is not None:
            kind, model, voice = twin.kind, twin.model, twin.voice
        people.append(Person(name, kind, model, voice))
        at = rng.random() * 3
        earlier = [step for step in steps if twin is not None and step.who == twin.name]
        for index in range(rng.choice((4, 10, 25))):
            at += rng.choice((0.1, 1.0, 3.0, 20.0)) * rng.random()
            weights = [1.0] * len(ALL_KINDS[kind].acts)
            act = rng.choices(["say", *ALL_KINDS[kind].acts], [2 * sum(weights), *weights])[0]
            if index == 0 and rng.random() < 0.4:
                act = "greet"
            twin_step = earlier[index] if index < len(earlier) and rng.random() < 0.95 else None
            steps.append(
                Step(at, name, *((twin_step.act, twin_step.seed) if twin_step else (act, rng.getrandbits(32))))
            )
    if faults or (faults is None and rng.random() < 0.5):
        times = [step.at + rng.random() * 0.4 for step in rng.choices(steps, k=rng.randint(1, 4))]
        steps += [Step(at, "", rng.choice(FAULTS), rng.getrandbits(32)) for at in times]
    return Script(seed, tuple(people), tuple(sorted(steps, key=lambda step: step.at)))


class World:
    """One run of a script. The run ends with the first failure."""

    def __init__(self, loop: VirtualTimeLoop, script: Script, statistics: Statistics) -> None:
        self.loop, self.script, self.statistics = loop, script, statistics
        self.failures: list[Failure] = []
        self.last_fault = float("-inf")
        self.store_faults: list[tuple[float, float]] = []
        """From when to when the store was away, or the gateway was killed."""
        self.provider = ScriptedProvider(self.report, WINDOWS)
        self.gateway = SimulatedGateway(loop, self.provider, script.seed)
        self.clients = [Client(one.name, one.voice, one.kind, one.model, self) for one in script.people]

    def report(self, invariant: str, text: str) -> None:
        self.failures.append(Failure(invariant, f"at {self.loop.seconds:.2f} s: {text}"))

    async def run(self) -> Failure | None:
        CURRENT.set(SentRequest("nobody", "nobody", set(), set(), None, is_named=False, rng=random.Random(0)))
        self._own_current_task()
        await self.gateway.start()
        parts = [self._run_client(client) for client in self.clients]
        tasks = [asyncio.ensure_future(part) for part in (*parts, self._run_faults())]
        for task in tasks:
            self.gateway.protect(task)
        try:
            async with asyncio.timeout_at(max((step.at for step in self.script.steps), default=0) + LONGEST_SECONDS):
                await asyncio.gather(*tasks)
                if not self.failures:
                    await self._check_progress()
        except TimeoutError:
            self.report("progress", "the clients wait for good")
        finally:
            for task in tasks:
                task.cancel()
        if not self.failures:
            await self.gateway.close()
        return self.failures[0] if self.failures else None

    def _own_current_task(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.gateway.protect(task)

    @property
    def is_faulty(self) -> bool:
        return self.loop.seconds < self.last_fault + QUIET_SECONDS

    async def _run_client(self, client: Client) -> None:
        for step in self.script.steps:
            if step.who == client.name and not self.failures:
                await self._wait_until(step.at)
                await self._act(client, step.act, step.seed)

    async def _act(self, client: Client, act: str, seed: int) -> None:
        """Does a step as a task of its own, so that what it sends is told from others' requests."""
        task = asyncio.ensure_future(client.act(act, seed))
        self.gateway.protect(task)
        await task

    async def _wait_until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - self.loop.seconds))

    async def _run_faults(self) -> None:
        for step in self.script.steps:
            if step.who:
                continue
            await self._wait_until(step.at)
            rng = random.Random(step.seed)
            seconds = rng.choice((0.3, 3.0, 30.0))
            self.last_fault = max(self.last_fault, self.loop.seconds + seconds)
            if step.act == "provider_fails":
                self.provider.failing_until = self.loop.seconds + seconds
            elif step.act == "store_fails":
                self.gateway.stop_store(seconds)
                self.store_faults.append((self.loop.seconds, self.loop.seconds + seconds))
            else:
                self.statistics["kills"] += 1
                began = self.loop.seconds
                await self.gateway.kill(rng.randint(1, 60))
                self.last_fault = self.loop.seconds
                self.store_faults.append((began, self.loop.seconds))

    async def _check_progress(self) -> None:
        self.gateway.end_faults()
        self.provider.failing_until = 0.0
        if self.is_faulty:
            await asyncio.sleep(self.last_fault + QUIET_SECONDS - self.loop.seconds)
        for client in self.clients:
            await self._act(client, "say", self.script.seed)

    async def check_answer(
        self,
        client: Client,
        sent: SentRequest,
        told: list[Message],
        status: int,
        message: Message | None,
        fields: dict[str, Any],
    ) -> None:
        """Checks an answer that a client got whole."""
        self.statistics["requests"] += 1
        if message is None:
            self.statistics[f"errors {status}"] += 1
            if not self.is_faulty:
                self.report("progress", f"{client.name} gets {status} though nothing fails")
            return
        conversation_id, context = fields.get("conversation_id"), fields.get("context") or {}
        self._check_status(client, sent, told, fields.get("context_status"), context)
        if conversation_id is None:
            return
        if client.conversation_id not in (None, conversation_id):
            self.statistics[f"moves of {self._kind(client)}"] += 1
        self.statistics[f"answers of {self._kind(client)}"] += 1
        client.conversation_id = conversation_id
        items = await self.gateway.read_items(conversation_id)
        if items is None:
            return
        if others := find_others(
            find_markers(json.dumps(items, ensure_ascii=False)), client.known, client.name, client.voice
        ):
            self.report("leak_read", f"{client.name} reads {sorted(others)} under its id")
        self._check_log(client, list_user_markers(items))

    def _kind(self, client: Client) -> str:
        return next(one.kind for one in self.script.people if one.name == client.name)

    def _check_status(
        self, client: Client, sent: SentRequest, told: list[Message], status: str | None, context: dict[str, Any]
    ) -> None:
        if status == "full" and sent.views:
            shown = "\n".join(str(one.get("content")) for one in sent.views[-1])
            told = client.history if client.kind.identity == "append" else told
            texts = [one["content"] for one in told if one["role"] in ("user", "assistant") and one.get("content")]
            missing = [
                text
                for text in texts
                if text not in shown
                and not find_markers(text) & client.optional
                and not self._may_be_unwritten(client.cut_off.get(text))
            ]
            if missing:
                self.report("status", f"{client.name}: `full`, but the view lacks {missing[0][:60]!r}")
        if status == "summarized" and not context.get("summaries"):
            self.report("status", f"{client.name}: `summarized` without a summary")
        counts = [context.get(name) for name in ("trimmed_messages", "dropped_messages", "summaries")]
        if status == "trimmed" and not any(counts):  # a summary that was made without a model counts as trimming
            self.report("status", f"{client.name}: `trimmed`, but nothing is: {context}")

    def _may_be_unwritten(self, cut_off_at: float | None) -> bool:
        """Returns whether the store may have been away when the beginning of an answer was to be written. Nobody could
        be told: the client had hung up."""
        return cut_off_at is not None and any(
            start <= cut_off_at + CUT_OFF_SECONDS and cut_off_at <= end for start, end in self.store_faults
        )

    def _check_log(self, client: Client, logged: list[str]) -> None:
        """The log has no message twice, none out of order, and for clients that keep to it the whole history."""
        kept = list_user_markers(client.history)
        own = [marker for marker in logged if MARKER.fullmatch(marker)[1] == client.voice]  # type: ignore[index]
        own = [one for at, one in enumerate(own) if not (one in client.said_again and one in own[:at])]
        if len(set(own)) < len(own):
            self.report("log", f"{client.name}: the log has a message twice: {own}")
        required = [marker for marker in own if marker not in client.optional or marker in kept]
        if client.kind.is_logged_whole and required != kept:
            self.report("log", f"{client.name}: the log has {required}, the client {kept}")


def find_failure(seeds: Iterable[int], kinds: Sequence[str] = tuple(KINDS)) -> tuple[Script, Failure] | None:
    """Runs the scripts of these seeds, up to the first that fails."""
    for seed in seeds:
        script = make_script(seed, kinds)
        if (failure := run_script(script)) is not None:
            return script, failure
    return None


def run_script(script: Script, statistics: Statistics | None = None) -> Failure | None:
    """Runs a script on a new gateway. Returns its first failure."""
    seed_ids(script.seed)

    async def main(loop: VirtualTimeLoop) -> Failure | None:
        return await World(loop, script, statistics if statistics is not None else Statistics()).run()

    try:
        return run_in_virtual_time(main)
    except Deadlock:
        return Failure("progress", "every task waits for another")


def shorten(script: Script, failure: Failure, run: Callable[[Script], Failure | None] = run_script) -> Script:
    """Drops people, then steps, as long as the same invariant fails, for at most `SHORTENING_SECONDS`."""
    ends_at = time.process_time() + SHORTENING_SECONDS

    def fails(shorter: Script) -> bool:
        if time.process_time() > ends_at:
            return False
        found = run(shorter)
        return found is not None and found.invariant == failure.invariant

    for person in script.people:
        people = tuple(one for one in script.people if one != person)
        steps = tuple(step for step in script.steps if step.who != person.name)
        if people and fails(shorter := Script(script.seed, people, steps)):
            script = shorter
    size = len(script.steps) // 2
    while size:
        at = 0
        while at < len(script.steps):
            shorter = dataclasses.replace(script, steps=script.steps[:at] + script.steps[at + size :])
            if fails(shorter):
                script = shorter
            else:
                at += size
        size //= 2
    return script
