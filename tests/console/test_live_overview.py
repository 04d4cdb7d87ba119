"""The overview in a browser: its numbers are the API's, and who may not see it is told why."""

from __future__ import annotations

import json
from typing import Any

from playwright.async_api import Page, Route, expect

from tests.console.browser import Watch
from tests.console.scenery import Console, Filled, running
from tests.console.scripted import looked_at

SAMPLES = 40


async def overview(console: Console) -> dict[str, Any]:
    told: dict[str, Any] = await console.get("admin/overview")
    return told


async def open_overview(page: Page, console: Console) -> None:
    await page.goto(console.url("#/overview"))
    await expect(page.get_by_label("Since the start")).to_be_visible()


def value(page: Page, label: str) -> Any:
    return page.locator(".numbers > div", has=page.get_by_text(label, exact=True)).locator(".value")


async def test_an_empty_gateway_says_what_to_do(console: Console, page: Page) -> None:
    await open_overview(page, console)
    await expect(page.get_by_text("Nothing was asked yet.")).to_be_visible()
    await expect(page.get_by_text("No model was asked yet.")).to_be_visible()
    await expect(value(page, "Cost")).to_have_text("–")
    await looked_at(page, "overview-empty")


async def test_the_numbers_are_those_of_the_api(filled: Filled, page: Page) -> None:
    told = await overview(filled)
    totals = told["totals"]
    await open_overview(page, filled)
    for label, name in (("Tokens sent", "prompt_tokens"), ("Tokens saved", "saved_tokens")):
        await expect(value(page, label)).to_have_attribute("title", f"{totals[name]:,}")
    row = page.get_by_role("region", name="Models").get_by_role("row").nth(1)
    model = told["models"][0]
    await expect(row).to_contain_text(model["model"])
    await expect(row).to_contain_text(f"{model['prompt_tokens']:,}")
    for status, number in totals["statuses"].items():
        if number:
            shown = page.locator("section", has=page.get_by_role("heading", name="Answers by status"))
            await expect(shown.get_by_role("row", name=status)).to_contain_text(f"{number:,}")


async def test_the_last_hour_is_drawn_and_can_be_read_as_a_table(filled: Filled, page: Page) -> None:
    told = await overview(filled)
    samples = [
        {
            "at": 1_795_000_000 + 10 * at,
            "requests": 3 * at,
            "errors": at // 9,
            "refusals": 0,
            "prompt_tokens": 1000 * at,
            "saved_tokens": 700 * at * at,
            "cached_tokens": 0,
            "cost_usd": None,
            "compactions": 0,
            "first_byte_p95_seconds": None if at % 7 == 0 else 0.02 * at,
        }
        for at in range(SAMPLES)
    ]
    body = {**told, "series": {"interval_seconds": 10, "samples": samples}}
    await page.route("**/v1/admin/overview", lambda route: route.fulfill(json=body))
    await open_overview(page, filled)
    await expect(value(page, "Requests per second")).to_have_text("0.30")
    await expect(page.locator(".chart canvas")).to_have_count(4)
    tokens = page.locator("section", has=page.get_by_role("heading", name="Tokens", exact=True))
    await tokens.get_by_role("button", name="Show as table").click()
    rows = tokens.locator(".chart-table tbody tr")
    await expect(rows).to_have_count(SAMPLES)
    cells = await rows.nth(5).locator("td").all_inner_texts()
    assert cells == [f"{700 * (25 - 16):,}", "1,000", "0"]
    await looked_at(page, "overview")


async def test_it_is_refreshed_and_tells_when_it_is_old(filled: Filled, page: Page, watch: Watch) -> None:
    watch.allow("503|ERR_FAILED")
    told = await overview(filled)
    asked = 0

    async def answer(route: Route) -> None:
        nonlocal asked
        asked += 1
        if asked > 2:
            error = {"error": {"message": "The database cannot be reached.", "code": "store_unavailable"}}
            await route.fulfill(status=503, body=json.dumps(error), content_type="application/json")
            return
        await route.fulfill(json={**told, "now": {**told["now"], "requests_in_flight": 40 + asked}})

    await page.clock.install()
    await page.route("**/v1/admin/overview", answer)
    await open_overview(page, filled)
    await expect(value(page, "Requests now")).to_have_text("41")
    await page.clock.run_for(5_100)
    await expect(value(page, "Requests now")).to_have_text("42")
    await page.clock.run_for(5_100)
    await expect(page.get_by_role("alert")).to_contain_text("These numbers are old: The database cannot be reached.")
    await expect(value(page, "Requests now")).to_have_text("42")


async def test_it_may_be_switched_off(page: Page, watch: Watch) -> None:
    watch.allow("404")
    async with running(telemetry={"metrics": False}) as console:
        await page.goto(console.url("#/overview"))
        await expect(page.get_by_text("The overview is switched off.")).to_be_visible()
        await expect(page.get_by_text("telemetry.metrics: true")).to_be_visible()


async def test_a_key_without_the_scope_is_told_what_it_takes(filled: Filled, page: Page, watch: Watch) -> None:
    watch.allow("403")
    error = {"error": {"message": "This key lacks the scope 'admin'.", "code": "insufficient_permissions"}}
    await page.route(
        "**/v1/admin/overview",
        lambda route: route.fulfill(status=403, body=json.dumps(error), content_type="application/json"),
    )
    await page.goto(filled.url("#/overview"))
    await expect(page.get_by_text("This key may not see the overview.")).to_be_visible()
    await expect(page.get_by_text("concertina keys create")).to_be_visible()


async def test_names_of_models_and_codes_do_nothing(filled: Filled, page: Page) -> None:
    hostile = "<img src=x onerror='window.pwned = 1'>"
    told = await overview(filled)
    models = [{**told["models"][0], "model": hostile, "provider": hostile}]
    body = {**told, "models": models, "errors": [{"code": hostile, "status": 500, "count": 1}]}
    await page.route("**/v1/admin/overview", lambda route: route.fulfill(json=body))
    await open_overview(page, filled)
    await expect(page.get_by_text(hostile)).to_have_count(3)
    assert await page.evaluate("window.pwned") is None


async def test_errors_are_as_many_as_the_table_beside_them_says(filled: Filled, page: Page) -> None:
    told = await overview(filled)
    errors = [{"code": "model_not_found", "status": 404, "count": 7}, {"code": "overloaded", "status": 503, "count": 2}]
    totals = {**told["totals"], "requests": 90, "errors": 2, "refusals": 7}
    body = {**told, "simulated": True, "errors": errors, "totals": totals}
    await page.route("**/v1/admin/overview", lambda route: route.fulfill(json=body))
    await open_overview(page, filled)
    await expect(value(page, "Errors")).to_have_text("9")
    await expect(page.get_by_text("2 failures, 7 client errors, 10.0 % of 90 requests")).to_be_visible()
    await expect(page.get_by_role("row", name="model_not_found")).to_contain_text("client error")
    await expect(page.get_by_role("row", name="overloaded")).to_contain_text("failure")
    await expect(page.get_by_text("the simulated model is free")).to_be_visible()


async def test_a_deployment_that_gets_no_calls_is_told_first(filled: Filled, page: Page) -> None:
    told = await overview(filled)
    failures = {"timeout": 3, "rate_limited": 2}
    broken = {**told["models"][0], "provider": "openai", "errors": 5, "failures": failures, "breaker_open": True}
    errors = [{"code": "invalid_" + "long_" * 6 + "code", "status": 400, "count": 3}]
    body = {**told, "models": [broken], "errors": errors}
    await page.route("**/v1/admin/overview", lambda route: route.fulfill(json=body))
    await open_overview(page, filled)
    await expect(page.get_by_role("alert")).to_contain_text(f"openai/{broken['model']} gets no calls for a while")
    row = page.get_by_role("region", name="Models").get_by_role("row").nth(1)
    await expect(row).to_contain_text("3 timeout, 2 rate limited")
    await looked_at(page, "overview-broken")
    await page.set_viewport_size({"width": 400, "height": 800})
    code = await page.locator("table.errors code").bounding_box()
    assert code is not None
    assert code["height"] < 30  # one line


async def test_charts_reach_over_a_day_and_a_week(filled: Filled, page: Page) -> None:
    told = await overview(filled)
    sample = dict.fromkeys(told["series"]["samples"][0], 0)
    samples = [{**sample, "at": 1_795_000_000 + 1800 * at, "requests": 9 * at} for at in range(300)]
    week = {**told, "series": {"interval_seconds": 1800, "samples": samples}}
    await page.route("**/v1/admin/overview?range=week", lambda route: route.fulfill(json=week))
    await open_overview(page, filled)
    await page.get_by_role("button", name="Week").click()
    await expect(page.get_by_text("last 6 days").first).to_be_visible()
    await expect(page.locator(".chart canvas")).to_have_count(4)
    assert page.url.endswith("#/overview?range=week")
    await page.set_viewport_size({"width": 1440, "height": 900})
    tops = await page.locator(".overview-charts > section").evaluate_all("all => all.map(one => one.offsetTop)")
    assert tops[0] == tops[1] < tops[2] == tops[3]
    await looked_at(page, "overview-week")


async def test_looking_at_the_console_is_no_traffic(filled: Filled, page: Page) -> None:
    before = (await overview(filled))["totals"]
    for place in ("#/conversations", "#/chat", "#/overview"):
        await page.goto(filled.url(place))
        await page.wait_for_load_state("networkidle")
    after = (await overview(filled))["totals"]
    assert (after["requests"], after["refusals"]) == (before["requests"], before["refusals"])
