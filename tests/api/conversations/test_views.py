"""What the model would see of a conversation, and what it saw for an answer."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import cycle
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from tests.live import Reply, ScriptedUpstream, completion
from tests.support.conversations_client import WINDOW, done, every_message, question, refused, talk
from tests.support.gateway import World, answering, is_summary, shown, system, user, world
from tests.support.memory_store import MemoryStore


def model() -> ScriptedUpstream:
    return ScriptedUpstream(default=answering)


async def test_a_short_conversation_would_be_sent_as_it_is() -> None:
    upstream = model()
    async with world(upstream, window=WINDOW) as gateway:
        answer = await gateway.say([system("Be brief."), user("Hello")], conversation="c")
        asked = len(upstream.requests)
        told = await done(gateway, "GET", "c/context")
        assert (told["object"], told["status"], told["fits"]) == ("context.preview", "full", True)
        assert (told["model"], told["policy"], told["window"]) == ("m", "additive", WINDOW)
        assert told["conversation_id"] == answer["conversation_id"]
        assert told["instructions"] == [system("Be brief.")]
        assert (told["summaries"], told["to_summarize"]) == ([], [])
        assert [message["text"] for message in told["messages"]["data"]] == ["You said: Hello", "Hello"]
        assert {message["disposition"] for message in told["messages"]["data"]} == {"verbatim"}
        assert len(upstream.requests) == asked
        assert "sent" not in told


async def test_the_preview_is_what_the_next_request_brings_to_the_model() -> None:
    upstream = model()
    async with world(upstream, window=WINDOW, policies={"additive": {"recall": "off"}}) as gateway:
        await talk(gateway, 24)
        told = await done(gateway, "GET", "c/context", **{"include[]": "sent"})
        assert told["status"] == "summarized"
        body = await talk(gateway, 1, first=24)
        assert shown(upstream)[-1][:-1] == told["sent"]
        assert len(told["sent_places"]) == len(told["sent"])
        assert body["context"]["prompt_tokens"] > told["prompt_tokens"]
        assert told["prompt_tokens"] <= told["limit"]


async def test_each_message_is_told_with_what_becomes_of_it() -> None:
    async with world(model(), window=WINDOW) as gateway:
        await talk(gateway, 24)
        told = await done(gateway, "GET", "c/context", order="asc", limit=1000)
        rows = told["messages"]["data"]
        assert [row["seq"] for row in rows] == list(range(48))
        last = told["summaries"][-1]
        assert {row["summary_id"] for row in rows[: last["to_seq"]]} == {one["id"] for one in told["summaries"]}
        assert {row["disposition"] for row in rows[last["to_seq"] :]} == {"verbatim"}
        assert (last["from_item"], last["through_item"]) == (
            rows[last["from_seq"]]["id"],
            rows[last["to_seq"] - 1]["id"],
        )
        assert (last["kind"], last["revision"]) == ("model", 1)


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_messages_come_by_pages(order: str) -> None:
    async with world(model(), window=WINDOW) as gateway:
        await talk(gateway, 12)
        seqs = [row["seq"] for row in await every_message(gateway, "c/context", order=order, limit=7)]
        assert seqs == sorted(range(24), reverse=order == "desc")
        error = await refused(gateway, 404, "GET", "c/context", after="msg_" + "0" * 34)
        assert error["code"] == "item_not_found"


async def test_another_model_or_policy_can_be_tried_out() -> None:
    models = {
        "*": {"provider": "upstream", "context_window": WINDOW},
        "large": {"provider": "upstream", "context_window": 100_000},
    }
    async with world(model(), models=models) as gateway:
        await talk(gateway, 24)
        assert (await done(gateway, "GET", "c/context"))["status"] == "summarized"
        large = await done(gateway, "GET", "c/context", model="large")
        assert (large["status"], large["window"], large["model"]) == ("full", 100_000, "large")
        windowed = await done(gateway, "GET", "c/context", policy="window")
        assert (windowed["policy"], windowed["status"]) == ("window", "trimmed")
        assert windowed["dropped_messages"] > 0


async def test_what_is_asked_last_is_taken_for_granted() -> None:
    models = {"*": {"provider": "upstream", "context_window": WINDOW}}
    models["alias"] = {"provider": "upstream", "model": "behind-it", "context_window": 9_000}
    async with world(model(), models=models) as gateway:
        await gateway.say([user("Hello")], conversation="c", model="alias", context={"policy": "fade"})
        told = await done(gateway, "GET", "c/context")
        assert (told["model"], told["policy"], told["window"]) == ("alias", "fade", 9_000)


@pytest.mark.parametrize(
    ("query", "status", "code", "param"),
    [
        ({"policy": "fold"}, 400, "policy_not_found", "context.policy"),
        ({"limit": "0"}, 400, "invalid_value", "limit"),
        ({"limit": "1001"}, 400, "invalid_value", "limit"),
        ({"limit": "x"}, 400, "invalid_type", "limit"),
        ({"order": "up"}, 400, "invalid_value", "order"),
        ({"include[]": "all"}, 400, "invalid_value", "include[].0"),
    ],
)
async def test_what_cannot_be_looked_at_is_refused(
    query: dict[str, str],
    status: int,
    code: str | None,
    param: str,
) -> None:
    async with world(model(), window=WINDOW) as gateway:
        await talk(gateway, 1)
        error = await refused(gateway, status, "GET", "c/context", **query)
        assert (error["code"], error["param"]) == (code, param)


async def test_an_unknown_model_is_refused() -> None:
    models = {"m": {"provider": "upstream", "context_window": WINDOW}}
    async with world(model(), models=models) as gateway:
        await talk(gateway, 1)
        error = await refused(gateway, 404, "GET", "c/context", model="other")
        assert error["code"] == "model_not_found"


async def test_others_find_nothing() -> None:
    async with world(model(), window=WINDOW) as gateway:
        await talk(gateway, 1)
        (answer, _) = (await done(gateway, "GET", "c/context"))["messages"]["data"]
        for path in ("c/context", f"c/items/{answer['id']}/context"):
            error = await refused(gateway, 404, "GET", path, key="sk-two")
            assert error["code"] == "conversation_not_found"


async def test_what_the_model_saw_is_told_again() -> None:
    upstream = model()
    async with world(upstream, window=WINDOW) as gateway:
        await talk(gateway, 24)
        rows = await every_message(gateway, "c/context", order="asc")
        for row in (rows[1], rows[-1]):
            told = await done(
                gateway, "GET", f"c/items/{row['id']}/context", order="asc", limit=1000, **{"include[]": "sent"}
            )
            assert (told["object"], told["exact"], told["item_id"]) == ("context.seen", True, row["id"])
            assert told["sent"] == shown(upstream)[row["seq"] // 2]
            assert [one["seq"] for one in told["messages"]["data"]] == list(range(row["seq"]))
        assert (told["status"], told["model"], told["policy"]) == ("summarized", "m", "additive")
        summary, said, *others = told["sent_places"]
        assert (said["kind"], [part["from_seq"] for part in said["parts"]]) == ("user_text", told["user_text"]["seqs"])
        assert [part["kind"] for part in summary["parts"]] == ["introduction"] + ["summary"] * len(told["summaries"])
        assert [part["summary_id"] for part in summary["parts"][1:]] == [one["id"] for one in told["summaries"]]
        assert "".join(part["text"] for part in summary["parts"]) == told["sent"][0]["content"]
        assert [(one["kind"], one["from_seq"], one["to_seq"]) for one in others] == [
            ("message", seq, seq + 1) for seq in range(summary["to_seq"], rows[-1]["seq"])
        ]
        page = await done(gateway, "GET", f"c/items/{rows[-1]['id']}/context", limit=5)
        assert [one["seq"] for one in page["messages"]["data"]] == [46, 45, 44, 43, 42]
        assert page["messages"]["has_more"] is True


async def test_a_view_is_told_exactly_although_its_summary_was_edited_since() -> None:
    upstream = model()
    async with world(upstream, window=WINDOW) as gateway:
        await talk(gateway, 24)
        told = await done(gateway, "GET", "c/context")
        (summary, *_), newest = told["summaries"], told["messages"]["data"][0]["id"]
        await done(gateway, "PATCH", f"c/summaries/{summary['id']}", json={"text": "They spoke of ships."})
        seen = await done(gateway, "GET", f"c/items/{newest}/context", **{"include[]": "sent"})
        assert seen["exact"] is True
        assert seen["sent"] == shown(upstream)[-1]
        assert "ships" not in str(seen["sent"])
        await done(gateway, "DELETE", f"c/summaries/{summary['id']}")
        seen = await done(gateway, "GET", f"c/items/{newest}/context")
        assert (seen["exact"], seen["inexact_reason"]) == (False, f"Summary {summary['id']} was deleted since.")


def as_the_sdk_writes(message: dict[str, Any]) -> bytes:
    fields = ("content", "refusal", "role", "annotations")
    return orjson.dumps({name: message[name] for name in fields})


RESENT: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "unchanged": orjson.dumps,
    "with spaces": lambda message: json.dumps(message).encode(),
    "text only": lambda message: orjson.dumps({"role": message["role"], "content": message["content"]}),
    "by the SDK": as_the_sdk_writes,
    "without what is empty": lambda message: json.dumps(
        {name: value for name, value in message.items() if value}, ensure_ascii=False
    ).encode(),
}


async def resend(
    gateway: World,
    turns: int,
    write: Callable[[dict[str, Any]], bytes],
    model: str = "m",
    messages: Sequence[bytes] = (),
) -> list[bytes]:
    """A client that re-sends its history, and writes answers in a way of its own; goes on after `messages`."""
    messages = list(messages)
    for number in range(len(messages) // 2, turns):
        messages.append(orjson.dumps(user(question(number))))
        body = b'{"model":"%b","messages":[%b]}' % (model.encode(), b",".join(messages))
        headers = {"authorization": "Bearer sk-one", "content-type": "application/json", "x-conversation-id": "c"}
        answer = await gateway.client.post(f"{gateway.base_url}/chat/completions", content=body, headers=headers)
        assert answer.status_code == 200
        messages.append(write(answer.json()["choices"][0]["message"]))
    return messages


async def read_seen(gateway: World, turns: int) -> list[dict[str, Any]]:
    """What the model saw for each answer."""
    rows = await every_message(gateway, "c/context", order="asc", limit=1000)
    assert len(rows) == 2 * turns
    path = "c/items/{}/context"
    return [
        await done(gateway, "GET", path.format(row["id"]), limit=1000, **{"include[]": "sent"}) for row in rows[1::2]
    ]


def answering_with_annotations(body: dict[str, Any]) -> Reply:
    if is_summary(body):
        return answering(body)
    return completion("„Noted“: " + str(body["messages"][-1]["content"])[:40], refusal=None, annotations=[])


@pytest.mark.parametrize("form", RESENT)
async def test_a_view_is_exact_in_whatever_form_the_client_sends_answers_back(form: str) -> None:
    upstream = ScriptedUpstream(default=answering_with_annotations)
    async with world(upstream, window=WINDOW) as gateway:
        await resend(gateway, 24, RESENT[form])
        views = await read_seen(gateway, 24)
    assert {view["status"] for view in views} == {"full", "summarized"}
    assert [view["inexact_reason"] for view in views] == [None] * 24
    assert all(view["exact"] for view in views)
    assert [view["sent"] for view in views] == shown(upstream)


async def test_views_of_the_built_in_model_are_exact() -> None:
    async with world(model(), providers={}, models={}) as gateway:
        await resend(gateway, 40, RESENT["unchanged"], "sim-8k")
        views = await read_seen(gateway, 40)
    assert views[-1]["status"] == "summarized"
    assert [view["exact"] for view in views] == [True] * 40


async def test_a_view_says_in_a_sentence_why_it_is_summarized() -> None:
    async with world(model(), window=WINDOW) as gateway:
        await resend(gateway, 24, RESENT["unchanged"])
        views = await read_seen(gateway, 24)
    assert views[0]["reason"].startswith("Sent in full: ")
    last = views[-1]
    ids = [summary["id"] for summary in last["summaries"]]
    first = next(at for at, view in enumerate(views) if [one["id"] for one in view["summaries"]] == ids)
    whole = last["would_have_been_tokens"]
    assert whole > last["compacts_above"]
    assert last["reason"].startswith(
        f"Summarized since message {2 * first + 1}: {whole:,} tokens would have passed the threshold of "
        f"{last['compacts_above']:,}; summary {ids[0]} ("
    )
    for summary in last["summaries"]:
        rows = last["messages"]["data"]
        tokens = sum(row["tokens"] for row in rows if summary["from_seq"] <= row["seq"] < summary["to_seq"])
        assert summary["replaced_tokens"] == tokens
        assert f"messages {summary['from_seq']} to {summary['to_seq'] - 1} ({tokens:,} tokens)" in last["reason"]


def write_strangely(message: dict[str, Any]) -> bytes:
    return b'{  "content":%b,"role":"assistant"}' % orjson.dumps(message["content"])


async def test_a_view_is_exact_if_the_client_writes_each_answer_in_another_way() -> None:
    forms = cycle([*RESENT.values(), write_strangely])

    def write(message: dict[str, Any]) -> bytes:
        return next(forms)(message)

    upstream = ScriptedUpstream(default=answering_with_annotations)
    async with world(upstream, window=WINDOW) as gateway:
        await resend(gateway, 24, write)
        views = await read_seen(gateway, 24)
    assert [view["inexact_reason"] for view in views] == [None] * 24
    assert [view["sent"] for view in views] == shown(upstream)


async def test_a_view_with_a_pinned_answer_is_exact() -> None:
    upstream = ScriptedUpstream(default=answering_with_annotations)
    async with world(upstream, window=WINDOW) as gateway:
        messages = await resend(gateway, 2, as_the_sdk_writes)
        rows = await every_message(gateway, "c/context", order="asc", limit=1000)
        await done(gateway, "POST", f"c/items/{rows[1]['id']}/pin")
        await resend(gateway, 24, as_the_sdk_writes, messages=messages)
        views = await read_seen(gateway, 24)
    assert (views[-1]["status"], views[-1]["messages"]["data"][-2]["disposition"]) == ("summarized", "pinned")
    assert [view["inexact_reason"] for view in views] == [None] * 24
    assert [view["sent"] for view in views] == shown(upstream)


async def test_a_view_of_a_client_that_adds_a_note_to_its_history_is_exact() -> None:
    """The client's history is not the log, so a summarized view shows the answers as the log has them."""
    upstream = ScriptedUpstream(default=answering_with_annotations)
    async with world(upstream, window=WINDOW) as gateway:
        messages = await resend(gateway, 4, as_the_sdk_writes)
        messages.insert(6, orjson.dumps(system("It is noon.")))
        await resend(gateway, 24, as_the_sdk_writes, messages=messages)
        views = await read_seen(gateway, 24)
    assert {view["status"] for view in views} == {"full", "summarized"}
    assert [view["inexact_reason"] for view in views] == [None] * 24
    assert [view["sent"] for view in views] == shown(upstream)


async def test_a_view_that_is_not_exact_names_the_messages_that_differ() -> None:
    """The texts of very long answers are not kept a second time."""

    def answer(body: dict[str, Any]) -> Reply:
        return completion("word " * 8_000 if len(body["messages"]) in {3, 7} else "Noted.")

    async with world(ScriptedUpstream(default=answer), window=100_000) as gateway:
        await resend(gateway, 6, write_strangely)
        views = await read_seen(gateway, 6)
    assert [view["exact"] for view in views] == [True, True, False, False, False, False]
    assert views[2]["inexact_reason"] == "Message 3 was perhaps sent in another form than the log has."
    assert views[-1]["inexact_reason"] == "Messages 3 and 7 were perhaps sent in another form than the log has."
    assert views[-1]["inexact_seqs"] == [3, 7]


async def test_a_view_of_an_earlier_version_of_the_gateway_is_exact_only_where_its_digest_says_so() -> None:
    async with world(ScriptedUpstream(default=answering_with_annotations), window=WINDOW) as gateway:
        await resend(gateway, 24, as_the_sdk_writes)
        (conversation,) = gateway.conversations()
        entries = await gateway.store.read_log(conversation, 0, conversation.head_seq + 1)
        older = [replace(entry, meta=_without(entry.meta, "resent")) for entry in entries if entry.meta]
        await gateway.store.rewrite_sealed_fields(conversation, entries=older)
        views = await read_seen(gateway, 24)
    assert views[-1]["status"] == "summarized"
    assert [view["exact"] for view in views] == [True] + [False] * 23
    reason = "Nothing tells whether these are the bytes that were sent, or which of them differ."
    assert {view["inexact_reason"] for view in views[1:]} == {reason}


async def test_a_view_with_a_message_that_was_erased_says_so() -> None:
    async with world(model(), window=100_000) as gateway:
        await resend(gateway, 3, RESENT["unchanged"])
        rows = await every_message(gateway, "c/context", order="asc")
        await done(gateway, "DELETE", f"c/items/{rows[2]['id']}", erase="true")
        seen = await done(gateway, "GET", f"c/items/{rows[-1]['id']}/context")
    assert (seen["exact"], seen["inexact_seqs"]) == (False, [2])
    assert seen["inexact_reason"] == "Message 2 was deleted or erased since."


async def test_views_that_were_kept_without_revisions_are_told_too() -> None:
    upstream = model()
    async with world(upstream, window=WINDOW) as gateway:
        await talk(gateway, 24)
        newest = (await done(gateway, "GET", "c/context"))["messages"]["data"][0]["id"]
        (conversation,) = gateway.conversations()
        entries = await gateway.store.read_log(conversation, 0, conversation.head_seq + 1)
        with_meta = [entry for entry in entries if entry.meta]
        assert with_meta
        older = [replace(entry, meta=_without(entry.meta, "revisions")) for entry in with_meta]
        await gateway.store.rewrite_sealed_fields(conversation, entries=older)
        assert (await done(gateway, "GET", f"c/items/{newest}/context"))["exact"] is True


def _without(meta: dict[str, object], name: str) -> dict[str, object]:
    view = meta["view"]
    assert isinstance(view, dict)
    return {**meta, "view": {key: value for key, value in view.items() if key != name}}


async def test_a_question_is_no_answer() -> None:
    async with world(model(), window=WINDOW) as gateway:
        await talk(gateway, 1)
        question_id = (await done(gateway, "GET", "c/context"))["messages"]["data"][-1]["id"]
        error = await refused(gateway, 404, "GET", f"c/items/{question_id}/context")
        assert (error["code"], error["param"]) == ("view_not_found", "item_id")
        error = await refused(gateway, 404, "GET", "c/items/msg_unheard_of/context")
        assert error["code"] == "item_not_found"


async def test_a_conversation_without_an_answer_needs_a_model() -> None:
    upstream = ScriptedUpstream(Reply({"error": {"message": "No."}}, 400))
    async with world(upstream, window=WINDOW) as gateway:
        await gateway.post([user("Hello")], conversation="c")
        error = await refused(gateway, 409, "GET", "c/context")
        assert (error["code"], error["param"]) == ("model_required", "model")
        told = await done(gateway, "GET", "c/context", model="m")
        assert [row["text"] for row in told["messages"]["data"]] == ["Hello"]


async def test_a_view_that_cannot_be_made_to_fit_is_told_as_that() -> None:
    models = {
        "*": {"provider": "upstream", "context_window": WINDOW},
        "tiny": {"provider": "upstream", "context_window": 300},
    }
    async with world(model(), models=models) as gateway:
        await gateway.say([system("word " * 600), user("Hello")], conversation="c")
        told = await done(gateway, "GET", "c/context", model="tiny")
        assert told["fits"] is False
        assert told["prompt_tokens"] > told["limit"]


async def cost_of_a_preview(messages: int) -> tuple[int, int]:
    """Bytes at the most while a page is made, and how many messages were read for it."""
    store = CountingStore(clock=lambda: datetime.now(UTC))
    async with world(model(), store=store, window=32_000) as gateway:
        await gateway.say([user("Hello"), *_long(messages // 2 - 1)], conversation="c")
        await done(gateway, "GET", "c/context", limit=10)
        store.read_messages = 0
        tracemalloc.start()
        try:
            told = await done(gateway, "GET", "c/context", limit=10)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert told["messages"]["data"][0]["seq"] == messages - 1
    assert told["status"] == "summarized"
    return peak_bytes, store.read_messages


def _long(turns: int) -> list[dict[str, str]]:
    said = []
    for number in range(turns):
        said += [{"role": "assistant", "content": f"Answer {number}."}, user(question(number, 8))]
    return said


class CountingStore(MemoryStore):
    """Counts the messages that are read."""

    read_messages = 0

    async def read_log(self, conversation, from_seq, to_seq):  # type: ignore[no-untyped-def]
        found = await super().read_log(conversation, from_seq, to_seq)
        self.read_messages += len(found)
        return found


async def test_a_preview_costs_no_more_for_ten_thousand_messages() -> None:
    short_bytes, short_reads = await cost_of_a_preview(2_000)
    long_bytes, long_reads = await cost_of_a_preview(10_000)
    print(f"a preview: {short_bytes:,} bytes and {short_reads} messages, {long_bytes:,} and {long_reads}")
    assert long_bytes < short_bytes + 500_000
    assert long_reads < short_reads + 100
