"""A real Chromium for tests: where it is found, how it is started, and what a page must not do while it is watched."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]  # it has no stubs
from playwright.async_api import ConsoleMessage, Error, Page, Playwright, Request
from playwright.sync_api import Playwright as SyncPlaywright

ROOT: Final = Path(__file__).parents[2]
SCREENSHOTS: Final = ROOT / "build" / "console-screenshots"
UNPACKED: Final = Path(sys.prefix) / "chromium" / "chrome"
"""Where `tests.console.install_browser` puts one."""
ENVIRONMENT: Final = "CONCERTINA_TEST_CHROMIUM"
REQUIRED: Final = "CONCERTINA_TEST_REQUIRES_BROWSER"
"""Set where a missing browser is a failure: in continuous integration."""
NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
MISSING: Final = (
    "there is no Chromium here: install it (Debian: apt-get install chromium), name one in CONCERTINA_TEST_CHROMIUM, "
    "or run python -m tests.console.install_browser"
)
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
COLOUR_RULES: Final = ("color-contrast", "link-in-text-block")
_SHOT_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]*")
_TELL_VIOLATIONS: Final = """
    document.addEventListener("securitypolicyviolation", (event) =>
        console.error(`policy violated: ${event.effectiveDirective} by ${event.blockedURI} ${event.sample}`));
"""


def find_browser(playwright: Playwright | SyncPlaywright) -> str | None:
    """The path of a browser to start: the one that is named, one that was unpacked because no other started, this
    machine's, Playwright's own. None where there is none."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        return named
    if UNPACKED.exists():
        return str(UNPACKED)
    of_machine = next(filter(None, map(shutil.which, NAMES)), None)
    own = playwright.chromium.executable_path
    return of_machine or (own if Path(own).exists() else None)


class Watch:
    """What a page did that no page of ours may do: errors, refusals by its policy, requests to other hosts."""

    def __init__(self, page: Page) -> None:
        self.problems: list[str] = []
        self._allowed: list[re.Pattern[str]] = []
        page.on("console", self._on_console)
        page.on("pageerror", self._on_error)
        page.on("request", self._on_request)

    async def begin(self, page: Page) -> None:
        await page.add_init_script(_TELL_VIOLATIONS)

    def allow(self, pattern: str) -> None:
        """Expect problems that match: Chromium itself reports each answer above 399 as an error."""
        self._allowed.append(re.compile(pattern))

    @property
    def unexpected(self) -> list[str]:
        return [one for one in self.problems if not any(pattern.search(one) for pattern in self._allowed)]

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console {message.type}: {message.text} ({message.location.get('url')})")

    def _on_error(self, error: Error) -> None:
        self.problems.append(f"page error: {error.message} {error.stack or ''}")

    def _on_request(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob", "about") and address.hostname != "127.0.0.1":
            self.problems.append(f"request to another host: {request.url}")


async def axe(page: Page, within: str | None = None, *, rules: Sequence[str] = ()) -> None:
    """Assert that axe finds nothing that would keep somebody from using the page.

    Args:
        within: a CSS selector; the whole page without.
        rules: only these; all without.
    """
    only = {"runOnly": {"type": "rule", "values": list(rules)}} if rules else {}
    results = await Axe().run(page, context=within, options={"resultTypes": ["violations"], **only})
    told = [
        f"{one['id']} ({one['impact']}): {one['help']}\n"
        + "\n".join(f"    {node['html'][:200]}\n      {node['failureSummary']}" for node in one["nodes"][:5])
        for one in results.response["violations"]
    ]
    assert not told, "\n".join(told)


async def axe_in_both_schemes(page: Page) -> None:
    """All of axe's rules in the light, and in the dark those that look at colours. The page is left in the light."""
    await axe(page)
    await page.emulate_media(color_scheme="dark")
    await axe(page, rules=COLOUR_RULES)
    await page.emulate_media(color_scheme="light")


async def shot(page: Page, name: str, **options: Any) -> None:
    """Write `build/console-screenshots/NAME-{light,dark}.png`, of the whole page unless told otherwise."""
    assert _SHOT_NAME.fullmatch(name), name
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for scheme in SCHEMES:
        await page.emulate_media(color_scheme=scheme)
        await page.screenshot(path=SCREENSHOTS / f"{name}-{scheme}.png", **{"full_page": True, **options})
    await page.emulate_media(color_scheme="light")
