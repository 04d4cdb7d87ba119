"""Given …: the gateway's configuration, the model behind it, and how the client speaks."""

from __future__ import annotations

import textwrap

import yaml
from pytest_bdd import given, when

from tests.behaviour.model import Body
from tests.behaviour.steps.words import Table, nested, step, value
from tests.behaviour.talk import MODEL, Talk
from tests.behaviour.texts import COUNTER, message


@given(step("a model with a window of {tokens:N} tokens"))
def _(talk: Talk, tokens: int) -> None:
    talk.must_not_have_begun()
    talk.window = tokens
    talk.model.windows[MODEL] = tokens


@given(step('the model "{name}" with a window of {tokens:N} tokens'))
def _(talk: Talk, name: str, tokens: int) -> None:
    talk.model.windows[name] = tokens
    every = {"provider": "upstream", "context_window": talk.window}
    talk.configure("models", {"*": every, name: {"provider": "upstream", "context_window": tokens}})


@given(step('the policy "{name}"'))
def _(talk: Talk, name: str) -> None:
    _choose(talk, name, {})


@given(step('the policy "{name}" with:'))
def _(talk: Talk, name: str, datatable: Table) -> None:
    _choose(talk, name, nested(datatable))


def _choose(talk: Talk, name: str, values: Body) -> None:
    known = talk.settings.get("policies", {}).get(name, {})
    talk.configure("policies", {name: {**known, **values}})
    talk.settings["policy"] = name


@given("this configuration:")
def _(talk: Talk, docstring: str) -> None:
    talk.must_not_have_begun()
    talk.settings.update(yaml.safe_load(textwrap.dedent(docstring)))


@given(step("conversations are kept in {place}"))
def _(talk: Talk, place: str) -> None:
    talk.must_not_have_begun()
    talk.database = {"memory": "memory://", "SQLite": f"sqlite+aiosqlite:///{talk.folder}/kept.db"}[place]


@given(step('the instructions "{text}"'))
def _(talk: Talk, text: str) -> None:
    talk.instructions = [{"role": "system", "content": text}]


@given(step("instructions of {tokens:N} tokens"))
def _(talk: Talk, tokens: int) -> None:
    talk.instructions = [message("system", tokens, "You are a careful clerk.")]


@given(step("tool schemas of about {tokens:N} tokens"))
def _(talk: Talk, tokens: int) -> None:
    number = 0
    while COUNTER.count_tools(talk.tools) < tokens:
        number += 1
        talk.tools.append(tool(f"look_up_{number}"))


@given(step('the tools "{names}"'))
def _(talk: Talk, names: str) -> None:
    talk.tools = [tool(name.strip()) for name in names.split(",")]


def tool(name: str) -> Body:
    parameters = {"type": "object", "properties": {"query": {"type": "string", "description": "What to look for."}}}
    described = {"name": name, "description": "Looks something up and tells what it found.", "parameters": parameters}
    return {"type": "function", "function": described}


@given(step("the provider counts {times:R} times as many tokens as we do"))
def _(talk: Talk, times: float) -> None:
    talk.model.counts = talk.model.counts_tools = times
    talk.model.windows.clear()


@given(step("the provider counts {times:R} times as many tokens for tool schemas as we do"))
def _(talk: Talk, times: float) -> None:
    talk.model.counts_tools = times


@given("the provider reports:")
def _(talk: Talk, datatable: Table) -> None:
    talk.model.reports = nested(datatable)


@given(step("the model really takes {tokens:N} tokens, and says so when it refuses"))
def _(talk: Talk, tokens: int) -> None:
    talk.model.windows[MODEL] = tokens
    talk.model.is_said_to_be_larger = True


@given(step("the model really takes {tokens:N} tokens, and only says that it was too much"))
def _(talk: Talk, tokens: int) -> None:
    talk.model.windows[MODEL] = tokens
    talk.model.is_said_to_be_larger = True
    talk.model.states_its_window = False


@given(step("answers of {tokens:N} tokens each"))
def _(talk: Talk, tokens: int) -> None:
    talk.model.answers = str(message("assistant", tokens, "Here it is:")["content"])


@given(step("summaries of {tokens:N} tokens"))
def _(talk: Talk, tokens: int) -> None:
    talk.model.summary_tokens = tokens


@given(step("a summary has room for {facts:N} facts"))
def _(talk: Talk, facts: int) -> None:
    talk.model.most_facts = facts


@given("the client sends only its new messages, and the name of its conversation")
def _(talk: Talk) -> None:
    talk.appends = True
    talk.headers["x-conversation-id"] = "the-conversation"


@given("the client says in each request:")
def _(talk: Talk, datatable: Table) -> None:
    talk.fields.update({name: value(cell) for name, cell in datatable})


@when(step('the client changes its instructions to "{text}"'))
def _(talk: Talk, text: str) -> None:
    talk.instructions = [{"role": "system", "content": text}]
