"""Summaries are read, edited, written anew, rolled back and deleted, and every text they had is kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.live import Reply, ScriptedUpstream, completion
from tests.pipeline.compact.test_failing_summarizer import nothing_is_prepared
from tests.support.conversations_client import WINDOW, call, done, refused, talk
from tests.support.gateway import World, answering, is_summary, pick_word, shown, summaries_asked, until, world

EDITED = "They spoke of ships."


class Writer(ScriptedUpstream):
    """A model whose summaries are numbered; `fails` is what it answers instead of one."""

    def __init__(self) -> None:
        super().__init__(default=self._answer)
        self.fails: Reply | None = None
        self.gate: asyncio.Event | None = None

    def _answer(self, body: dict[str, Any]) -> Reply:
        if not is_summary(body):
            return answering(body)
        if self.fails is not None:
            return self.fails
        reply = completion(
            f"Notes {len(summaries_asked(self))} of what was said. A word: {pick_word(body)}.", prompt_tokens=500
        )
        reply.gate = self.gate
        return reply


async def first_summary(gateway: World, turns: int = 24) -> dict[str, Any]:
    """The oldest summary of a conversation that has several."""
    for number in range(turns):
        await talk(gateway, 1, first=number)
        await until(nothing_is_prepared)  # a turn that finds it half done may ask for several summaries at once
    told = await done(gateway, "GET", "c/summaries")
    assert len(told["data"]) >= 2
    summary: dict[str, Any] = told["data"][0]
    return summary


async def test_summaries_are_listed_by_place_in_the_log() -> None:
    async with world(Writer(), window=WINDOW) as gateway:
        first = await first_summary(gateway)
        every = (await done(gateway, "GET", "c/summaries"))["data"]
        assert [one["from_seq"] for one in every] == [0, *(one["to_seq"] for one in every[:-1])]
        assert {(one["object"], one["active"], one["revision"]) for one in every} == {("conversation.summary", True, 1)}
        # The line is crossed by a turn that asks for two summaries at once, and either may be answered first.
        heads = sorted(one["text"].partition(" A word")[0] for one in every)
        assert heads == [f"Notes {number} of what was said." for number in range(1, len(every) + 1)]
        assert all(f"Values mentioned: item{one['from_seq'] // 2}n0," in one["text"] for one in every)
        assert first["model"] == "m"
        page = await done(gateway, "GET", "c/summaries", limit=1, order="desc")
        assert ([one["id"] for one in page["data"]], page["has_more"]) == ([every[-1]["id"]], True)
        rest = await done(gateway, "GET", "c/summaries", after=page["last_id"], order="desc")
        assert [one["id"] for one in rest["data"]] == [one["id"] for one in every[-2::-1]]
        assert not rest["has_more"]


async def test_a_summary_that_was_made_ahead_is_not_shown_until_a_view_has_it() -> None:
    policies = {"additive": {"prepare_ratio": 0.3}}
    async with world(Writer(), window=WINDOW, policies=policies) as gateway:
        statuses = []
        found: list[list[bool]] = []
        for number in range(24):
            statuses.append((await talk(gateway, 1, first=number))["context_status"])
            await until(nothing_is_prepared)
            listed = (await done(gateway, "GET", "c/summaries"))["data"]
            assert all(one["active"] for one in listed)
            found.append([one["shown"] for one in listed])
        ready = next(turn for turn, shown in enumerate(found) if shown)
        summarized = statuses.index("summarized")
        assert ready < summarized
        assert not any(any(shown) for shown in found[:summarized])
        assert found[summarized][0]


async def test_folds_are_listed_only_if_all_are_asked_for() -> None:
    policies = {"additive": {"fold_ratio": 0.01}}
    async with world(Writer(), window=WINDOW, policies=policies) as gateway:
        await first_summary(gateway, 40)
        active = (await done(gateway, "GET", "c/summaries"))["data"]
        every = (await done(gateway, "GET", "c/summaries", all="true", limit=100))["data"]
        folds = [one for one in every if one["folds"]]
        assert folds
        assert not any(one["active"] for one in folds)
        assert {one["id"] for one in active} == {one["id"] for one in every if one["active"]}
        before = folds[0]
        again = await done(gateway, "POST", f"c/summaries/{before['id']}/regenerate")
        assert (again["revision"], again["kind"], again["folds"]) == (2, "model", before["folds"])


async def test_an_edited_summary_is_shown_from_the_next_request_on() -> None:
    upstream = Writer()
    async with world(upstream, window=WINDOW) as gateway:
        first = await first_summary(gateway)
        path = f"c/summaries/{first['id']}"
        edited = await done(gateway, "PATCH", path, json={"text": f" {EDITED}\n", "revision": 1})
        assert (edited["text"], edited["kind"], edited["revision"]) == (EDITED, "edited", 2)
        assert edited["tokens"] != first["tokens"]
        assert [(one["revision"], one["kind"], one["text"]) for one in edited["revisions"]] == [
            (1, "model", first["text"]),
            (2, "edited", EDITED),
        ]
        assert await done(gateway, "GET", path) == edited
        await talk(gateway, 1, first=24)
        summary = str(shown(upstream)[-1][0]["content"])
        assert EDITED in summary
        assert first["text"] not in summary


async def test_an_edited_summary_is_not_replaced_in_the_background() -> None:
    upstream = Writer()
    upstream.fails = Reply({"error": {"message": "No."}}, 400)
    async with world(upstream, window=WINDOW) as gateway:
        first = await first_summary(gateway)
        assert first["kind"] == "mechanical"
        for one in (await done(gateway, "GET", "c/summaries"))["data"]:
            await done(gateway, "PATCH", f"c/summaries/{one['id']}", json={"text": EDITED})
        upstream.fails = None
        asked = len(summaries_asked(upstream))
        await talk(gateway, 1, first=24)
        assert {one["kind"] for one in (await done(gateway, "GET", "c/summaries"))["data"]} == {"edited"}
        assert len(summaries_asked(upstream)) == asked


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"text": " \n "}, "invalid_value", "text"),
        ({"text": ""}, "invalid_value", "text"),
        ({"text": "word " * 4_000}, "summary_too_long", "text"),
        ({"text": EDITED, "revision": 0}, "invalid_value", "revision"),
        ({"text": EDITED, "kind": "model"}, "unknown_parameter", "kind"),
        ({}, "missing_required_parameter", "text"),
    ],
)
async def test_a_text_that_cannot_stand_for_its_messages_is_refused(
    body: dict[str, Any],
    code: str | None,
    param: str,
) -> None:
    async with world(Writer(), window=WINDOW) as gateway:
        first = await first_summary(gateway)
        error = await refused(gateway, 400, "PATCH", f"c/summaries/{first['id']}", json=body)
        assert (error["code"], error["param"]) == (code, param)
        assert (await done(gateway, "GET", f"c/summaries/{first['id']}"))["revision"] == 1


async def test_of_two_edits_of_the_same_revision_one_is_refused() -> None:
    async with world(Writer(), window=WINDOW) as gateway:
        first = await first_summary(gateway)
        path = f"c/summaries/{first['id']}"
        answers = await asyncio.gather(
            *(call(gateway, "PATCH", path, json={"text": f"{EDITED} {n}", "revision": 1}) for n in range(2))
        )
        assert sorted(answer.status_code for answer in answers) == [200, 409]
        (lost,) = (answer for answer in answers if answer.status_code == 409)
        assert lost.json()["error"]["code"] == "revision_conflict"
        assert lost.headers["x-should-retry"] == "false"
        assert "retry-after" not in lost.headers
        unconditional = await asyncio.gather(
            *(call(gateway, "PATCH", path, json={"text": f"{EDITED} {n}"}) for n in range(3))
        )
        assert {answer.status_code for answer in unconditional} == {200}
        assert (await done(gateway, "GET", path))["revision"] == 5


async def test_an_earlier_text_comes_back_as_the_newest() -> None:
    async with world(Writer(), window=WINDOW) as gateway:
        first = await first_summary(gateway)
        path = f"c/summaries/{first['id']}"
        await done(gateway, "PATCH", path, json={"text": EDITED})
        back = await done(gateway, "POST", f"{path}/rollback", json={"revision": 1, "current_revision": 2})
        assert (back["revision"], back["text"], back["kind"]) == (3, first["text"], "model")
        assert back["tokens"] == first["tokens"]
        assert len(back["revisions"]) == 3
        error = await refused(gateway, 400, "POST", f"{path}/rollback", json={"revision": 9})
        assert (error["code"], error["param"]) == ("invalid_value", "revision")
        error = await refused(gateway, 409, "POST", f"{path}/rollback", json={"revision": 1, "current_revision": 2})
        assert error["code"] == "revision_conflict"


async def test_a_summary_without_a_model_that_a_person_chose_stays() -> None:
    upstream = Writer()
    upstream.fails = Reply({"error": {"message": "No."}}, 400)
    async with world(upstream, window=WINDOW) as gateway:
        first = await first_summary(gateway)
        path = f"c/summaries/{first['id']}"
        await done(gateway, "PATCH", path, json={"text": EDITED})
        back = await done(gateway, "POST", f"{path}/rollback", json={"revision": 1})
        assert (back["text"], back["kind"]) == (first["text"], "edited")


async def test_a_summary_is_written_anew_with_what_it_should_focus_on() -> None:
    upstream = Writer()
    async with world(upstream, window=WINDOW) as gateway:
        first = await first_summary(gateway)
        path = f"c/summaries/{first['id']}"
        asked = len(summaries_asked(upstream))
        wish = {"instructions": "Focus on the numbers of parcels.", "model": "other"}
        again = await done(gateway, "POST", f"{path}/regenerate", json=wish)
        assert (again["revision"], again["kind"]) == (2, "model")
        assert again["text"].startswith(f"Notes {asked + 1} of what was said.")
        (request,) = summaries_asked(upstream)[asked:]
        assert request["model"] == "other"
        assert "Focus on the numbers of parcels." in str(request["messages"])
        assert "item0n0" in str(request["messages"])
        assert f"item{first['to_seq'] // 2}n0" not in str(request["messages"])
        assert again["usage"]["prompt_tokens"] == 500
        span = ("from_seq", "to_seq", "from_item", "through_item", "through_turn")
        assert [again[name] for name in span] == [first[name] for name in span]


@pytest.mark.parametrize(
    "failure",
    [Reply({"error": {"message": "No."}}, 400), Reply({"error": {"message": "No."}}, 500), completion("")],
    ids=["refused", "broken", "blank"],
)
async def test_where_the_model_fails_nothing_changes(failure: Reply) -> None:
    upstream = Writer()
    async with world(upstream, window=WINDOW) as gateway:
        first = await first_summary(gateway)
        upstream.fails = failure
        error = await refused(gateway, 502, "POST", f"c/summaries/{first['id']}/regenerate")
        assert error["code"] == "upstream_unavailable"
        found = await done(gateway, "GET", f"c/summaries/{first['id']}")
        assert (found["revision"], found["text"]) == (1, first["text"])


async def test_a_summarizer_that_failed_too_often_is_left_alone() -> None:
    upstream = Writer()
    async with world(upstream, window=WINDOW) as gateway:
        first = await first_summary(gateway)
        upstream.fails = completion("")
        path = f"c/summaries/{first['id']}/regenerate"
        answers = [await call(gateway, "POST", path) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [502, 502, 502, 503]
        assert 0 < int(answers[-1].headers["retry-after"]) <= 31


async def test_an_edit_while_a_model_writes_wins() -> None:
    upstream = Writer()
    async with world(upstream, window=WINDOW) as gateway:
        first = await first_summary(gateway)
        path = f"c/summaries/{first['id']}"
        upstream.gate = asyncio.Event()
        asked = len(summaries_asked(upstream))
        writing = asyncio.ensure_future(call(gateway, "POST", f"{path}/regenerate"))
        await until(lambda: len(summaries_asked(upstream)) > asked)
        await done(gateway, "PATCH", path, json={"text": EDITED})
        upstream.gate.set()
        assert (await writing).status_code == 409
        assert (await done(gateway, "GET", path))["text"] == EDITED


async def test_a_deleted_summary_lets_the_log_be_shown_again() -> None:
    models = {
        "*": {"provider": "upstream", "context_window": WINDOW},
        "large": {"provider": "upstream", "context_window": 100_000},
    }
    async with world(Writer(), models=models) as gateway:
        first = await first_summary(gateway)
        gone = await done(gateway, "DELETE", f"c/summaries/{first['id']}")
        assert gone == {"id": first["id"], "object": "conversation.summary.deleted", "deleted": True}
        assert (await done(gateway, "GET", "c/summaries"))["data"] == []
        told = await done(gateway, "GET", "c/context", model="large")
        assert (told["status"], told["messages"]["data"][-1]["disposition"]) == ("full", "verbatim")
        await refused(gateway, 404, "GET", f"c/summaries/{first['id']}")
        body = await talk(gateway, 1, first=24)
        assert body["context_status"] == "summarized"
        assert (await done(gateway, "GET", "c/summaries"))["data"][0]["id"] != first["id"]


async def test_a_branch_shares_the_summaries_of_what_it_shares() -> None:
    async with world(Writer(), window=WINDOW) as gateway:
        first = await first_summary(gateway)
        (conversation,) = gateway.conversations()
        log = await gateway.log(conversation.id)
        body = await gateway.say([*log[:-2], {"role": "user", "content": "Another way"}])
        branch = body["conversation_id"]
        assert branch != conversation.id
        await done(gateway, "PATCH", f"{branch}/summaries/{first['id']}", json={"text": EDITED})
        assert (await done(gateway, "GET", f"c/summaries/{first['id']}"))["text"] == EDITED


async def test_others_find_no_summary() -> None:
    async with world(Writer(), window=WINDOW) as gateway:
        first = await first_summary(gateway)
        (conversation,) = gateway.conversations()
        await gateway.say([{"role": "user", "content": "Hello"}], key="sk-two", conversation="mine")
        path = f"summaries/{first['id']}"
        requests: list[tuple[str, str, Any]] = [
            ("GET", "", None),
            ("PATCH", "", {"text": EDITED}),
            ("DELETE", "", None),
            ("POST", "/regenerate", None),
            ("POST", "/rollback", {"revision": 1}),
        ]
        for method, below, body in requests:
            for named in (conversation.id, "mine"):
                error = await refused(gateway, 404, method, f"{named}/{path}{below}", key="sk-two", json=body)
                assert error["code"] in {"conversation_not_found", "summary_not_found"}
        await refused(gateway, 404, "GET", f"{conversation.id}/summaries", key="sk-two")
        assert (await done(gateway, "GET", f"c/{path}"))["revision"] == 1
