"""Responses with `store: false`: kept for continuing only, in a tenant that nobody can name."""

from __future__ import annotations

from typing import Any

from app.conversation.api_keys import derive_context_tenant, extract_application_tenant, is_context_tenant
from app.store.contract.conversations import CompletionQuery, ConversationQuery
from tests.support.responses_turns import ResponsesTurns, said, said_by

CONTEXT_ONLY: dict[str, Any] = {"store": False, "keeps_context_only": True}


def told(*texts: str) -> list[dict[str, Any]]:
    return [said_by("assistant" if index % 2 else "user", text) for index, text in enumerate(texts)]


async def listed(turns: ResponsesTurns, tenant: str) -> list[str]:
    return [one.id for one in await turns.store.list_conversations(tenant=tenant, query=ConversationQuery(limit=99))]


def test_the_tenant_is_the_applications() -> None:
    for tenant in ("app", "app/0123456789abcdef0123456789abcdef"):
        derived = derive_context_tenant(tenant)
        assert is_context_tenant(derived)
        assert not is_context_tenant(tenant)
        assert extract_application_tenant(derived) == "app"


async def test_a_resent_history_continues_and_nobody_sees_it(turns: ResponsesTurns) -> None:
    first = await turns.ask(told("Where is the key?"), said("It lies below the mat."), **CONTEXT_ONLY)
    history = told("Where is the key?", "It lies below the mat.", "And the mat?")
    second = await turns.ask(history, said("Before the door."), **CONTEXT_ONLY)
    assert second.conversation.id == first.conversation.id
    assert second.conversation.head_seq == 3
    assert second.conversation.tenant == derive_context_tenant(turns.tenant)
    assert "context_hours" in second.resolved_request.warnings[0]
    assert await listed(turns, turns.tenant) == []
    found = await turns.store.find_conversation(tenant=turns.tenant, conversation_id=first.conversation.id)
    assert found is None
    for tenant in (turns.tenant, first.conversation.tenant):
        assert await turns.store.list_completions(tenant=tenant, query=CompletionQuery(limit=9)) == []


async def test_nothing_is_kept_if_the_operator_wants_that(turns: ResponsesTurns) -> None:
    turn = await turns.ask(told("Hello"), store=False)
    assert not turn.resolved_request.storage.is_stored
    assert turn.resolved_request.warnings == ("`store: false`: nothing of this turn is kept.",)
    assert await listed(turns, turns.tenant) == await listed(turns, derive_context_tenant(turns.tenant)) == []


async def test_a_conversation_that_is_stored_later_begins_anew_and_is_visible(turns: ResponsesTurns) -> None:
    first = await turns.ask(told("Hello"), said("Hi there, how can I help you today with this?"), **CONTEXT_ONLY)
    history = told("Hello", "Hi there, how can I help you today with this?", "Like so.")
    second = await turns.ask(history)
    assert second.conversation.id != first.conversation.id
    assert await listed(turns, turns.tenant) == [second.conversation.id]
    assert second.resolved_request.warnings == ()


async def test_what_is_visible_does_not_grow_by_what_is_not_to_be_stored(turns: ResponsesTurns) -> None:
    first = await turns.ask("Hello", said("Hi."))
    turn = await turns.ask("Secret", conversation=first.conversation.id, **CONTEXT_ONLY)
    assert not turn.resolved_request.storage.is_stored
    assert turn.resolved_request.next_seq == 3
    assert await turns.log(
        (await turns.ask("Go on", said("On."), conversation=first.conversation.id)).conversation
    ) == [
        "Hello",
        "Hi.",
        "Go on",
        "On.",
    ]


async def test_the_clients_own_id_names_a_conversation_of_each_kind(turns: ResponsesTurns) -> None:
    first = await turns.ask("Hello", said("Hi."), conversation="chat-1", **CONTEXT_ONLY)
    second = await turns.ask("Go on", said("On."), conversation="chat-1", **CONTEXT_ONLY)
    assert second.conversation.id == first.conversation.id
    assert await turns.log(second.conversation) == ["Hello", "Hi.", "Go on", "On."]
    named = await turns.ask("More", said("Well."), conversation=first.conversation.id, **CONTEXT_ONLY)
    assert named.conversation.head_seq == 5
    visible = await turns.ask("Hello", said("Hi."), conversation="chat-1")
    assert await turns.log(visible.conversation) == ["Hello", "Hi."]


async def test_tenants_do_not_meet(turns: ResponsesTurns) -> None:
    first = await turns.ask(told("Where is the key?"), said("It lies below the mat."), **CONTEXT_ONLY)
    history = told("Where is the key?", "It lies below the mat.", "And the mat?")
    foreign = await turns.ask(history, tenant="another", **CONTEXT_ONLY)
    assert foreign.conversation.id != first.conversation.id
    assert foreign.resolved_request.creates_conversation


async def test_two_agents_with_the_same_words_stay_apart(turns: ResponsesTurns) -> None:
    first = await turns.ask(told("Hello"), said("Hi."), **CONTEXT_ONLY)
    other = await turns.ask(told("Hello"), said("Hi."), **CONTEXT_ONLY)
    assert other.conversation.id != first.conversation.id
    third = await turns.ask(told("Hello", "Hi.", "What now?"), **CONTEXT_ONLY)
    assert third.conversation.id not in (first.conversation.id, other.conversation.id)
