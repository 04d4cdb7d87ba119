"""How the habits of clients look in the alignment of log and history: one case for each."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pytest

from app.conversation.alignment import (
    Alignment,
    AlignmentElement,
    align_after_head,
    align_history,
    build_alignment_element,
    cut_alignment_head,
    is_random_call_id,
    record_first_seqs_of_answers_and_calls,
)
from app.conversation.alignment_evidence import confirms_conversation_hint, proves_same_conversation
from app.dialects.chat.message import ChatMessage
from tests.support.cpu_time import grows_linearly

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


X, Y, Z = "call_x8Kd03jq2Lm1", "call_y8Kd03jq2Lm1", "call_z8Kd03jq2Lm1"
CHAT = [user("u0"), long("a0"), user("u1"), long("a1"), user("u2"), long("a2")]
SHORT = [user("Hi"), answer("Hello!"), user("yes"), answer("OK"), user("yes"), answer("OK")]
AGENT = [user("Fix it"), call(X, Y), result(X, "rx"), result(Y, "ry"), call(Z), result(Z, "rz"), long("done")]
NOTED = [user("u0"), long("a0"), note("date"), user("u1"), long("a1")]
NEW = user("something new")
CHECKPOINT = [user("Where"), user("Fix it"), call(X), result(X, "rx"), user("Summarize."), long("s")]
HANDOFF = user(f"Another model wrote this summary:\n  {CHECKPOINT[-1]['content']}\n")


def read_log(bodies: Sequence[Body], choices: tuple[Body, ...] = ()) -> list[AlignmentElement]:
    """The elements of a log whose assistant messages are all ours.

    Args:
        choices: what else its last message might have been.
    """
    elements = []
    for place, body in enumerate(bodies):
        message = ChatMessage.from_body(body)
        others = (
            tuple(build_alignment_element(ChatMessage.from_body(choice)).digest for choice in choices)
            if place == len(bodies) - 1
            else ()
        )
        ours = body["role"] == "assistant"
        elements.append(
            build_alignment_element(message, tokens=len(message.text) // 4, is_answer=ours, alternatives=others)
        )
    return elements


def read_history(bodies: Sequence[Body], log: Sequence[AlignmentElement] = ()) -> list[AlignmentElement]:
    return [build_alignment_element(ChatMessage.from_body(body), log=log) for body in bodies]


def align_bodies(
    log: list[Body], history: list[Body], *, named: bool = False, choices: tuple[Body, ...] = ()
) -> Alignment:
    elements = read_log(log, choices)
    return align_history(elements, read_history(history, elements), is_log_named=named)


def show(alignment: Alignment) -> str:
    """`=3` same, `~3` rewritten, `n3` note, `i3` inserted, `s3` summary, `+` new."""
    letters = {"same": "=", "rewritten": "~", "note": "n", "inserted": "i", "summary": "s"}
    return " ".join("+" if a.kind == "new" else f"{letters[a.kind]}{a.seq}" for a in alignment.message_alignments)


CASES: dict[str, tuple[list[Body], list[Body], str, str]] = {
    "the usual client": (CHAT, [*CHAT, NEW], "=0 =1 =2 =3 =4 =5 +", "continues 5"),
    "short messages that repeat": (SHORT, [*SHORT, user("yes")], "=0 =1 =2 =3 =4 =5 +", "continues 5"),
    "a note before the newest message": (CHAT, [*CHAT, note("now"), NEW], "=0 =1 =2 =3 =4 =5 n6 +", "continues 5"),
    "notes everywhere": (
        CHAT,
        [note("a"), *CHAT[:3], note("b"), *CHAT[3:], NEW, note("c")],
        "n0 =0 =1 =2 n3 =3 =4 =5 + n7",
        "continues 5",
    ),
    "a note of the log comes back": (NOTED, [*NOTED, NEW], "=0 =1 =2 =3 =4 +", "continues 4"),
    "a note of the log is gone": (NOTED, [*NOTED[:2], *NOTED[3:], NEW], "=0 =1 =3 =4 +", "continues 4 omits 2-3"),
    "a note of the log says something else": (
        NOTED,
        [*NOTED[:2], note("later"), *NOTED[3:], NEW],
        "=0 =1 n3 =3 =4 +",
        "continues 4 omits 2-3",
    ),
    "a note of the log at its end": (NOTED[:3], [*NOTED[:2], NEW], "=0 =1 +", "continues 2 omits 2-3"),
    "masked results": (
        AGENT,
        [*AGENT[:2], result(X, "-"), result(Y, "-"), call(Z), result(Z, "-"), AGENT[6], NEW],
        "=0 =1 ~2 ~3 =4 ~5 =6 +",
        "continues 6",
    ),
    "parallel results in another order": (
        AGENT,
        [*AGENT[:2], AGENT[3], AGENT[2], *AGENT[4:], NEW],
        "=0 =1 =3 =2 =4 =5 =6 +",
        "continues 6",
    ),
    "masked parallel results in another order": (
        AGENT,
        [*AGENT[:2], result(Y, "-"), result(X, "-"), *AGENT[4:], NEW],
        "=0 =1 ~3 ~2 =4 =5 =6 +",
        "continues 6",
    ),
    "shortened arguments": (
        AGENT,
        [AGENT[0], call(X, Y, arguments='{"short": 1}'), *AGENT[2:], NEW],
        "=0 ~1 =2 =3 =4 =5 =6 +",
        "continues 6",
    ),
    "dropped calls": (AGENT, [AGENT[0], AGENT[6], NEW], "=0 =6 +", "continues 6 omits 1-6"),
    "one dropped result": (AGENT, [*AGENT[:2], *AGENT[3:], NEW], "=0 =1 =3 =4 =5 =6 +", "continues 6 omits 2-3"),
    "a sliding window": (CHAT, [*CHAT[4:], NEW], "=4 =5 +", "continues 5 omits 0-4"),
    "a sliding window that begins with an answer": (CHAT, [*CHAT[3:], NEW], "=3 =4 =5 +", "continues 5 omits 0-3"),
    "a summary instead of the beginning": (
        CHAT,
        [user("Summary"), *CHAT[4:], NEW],
        "s0 =4 =5 +",
        "continues 5 omits 0-4",
    ),
    "a summary with an acknowledgement": (
        CHAT,
        [user("Summary"), answer("Understood."), answer("Go on."), *CHAT[4:], NEW],
        "s0 s0 s0 =4 =5 +",
        "continues 5 omits 0-4",
    ),
    "a summary after kept questions, which stands for one answer at its place": (
        CHAT,
        [CHAT[0], CHAT[2], user("Summary"), *CHAT[4:], NEW],
        "=0 =2 i3 =4 =5 +",
        "continues 5 omits 1-2 3-4",
    ),
    "a reworded question": (
        CHAT,
        [*CHAT[:2], user("u1 + documents"), *CHAT[3:], NEW],
        "=0 =1 ~2 =3 =4 =5 +",
        "continues 5",
    ),
    "a reworded answer": (CHAT, [*CHAT[:3], answer("cleaned"), *CHAT[4:], NEW], "=0 =1 =2 ~3 =4 =5 +", "continues 5"),
    "an inserted reminder": (
        CHAT,
        [*CHAT[:4], user("Remember!"), *CHAT[4:], NEW],
        "=0 =1 =2 =3 i4 =4 =5 +",
        "continues 5",
    ),
    "a newest question that was sent with documents": (
        [*CHAT[:4], user("u2 + documents"), answer("OK")],
        [*CHAT[:4], user("u2"), answer("OK"), NEW],
        "=0 =1 =2 =3 ~4 =5 +",
        "continues 5",
    ),
    "the last answer cut short": (
        CHAT[:2],
        [CHAT[0], answer(CHAT[1]["content"][:120]), NEW],
        "=0 ~1 +",
        "continues 1",
    ),
    "the first answer cut to a few words": (CHAT[:2], [CHAT[0], answer("a0: a0 has"), NEW], "+ + +", "new"),
    "a later answer cut to a few words": (
        CHAT,
        [*CHAT[:5], answer("a2: a2 has"), NEW],
        "=0 =1 =2 =3 =4 ~5 +",
        "continues 5",
    ),
    "another choice": (CHAT[:2], [CHAT[0], answer("the other"), NEW], "=0 ~1 +", "continues 1"),
    "regenerate": (CHAT, CHAT[:5], "=0 =1 =2 =3 =4", "branches 4"),
    "regenerate an old answer": (CHAT, CHAT[:3], "=0 =1 =2", "branches 2"),
    "regenerate an old short answer": (SHORT, SHORT[:3], "=0 =1 =2", "branches 2"),
    "regenerate after parallel results in another order": (
        [*AGENT[:4], long("b")],
        [*AGENT[:2], AGENT[3], AGENT[2]],
        "=0 =1 =3 =2",
        "branches 3",
    ),
    "a result that differs at the end": (
        [*AGENT[:4], long("b")],
        [*AGENT[:2], result(Y, "other"), AGENT[2]],
        "=0 =1 + +",
        "branches 1",
    ),
    "an edited question": (CHAT, [*CHAT[:4], user("u2, edited")], "=0 =1 =2 =3 +", "branches 3"),
    "an edited question in a window": (CHAT, [*CHAT[2:4], user("u2, edited")], "=2 =3 +", "branches 3 omits 0-2"),
    "a tail that is left out": (CHAT, [*CHAT[:5], NEW], "=0 =1 =2 =3 =4 +", "branches 4"),
    "the same greeting and nothing else": (CHAT, [user("u0"), answer("no"), NEW], "+ + +", "new"),
    "an old yes and a new one": (SHORT, [user("yes")], "+", "new"),
    "a prefill": (CHAT, [*CHAT, NEW, answer("Sure,")], "=0 =1 =2 =3 =4 =5 + +", "continues 5"),
    "results whose ids and texts repeat": (
        [
            *CHAT[:3],
            *(call("call_0", "call_1"), result("call_0", "r"), result("call_1", "passed")),
            *(call("call_1"), result("call_1", "passed"), long("b")),
        ],
        [*CHAT[:3], call("call_0", "call_1"), result("call_0", "-"), result("call_1", "passed"), long("b"), NEW],
        "=0 =1 =2 =3 ~4 =5 =8 +",
        "continues 8 omits 6-8",
    ),
    "a short message that an abandoned tail has, too": (
        [*CHAT[:4], *SHORT[2:4], NEW, answer("Well.")],
        [*CHAT[:4], user("something else"), user("yes")],
        "=0 =1 =2 =3 + +",
        "branches 3",
    ),
    "an empty log": ([], [NEW], "+", "new"),
    "an empty history": (CHAT, [], "", "new"),
}
NAMED: dict[str, tuple[list[Body], list[Body], str, str]] = {
    "questions and a summary, which stands for one answer at its place": (
        CHAT,
        [CHAT[0], CHAT[2], CHAT[4], user("Summary"), NEW],
        "=0 =2 =4 i5 +",
        "continues 5 omits 1-2 3-4 5-6",
    ),
    "questions and a summary of a long turn": (
        [*CHAT[:4], *AGENT],
        [CHAT[0], CHAT[2], AGENT[0], user("Summary"), note("now"), NEW],
        "=0 =2 =4 s5 n11 +",
        "continues 10 omits 1-2 3-4 5-11",
    ),
    "a summary that is to be answered": (
        [*CHAT[:4], *AGENT],
        [CHAT[0], CHAT[2], AGENT[0], user("Summary")],
        "=0 =2 =4 +",
        "continues 10 omits 1-2 3-4 5-11",
    ),
    "a summary that the model wrote": (CHECKPOINT, [*CHECKPOINT[:2], HANDOFF], "=0 =1 +", "continues 5 omits 2-6"),
    "a summary that the model wrote, and a question": (
        CHECKPOINT,
        [*CHECKPOINT[:2], HANDOFF, note("now"), NEW],
        "=0 =1 s2 n6 +",
        "continues 5 omits 2-6",
    ),
    "a new message before a summary that the model wrote": (
        CHECKPOINT,
        [CHECKPOINT[1], user("Where now"), HANDOFF],
        "=1 + +",
        "continues 5 omits 0-1 2-6",
    ),
    "a second summary that the model wrote": (
        [CHECKPOINT[1], long("s"), HANDOFF, call(Z), result(Z, "rz"), user("Summarize."), long("t")],
        [CHECKPOINT[1], user(f"Another model wrote this summary:\n{long('t')['content']}")],
        "=0 +",
        "continues 6 omits 1-7",
    ),
    "a quotation of an answer that is not the newest": (
        [*CHECKPOINT, NEW, long("t")],
        [*CHECKPOINT[:2], HANDOFF],
        "=0 =1 +",
        "branches 1",
    ),
    "a quotation of the newest answer, which came back": (
        CHECKPOINT,
        [*CHECKPOINT, HANDOFF],
        "=0 =1 =2 =3 =4 =5 +",
        "continues 5",
    ),
    "questions, of which the last is edited": (CHAT, [CHAT[0], CHAT[2], NEW], "=0 =2 +", "branches 2 omits 1-2"),
    "every answer cleaned": (
        CHAT,
        [user("u0"), answer("b0"), user("u1"), answer("b1"), user("u2"), answer("b2"), NEW],
        "=0 ~1 =2 ~3 =4 ~5 +",
        "continues 5",
    ),
    "a window of short messages": (
        [*CHAT[:4], *SHORT, user("Hm"), answer("Yes?")],
        [user("Hm"), answer("Yes?"), NEW],
        "=10 =11 +",
        "continues 11 omits 0-10",
    ),
    "the first answer in other words": (CHAT[:2], [CHAT[0], answer("b0"), NEW], "=0 ~1 +", "continues 1"),
    "an old yes and a new one": (SHORT, [*SHORT[:2], user("yes")], "=0 =1 =2", "branches 2"),
}


def check(alignment: Alignment, marks: str, outcome: str) -> None:
    assert show(alignment) == marks
    omitted = "".join(f" {start}-{end}" for start, end in alignment.omitted_ranges)
    what = "continues" if alignment.continues_log else "branches"
    shown = f"{what} {alignment.last_seq}" + (f" omits{omitted}" if omitted else "")
    assert outcome == ("new" if alignment.last_seq < 0 else shown)


@pytest.mark.parametrize(("log", "history", "marks", "outcome"), CASES.values(), ids=CASES)
def test_each_habit_of_a_client_is_aligned(log: list[Body], history: list[Body], marks: str, outcome: str) -> None:
    check(align_bodies(log, history, choices=(answer("the other"),)), marks, outcome)


@pytest.mark.parametrize(("log", "history", "marks", "outcome"), NAMED.values(), ids=NAMED)
def test_each_habit_is_aligned_with_a_log_that_an_id_names(
    log: list[Body], history: list[Body], marks: str, outcome: str
) -> None:
    check(align_bodies(log, history, named=True), marks, outcome)


@pytest.mark.parametrize(
    ("answer_text", "history", "is_confirmed"),
    [
        (long("s"), [CHECKPOINT[1], HANDOFF], True),
        (long("s"), [user("Another day"), CHECKPOINT[1], user("Here"), HANDOFF, NEW], True),
        (long("s"), [CHECKPOINT[1], user("Another model wrote this summary: nothing.")], False),
        (long("s"), [CHECKPOINT[1], long("another person's"), HANDOFF], False),
        (answer("s: done"), [CHECKPOINT[1], user("Another model wrote this summary:\ns: done")], False),
    ],
)
def test_our_newest_answer_as_the_clients_summary_confirms_a_hint(
    answer_text: Body, history: list[Body], is_confirmed: bool
) -> None:
    alignment = align_bodies([*CHECKPOINT[:-1], answer_text], history, named=True)
    assert confirms_conversation_hint(alignment) is is_confirmed


@pytest.mark.parametrize("call_id", [X, "toolu_01A09q90qw90lq917835lq9", "D681PevKs", "call_1k3b9x0q", "0f" * 16])
def test_a_random_id_is_distinctive(call_id: str) -> None:
    assert is_random_call_id(call_id)


@pytest.mark.parametrize(
    "call_id", ["", "call_0", "functions.read:0", "call_get_weather_12", "functions.read2files0:1"]
)
def test_a_counter_is_not_distinctive(call_id: str) -> None:
    assert not is_random_call_id(call_id)


def test_two_long_answers_are_evidence_and_one_is_not() -> None:
    assert proves_same_conversation(align_bodies(CHAT, [*CHAT[2:], NEW]))
    assert not proves_same_conversation(align_bodies(CHAT, [*CHAT[4:], NEW]))
    assert not proves_same_conversation(
        align_bodies(CHAT, [CHAT[1], CHAT[4], CHAT[5], user("a"), user("b"), *CHAT[4:], NEW][1:])
    )


def test_the_same_answer_twice_is_one_answer() -> None:
    twice = [CHAT[0], CHAT[1], CHAT[0], CHAT[1]]
    assert align_bodies(twice, [*twice, NEW]).returned_answer_count == 1


def test_an_issued_id_is_evidence_unless_the_log_repeats_it() -> None:
    log = [user("Fix it"), call(X), result(X, "-"), answer("Done.")]
    assert proves_same_conversation(align_bodies(log, [*log, NEW]))
    assert not proves_same_conversation(align_bodies([*log, *log], [*log, *log, NEW]))
    counted = [user("Fix it"), call("call_0"), result("call_0", "-"), answer("Done.")]
    assert not proves_same_conversation(align_bodies(counted, [*counted, NEW]))


def test_masked_results_do_not_count_against_a_conversation() -> None:
    log = [user("Fix it"), *[m for n in range(20) for m in (call(f"{X}{n}"), result(f"{X}{n}", "seen"))], long("end")]
    history = [m | {"content": "masked"} if m["role"] == "tool" else m for m in log]
    alignment = align_bodies(log, [*history, NEW])
    assert alignment.aligned_client_share == 1.0
    assert proves_same_conversation(alignment)


def test_an_answer_that_the_log_does_not_know_is_no_evidence() -> None:
    assert proves_same_conversation(align_bodies([*CHAT, *AGENT], [*CHAT, NEW]))
    assert not proves_same_conversation(align_bodies([*CHAT, *AGENT], [*CHAT, NEW, long("elsewhere"), NEW]))


@pytest.mark.parametrize(("strange", "expected"), [(2, True), (3, False)])
def test_half_of_what_the_client_said_must_be_known_to_the_log(strange: int, expected: bool) -> None:
    history = [*(user(f"elsewhere {number}") for number in range(strange)), *CHAT[2:], NEW]
    alignment = align_bodies(CHAT, history)
    assert alignment.returned_answer_count == 2
    assert proves_same_conversation(alignment) is expected


@pytest.mark.parametrize(("strange", "expected"), [(2, True), (3, False)])
def test_most_answers_of_a_history_must_be_known_to_the_log(strange: int, expected: bool) -> None:
    log = [body for number in range(8) for body in (user(f"u{number}"), long(f"a{number}"))]
    left_out = [log[2 * number] for number in range(6 - strange)]
    elsewhere = [body for number in range(6 - strange, 6) for body in (log[2 * number], long(f"else{number}"))]
    alignment = align_bodies(log, [*left_out, *elsewhere, *log[12:], NEW])
    assert (alignment.returned_answer_count, alignment.unknown_answer_count, alignment.is_newest_answer_unknown) == (
        2,
        strange,
        False,
    )
    assert proves_same_conversation(alignment) is expected


def test_answers_that_many_people_get_are_no_evidence() -> None:
    greeting, farewell = answer("Hello! How can I help you today?"), answer("You are welcome. Anything else today?")
    log = [user("Hi"), greeting, user("Thanks"), farewell]
    alignment = align_bodies(log, [*log, NEW])
    assert alignment.returned_answer_count == 0
    assert not proves_same_conversation(alignment)


def test_a_hint_needs_the_newest_question_and_one_more_message() -> None:
    kept = [CHAT[0], CHAT[2], CHAT[4], user("Summary"), NEW]
    assert confirms_conversation_hint(align_bodies(CHAT, kept, named=True))
    assert not confirms_conversation_hint(align_bodies(CHAT, [CHAT[4], NEW], named=True))
    assert not confirms_conversation_hint(align_bodies(CHAT, [CHAT[0], CHAT[2], NEW], named=True))
    assert not confirms_conversation_hint(align_bodies(CHAT, [CHAT[0], CHAT[4], answer("else"), NEW], named=True))


def test_a_digest_needs_the_key() -> None:
    message = ChatMessage.from_body(user("yes"))
    assert build_alignment_element(message, key=b"a").digest != build_alignment_element(message, key=b"b").digest


def cut_off(log: list[Body], history: list[Body], at: int, *, ours: bool = True, named: bool = True) -> bool:
    """Whether the part of an alignment that ends with a message can be cut off, for others to be aligned behind it."""
    elements, firsts = read_log(log), dict[Hashable, int]()
    if not ours:
        elements = read_history(log)
    record_first_seqs_of_answers_and_calls(firsts, elements, 0)
    theirs = read_history(history)
    alignment = align_history(elements, theirs, is_log_named=named)
    return cut_alignment_head(alignment, at, None, elements, theirs, firsts, is_log_named=named) is not None


def test_a_part_of_an_alignment_is_cut_off_only_behind_an_answer_that_stands_for_what_is_before() -> None:
    assert cut_off(CHAT, [*CHAT, NEW], 3)
    assert cut_off(AGENT, [*AGENT, NEW], 1)
    assert not cut_off(CHAT, [*CHAT, NEW], 2), "a question"
    assert not cut_off(CHAT, [*CHAT, NEW], 3, ours=False), "an answer from elsewhere"
    assert not cut_off(SHORT, [*SHORT, NEW], 1), "a short answer"
    assert not cut_off([*CHAT[:2], call("call_0"), *CHAT[2:]], [*CHAT[:2], call("call_0"), *CHAT[2:]], 2), "a counter"
    cut_short = answer(CHAT[3]["content"][:120])
    assert not cut_off(CHAT, [*CHAT[:3], cut_short, *CHAT[4:], NEW], 3), "an answer that was cut short"
    assert not cut_off(CHAT, [*CHAT[:3], answer("cleaned"), *CHAT[4:], NEW], 5), "an answer behind such a one"
    assert not cut_off([*CHAT, *CHAT[:2]], [*CHAT, *CHAT[:2], NEW], 7), "an answer that stands there twice"
    twice = [user("Hm"), user("yes"), answer("OK"), user("yes"), NEW, answer("OK"), CHAT[1]]
    told = [user("Well"), user("yes"), answer("OK"), CHAT[1], user("yes"), answer("OK"), NEW]
    assert show(align_bodies(twice, told)) == "s0 =3 =5 =6 + + +"
    assert show(align_bodies(twice, told[:4])) == "~0 =1 =2 =6"
    assert not cut_off(twice, told, 3, named=False), "a part that is another without what follows"


BEHIND: dict[str, tuple[list[Body], list[Body], list[Body], list[Body], bool]] = {
    "the last answer comes again": (CHAT[:2], [NEW, CHAT[1]], [note("n")], [CHAT[1]], True),
    "the log repeats an answer": (
        CHAT[:2],
        [NEW, CHAT[1]],
        [CHAT[2], CHAT[1], CHAT[4], CHAT[5]],
        [CHAT[5], NEW],
        True,
    ),
    "the log repeats the id of a call": (
        [user("Fix it"), call(X), result(X, "rx"), call(Y)],
        [user("Fix it"), call(X), result(X, "rx"), call(Y)],
        [result(Y, "ry"), call(X, arguments='{"again": 1}'), result(X, "rz")],
        [result(Y, "ry"), call(X, arguments='{"again": 1}'), result(X, "rz"), NEW],
        False,
    ),
    "answers are left out before, and the newest is, too": (
        CHAT[:4],
        [CHAT[0], CHAT[2], CHAT[3]],
        [CHAT[4], CHAT[5]],
        [CHAT[4], user("Summary"), NEW],
        True,
    ),
}
"""What is aligned, then what comes behind it in the log and in the history, and whether an id names the log."""


def align_in_parts(
    log: list[Body], history: list[Body], log_behind: list[Body], history_behind: list[Body], named: bool
) -> tuple[Alignment | None, Alignment, Alignment]:
    """What stands behind a beginning, aligned behind it, alone, and in the whole."""
    ours, theirs = read_log([*log, *log_behind]), read_history([*history, *history_behind])
    earlier, told = ours[: len(log)], theirs[: len(history)]
    firsts: dict[Hashable, int] = {}
    record_first_seqs_of_answers_and_calls(firsts, ours, 0)
    head = cut_alignment_head(
        align_history(earlier, told, is_log_named=named), len(told) - 1, None, earlier, told, firsts, is_log_named=named
    )
    assert head is not None
    rest = theirs[len(told) - 1 :]
    alone = align_history(ours[head.last_seq :], rest, first_seq=head.last_seq, is_log_named=named)
    return (
        align_after_head(head, ours, rest, firsts, is_log_named=named),
        alone,
        align_history(ours, theirs, is_log_named=named),
    )


@pytest.mark.parametrize("case", BEHIND.values(), ids=BEHIND)
def test_only_the_whole_tells_what_has_to_do_with_what_stands_before(
    case: tuple[list[Body], list[Body], list[Body], list[Body], bool],
) -> None:
    behind, alone, whole = align_in_parts(*case)
    first = len(whole.message_alignments) - len(alone.message_alignments)
    assert (alone.message_alignments, alone.continues_log, alone.returned_call_id_count) != (
        whole.message_alignments[first:],
        whole.continues_log,
        whole.returned_call_id_count,
    )
    assert behind is None


def test_all_that_an_alignment_counts_is_counted_before_and_behind_a_beginning() -> None:
    log = [*CHAT[:4], *AGENT[:4]]
    told = [user("Summary"), CHAT[1], user("u1 + documents"), CHAT[3], AGENT[0], AGENT[1]]
    told_behind = [AGENT[2], result(Y, "-"), note("now"), call(Z), result(Z, "other"), AGENT[6], NEW]
    behind, _, whole = align_in_parts(log[:6], told, [*log[6:], *AGENT[4:]], told_behind, True)
    assert behind == whole
    assert show(whole) == "~0 =1 ~2 =3 =4 =5 =6 ~7 n8 =8 ~9 =10 +"
    assert (
        whole.returned_answer_count,
        whole.returned_call_id_count,
        whole.unknown_answer_count,
        whole.reworded_count,
    ) == (3, 2, 0, 4)
    assert (
        whole.client_message_count,
        whole.aligned_client_message_count,
        whole.same_user_message_count,
        whole.has_newest_user_message,
    ) == (4, 2, 1, True)
    behind, _, whole = align_in_parts(CHAT[:4], [CHAT[0], *CHAT[2:4]], CHAT[4:], [*CHAT[4:], NEW], True)
    assert behind == whole
    assert (whole.returned_answer_count, whole.omitted_ranges) == (2, ((1, 2),))


@pytest.mark.parametrize("repeat", [1, 10_000], ids=["all alike", "all different"])
def test_long_sequences_take_no_quadratic_time(repeat: int) -> None:
    def aligning(turns: int) -> Callable[[], object]:
        log = [body for n in range(turns) for body in (user(f"u{n % repeat}"), answer(f"a{n % repeat}" + "." * 100))]
        changed = [body | {"content": f"x{n}"} if n % 3 == 0 else body for n, body in enumerate(log)]
        elements = [
            build_alignment_element(ChatMessage.from_body(body), tokens=30, is_answer=body["role"] == "assistant")
            for body in log
        ]
        history = [build_alignment_element(ChatMessage.from_body(body)) for body in changed]
        return lambda: align_history(elements, history[100:])

    assert grows_linearly(aligning, 5_000)
