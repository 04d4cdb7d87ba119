"""`concertina keys create|list|update|revoke`: manages the gateway's own API keys, directly in its database."""

from __future__ import annotations

import argparse
import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.api.admin.api_keys import build_key_object
from app.commands import CommandError, make_printable, parse_duration
from app.commands.check_config import warn_of_unpriced_models
from app.commands.configured_store import open_configured_store, prepare_configured_database, require_database
from app.commands.progress import pluralize
from app.conversation.api_keys import ApiKey
from app.conversations.api_keys import DEFAULT_SCOPES, ApiKeys, NewApiKey
from app.settings import Settings, load_settings

PLAIN_OUTPUT_WIDTH: Final = 160
MIN_ID_CHARS: Final = len("key_5f0c")
"""How much of an id names a key: an empty variable of a script must not name the only key."""


def run(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments.config)
    if arguments.action != "create":
        require_database(settings)
    prepare_configured_database(settings, "keys in")
    actions = {"create": _create_key, "list": _list_keys, "update": _update_key, "revoke": _revoke_key}
    asyncio.run(actions[arguments.action](settings, arguments))
    return 0


async def _create_key(settings: Settings, arguments: argparse.Namespace) -> None:
    new_key = NewApiKey(
        name=arguments.name,
        tenant=arguments.tenant,
        scopes=tuple(_split_list(arguments.scopes)) or DEFAULT_SCOPES,  # type: ignore[arg-type]  # checked when issued
        policy=arguments.policy,
        models=tuple(_split_list(arguments.models)),
        expires_at=_parse_expiry(arguments),
        retention_days=arguments.retention_days,
        budget_usd=arguments.budget_usd,
        pass_through=None if arguments.pass_through is None else tuple(_split_list(arguments.pass_through)),
        requests_per_minute=arguments.requests_per_minute,
        tokens_per_minute=arguments.tokens_per_minute,
    )
    async with _open_api_keys(settings) as api_keys:
        secret, key = await api_keys.create_key(new_key)
    if arguments.json:
        _print_json({**build_key_object(key, {}), "key": secret})
        return
    # Alone on the first line, so that a script can take it from there.
    print(secret)
    print("The key is shown only now; the gateway stores nothing but its digest. Clients send it as their OpenAI key.")
    print(" · ".join(_describe_properties(key)))
    print(f"It is in the database {settings.database.location}")
    if arguments.tenant is None:
        print(f"Further keys that are to see the same conversations: --tenant {key.tenant}")
    for sentence in warn_of_unpriced_models(settings) if key.budget_usd is not None else ():
        print(f"Warning: {sentence}")
    if settings.auth.mode != "keys":
        print("Keys are required once `auth.mode: keys` is set. The mode is 'open' now: requests need no key.")


async def _list_keys(settings: Settings, arguments: argparse.Namespace) -> None:
    async with _open_api_keys(settings) as api_keys:
        keys = await api_keys.list_keys(arguments.tenant)
        costs = await api_keys.read_month_costs()
    if arguments.json:
        _print_json([build_key_object(key, costs) for key in keys])
    elif keys:
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=PLAIN_OUTPUT_WIDTH)
        console.print(_build_key_table(keys, costs))
    else:
        print(f"There are no keys. Make one with `concertina keys create --name NAME{settings.config_option}`.")


async def _update_key(settings: Settings, arguments: argparse.Namespace) -> None:
    budget_usd = _parse_budget(arguments.budget_usd)
    async with _open_api_keys(settings) as api_keys:
        key = await api_keys.change_budget(await _find_key_id(api_keys, arguments.key_id), budget_usd)
        costs = await api_keys.read_month_costs()
    if arguments.json:
        _print_json(build_key_object(key, costs))
        return
    budget = "has no budget" if budget_usd is None else f"may spend ${budget_usd:.2f} a month"
    print(f"{key.id} ({make_printable(key.name)}) {budget}, and has spent ${costs.get(key.id, 0.0):.2f} this month.")
    print(f"Running gateways notice within {settings.auth.cache_seconds:g} seconds.")


async def _revoke_key(settings: Settings, arguments: argparse.Namespace) -> None:
    async with _open_api_keys(settings) as api_keys:
        key = await api_keys.revoke_key(await _find_key_id(api_keys, arguments.key_id))
        costs = await api_keys.read_month_costs()
    if arguments.json:
        _print_json(build_key_object(key, costs))
    else:
        print(f"{key.id} ({make_printable(key.name)}) is {_describe_validity(key)}.")
        print(f"Running gateways notice within {settings.auth.cache_seconds:g} seconds.")


async def _find_key_id(api_keys: ApiKeys, text: str) -> str:
    """Returns the id of the key that an argument names: by its id or the beginning of it, its name or its last
    characters. If no key matches, the argument is returned.

    Raises:
        CommandError: several keys match.
    """
    keys = await api_keys.list_keys()
    hint = text.removeprefix("ck_").removeprefix("…")
    matches = [key for key in keys if text in (key.id, key.name) or hint == key.hint]
    matches = matches or [key for key in keys if len(text) >= MIN_ID_CHARS and key.id.startswith(text)]
    # A key that was replaced often has the name of its successor.
    matches = [key for key in matches if key.revoked_at is None] or matches
    if len(matches) > 1:
        lines = [f"  {key.id}: {make_printable(key.name)!r}, ck_…{key.hint}, tenant {key.tenant}" for key in matches]
        raise CommandError(f"{len(matches)} keys match {text!r}. Type the id of one of them:\n" + "\n".join(lines))
    return matches[0].id if matches else text


@asynccontextmanager
async def _open_api_keys(settings: Settings) -> AsyncIterator[ApiKeys]:
    async with open_configured_store(settings) as store:
        yield ApiKeys(store, usage=store, policies=settings.policies, now=_utc_now, random_bytes=secrets.token_bytes)


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _split_list(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _parse_budget(text: str) -> float | None:
    try:
        return None if text == "none" else float(text)
    except ValueError as error:
        raise CommandError(f"--budget-usd: expected US dollars, or none, not {text!r}.") from error


def _parse_expiry(arguments: argparse.Namespace) -> datetime | None:
    if arguments.expires_in is not None:
        return _utc_now() + parse_duration("--expires-in", arguments.expires_in)
    if arguments.expires_at is None:
        return None
    try:
        expires_at = datetime.fromisoformat(arguments.expires_at)
    except ValueError as error:
        raise CommandError(f"--expires-at: expected such as 2027-01-31, not {arguments.expires_at!r}.") from error
    # Without a time zone it is UTC, like every time in the database, wherever the command runs.
    return expires_at if expires_at.tzinfo else expires_at.replace(tzinfo=UTC)


def _describe_validity(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return f"revoked since {key.revoked_at:%Y-%m-%d %H:%M}"
    if key.expires_at is None:
        return "valid until it is revoked"
    expired = "" if key.is_valid_at(_utc_now()) else "expired, "
    return f"{expired}valid until {key.expires_at:%Y-%m-%d %H:%M}"


def _describe_properties(key: ApiKey) -> Iterator[str]:
    yield f"id {key.id}"
    yield f"tenant {key.tenant}"
    yield f"scopes {', '.join(key.scopes)}"
    yield f"models {', '.join(key.models)}" if key.models else "all models"
    if key.policy is not None:
        yield f"policy {key.policy}"
    yield "no budget" if key.budget_usd is None else f"budget ${key.budget_usd:,.2f} a month"
    if key.requests_per_minute is not None:
        yield f"{pluralize(key.requests_per_minute, 'request')} a minute"
    if key.tokens_per_minute is not None:
        yield f"{pluralize(key.tokens_per_minute, 'token')} a minute"
    if key.pass_through is not None:
        yield f"passes through {', '.join(key.pass_through) or 'nothing'}"
    if key.retention_days is not None:
        yield f"erases conversations that rest for {pluralize(key.retention_days, 'day')}"
    yield _describe_validity(key)


def _describe_spending(key: ApiKey, month_costs: Mapping[str, float]) -> str:
    spent = f"${month_costs.get(key.id, 0.0):.2f}"
    return spent if key.budget_usd is None else f"{spent} of ${key.budget_usd:.2f}"


def _build_key_table(keys: list[ApiKey], month_costs: Mapping[str, float]) -> Table:
    table = Table()
    rows = [
        {
            "id": key.id,
            "key": f"ck_…{key.hint}",
            "name": key.name,
            "tenant": key.tenant,
            "scopes": " ".join(key.scopes),
            "models": " ".join(key.models),
            "policy": key.policy or "",
            "this month": _describe_spending(key, month_costs),
            "validity": "valid" if key.revoked_at is None and key.expires_at is None else _describe_validity(key),
        }
        for key in keys
    ]
    # A terminal of 120 columns has room for what the keys have.
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    for name in names:
        table.add_column(name, no_wrap=name in ("id", "tenant"), overflow="fold")
    for row in rows:
        table.add_row(*(Text(make_printable(row[name])) for name in names))
    return table


def _print_json(value: object) -> None:
    print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
