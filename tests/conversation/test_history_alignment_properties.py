"""What holds of the alignment of any log with any history that a client makes of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from app.conversation.history_alignment import Alignment, Element, align, build_element
from app.dialects.body.message import ChatMessage

Body = dict[str, Any]
SHORT_QUESTIONS = ("yes", "ok", "go on", "Hi")
SHORT_ANSWERS = ("OK", "Done.", "Hello! How can I help?")
FOOTER = "\n\n---\nMade by a model."


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


def elements_of(turns: Sequence[Turn]) -> list[Element]:
    elements = []
    for line in [line for turn in turns for line in turn.lines]:
        other = build_element(ChatMessage.from_body(alternative_of(line.seq or 0))).digest
        alternatives = (other,) if line.body["role"] == "assistant" else ()
        elements.append(build_element(ChatMessage.from_body(line.body), alternatives=alternatives))
    return elements


def split_text(body: Body) -> Body:
    content = body["content"]
    if not isinstance(content, str) or not content:
        return body
    parts = [content[: len(content) // 2], content[len(content) // 2 :]]
    return body | {"content": [{"type": "text", "text": part} for part in parts if part]}


def change_answer(line: Line, habits: set[str]) -> Line:
    """A line of which the client kept one chunk less, or to which it added a footer, if it is a long answer."""
    content = line.body["content"] or ""
    if line.body["role"] != "assistant" or len(content) < 120 or not habits & {"shorten", "footer"}:
        return line
    return Line(line.body | {"content": content[:-6] if "shorten" in habits else content + FOOTER}, line.seq)


@st.composite
def retold(draw: st.DrawFn, turns: Sequence[Turn]) -> list[Line]:
    """A log as a client tells it that rewrites the past by any mix of habits. The last two turns stay recognisable."""
    habits = draw(st.sets(st.sampled_from(["notes", "mask", "drop", "split", "reorder", "shorten", "footer"])))
    cut = draw(st.integers(0, len(turns) - 2))
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
    lines = [change_answer(line, habits) for line in lines]
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


def align_lines(turns: Sequence[Turn], lines: Sequence[Line], proven_seq: int, *, named: bool) -> Alignment:
    history = [build_element(ChatMessage.from_body(line.body)) for line in lines]
    places = [index for index, line in enumerate(lines) if line.seq == proven_seq]
    return align(elements_of(turns), history, None if named else (places[-1], proven_seq), omits_answers=named)


def find_pairs(alignment: Alignment) -> dict[int, int]:
    return {index: mark.seq for index, mark in enumerate(alignment.marks) if mark.kind in ("same", "rewritten")}


def find_calls(elements: Sequence[Element], index: int) -> list[int]:
    """The calls before a result, since the last user message or answer."""
    calls: list[int] = []
    for earlier in range(index - 1, -1, -1):
        if elements[earlier].kind in ("user", "answer"):
            break
        if elements[earlier].kind == "call":
            calls.append(earlier)
    return calls


def check_form(log: Sequence[Element], history: Sequence[Element], alignment: Alignment) -> None:
    """What holds of every alignment."""
    marks, pairs = alignment.marks, find_pairs(alignment)
    assert len(marks) == len(history)
    omitted = [seq for start, end in alignment.omitted for seq in range(start, end)]
    assert sorted([*pairs.values(), *omitted]) == list(range(alignment.last_seq + 1))
    assert all(end < start for (_, end), (start, _) in zip(alignment.omitted, alignment.omitted[1:], strict=False))
    assert set(alignment.joined) <= set(omitted)
    assert all(mark.kind in ("new", "note") for mark in marks[alignment.first_new_index :])
    assert all(mark.kind != "new" for mark in marks[: alignment.first_new_index])
    assert all(mark.seq <= alignment.last_seq + 1 for mark in marks[: alignment.first_new_index])
    assert not alignment.continues_log or alignment.last_seq == len(log) - 1
    in_order = [
        mark.seq
        for mark, element in zip(marks, history, strict=True)
        if mark.kind != "new" and element.kind in ("user", "answer", "call")
    ]
    assert in_order == sorted(in_order)
    for index, (mark, element) in enumerate(zip(marks, history, strict=True)):
        assert element.kind == "note" or mark.kind != "note"
        if index not in pairs:
            assert element.kind != "note" or mark.kind == "note"
            continue
        known = log[mark.seq]
        assert (known.comparison_key == element.comparison_key) == (mark.kind == "same")
        assert known.kind == element.kind or {known.kind, element.kind} == {"answer", "call"}
        if element.kind == "result" and (calls := find_calls(history, index)):
            assert {pairs.get(call) for call in calls} & set(find_calls(log, mark.seq))


def check_calls(lines: Sequence[Line], alignment: Alignment) -> None:
    """Each result is paired exactly if its call is, so no view has an orphan."""
    call = None
    for line, mark in zip(lines, alignment.marks, strict=True):
        if line.body["role"] == "assistant":
            call = mark
        elif line.body["role"] == "tool":
            assert call is not None
            assert (mark.kind in ("same", "rewritten")) == (call.kind in ("same", "rewritten"))
            assert mark.kind == "inserted" or call.seq < mark.seq <= call.seq + 3


def check_new(lines: Sequence[Line], alignment: Alignment, count: int) -> None:
    expected = [at for at in range(len(lines) - count, len(lines)) if lines[at].body["role"] == "user"]
    assert [at for at, mark in enumerate(alignment.marks) if mark.kind == "new"] == expected


@given(st.data(), st.booleans())
def test_a_rewritten_history_continues_with_each_message_once(data: st.DataObject, named: bool) -> None:
    turns = data.draw(logs())
    lines = data.draw(retold(turns))
    change = data.draw(st.sampled_from(["none", "cut short", "other choice"]))
    head = turns[-1].lines[-1]
    assert head.seq is not None
    if change == "cut short":
        size = data.draw(st.integers(1, len(head.body["content"]) - 2))
        lines[-1] = Line(head.body | {"content": head.body["content"][:size]}, head.seq)
    if change == "other choice":
        lines[-1] = Line(alternative_of(head.seq), head.seq)
    new = data.draw(new_lines())
    lines += new
    alignment = align_lines(turns, lines, head.seq, named=named)
    check_form(elements_of(turns), [build_element(ChatMessage.from_body(line.body)) for line in lines], alignment)
    assert alignment.continues_log
    check_calls(lines, alignment)
    check_new(lines, alignment, len(new))
    for line, mark in zip(lines, alignment.marks, strict=True):
        if line.is_distinctive:
            assert (mark.kind, mark.seq) == ("same", line.seq)
        if line.seq is None:
            assert mark.kind not in ("same", "rewritten")


@given(st.data(), st.booleans())
def test_regenerate_and_edit_branch_where_they_happen(data: st.DataObject, named: bool) -> None:
    turns = data.draw(logs(min_turns=4))
    at = data.draw(st.integers(2, len(turns) - 1))
    assume(all(turn.lines[-1].is_distinctive for turn in turns[at - 2 : at]))
    lines = data.draw(retold(turns[:at]))
    question = next(line for line in turns[at].lines if line.body["role"] == "user")
    proven = turns[at - 1].lines[-1].seq
    assert question.seq is not None
    assert proven is not None
    is_edit = data.draw(st.booleans())
    lines.append(Line({"role": "user", "content": "Question, edited?"}, None) if is_edit else question)
    alignment = align_lines(turns, lines, proven, named=named)
    check_form(elements_of(turns), [build_element(ChatMessage.from_body(line.body)) for line in lines], alignment)
    assert not alignment.continues_log
    if is_edit:
        assert alignment.last_seq == proven
        check_new(lines, alignment, 1)
    else:
        assert alignment.last_seq == question.seq
        assert alignment.first_new_index == len(lines)


ANY_BODIES: list[Body] = [
    *({"role": "user", "content": text} for text in ("ok", "look, this is ok", "u0", "u1")),
    *({"role": "assistant", "content": text} for text in ("Done.", "Done. And more.", long_answer("0"), "{")),
    *({"role": "system", "content": text} for text in ("n0", "n1")),
    *({"role": "tool", "tool_call_id": call_id, "content": text} for call_id in ("c0", "c1", "") for text in "ab"),
    *(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call_id, "function": {"name": "f", "arguments": arguments}} for call_id in ids],
        }
        for ids in (["c0"], ["c0", "c1"], ["", ""])
        for arguments in ("{}", '{"a": 1}')
    ),
]
ANY_ELEMENTS = [build_element(ChatMessage.from_body(body)) for body in ANY_BODIES]
any_messages = st.lists(st.sampled_from(ANY_ELEMENTS), max_size=14)


@st.composite
def any_logs(draw: st.DrawFn) -> list[Element]:
    log = draw(any_messages)
    digests = st.sampled_from([b"", b"", ANY_ELEMENTS[4].digest, ANY_ELEMENTS[6].digest])
    others = draw(st.lists(digests, min_size=len(log), max_size=len(log)))
    return [
        msgspec.structs.replace(element, alternatives=(other,)) if other and element.kind == "answer" else element
        for element, other in zip(log, others, strict=True)
    ]


@given(st.data(), any_logs(), st.booleans())
def test_any_history_is_aligned_with_any_log(data: st.DataObject, log: list[Element], omits: bool) -> None:
    start, end = sorted((data.draw(st.integers(0, len(log))), data.draw(st.integers(0, len(log)))))
    history = [*data.draw(any_messages), *log[start:end], *data.draw(any_messages)]
    places = [
        (index, seq)
        for index, element in enumerate(history)
        for seq, known in enumerate(log)
        if known.kind == element.kind and known.kind in ("answer", "call")
    ]
    proof = data.draw(st.sampled_from([None, *places]))
    alignment = align(log, history, proof, omits_answers=omits)
    check_form(log, history, alignment)
    assert proof is None or find_pairs(alignment)[proof[0]] == proof[1]


@given(st.data(), any_logs(), st.booleans())
def test_a_history_that_is_the_log_is_the_same(data: st.DataObject, log: list[Element], omits: bool) -> None:
    answers = [seq for seq, element in enumerate(log) if element.kind in ("answer", "call")]
    proof = data.draw(st.sampled_from([None, *answers]))
    count = data.draw(st.integers(0 if proof is None else proof + 1, len(log)))
    alignment = align(log, log[:count], None if proof is None else (proof, proof), omits_answers=omits)
    same = find_pairs(alignment)
    assume(same)
    last = max(same)
    assert {mark.kind for mark in alignment.marks[: last + 1]} == {"same"}
    assert all(element.kind == "note" for element in log[last + 1 : count])
    # Of equal notes at the end, any one may be meant.
    assert all(log[seq].kind == "note" for start, end in alignment.omitted for seq in range(start, end))
