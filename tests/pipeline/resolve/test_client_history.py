"""What is remembered of rewritten histories changes what a turn costs, and nothing else."""

from __future__ import annotations

import functools
import hashlib
import json
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.context.count.token_counter import TokenCounter
from app.context.count.tokenizers import load_tokenizer
from app.context.view.client_versions import ClientVersions
from app.conversation.alignment import Alignment, align_after_head
from app.conversation.conversation_types import ClientVersion, Conversation, LogMessage
from app.conversation.identity import make_conversation_id
from app.dialects.chat import message as chat_message
from app.dialects.chat.canonical_message import canonicalize_message
from app.dialects.chat.message import ChatMessage
from app.pipeline.persist.conversation_builders import advance_head, build_empty_conversation, build_log_entries
from app.pipeline.resolve import client_history as history
from app.pipeline.resolve import history_alignment
from app.pipeline.resolve.client_history import ClientHistory
from app.pipeline.resolve.history_alignment import AlignedHistory, HistoryAligner
from app.pipeline.resolve.resolved_request import REDACTED, REWRITE_MARK
from app.pipeline.token_counting import MessageCounter
from app.store.contract.conversations import LogAppend
from app.store.memory.backend import MemoryStore
from tests.live import Reply, ScriptedUpstream, completion
from tests.scenarios.rewriting import LOOK, Body, Tell, inject, mask, message_in
from tests.store.example_logs import Clock
from tests.support.gateway import call, result, system, user, world

COUNTING = MessageCounter(lambda _: TokenCounter(load_tokenizer("o200k_base")))
TENANT = "tenant"
ROOT = 16 * "0"
CONVERSATION = make_conversation_id(ROOT, bytes)
TELLS: dict[str, Tell] = {
    "as it was": list,
    "masks": mask(2),
    "masks more": mask(1),
    "notes": inject(lambda length: f"It is minute {length}."),
    "window": lambda messages: list(messages[-9:]),
    "drops the first call": lambda messages: [messages[0], *messages[3:]],
}


def call_id_of(number: int) -> str:
    return "call_" + hashlib.sha256(str(number).encode()).hexdigest()[:24]


def answer_of(number: int) -> Body:
    if number % 4 == 3:
        return {
            "role": "assistant",
            "content": "Done." if number % 8 == 7 else f"Answer {number}: " + "it grows. " * 30,
        }
    return {"role": "assistant", "content": None, "tool_calls": [call("look", "{}", call_id_of(number))]}


def question_of(number: int) -> Body:
    if number % 4 == 0:
        return user(f"Question {number}?" if number % 3 else "Go on.")
    return result(f"Output {number}.", call_id_of(number - 1))


class Store(MemoryStore):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__(clock=Clock())
        self.counts = Counter[str]()

    async def read_client_versions(
        self, conversation: Conversation, *, until_seq: int | None = None
    ) -> list[ClientVersion]:
        found = await super().read_client_versions(conversation, until_seq=until_seq)
        self.counts["versions"] += len(found)
        return found

    async def read_log(self, conversation: Conversation, from_seq: int, to_seq: int) -> list[LogMessage]:
        found = await super().read_log(conversation, from_seq, to_seq)
        self.counts["messages"] += len(found)
        return found

    async def find_link_matches(self, *, links: Sequence[bytes], **options: Any) -> Any:
        self.counts["links"] += len(links)
        return await super().find_link_matches(links=links, **options)


class Turns:
    """A conversation, and a process that remembers its histories."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.histories = HistoryAligner(store, COUNTING)
        self.messages: list[Body] = []
        self.conversation: Conversation | None = None
        self.checkpoints = 0
        """Turns that went on from one."""

    async def take(self, number: int, tell: Tell, *, named: bool, lost: Tell | None, beside: Tell | None) -> None:
        """A turn, placed as by a process that remembers nothing.

        Args:
            lost: before it a request came that told the same so, and was not stored.
            beside: a request that tells the same so is aligned at the same time.
        """
        self.messages.append(question_of(number))
        if self.conversation is None:
            empty = build_empty_conversation(TENANT, "o200k_base", conversation_id=CONVERSATION, root=ROOT)
            await self._append(empty, self.messages, None)
            return
        stored = await HistoryAligner(self.store, COUNTING).read_client_versions(self.conversation)
        assert read_all(await self.histories.read_client_versions(self.conversation)) == read_all(stored)
        if lost is not None:
            await self._place(self.histories, encode(lost(self.messages)), named=named)
        raws = encode(tell(self.messages))
        placed = await self._place(self.histories, raws, named=named, beside=beside)
        alone = await self._place(HistoryAligner(self.store, COUNTING), raws, named=named)
        assert describe(placed) == describe(alone)
        new = [json.loads(raw) for raw in raws[placed.new_from_index :]]
        await self._append(self.conversation, new, placed)

    async def _place(
        self, histories: HistoryAligner, raws: Sequence[bytes], *, named: bool, beside: Tell | None = None
    ) -> AlignedHistory:
        assert self.conversation is not None
        alignment = await self._align(histories, raws, named=named)
        if beside is not None:
            await self._align(histories, encode(beside(self.messages)), named=named)
        return await histories.build_aligned_history(self.conversation, self.conversation, raws, alignment)

    async def _align(self, histories: HistoryAligner, raws: Sequence[bytes], *, named: bool) -> Alignment:
        assert self.conversation is not None
        log = ClientHistory(TENANT, raws, ChatMessage(raws[0]))
        log.aligned_prefix = histories.find_aligned_prefix(log)
        self.checkpoints += log.aligned_prefix is not None
        alignment = await histories.align_history(self.conversation, log, is_named=named)
        assert alignment.continues_log
        return alignment

    async def _append(self, before: Conversation, new: Sequence[Body], placed: AlignedHistory | None) -> None:
        answer = answer_of(len([one for one in self.messages if one["role"] != "assistant"]) - 1)
        entries = await build_log_entries(
            before, [*map(ChatMessage.from_body, new), ChatMessage.from_body(answer)], COUNTING
        )
        entries[-1] = replace(entries[-1], meta={"id": "chatcmpl-1"})
        changes = () if placed is None else placed.new_versions
        state = {**before.state, **({REWRITE_MARK: before.head_seq + 2} if changes else {})}
        after = replace(advance_head(before, entries), state=state)
        creates = self.conversation is None
        await self.store.append(
            LogAppend(after, before.head_seq, entries, creates_conversation=creates, versions=changes)
        )
        if placed is not None and placed.client_versions:
            self.histories.remember_client_versions(
                advance_head(replace(before, state=state), entries[:-1]), placed.client_versions
            )
        self.conversation = await self.store.find_conversation(tenant=TENANT, conversation_id=CONVERSATION)
        self.messages.append(answer)

    async def erase(self, seq: int) -> None:
        assert self.conversation is not None
        await self.store.replace_marks(self.conversation, {**self.conversation.marks, REDACTED: [seq]})
        self.conversation = await self.store.find_conversation(tenant=TENANT, conversation_id=CONVERSATION)


def encode(messages: Sequence[Body]) -> list[bytes]:
    return [json.dumps(message).encode() for message in messages]


def describe(placed: AlignedHistory) -> Any:
    return (
        placed.new_from_index,
        placed.log_seqs,
        read_all(placed.client_versions),
        placed.new_versions,
        placed.client_versions.tokens_delta,
    )


def read_all(versions: ClientVersions) -> dict[int, Any]:
    return {seq: versions.get(seq) for seq in versions}


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
async def test_a_history_is_placed_the_same_whatever_is_remembered(
    monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    monkeypatch.setattr(history, "PREFIX_INTERVAL_MESSAGES", 3)
    turns, tell, named = Turns(Store()), TELLS["masks"], data.draw(st.booleans())
    others = st.none() | st.none() | st.none() | st.sampled_from(list(TELLS.values()))
    for number in range(data.draw(st.integers(8, 24))):
        lost = beside = None
        if number > 4:
            tell, named = data.draw(others) or tell, named != (data.draw(st.integers(0, 9)) == 0)
            lost, beside = data.draw(others), data.draw(others)
        if number > 6 and data.draw(st.integers(0, 9)) == 0:
            await turns.erase(data.draw(st.integers(1, 6)))
        await turns.take(number, tell, named=named, lost=lost, beside=beside)
    event(f"{'some' if turns.checkpoints else 'no'} checkpoints")


async def test_a_beginning_is_aligned_anew_for_another_log_and_where_an_id_names_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "PREFIX_INTERVAL_MESSAGES", 3)
    behind: list[int] = []

    def count(head: Alignment, *arguments: Any, **options: Any) -> Alignment | None:
        behind.append(len(head.message_alignments))
        return align_after_head(head, *arguments, **options)

    monkeypatch.setattr(history_alignment, "align_after_head", count)
    turns = Turns(Store())
    for number in range(12):
        await turns.take(number, TELLS["masks"], named=False, lost=None, beside=None)
    assert turns.conversation is not None
    raws = encode(TELLS["masks"]([*turns.messages, question_of(12)]))
    log = ClientHistory(TENANT, raws, ChatMessage(raws[0]))
    log.aligned_prefix = turns.histories.find_aligned_prefix(log)
    assert log.aligned_prefix is not None
    empty = build_empty_conversation(
        TENANT, "o200k_base", conversation_id=make_conversation_id(ROOT, lambda n: n * b"1"), root=ROOT
    )
    entries = await build_log_entries(empty, [ChatMessage.from_body(one) for one in turns.messages[:2]], COUNTING)
    other = advance_head(empty, entries)
    await turns.store.append(LogAppend(other, -1, entries, creates_conversation=True))
    behind.clear()
    for conversation, named in ((other, False), (turns.conversation, True)):
        found = await turns.histories.align_history(conversation, log, is_named=named)
        fresh = ClientHistory(TENANT, raws, ChatMessage(raws[0]))
        assert found == await HistoryAligner(turns.store, COUNTING).align_history(conversation, fresh, is_named=named)
        assert behind == []


def reply(body: Body) -> Reply:
    number = sum(message["role"] == "assistant" for message in body["messages"])
    found = completion(None, tool_calls=[call("look", "{}", call_id_of(number))])
    found.body.pop("usage")
    return found


async def test_a_turn_of_a_masking_agent_touches_what_is_new_or_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    store, touched, patched = Store(), Counter[str](), set[str]()

    def count(module: ModuleType, function: Callable[..., Any], amount: Callable[..., int] = lambda *_: 1) -> None:
        name = f"{module.__name__}.{function.__name__}"

        def counting(*arguments: Any, **options: Any) -> Any:
            touched[name] += amount(*arguments)
            return function(*arguments, **options)

        patched.add(name)
        monkeypatch.setattr(module, function.__name__, counting)

    count(chat_message, canonicalize_message)
    count(history_alignment, align_after_head, lambda _, log, history, *__: len(history))
    count(history_alignment, ClientVersion)
    counts: list[Counter[str]] = []
    async with world(ScriptedUpstream(default=reply), store=store, window=1_000_000) as place:
        messages = [system("You look at things."), user("Look at all of them.")]
        for number in range(72):
            body = await place.say(mask(3)(messages), tools=[LOOK])
            messages += [message_in(body), result(f"Output {number}.", call_id_of(number))]
            counts.append(touched + Counter(store.counts))
            touched.clear()
            store.counts.clear()
    assert len(place.conversations()) == 1
    early, late = (functools.reduce(operator.or_, part) for part in (counts[36:54], counts[54:]))  # the most of each
    assert late.keys() == {"messages", "links", *patched}
    assert late == early
