"""Then …: what the model was shown of tool results, arguments and reasoning."""

from __future__ import annotations

import json

from pytest_bdd import then

from tests.behaviour.steps.showing import shown_text
from tests.behaviour.steps.words import Table, step
from tests.behaviour.steps.working import results
from tests.behaviour.talk import Talk
from tests.behaviour.texts import COUNTER

LEFT_OUT = "characters left out …]"


def pairs(talk: Talk) -> list[tuple[str, str]]:
    """Each result that the model was shown: as it was, and as it was shown."""
    original = {entry["tool_call_id"]: entry["content"] for entry in results(talk.answer.messages)}
    return [(original[entry["tool_call_id"]], entry["content"]) for entry in results(talk.answer.view)]


def is_excerpt(text: str, shown: str) -> bool:
    """Whether what is shown is the head and the tail of a text, and a line that says how much is missing."""
    head, _, rest = shown.partition("\n[… ")
    missing, _, tail = rest.partition(f" {LEFT_OUT}\n")
    left = len(text) - len(head) - len(tail)
    return bool(tail) and text.startswith(head) and text.endswith(tail) and missing == f"{left:,}"


@then(step("of {count:N} results the model saw head and tail"))
def _(talk: Talk, count: int) -> None:
    assert sum(is_excerpt(text, shown) for text, shown in pairs(talk)) == count


@then(step("of the results the model saw head and tail, less of the older, at most {whole:N} of them whole"))
def _(talk: Talk, whole: int) -> None:
    told = pairs(talk)
    shares = [len(shown) / len(text) for text, shown in told]
    assert shares == sorted(shares)
    assert all(is_excerpt(text, shown) for text, shown in told if text != shown)
    assert sum(text == shown for text, shown in told) <= whole


@then(step("the oldest result was cut to {least:N} to {most:N} characters"))
def _(talk: Talk, least: int, most: int) -> None:
    text, shown = pairs(talk)[0]
    assert is_excerpt(text, shown)
    assert least <= len(shown) <= most


@then("the newer a result, the more of it was kept")
def _(talk: Talk) -> None:
    lengths = [len(shown) for _, shown in pairs(talk)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


@then("the last result was shown word for word")
def _(talk: Talk) -> None:
    text, shown = pairs(talk)[-1]
    assert text == shown


@then("every message but results was shown word for word")
def _(talk: Talk) -> None:
    others = [entry for entry in talk.answer.messages if entry["role"] != "tool"]
    assert [entry for entry in talk.answer.view if entry["role"] not in {"tool", "system"}] == others


@then(step("the last result was cut to at most {chars:N} characters and a line that says what is missing"))
def _(talk: Talk, chars: int) -> None:
    text, shown = pairs(talk)[-1]
    assert is_excerpt(text, shown)
    assert chars * 0.9 <= len(shown) <= chars + 45


@then(step("the first result was cut to at most {chars:N} characters and a line that says what is missing"))
def _(talk: Talk, chars: int) -> None:
    text, shown = pairs(talk)[0]
    assert is_excerpt(text, shown)
    assert len(shown) <= chars + 45


@then(step("each call's arguments were a JSON object of at most {chars:N} characters"))
def _(talk: Talk, chars: int) -> None:
    for entry in talk.answer.view:
        for call in entry.get("tool_calls") or ():
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            assert len(call["function"]["arguments"]) <= chars


@then(step("the model saw {whole:N} results whole, {cut:N} with {chars:N} characters at each end, {cleared:N} cleared"))
def _(talk: Talk, whole: int, cut: int, chars: int, cleared: int) -> None:
    kinds = [_kind(text, shown, chars) for text, shown in pairs(talk)]
    assert kinds == ["cleared"] * cleared + ["cut"] * cut + ["whole"] * whole


def _kind(text: str, shown: str, chars: int) -> str:
    if text == shown:
        return "whole"
    if is_excerpt(text, shown):
        ends = shown[:chars] == text[:chars] and shown[-chars:] == text[-chars:]
        return "cut" if ends else f"cut otherwise: {shown.index('[…')} and {len(shown) - shown.index('…]') - 3}"
    return "cleared" if len(shown) < 100 else "something else"


@then(step("each result was shown with at least {chars:N} characters"))
def _(talk: Talk, chars: int) -> None:
    assert min(len(shown) for _, shown in pairs(talk)) >= chars


@then(step("the first result took at most {tokens:N} tokens, and everything else was shown word for word"))
def _(talk: Talk, tokens: int) -> None:
    first = results(talk.answer.view)[0]
    assert COUNTER.count_message(first) <= tokens
    assert is_excerpt(*pairs(talk)[0])
    assert [entry for entry in talk.answer.view if entry != first] == [
        entry for entry in [*talk.instructions, *talk.answer.messages] if entry.get("tool_call_id") != "call_1"
    ]


@then(step("the oldest {rounds:N} rounds with calls were told in a line each, the others shown word for word"))
def _(talk: Talk, rounds: int) -> None:
    shown = len(results(talk.answer.view))
    assert shown == len(results(talk.answer.messages)) - rounds
    assert all(text == seen for text, seen in pairs(talk))
    assert shown_text(talk.answer).count('look_up({"query": "lamp ') == rounds


@then(step("{count:N} results were left out, each with a stub in its place, the others shown word for word"))
def _(talk: Talk, count: int) -> None:
    stubs = [shown for text, shown in pairs(talk) if shown != text]
    assert len(stubs) == count
    assert all("characters left out]" in stub and len(stub) < 100 for stub in stubs)
    assert [text == shown for text, shown in pairs(talk)][:count] == [False] * count


@then(step("the model saw the results:"))
def _(talk: Talk, datatable: Table) -> None:
    assert [(text.split(":")[0], _word(text, shown)) for text, shown in pairs(talk)] == [
        tuple(row) for row in datatable
    ]


def _word(text: str, shown: str) -> str:
    if text == shown:
        return "whole"
    return "cleared" if "cleared" in shown else "otherwise"


@then("the arguments of the calls whose results were cleared are empty")
def _(talk: Talk) -> None:
    cleared = {entry["tool_call_id"] for entry in results(talk.answer.view) if "cleared" in entry["content"]}
    assert cleared
    for entry in talk.answer.view:
        for call in entry.get("tool_calls") or ():
            assert (call["function"]["arguments"] == "{}") == (call["id"] in cleared)


@then(step("the model saw the reasoning of the last {turns:N} answers only"))
def _(talk: Talk, turns: int) -> None:
    answers = [entry for entry in talk.answer.view if entry["role"] == "assistant"]
    assert ["reasoning_content" in entry for entry in answers] == [False] * (len(answers) - turns) + [True] * turns


@then(step("the last result was shown with {least:N} to {most:N} characters"))
def _(talk: Talk, least: int, most: int) -> None:
    _, shown = pairs(talk)[-1]
    assert least <= len(shown) <= most
