"""People who share one key, send no ids and are given the same answers; and what must stay apart between them."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from app.errors import StoreUnavailable
from tests.live import Reply, completion, gateway, serving, stream
from tests.scenarios.rewriting import COUNTER, WINDOW, Body, Client, Kept, StrictModel, words
from tests.support.gateway import assistant, is_summary, user

SMALL_WINDOW: Final = 2048
"""Views are shortened after a few turns, so what a summary or a quotation draws on is seen soon."""
FAQ: Final = tuple(f"How do I {words(f'faq{number}', 6)}?" for number in range(4))
"""Questions to which everybody gets the same answer."""
SECRET: Final = "alicesecret"
"""Every private message of Alice has this word, and nobody else's."""
TOPIC: Final = "the greenhouse at Larkhill"
"""Alice's private messages are about it. Bob asks about it, too, so that what is quoted for him would be hers."""
OWNED_WORD: Final = re.compile(rf"{SECRET}|person\d+z?")
"""Words that one person's messages have and nobody else's."""
PRIVATE_MESSAGES: Final = 27


class FaqModel(StrictModel):
    """Answers each of `FAQ` the same, whatever stands before it, and everything else as `StrictModel`. Only its
    summaries repeat users' words: those by which a test knows whose they are."""

    def _reply(self, body: Body) -> Reply:
        if is_summary(body):
            told = sorted(set(OWNED_WORD.findall(str(body["messages"]))))
            return completion(f"They spoke about gardens. {' '.join(told)}")
        last = str(body["messages"][-1]["content"])
        if last not in FAQ:
            return super()._reply(body)
        text = answer_faq(last)["content"]
        return (
            stream(text)
            if body.get("stream")
            else completion(text, prompt_tokens=COUNTER.count_request(body["messages"]))
        )


def answer_faq(text: str) -> Body:
    """The answer to a question of `FAQ`, as a client keeps it."""
    return assistant(f"You do it so: {words(text, 40)}.")


def private(number: int, count: int = 12) -> Body:
    return user(f"{SECRET} {number}: {TOPIC} number {number}, {words(('private', number), count)}.")


def ordinary(name: str, number: int, count: int = 60) -> Body:
    return user(f"{name} {number}: {words((name, number), count)}.")


async def talk_as_alice(alice: Client, private_messages: int = PRIVATE_MESSAGES, **fields: Any) -> None:
    """Alice asks the four questions among her private messages; a private message is her last."""
    step = max(1, private_messages // (len(FAQ) + 1))
    asked = iter(FAQ)
    for number in range(private_messages):
        await alice.say(private(number), **fields)
        if number % step == step - 1 and (text := next(asked, None)) is not None:
            await alice.say(user(text), **fields)


async def ask_faq(client: Client, questions: Sequence[str] = FAQ, **fields: Any) -> None:
    for text in questions:
        await client.say(user(text), **fields)


class Watch:
    """What the model was asked since the watch began."""

    def __init__(self, model: StrictModel) -> None:
        self._model = model
        self._begin = len(model.bodies)

    def find_requests(self, word: str) -> list[int]:
        """Numbers of the requests, those for summaries included, that hold a word."""
        bodies = self._model.bodies[self._begin :]
        return [number for number, body in enumerate(bodies) if word.encode() in body]


async def go_on(client: Client, name: str = "bob", turns: int = 5, count: int = 120) -> None:
    """Turns that fill `SMALL_WINDOW`, so that the view is shortened."""
    for number in range(turns):
        asked = f"{ordinary(name, number, count)['content']} What about {TOPIC}?"
        await client.say(user(asked))


async def check_apart(place: Kept, client: Client, *others: Client, word: str = SECRET) -> None:
    """No id that a client was told reads a word of others: not in items, in search, in the view, nor in an export."""
    assert client.ids
    for other in others:
        assert client.ids.isdisjoint(other.ids)
    for conversation_id in client.ids:
        for path, query in READINGS:
            answer = await read(place, f"{conversation_id}/{path}", **query)
            assert answer.status_code in {200, 404}, answer.text
            assert word not in answer.text.replace(f'"query":"{word}"', ""), (path, conversation_id)


READINGS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("items", {"limit": 100, "order": "asc"}),
    ("context", {"limit": 100}),
    ("summaries", {}),
    ("export", {}),
)


async def read(place: Kept, path: str, method: str = "GET", **query: Any) -> httpx.Response:
    """An answer below `/conversations`, whatever its status."""
    return await place.client.request(
        method,
        f"{place.base_url}/conversations/{path}",
        params=query or None,
        headers={"authorization": "Bearer sk-one"},
    )


async def list_conversations(place: Kept) -> list[str]:
    """The ids that the list of conversations shows."""
    found: list[str] = []
    query: dict[str, Any] = {"limit": 100}
    while True:
        answer = await place.client.get(
            f"{place.base_url}/conversations", params=query, headers={"authorization": "Bearer sk-one"}
        )
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += [one["id"] for one in page["data"]]
        if not page["has_more"]:
            return found
        query["after"] = page["last_id"]


async def import_messages(place: Kept, messages: Sequence[Body]) -> str:
    """Import a conversation; returns its id."""
    lines = b"".join(json.dumps(one).encode() + b"\n" for one in messages)
    answer = await place.client.post(
        f"{place.base_url}/conversations/import", content=lines, headers={"authorization": "Bearer sk-one"}
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["data"][0]["id"])


class SwitchedStore:
    """A store that can be taken away: every call of it is refused then.

    Args:
        create: makes the store.
    """

    def __init__(self, create: Callable[..., Any]) -> None:
        self._create = create
        self._store: Any = None
        self.is_away = False

    def create(self, *arguments: Any, **options: Any) -> Any:
        self._store = self._create(*arguments, **options)
        return self

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if self.is_away and inspect.iscoroutinefunction(found) and name != "close":
            return _refuse
        return found


async def _refuse(*_: Any, **__: Any) -> Any:
    raise StoreUnavailable("The database is away.", retry_after_seconds=1)


@asynccontextmanager
async def kept_at(database: str, model: StrictModel, **options: Any) -> AsyncIterator[Kept]:
    """A gateway on a database by its URL. What `Kept` reads from a file cannot be read there."""
    async with (
        serving(model, lifespan="off") as address,
        gateway(address, database=database, **{"window": WINDOW, **options}) as base_url,
        httpx.AsyncClient(timeout=60) as client,
    ):
        yield Kept(base_url, model, Path("no file"), client)
