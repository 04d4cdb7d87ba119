"""Who looks sees what their key lets them see, and is offered what it lets them do."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Page, expect

from tests.api.edge.test_api_keys import Locked, locked
from tests.console.browser import Watch, axe, shot
from tests.console.scripted import open_menu
from tests.support.gateway import user


def console_of(gateway: Locked, place: str = "") -> str:
    return f"{gateway.gateway.base_url.removesuffix('/v1')}/console/{place}"


async def sign_in(page: Page, secret: str) -> None:
    await page.get_by_label("API key or operator’s token").fill(secret)
    await page.get_by_role("button", name="Look with this key").click()


async def talked(gateway: Locked, **wish: Any) -> tuple[str, str]:
    """A key that may everything, and the id of a conversation of its tenant's."""
    secret, _ = await gateway.key(scopes=("chat", "read", "manage"), **wish)
    body = {"model": "m", "messages": [user("Hello there")]}
    answer = await gateway.ask("POST", "/chat/completions", secret, json=body, headers={"x-conversation-id": "mine"})
    return secret, str(answer.json()["conversation_id"])


async def test_without_a_key_one_is_asked_for(page: Page, watch: Watch) -> None:
    watch.allow("401")
    async with locked() as gateway:
        secret, _ = await talked(gateway)
        await page.goto(console_of(gateway))
        await expect(page.get_by_text("This gateway wants a key")).to_be_visible()
        await shot(page, "sign-in")
        await axe(page)
        await sign_in(page, "ck_made-up")
        await expect(page.get_by_role("alert")).to_contain_text("invalid_api_key")
        await sign_in(page, secret)
        await expect(page.get_by_role("link", name="Hello there")).to_be_visible()
        await open_menu(page, "Account")
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_text("This gateway wants a key")).to_be_visible()


async def test_a_key_that_may_only_read_is_offered_nothing_else(page: Page, watch: Watch) -> None:
    watch.allow("401")
    async with locked() as gateway:
        _, conversation = await talked(gateway, tenant="acme")
        reader, _ = await gateway.key(scopes=("read",), tenant="acme")
        await page.goto(console_of(gateway))
        await sign_in(page, reader)
        await expect(page.get_by_role("link", name="Hello there")).to_be_visible()
        for name in ("Import", "Delete"):
            await expect(page.get_by_role("button", name=name)).to_have_count(0)
        await page.goto(console_of(gateway, f"#/conversations/{conversation}/log"))
        await expect(page.locator(".message").first).to_contain_text("Hello there")
        await open_menu(page, "More")
        for name in ("Rename", "Compact", "Delete", "Pin", "Erase"):
            await expect(page.get_by_role("button", name=name)).to_have_count(0)
        await expect(page.get_by_role("button", name="Export")).to_be_visible()
        await page.goto(console_of(gateway, f"#/conversations/{conversation}/summaries"))
        await expect(page.get_by_text("changing summaries takes the scope manage")).to_be_visible()
        await axe(page)


async def test_what_another_tenant_has_is_not_there(page: Page, watch: Watch) -> None:
    watch.allow("401|404")
    async with locked() as gateway:
        _, conversation = await talked(gateway, tenant="acme")
        other, _ = await gateway.key(scopes=("read",), tenant="other")
        await page.goto(console_of(gateway, f"#/conversations/{conversation}"))
        await sign_in(page, other)
        await expect(page.get_by_role("heading", name="There is no such conversation")).to_be_visible()
        assert "Hello there" not in await page.inner_text("body")


async def test_a_key_that_may_not_read_is_told_what_it_lacks(page: Page, watch: Watch) -> None:
    watch.allow("401|403")
    async with locked() as gateway:
        chatter, _ = await gateway.key(scopes=("chat",))
        await page.goto(console_of(gateway))
        await sign_in(page, chatter)
        await expect(page.get_by_role("alert")).to_contain_text("lacks the scope 'read'")
        await axe(page)
