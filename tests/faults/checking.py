"""Reads conversations back through the API and holds them against what clients were told."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from tests.faults.journal import Promise, Talk

AT_A_TIME: Final = 8
PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class Said:
    """A message of a log."""

    role: str
    text: str
    is_whole: bool


@dataclass(slots=True)
class Verdict:
    """What was found; every list is empty if all promises were kept."""

    conversations: int = 0
    messages: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.moved or self.stuck)


class Checking:
    """Checks talks one after the other.

    Args:
        base_url: of a gateway, or of the balancer before them.
    """

    def __init__(self, base_url: str, session: aiohttp.ClientSession) -> None:
        self._base_url = base_url
        self._session = session
        self.verdict = Verdict()

    async def all(self, talks: Sequence[Talk]) -> Verdict:
        waiting = iter(talks)

        async def some() -> None:
            for talk in waiting:
                await self._talk(talk)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_A_TIME):
                group.create_task(some())
        return self.verdict

    async def _talk(self, talk: Talk) -> None:
        self.verdict.conversations += 1
        if talk.moved:
            self.verdict.moved.append(f"{talk.name}: answers named several conversations")
        if talk.style == "resend":
            for promise in talk.promises:
                self._promise(talk, promise, await self._log(talk, promise.conversation_id))
        elif talk.conversation_id is not None:
            self._appended(talk, await self._log(talk, talk.conversation_id))

    def _appended(self, talk: Talk, log: Sequence[Said]) -> None:
        """Each acknowledged turn stands once, and in the order in which they were acknowledged."""
        self.verdict.messages += len(log)
        # An answer that broke off stays in the log before the one that its repeated question got.
        log = [one for one in log if one.is_whole]
        after = -1
        for turn in talk.acknowledged:
            places = [
                n
                for n, (one, following) in enumerate(itertools.pairwise(log))
                if (one.role, one.text) == ("user", turn.question)
                and (following.role, following.text, following.is_whole) == ("assistant", turn.answer, True)
            ]
            if not places or places[0] < after:
                self.verdict.lost.append(f"{talk.name} ({talk.conversation_id}): {turn.question[:60]}")
            else:
                after = places[0]
        for turn in talk.turns:
            answered = [
                following.text
                for one, following in itertools.pairwise(log)
                if (one.role, one.text, following.role) == ("user", turn.question, "assistant")
            ]
            if len(answered) > 1:
                self.verdict.doubled.append(f"{talk.name} ({talk.conversation_id}): {turn.question[:60]}")

    def _promise(self, talk: Talk, promise: Promise, log: Sequence[Said]) -> None:
        """The log begins with what was acknowledged; what follows may be a later turn."""
        self.verdict.messages += len(log)
        # The chain of links leaves white space at the ends out, so what a client sends without it is the same message.
        whole = [one.text.strip() for one in log]
        if whole[: len(promise.texts)] == [text.strip() for text in promise.texts]:
            return
        what = f"{talk.name} ({promise.conversation_id}): {len(promise.texts)} messages promised, {len(log)} there"
        pairs = itertools.zip_longest(promise.texts, whole[: len(promise.texts)])
        for number, (promised, found) in enumerate(pairs):
            if found is None or promised is None or found != promised.strip():
                what += f"; message {number}: promised {promised!r:.160}, found {found!r:.160}"
                break
        is_doubled = len(set(whole)) < len(whole)
        (self.verdict.doubled if is_doubled else self.verdict.lost).append(what)

    async def settle(self, talks: Sequence[Talk], *, seconds: float) -> None:
        """Whoever appends can go on: no lease is stuck."""
        waiting = iter([talk for talk in talks if talk.style != "resend"])

        async def some() -> None:
            for talk in waiting:
                await self._go_on(talk, seconds)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_A_TIME):
                group.create_task(some())

    async def _go_on(self, talk: Talk, seconds: float) -> None:
        body = {"model": "sim", "conversation": talk.name, "messages": [{"role": "user", "content": "And now?"}]}
        headers = {"authorization": f"Bearer {talk.tenant}"}
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.post(f"{self._base_url}/chat/completions", json=body, headers=headers) as answer,
            ):
                if answer.status != 200:
                    self.verdict.stuck.append(f"{talk.name}: {answer.status} {(await answer.text())[:200]}")
        except TimeoutError:
            self.verdict.stuck.append(f"{talk.name}: no answer within {seconds} s")

    async def _log(self, talk: Talk, conversation_id: str) -> list[Said]:
        log: list[Said] = []
        after = ""
        headers = {"authorization": f"Bearer {talk.tenant}"}
        while True:
            url = f"{self._base_url}/conversations/{conversation_id}/items?order=asc&limit={PAGE}{after}"
            async with self._session.get(url, headers=headers) as answer:
                if answer.status == 404:
                    return log
                answer.raise_for_status()
                page: dict[str, Any] = await answer.json()
            log += [said_of(item) for item in page["data"] if item["type"] == "message"]
            if not page["has_more"]:
                return log
            after = f"&after={page['last_id']}"


def said_of(item: dict[str, Any]) -> Said:
    text = "".join(part.get("text") or "" for part in item["content"])
    return Said(item["role"], text, item.get("status", "completed") == "completed")
