"""What must hold of every plan, whatever the conversation."""

from __future__ import annotations

from itertools import chain

import orjson

from app.context.plan.log_rounds import split_into_rounds
from app.context.plan.outline import Plan
from app.context.view.message_edits import render_edited_message
from app.context.view.message_fate import compute_message_fates
from app.context.view.view_rendering import render_dropped_notice
from app.conversation.conversation_types import LogMessage
from tests.context.planned_conversation import COUNT, INSTRUCTIONS, Body, World, calls_of

NOTICE_TOKENS = COUNT.count_message({"role": "user", "content": render_dropped_notice(1_000)})
ANSWERS = frozenset({"tool", "function"})


def check_plan(world: World, decided: Plan) -> None:
    check_it_fits_or_says_why(world, decided)
    check_every_message_is_accounted_for(world, decided)
    check_untouched_is_untouched(world, decided)
    check_origins(world, decided)
    check_tokens_are_those_of_the_rendered_view(world, decided)
    check_rounds_stay_whole(world, decided)
    check_user_text(world, decided)
    check_ranges(world, decided)
    check_rows(world, decided)


def check_it_fits_or_says_why(world: World, decided: Plan) -> None:
    if decided.fits:
        assert world.budget.calibrate_tokens(decided.prompt_tokens) <= world.budget.limit
        return
    facts = next(note.facts for note in decided.notes if note.code == "does_not_fit")
    users = [message for message in world.log if message.message.role == "user"]
    if users:
        pinned = sum(pin.tokens for pin in world.pins if not pin.from_seq <= users[-1].seq < pin.to_seq)
        parts = world.instructions_tokens + pinned + users[-1].tokens + NOTICE_TOKENS
        parts += sum(decided.edits.get(entry.seq, entry).tokens for entry in list_unread_round(world))
        assert world.budget.calibrate_tokens(parts) > world.budget.limit
    told = ("instructions_tokens", "newest_message_tokens", "notice_tokens")
    assert sum(int(facts[name]) for name in told) + 2 >= int(facts["limit_tokens"])


def list_unread_round(world: World) -> list[LogMessage]:
    """The newest calls with their results, if nothing has followed them: they are never left out."""
    calling = [entry.seq for entry in world.log if entry.message.role == "assistant"]
    is_unread = bool(calling) and world.log[-1].message.role in ANSWERS
    return world.log[calling[-1] :] if is_unread else []


def check_every_message_is_accounted_for(world: World, decided: Plan) -> None:
    verbatim = set(range(decided.boundary_seq, len(world.log)))
    assert set(decided.edits) <= verbatim
    anchor = set() if decided.repeated_message_seq is None else {decided.repeated_message_seq}
    pinned = [seq for pin in decided.pins for seq in range(pin.from_seq, pin.to_seq)]
    early = [*pinned, *anchor]
    assert len(early) == len(set(early))
    assert not {*early} & verbatim
    for pin in world.pins:
        seqs = set(range(pin.from_seq, pin.to_seq))
        assert seqs <= verbatim | {*pinned}, "what is pinned is shown"
        assert not seqs & set(decided.edits), "and never shortened"
    covered: set[int] = set()
    for chunk in decided.summaries:
        span = set(range(chunk.from_seq, chunk.to_seq))
        assert not covered & span
        covered |= span
    assert not covered & verbatim
    assert decided.dropped_message_count == len(set(range(len(world.log))) - covered - verbatim - {*early})
    folded = {name for chunk in decided.summaries for name in chunk.folds}
    assert not folded & {chunk.id for chunk in decided.summaries}


def check_untouched_is_untouched(world: World, decided: Plan) -> None:
    rendered = world.render(decided)
    has_summary = bool(decided.summaries or decided.dropped_message_count)
    assert rendered[0] is INSTRUCTIONS
    behind = rendered[1 + has_summary + bool(decided.user_text) :]
    for seq in early_seqs(decided):
        assert behind.pop(0) is world.log[seq].message.raw
    shown = [seq for seq in range(decided.boundary_seq, len(world.log)) if not is_gone(decided, seq)]
    for seq, raw in zip(shown, behind, strict=True):
        assert (raw is world.log[seq].message.raw) == (seq not in decided.edits)
        if seq in decided.edits and decided.edits[seq].kind != "told":
            check_only_what_may_give_has_given(orjson.loads(world.log[seq].message.raw), orjson.loads(raw))
    if decided.repeated_message_seq is not None:
        assert world.log[decided.repeated_message_seq].message.role == "user"


def check_origins(world: World, decided: Plan) -> None:
    """Each message of a view is known for what it is, and everything that is shown stands for itself once."""
    stood_for: list[int] = []
    for raw, one in world.render_with_origins(decided):
        if one.kind == "summary":
            assert "".join(part.text or "" for part in one.parts) == orjson.loads(raw)["content"]
            assert [part.summary_id for part in one.parts if part.summary_id] == [one.id for one in decided.summaries]
        if one.kind == "message":
            assert one.from_seq is not None
            assert one.to_seq is not None
            stood_for += range(one.from_seq, one.to_seq)
            if one.from_seq not in decided.edits:
                assert raw is world.log[one.from_seq].message.raw
    assert stood_for == [*early_seqs(decided), *range(decided.boundary_seq, len(world.log))]


def check_only_what_may_give_has_given(came: Body, shown: Body) -> None:
    giving = {"content", "tool_calls", "function_call", "reasoning_content", "reasoning"}
    assert {name: value for name, value in came.items() if name not in giving} == {
        name: value for name, value in shown.items() if name not in giving
    }
    assert list(shown) == [name for name in came if name in shown]
    for before, after in zip(calls_of(came), calls_of(shown), strict=True):
        assert {name: value for name, value in before.items() if name not in {"function", "custom"}} == {
            name: value for name, value in after.items() if name not in {"function", "custom"}
        }
        function = after.get("function")
        if isinstance(function, dict) and function != before.get("function"):
            assert isinstance(orjson.loads(function["arguments"]), dict)
            assert function["name"] == before["function"]["name"]


def early_seqs(decided: Plan) -> list[int]:
    """What is shown from before the boundary, in the order of the view."""
    anchor = [] if decided.repeated_message_seq is None else [decided.repeated_message_seq]
    return sorted(chain(anchor, *(range(pin.from_seq, pin.to_seq) for pin in decided.pins)))


def is_gone(decided: Plan, seq: int) -> bool:
    """Whether the edit of another message stands for this one."""
    return seq in decided.edits and decided.edits[seq].ops == (("gone",),)


def check_tokens_are_those_of_the_rendered_view(world: World, decided: Plan) -> None:
    messages = [orjson.loads(raw) for raw in world.render(decided)]
    assert decided.prompt_tokens == sum(map(COUNT.count_message, messages)) + 3


def check_rounds_stay_whole(world: World, decided: Plan) -> None:
    """A call and its results are shown together, told together, or not at all."""
    early = set(early_seqs(decided)) - (
        {decided.boundary.anchor_seq} if decided.repeated_message_seq is not None else set()
    )
    for one in split_into_rounds(world.log):
        seqs = set(range(one.from_seq, one.to_seq))
        assert decided.boundary_seq <= one.from_seq or decided.boundary_seq >= one.to_seq
        assert seqs <= early or not seqs & early
        told = {seq for seq in seqs if seq in decided.edits and decided.edits[seq].kind == "told"}
        assert told in (set(), seqs)
        if told:
            told_by = render_edited_message(decided.edits[one.from_seq], lambda at: world.log[at].message)
            assert told_by is not None
            assert not told_by.calls_tools


def check_user_text(world: World, decided: Plan) -> None:
    """All kept lines of hidden messages are shown, or none, and none of a message that is shown anyway."""
    hidden = set(range(decided.boundary_seq)) - {*early_seqs(decided)}
    shown = [one.seq for one in decided.user_text]
    assert {*shown} <= hidden
    assert shown == sorted(shown)
    if shown:
        log_tokens = world.log[-1].tokens_total
        assert decided.prompt_tokens <= world.instructions_tokens + log_tokens, "never longer than what it stands for"
    assert shown in ([], [one.seq for one in world.user_text.lines if one.seq in hidden])


def check_nothing_is_orphaned(world: World, decided: Plan) -> None:
    """For logs in which every call has its results right after it."""
    open_calls = 0
    for raw in world.render(decided):
        body = orjson.loads(raw)
        if body["role"] in ANSWERS:
            assert open_calls > 0
            open_calls -= 1
            continue
        assert open_calls == 0
        open_calls += len(calls_of(body))
    assert open_calls in {0, calls_that_wait(world)}


def calls_that_wait(world: World) -> int:
    """How many calls of the log's last round have no result yet."""
    one = split_into_rounds(world.log)[-1]
    return len(world.log[one.from_seq].message.calls) - (one.to_seq - one.from_seq - 1)


def check_ranges(world: World, decided: Plan) -> None:
    outline = world.outline()
    position = outline.summaries[-1].to_seq if outline.summaries else 0
    openings = {one.from_seq for one in split_into_rounds(world.log)} | {len(world.log)}
    if world.policy.has_replacing_summaries and decided.to_summarize:
        [part] = decided.to_summarize
        assert (part.from_seq, part.folds) == (0, ())
        assert part.to_seq in openings
        style = "checkpoint" if world.policy.kind == "checkpoint" else "recursive"
        assert (part.style, part.base) == (style, outline.summaries[-1].id if outline.summaries else "")
        assert part.to_seq > position
        return
    for part in decided.to_summarize:
        assert part.to_seq > part.from_seq
        assert part.style == "additive"
        if part.folds:
            assert part.from_seq == 0
            assert len(part.folds) >= 2
            continue
        assert part.from_seq == position
        position = part.to_seq
    assert position in openings


def check_rows(world: World, decided: Plan) -> None:
    rows = compute_message_fates(world.log, decided)
    assert [row.seq for row in rows] == list(range(len(world.log)))
    assert sum(row.kind == "dropped" for row in rows) == decided.dropped_message_count
    assert {row.seq for row in rows if row.kind in {"masked", "truncated", "cleared", "told"}} == set(decided.edits)
    assert {row.summary_id for row in rows} - {None} <= {chunk.id for chunk in decided.summaries}
    assert all(row.reason for row in rows)
    summary = world.summary_tokens(decided) + world.user_text.count_tokens(decided.user_text)
    assert world.instructions_tokens + summary + sum(row.shown_tokens for row in rows) == decided.prompt_tokens
