"""The pages for operators in a browser: requests with their timelines, costs, settings; and the link that signs in."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.console.browser import Watch
from tests.console.scenery import Console, running
from tests.console.scripted import NARROW_WIDTH, answering, looked_at, question, scripted
from tests.live import Reply, ScriptedUpstream
from tests.support.gateway import is_summary

TOKEN = "cop_" + "0123456789abcdef" * 3
CONTENT_BEGINS_PX = 185
"""Of 800: the bar, the name of the page and one line of tools. The list of conversations has two."""
AUTH: dict[str, Any] = {"auth": {"operator_token": TOKEN}}


async def enter(page: Page, console: Console, place: str) -> None:
    await page.goto(console.url(f"#token={TOKEN}"))
    await expect(page.get_by_role("heading", name="Conversations")).to_be_visible()
    await page.goto(console.url(f"#/{place}"))


async def ask(console: Console, secret: str, text: str, **fields: Any) -> Any:
    body = {"model": "sim-8k", "messages": [{"role": "user", "content": text}], **fields}
    headers = {"Authorization": f"Bearer {secret}"}
    return await console.client.post("/v1/chat/completions", json=body, headers=headers)


async def test_a_link_signs_in_and_leaves_the_address(page: Page) -> None:
    async with running(**AUTH) as console:
        await ask(console, "sk-alice", "Alice has locker 7741")
        await ask(console, "sk-bob", "Bob has locker 7742")
        await page.goto(console.url(f"#token={TOKEN}"))
        for said in ("Alice has locker 7741", "Bob has locker 7742"):
            await expect(page.get_by_role("link", name=said)).to_be_visible()
        assert TOKEN not in page.url
        assert await page.evaluate("history.length") <= 2
        await page.reload()
        await expect(page.get_by_role("link", name="Bob has locker 7742")).to_be_visible()
        await page.get_by_role("link", name="Alice has locker 7741").click()
        await expect(page.get_by_text("Noted: Alice has locker 7741")).to_be_visible()
        await page.goto("about:blank")


async def test_requests_are_listed_and_one_is_told(page: Page) -> None:
    replies = iter([Reply(status=503, body={"error": {"message": "Busy"}}), None])

    def faltering(body: dict[str, Any]) -> Reply:
        return next(replies, None) or answering(body)

    async with scripted(page, ScriptedUpstream(default=faltering), **AUTH) as console:
        for number in range(14):
            await console.say(question(number), "talk", model="m")
        refused = await ask(console, "sk-bob", "", model="m", messages="no list")
        assert refused.status_code == 400
        await enter(page, console, "requests")
        rows = page.locator("table.requests tbody tr")
        await expect(rows).to_have_count(15)
        await expect(rows.first).to_contain_text("invalid_type")
        await expect(rows.nth(1)).to_contain_text("summarized")
        await expect(rows.last).to_contain_text("×2")
        await looked_at(page, "requests")
        await page.get_by_role("button", name="Errors").click()
        await expect(rows).to_have_count(1)
        await page.get_by_role("button", name="All", exact=True).click()
        await expect(rows).to_have_count(15)
        await rows.last.get_by_role("link").first.click()
        await expect(page.locator(".story")).to_contain_text("The first call, upstream, answered 503 after")
        await expect(page.locator(".story")).to_contain_text("The second call, upstream, answered after")
        steps = page.get_by_role("region", name="Steps")
        await expect(steps.get_by_role("row", name="Call of the provider")).to_have_count(2)
        await looked_at(page, "request-retried")
        listed = (await console.client.get("/v1/admin/requests", headers={"Authorization": f"Bearer {TOKEN}"})).json()
        waited = next(row for row in listed["data"] if row["compaction_ms"])
        await page.goto(console.url(f"#/requests/{waited['id']}"))
        await expect(page.locator(".story")).to_contain_text("for a summary, because the history was longer")
        await looked_at(page, "request-compacted")
        await page.get_by_role("link", name="What the model saw").click()
        assert f"context?item={waited['item_id']}" in page.url
        await expect(page.get_by_role("heading", name="What the model saw")).to_be_visible()


async def test_one_search_finds_ids_keys_tenants_and_settings(page: Page) -> None:
    async with scripted(
        page, ScriptedUpstream(default=answering), auth={"operator_token": TOKEN, "mode": "keys"}
    ) as console:
        operator = {"Authorization": f"Bearer {TOKEN}"}
        made = await console.client.post("/v1/admin/keys", json={"name": "Website", "tenant": "shop"}, headers=operator)
        answer = await ask(console, made.json()["key"], "Where is my parcel?", model="m")
        request_id, conversation_id = answer.headers["x-request-id"], answer.headers["x-conversation-id"]
        await enter(page, console, "conversations")
        search = page.get_by_label("Search in all conversations")
        await search.fill(f" {answer.json()['id']} ")
        named = page.get_by_role("region", name="By its id")
        await expect(named.get_by_role("link")).to_have_text(
            [f"Request …{request_id[-8:]}", "What the model saw", f"Conversation …{conversation_id[-8:]}"]
        )
        await expect(page.locator(".found, .empty")).to_have_count(0)
        await looked_at(page, "search-an-id")
        await named.get_by_role("link", name="What the model saw").click()
        await expect(page.get_by_role("heading", name="What the model saw")).to_be_visible()
        options = page.get_by_role("dialog").get_by_role("option")
        for typed, note, place in (
            (request_id, "its steps in time", f"#/requests/{request_id}"),
            (conversation_id, "its log", f"#/conversations/{conversation_id}"),
            ("website", f"key {made.json()['hint']}: its requests", f"#/requests?key_id={made.json()['id']}"),
            ("shop", "tenant: its conversations", "#/conversations?tenant=shop"),
            ("request_hours", "168", "#/settings?q=retention.request_hours"),
        ):
            await page.keyboard.press("Control+k")
            await page.get_by_role("combobox", name="Search and commands").fill(typed)
            await expect(options.first.locator(".palette-note")).to_have_text(note)
            if typed == "website":
                await looked_at(page, "palette-key")
            await page.keyboard.press("Enter")
            await page.wait_for_url(f"**/{place}")
        await page.goto("about:blank")


async def test_requests_are_found_by_who_asked_and_what_became_of_them(page: Page) -> None:
    async with scripted(
        page, ScriptedUpstream(default=answering), auth={"operator_token": TOKEN, "mode": "keys"}
    ) as console:
        operator = {"Authorization": f"Bearer {TOKEN}"}
        secrets: list[str] = []
        for wish in ({"name": "Night jobs"}, {"name": "Website", "tenant": "shop"}):
            made = await console.client.post("/v1/admin/keys", json=wish, headers=operator)
            secrets.append(made.json()["key"])
        for secret in (secrets[0], secrets[1], secrets[1]):
            assert (await ask(console, secret, "Hello", model="m")).status_code == 200
        body = {"model": "m", "messages": [{"role": "user", "content": "Aside"}]}
        aside = {"Authorization": f"Bearer {secrets[0]}", "X-Context-Mode": "stateless"}
        assert (await console.client.post("/v1/chat/completions", json=body, headers=aside)).status_code == 200
        await enter(page, console, "requests")
        rows = page.locator("table.requests tbody tr")
        await expect(rows).to_have_count(4)
        await expect(rows.last).to_contain_text("Night jobs")
        await page.set_viewport_size({"width": 1440, "height": 900})
        await looked_at(page, "requests-filters")
        await page.get_by_label("Key", exact=True).select_option("Website")
        await expect(rows).to_have_count(2)
        await expect(rows.first).to_contain_text("shop")
        await page.get_by_label("Key", exact=True).select_option("any key")
        await page.get_by_label("Context").select_option("bypassed")
        await expect(rows).to_have_count(1)
        await page.get_by_label("Time").select_option("last hour")
        await page.get_by_label("Duration").select_option("over 1 min")
        await expect(page.get_by_text("No request that is kept is like that.")).to_be_visible()
        await page.get_by_role("button", name="Clear", exact=True).click()
        await expect(rows).to_have_count(4)
        await page.get_by_label("Time").select_option("from … until")
        await page.get_by_label("Until").fill("2001-02-03T04:05")
        await expect(page.get_by_text("No request that is kept is like that.")).to_be_visible()
        await page.get_by_label("Until").fill("")
        await expect(rows).to_have_count(4)
        await page.get_by_label("Status", exact=True).fill("404")
        await page.get_by_label("Status", exact=True).press("Enter")
        await expect(rows).to_have_count(0)
        await page.get_by_role("button", name="Clear", exact=True).click()
        await rows.last.get_by_role("link").first.click()
        facts = page.locator(".request-facts")
        await expect(facts.get_by_role("link", name="Night jobs")).to_have_count(2)  # its tenant has no other name
        await facts.get_by_role("link", name="Night jobs").last.click()
        await expect(rows).to_have_count(2)
        await rows.last.get_by_title("What the model saw").click()
        await expect(page.get_by_role("heading", name="What the model saw")).to_be_visible()
        for place, name in (("costs", "costs-names"), ("keys", "keys-names"), ("conversations", "conversations-names")):
            await page.goto(console.url(f"#/{place}"))
            await expect(page.get_by_text("Night jobs").first).to_be_visible()
            await looked_at(page, name)
            await expect(page.get_by_text("Night jobs Night jobs")).to_have_count(0)


async def test_an_operator_reads_and_tries_things_in_a_copy(page: Page) -> None:
    async with running(**AUTH) as console:
        told = (await ask(console, "sk-alice", "Alice has locker 7741")).json()
        await page.goto(console.url(f"#token={TOKEN}"))
        await page.get_by_role("link", name="Alice has locker 7741").click()
        await expect(page.get_by_role("link", name="Continue in chat")).to_have_count(0)
        await page.goto(console.url(f"#/chat/{told['conversation_id']}"))
        await expect(page.get_by_text("This conversation belongs to another tenant.")).to_be_visible()
        await expect(page.get_by_role("textbox", name="Message")).to_have_count(0)
        await page.get_by_role("button", name="Try in a copy").click()
        await expect(page.get_by_role("combobox", name="Model")).to_have_value("sim-8k")
        await page.get_by_role("textbox", name="Message").fill("Which locker does Alice have?")
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_role("link", name="What the model saw for message 3")).to_be_visible()
        headers = {"Authorization": "Bearer sk-alice"}
        log = await console.client.get(f"/v1/conversations/{told['conversation_id']}/items", headers=headers)
        assert len(log.json()["data"]) == 2, "nothing was written into Alice's conversation"
        assert page.url != console.url(f"#/chat/{told['conversation_id']}")
        await enter(page, console, "conversations")
        await page.goto(console.url("#/conversations"))
        await expect(page.locator("button.tenant").filter(has_text="operator")).to_have_count(1)
        await page.goto("about:blank")


@pytest.mark.parametrize("mode", ["open", "keys"])
async def test_a_link_of_an_earlier_start_says_so(page: Page, watch: Watch, mode: str) -> None:
    watch.allow("401")
    async with running(auth={"operator_token": TOKEN, "mode": mode}) as console:
        await page.goto(console.url("#token=cop_" + "f" * 43))
        await expect(page.get_by_text("This link is from an earlier start of the gateway.")).to_be_visible()
        await page.goto(console.url(f"#token={TOKEN}"))
        await expect(page.get_by_role("heading", name="Conversations")).to_be_visible()
        await expect(page.get_by_text("earlier start")).to_have_count(0)
        await page.goto("about:blank")


async def test_a_visitor_without_a_key_learns_how_to_see_all(page: Page) -> None:
    async with running(**AUTH) as console:
        await ask(console, "sk-alice", "Alice has locker 7741")
        await page.goto(console.url())
        await expect(page.get_by_text("The link in the gateway’s start line shows all of them.")).to_be_visible()
        await expect(page.get_by_text("Alice has locker 7741")).to_have_count(0)
        await page.goto("about:blank")


async def test_new_requests_appear_by_themselves(page: Page) -> None:
    async with running(**AUTH) as console:
        await enter(page, console, "requests")
        await expect(page.get_by_text("Nothing was asked yet.")).to_be_visible()
        await ask(console, "sk-alice", "Hello")
        await expect(page.locator("table.requests tbody tr")).to_have_count(1)
        await page.get_by_role("button", name="Pause").click()
        await ask(console, "sk-alice", "Hello again")
        await page.wait_for_timeout(3500)
        await expect(page.locator("table.requests tbody tr")).to_have_count(1)
        await page.get_by_role("button", name="Go on").click()
        await expect(page.locator("table.requests tbody tr")).to_have_count(2)
        await page.goto("about:blank")


async def test_a_tenant_with_a_name_is_shown_by_it(page: Page) -> None:
    async with running(**AUTH) as console:
        for headers in ({}, {"Authorization": f"Bearer {TOKEN}"}, {"Authorization": "Bearer sk-alice"}):
            body = {"model": "sim-8k", "messages": [{"role": "user", "content": "Hello"}]}
            assert (await console.client.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200
        await enter(page, console, "conversations")
        tenants = page.locator("button.tenant")
        await expect(tenants).to_have_count(3)
        first, *named = sorted(await tenants.all_inner_texts(), key=lambda text: not text.startswith("…"))
        assert (len(first), sorted(named)) == (7, ["anonymous", "operator"])


async def test_costs_are_added_up_by_key_tenant_and_model(page: Page) -> None:
    prices: dict[str, Any] = {"models": {"m": {"provider": "upstream", "price": {"input": 1000.0, "output": 1000.0}}}}
    async with scripted(page, ScriptedUpstream(default=answering), **AUTH, **prices) as console:
        operator = {"Authorization": f"Bearer {TOKEN}"}
        budget = {"name": "team blue", "budget_usd": 20}
        assert (await console.client.post("/v1/admin/keys", json=budget, headers=operator)).status_code == 200
        for secret in ("sk-alice", "sk-bob", "sk-bob"):
            assert (await ask(console, secret, "Hello", model="m")).status_code == 200
        await enter(page, console, "costs")
        rows = page.get_by_role("region", name="Costs").locator("tbody tr")
        await expect(rows).to_have_count(2)
        await page.get_by_role("button", name="Models").click()
        await expect(rows).to_have_count(1)
        await expect(rows.first).to_contain_text("3")
        await page.get_by_role("button", name="Tenants").click()
        await page.get_by_role("button", name="Requests").click()
        await expect(rows.first.locator("td").nth(2)).to_have_text("2")
        await expect(page.get_by_text("team blue")).to_be_visible()
        await expect(page.get_by_role("meter", name="Spent by team blue")).to_have_attribute("aria-valuemax", "20")
        await expect(page.locator(".budgets")).to_contain_text("at the end of the month")
        await expect(page.locator(".chart canvas")).to_be_visible()
        await page.get_by_role("button", name="Show as table").click()
        today = page.get_by_role("region", name="Table: What was spent on each day").locator("tbody tr").last
        shown = await today.locator("td").all_inner_texts()
        assert len(shown) == 2
        assert all(text.startswith("$") and text != "$0.00" for text in shown)
        spent = [float(text.removeprefix("$")) for text in shown]
        await expect(page.locator(".page-facts")).to_contain_text(f"${sum(spent):g} in all")
        await looked_at(page, "costs")
        await page.get_by_role("button", name="90 days").click()
        await expect(page.get_by_role("region", name="Table").locator("tbody tr")).to_have_count(90)


async def test_the_holder_of_a_key_sees_its_own_costs(page: Page) -> None:
    values: dict[str, Any] = {
        "models": {"m": {"provider": "upstream", "price": {"input": 1000.0, "output": 1000.0}}},
        "auth": {"operator_token": TOKEN, "mode": "keys"},
    }
    async with scripted(page, ScriptedUpstream(default=answering), **values) as console:
        operator = {"Authorization": f"Bearer {TOKEN}"}
        secrets = []
        for wish in ({"name": "A team with a rather long name", "budget_usd": 1}, {"name": "Others"}):
            made = await console.client.post("/v1/admin/keys", json=wish, headers=operator)
            secrets.append(made.json()["key"])
        for secret in (secrets[0], secrets[1], secrets[1]):
            assert (await ask(console, secret, "Hello", model="m", max_tokens=9)).status_code == 200
        await page.goto(console.url(f"#token={secrets[0]}"))
        await expect(page.get_by_role("heading", name="Conversations")).to_be_visible()
        await page.goto(console.url("#/costs"))
        row = page.get_by_role("region", name="Costs").locator("tbody tr")
        await expect(row).to_have_count(1)
        await expect(row.locator("td").nth(2)).to_have_text("1")
        await expect(page.get_by_role("meter", name="Spent by A team with a rather long name")).to_be_visible()
        await expect(page.get_by_role("link", name="Costs")).to_be_visible()
        await expect(page.get_by_role("link", name="Requests")).to_have_count(0)
        await looked_at(page, "costs-of-a-key")
        await page.set_viewport_size({"width": 400, "height": 800})
        name = page.locator(".budgets strong")
        assert (await name.bounding_box())["height"] < 60  # type: ignore[index]  # it is visible


async def test_a_key_is_revoked_on_a_phone_without_moving_sideways(page: Page) -> None:
    async with running(**AUTH) as console:
        operator = {"Authorization": f"Bearer {TOKEN}"}
        for name in ("red", "blue"):
            wish = {"name": name, "budget_usd": 5}
            assert (await console.client.post("/v1/admin/keys", json=wish, headers=operator)).status_code == 200
        await page.set_viewport_size({"width": NARROW_WIDTH, "height": 800})
        await enter(page, console, "keys")
        row = page.get_by_role("row", name="red")
        await expect(row).to_contain_text("$0.00 of $5.00")
        box = await page.get_by_role("button", name="Revoke red…").bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= NARROW_WIDTH
        await page.get_by_role("button", name="Revoke red…").click()
        await page.get_by_role("button", name="Revoke for good").click()
        await expect(row).to_contain_text("revoked")
        await looked_at(page, "keys-on-a-phone")
        await page.get_by_role("link", name="blue").click()
        await expect(page).to_have_url(re.compile(r"#/requests\?key_id="))
        await page.goto("about:blank")


async def test_a_failed_request_says_what_to_do_and_leads_there(page: Page, watch: Watch) -> None:
    watch.allow("40[0-9]")
    failing = ScriptedUpstream(default=lambda _: Reply(status=503, body={"error": {"message": "Busy"}}))
    async with scripted(page, failing, **AUTH) as console:
        for _ in range(2):
            await ask(console, "sk-alice", "Hello", model="m")
        await enter(page, console, "overview")
        alert = page.get_by_role("alert")
        await expect(alert).to_contain_text("upstream/m")
        await expect(alert).to_contain_text("6 of 6 calls failed since the start (6 server error)")
        await expect(page.get_by_role("region", name="Models").get_by_role("row").nth(1)).not_to_contain_text("called")
        await looked_at(page, "overview-failing")
        await alert.get_by_role("link", name="Its requests with errors").click()
        rows = page.locator("table.requests tbody tr")
        await expect(rows).to_have_count(2)
        await page.set_viewport_size({"width": NARROW_WIDTH, "height": 800})
        await expect(rows.first.locator("code:visible")).to_have_text("upstream_refused")
        await rows.first.get_by_role("link").first.click()
        advice = page.locator(".advice")
        await expect(advice).to_contain_text("upstream answered with an error of its own")
        await looked_at(page, "request-advice")
        await advice.get_by_role("link").click()
        await expect(page).to_have_url(re.compile(r"#/requests\?outcome=error&provider=upstream$"))
        await page.goto("about:blank")


async def test_a_gateway_without_a_provider_says_how_to_get_one(page: Page) -> None:
    async with running(**AUTH) as console:
        await enter(page, console, "costs")
        await page.get_by_role("link", name="Simulated model").click()
        await expect(page.get_by_role("heading", name="No provider is configured")).to_be_visible()
        await looked_at(page, "settings-without-provider")
        await page.goto("about:blank")


async def test_the_budget_of_a_key_is_changed(page: Page) -> None:
    async with running(**AUTH) as console:
        operator = {"Authorization": f"Bearer {TOKEN}"}
        assert (await console.client.post("/v1/admin/keys", json={"name": "red"}, headers=operator)).status_code == 200
        await enter(page, console, "keys")
        row = page.get_by_role("row", name="red")
        for budget, shown in (("12.5", "$0.00 of $12.50"), ("", "$0.00")):
            await page.get_by_role("button", name="Budget of red…").click()
            await page.get_by_label("Budget, $ a month").fill(budget)
            if budget:
                await looked_at(page, "key-budget")
            await page.get_by_role("button", name="Change", exact=True).click()
            await expect(row.locator("td").nth(5)).to_have_text(shown)


async def test_settings_are_searched_and_secrets_are_hidden(page: Page) -> None:
    async with running(**AUTH) as console:
        await enter(page, console, "settings")
        token = page.get_by_role("row", name="auth.operator_token")
        await expect(token).to_be_visible()
        assert TOKEN not in await page.content()
        await looked_at(page, "settings")
        await page.get_by_role("searchbox", name="Search settings").fill("threshold_ratio additive")
        await expect(page.locator(".settings-table tbody tr")).to_have_count(1)
        await expect(page.get_by_text("0.7", exact=True)).to_be_visible()
        await page.get_by_role("searchbox", name="Search settings").fill("")
        await page.get_by_role("button", name="Only what is set").click()
        await expect(page.get_by_role("row", name="auth.operator_token")).to_be_visible()
        await expect(page.get_by_role("row", name="server.port")).to_have_count(0)


async def test_limits_that_refusals_have_taught_are_shown_and_cleared(page: Page) -> None:
    message = "This model's maximum context length is 2000 tokens. However, your messages resulted in 3000 tokens."
    replies = iter([Reply({"error": {"message": message}}, 400), None])

    def refusing_once(body: dict[str, Any]) -> Reply:
        return (None if is_summary(body) else next(replies, None)) or answering(body)

    async with scripted(page, ScriptedUpstream(default=refusing_once), **AUTH) as console:
        talk = [{"role": role, "content": question(n)} for n in range(6) for role in ("user", "assistant")]
        await ask(console, "sk-alice", "", model="m", messages=[*talk, {"role": "user", "content": question(6)}])
        await enter(page, console, "settings")
        row = page.get_by_role("row", name="upstream/m")
        await expect(row).to_contain_text("2,000")
        await looked_at(page, "learned-limits")
        await page.get_by_role("button", name="Clear the limit of upstream/m").click()
        await expect(page.get_by_text("Limits learned from refusals")).to_have_count(0)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("requests", "Only an operator may see requests."),
        ("settings", "Only an operator may see settings."),
    ],
)
async def test_others_are_told_how_to_become_operators(page: Page, watch: Watch, place: str, words: str) -> None:
    watch.allow("403")
    async with running(**AUTH) as console:
        await page.goto(console.url(f"#/{place}"))
        await expect(page.get_by_text(words)).to_be_visible()
        await page.goto("about:blank")


async def test_a_gateway_that_keeps_no_requests_says_so(page: Page, watch: Watch) -> None:
    watch.allow("404")
    async with running(**AUTH, telemetry={"recent_requests": 0}) as console:
        await enter(page, console, "requests")
        await expect(page.get_by_text("The gateway keeps no requests.")).to_be_visible()
        await page.goto("about:blank")


@pytest.mark.parametrize("place", ["requests", "costs", "settings"])
async def test_nothing_is_wider_than_a_phone(page: Page, place: str) -> None:
    async with running(**AUTH) as console:
        await ask(console, "sk-alice", "Hello")
        await page.set_viewport_size({"width": NARROW_WIDTH, "height": 800})
        await enter(page, console, place)
        await expect(page.locator("h1")).to_be_visible()
        await page.wait_for_timeout(300)
        assert await page.evaluate("document.documentElement.scrollWidth") <= NARROW_WIDTH
        await page.goto("about:blank")


@pytest.mark.parametrize("place", ["requests", "costs", "settings", "overview", "conversations", "log"])
async def test_content_begins_near_the_top_of_a_phone(page: Page, place: str) -> None:
    async with running(**AUTH) as console:
        answer = (await ask(console, "sk-alice", "Hello", model="sim-8k-" + "long-name-" * 20)).json()
        await ask(console, "sk-alice", "", messages="no list")
        await page.set_viewport_size({"width": NARROW_WIDTH, "height": 800})
        await enter(page, console, f"conversations/{answer['conversation_id']}" if place == "log" else place)
        content = page.locator(".log > .row" if place == "log" else ".panel, table.data, .tile").first
        await expect(content).to_be_visible()
        box = await content.bounding_box()
        assert box is not None
        assert box["y"] <= CONTENT_BEGINS_PX
        assert await page.evaluate("document.documentElement.scrollWidth") <= NARROW_WIDTH
        await page.goto("about:blank")


async def test_the_table_of_requests_is_shown_whole(page: Page) -> None:
    async with running(**AUTH) as console:
        await ask(console, "sk-alice", "Hello", model="sim-8k-" + "long-name-" * 20)
        await ask(console, "sk-bob", "Hello", model="sim-8k!status=418,first=1")
        await page.set_viewport_size({"width": 1440, "height": 900})
        await enter(page, console, "requests")
        for width in (1440, 1200, 900, NARROW_WIDTH):
            await page.set_viewport_size({"width": width, "height": 800})
            await expect(page.locator("table.requests")).to_be_visible()
            await page.wait_for_function(
                "() => { const one = document.querySelector('table.requests');"
                " return one.scrollWidth <= one.parentElement.clientWidth }"
            )
        await page.goto("about:blank")
