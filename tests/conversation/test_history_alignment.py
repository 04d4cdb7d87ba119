"""How the habits of clients look in the alignment of log and history: one case for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from app.conversation.history_alignment import Alignment, Element, align, build_element, is_known_answer
from app.dialects.body.message import ChatMessage
from app.dialects.items.message import ResponsesMessage
from tests.support.cpu_time import grows_linearly, least_cpu_seconds

Body = dict[str, Any]


def user(text: str) -> Body:
    return {"role": "user", "content": text}


def note(text: str) -> Body:
    return {"role": "system", "content": text}


def answer(text: str) -> Body:
    return {"role": "assistant", "content": text}


def call(*ids: str, arguments: str = "{}") -> Body:
    calls = [{"id": i, "type": "function", "function": {"name": "read", "arguments": arguments}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str, text: str) -> Body:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def long(name: str) -> Body:
    return answer(f"{name}: " + " ".join(f"{name} has part {n}, which the archive describes." for n in range(8)))


def change(body: Body, old: str, new: str) -> Body:
    return body | {"content": body["content"].replace(old, new)}


def add(body: Body, text: str) -> Body:
    return body | {"content": body["content"] + text}


def step(call_id: str, number: int) -> list[Body]:
    return [call(call_id, arguments=f'{{"step": {number}}}'), result(call_id, f"output {number}")]


X, Y, Z = "call_x8Kd03jq2Lm1", "call_y8Kd03jq2Lm1", "call_z8Kd03jq2Lm1"
CHAT = [user("u0"), long("a0"), user("u1"), long("a1"), user("u2"), long("a2")]
SHORT = [user("Hi"), answer("Hello!"), user("yes"), answer("OK"), user("yes"), answer("OK")]
DONE = [
    user("Fix it"),
    answer("Done."),
    user("ok"),
    answer("Done."),
    user("ok"),
    answer("Done."),
    user("Thanks"),
    long("b"),
]
AGENT = [user("Fix it"), call(X, Y), result(X, "rx"), result(Y, "ry"), call(Z), result(Z, "rz"), long("done")]
COUNTED = [user("Fix it"), *step("functions.bash:0", 0), *step("functions.bash:1", 1), long("one")]
COUNTED += [user("More"), *step("functions.bash:0", 2), *step("functions.bash:1", 3), long("two")]
ZEROS = [user("Fix it"), *step("call_0", 0), *step("call_0", 0), *step("call_0", 1), *step("call_0", 2), long("end")]
NOTED = [user("u0"), long("a0"), note("date"), user("u1"), long("a1")]
GROUP = [user("Ann: hi"), user("Bob: hi"), long("a0"), user("Ann: why?"), user("Bob: yes"), user("Ann: ok"), long("a1")]
RENT = [user("The rent is 500."), long("a0"), user("And the year?"), long("a1")]
RETRIED = [*CHAT[:2], user("u1")]
CUT = [*CHAT[:3], answer(CHAT[3]["content"][:120])]
FEW = [*CHAT[:4], user("u2"), answer("It is so.")]
NEW = user("something new")
CHECKPOINT = [user("Where"), user("Fix it"), call(X), result(X, "rx"), user("Summarize."), long("s")]
HANDOFF = user(f"Another model wrote this summary:\n  {CHECKPOINT[-1]['content']}\n")
CITED = answer("The [tower](https://a.example/1) is 300 m tall [1], and its builder [2, 3] died before it was done.")
UNCITED = answer("The tower is 300 m tall, and its builder died before it was done.")
LINES = answer("The list has the following parts, each of them short:\n\n* the first\n\n* the second\n\n* the third")


def read_log(bodies: Sequence[Body]) -> list[Element]:
    """The elements of a log. A body's `others` are what its client may send in its place: other choices, and the
    message that it makes of a prefill and the answer."""
    return [
        build_element(
            ChatMessage.from_body({name: value for name, value in body.items() if name != "others"}),
            alternatives=tuple(build_element(ChatMessage.from_body(other)).digest for other in body.get("others", ())),
        )
        for body in bodies
    ]


def find_proof(log: Sequence[Element], history: Sequence[Element]) -> tuple[int, int] | None:
    """The newest answer that is long enough, or call, of which the log has one version alone."""
    for index, element in reversed([*enumerate(history)]):
        if element.known_words or element.kind == "call":
            seqs = [seq for seq, known in enumerate(log) if is_known_answer(known, element)]
            if len(seqs) == 1:
                return index, seqs[0]
    return None


def align_proven(log: Sequence[Body], history: Sequence[Body]) -> Alignment:
    known, told = read_log(log), read_log(history)
    proof = find_proof(known, told)
    assert proof is not None
    return align(known, told, proof, omits_answers=False)


def align_named(log: Sequence[Body], history: Sequence[Body]) -> Alignment:
    return align(read_log(log), read_log(history), None, omits_answers=True)


def show(alignment: Alignment) -> str:
    """`=3` same, `~3` rewritten, `n3` note, `i3` inserted, `s3` summary, `+` new; and where it goes on."""
    letters = {"same": "=", "rewritten": "~", "note": "n", "inserted": "i", "summary": "s"}
    marks = " ".join("+" if mark.kind == "new" else f"{letters[mark.kind]}{mark.seq}" for mark in alignment.marks)
    omitted = "".join(f" {start}-{end}" for start, end in alignment.omitted)
    what = "continues" if alignment.continues_log else "branches"
    outcome = f"{what} {alignment.last_seq}" + (f" omits{omitted}" if omitted else "")
    return f"{marks} | {'new' if alignment.last_seq < 0 else outcome}"


BOTH: dict[str, tuple[list[Body], list[Body], str]] = {
    "the usual client": (CHAT, [*CHAT, NEW], "=0 =1 =2 =3 =4 =5 + | continues 5"),
    "a note before the newest message": (CHAT, [*CHAT, note("now"), NEW], "=0 =1 =2 =3 =4 =5 n6 + | continues 5"),
    "notes everywhere": (
        CHAT,
        [note("a"), *CHAT[:3], note("b"), *CHAT[3:], NEW, note("c")],
        "n0 =0 =1 =2 n3 =3 =4 =5 + n7 | continues 5",
    ),
    "a note at a depth of two": (
        CHAT,
        [*CHAT[:5], note("style"), CHAT[5], NEW],
        "=0 =1 =2 =3 =4 n5 =5 + | continues 5",
    ),
    "a note at a depth of two, which the log has elsewhere": (
        [*CHAT[:3], note("style"), *CHAT[3:]],
        [*CHAT[:5], note("style"), CHAT[5], NEW],
        "=0 =1 =2 =4 =5 n6 =6 + | continues 6 omits 3-4",
    ),
    "a note of the log comes back": (NOTED, [*NOTED, NEW], "=0 =1 =2 =3 =4 + | continues 4"),
    "a note of the log is gone": (NOTED, [*NOTED[:2], *NOTED[3:], NEW], "=0 =1 =3 =4 + | continues 4 omits 2-3"),
    "a note of the log says something else": (
        NOTED,
        [*NOTED[:2], note("later"), *NOTED[3:], NEW],
        "=0 =1 n3 =3 =4 + | continues 4 omits 2-3",
    ),
    "a note of the log at its end": (NOTED[:3], [*NOTED[:2], NEW], "=0 =1 + | continues 2 omits 2-3"),
    "notes of the log that repeat": (
        [note("n"), *CHAT[:2], note("n"), note("m"), *CHAT[2:4]],
        [*CHAT[:2], note("m"), note("n"), *CHAT[2:4], NEW],
        "=1 =2 n3 =3 =5 =6 + | continues 6 omits 0-1 4-5",
    ),
    "masked results": (
        AGENT,
        [*AGENT[:2], result(X, "-"), result(Y, "-"), call(Z), result(Z, "-"), AGENT[6], NEW],
        "=0 =1 ~2 ~3 =4 ~5 =6 + | continues 6",
    ),
    "parallel results in another order": (
        AGENT,
        [*AGENT[:2], AGENT[3], AGENT[2], *AGENT[4:], NEW],
        "=0 =1 =3 =2 =4 =5 =6 + | continues 6",
    ),
    "masked parallel results in another order, and a note between them": (
        AGENT,
        [*AGENT[:2], result(Y, "-"), note("n"), result(X, "-"), *AGENT[4:], NEW],
        "=0 =1 ~3 n4 ~2 =4 =5 =6 + | continues 6",
    ),
    "shortened arguments": (
        AGENT,
        [AGENT[0], call(X, Y, arguments='{"short": 1}'), *AGENT[2:], NEW],
        "=0 ~1 =2 =3 =4 =5 =6 + | continues 6",
    ),
    "calls with ids of the client's own": (
        AGENT,
        [AGENT[0], call("a", "b"), result("b", "ry"), result("a", "rx"), *AGENT[4:], NEW],
        "=0 ~1 ~3 ~2 =4 =5 =6 + | continues 6",
    ),
    "dropped calls": (AGENT, [AGENT[0], AGENT[6], NEW], "=0 =6 + | continues 6 omits 1-6"),
    "one dropped result": (AGENT, [*AGENT[:2], *AGENT[3:], NEW], "=0 =1 =3 =4 =5 =6 + | continues 6 omits 2-3"),
    "a result without its call": (AGENT, [*AGENT[:4], *AGENT[5:], NEW], "=0 =1 =2 =3 i4 =6 + | continues 6 omits 4-6"),
    "masked results with counted ids": (
        COUNTED,
        [change(body, "output", "left out") if body["role"] == "tool" else body for body in COUNTED] + [NEW],
        "=0 =1 ~2 =3 ~4 =5 =6 =7 ~8 =9 ~10 =11 + | continues 11",
    ),
    "shortened arguments with counted ids": (
        COUNTED,
        [call(*(one["id"] for one in body["tool_calls"])) if "tool_calls" in body else body for body in COUNTED]
        + [NEW],
        "=0 ~1 =2 ~3 =4 =5 =6 ~7 =8 ~9 =10 =11 + | continues 11",
    ),
    "dropped rounds with counted ids": (
        COUNTED,
        [COUNTED[0], *COUNTED[3:7], result("functions.bash:1", "-"), *COUNTED[9:], NEW],
        "=0 =3 =4 =5 =6 i7 =9 =10 =11 + | continues 11 omits 1-3 7-9",
    ),
    "masked results under one id": (
        ZEROS,
        [ZEROS[0], ZEROS[1], result("call_0", "-"), ZEROS[3], result("call_0", "-"), *ZEROS[5:], NEW],
        "=0 =1 ~2 =3 ~4 =5 =6 =7 =8 =9 + | continues 9",
    ),
    "a window under one id": (ZEROS, [*ZEROS[5:], NEW], "=5 =6 =7 =8 =9 + | continues 9 omits 0-5"),
    "a window that begins with a result": (ZEROS, [*ZEROS[6:], NEW], "i0 =7 =8 =9 + | continues 9 omits 0-7"),
    "a window under one id, with shortened arguments": (
        ZEROS,
        [call("call_0"), ZEROS[6], call("call_0"), result("call_0", "-"), ZEROS[9], NEW],
        "~5 =6 ~7 ~8 =9 + | continues 9 omits 0-5",
    ),
    "results whose ids and texts repeat": (
        [
            *CHAT[:3],
            *(call("call_0", "call_1"), result("call_0", "r"), result("call_1", "passed")),
            *(call("call_1"), result("call_1", "passed"), long("b")),
        ],
        [*CHAT[:3], call("call_0", "call_1"), result("call_0", "-"), result("call_1", "passed"), long("b"), NEW],
        "=0 =1 =2 =3 ~4 =5 =8 + | continues 8 omits 6-8",
    ),
    "results without ids": (
        [CHAT[0], call("", ""), result("", "r0"), result("", "r1"), long("b")],
        [CHAT[0], call("", ""), result("", "-"), result("", "r1"), long("b"), NEW],
        "=0 =1 ~2 =3 =4 + | continues 4",
    ),
    "results without ids, of which one is dropped": (
        [CHAT[0], call("", ""), result("", "r0"), result("", "r1"), long("b")],
        [CHAT[0], call("", ""), result("", "r1"), long("b"), NEW],
        "=0 =1 =3 =4 + | continues 4 omits 2-3",
    ),
    "a sliding window": (CHAT, [*CHAT[4:], NEW], "=4 =5 + | continues 5 omits 0-4"),
    "a sliding window that begins with an answer": (CHAT, [*CHAT[3:], NEW], "=3 =4 =5 + | continues 5 omits 0-3"),
    "a sliding window over repeated words": (DONE, [*DONE[4:], NEW], "=4 =5 =6 =7 + | continues 7 omits 0-4"),
    "a sliding window of an agent": (AGENT, [*AGENT[4:], NEW], "=4 =5 =6 + | continues 6 omits 0-4"),
    "a window that keeps the task": (CHAT, [CHAT[0], *CHAT[4:], NEW], "=0 =4 =5 + | continues 5 omits 1-4"),
    "a summary instead of the beginning": (
        CHAT,
        [user("Summary"), *CHAT[4:], NEW],
        "s0 =4 =5 + | continues 5 omits 0-4",
    ),
    "a summary of one exchange": (CHAT, [user("Summary"), *CHAT[2:], NEW], "s0 =2 =3 =4 =5 + | continues 5 omits 0-2"),
    "a summary after the task, to which a reminder was added": (
        [*CHAT, user("u3"), long("a3"), user("u4"), long("a4")],
        [add(CHAT[0], " (be brief)"), user("Summary"), user("u4"), long("a4"), NEW],
        "~0 s1 =8 =9 + | continues 9 omits 1-8",
    ),
    "a summary with an acknowledgement": (
        CHAT,
        [user("Summary"), answer("Understood."), answer("Go on."), *CHAT[4:], NEW],
        "s0 s0 s0 =4 =5 + | continues 5 omits 0-4",
    ),
    "a summary after kept questions, which stands for one answer at its place": (
        CHAT,
        [CHAT[0], CHAT[2], user("Summary"), *CHAT[4:], NEW],
        "=0 =2 i3 =4 =5 + | continues 5 omits 1-2 3-4",
    ),
    "a question that the user edits in its place": (
        RENT,
        [change(RENT[0], "500", "900"), *RENT[1:], NEW],
        "~0 =1 =2 =3 + | continues 3",
    ),
    "an old answer that the user edits": (
        CHAT,
        [*CHAT[:3], answer("cleaned"), *CHAT[4:], NEW],
        "=0 =1 =2 ~3 =4 =5 + | continues 5",
    ),
    "a deleted exchange": (CHAT, [*CHAT[:2], *CHAT[4:], NEW], "=0 =1 =4 =5 + | continues 5 omits 2-4"),
    "a deleted answer": (CHAT, [*CHAT[:3], *CHAT[4:], NEW], "=0 =1 =2 =4 =5 + | continues 5 omits 3-4"),
    "an inserted reminder": (
        CHAT,
        [*CHAT[:4], user("Remember!"), *CHAT[4:], NEW],
        "=0 =1 =2 =3 i4 =4 =5 + | continues 5",
    ),
    "an inserted exchange": (
        CHAT,
        [*CHAT[:4], user("By the way"), long("elsewhere"), *CHAT[4:], NEW],
        "=0 =1 =2 =3 i4 i4 =4 =5 + | continues 5",
    ),
    "retrieved text around the newest question": (
        [*CHAT[:4], user("Use this: many documents. Question: u2 Be brief."), CHAT[5]],
        [*CHAT, NEW],
        "=0 =1 =2 =3 ~4 =5 + | continues 5",
    ),
    "retrieved text in a message of its own before the newest question": (
        [*CHAT[:4], user("many documents"), *CHAT[4:]],
        [*CHAT, user("other documents"), NEW],
        "=0 =1 =2 =3 =5 =6 + + | continues 6 omits 4-5",
    ),
    "retrieved text in a message of its own, and a reminder in the question": (
        [*CHAT[:4], user("many documents"), user("What is u2? Be brief."), CHAT[5]],
        [*CHAT[:4], user("What is u2?"), CHAT[5], NEW],
        "=0 =1 =2 =3 ~5 =6 + | continues 6 omits 4-5",
    ),
    "a reminder at the end of each question": (
        CHAT,
        [add(body, "\n<reminder>Be brief.</reminder>") if body["role"] == "user" else body for body in CHAT] + [NEW],
        "~0 =1 ~2 =3 ~4 =5 + | continues 5",
    ),
    "a reminder at the end of one of two questions": (
        GROUP,
        [*GROUP[:3], user("Notice"), *GROUP[3:5], add(GROUP[5], " (be brief)"), GROUP[6], NEW],
        "=0 =1 =2 i3 =3 =4 ~5 =6 + | continues 6",
    ),
    "the time in the first message": (
        [user("It is 10:01. Hi"), *CHAT[1:]],
        [user("It is 10:07. Hi"), *CHAT[1:], NEW],
        "~0 =1 =2 =3 =4 =5 + | continues 5",
    ),
    "many users between answers": (GROUP, [*GROUP, NEW], "=0 =1 =2 =3 =4 =5 =6 + | continues 6"),
    "many users between answers, of whom one edits": (
        GROUP,
        [*GROUP[:4], user("Bob: no"), *GROUP[5:], NEW],
        "=0 =1 =2 =3 ~4 =5 =6 + | continues 6",
    ),
    "many users between answers, of whom one is gone": (
        GROUP,
        [*GROUP[:4], *GROUP[5:], NEW],
        "=0 =1 =2 =3 =5 =6 + | continues 6 omits 4-5",
    ),
    "a footer under each answer": (
        CHAT,
        [add(body, "\n---\nMade by a model.") if body["role"] == "assistant" else body for body in CHAT] + [NEW],
        "=0 ~1 =2 ~3 =4 ~5 + | continues 5",
    ),
    "a footer under each answer, and a window": (
        CHAT,
        [add(body, "\n---\nMade by a model.") if body["role"] == "assistant" else body for body in CHAT[3:]] + [NEW],
        "~3 =4 ~5 + | continues 5 omits 0-3",
    ),
    "a mark behind an answer that was interrupted": (
        CUT,
        [*CUT[:3], add(CUT[3], "\n\n[Response interrupted by user]"), NEW],
        "=0 =1 =2 ~3 + | continues 3",
    ),
    "a mark behind a few words of an answer": (
        [*CHAT[:3], answer("It is")],
        [*CHAT[:3], answer("It is [Response interrupted by user]"), NEW],
        "=0 =1 =2 ~3 + | continues 3",
    ),
    "empty lines that are collapsed": (
        [user("u0"), LINES],
        [user("u0"), change(LINES, "\n\n", "\n"), NEW],
        "=0 ~1 + | continues 1",
    ),
    "citations that are stripped": ([user("u0"), CITED], [user("u0"), UNCITED, NEW], "=0 ~1 + | continues 1"),
    "the last answer cut short": (CHAT[:2], [CHAT[0], answer(CHAT[1]["content"][:120]), NEW], "=0 ~1 + | continues 1"),
    "a later answer cut to a few words": (
        CHAT,
        [*CHAT[:5], answer("a2: a2 has"), NEW],
        "=0 =1 =2 =3 =4 ~5 + | continues 5",
    ),
    "another choice": (
        [*CHAT[:3], CHAT[3] | {"others": [answer("the other")]}],
        [*CHAT[:3], answer("the other"), NEW],
        "=0 =1 =2 ~3 + | continues 3",
    ),
    "another choice in the middle of a window": (
        [*CHAT[:3], CHAT[3] | {"others": [answer("the other")]}, *CHAT[4:]],
        [user("Summary"), answer("the other"), *CHAT[4:], NEW],
        "s0 ~3 =4 =5 + | continues 5 omits 0-3",
    ),
    "a prefill": (CHAT, [*CHAT, NEW, answer("Sure,")], "=0 =1 =2 =3 =4 =5 + + | continues 5"),
    "a prefill joined with its answer": (
        [*CHAT[:3], answer("{"), answer('"a": 1}') | {"others": [answer('{"a": 1}')]}, *CHAT[4:]],
        [*CHAT[:3], answer('{"a": 1}'), *CHAT[4:], NEW],
        "=0 =1 =2 ~4 =5 =6 + | continues 6 omits 3-4",
    ),
    "the newest prefill joined with its answer": (
        [*CHAT[:3], answer("{"), answer('"a": 1}') | {"others": [answer('{"a": 1}')]}],
        [*CHAT[:3], answer('{"a": 1}'), NEW],
        "=0 =1 =2 ~4 + | continues 4 omits 3-4",
    ),
    "a prefill that comes back alone": (
        [*CHAT[:3], answer("{"), answer('"a": 1}') | {"others": [answer('{"a": 1}')]}],
        [*CHAT[:3], answer("{"), answer('"a": 1}'), NEW],
        "=0 =1 =2 =3 =4 + | continues 4",
    ),
    "the same request again": (RETRIED, RETRIED, "=0 =1 =2 | continues 2"),
    "the next question after one that was never answered": (RETRIED, [*RETRIED, NEW], "=0 =1 =2 + | continues 2"),
    "regenerate": (CHAT, CHAT[:5], "=0 =1 =2 =3 =4 | branches 4"),
    "regenerate an old answer": (CHAT, CHAT[:3], "=0 =1 =2 | branches 2"),
    "regenerate after parallel results in another order": (
        [*AGENT[:4], long("b")],
        [*AGENT[:2], AGENT[3], AGENT[2]],
        "=0 =1 =3 =2 | branches 3",
    ),
    "a result that differs at the end": (
        [*AGENT[:4], long("b")],
        [*AGENT[:2], result(Y, "other"), AGENT[2]],
        "=0 =1 + + | branches 1",
    ),
    "a second result that differs at the end": (
        [*AGENT[:4], long("b")],
        [*AGENT[:2], AGENT[2], result(Y, "other")],
        "=0 =1 =2 + | branches 2",
    ),
    "a second result alone at the end": ([*AGENT[:4], long("b")], [*AGENT[:2], AGENT[3]], "=0 =1 + | branches 1"),
    "results that come one after the other": (AGENT[:3], AGENT[:4], "=0 =1 =2 + | continues 2"),
    "an edited question": (CHAT, [*CHAT[:4], user("u2, edited")], "=0 =1 =2 =3 + | branches 3"),
    "an edited question in a window": (CHAT, [*CHAT[2:4], user("u2, edited")], "=2 =3 + | branches 3 omits 0-2"),
    "an edited question that was answered elsewhere": (
        FEW,
        [*CHAT[:4], user("u2, edited"), answer("It is not."), NEW],
        "=0 =1 =2 =3 + + + | branches 3",
    ),
    "a short message that an abandoned tail has, too": (
        [*CHAT[:4], *SHORT[2:4], NEW, answer("Well.")],
        [*CHAT[:4], user("something else"), user("yes")],
        "=0 =1 =2 =3 + + | branches 3",
    ),
    "a newest question that was sent with documents, and a short answer": (
        [*CHAT[:4], user("u2 + documents"), answer("OK")],
        [*CHAT[:4], user("u2"), answer("OK"), NEW],
        "=0 =1 =2 =3 ~4 =5 + | continues 5",
    ),
    "a newest question that was sent after documents, and a short answer": (
        [*CHAT[:4], user("documents"), user("u2"), answer("OK")],
        [*CHAT[:4], user("u2"), answer("OK"), user("documents"), NEW],
        "=0 =1 =2 =3 =5 =6 + + | continues 6 omits 4-5",
    ),
    "a reminder before a question with a short answer": (
        FEW,
        [*FEW[:4], user("Remember!"), *FEW[4:], NEW],
        "=0 =1 =2 =3 i4 =4 =5 + | continues 5",
    ),
}
"""Habits for which it is the same whether an answer proves the log or the caller names it."""
PROVEN: dict[str, tuple[list[Body], list[Body], str]] = {
    "another question with the same short answer": (
        [*CHAT[:4], user("u2"), answer("OK")],
        [*CHAT[:4], user("v2"), answer("OK"), NEW],
        "=0 =1 =2 =3 + + + | branches 3",
    ),
    "another answer in the place of the last": (
        CHAT,
        [*CHAT[:5], answer("Quite another."), NEW],
        "=0 =1 =2 =3 =4 + + | branches 4",
    ),
    "a tail that is left out": (CHAT, [*CHAT[:5], NEW], "=0 =1 =2 =3 =4 + | branches 4"),
    "a tool round that is left out before a short answer": (
        [*CHAT[:3], *step(X, 0), answer("OK")],
        [*CHAT[:3], answer("OK"), NEW],
        "=0 =1 =2 + + | branches 2",
    ),
}
NAMED: dict[str, tuple[list[Body], list[Body], str]] = {
    "another question with the same short answer": (
        [*CHAT[:4], user("u2"), answer("OK")],
        [*CHAT[:4], user("v2"), answer("OK"), NEW],
        "=0 =1 =2 =3 ~4 =5 + | continues 5",
    ),
    "short messages that repeat": (SHORT, [*SHORT, user("yes")], "=0 =1 =2 =3 =4 =5 + | continues 5"),
    "an old yes and a new one": (SHORT, [*SHORT[:2], user("yes")], "=0 =1 =2 | branches 2"),
    "regenerate an old short answer": (SHORT, SHORT[:3], "=0 =1 =2 | branches 2"),
    "an edited yes": (SHORT, [*SHORT[:4], user("no")], "=0 =1 =2 =3 + | branches 3"),
    "a window of short messages": (
        [*CHAT[:4], *SHORT, user("Hm"), answer("Yes?")],
        [user("Hm"), answer("Yes?"), NEW],
        "=10 =11 + | continues 11 omits 0-10",
    ),
    "a window of short messages that repeat": (SHORT, [*SHORT[4:], NEW], "=4 =5 + | continues 5 omits 0-4"),
    "a tail that is left out": (CHAT, [*CHAT[:5], NEW], "=0 =1 =2 =3 =4 + | continues 5 omits 5-6"),
    "a tool round that is left out before a short answer": (
        [*CHAT[:3], *step(X, 0), answer("OK")],
        [*CHAT[:3], answer("OK"), NEW],
        "=0 =1 =2 =5 + | continues 5 omits 3-5",
    ),
    "the user's messages only": (
        CHAT,
        [CHAT[0], CHAT[2], CHAT[4], NEW, note("now")],
        "=0 =2 =4 + n7 | continues 5 omits 1-2 3-4 5-6",
    ),
    "the user's messages only, of which some repeat": (
        SHORT,
        [SHORT[0], SHORT[2], SHORT[4], NEW],
        "=0 =2 =4 + | continues 5 omits 1-2 3-4 5-6",
    ),
    "two new messages after one without its answer": (
        CHAT[:2],
        [CHAT[0], NEW, user("and")],
        "=0 + + | continues 1 omits 1-2",
    ),
    "questions and a summary, which stands for one answer at its place": (
        CHAT,
        [CHAT[0], CHAT[2], CHAT[4], user("Summary"), NEW],
        "=0 =2 =4 i5 + | continues 5 omits 1-2 3-4 5-6",
    ),
    "newest questions and a summary": (
        CHAT,
        [CHAT[2], CHAT[4], user("Summary"), NEW],
        "=2 =4 i5 + | continues 5 omits 0-2 3-4 5-6",
    ),
    "questions and a summary of a long turn": (
        [*CHAT[:4], *AGENT],
        [CHAT[0], CHAT[2], AGENT[0], user("Summary"), note("now"), NEW],
        "=0 =2 =4 s5 n11 + | continues 10 omits 1-2 3-4 5-11",
    ),
    "a summary that is to be answered": (
        [*CHAT[:4], *AGENT],
        [CHAT[0], CHAT[2], AGENT[0], user("Summary")],
        "=0 =2 =4 + | continues 10 omits 1-2 3-4 5-11",
    ),
    "questions, a summary, and what was said since": (
        CHAT,
        [CHAT[0], CHAT[2], user("Summary"), *CHAT[4:], NEW],
        "=0 =2 i3 =4 =5 + | continues 5 omits 1-2 3-4",
    ),
    "a summary that the model wrote": (
        CHECKPOINT,
        [*CHECKPOINT[:2], HANDOFF],
        "=0 =1 + | continues 5 omits 2-6",
    ),
    "a summary that the model wrote, and a question": (
        CHECKPOINT,
        [*CHECKPOINT[:2], HANDOFF, note("now"), NEW],
        "=0 =1 s2 n6 + | continues 5 omits 2-6",
    ),
    "a new message before a summary that the model wrote": (
        CHECKPOINT,
        [CHECKPOINT[1], user("Where now"), HANDOFF],
        "=1 + + | continues 5 omits 0-1 2-6",
    ),
    "nothing but a summary that the model wrote, and what was said since": (
        CHECKPOINT,
        [HANDOFF, answer("Done."), NEW],
        "s0 + + | continues 5 omits 0-6",
    ),
    "nothing but a summary that the model wrote, between tags": (
        [*CHECKPOINT[:-1], answer(f"<analysis>a b</analysis>\n<summary>\n{CHECKPOINT[-1]['content']}\n</summary>")],
        [HANDOFF, note("now"), NEW],
        "s0 n6 + | continues 5 omits 0-6",
    ),
    "a quotation of a newest answer in a new conversation": (CHECKPOINT, [HANDOFF, note("now")], "+ n1 | new"),
    "a second summary that the model wrote": (
        [CHECKPOINT[1], long("s"), HANDOFF, call(Z), result(Z, "rz"), user("Summarize."), long("t")],
        [CHECKPOINT[1], user(f"Another model wrote this summary:\n{long('t')['content']}")],
        "=0 + | continues 6 omits 1-7",
    ),
    "a quotation of a newest answer of few words": (
        [*CHECKPOINT[:-1], answer("s: done")],
        [*CHECKPOINT[:2], user("Another model wrote this summary: s: done")],
        "=0 =1 + | branches 1",
    ),
    "a quotation of an answer that is not the newest": (
        [*CHECKPOINT, NEW, long("t")],
        [*CHECKPOINT[:2], HANDOFF],
        "=0 =1 + | branches 1",
    ),
    "a quotation of the newest answer, which came back": (
        CHECKPOINT,
        [*CHECKPOINT, HANDOFF],
        "=0 =1 =2 =3 =4 =5 + | continues 5",
    ),
    "questions, of which the last is edited": (CHAT, [CHAT[0], CHAT[2], NEW], "=0 =2 + | branches 2 omits 1-2"),
    "every answer but the last cleaned": (
        CHAT,
        [user("u0"), answer("b0"), user("u1"), answer("b1"), *CHAT[4:], NEW],
        "=0 ~1 =2 ~3 =4 =5 + | continues 5",
    ),
    "another answer in the place of the last": (
        CHAT,
        [*CHAT[:5], answer("Quite another."), NEW],
        "=0 =1 =2 =3 =4 ~5 + | continues 5",
    ),
    "another answer in the place of the only one": (CHAT[:2], [CHAT[0], answer("b0"), NEW], "=0 ~1 + | continues 1"),
    "another answer at the end": (CHAT[:2], [CHAT[0], answer("b0")], "=0 + | branches 0"),
    "nothing that the log has": (CHAT, [user("Hm"), answer("no"), NEW], "+ + + | new"),
    "a log of notes alone": ([note("now")], [NEW], "+ | new"),
    "an empty log": ([], [NEW], "+ | new"),
    "an empty history": (CHAT, [], " | new"),
}


@pytest.mark.parametrize(("log", "history", "expected"), [*BOTH.values(), *PROVEN.values()], ids=[*BOTH, *PROVEN])
def test_each_habit_of_a_client_is_aligned_with_a_log_that_an_answer_proves(
    log: list[Body], history: list[Body], expected: str
) -> None:
    assert show(align_proven(log, history)) == expected


@pytest.mark.parametrize(("log", "history", "expected"), [*BOTH.values(), *NAMED.values()], ids=[*BOTH, *NAMED])
def test_each_habit_of_a_client_is_aligned_with_a_log_that_its_caller_names(
    log: list[Body], history: list[Body], expected: str
) -> None:
    assert show(align_named(log, history)) == expected


def test_a_prefill_that_is_joined_with_its_answer_is_omitted_and_named() -> None:
    log, history, _ = BOTH["a prefill joined with its answer"]
    assert align_proven(log, history).joined == (3,)
    log, history, _ = BOTH["a prefill that comes back alone"]
    assert align_proven(log, history).joined == ()
    log, history, _ = BOTH["another choice"]
    assert align_proven(log, history).joined == ()
    log = [*CHAT, answer("Go"), answer("Go on") | {"others": [answer("Go on")]}]
    assert show(align_proven(log, [*log, NEW])) == "=0 =1 =2 =3 =4 =5 =6 =7 + | continues 7"
    assert align_proven(log, [*log, NEW]).joined == ()


def test_a_proof_decides_where_words_repeat() -> None:
    log, history = read_log([*DONE, *DONE]), read_log([*DONE, NEW])
    marks = "=0 =1 =2 =3 =4 =5 =6 =7 + | branches 7"
    assert show(align(log, history, (7, 7), omits_answers=False)) == marks
    marks = "=8 =9 =10 =11 =12 =13 =14 =15 + | continues 15 omits 0-8"
    assert show(align(log, history, (7, 15), omits_answers=False)) == marks


@pytest.mark.parametrize("proof", [(3, 3), (4, 3)])
def test_a_tool_result_or_a_message_that_the_chain_skips_proves_what_stands_before_it(proof: tuple[int, int]) -> None:
    log = read_log([user("u0"), call(X, Y), result(X, "one"), result(Y, "two")])
    history = read_log([user("u0"), call(X, Y), result(X, "one"), result(Y, "two"), note("Think.")])
    assert show(align(log, history, proof, omits_answers=False)).startswith("=0 =1 =2 =3 ")
    assert show(align(log, history[4:], (0, 0), omits_answers=False)).endswith("new")


BEGINNING = long("a")["content"][:70]


@pytest.mark.parametrize(
    ("known", "told", "expected"),
    [
        (long("a"), long("a"), True),
        (long("a"), long("b"), False),
        (long("a"), user(long("a")["content"]), False),
        (answer("one"), answer("two"), False),
        (answer("one") | {"others": [answer("two")]}, answer("two"), True),
        (answer(f"{BEGINNING} one end"), answer(f"**{BEGINNING}** one end and a footer"), True),
        (answer(f"{BEGINNING} one end"), answer(f"**{BEGINNING}** another end"), False),
        (answer("The sun is a star."), answer("The sun"), True),
        (answer("The sun"), answer("The sun is a star."), True),
        (answer("The sun is a star."), answer("is a star."), False),
        (answer("..."), answer("... and so on"), False),
        (call(X), call(X, arguments='{"short": 1}'), True),
        (call(X), call(Y), True),
        (call(X), call(Y, arguments='{"short": 1}'), False),
        (call(X), call(X, Y), False),
        (call(X), answer("one"), False),
    ],
)
def test_a_known_answer_is_equal_another_choice_or_begins_alike(known: Body, told: Body, expected: bool) -> None:
    assert is_known_answer(*read_log([known, told])) is expected


def test_a_message_is_the_same_in_both_protocols() -> None:
    items: list[list[dict[str, Any]]] = [
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it"}]}],
        [
            {"type": "reasoning", "id": "rs_1", "summary": []},
            *({"type": "function_call", "call_id": i, "name": "read", "arguments": "{}"} for i in (X, Y)),
        ],
        *([{"type": "function_call_output", "call_id": i, "output": text}] for i, text in ((Y, "ry"), (X, "rx"))),
    ]
    history = [build_element(ResponsesMessage.from_items(one)) for one in items]
    assert show(align(read_log(AGENT[:5]), history, None, omits_answers=True)) == "=0 =1 =3 =2 | branches 3"


@pytest.mark.parametrize("kinds", [1, 3, 10_000], ids=["all alike", "few different", "all different"])
@pytest.mark.parametrize("named", [False, True])
def test_ten_thousand_messages_take_less_than_a_second(kinds: int, named: bool) -> None:
    log = [element for n in range(5_000) for element in read_log([user(f"u{n % kinds}"), answer(f"a{n % kinds}")])]
    changed = [build_element(ChatMessage.from_body(user(f"x{n}"))) if n % 6 == 0 else e for n, e in enumerate(log)]
    history = changed[101:]
    proof = None if named else (len(history) - 1, len(log) - 1)
    assert least_cpu_seconds(lambda: align(log, history, proof, omits_answers=named)) < 1


def test_gaps_that_split_again_and_again_take_no_quadratic_time() -> None:
    def aligning(size: int) -> Callable[[], object]:
        """Each message occurs once only in what is left after the message before it was paired."""
        texts = [text for n in range(size) for text in (f"{n + 1}", f"log {n}", f"{n}")]
        elements = read_log([user(text) for text in texts])
        other = read_log([user(text.replace("log", "history")) for text in texts])
        end = read_log([long("end")])
        proof = len(elements), len(elements)
        return lambda: align([*elements, *end], [*other, *end], proof, omits_answers=False)

    assert grows_linearly(aligning, 4_000)


def test_long_texts_that_nearly_contain_each_other_take_less_than_a_second() -> None:
    end = read_log([long("end")])
    log = read_log([user("a" * 100_000 + f"{n}") for n in range(20)])
    history = read_log([user("a" * 500 + "b" + "a" * 500 + f"{n}") for n in range(2_000)])
    seconds = least_cpu_seconds(lambda: align([*log, *end], [*history, *end], (2_000, 20), omits_answers=False))
    assert seconds < 1
