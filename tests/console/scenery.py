"""Gateways for the console's tests: the real application with the simulated model and a store in memory, and what there
is to look at in it. Everything is the anonymous tenant's, as for a page without a key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx

from app.settings import load_settings
from migrations import run as migrations
from tests.live import create_test_app, serving

MODEL: Final = "sim-8k"
LONG_TURNS: Final = 60
BIG_MESSAGES: Final = 10_000
WIDE_CHARS: Final = 30_000
HOSTILE: Final[dict[str, str]] = {
    "script": "<script>window.pwned = 1</script>",
    "image": '<img src=x onerror="window.pwned = 2"><svg onload="window.pwned = 3">',
    "frame": '<iframe srcdoc="<script>parent.pwned = 4</script>"></iframe><base href="https://evil.example/">',
    "style": "<style>body { display: none }</style><link rel=stylesheet href=https://evil.example/x.css>",
    "link": "[click](javascript:window.pwned=5) [this](data:text/html,<script>parent.pwned=6</script>) <javascript:x>",
    "picture": '![pixel](https://evil.example/pixel.png) ![x](x"onerror="window.pwned=7)',
    "markdown": "```html\n<script>window.pwned = 8</script>\n```\n\n| <b>a</b> | b |\n| --- | --- |\n| <i>c</i> | d |",
    "template": "${window.pwned = 9} {{constructor.constructor('window.pwned = 10')()}} </script><!-- -->",
    "bidi": "safe \u202egnp.exe\u202c \u2066hidden\u2069 \u200bzero\ufeffwidth \u0007bell",
    "unbroken": "W" * 5_000,
    "emoji": "👩‍👩‍👧‍👦 " * 200 + "Z̷̡̛͇̙̭̅̈́a̶l̸g̵o̴",
}
"""Texts that a page must show and not do. Whatever runs of them sets `window.pwned`."""


@dataclass(frozen=True)
class Console:
    """A running gateway, as a client and as a browser reach it."""

    address: str
    client: httpx.AsyncClient

    def url(self, path: str = "") -> str:
        """The address of the console, or of something below it: `url("#/chat")`."""
        return f"{self.address}/console/{path}"

    async def ask(self, method: str, path: str, **options: Any) -> Any:
        """The JSON of an answer below `/v1` that must succeed."""
        answer = await self.client.request(method, f"/v1/{path}", **options)
        assert answer.status_code == 200, f"{method} {path}: {answer.text[:500]}"
        return answer.json()

    async def get(self, path: str, **query: Any) -> Any:
        return await self.ask("GET", path, params=query)

    async def chat(self, messages: Sequence[dict[str, Any]], conversation: str | None = None, **fields: Any) -> Any:
        """A whole answer to these messages; with a `conversation` they are appended to it."""
        headers = {"x-conversation-id": conversation} if conversation else {}
        body = {"model": MODEL, "messages": list(messages), **fields}
        return await self.ask("POST", "chat/completions", json=body, headers=headers)

    async def say(self, text: str, conversation: str, **fields: Any) -> Any:
        return await self.chat([user(text)], conversation, **fields)

    async def take_in(self, messages: Sequence[dict[str, Any]]) -> str:
        """Import a conversation; its id."""
        taken = await self.ask(
            "POST", "conversations/import", params={"format": "jsonl"}, content="\n".join(map(json.dumps, messages))
        )
        return str(taken["data"][0]["id"])

    async def entitle(self, conversation: str, title: str) -> None:
        await self.ask("POST", f"conversations/{conversation}", json={"metadata": {"title": title}})


@dataclass(frozen=True)
class Filled(Console):
    """A gateway with conversations of every kind, by their ids."""

    long: str
    """60 turns at a small window: several compactions, pins, a summary with revisions. Its client's id is `harbour`."""
    branches: tuple[str, ...]
    """Two that left `long`: an edited question, a regenerated answer."""
    tools: str
    """Tool calls and results, reasoning, a refusal, attachments, a very long text."""
    hostile: str
    """All of `HOSTILE`, in its title as well, and in a summary."""
    big: str
    """10,000 imported messages."""
    redacted: str
    """Its message 0 was deleted, its message 2 erased."""
    empty: str
    """Nothing was said in it yet."""
    pinned: tuple[int, ...]
    """Seqs of the pinned messages of `long`."""
    revised: str
    """The id of the summary of `long` that has revisions."""


@asynccontextmanager
async def running(**sections: Any) -> AsyncIterator[Console]:
    """A gateway in this process, whose turns wait for their summaries; `sections` of the configuration may be given."""
    policies = {**sections.get("policies", {})}
    # User text shares the room of summaries: four of them shall stand in a view before they are folded.
    policies["additive"] = {"blocking": True, "fold_ratio": 0.45, **policies.get("additive", {})}
    values = {"database": {"url": "memory://"}, **sections, "policies": policies}
    arguments: dict[Any, Any] = {(name,): value for name, value in values.items()}
    settings = load_settings(environ={}, arguments=arguments)
    await asyncio.to_thread(migrations.prepare_database, settings.database.url.get_secret_value(), auto_migrate=True)
    async with serving(create_test_app(settings)) as address, httpx.AsyncClient(base_url=address, timeout=60) as client:
        yield Console(address, client)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}


def line(number: int) -> str:
    """What is said in turn `number`: unlike all others, about 330 tokens."""
    goods = " ".join(f"crate {number * 31 + index} holds {index * 7 + number} bolts," for index in range(36))
    return f"Entry {number}: the ship Aurora {number} lies at berth {number % 9 + 1}. {goods} and that is all."


async def fill(console: Console) -> Filled:
    """Put one conversation of each kind into a gateway."""
    long = await long_conversation(console)
    branches = await branches_of(console, long)
    pinned, revised = await treated(console, long)
    return Filled(
        console.address,
        console.client,
        long=long,
        branches=branches,
        tools=await console.take_in(tool_messages()),
        hostile=await hostile_conversation(console),
        big=await console.take_in(numbered_messages(BIG_MESSAGES)),
        redacted=await redacted_conversation(console),
        empty=str((await console.ask("POST", "conversations", json={}))["id"]),
        pinned=pinned,
        revised=revised,
    )


async def long_conversation(console: Console, turns: int = LONG_TURNS, name: str = "harbour") -> str:
    """A conversation that was compacted several times; its id."""
    body: Any = None
    for number in range(turns):
        body = await console.say(line(number), name)
    return str(body["conversation_id"])


async def branches_of(console: Console, conversation: str) -> tuple[str, ...]:
    """Two branches: from an edited question, and from an answer that was asked for once more."""
    log = (await console.get(f"conversations/{conversation}/log", limit=9))["data"]
    history = [{"role": one["role"], "content": one["text"]} for one in log]
    edited = await console.chat([*history[:6], user("What would be, had the Aurora never come?")])
    again = await console.chat(history[:9])
    return str(edited["conversation_id"]), str(again["conversation_id"])


async def treated(console: Console, conversation: str) -> tuple[tuple[int, ...], str]:
    """Pins, and a summary with a text of a person's: seqs of the pinned messages, the summary's id."""
    place = f"conversations/{conversation}"
    log = (await console.get(f"{place}/log", limit=10))["data"]
    pinned = (2, 5)
    for seq in pinned:
        await console.ask("POST", f"{place}/items/{log[seq]['id']}/pin")
    oldest = (await console.get(f"{place}/summaries", order="asc"))["data"][0]["id"]
    for text in ("The Aurora came to berth 1, as a person tells it.", "The Aurora came, as a person tells it again."):
        await console.ask("PATCH", f"{place}/summaries/{oldest}", json={"text": text})
    return pinned, str(oldest)


def tool_messages() -> list[dict[str, Any]]:
    """Everything besides plain text that a message may hold."""
    call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"berth": 4}'}}
    custom = {"id": "call_2", "type": "custom", "custom": {"name": "shell", "input": "ls -l /harbour"}}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    sound = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    file = {"type": "file", "file": {"filename": "manifest.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}}
    return [
        user("Who lies at berth 4?"),
        assistant(None, tool_calls=[call], reasoning_content="The list of berths will say."),
        {"role": "tool", "tool_call_id": "call_1", "content": '{"ship": "Aurora 3"}'},
        assistant(
            "The Aurora 3 does.\n\n| ship | berth |\n| --- | --- |\n| Aurora 3 | 4 |\n\n```python\nprint('ahoy')\n```"
        ),
        {"role": "user", "content": [{"type": "text", "text": "And these?"}, picture, sound, file]},
        assistant("Let me see.", tool_calls=[custom]),
        {"role": "tool", "tool_call_id": "call_2", "content": "x" * WIDE_CHARS},
        {"role": "assistant", "content": None, "refusal": "I cannot help with that."},
        user("Never mind. **Thanks** for _everything_: see [the list](https://example.org/list)."),
        assistant("- one\n- two\n  1. nested\n\n> A quotation.\n\n---\n\nDone."),
    ]


def numbered_messages(count: int) -> list[dict[str, Any]]:
    """A long conversation of short messages, each of which says its number."""
    return [
        user(f"Question {seq} about crate {seq * 7}") if seq % 2 == 0 else assistant(f"Answer {seq}: it is dry.")
        for seq in range(count)
    ]


async def hostile_conversation(console: Console) -> str:
    """A conversation whose every text tries something; compacted, so that there is a summary to be edited."""
    name = "hostile"
    body: Any = None
    for number, text in enumerate(HOSTILE.values()):
        body = await console.say(f"{text}\n\n{line(number)}", name, model=f"{MODEL}-<img src=x onerror=alert(1)>")
    for number in range(20, 36):
        body = await console.say(line(number), name)
    found = str(body["conversation_id"])
    await console.entitle(found, HOSTILE["image"])
    oldest = (await console.get(f"conversations/{found}/summaries"))["data"][0]["id"]
    shown = (await console.get(f"conversations/{found}/context"))["summaries"][0]["id"]
    for summary in {oldest, shown}:
        text = f"{HOSTILE['script']} {HOSTILE['link']} {HOSTILE['picture']}"
        await console.ask("PATCH", f"conversations/{found}/summaries/{summary}", json={"text": text})
    return found


async def redacted_conversation(console: Console) -> str:
    """A conversation that is no longer whole: what was deleted is `swordfish`, what was erased `barracuda`."""
    found = await console.take_in(
        [user("The word is swordfish."), assistant("Yes."), user("No: barracuda."), assistant("Ah.")]
    )
    log = (await console.get(f"conversations/{found}/log"))["data"]
    await console.ask("DELETE", f"conversations/{found}/items/{log[0]['id']}")
    await console.ask("DELETE", f"conversations/{found}/items/{log[2]['id']}", params={"erase": "true"})
    return found
