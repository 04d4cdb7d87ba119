"""Who is let in: keys of the gateway's own, and the tenants that they stand for."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any

from pytest_bdd import given, then, when

from app.conversations.api_keys import ApiKeys, NewApiKey
from tests.behaviour.steps.words import step
from tests.behaviour.talk import Talk


@given("the gateway lets in holders of its own keys only")
def _(talk: Talk) -> None:
    talk.configure("auth", {"mode": "keys", "cache_seconds": 0})


@given("the gateway keeps end users apart")
def _(talk: Talk) -> None:
    talk.configure("auth", {"end_users": True})


@given(step('the key "{name}" of "{tenant}"'))
def _(talk: Talk, name: str, tenant: str) -> None:
    _make(talk, name, tenant)


@given(step('the key "{name}" of "{tenant}" with the scopes "{scopes}"'))
def _(talk: Talk, name: str, tenant: str, scopes: str) -> None:
    _make(talk, name, tenant, scopes=tuple(scopes.split(", ")))


@given(step('the key "{name}" of "{tenant}" for the models "{models}"'))
def _(talk: Talk, name: str, tenant: str, models: str) -> None:
    _make(talk, name, tenant, models=tuple(models.split(", ")))


@given(step('the key "{name}" of "{tenant}" with the policy "{policy}"'))
def _(talk: Talk, name: str, tenant: str, policy: str) -> None:
    _make(talk, name, tenant, policy=policy)


@given(step('the key "{name}" has been revoked'))
def _(talk: Talk, name: str) -> None:
    (key,) = (one for one in talk.run(_issuing(talk).list_keys()) if one.name == name)
    talk.run(_issuing(talk).revoke_key(key.id))


@when(step('the user says "{text}" with the key "{name}"'))
def _(talk: Talk, text: str, name: str) -> None:
    talk.say({"role": "user", "content": text}, headers=_shown(talk, name))


@when(step('"{name}" asks for that conversation by its id'))
def _(talk: Talk, name: str) -> None:
    named = {"x-conversation-id": talk.answer.body["conversation_id"]}
    talk.say({"role": "user", "content": "Where were we?"}, headers={**_shown(talk, name), **named})


@then("each answer names another conversation")
def _(talk: Talk) -> None:
    assert len({answer.body["conversation_id"] for answer in talk.answers}) == len(talk.answers)


@then("the last answer names another conversation than those before")
def _(talk: Talk) -> None:
    *before, last = (answer.body["conversation_id"] for answer in talk.answers)
    assert last
    assert last not in before


@then("the model was never asked")
def _(talk: Talk) -> None:
    assert talk.model.calls == []


def _make(talk: Talk, name: str, tenant: str, **wish: Any) -> None:
    talk.secrets[name], _key = talk.run(_issuing(talk).create_key(NewApiKey(name=name, tenant=tenant, **wish)))


def _shown(talk: Talk, name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {talk.secrets[name]}"}


def _issuing(talk: Talk) -> ApiKeys:
    """Keys in the store of the gateway, which runs from now on."""
    talk.run(talk.start())
    assert talk.store is not None
    return ApiKeys(
        talk.store,
        usage=talk.store,
        policies=["prune"],
        now=lambda: datetime.now(UTC),
        random_bytes=secrets.token_bytes,
    )
