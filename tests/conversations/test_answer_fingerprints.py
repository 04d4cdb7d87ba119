"""Answers that no turn has issued: old ones prove by their link only, those of others prove nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from app.conversation.api_keys import derive_context_tenant
from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.fingerprints import Fingerprint, FingerprintScope
from app.conversation.identity import LinkPosition
from app.conversations import answer_fingerprints
from app.conversations.answer_fingerprints import count_existing_answers, is_count_complete
from app.errors import StoreUnavailable
from app.store.contract.conversations import LogAppend
from app.store.encryption.cipher import Cipher
from app.store.encryption.encrypted_store import encrypt_store
from tests.live import ScriptedUpstream
from tests.store.contract.conversations.test_redaction import overwritten
from tests.store.example_logs import Clock, branch_of, conversation_of, fresh_tenant, log_of
from tests.support.gateway import world
from tests.support.memory_store import MemoryStore

LONG = "assistant Beans like warm soil and a lot of sun and they grow fast in May"
TALK = ["user how do beans grow?", LONG, "user go on", "call look", "result sun", "assistant Fine."]
TENANT = "acme"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore(clock=clock)


def ours(log: list[LogMessage]) -> list[LogMessage]:
    return [replace(one, meta={"id": f"c-{one.seq}"}) if one.message.role == "assistant" else one for one in log]


async def written(store: Any, tenant: str, lines: list[str], **fields: Any) -> tuple[Conversation, list[LogMessage]]:
    """A conversation as former code wrote it."""
    log = ours(log_of(tenant, lines))
    conversation = conversation_of(tenant, log, **fields)
    await store.append(LogAppend(conversation, -1, log, creates_conversation=True))
    return conversation, log


def known_by(log: list[LogMessage], seq: int, tenant: str = TENANT, end_user: str | None = None) -> list[Fingerprint]:
    entry = log[seq]
    earlier = [one.message for one in reversed(log[:seq]) if one.message.role == "assistant"]
    position = LinkPosition(entry.link, entry.skeleton, entry.in_skeleton)
    return FingerprintScope(tenant, end_user).list_fingerprints(
        position, entry.message, earlier, has_tool_traffic=seq > 3
    )


async def proofs(store: Any, found: list[Fingerprint], tenant: str = TENANT) -> list[tuple[str, str | None, int]]:
    """Kind, conversation and place of each fingerprint that was issued."""
    stored = await store.find_proofs(tenant=tenant, fingerprints=[one.digest for one in found])
    by_digest = {one.fingerprint: one for one in stored}
    return [
        (one.kind, proof.conversation.id if proof.conversation else None, proof.seq)
        for one in found
        if (proof := by_digest.get(one.digest)) is not None
    ]


async def test_an_old_answer_proves_its_conversation_by_its_link_only(store: MemoryStore) -> None:
    conversation, log = await written(store, TENANT, TALK)
    await count_existing_answers(store, store)
    found = {seq: await proofs(store, known_by(log, seq)) for seq in (1, 3, 5)}
    words = ("words", None, -1)
    assert found[1] == [("link", conversation.id, 1), words, words]
    assert found[3] == [("link", conversation.id, 3), ("calls", None, -1)]
    assert found[5] == [("link", conversation.id, 5), ("skeleton", None, -1), words]


async def test_old_answers_after_equal_histories_prove_nothing(store: MemoryStore) -> None:
    _, log = await written(store, TENANT, TALK)
    await written(store, TENANT, TALK[:2])
    await count_existing_answers(store, store)
    assert (await proofs(store, known_by(log, 1)))[0] == ("link", None, -1)
    assert (await proofs(store, known_by(log, 3)))[0][2] == 3


async def test_an_old_branch_and_what_it_shares_are_counted_once(store: MemoryStore, clock: Clock) -> None:
    conversation, log = await written(store, TENANT, TALK)
    clock.forward(1)
    branch, whole, own = branch_of(conversation, log, 2, [TALK[5]])
    await store.append(LogAppend(branch, 2, ours(own), creates_conversation=True))
    await count_existing_answers(store, store)
    assert (await proofs(store, known_by(log, 1)))[0] == ("link", conversation.id, 1)
    # A short answer is known together with the answer before it, which the branch shares.
    assert await proofs(store, known_by(whole, 3)) == [("link", branch.id, 3), ("words", None, -1)]


async def test_an_erased_answer_proves_nothing(store: MemoryStore) -> None:
    conversation, log = await written(store, TENANT, TALK)
    await store.redact_messages(conversation, [replace(overwritten(log[1]), meta={"id": "c-1"})])
    await count_existing_answers(store, store)
    assert await proofs(store, known_by(log, 1)[:1]) == [("link", None, -1)]


async def test_answers_of_others_are_spent_and_their_links_unknown(store: MemoryStore) -> None:
    log = log_of(TENANT, TALK[:2])
    await store.append(LogAppend(conversation_of(TENANT, log), -1, log, creates_conversation=True))
    await count_existing_answers(store, store)
    assert await proofs(store, known_by(log, 1)) == [("words", None, -1)] * 2


async def test_answers_are_counted_for_their_end_user_over_both_kinds_of_storage(store: MemoryStore) -> None:
    tenant = derive_context_tenant(TENANT)
    conversation, log = await written(store, tenant, TALK[:2], state={"end_user": "ann"})
    await count_existing_answers(store, store)
    assert (await proofs(store, known_by(log, 1, end_user="ann"), tenant))[0] == ("link", conversation.id, 1)
    assert await proofs(store, known_by(log, 1), tenant) == []


async def test_a_count_goes_on_where_it_ended_and_is_not_repeated(
    store: MemoryStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_fingerprints, "PAGE_CONVERSATIONS", 1)
    logs = []
    for number in range(3):
        clock.forward(1)
        logs.append((await written(store, TENANT, [f"user {number}", LONG]))[1])
    counted: list[int] = []

    def stop(count: int) -> None:
        counted.append(count)
        if len(counted) == 2:
            raise StoreUnavailable("gone")

    with pytest.raises(StoreUnavailable):
        await count_existing_answers(store, store, on_counted=stop)
    assert not is_count_complete(await store.read_model_facts())
    assert await proofs(store, known_by(logs[2], 1)[:1]) == []
    await count_existing_answers(store, store, on_counted=counted.append)
    assert counted == [1, 1, 1]
    assert (await proofs(store, known_by(logs[2], 1)))[0][2] == 1
    await written(store, TENANT, ["user new", LONG])
    await count_existing_answers(store, store, on_counted=counted.append)
    assert counted == [1, 1, 1]


async def test_encrypted_answers_are_counted_once_their_key_is_there(store: MemoryStore) -> None:
    tenant = fresh_tenant()
    sealed = encrypt_store(store, Cipher({"k1": bytes(range(32))}, "k1"))
    conversation, log = await written(sealed, tenant, TALK, state={"end_user": "ann"})
    without_key = encrypt_store(store, Cipher({}, None))
    await count_existing_answers(without_key, without_key)
    assert not is_count_complete(await store.read_model_facts())
    await count_existing_answers(sealed, sealed)
    assert is_count_complete(await store.read_model_facts())
    found = await proofs(sealed, known_by(log, 1, tenant, "ann"), tenant)
    assert found == [("link", conversation.id, 1), *[("words", None, -1)] * 2]


async def test_imported_answers_and_added_items_prove_nothing() -> None:
    async with world(ScriptedUpstream()) as w:

        async def post(path: str, **body: Any) -> Any:
            answer = await w.client.post(f"{w.base_url}{path}", headers={"authorization": "Bearer sk-one"}, **body)
            assert answer.status_code in (200, 201), answer.text
            return answer.json()

        texts = [f"{LONG} {name}" for name in ("imported", "created", "added")]
        said = [{"role": "assistant", "content": f"{text} and more of the same {text}"} for text in texts]
        question = {"role": "user", "content": "How do beans grow?"}
        lines = json.dumps({"messages": [question, said[0]]})
        await post("/conversations/import", content=lines)
        created = await post("/conversations", json={"items": [question, said[1]]})
        await post(f"/conversations/{created['id']}/items", json={"items": [said[2]]})
        conversations = w.conversations()
        logs = [await w.store.read_log(one, 0, 9) for one in conversations]
        answers = [(log, one.seq) for log in logs for one in log if one.message.role == "assistant"]
        assert len(answers) == 3
        for log, seq in answers:
            tenant = conversations[0].tenant
            assert await proofs(w.store, known_by(log, seq, tenant), tenant) == [("words", None, -1)] * 2
