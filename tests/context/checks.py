"""What must hold of every plan, whatever the conversation."""

from __future__ import annotations

import orjson

from app.context.outline import Plan
from tests.context.worlds import COUNT, World


def check_plan(world: World, decided: Plan) -> None:
    check_it_fits_or_says_why(world, decided)
    check_every_message_is_accounted_for(world, decided)
    check_untouched_is_untouched(world, decided)
    check_tokens_are_those_of_the_rendered_view(world, decided)
    check_ranges(world, decided)


def check_it_fits_or_says_why(world: World, decided: Plan) -> None:
    if decided.fits:
        assert world.budget.calibrated(decided.prompt_tokens) <= world.budget.hard
        return
    facts = next(note.facts for note in decided.notes if note.code == "does_not_fit")
    users = [message for message in world.log if message.message.role == "user"]
    if users:
        parts = world.instructions_tokens + users[-1].tokens + COUNT.message({"content": "[1 earlier messages …"}) + 12
        assert world.budget.calibrated(parts) > world.budget.hard
    assert int(facts["instructions_tokens"]) + int(facts["newest_message_tokens"]) + int(
        facts["notice_tokens"]
    ) + 2 >= int(facts["limit_tokens"])


def check_every_message_is_accounted_for(world: World, decided: Plan) -> None:
    verbatim = set(range(decided.boundary_seq, len(world.log)))
    assert set(decided.edits) <= verbatim
    anchor = set() if decided.anchor_seq is None else {decided.anchor_seq}
    assert not anchor & verbatim
    covered: set[int] = set()
    for chunk in decided.chunks:
        span = set(range(chunk.from_seq, chunk.to_seq))
        assert not covered & span
        covered |= span
    assert not covered & verbatim
    dropped = set(range(len(world.log))) - covered - verbatim - anchor
    assert decided.dropped == len(dropped)
    folded = {name for chunk in decided.chunks for name in chunk.folds}
    assert not folded & {chunk.id for chunk in decided.chunks}


def check_untouched_is_untouched(world: World, decided: Plan) -> None:
    rendered = world.render(decided)
    shown = rendered[len(rendered) - (len(world.log) - decided.boundary_seq) :]
    for seq, raw in zip(range(decided.boundary_seq, len(world.log)), shown, strict=True):
        assert (raw is world.log[seq].message.raw) == (seq not in decided.edits)
    if decided.anchor_seq is not None:
        assert world.log[decided.anchor_seq].message.role == "user"
        assert any(raw is world.log[decided.anchor_seq].message.raw for raw in rendered)


def check_tokens_are_those_of_the_rendered_view(world: World, decided: Plan) -> None:
    messages = [orjson.loads(raw) for raw in world.render(decided)]
    assert decided.prompt_tokens == sum(map(COUNT.message, messages)) + 3


def check_nothing_is_orphaned(world: World, decided: Plan) -> None:
    """For logs in which every call has its results right after it."""
    open_calls = 0
    for raw in world.render(decided):
        body = orjson.loads(raw)
        if body["role"] == "tool":
            assert open_calls > 0
            open_calls -= 1
            continue
        assert open_calls == 0
        for call in body.get("tool_calls") or ():
            assert isinstance(orjson.loads(call["function"]["arguments"]), dict)
            open_calls += 1
    assert open_calls == 0 or world.log[-1].message.tool_calls


def check_ranges(world: World, decided: Plan) -> None:
    outline = world.outline()
    position = outline.chunks[-1].to_seq if outline.chunks else 0
    for part in decided.to_summarize:
        assert part.to_seq > part.from_seq
        if part.folds:
            assert part.from_seq == 0
            assert len(part.folds) >= 2
            continue
        assert part.from_seq == position
        position = part.to_seq
    assert position <= len(world.log)
    if position < len(world.log):
        assert world.log[position].message.role != "tool" or position == 0
