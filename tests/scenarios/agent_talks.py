"""The same agent run by all protocols: each client sends it turn by turn in its own way, to a model that answers as
the run goes on."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from app.context.count.tokenizers import load_tokenizer
from app.conversation.json_text import encode_compact_json
from tests.live import Reply, ScriptedUpstream, completion
from tests.scenarios.rewriting import find_orphan, words
from tests.support.chat_counter import ChatCounter
from tests.support.gateway import assistant, call, is_summary, pick_word, result, system, user

Body = dict[str, Any]
COUNTER = ChatCounter(load_tokenizer("o200k_base"))
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up an order.",
        "parameters": {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]},
    },
}


@dataclass
class Run:
    """An agent's run as chat messages, and its tools."""

    name: str
    messages: Sequence[Body]
    tools: Sequence[Body]

    def list_steps(self) -> list[tuple[int, int]]:
        """The new messages of each request, from and to an index. An assistant message follows each."""
        ends = [at for at, message in enumerate(self.messages) if message["role"] == "assistant" and at]
        return list(zip([0, *(end + 1 for end in ends)], ends, strict=False))


def make_run(seed: int, rounds: int = 24) -> Run:
    """A run with questions, texts beside calls, parallel calls, empty and long results, and ids of calls that come
    twice."""
    chance = random.Random(seed)
    messages: list[Body] = [system("You are a clerk. " + words(f"{seed} rules", 150)), user("Where is order 0?")]
    for number in range(rounds):
        count = chance.choice([0, 1, 1, 1, 2, 3])
        ids = [f"call_{number if chance.random() < 0.9 else 0}_{one}" for one in range(count)]
        calls = [call("look_up", json.dumps({"order": words(f"{seed} {one} {number}", 3)}), one) for one in ids]
        said = words(f"{seed} said {number}", chance.choice([20, 60])) if not calls or chance.random() < 0.3 else None
        messages.append(assistant(said, **({"tool_calls": calls} if calls else {})))
        messages += [result(words(f"{seed} {one} {number} found", chance.choice([0, 10, 60, 200])), one) for one in ids]
        if not calls:
            messages.append(user(words(f"{seed} asks {number}", chance.choice([5, 40, 120]))))
    return Run(f"run-{seed}", [*messages, assistant("That is all.")], [TOOL])


class RunModel(ScriptedUpstream):
    """Answers each request with the run's next assistant message, and counts exactly. It refuses what does not fit its
    window, and calls and results without each other."""

    def __init__(self, window: int) -> None:
        super().__init__(default=self._reply)
        self.window = window
        self.answer: Body = {}
        self.refusals: list[str] = []

    def _reply(self, body: Body) -> Reply:
        messages = body["messages"]
        tokens = COUNTER.count_request(messages, tools=body.get("tools"))
        refusal = find_orphan(messages) or (f"{tokens} tokens" if tokens > self.window else None)
        if refusal is not None:
            self.refusals.append(refusal)
            return Reply({"error": {"message": refusal, "type": "invalid_request_error"}}, 400)
        if is_summary(body):
            digest = hashlib.sha256(
                json.dumps(list(map(drop_null_fields, messages)), sort_keys=True).encode()
            ).hexdigest()
            return completion(f"They looked up {pick_word(body)} ({digest[:8]}).", prompt_tokens=tokens)
        return completion(
            self.answer["content"],
            prompt_tokens=tokens,
            **{name: value for name, value in self.answer.items() if name == "tool_calls"},
        )


def drop_null_fields(message: Body) -> Body:
    """Leaves out fields that say nothing. Which of them are there depends on who wrote the message."""
    return {name: value for name, value in message.items() if value is not None}


def convert_to_items(message: Body) -> list[Body]:
    """Returns a chat message of a run as the items that a Responses client sends."""
    match message:
        case {"role": "tool"}:
            return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}]
        case {"role": "assistant"}:
            text = [{"type": "output_text", "text": message["content"]}] if message["content"] else []
            said = [{"type": "message", "role": "assistant", "content": text}] if text else []
            calls = [
                {"type": "function_call", "call_id": one["id"], **one["function"]}
                for one in message.get("tool_calls", ())
            ]
            return [*said, *calls]
    return [message]


def convert_to_messages(messages: Sequence[Body]) -> list[Body]:
    """Returns chat messages of a run as a Messages client sends them: the results of one round in one message."""
    converted: list[Body] = []
    for message in messages:
        if message["role"] != "tool":
            converted.append({"role": message["role"], "content": message["content"]})
            continue
        result_block = {
            "type": "tool_result",
            "tool_use_id": message["tool_call_id"],
            "content": message["content"],
        }
        if not (converted and isinstance(converted[-1]["content"], list)):
            converted.append({"role": "user", "content": []})
        converted[-1]["content"].append(result_block)
    return converted


def compact_arguments(run: Run) -> Run:
    """Returns a run whose arguments of calls are written without spaces: the Messages API has objects in their place,
    and not their texts."""

    def compact(one: Body) -> Body:
        arguments = json.loads(one["function"]["arguments"] or "{}")
        return {**one, "function": {**one["function"], "arguments": encode_compact_json(arguments)}}

    messages = [
        {**message, "tool_calls": list(map(compact, message["tool_calls"]))} if message.get("tool_calls") else message
        for message in run.messages
    ]
    return Run(run.name, messages, run.tools)


@dataclass
class Turn:
    """What a request caused.

    Attributes:
        asked: the bodies of all requests that reached the provider, those of the summarizer among them.
        status: the state of the context as the answer tells it.
        usage: the tokens of the prompt and of the answer.
    """

    asked: list[Body]
    status: str
    context: Body
    usage: tuple[int, int]


@dataclass
class AgentClient:
    """Sends runs to a gateway, one request for each assistant message.

    Attributes:
        post: sends a body to a path; the key separates the runs.
        way: how a request names what was before: `resent`, `conversation`, `previous_response_id`.
        has_instructions: whether the system message is the field `instructions` of each Responses request.
    """

    client: httpx.AsyncClient
    model: RunModel
    protocol: str
    way: str
    fields: Body = field(default_factory=dict)
    has_instructions: bool = False

    async def send_run(self, run: Run) -> list[Turn]:
        senders: dict[str, Callable[..., Any]] = {"chat": self._send_chat, "responses": self._send_responses}
        send = senders.get(self.protocol, self._send_messages)
        turns: list[Turn] = []
        state: Body = {"history": [], "names": {}}
        for start, end in run.list_steps():
            before = len(self.model.bodies)
            self.model.answer = dict(run.messages[end])
            body = await send(run, run.messages[start:end], state)
            turns.append(
                Turn(
                    asked=[json.loads(raw) for raw in self.model.bodies[before:]],
                    status=body["context_status"],
                    context=body["context"],
                    usage=tuple(value for name, value in body["usage"].items() if name in TOKEN_COUNTS),
                )
            )
        return turns

    async def _post(self, run: Run, path: str, body: Body) -> Body:
        answer = await self.client.post(path, json=body, headers={"authorization": f"Bearer {run.name}"})
        assert answer.status_code == 200, (run.name, self.way, answer.text, self.model.refusals)
        found: Body = answer.json()
        return found

    async def _send_chat(self, run: Run, new: Sequence[Body], state: Body) -> Body:
        # A chat client sends its system message with every request.
        system_messages = run.messages[:1] if state["history"] else []
        sent = [*state["history"], *new] if self.way == "resent" else [*system_messages, *new]
        body = {"model": "m", "messages": sent, **state["names"], **self.fields}
        answer = await self._post(run, "/chat/completions", body | ({"tools": run.tools} if run.tools else {}))
        state["history"] += [*new, answer["choices"][0]["message"]]
        if self.way == "conversation":
            state["names"] = {"conversation_id": answer["conversation_id"]}
        return answer

    async def _send_messages(self, run: Run, new: Sequence[Body], state: Body) -> Body:
        system_fields = {"system": run.messages[0]["content"]} if run.messages[0]["role"] == "system" else {}
        sent = convert_to_messages([message for message in new if message["role"] != "system"])
        tools = [
            {"name": one["function"]["name"], "input_schema": one["function"]["parameters"]}
            | ({"description": one["function"]["description"]} if "description" in one["function"] else {})
            for one in run.tools
        ]
        body = {"model": "m", "messages": [*state["history"], *sent], **system_fields, **self.fields}
        answer = await self._post(run, "/messages", body | ({"tools": tools} if tools else {}))
        state["history"] += [*sent, {"role": "assistant", "content": answer["content"]}]
        return answer

    async def _send_responses(self, run: Run, new: Sequence[Body], state: Body) -> Body:
        instructions = {}
        if self.has_instructions:
            instructions = {"instructions": run.messages[0]["content"]}
            new = [message for message in new if message["role"] != "system"]
        items = [item for message in new for item in convert_to_items(message)]
        sent = [*state["history"], *items] if self.way == "resent" else items
        tools = [{"type": "function", **one["function"]} for one in run.tools]
        body = {"model": "m", "input": sent, **instructions, **state["names"], **self.fields}
        answer = await self._post(run, "/responses", body | ({"tools": tools} if tools else {}))
        # A client resends the output as it came.
        state["history"] += [*items, *answer["output"]]
        if self.way == "conversation":
            state["names"] = {"conversation": answer["conversation_id"]}
        elif self.way == "previous_response_id":
            state["names"] = {"previous_response_id": answer["id"]}
        return answer


TOKEN_COUNTS = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
