"""An operator finds a conversation without knowing whose it is."""

from __future__ import annotations

from msgspec.structs import replace

from app.conversation.identity import make_conversation_id
from app.store.contract.store import Store
from tests.store.example_logs import NOON, begin, fresh_tenant, random_bytes


async def test_a_conversation_is_looked_up_by_its_id_alone(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, _ = await begin(store, tenant, ["user hi", "assistant hello"], external_id="chat-7")
    found = await store.find_conversation_of_any_tenant(conversation.id)
    assert found is not None
    assert (found.id, found.tenant, found.head_seq) == (conversation.id, tenant, 1)
    assert replace(found, external_id=None) == replace(conversation, external_id=None, created_at=NOON, updated_at=NOON)


async def test_only_ids_of_ours_are_looked_up(store: Store) -> None:
    tenant = fresh_tenant()
    conversation, _ = await begin(store, tenant, ["user hi"], external_id="chat-8")
    assert await store.find_conversation_of_any_tenant("chat-8") is None
    assert await store.find_conversation_of_any_tenant(make_conversation_id(conversation.root, random_bytes)) is None
