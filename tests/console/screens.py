"""Makes the pictures of the console in `docs/pictures`, each in light and dark and for a wide and a narrow window.

    make screens

A gateway of this version has the conversations of four applications: one of them is that of `make demo`. The
simulated model answers, over HTTP, so that calls have a price and may fail.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import sys
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, Page, async_playwright, expect

from app.context.count.token_counter import choose_token_counter_name, load_token_counter
from app.simulator.options_and_faults import SimulatorOptions
from app.simulator.server import SimulatorApp
from demo.script import SYSTEM, TOPICS, conversation
from tests.console.browser import ARGUMENTS, MISSING, ROOT, SCHEMES, find_browser
from tests.console.scenery import MODEL, Console, running, user
from tests.live import serving
from tests.support.messages_simulator import CachingSimulator

PICTURES: Final = ROOT / "docs" / "pictures"
TOKEN: Final = "cop_" + "5c2e" * 12
WIDTHS: Final = {"wide": (1440, 900), "narrow": (400, 800)}
QUALITY: Final = 75
"""Of WebP, in percent: letters stay sharp, and all pictures together take less than 1 MB."""
SEEN_TURN: Final = 52
"""Of the demo: its view has three summaries, user text and quotations."""
KEYS: Final = ("Website", "Back office", "Support desk", "Night jobs")
OVERLOADED: Final = f"{MODEL}!status=503"


async def fill(console: Console) -> tuple[str, str]:
    """Lets four applications talk. Returns the id of the demo's conversation, and of the answer that is shown."""
    console.client.headers["Authorization"] = f"Bearer {TOKEN}"
    keys: dict[str, str] = {}
    for name in KEYS:
        keys[name] = (await console.ask("POST", "admin/keys", json={"name": name, "budget_usd": 20}))["key"]

    async def say(name: str, messages: list[dict[str, Any]], model: str = MODEL) -> Any:
        body = {"model": model, "messages": messages}
        headers = {"Authorization": f"Bearer {keys[name]}"}
        return (await console.client.post("/v1/chat/completions", json=body, headers=headers)).json()

    async def talk(name: str, texts: Iterable[str]) -> Any:
        messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
        for text in texts:
            answer = await say(name, [*messages, user(text)])
            messages += [user(text), answer["choices"][0]["message"]]
        return answer

    for number, (_, facts) in enumerate(TOPICS):
        await talk(KEYS[number % 2], [f"{fact} {question}" for fact, question in facts[: 2 + number % 4]])
    answer = await talk("Support desk", [turn.text for turn in conversation()])
    for _, question in TOPICS[0][1]:
        await talk("Night jobs", [question])
    await say("Night jobs", [user("Which tickets are open?")], OVERLOADED)
    found = answer["conversation_id"]
    everybody = {"X-Concertina-Tenant": "*"}
    turns = (await console.ask("GET", f"conversations/{found}/turns", headers=everybody))["data"]
    return found, turns[SEEN_TURN - 1]["id"]


async def draw(console: Console, browser: Browser, folder: Path) -> None:
    """Writes `console-PAGE-WIDTH-SCHEME.webp` for each page, width and colour scheme."""
    demo, answer = await fill(console)
    pages = {
        "conversations": ("conversations", "tr[data-id]"),
        "context": (f"conversations/{demo}/context?item={answer}", ".drawn-block"),
        "tokens": (f"conversations/{demo}/tokens", ".chart canvas"),
        "requests": ("requests", "table.requests tbody tr"),
    }
    for width, (pixels, height) in WIDTHS.items():
        for scheme in SCHEMES:
            page = await browser.new_page(
                viewport={"width": pixels, "height": height}, color_scheme=scheme, reduced_motion="reduce", locale="en"
            )
            await page.goto(console.url(f"#token={TOKEN}"))
            await expect(page.get_by_role("heading", name="Conversations")).to_be_visible()
            for name, (place, sign) in pages.items():
                await page.goto(console.url(f"#/{place}"))
                await page.locator(sign).first.wait_for()
                await page.wait_for_load_state("networkidle")
                (folder / f"console-{name}-{width}-{scheme}.webp").write_bytes(await take(page))
            await page.close()


async def take(page: Page) -> bytes:
    """What is seen of a page, as WebP."""
    session = await page.context.new_cdp_session(page)
    options = {"format": "webp", "quality": QUALITY}
    return base64.b64decode((await session.send("Page.captureScreenshot", options))["data"])


def build_simulator() -> SimulatorApp:
    """The simulated model with a prompt cache."""
    return SimulatorApp(
        CachingSimulator(
            "prefix",
            SimulatorOptions(first_token_seconds=0.02),
            lambda model: load_token_counter(choose_token_counter_name(model)),
            clock=time.time,
            new_id=lambda: uuid.uuid4().hex,
        )
    )


async def main(folder: Path) -> int:
    async with async_playwright() as playwright, serving(build_simulator(), lifespan="off") as address:
        executable = find_browser(playwright)
        if executable is None:
            print(MISSING, file=sys.stderr)
            return 1
        provider = {"base_url": f"{address}/v1", "api_key": "sk-simulated"}
        price = {"input": 2.5, "cached_input": 0.25, "output": 10}
        settings: dict[str, Any] = {
            "auth": {"mode": "keys", "operator_token": TOKEN},
            "providers": {"simulated": provider},
            "models": {name: {"provider": "simulated", "price": price} for name in (MODEL, OVERLOADED)},
            "policies": {"additive": {"fold_ratio": 0.6, "prepare_ratio": 1}},
            "retries": {"base_seconds": 0.01},
        }
        async with running(**settings) as console:
            browser = await playwright.chromium.launch(executable_path=executable, args=list(ARGUMENTS))
            await draw(console, browser, folder)
            await browser.close()
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.console.screens", description=__doc__)
    parser.add_argument("--folder", type=Path, default=PICTURES, help="where the pictures are written")
    chosen = parser.parse_args().folder
    chosen.mkdir(parents=True, exist_ok=True)
    sys.exit(asyncio.run(main(chosen)))
