"""A client that looks at conversations, and changes what stands for their old messages."""

from __future__ import annotations

from typing import Any

import httpx

from tests.support.gateway import World, user

KEY = "sk-one"
WINDOW = 4096


async def call(
    gateway: World, method: str, path: str, *, key: str = KEY, json: Any = None, **query: Any
) -> httpx.Response:
    """A request below `/conversations`."""
    return await gateway.client.request(
        method,
        f"{gateway.base_url}/conversations/{path}",
        params=query or None,
        json=json,
        headers={"authorization": f"Bearer {key}"},
    )


async def done(gateway: World, method: str, path: str, **options: Any) -> dict[str, Any]:
    """The body of an answer that must succeed."""
    answer = await call(gateway, method, path, **options)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def refused(gateway: World, status: int, method: str, path: str, **options: Any) -> dict[str, Any]:
    """The error of an answer that must be refused."""
    answer = await call(gateway, method, path, **options)
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def question(number: int, words: int = 60) -> str:
    """Each unlike all others."""
    return f"Question {number}: " + " ".join(f"item{number}n{word}" for word in range(words))


async def talk(gateway: World, turns: int, *, words: int = 60, first: int = 0, **fields: Any) -> dict[str, Any]:
    """An appending client's conversation `c`; the last answer."""
    body: dict[str, Any] = {}
    for number in range(first, first + turns):
        body = await gateway.say([user(question(number, words))], conversation="c", **fields)
    return body


async def every_message(gateway: World, path: str, **query: Any) -> list[dict[str, Any]]:
    """All messages of a view, page by page."""
    found: list[dict[str, Any]] = []
    while True:
        page = (await done(gateway, "GET", path, **query))["messages"]
        found += page["data"]
        if not page["has_more"]:
            return found
        query["after"] = page["last_id"]
