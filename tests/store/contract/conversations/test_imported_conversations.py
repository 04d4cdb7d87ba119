"""Whole conversations that are imported and exported, and completions, through every store."""

from __future__ import annotations

import secrets
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from app.context.count.token_counter import TokenCounter
from app.context.count.tokenizers import load_tokenizer
from app.conversation.conversation_types import StoredCompletion
from app.conversations.stored_completions import StoredCompletions
from app.conversations.transfer.conversation_import import ConversationImporter
from app.conversations.transfer.message_export import ConversationExporter
from app.dialects.chat.stored_completion import build_completion_object
from app.errors import NotFound
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.chat_request import Caller
from app.pipeline.turn.token_counting import MessageCounter
from app.store.contract.conversations import CompletionQuery
from app.store.contract.store import Store

TENANT = "tenant"
LONG = 1_203


def importing_into(store: Store) -> ConversationImporter:
    return ConversationImporter(
        store=store,
        message_counter=MessageCounter(lambda name: TokenCounter(load_tokenizer(name))),
        tasks=BackgroundTasks(),
        random_bytes=secrets.token_bytes,
        encoding="o200k_base",
    )


async def test_a_long_history_goes_in_and_out_with_its_times_and_its_names(store: Store) -> None:
    history = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"Nº {n}"} for n in range(LONG)]
    line = {"created_at": 1_600_000_000, "external_id": "mine", "metadata": {"a": "b"}, "messages": history}
    (kept,) = (await importing_into(store).import_file(TENANT, orjson.dumps(line))).conversations
    found = await store.find_conversation(tenant=TENANT, conversation_id="mine")
    assert found is not None
    assert (found.id, found.head_seq, found.created_at) == (
        kept.id,
        LONG - 1,
        datetime.fromtimestamp(1_600_000_000, UTC),
    )
    assert found.metadata == {"a": "b", "imported_from": "openai"}
    out = b"".join(
        [piece async for piece in ConversationExporter(store).stream_message_lines(found, with_hidden=False)]
    )
    assert [orjson.loads(text) for text in out.splitlines()] == history


async def test_completions_are_paged_by_creation_and_show_their_log(store: Store) -> None:
    history = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
    (kept,) = (await importing_into(store).import_file(TENANT, orjson.dumps({"messages": history}))).conversations
    for number in range(5):
        await store.save_completion(
            StoredCompletion(
                id=f"c{number}",
                tenant=TENANT,
                root=kept.root,
                conversation_id=kept.id,
                seq=1,
                model="m",
                created_at=datetime.fromtimestamp(100 + number // 2, UTC),
                instructions=('{"role":"system","content":"S"}',),
            )
        )
    completions, caller = StoredCompletions(store, build_completion_object), Caller(tenant=TENANT)
    seen: list[str] = []
    has_more = True
    while has_more:
        objects, has_more = await completions.list_completions(
            caller, CompletionQuery(limit=2), seen[-1] if seen else None
        )
        seen += [one["id"] for one in objects]
    assert seen == ["c0", "c1", "c2", "c3", "c4"]
    shown = await completions.read_first_choice(caller, "c3")
    assert shown["choices"][0]["message"]["content"] == "A"
    asked, has_more = await completions.list_messages(caller, "c3", after=None, limit=2, descending=True)
    assert ([one["content"] for one in asked], has_more) == (["Q", "S"], False)


@pytest.mark.parametrize("name", ["\0", "c\0", "\ud7ff", "c" * 10_000])
async def test_names_that_nothing_can_have_find_nothing(store: Store, name: str) -> None:
    completions, caller = StoredCompletions(store, build_completion_object), Caller(tenant=TENANT)
    assert await completions.list_completions(caller, CompletionQuery(limit=2, model=name), None) == ([], False)
    assert await completions.list_completions(caller, CompletionQuery(limit=2, metadata={name: name}), None) == (
        [],
        False,
    )
    attempts: list[Coroutine[Any, Any, object]] = [
        completions.read_first_choice(caller, name),
        completions.replace_metadata(caller, name, {}),
        completions.delete_completion(caller, name),
        completions.list_completions(caller, CompletionQuery(limit=2), name),
        completions.list_messages(caller, name, after=None, limit=2, descending=False),
    ]
    for attempt in attempts:
        with pytest.raises(NotFound):
            await attempt
