"""Clients that talk through gateways as applications do: appends, resent histories, streams, keys, regenerated answers,
hang-ups, slow readers; and that try again like OpenAI's SDKs. What they were told goes into a journal."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import orjson

from tests.faults.journal import Journal, Promise, Style, Talk, Turn

STYLES: Final[tuple[Style, ...]] = ("append", "append", "keyed", "resend", "resend")
RETRIED: Final = frozenset({408, 409, 429})
TENANTS: Final = 3
TIMEOUT: Final = aiohttp.ClientTimeout(total=40, sock_read=30)


@dataclass(frozen=True, slots=True)
class Manners:
    """How clients behave; shares are of requests."""

    talks: int = 24
    """At a time."""
    turns: tuple[int, int] = (4, 30)
    """Of a conversation, from and to."""
    words: tuple[int, int] = (10, 80)
    """Of a question."""
    streams: float = 0.5
    hangs_up: float = 0.05
    reads_slowly: float = 0.03
    regenerates: float = 0.08
    edits: float = 0.04
    pause_seconds: float = 0.2
    """Between turns, on average."""
    tries: int = 9
    first_pause_seconds: float = 0.25
    longest_pause_seconds: float = 4.0


class Broken(Exception):
    """An attempt that ended without an acknowledgement. `may_retry`: an SDK would try again."""

    def __init__(self, outcome: str, *, may_retry: bool = True, after_seconds: float = 0.0) -> None:
        super().__init__(outcome)
        self.outcome = outcome
        self.may_retry = may_retry
        self.after_seconds = after_seconds


@dataclass(frozen=True, slots=True)
class Heard:
    """A whole answer."""

    text: str
    conversation_id: str | None
    status: str


@dataclass(slots=True)
class Figures:
    """What the load came to."""

    acknowledged: int = 0
    given_up: int = 0
    seconds: list[float] = field(default_factory=list)
    """Of turns that were acknowledged at their first attempt."""
    late_seconds: list[float] = field(default_factory=list)
    """Of the others."""
    statuses: dict[str, int] = field(default_factory=dict)
    """`context_status` of the answers."""


class Load:
    """Runs a number of talks at a time until it is told to stop.

    Args:
        base_url: of the balancer before the gateways.
        stores: says how often the database has been disturbed so far, and whether it is now: what a client that resends
            is told meanwhile need not be stored, for it brings everything along next time.
    """

    def __init__(
        self,
        base_url: str,
        journal: Journal,
        *,
        seed: int,
        manners: Manners | None = None,
        stores: Callable[[], tuple[int, bool]] = lambda: (0, False),
        model: str = "sim",
    ) -> None:
        self._url = f"{base_url}/chat/completions"
        self._journal = journal
        self._seed = seed
        self._manners = manners or Manners()
        self._stores = stores
        self._model = model
        self._stopping = asyncio.Event()
        self._begun = 0
        self.figures = Figures()

    def stop(self) -> None:
        """Finish the turns that are under way."""
        self._stopping.set()

    async def end(self, running: asyncio.Task[None], *, within_seconds: float) -> None:
        """Finish the turns that are under way; whoever is still waiting then hangs up."""
        self.stop()
        await asyncio.wait({running}, timeout=within_seconds)
        running.cancel()
        await asyncio.wait({running})

    async def run(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=TIMEOUT) as session, asyncio.TaskGroup() as group:
            for _ in range(self._manners.talks):
                group.create_task(self._talk_on(session))

    async def _talk_on(self, session: aiohttp.ClientSession) -> None:
        while not self._stopping.is_set():
            number, self._begun = self._begun, self._begun + 1
            await _Talker(self, session, number, random.Random(f"{self._seed}/{number}")).run()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()


class _Talker:
    """One conversation from its first turn to its last."""

    def __init__(self, load: Load, session: aiohttp.ClientSession, number: int, chance: random.Random) -> None:
        self._load, self._session, self._chance = load, session, chance
        self._manners, self._journal, self._figures = load._manners, load._journal, load.figures
        self._talk = Talk(
            name=f"talk-{load._seed}-{number}",
            style=chance.choice(STYLES),
            tenant=f"sk-tenant-{number % TENANTS}",
        )
        self._journal.begin(self._talk)

    async def run(self) -> None:
        for place in range(self._chance.randint(*self._manners.turns)):
            if self._load.is_stopping:
                return
            await self._turn(self._question(place))
            await asyncio.sleep(self._chance.expovariate(1 / self._manners.pause_seconds))

    def _question(self, place: int) -> str:
        count = self._chance.randint(*self._manners.words)
        words = " ".join(f"{self._talk.name}x{place}w{one}" for one in range(count))
        return f"Question {place} of {self._talk.name}: remember {words}."

    async def _turn(self, question: str) -> None:
        talk = self._talk
        if talk.style == "resend" and len(talk.history) >= 4:
            draw = self._chance.random()
            if draw < self._manners.regenerates:
                question = talk.history[-2]
                talk.history = talk.history[:-2]
            elif draw < self._manners.regenerates + self._manners.edits:
                talk.history = talk.history[:-2]
        turn = Turn(question)
        talk.turns.append(turn)
        began = time.monotonic()
        await self._ask(turn)
        self._count(turn, time.monotonic() - began)

    async def _ask(self, turn: Turn) -> None:
        """Ask until there is an answer, with a patience like an SDK's."""
        body = self._body(turn)
        headers = {"authorization": f"Bearer {self._talk.tenant}"}
        if self._talk.style == "keyed":
            headers["idempotency-key"] = f"{self._talk.name}-{len(self._talk.turns)}"
        for attempt in range(self._manners.tries):
            turn.attempts += 1
            before = self._load._stores()
            try:
                heard = await self._attempt(body, {**headers, "x-stainless-retry-count": str(attempt)})
            except Broken as broken:
                self._journal.note(self._talk, broken.outcome, turn=len(self._talk.turns) - 1, attempt=attempt)
                if not broken.may_retry:
                    return
                await asyncio.sleep(max(broken.after_seconds, self._pause(attempt)))
                continue
            self._acknowledge(turn, heard, is_sure=before == self._load._stores() and not before[1])
            return

    def _body(self, turn: Turn) -> dict[str, Any]:
        talk = self._talk
        body: dict[str, Any] = {"model": self._load._model, "stream": self._chance.random() < self._manners.streams}
        if talk.style == "resend":
            texts = [*talk.history, turn.question]
            roles = ("user", "assistant")
            return {**body, "messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]}
        return {**body, "messages": [{"role": "user", "content": turn.question}], "conversation": talk.name}

    async def _attempt(self, body: dict[str, Any], headers: dict[str, str]) -> Heard:
        """
        Raises:
            Broken: there is no whole answer.
        """
        try:
            async with self._session.post(self._load._url, json=body, headers=headers) as answer:
                if answer.status != 200:
                    raise await _refused(answer)
                return await (self._stream(answer) if body["stream"] else _whole(answer))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Broken(type(error).__name__) from error

    async def _stream(self, answer: aiohttp.ClientResponse) -> Heard:
        hangs_up_after = self._chance.randint(1, 12) if self._chance.random() < self._manners.hangs_up else None
        slow_seconds = 0.05 if self._chance.random() < self._manners.reads_slowly else 0.0
        parts: list[str] = []
        conversation_id, status, seen = None, "", 0
        async for line in answer.content:
            if not line.startswith(b"data: "):
                continue
            data = line[6:].strip()
            if data == b"[DONE]":
                return Heard("".join(parts), conversation_id, status)
            chunk = orjson.loads(data)
            if "error" in chunk:
                raise Broken(f"stream_{chunk['error'].get('code')}")
            conversation_id, status = chunk.get("conversation_id"), chunk.get("context_status", status)
            parts += [choice["delta"].get("content") or "" for choice in chunk.get("choices") or ()]
            seen += 1
            if hangs_up_after is not None and seen >= hangs_up_after:
                raise Broken("hung_up", may_retry=self._chance.random() < 0.7)
            if slow_seconds:
                await asyncio.sleep(slow_seconds)
        raise Broken("stream_without_end")

    def _acknowledge(self, turn: Turn, heard: Heard, *, is_sure: bool) -> None:
        talk = self._talk
        turn.answer = heard.text
        if heard.conversation_id is not None:
            talk.moved |= talk.style != "resend" and talk.conversation_id not in {None, heard.conversation_id}
            talk.conversation_id = heard.conversation_id
        self._journal.note(
            talk,
            "acknowledged",
            turn=len(talk.turns) - 1,
            conversation=heard.conversation_id,
            status=heard.status,
            sure=is_sure,
            question=turn.question,
            answer=heard.text,
        )
        if talk.style != "resend":
            return
        talk.history += [turn.question, heard.text]
        if is_sure and heard.status != "degraded" and heard.conversation_id is not None:
            talk.promised(Promise(heard.conversation_id, tuple(talk.history)))

    def _count(self, turn: Turn, seconds: float) -> None:
        if turn.answer is None:
            self._figures.given_up += 1
            return
        self._figures.acknowledged += 1
        (self._figures.seconds if turn.attempts == 1 else self._figures.late_seconds).append(seconds)

    def _pause(self, attempt: int) -> float:
        longest = min(self._manners.longest_pause_seconds, self._manners.first_pause_seconds * 2**attempt)
        return float(longest * (1 - self._chance.random() / 4))


async def _whole(answer: aiohttp.ClientResponse) -> Heard:
    body = orjson.loads(await answer.read())
    text = body["choices"][0]["message"]["content"] or ""
    return Heard(text, body.get("conversation_id"), body.get("context_status", ""))


async def _refused(answer: aiohttp.ClientResponse) -> Broken:
    """As OpenAI's SDKs look at an error's status and headers."""
    told = await answer.read()
    try:
        code = orjson.loads(told)["error"].get("code")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        code = "no error body"
    should = answer.headers.get("x-should-retry")
    may_retry = should == "true" or (should != "false" and (answer.status in RETRIED or answer.status >= 500))
    after = answer.headers.get("retry-after", "0")
    return Broken(f"{answer.status} {code}", may_retry=may_retry, after_seconds=min(4.0, float(after)))
