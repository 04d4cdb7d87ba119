"""Finding old messages by their words, the same in every store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.search_terms import extract_message_terms, extract_terms
from app.store.contract.conversations import SearchHit
from app.store.contract.store import Store
from tests.store.example_logs import begin, branch_off, fresh_tenant, go_on, log_of, message
from tests.store.reference_ranking import rank_log

CHAT = [
    "user My name is Michael and I live in Seattle",
    "assistant Nice to meet you",
    "user I like espresso machines",
    "assistant Which espresso machine?",
    "user The steam one",
    "assistant Good choice",
    "user And a drip machine",
    "assistant Noted",
]


@pytest.fixture(autouse=True)
def _has_an_index(store: Store) -> None:
    if not store.is_fully_searchable:
        pytest.skip("nothing is indexed there; test_encrypted.py tells how it searches")


async def search(
    store: Store, conversation: Conversation, text: str, *, from_seq: int = 0, before_seq: int = 99, limit: int = 9
) -> list[SearchHit]:
    return await store.search_log(
        conversation, terms=extract_terms(text), from_seq=from_seq, before_seq=before_seq, limit=limit
    )


async def hits(store: Store, conversation: Conversation, text: str, **where: int) -> list[int]:
    return [found.message.seq for found in await search(store, conversation, text, **where) if found.score is not None]


async def indexed(
    store: Store, tenant: str, lines: Sequence[str], **fields: object
) -> tuple[Conversation, list[LogMessage]]:
    conversation, log = await begin(store, tenant, lines, **fields)
    await store.index_messages(conversation, log)
    return conversation, log


async def test_messages_are_found_best_first_and_their_neighbours_after_them_nearest_first(store: Store) -> None:
    conversation, log = await indexed(store, fresh_tenant(), CHAT)
    found = await search(store, conversation, "espresso machines")
    assert [entry.message.seq for entry in found] == [3, 2, 6, 1, 4, 5, 7, 0]
    assert [entry.score is None for entry in found] == [False] * 3 + [True] * 5
    assert found[0].score == found[1].score
    assert found[0].message.message == log[3].message
    assert found[0].message.created_at is not None


async def test_scores_are_rarities_within_the_range(store: Store) -> None:
    conversation, _ = await indexed(store, fresh_tenant(), CHAT)
    assert [entry.score for entry in await search(store, conversation, "espresso machines")][:3] == [
        2.225,
        2.225,
        0.944,
    ]
    assert [entry.score for entry in await search(store, conversation, "machine", from_seq=4)][:1] == [1.204]


async def test_nothing_is_found_outside_the_range_nor_beside_it(store: Store) -> None:
    conversation, _ = await indexed(store, fresh_tenant(), CHAT)
    assert await hits(store, conversation, "machine", from_seq=3, before_seq=6) == [3]
    found = await search(store, conversation, "machine", from_seq=3, before_seq=4)
    assert [entry.message.seq for entry in found] == [3]
    assert await search(store, conversation, "machine", from_seq=4, before_seq=4) == []
    assert await hits(store, conversation, "name", from_seq=-5, before_seq=10_000) == [0]


async def test_the_best_are_kept_where_there_are_too_many_and_of_equals_the_latest(store: Store) -> None:
    conversation, _ = await indexed(store, fresh_tenant(), ["user rare word"] + ["assistant word"] * 6)
    assert await hits(store, conversation, "rare word", limit=3) == [0, 6, 5]


async def test_nothing_is_asked_for_and_nothing_found(store: Store) -> None:
    conversation, _ = await indexed(store, fresh_tenant(), CHAT)
    assert await search(store, conversation, "") == []
    assert await search(store, conversation, "zebra") == []


async def test_only_what_was_indexed_is_found_and_indexing_again_changes_nothing(store: Store) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    assert await search(store, conversation, "machine") == []
    for part in (log[:3], log[:3], log[2:4], []):
        await store.index_messages(conversation, part)
    assert await hits(store, conversation, "machine") == [3, 2]


async def test_more_words_than_fit_into_one_transaction_are_all_indexed(store: Store) -> None:
    lines = [f"user {' '.join(f'{part}a{word}' for word in range(6_000))}" for part in range(4)]
    conversation, _ = await indexed(store, fresh_tenant(), lines)
    for part in range(4):
        assert await hits(store, conversation, f"{part}a5999 {part}a17", limit=1) == [part]
    stored = await store.find_conversation(tenant=conversation.tenant, conversation_id=conversation.id)
    assert stored is not None
    assert stored.indexed_before == 4


async def test_messages_that_are_not_stored_are_not_indexed(store: Store) -> None:
    conversation, log = await indexed(store, fresh_tenant(), CHAT[:2])
    others = log_of(conversation.tenant, ["user zebra"], after=log[1]) + log_of(conversation.tenant, ["user zebra"])
    await store.index_messages(conversation, others)
    after, _ = await go_on(store, conversation, log, ["user horse"])
    assert await search(store, after, "zebra") == []


async def test_tenants_and_conversations_that_say_the_same_never_meet(store: Store) -> None:
    mine, theirs = fresh_tenant(), fresh_tenant()
    first, log = await indexed(store, mine, CHAT)
    second, _ = await begin(store, mine, CHAT)
    third, _ = await indexed(store, theirs, [*CHAT, "user machine machine"])
    assert second.root == first.root
    assert await search(store, second, "machine") == []
    assert await hits(store, third, "machine") == [8, 6, 3, 2]
    before = await search(store, first, "espresso machine")
    for _ in range(3):
        await indexed(store, mine, [*CHAT, *CHAT])
    assert await search(store, first, "espresso machine") == before
    assert len(log) == len(CHAT)


async def test_a_conversation_is_indexed_by_its_own_tenant_only(store: Store) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    await store.index_messages(_of_tenant(conversation, fresh_tenant()), log)
    assert await search(store, conversation, "machine") == []


def _of_tenant(conversation: Conversation, tenant: str) -> Conversation:
    fields = {name: getattr(conversation, name) for name in conversation.__struct_fields__}
    return Conversation(**{**fields, "tenant": tenant})


async def test_a_branch_finds_what_it_shares_and_its_own_and_nothing_beside(store: Store) -> None:
    trunk, trunk_log = await indexed(store, fresh_tenant(), CHAT)
    branch, log = await branch_off(store, trunk, trunk_log, 3, ["user A grinder machine", "assistant Fine"])
    twig, twig_log = await branch_off(store, branch, log, 4, ["assistant That machine?"])
    assert await hits(store, twig, "machine") == [3, 2]
    await store.index_messages(twig, twig_log)
    assert await hits(store, twig, "machine") == [5, 4, 3, 2]
    assert await hits(store, branch, "machine") == [4, 3, 2], "indexed where it is kept"
    assert await hits(store, trunk, "machine grinder") == [6, 3, 2]
    found = await search(store, twig, "grinder")
    assert [(entry.message.seq, entry.message.link) for entry in found] == [
        (seq, twig_log[seq].link) for seq in (4, 3, 5, 2)
    ]


async def test_what_is_erased_is_found_no_more(store: Store) -> None:
    conversation, log = await indexed(store, fresh_tenant(), CHAT)
    await store.erase_conversation(tenant=conversation.tenant, conversation_id=conversation.id)
    assert await search(store, conversation, "machine") == []
    await store.index_messages(conversation, log)
    assert await search(store, conversation, "machine") == []


async def test_erasing_the_trunk_leaves_what_branches_share_findable(store: Store) -> None:
    trunk, trunk_log = await indexed(store, fresh_tenant(), CHAT)
    early, _ = await branch_off(store, trunk, trunk_log, 2, ["assistant Yes?"])
    late, _ = await branch_off(store, trunk, trunk_log, 4, ["assistant So?"])
    await store.erase_conversation(tenant=trunk.tenant, conversation_id=trunk.id)
    for branch, expected in ((early, [2]), (late, [3, 2])):
        fresh = await store.find_conversation(tenant=branch.tenant, conversation_id=branch.id)
        assert fresh is not None
        assert await hits(store, fresh, "machine") == expected
    assert await hits(store, trunk, "machine") == []


async def test_parallel_indexing_and_erasing_leave_nothing_behind(store: Store) -> None:
    conversation, log = await begin(store, fresh_tenant(), CHAT)
    await asyncio.gather(
        store.index_messages(conversation, log),
        store.erase_conversation(tenant=conversation.tenant, conversation_id=conversation.id),
        store.index_messages(conversation, log),
    )
    again, _ = await begin(store, conversation.tenant, CHAT, id=conversation.id)
    assert await search(store, again, "machine") == []


@pytest.mark.parametrize(
    ("line", "question"),
    [
        ("user 我叫迈克尔,住在西雅图", "迈克尔是谁"),
        ('result {"path": "/srv/app/main_loop.py", "order": "A-1042"}', "main_loop.py"),
        ('result {"path": "/srv/app/main_loop.py", "order": "A-1042"}', "A-1042"),
        ("call getWeatherReport", "weather"),
        ("user Мост построен", "мост"),
        ("user 'quoted\" {braces} \\ %s \u2603 \U0001f600 AND OR NEAR(x)", "near"),
    ],
)
async def test_any_language_and_identifier_is_found(store: Store, line: str, question: str) -> None:
    conversation, log = await indexed(store, fresh_tenant(), ["user hi", line, "assistant bye"])
    assert await hits(store, conversation, question) == [1]
    assert message(line).raw == log[1].message.raw


async def test_a_search_among_thousands_of_messages_reads_no_more_than_it_returns(store: Store) -> None:
    lines = [f"{'assistant' if at % 2 else 'user'} common w{at % 50} number{at}" for at in range(3000)]
    conversation, log = await begin(store, fresh_tenant(), lines)
    for start in range(0, len(log), 500):
        await store.index_messages(conversation, log[start : start + 500])
    assert await hits(store, conversation, "common number1234", before_seq=3000, limit=2) == [1234, 2999]
    assert await hits(store, conversation, "common w7", before_seq=2900, limit=3) == [2857, 2807, 2757]


async def test_terms_of_nearly_every_message_do_not_count_beside_rarer_ones(store: Store) -> None:
    lines = [f"user everywhere always {'often' if at % 2 else 'x'} seldom{at}" for at in range(2200)]
    conversation, log = await begin(store, fresh_tenant(), lines)
    await store.index_messages(conversation, log)
    scores = [entry.score for entry in await search(store, conversation, "everywhere always often x seldom7", limit=2)]
    assert scores[0] is not None
    assert scores[0] > 8
    assert await hits(store, conversation, "everywhere", limit=2, before_seq=2200) == [2199, 2198]
    found = await search(store, conversation, "everywhere always often x", limit=1, before_seq=2200)
    assert found[0].score in {0.693, 0.694}


async def test_what_is_common_in_a_long_log_is_looked_for_among_its_newest_messages(store: Store) -> None:
    lines = [
        f"user n{at}x {'often' if at % 3 == 0 else 'now'} {'formerly' if at < 1200 else 'lately'} "
        f"{'' if 1200 < at < 1490 else 'both'} w{at % 40}q"
        for at in range(1500)
    ]
    conversation, log = await begin(store, fresh_tenant(), lines)
    await store.index_messages(conversation, log)
    branch, whole = await branch_off(store, conversation, log, 1400, ["user often formerly w7q", "assistant often"])
    await store.index_messages(branch, whole[1401:])
    asked = (
        "often",
        "formerly",
        "lately",
        "often w7q",
        "formerly often n77x",
        "n1100x formerly w9q lately",
        "now w1q",
        "both",
    )
    for one, entries, parts in ((conversation, log, [(0, 1500)]), (branch, whole, [(0, 1401), (1401, 1403)])):
        for question in asked:
            terms = frozenset(extract_terms(question))
            holding = {entry.seq: terms & frozenset(extract_message_terms(entry.message)) for entry in entries}
            found = await search(store, one, question, before_seq=len(entries))
            expected = rank_log(holding, parts, limit=9)
            assert [(entry.message.seq, entry.score) for entry in found] == expected, question
    assert await hits(store, conversation, "often formerly", before_seq=1500, limit=2) == [1497, 1494]
    assert await hits(store, conversation, "formerly", before_seq=1500, limit=2) == [1199, 1198]


async def test_after_the_index_was_forgotten_nothing_is_found_until_it_is_made_again(store: Store) -> None:
    conversation, log = await indexed(store, fresh_tenant(), CHAT)
    await store.clear_search_index()
    found = await store.find_conversation(tenant=conversation.tenant, conversation_id=conversation.id)
    assert found is not None
    assert found.indexed_before == 0
    assert await hits(store, found, "espresso") == []
    assert await store.search_tenant(tenant=conversation.tenant, terms=extract_terms("espresso"), limit=9) == []
    await store.index_messages(found, log)
    assert await hits(store, found, "espresso") == [3, 2]
    assert len(await store.search_tenant(tenant=conversation.tenant, terms=extract_terms("espresso"), limit=9)) == 1
