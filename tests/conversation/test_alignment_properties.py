"""What holds of the alignment of any log with any history that a client makes of it."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from typing import Any

import msgspec
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from app.conversation.alignment import (
    Alignment,
    AlignmentElement,
    align_after_head,
    align_history,
    build_alignment_element,
    cut_alignment_head,
    record_first_seqs_of_answers_and_calls,
)
from app.conversation.alignment_evidence import confirms_conversation_hint, proves_same_conversation
from app.dialects.chat.message import ChatMessage

Body = dict[str, Any]
SHORT_QUESTIONS = ("yes", "ok", "go on", "Hi")
SHORT_ANSWERS = ("OK", "Done.", "Hello! How can I help?")


class Line(msgspec.Struct):
    """A message of a history, and the log message that it was made from."""

    body: Body
    seq: int | None
    is_distinctive: bool = False
    """No other message of the log says the same."""


class Turn(msgspec.Struct):
    lines: list[Line]


def long_answer(name: str) -> str:
    return f"Answer {name}: " + f"the archive says this about {name}, and nothing else is known of it. " * 4


@st.composite
def steps(draw: st.DrawFn, turn: int, step: int, reuse_ids: bool) -> list[Line]:
    """One assistant message with one to three calls, and their results."""
    count = draw(st.integers(1, 3))
    ids = [f"call_{n}" if reuse_ids else f"call_{turn:03d}aX{step:02d}Zk{n}q7" for n in range(count)]
    name = draw(st.sampled_from(["run_tests", "read"]))
    calls = []
    for n, call_id in enumerate(ids):
        arguments = "{}" if name == "run_tests" else json.dumps({"path": f"{turn}/{step}/{n}"})
        calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})
    lines = [Line({"role": "assistant", "content": None, "tool_calls": calls}, None)]
    for n, call_id in enumerate(ids):
        content = draw(st.sampled_from(["passed", f"observed {turn}/{step}/{n}"]))
        lines.append(Line({"role": "tool", "tool_call_id": call_id, "content": content}, None))
    return lines


@st.composite
def logs(draw: st.DrawFn, min_turns: int = 3) -> list[Turn]:
    """Turns of a log. The last two have answers of their own; those before may repeat each other."""
    count = draw(st.integers(min_turns, 7))
    reuse_ids = draw(st.booleans())
    turns: list[Turn] = []
    seq = 0
    for number in range(count):
        own = number >= count - 2 or draw(st.booleans())
        question = f"Question {number}?" if own else draw(st.sampled_from(SHORT_QUESTIONS))
        answer = long_answer(str(number)) if own else draw(st.sampled_from(SHORT_ANSWERS))
        lines = [Line({"role": "user", "content": question}, None, own)]
        if draw(st.integers(0, 4)) == 0:
            lines.insert(0, Line({"role": "system", "content": f"It is {number} o'clock."}, None, True))
        for step in range(draw(st.integers(0, 2))):
            lines += draw(steps(number, step, reuse_ids))
        lines.append(Line({"role": "assistant", "content": answer}, None, own))
        for line in lines:
            line.seq, seq = seq, seq + 1
        turns.append(Turn(lines))
    return turns


def alternative_of(seq: int) -> Body:
    return {"role": "assistant", "content": long_answer(f"other choice {seq}")}


def elements_of(turns: Sequence[Turn]) -> list[AlignmentElement]:
    elements = []
    for line in [line for turn in turns for line in turn.lines]:
        ours = line.body["role"] == "assistant"
        message = ChatMessage.from_body(line.body)
        other = build_alignment_element(ChatMessage.from_body(alternative_of(line.seq or 0))).digest if ours else b""
        tokens = len(message.text) // 4
        elements.append(
            build_alignment_element(message, tokens=tokens, is_answer=ours, alternatives=(other,) if ours else ())
        )
    return elements


def split_text(body: Body) -> Body:
    content = body["content"]
    if not isinstance(content, str) or not content:
        return body
    parts = [content[: len(content) // 2], content[len(content) // 2 :]]
    return body | {"content": [{"type": "text", "text": part} for part in parts if part]}


def shortened(line: Line) -> Line:
    """A line of which the client kept one chunk less, if it is a long answer."""
    content = line.body["content"] or ""
    if line.body["role"] != "assistant" or len(content) < 120:
        return line
    return Line(line.body | {"content": content[:-6]}, line.seq)


@st.composite
def retold(draw: st.DrawFn, turns: Sequence[Turn], *, slides: bool = True) -> list[Line]:
    """A log as a client tells it that rewrites the past by any mix of habits. The last two turns stay recognisable."""
    habits = draw(st.sets(st.sampled_from(["notes", "mask", "drop", "split", "reorder", "shorten"])))
    cut = draw(st.integers(0, len(turns) - 2)) if slides else 0
    past = draw(st.sampled_from(["window", "summary", "users and summary"])) if cut else "window"
    lines: list[Line] = []
    if past == "users and summary":
        lines += [line for turn in turns[:cut] for line in turn.lines if line.body["role"] == "user"]
    if "summary" in past:
        lines.append(Line({"role": "user", "content": "Summary of what was said before: many things."}, None))
    for turn in turns[cut:]:
        lines += draw(retold_turn(turn, habits))
    return lines


@st.composite
def retold_turn(draw: st.DrawFn, turn: Turn, habits: set[str]) -> list[Line]:
    rounds: list[list[Line]] = []
    for line in turn.lines:
        if line.body["role"] == "tool":
            rounds[-1].append(line)
        else:
            rounds.append([line])
    lines: list[Line] = []
    for messages in rounds:
        head, results = messages[0], messages[1:]
        if head.body["role"] == "system" and "notes" in habits and draw(st.booleans()):
            continue
        if results and "drop" in habits and draw(st.booleans()):
            continue
        if "mask" in habits:
            results = [
                Line(line.body | {"content": "[masked]"}, line.seq) if draw(st.booleans()) else line for line in results
            ]
        if "reorder" in habits:
            results = draw(st.permutations(results))
        if "notes" in habits and draw(st.booleans()):
            lines.append(Line({"role": "developer", "content": draw(st.sampled_from(["Be brief.", "Now: 9."]))}, None))
        lines += [head, *results]
    if "shorten" in habits:
        lines = [shortened(line) for line in lines]
    if "split" in habits:
        lines = [Line(split_text(line.body), line.seq, line.is_distinctive) for line in lines]
    return lines


@st.composite
def new_lines(draw: st.DrawFn) -> list[Line]:
    """A new user message, which may repeat an old one, between notes."""
    question = draw(st.sampled_from([*SHORT_QUESTIONS, "Question 1?", "Something new?"]))
    lines = [Line({"role": "user", "content": question}, None)]
    if draw(st.booleans()):
        lines.insert(0, Line({"role": "system", "content": "Retrieved: nothing."}, None))
    if draw(st.booleans()):
        lines.append(Line({"role": "user", "content": "And this."}, None))
    return lines


def align_lines(turns: Sequence[Turn], lines: Sequence[Line], *, named: bool = False, first_seq: int = 0) -> Alignment:
    history = [build_alignment_element(ChatMessage.from_body(line.body)) for line in lines]
    return align_history(elements_of(turns), history, is_log_named=named, first_seq=first_seq)


def check_form(turns: Sequence[Turn], lines: Sequence[Line], alignment: Alignment) -> None:
    """What holds whether the history continues or branches."""
    log = elements_of(turns)
    marks = alignment.message_alignments
    assert len(marks) == len(lines)
    kept = [aligned.seq for aligned in marks if aligned.kind in ("same", "rewritten")]
    assert len(set(kept)) == len(kept)
    omitted = [seq for start, end in alignment.omitted_ranges for seq in range(start, end)]
    assert sorted(kept + omitted) == list(range(alignment.last_seq + 1))
    assert all(mark.kind in ("new", "note") for mark in marks[alignment.first_new_index :])
    assert all(mark.kind != "new" for mark in marks[: alignment.first_new_index])
    in_order = [
        aligned.seq
        for line, aligned in zip(lines, marks, strict=True)
        if aligned.kind != "new" and line.body["role"] != "tool"
    ]
    assert in_order == sorted(in_order)
    for line, aligned in zip(lines, marks, strict=True):
        element = build_alignment_element(ChatMessage.from_body(line.body))
        assert element.kind == "note" or aligned.kind != "note"
        if aligned.kind in ("same", "rewritten"):
            assert log[aligned.seq].kind == element.kind
            assert element.kind != "tool" or log[aligned.seq].call_ids == element.call_ids
            assert (log[aligned.seq].digest == element.digest) == (aligned.kind == "same")
        if line.is_distinctive and aligned.kind == "same":
            assert aligned.seq == line.seq


def check_calls(lines: Sequence[Line], alignment: Alignment) -> None:
    """Each result that is paired belongs to the call that is paired: no view has an orphan."""
    call = None
    for line, aligned in zip(lines, alignment.message_alignments, strict=True):
        if line.body["role"] == "assistant":
            call = aligned
        elif line.body["role"] == "tool":
            assert call is not None
            assert (aligned.kind in ("same", "rewritten")) == (call.kind in ("same", "rewritten"))
            assert aligned.kind == "inserted" or call.seq < aligned.seq <= call.seq + 3


def check_new(lines: Sequence[Line], alignment: Alignment, count: int) -> None:
    expected = [at for at in range(len(lines) - count, len(lines)) if lines[at].body["role"] == "user"]
    assert [at for at, aligned in enumerate(alignment.message_alignments) if aligned.kind == "new"] == expected


@given(st.data(), st.booleans())
def test_a_rewritten_history_continues_with_each_message_once(data: st.DataObject, named: bool) -> None:
    turns = data.draw(logs())
    lines = data.draw(retold(turns))
    change = data.draw(st.sampled_from(["none", "cut short", "other choice"]))
    head = turns[-1].lines[-1]
    if change == "cut short":
        size = data.draw(st.integers(100, len(head.body["content"]) - 2))
        lines[-1] = Line(head.body | {"content": head.body["content"][:size]}, head.seq)
    if change == "other choice":
        lines[-1] = Line(alternative_of(head.seq or 0), head.seq)
    new = data.draw(new_lines())
    lines += new
    alignment = align_lines(turns, lines, named=named)
    assert alignment.continues_log
    assert alignment.last_seq == head.seq
    check_form(turns, lines, alignment)
    check_calls(lines, alignment)
    check_new(lines, alignment, len(new))
    for line, aligned in zip(lines, alignment.message_alignments, strict=True):
        if line.is_distinctive:
            assert (aligned.kind, aligned.seq) == ("same", line.seq)
        if line.seq is None:
            assert aligned.kind not in ("same", "rewritten")


def short_exchange(turn: Turn) -> tuple[str, str] | None:
    """The texts of a turn's question and answer, if the answer is short."""
    question = next(line for line in turn.lines if line.body["role"] == "user")
    answer = turn.lines[-1]
    return None if answer.is_distinctive else (question.body["content"], answer.body["content"])


@given(st.data(), st.booleans())
def test_regenerate_and_edit_branch_where_they_happen(data: st.DataObject, named: bool) -> None:
    turns = data.draw(logs(min_turns=4))
    at = data.draw(st.integers(2, len(turns) - 1))
    assume(all(turn.lines[-1].is_distinctive for turn in turns[at - 2 : at]))
    # Known limit: if a client drops calls and results, a short question and answer are taken for equal ones that the
    # log has behind the branch.
    assume(not {short_exchange(turn) for turn in turns[:at]} & {short_exchange(turn) for turn in turns[at:]} - {None})
    lines = data.draw(retold(turns[:at]))
    question = next(line for line in turns[at].lines if line.body["role"] == "user")
    assert question.seq is not None
    is_edit = data.draw(st.booleans())
    lines.append(Line({"role": "user", "content": "Question, edited?"}, None) if is_edit else question)
    alignment = align_lines(turns, lines, named=named)
    check_form(turns, lines, alignment)
    assert not alignment.continues_log
    if is_edit:
        assert alignment.last_seq == turns[at - 1].lines[-1].seq
        check_new(lines, alignment, 1)
    else:
        assert alignment.last_seq == question.seq
        assert alignment.first_new_index == len(lines)


@given(st.data(), st.integers(0, 10_000))
def test_a_log_that_begins_later_is_counted_from_its_first_seq(data: st.DataObject, first_seq: int) -> None:
    turns = data.draw(logs())
    lines = [*data.draw(retold(turns)), *data.draw(new_lines())]
    plain, moved = align_lines(turns, lines), align_lines(turns, lines, first_seq=first_seq)
    assert moved.last_seq == plain.last_seq + first_seq
    assert [(start - first_seq, end - first_seq) for start, end in moved.omitted_ranges] == list(plain.omitted_ranges)
    assert [(a.kind, a.seq - first_seq * (a.kind != "new")) for a in moved.message_alignments] == [
        (a.kind, a.seq) for a in plain.message_alignments
    ]


def close_somewhere(
    log: Sequence[AlignmentElement], history: Sequence[AlignmentElement], alignment: Alignment, *, named: bool
) -> list[Alignment]:
    """Each part of an alignment that can be closed, each made of the one before."""
    firsts: dict[Hashable, int] = {}
    record_first_seqs_of_answers_and_calls(firsts, log, 0)
    heads: list[Alignment] = []
    for at in range(len(history)):
        head = heads[-1] if heads else None
        start = len(head.message_alignments) - 1 if head is not None else 0
        closed = cut_alignment_head(alignment, at, head, log, history[start:], firsts, is_log_named=named)
        heads += [] if closed is None else [closed]
    return heads


@st.composite
def logs_with_own_calls(draw: st.DrawFn) -> list[Turn]:
    """Agents' logs, mostly: turns with calls whose ids no other call has. Some answers repeat."""
    turns: list[Turn] = []
    for number in range(draw(st.integers(3, 7))):
        lines = [Line({"role": "user", "content": draw(st.sampled_from([f"Question {number}?", "go on"]))}, None)]
        if draw(st.integers(0, 4)) == 0:
            lines.insert(0, Line({"role": "system", "content": f"It is {number} o'clock."}, None))
        for step in range(draw(st.integers(0, 4))):
            lines += draw(steps(number, step, reuse_ids=draw(st.integers(0, 9)) == 0))
        answer = draw(st.sampled_from([long_answer(str(number)), f"Done {number}.", "Done."]))
        lines.append(Line({"role": "assistant", "content": answer}, None))
        turns.append(Turn(lines))
    for seq, line in enumerate(line for turn in turns for line in turn.lines):
        line.seq = seq
    return turns


@given(st.data(), st.booleans())
def test_what_is_aligned_behind_a_beginning_is_aligned_as_in_the_whole(data: st.DataObject, named: bool) -> None:
    turns = data.draw(logs_with_own_calls() | logs())
    earlier = turns[: data.draw(st.integers(2, len(turns)))]
    old = data.draw(retold(earlier))
    log, history = elements_of(earlier), [build_alignment_element(ChatMessage.from_body(line.body)) for line in old]
    heads = close_somewhere(log, history, align_history(log, history, is_log_named=named), named=named)
    if not heads:
        return
    head = data.draw(st.sampled_from(heads))
    kept = data.draw(st.integers(len(head.message_alignments), len(old)))
    last = max(line.seq for line in old[:kept] if line.seq is not None) - data.draw(st.sampled_from([0, 0, 0, 1, 5]))
    told = data.draw(retold(turns, slides=False))
    behind = [line for line in told if line.seq is not None and line.seq > last]
    lines = [*old[:kept], *behind, *data.draw(new_lines())]
    log, history = elements_of(turns), [build_alignment_element(ChatMessage.from_body(line.body)) for line in lines]
    firsts: dict[Hashable, int] = {}
    record_first_seqs_of_answers_and_calls(firsts, log, 0)
    found = align_after_head(head, log, history[len(head.message_alignments) - 1 :], firsts, is_log_named=named)
    event("behind" if found is not None else "only the whole can tell")
    assert found is None or found == align_history(log, history, is_log_named=named)


OPENERS = ("Hi", "Hello, I have a question.")
GREETINGS = ("Hello! How can I help?", long_answer("greeting"))
FAQ = {f"How do I do {name}?": long_answer(name) for name in ("a refund", "a return")}
SHARED_CALLS = ("call_0", "functions.search:0", "call_get_date_1")


@st.composite
def openings(draw: st.DrawFn) -> list[Line]:
    """A few-shot prefix that the application brings, and a greeting."""
    lines: list[Line] = []
    for number in range(draw(st.integers(0, 3))):
        lines.append(Line({"role": "user", "content": f"Example {number}"}, None))
        lines.append(Line({"role": "assistant", "content": long_answer(f"example {number}")}, 0))
    return lines


@st.composite
def people(draw: st.DrawFn, name: str, opening: Sequence[Line], greeting: str) -> list[Line]:
    """A conversation of one person: common questions and answers, and some of its own. `seq` is 0 where the assistant
    message is not ours, -1 where it is ours and the person's own."""
    lines = [*opening]
    if draw(st.booleans()):
        lines.append(Line({"role": "user", "content": draw(st.sampled_from(OPENERS))}, None))
        lines.append(Line({"role": "assistant", "content": greeting}, None))
    for number in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["faq", "short", "tool", "own tool", "own", "retell"]))
        if kind == "faq":
            question = draw(st.sampled_from(sorted(FAQ)))
            lines.append(Line({"role": "user", "content": question}, None))
            lines.append(Line({"role": "assistant", "content": FAQ[question]}, None))
        elif kind in ("tool", "own tool"):
            call_id = f"call_{name}{number}xK93jd82" if kind == "own tool" else draw(st.sampled_from(SHARED_CALLS))
            call = {"id": call_id, "type": "function", "function": {"name": "get_date", "arguments": "{}"}}
            lines.append(Line({"role": "user", "content": "What day is it?"}, None))
            lines.append(Line({"role": "assistant", "content": None, "tool_calls": [call]}, None))
            lines.append(Line({"role": "tool", "tool_call_id": call_id, "content": "Monday"}, None))
            lines.append(Line({"role": "assistant", "content": "It is Monday."}, None))
        elif kind == "short":
            lines.append(Line({"role": "user", "content": draw(st.sampled_from(SHORT_QUESTIONS))}, None))
            lines.append(Line({"role": "assistant", "content": draw(st.sampled_from(SHORT_ANSWERS))}, None))
        else:
            question = f"{name} asks {number}" if kind == "own" else "Tell me more."
            lines.append(Line({"role": "user", "content": question}, None))
            lines.append(Line({"role": "assistant", "content": long_answer(f"{name} {number}")}, None))
    return lines


def person_elements(lines: Sequence[Line]) -> list[AlignmentElement]:
    elements = []
    for line in lines:
        message = ChatMessage.from_body(line.body)
        ours = line.body["role"] == "assistant" and line.seq != 0
        elements.append(build_alignment_element(message, tokens=len(message.text) // 4, is_answer=ours))
    return elements


def long_answers(lines: Sequence[Line]) -> list[str]:
    return [
        line.body["content"]
        for line in lines
        if line.seq != 0 and len(line.body["content"] or "") > 100 and line.body["role"] == "assistant"
    ]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[list[Line], list[Line]]:
    opening, greeting = draw(openings()), draw(st.sampled_from(GREETINGS))
    ours, theirs = draw(people("Ann", opening, greeting)), draw(people("Bob", opening, greeting))
    window = draw(st.integers(0, max(0, len(theirs) - 2)))
    question = draw(st.sampled_from([*SHORT_QUESTIONS, *sorted(FAQ), "Bob asks on"]))
    return ours, [*theirs[window:], Line({"role": "user", "content": question}, None)]


def are_indistinguishable(ours: Sequence[Line], theirs: Sequence[Line]) -> bool:
    """Two people got two equal long answers, and the newest answer of the one is an answer of the other, too: nothing
    but an exact chain or an id tells them apart."""
    shared = set(long_answers(ours)) & set(long_answers(theirs))
    texts = [line.body["content"] for line in ours if line.body["role"] == "assistant"]
    newest = [line.body["content"] for line in theirs if line.body["role"] == "assistant"][-1:]
    return len(shared) >= 2 and newest[0] in texts


@settings(max_examples=500)
@given(pairs())
def test_two_conversations_are_not_joined_by_what_they_share(pair: tuple[list[Line], list[Line]]) -> None:
    ours, theirs = pair
    assume(not are_indistinguishable(ours, theirs))
    assert not proves_same_conversation(align_history(person_elements(ours), person_elements(theirs)))


def tells_nothing_of_its_own(ours: Sequence[Line], theirs: Sequence[Line]) -> bool:
    """Whether all assistant messages of one history are in the other, too: nothing but its place in the chain, or an id
    of its own, tells whose it is."""
    known = [line.body for line in ours]
    return all(line.body in known for line in theirs if line.body["role"] == "assistant")


@settings(max_examples=500)
@given(pairs())
def test_two_conversations_are_not_joined_by_a_hint_that_both_have(pair: tuple[list[Line], list[Line]]) -> None:
    ours, theirs = pair
    assume(not tells_nothing_of_its_own(ours, theirs))
    assert not confirms_conversation_hint(
        align_history(person_elements(ours), person_elements(theirs), is_log_named=True)
    )


@given(st.data())
def test_a_conversation_whose_client_compacts_is_known_by_its_hint(data: st.DataObject) -> None:
    turns = data.draw(logs(min_turns=4))
    cut = data.draw(st.integers(1, len(turns) - 1))
    lines = [line for turn in turns[:cut] for line in turn.lines if line.body["role"] == "user"]
    lines.append(Line({"role": "user", "content": "Summary of what was said before: many things."}, None))
    lines += [line for turn in turns[cut:] for line in turn.lines]
    lines.append(Line({"role": "user", "content": "Something new?"}, None))
    alignment = align_lines(turns, lines, named=True)
    assert alignment.continues_log
    assert confirms_conversation_hint(alignment)
