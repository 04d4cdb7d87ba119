from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.stages.draft import find_fitting_text_share
from app.dialects.body.message import decode_body
from app.dialects.body.message_edits import truncate_message_texts
from app.dialects.text_truncation import truncate_text
from tests.context.plan_checks import check_nothing_is_orphaned, check_plan
from tests.context.planned_conversation import COUNT, World, assistant, calls, log_of, result, user, words


def test_whole_old_rounds_are_left_out_and_a_notice_says_how_many() -> None:
    said = words(350)
    loop = [body for _ in range(22) for body in (calls("search", "fetch", content=said), result(said), result(said))]
    world = World(bodies=[user("Find it"), *loop])
    decided = world.plan("never")
    check_plan(world, decided)
    check_nothing_is_orphaned(world, decided)
    assert decided.status == "trimmed"
    assert decided.repeated_message_seq == 0
    assert f"[{decided.dropped_message_count} earlier messages".encode() in world.render(decided)[1]


def test_what_is_cut_is_at_least_a_quarter_of_the_limit() -> None:
    world = World(bodies=[*[user(words(100)), assistant(words(100))] * 38, user(words(50))])
    assert world.plan("never").fits
    world.say(assistant(words(200)), user("Go on"))
    decided = world.plan("never")
    assert decided.status == "trimmed"
    assert decided.prompt_tokens <= 0.8 * world.budget.limit


def test_a_long_tool_result_of_the_current_turn_is_shortened_and_marked() -> None:
    fields = {"name": "read", "vendor": {"kept": [1, 2]}}
    text = "\n".join(f"line {number} of the file" for number in range(4_000))
    world = World(bodies=[user("Read it"), calls("read"), {**result(text), **fields}])
    decided = world.plan("never")
    check_plan(world, decided)
    assert list(decided.edits) == [2]
    body = world.shown(decided, 2)
    assert {name: body[name] for name in ("name", "vendor", "tool_call_id")} == {**fields, "tool_call_id": "call_0"}
    assert body["content"].startswith("line 0 of the file\n")
    assert body["content"].endswith("line 3999 of the file")
    assert "characters left out" in body["content"]


def test_the_newest_user_message_is_never_shortened() -> None:
    world = World(window=2_000, bodies=[user(words(1_500)), calls("read"), result(words(3_000))])
    decided = world.plan("never")
    check_plan(world, decided)
    assert decided.fits
    assert world.log[0].message.raw in world.render(decided)


def test_arguments_of_a_call_stay_a_json_object_when_they_are_shortened() -> None:
    arguments = orjson.dumps({"path": "/srv/app.py", "body": words(6_000), "lines": [1, 2]}).decode()
    world = World(window=4_096, bodies=[user("Write it"), calls("write", arguments=arguments), result("done")])
    decided = world.plan("never")
    check_plan(world, decided)
    [call] = world.shown(decided, 1)["tool_calls"]
    kept = orjson.loads(call["function"]["arguments"])
    assert (kept["path"], kept["lines"]) == ("/srv/app.py", [1, 2])
    assert "characters left out" in kept["body"]


@pytest.mark.parametrize(
    "arguments", ["[" + "1, " * 5_000 + "1]", "not json " * 3_000, '{"a": [' + "12, " * 5_000 + "1]}"]
)
def test_arguments_that_cannot_give_become_an_object_that_says_so(arguments: str) -> None:
    [message] = log_of([calls("write", arguments=arguments)])
    share, tokens = find_fitting_text_share(message.message, message.tokens, 60, COUNT.count_message)
    body = truncate_message_texts(decode_body(message.message), share)
    [call] = body["tool_calls"]
    assert "left_out" in orjson.loads(call["function"]["arguments"])
    assert COUNT.count_message(body) == tokens <= 60


def test_instructions_and_the_newest_message_that_do_not_fit_are_told_apart() -> None:
    world = World(window=2_000, bodies=[user("Hi"), assistant("Hello"), user(words(3_000))])
    decided = world.plan()
    check_plan(world, decided)
    assert not decided.fits
    facts = next(note.facts for note in decided.notes if note.code == "does_not_fit")
    assert facts["limit_tokens"] == world.budget.limit
    assert int(facts["newest_message_tokens"]) > 2_900


def test_the_newest_round_is_shown_even_if_it_cannot_be_made_to_fit() -> None:
    loop = calls(*["search"] * 300)
    world = World(window=1_024, bodies=[user("Find it"), loop, *[result("x", f"call_{place}") for place in range(300)]])
    decided = world.plan()
    check_plan(world, decided)
    assert not decided.fits
    assert [orjson.loads(raw)["role"] for raw in world.render(decided)[1:]] == ["user", "assistant", *["tool"] * 300]


def test_the_request_alone_is_sent_when_nothing_read_beside_it_can_be_made_to_fit() -> None:
    loop = calls(*["search"] * 300)
    results = [result("x", f"call_{place}") for place in range(300)]
    world = World(window=1_024, bodies=[user("Find it"), loop, *results, assistant("Found."), user("And now?")])
    decided = world.plan()
    check_plan(world, decided)
    assert decided.fits
    assert world.render(decided)[-1] is world.log[-1].message.raw


def test_a_conversation_without_any_user_message_is_trimmed_too() -> None:
    world = World(window=1_024, bodies=[assistant(words(600)), assistant(words(600)), assistant(words(3_000))])
    decided = world.plan("never")
    check_plan(world, decided)
    assert decided.fits


@given(text=st.text(min_size=200, max_size=3_000), keep=st.integers(0, 3_000))
def test_a_shortened_text_keeps_its_ends_and_says_what_is_missing(text: str, keep: int) -> None:
    short = truncate_text(text, keep)
    if len(text) <= keep:
        assert short == text
        return
    head, tail = short.split("[… ")[0], short.rsplit("left out …]", maxsplit=1)[-1]
    assert "characters left out" in short
    if "[… " not in text and "left out" not in text:
        assert text.startswith(head.removesuffix("\n"))
        assert text.endswith(tail.removeprefix("\n"))
