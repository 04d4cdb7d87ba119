"""Measures the lists of the console over a full database: `python -m tests.benchmarks.console_lists`.

A gateway has conversations and requests of four keys. Their rows are copied until there are as many as asked for; then
a browser opens the lists, filters and pages them. Told is the time from the click until the rows are painted, of which
the request takes a part; and the processor time of page and gateway for it, which other programs on the machine do not
change.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from playwright.async_api import CDPSession, Page, async_playwright, expect

from demo.script import TOPICS
from tests.console.browser import ARGUMENTS, MISSING, find_browser
from tests.console.scenery import MODEL, Console, running, user

TOKEN: Final = "cop_" + "9a1b" * 12
KEYS: Final = ("Website", "Back office", "Support desk", "Night jobs")
LONG_EXCHANGES: Final = 40
WEEK_SECONDS: Final = 7 * 86_400
GOAL_MS: Final = 200
ROUNDS: Final = 7
FAILING: Final = f"{MODEL}!status=503"
CHANGE_AND_PAINT: Final = """
    async ([act, pattern]) => {
        const began = performance.now();
        const answered = new Promise((done) => {
            const seen = new PerformanceObserver((list) => {
                const entry = list.getEntries().find((one) => one.name.includes(pattern) && one.startTime >= began);
                if (entry) { seen.disconnect(); done(entry); }
            });
            seen.observe({ type: "resource" });
        });
        if (act.startsWith("#")) location.hash = act;
        else [...document.querySelectorAll("button")].find((one) => one.textContent.trim() === act).click();
        const entry = await answered;
        await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))));
        return [performance.now() - began, entry.duration];
    }
"""
"""Answers with the milliseconds until the rows are painted, and those of the request."""
CONVERSATIONS: Final = {
    "open": "",
    "newest first": "?order=desc",
    "of one tenant": "?tenant={tenant}",
    "10 messages and more": "?min_messages=10",
    "by key": "?key_id={key}",
    "by status": "?context_status=summarized",
    "by a model that none has": "?model=none",
    "by key, status and length": "?key_id={key}&context_status=full&min_messages=4",
}
REQUESTS: Final = {
    "open": "",
    "errors": "?outcome=error",
    "last hour": "?range=hour",
    "over 1 min (none)": "?slow=60000",
    "by key": "?key_id={key}",
    "by status 503": "?status=503",
    "by a model that none has": "?model=none",
    "summarized, by key": "?context_status=summarized&key_id={key}",
    "of one conversation": "?conversation_id={conversation}",
}


async def talk(console: Console) -> dict[str, str]:
    """Fills a gateway with what is copied. Returns a key's id and tenant, and a conversation of it."""
    operator = {"Authorization": f"Bearer {TOKEN}"}
    found: dict[str, str] = {}
    for number, name in enumerate(KEYS):
        made = await console.ask("POST", "admin/keys", json={"name": name}, headers=operator)
        mine = {"Authorization": f"Bearer {made['key']}"}
        for place, (_, facts) in enumerate(TOPICS):
            texts = [f"{fact} {question}" for fact, question in facts[: 1 + place % 5]]
            texts += [" ".join([*texts, "and so on"] * 8)] * LONG_EXCHANGES if place == number else []
            messages: list[dict[str, Any]] = []
            for text in texts:
                body = {"model": MODEL, "messages": [*messages, user(text)]}
                answer = await console.ask("POST", "chat/completions", json=body, headers=mine)
                messages += [user(text), answer["choices"][0]["message"]]
        failing = {"model": FAILING, "messages": [user("Hello")]}
        await console.client.post("/v1/chat/completions", json=failing, headers=mine)
        found = {"key": made["id"], "tenant": made["tenant"], "conversation": answer["conversation_id"]}
    return found


def copy_rows(path: Path, conversations: int, requests: int) -> None:
    """Copies the conversations and the requests of a database, with ids and times of their own, in random order."""
    chance = random.Random(31)
    now = dt.datetime.now(dt.UTC)
    with closing(sqlite3.connect(path)) as database, database:
        database.row_factory = sqlite3.Row
        originals = list(database.execute("SELECT * FROM conversations"))
        said = {one["id"]: _read(database, "messages", "conversation_id", one["id"]) for one in originals}
        asked = [dict(row) for row in database.execute("SELECT * FROM requests")]
        copies: dict[str, list[str]] = {one["id"]: [] for one in originals}
        for _ in range(conversations - len(originals)):
            one = chance.choice(originals)
            root = f"{chance.getrandbits(64):016x}"
            new_id = f"conv_{root}{chance.getrandbits(128):032x}"
            copies[one["id"]].append(new_id)
            created = now - dt.timedelta(seconds=chance.uniform(0, WEEK_SECONDS))
            times = {"created_at": created.isoformat(timespec="microseconds")}
            times["updated_at"] = (created + dt.timedelta(seconds=60)).isoformat(timespec="microseconds")
            _insert(database, "conversations", [{**dict(one), **times, "root": root, "id": new_id}])
            _insert(database, "messages", [{**row, "root": root, "conversation_id": new_id} for row in said[one["id"]]])
        for number in range(requests - len(asked)):
            row = dict(chance.choice(asked))
            record = json.loads(row["record"])
            new_id, started = f"req_{number:032x}", now.timestamp() - chance.uniform(0, WEEK_SECONDS)
            where = chance.choice(copies.get(row["conversation_id"]) or [row["conversation_id"]])
            text = json.dumps(record).replace(row["id"], new_id).replace(str(row["conversation_id"]), str(where))
            text = text.replace(json.dumps(row["started_at"]), json.dumps(started))
            row |= {"id": new_id, "started_at": started, "conversation_id": where, "record": text}
            _insert(database, "requests", [row])


def _read(database: sqlite3.Connection, table: str, column: str, value: str) -> list[dict[str, Any]]:
    return [dict(row) for row in database.execute(f"SELECT * FROM {table} WHERE {column} = ?", (value,))]


def _insert(database: sqlite3.Connection, table: str, rows: list[dict[str, Any]]) -> None:
    marks = ", ".join("?" for _ in rows[0])
    database.executemany(
        f"INSERT INTO {table} ({', '.join(rows[0])}) VALUES ({marks})",
        [tuple(row.values()) for row in rows],
    )


class Clock:
    """Reads the processor time of a page's main thread, and of this process with the gateway."""

    def __init__(self, session: CDPSession) -> None:
        self._session = session

    @classmethod
    async def of_page(cls, page: Page) -> Clock:
        session = await page.context.new_cdp_session(page)
        await session.send("Performance.enable", {"timeDomain": "threadTicks"})
        return cls(session)

    async def read_ms(self) -> float:
        told = await self._session.send("Performance.getMetrics")
        seconds = next(one["value"] for one in told["metrics"] if one["name"] == "TaskDuration")
        return 1000 * (float(seconds) + time.process_time())

    async def measure(self, page: Page, act: str, path: str) -> list[float]:
        """The milliseconds of `CHANGE_AND_PAINT`, and the processor time."""
        before = await self.read_ms()
        times: list[float] = await page.evaluate(CHANGE_AND_PAINT, [act, path])
        return [*times, await self.read_ms() - before]


async def measure(page: Page, console: Console, found: dict[str, str]) -> list[tuple[str, list[float]]]:
    """Opens, filters and pages both lists. Returns for each action its name and the medians of its times."""
    clock = await Clock.of_page(page)
    await page.goto(console.url(f"#token={TOKEN}"))
    await expect(page.locator("tr[data-id]").first).to_be_visible()
    results: list[tuple[str, list[float]]] = []
    for place, filters, path, more in (
        ("conversations", CONVERSATIONS, "v1/conversations?", "Load more"),
        ("requests", REQUESTS, "v1/admin/requests?", "Older"),
    ):
        for name, query in filters.items():

            async def filtered(place: str = place, query: str = query, path: str = path) -> list[float]:
                await page.goto(console.url(f"#/{place}" if query else "#/settings"))
                await expect(page.get_by_role("heading", level=1)).to_be_visible()
                await page.wait_for_load_state("networkidle")
                return await clock.measure(page, f"#/{place}{query.format(**found)}", path)

            results.append((f"{place}, {name}", await _repeat(filtered)))
        await page.goto(console.url(f"#/{place}"))
        await page.get_by_role("button", name=more).wait_for()

        async def paged(more: str = more, path: str = path) -> list[float]:
            await page.get_by_role("button", name=more, exact=True).wait_for()
            return await clock.measure(page, more, path)

        results.append((f"{place}, next page", await _repeat(paged)))
    return results


async def _repeat(act: Callable[[], Any]) -> list[float]:
    times = [await act() for _ in range(ROUNDS)]
    return [statistics.median(column) for column in zip(*times, strict=True)]


async def main(conversations: int, requests: int) -> int:
    with tempfile.TemporaryDirectory(prefix="concertina-lists-") as folder:
        path = Path(folder) / "lists.db"
        settings: dict[str, Any] = {
            "database": {"url": f"sqlite:///{path}"},
            "auth": {"mode": "keys", "operator_token": TOKEN},
            "retries": {"base_seconds": 0.01},
        }
        async with running(**settings) as console:
            found = await talk(console)
        await asyncio.to_thread(copy_rows, path, conversations, requests)
        async with running(**settings) as console, async_playwright() as playwright:
            executable = find_browser(playwright)
            if executable is None:
                print(MISSING, file=sys.stderr)
                return 1
            browser = await playwright.chromium.launch(executable_path=executable, args=list(ARGUMENTS))
            page = await browser.new_page(viewport={"width": 1440, "height": 900})
            results = await measure(page, console, found)
            await browser.close()
    print(f"{conversations:,} conversations, {requests:,} requests, SQLite; medians of {ROUNDS}, in ms")
    for name, (painted, answered, worked) in results:
        over = "  OVER" if min(painted, worked) > GOAL_MS else ""
        print(f"{name:44} painted {painted:6.0f}   request {answered:6.0f}   processor {worked:6.0f}{over}")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.console_lists", description=__doc__)
    parser.add_argument("--conversations", type=int, default=20_000, help="at least 450: several pages are turned")
    parser.add_argument("--requests", type=int, default=50_000, help="likewise")
    chosen = parser.parse_args()
    sys.exit(asyncio.run(main(chosen.conversations, chosen.requests)))
