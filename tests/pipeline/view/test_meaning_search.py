"""Messages are embedded behind the first question that needs it, and found by the next."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from app.context.plan.policy import EmbeddingModel
from app.context.quote.meaning import PassagePlace
from app.conversation.conversation_types import Conversation
from app.errors import StoreUnreadable, UpstreamUnavailable
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.view import meaning_search
from app.pipeline.view.meaning_search import MeaningSearch
from app.store.contract.conversations import MessageVectors
from tests.store.contract.conversations.test_redaction import fresh, overwritten
from tests.store.example_logs import Clock, begin, fresh_tenant, go_on
from tests.support.memory_store import MemoryStore

MODEL = EmbeddingModel("vendor", "small")
CHAT = ["user the dog is ill", "assistant poor thing", "user rent is due", "assistant on the first"]
SENSES = ({"dog", "pet"}, {"rent", "housing"}, {"sky"})


class SenseEmbedder:
    """A vector says which of a few senses a text's words have."""

    name = "vendor/small"

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.is_away = self.is_slow = False

    async def embed_texts(self, texts: Sequence[str]) -> list[Sequence[float]]:
        self.calls.append(list(texts))
        if self.is_away:
            raise UpstreamUnavailable("away")
        if self.is_slow:
            await asyncio.sleep(60)
        return [[0.01, *(float(bool(sense & set(text.split()))) for sense in SENSES)] for text in texts]


class Searching:
    """A search with its parts."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore(clock=Clock())
        self.embedder = SenseEmbedder()
        self.tasks = BackgroundTasks()
        self.search = MeaningSearch(self.store, {MODEL: self.embedder}, self.tasks)

    async def find(self, conversation: Conversation, question: str, *, before_seq: int = 99) -> list[int]:
        before_seq = min(before_seq, conversation.head_seq + 1)
        found = await self.search.find_passages(conversation, MODEL, question, before_seq=before_seq)
        await self.tasks.aclose(5)
        return [place.seq for place in found]


async def test_the_second_question_finds_what_the_first_had_embedded() -> None:
    searching = Searching()
    conversation, log = await begin(searching.store, fresh_tenant(), CHAT)
    assert await searching.find(conversation, "how is my pet", before_seq=2) == []
    assert searching.embedder.calls == [["the dog is ill", "poor thing", "rent is due", "on the first"]]
    assert (await searching.find(conversation, "how is my pet"))[0] == 0
    assert (await searching.find(conversation, "what does housing cost"))[0] == 2
    longer, _ = await go_on(searching.store, conversation, log, ["user blue sky"])
    await searching.find(longer, "how is my pet")
    assert searching.embedder.calls[3:] == [["how is my pet"], ["blue sky"]], "only what is new"


async def test_a_message_without_text_is_read_once() -> None:
    searching = Searching()
    conversation, _ = await begin(searching.store, fresh_tenant(), ["user ", "assistant "])
    await searching.find(conversation, "how is my pet")
    assert await searching.find(conversation, "how is my pet") == []
    assert searching.embedder.calls == [["how is my pet"]]


@pytest.mark.parametrize("fault", ["is_away", "is_slow"])
async def test_without_the_model_nothing_is_found_and_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(meaning_search, "QUESTION_SECONDS", 0.02)
    searching = Searching()
    conversation, _ = await begin(searching.store, fresh_tenant(), CHAT)
    await searching.find(conversation, "how is my pet")
    setattr(searching.embedder, fault, True)
    assert await searching.find(conversation, "how is my pet") == []
    setattr(searching.embedder, fault, False)
    assert (await searching.find(conversation, "how is my pet"))[0] == 0


async def test_a_failed_round_of_embedding_is_made_up_for() -> None:
    searching = Searching()
    conversation, _ = await begin(searching.store, fresh_tenant(), CHAT)
    searching.embedder.is_away = True
    await searching.find(conversation, "how is my pet")
    searching.embedder.is_away = False
    await searching.find(conversation, "how is my pet")
    assert (await searching.find(conversation, "how is my pet"))[0] == 0


async def test_a_redacted_message_is_not_found() -> None:
    searching = Searching()
    conversation, log = await begin(searching.store, fresh_tenant(), CHAT)
    await searching.find(conversation, "how is my pet")
    await searching.store.redact_messages(conversation, [overwritten(log[0])])
    asked = len(searching.embedder.calls)
    assert 0 not in await searching.find(await fresh(searching.store, conversation), "how is my pet")
    assert searching.embedder.calls[asked:] == [["how is my pet"]], "what is erased is not embedded again"


async def test_only_the_newest_messages_of_a_long_conversation_have_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meaning_search, "MAX_MESSAGES", 3)
    searching = Searching()
    conversation, _ = await begin(searching.store, fresh_tenant(), CHAT)
    await searching.find(conversation, "how is my pet")
    assert sorted(await searching.find(conversation, "how is my pet")) == [1, 2, 3]


async def test_vectors_that_cannot_be_decrypted_are_made_anew() -> None:
    class Sealed(MemoryStore):
        is_readable = False

        async def read_vectors(self, *arguments: object, **named: object) -> list[MessageVectors]:
            if not self.is_readable:
                raise StoreUnreadable("another key")
            return await super().read_vectors(*arguments, **named)  # type: ignore[arg-type]

    searching = Searching(store := Sealed(clock=Clock()))
    conversation, _ = await begin(store, fresh_tenant(), CHAT)
    assert await searching.find(conversation, "how is my pet") == []
    store.is_readable = True
    found = await searching.search.find_passages(conversation, MODEL, "how is my pet", before_seq=4)
    assert found[0] == PassagePlace(0, 0)


async def test_many_messages_are_embedded_in_bounded_calls() -> None:
    searching = Searching()
    conversation, _ = await begin(searching.store, fresh_tenant(), [f"user the dog number {at}" for at in range(70)])
    await searching.find(conversation, "how is my pet")
    assert [len(call) for call in searching.embedder.calls] == [32, 32, 6]
    assert searching.embedder.calls[0][-1] == "the dog number 69", "the newest first"


async def test_two_questions_at_once_embed_nothing_twice() -> None:
    searching = Searching()
    conversation, _ = await begin(searching.store, fresh_tenant(), CHAT)
    asked = [searching.search.find_passages(conversation, MODEL, "pet", before_seq=4) for _ in range(2)]
    await asyncio.gather(*asked)
    await searching.tasks.aclose(5)
    assert len(searching.embedder.calls) == 1


async def test_another_tenants_vectors_are_not_read() -> None:
    searching = Searching()
    conversation, _ = await begin(searching.store, fresh_tenant(), CHAT)
    await searching.find(conversation, "how is my pet")
    stranger = replace(conversation, id=conversation.id[:-1] + "x")
    found = await searching.search.find_passages(stranger, MODEL, "how is my pet", before_seq=4)
    await searching.tasks.aclose(5)
    assert found == []
