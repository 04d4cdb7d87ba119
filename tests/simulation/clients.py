"""Clients as small state machines: what each keeps of its chat, what it sends of it, and what it does in a step."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from app.api.edge.unknown_paths import CHAT_PATH, MESSAGES_PATH
from tests.simulation.gateway import Answer, ConnectionLost, SimulatedGateway
from tests.simulation.messages_client import build_messages_body, read_message
from tests.simulation.provider import CURRENT, FAQ, MARKER, SentRequest, find_markers, make_words

Message = dict[str, Any]
Shape = Callable[["Client", list[Message]], list[Message]]
TOOLS: Final = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("bash", "read")
]
FEW_SHOT: Final = [
    {"role": role, "content": text}
    for role, text in (
        ("user", "Translate: cat"),
        ("assistant", "Katze"),
        ("user", "Translate: tree"),
        ("assistant", "Baum"),
    )
]
TRIES: Final = 3


def keep_turns(count: int) -> Shape:
    """A sliding window over turns."""

    def shape(client: Client, history: list[Message]) -> list[Message]:
        starts = [at for at, one in enumerate(history) if one["role"] == "user"]
        return history[starts[-count] if len(starts) > count else 0 :]

    return shape


def keep_messages(count: int) -> Shape:
    """A sliding window over messages, which begins at no result."""

    def shape(client: Client, history: list[Message]) -> list[Message]:
        start = max(0, len(history) - count)
        while start and history[start]["role"] == "tool":
            start += 1
        return history[start:]

    return shape


def mask_results(client: Client, history: list[Message]) -> list[Message]:
    results = [at for at, one in enumerate(history) if one["role"] == "tool"]
    return [{**one, "content": "[omitted]"} if at in results[:-2] else one for at, one in enumerate(history)]


def drop_tool_rounds(client: Client, history: list[Message]) -> list[Message]:
    newest = max(at for at, one in enumerate(history) if one["role"] == "user")
    return [one for at, one in enumerate(history) if at > newest or not (one["role"] == "tool" or "tool_calls" in one)]


def change_newest(change: Callable[[Client, str], str]) -> Shape:
    def shape(client: Client, history: list[Message]) -> list[Message]:
        newest = max(at for at, one in enumerate(history) if one["role"] == "user")
        changed = {**history[newest], "content": change(client, history[newest]["content"])}
        return [*history[:newest], changed, *history[newest + 1 :]]

    return shape


def change_role(role: str, change: Callable[[str], str]) -> Shape:
    def shape(client: Client, history: list[Message]) -> list[Message]:
        return [
            {**one, "content": change(one["content"])} if one["role"] == role and one["content"] else one
            for one in history
        ]

    return shape


def add_notes(client: Client, history: list[Message]) -> list[Message]:
    note = {"role": "system", "content": f"{client.mark('s')} There are {client.turns} open tasks."}
    place = max(at for at, one in enumerate(history) if one["role"] == "user") + client.turns % 2
    return [*history[:place], note, *history[place:]]


def add_context_message(client: Client, history: list[Message]) -> list[Message]:
    newest = max(at for at, one in enumerate(history) if one["role"] == "user")
    context = {"role": "user", "content": f"{client.mark('s')} The file that is open has {client.turns} lines."}
    return [*history[:newest], context, *history[newest:]]


def tell_time(client: Client, history: list[Message]) -> list[Message]:
    first = {**history[0], "content": f"It is {client.turns} o'clock. {history[0]['content']}"}
    return [first, *history[1:]]


def summarize_self(client: Client, history: list[Message]) -> list[Message]:
    """Replaces all but the last three turns by a summary in the client's own words, made anew every fourth turn."""
    starts = [at for at, one in enumerate(history) if one["role"] == "user"]
    if len(starts) < 6:
        return history
    turns = 3 + len(starts) % 4
    summary = f"⟦{client.voice}:s9{len(starts) - turns}⟧ Summary of what was said before: it was about many things."
    return [{"role": "user", "content": summary}, *history[starts[-turns] :]]


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a kind of client does always.

    Attributes:
        shape: makes the messages of a request out of the client's history.
        identity: `none`, `id` (history and id) or `append` (id and only what is new).
        acts: what it does beside saying something.
        speaks_messages: it is a client of the Messages API.
        is_logged_whole: the log under the id of an answer has exactly the user messages of the client's history.
    """

    shape: Shape = lambda client, history: history
    identity: str = "none"
    acts: tuple[str, ...] = ("faq", "retry")
    tools: bool = False
    call_ids: str = "random"
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    names_end_user: bool = False
    start: tuple[Message, ...] = ()
    is_logged_whole: bool = True
    speaks_messages: bool = False


KINDS: Final = {
    "resend": Kind(acts=("faq", "retry", "retry_with_key", "leave", "paste", "choices", "unstored", "delete", "twice")),
    "resend_tools": Kind(tools=True, acts=("faq", "leave", "regenerate")),
    "with_id": Kind(identity="id", acts=("faq", "retry", "leave", "regenerate", "edit", "delete", "unstored")),
    "append": Kind(identity="append", acts=("faq", "retry", "retry_with_key", "leave", "delete"), tools=True),
    "window_2": Kind(shape=keep_turns(2), is_logged_whole=False),
    "window_4": Kind(shape=keep_turns(4), tools=True, is_logged_whole=False),
    "window_messages": Kind(shape=keep_messages(7), is_logged_whole=False),
    "mask_random": Kind(shape=mask_results, tools=True),
    "mask_counted": Kind(shape=mask_results, tools=True, call_ids="counted"),
    "mask_nine": Kind(shape=mask_results, tools=True, call_ids="nine"),
    "drop_rounds": Kind(shape=drop_tool_rounds, tools=True),
    "notes": Kind(shape=add_notes),
    "rag": Kind(
        shape=change_newest(
            lambda client, text: f"Found: {client.mark('s')} {make_words(random.Random(client.turns), 30)}\n\n{text}"
        )
    ),
    "reminder": Kind(shape=change_newest(lambda client, text: f"{text}\n\n<reminder>Be brief.</reminder>")),
    "time": Kind(shape=tell_time),
    "context_message": Kind(shape=add_context_message),
    "footer": Kind(shape=change_role("assistant", lambda text: f"{text}\n\n-- made by a machine")),
    "collapsed": Kind(shape=change_role("assistant", lambda text: re.sub(r"\s*\n+", " ", text))),
    "uncited": Kind(shape=change_role("assistant", lambda text: re.sub(r" \[\d+\]", "", text))),
    "own_summary": Kind(shape=summarize_self, is_logged_whole=False),
    "editor": Kind(acts=("edit_in_place", "edit", "delete_middle", "regenerate"), is_logged_whole=False),
    "regenerator": Kind(acts=("regenerate", "regenerate", "edit", "faq")),
    "interrupter": Kind(acts=("leave", "leave", "faq")),
    "group": Kind(acts=("insert", "insert", "faq"), is_logged_whole=False),
    "prefill": Kind(acts=("prefill", "faq"), is_logged_whole=False),
    "choices": Kind(acts=("choices", "choices", "faq")),
    "unstored": Kind(fields={"store": False}, acts=("faq",), is_logged_whole=False),
    "mixed_store": Kind(acts=("unstored", "unstored", "faq"), is_logged_whole=False),
    "paster": Kind(acts=("paste", "paste", "faq"), is_logged_whole=False),
    "cache_key": Kind(fields={"prompt_cache_key": "all"}, acts=("faq", "paste")),
    "end_user": Kind(names_end_user=True, acts=("faq", "retry")),
    "faq_window": Kind(shape=keep_turns(3), acts=("faq", "faq", "faq", "paste"), is_logged_whole=False),
    "key_window": Kind(
        shape=keep_turns(2), fields={"prompt_cache_key": "all"}, acts=("faq", "faq", "paste"), is_logged_whole=False
    ),
    "counted_window": Kind(
        shape=keep_turns(2), tools=True, call_ids="counted", acts=("faq", "faq"), is_logged_whole=False
    ),
    "few_shot": Kind(start=tuple(FEW_SHOT), acts=("faq", "regenerate")),
}
MESSAGES_ACTS: Final = ("faq", "retry", "retry_with_key", "leave", "paste", "twice")
MESSAGES_KINDS: Final = {
    "messages": Kind(speaks_messages=True, acts=(*MESSAGES_ACTS, "regenerate", "edit")),
    "messages_tools": Kind(speaks_messages=True, tools=True, acts=MESSAGES_ACTS),
    "messages_id": Kind(speaks_messages=True, identity="id", acts=("faq", "retry", "leave", "delete")),
    "messages_append": Kind(
        speaks_messages=True, identity="append", tools=True, acts=("faq", "retry_with_key", "leave")
    ),
    "messages_window": Kind(speaks_messages=True, shape=keep_turns(4), tools=True, is_logged_whole=False),
    "messages_mask": Kind(speaks_messages=True, shape=mask_results, tools=True),
    "messages_notes": Kind(speaks_messages=True, shape=add_notes),
    "messages_summary": Kind(speaks_messages=True, shape=summarize_self, is_logged_whole=False),
    "messages_prefill": Kind(speaks_messages=True, acts=("prefill", "faq"), is_logged_whole=False),
}
"""Clients of the Messages API. They have scripts of their own, so that the seeds of the others tell the same."""
NAMED_TOOLS_KINDS: Final = {
    "id_tools": Kind(identity="id", tools=True),
    "messages_id_tools": Kind(identity="id", tools=True, speaks_messages=True),
}
"""Agents that send their whole history under an id of their own. They have scripts of their own, too."""
ALL_KINDS: Final = {**KINDS, **MESSAGES_KINDS, **NAMED_TOOLS_KINDS}


class Client:
    """One person at one client.

    Attributes:
        voice: the owner in the markers of what it says. Twins have the same.
        history: the chat as the client keeps it.
        known: all markers that it has sent or received.
        optional: markers of user messages that the log may have or not, since the client gave them up.
        said_again: markers of user messages that may stand twice. The process that failed to answer them was killed,
            and they came again without a key: no server can tell that from words that are said twice.
        cut_off: beginnings of answers at which it hung up, each with the second at which it had got it.
    """

    def __init__(self, name: str, voice: str, kind: str, model: str, world: Any) -> None:
        self.name, self.voice, self.kind, self.model, self.world = name, voice, ALL_KINDS[kind], model, world
        self.gateway: SimulatedGateway = world.gateway
        self.history: list[Message] = list(self.kind.start)
        self.known: set[str] = set()
        self.optional: set[str] = set()
        self.said_again: set[str] = set()
        self.cut_off: dict[str, float] = {}
        self.chats = self.marks = 0
        self.turns: int = 0
        self.conversation_id: str | None = None
        self.has_whole_answer = False
        self.system = [{"role": "system", "content": f"You are a helpful assistant of {voice}."}] * (len(name) % 2)

    def mark(self, kind: str) -> str:
        self.marks += 1
        return f"⟦{self.voice}:{kind}{self.marks}⟧"

    @property
    def named_id(self) -> str | None:
        return None if self.kind.identity == "none" else f"chat-{self.name}-{self.chats}"

    async def act(self, act: str, seed: int) -> None:
        """Does one step. The same act with the same seed says the same."""
        self.turns += 1
        rng = random.Random(seed)
        await getattr(self, f"_do_{act}", self._do_say)(rng, act)

    async def _do_say(self, rng: random.Random, act: str) -> None:
        await self._converse(rng, self._make_question(rng, act), act)

    def _make_question(self, rng: random.Random, act: str) -> str:
        if act == "faq":
            return rng.choice(list(FAQ))
        if act == "greet":
            return "Hello"
        return f"{self.mark('u')} {make_words(rng, rng.choice((3, 12, 12, 40, 120)))}"

    async def _converse(self, rng: random.Random, question: str, act: str = "say", **fields: Any) -> None:
        self.history.append({"role": "user", "content": question})
        await self._finish_turn(rng, act, **fields)

    async def _finish_turn(self, rng: random.Random, act: str, **fields: Any) -> None:
        """Sends requests until the model has answered the newest user message. If that fails, the client drops it."""
        begin = max(at for at, one in enumerate(self.history) if one["role"] == "user")
        fresh = begin
        while True:
            answer = await self._send(rng, act, fresh, **fields)
            if answer is None:
                self.optional |= find_markers(str(self.history[begin]["content"]))
                del self.history[begin:]
                return
            fresh = len(self.history) + 1
            self.history.append(answer)
            if not self.has_whole_answer:
                self.cut_off[answer["content"]] = self.world.loop.seconds
            if not (calls := answer.get("tool_calls")):
                return
            for call in calls:
                content = f"{self.mark('t')} {make_words(rng, rng.choice((5, 60, 200)))}"
                self.history.append({"role": "tool", "tool_call_id": call["id"], "content": content})

    async def _do_regenerate(self, rng: random.Random, act: str) -> None:
        users = [at for at, one in enumerate(self.history) if one["role"] == "user"]
        # With an id, a history without an answer is a new message.
        if len(users) < (2 if self.kind.identity == "id" else 1) or users[-1] < len(self.kind.start):
            await self._do_say(rng, act)
        else:
            del self.history[users[-1] + 1 :]
            await self._finish_turn(rng, act)

    async def _do_edit(self, rng: random.Random, act: str) -> None:
        users = [at for at, one in enumerate(self.history) if one["role"] == "user" and at >= len(self.kind.start)]
        if self.kind.identity == "id":
            users = users[1:]  # as in `_do_regenerate`
        if users:
            del self.history[rng.choice(users[-4:]) :]
        await self._do_say(rng, act)

    async def _do_edit_in_place(self, rng: random.Random, act: str) -> None:
        users = [one for one in self.history if one["role"] == "user"]
        if users:
            users[rng.randrange(len(users))]["content"] += " " + make_words(rng, 4)
        await self._do_say(rng, act)

    async def _do_delete_middle(self, rng: random.Random, act: str) -> None:
        users = [at for at, one in enumerate(self.history) if one["role"] == "user"]
        if len(users) > 2:
            at = rng.randrange(len(users) - 1)
            del self.history[users[at] : users[at + 1]]
        await self._do_say(rng, act)

    async def _do_insert(self, rng: random.Random, act: str) -> None:
        users = [at for at, one in enumerate(self.history) if one["role"] == "user"]
        for at in sorted(rng.sample(users, min(2, len(users))), reverse=True):
            text = f"{self.mark('u')} by the way, {make_words(rng, 6)}"
            self.history.insert(at, {"role": "user", "name": "otto", "content": text})
        await self._do_say(rng, act)

    async def _do_paste(self, rng: random.Random, act: str) -> None:
        """The application serves somebody's earlier answer from a cache of its own, and goes on with the gateway."""
        answers = [one for client in self.world.clients if client is not self for one in client.history]
        texts = [one["content"] for one in answers if one["role"] == "assistant" and one["content"]]
        if texts:
            question = self._make_question(rng, "say")
            self.history += [{"role": "user", "content": question}, {"role": "assistant", "content": rng.choice(texts)}]
        await self._do_say(rng, act)

    async def _do_prefill(self, rng: random.Random, act: str) -> None:
        self.history.append({"role": "user", "content": self._make_question(rng, "say")})
        start = f"{self.mark('s')} I begin with"
        self.history.append({"role": "assistant", "content": start})
        answer = await self._send(rng, act, len(self.history) - 2)
        del self.history[-1]
        if answer is None:
            self.optional |= find_markers(self.history.pop()["content"])
        else:
            self.history.append({"role": "assistant", "content": f"{start} {answer['content'] or ''}"})

    async def _do_choices(self, rng: random.Random, act: str) -> None:
        await self._converse(rng, self._make_question(rng, act), act, n=2)

    async def _do_unstored(self, rng: random.Random, act: str) -> None:
        question = self._make_question(rng, act)
        if self.kind.identity == "append":
            self.optional |= find_markers(question)
        await self._converse(rng, question, act, store=False)

    async def _do_delete(self, rng: random.Random, act: str) -> None:
        conversation_id, self.conversation_id = self.conversation_id, None
        self.history, self.chats = list(self.kind.start), self.chats + 1
        if conversation_id is not None:
            await self.gateway.delete_conversation(conversation_id)

    async def _send(self, rng: random.Random, act: str, fresh: int, **fields: Any) -> Message | None:
        """Sends the history, or what is fresh of it, and returns the answer. None: all tries failed.

        Args:
            fresh: the index of the first message that the gateway has not been sent.
        """
        appends = self.kind.identity == "append"
        told = self.history[fresh:] if appends else self.kind.shape(self, self.history)
        own = {
            name: value.format(name=self.name) if isinstance(value, str) else value
            for name, value in self.kind.fields.items()
        }
        body = {"model": self.model, "messages": [*self.system, *told], "stream": rng.random() < 0.6, **own, **fields}
        if self.kind.tools:
            body["tools"] = TOOLS
        headers = {} if self.named_id is None else {"x-conversation-id": self.named_id}
        if appends:
            headers["x-context-mode"] = "append"
        if act == "retry_with_key" or rng.random() < 0.1:
            headers["idempotency-key"] = f"{self.name}-{rng.getrandbits(40)}"
        if self.kind.speaks_messages:
            body = build_messages_body(body)
        raw = json.dumps(body, ensure_ascii=False).encode()
        hang_up = rng.randrange(4) if act == "leave" else None
        is_new = appends or (self.named_id is not None and all(one["role"] == "user" for one in told))
        has_no_key, kills = "idempotency-key" not in headers, self.gateway.kills
        if act == "retry" or act == "retry_with_key":
            answer = await self._try(raw, headers, told, rng, hang_up_after=rng.choice((None, 0, 1)))
            if answer is not None and self.has_whole_answer and is_new and has_no_key:
                return answer  # sent once more it would be a new message
        if act == "twice":
            both = [asyncio.ensure_future(self._try(raw, headers, told, rng)) for _ in range(2)]
            for task in both:
                self.gateway.protect(task)
            return next((one for one in await asyncio.gather(*both) if one is not None), None)
        for attempt in range(TRIES):
            if is_new and has_no_key and self.gateway.kills > kills:
                self.said_again |= set(list_user_markers(told))
            answer = await self._try(raw, headers, told, rng, hang_up_after=hang_up)
            if answer is not None:
                return answer
            if act == "leave":
                return None
            await asyncio.sleep(1 + 10 * attempt)
        return None

    async def _try(
        self,
        raw: bytes,
        headers: dict[str, str],
        told: list[Message],
        rng: random.Random,
        hang_up_after: int | None = None,
    ) -> Message | None:
        newest = next((one["content"] for one in reversed(told) if one["role"] == "user"), None)
        if newest is not None and find_markers(newest) & self.said_again:
            newest = None
        carried = find_markers(raw.decode())
        self.known |= carried
        is_named = self.named_id is not None
        seed = rng.getrandbits(32)
        sent = SentRequest(
            self.name, self.voice, self.known, carried, newest, is_named, random.Random(seed), self.kind.call_ids
        )
        token = CURRENT.set(sent)
        try:
            path = MESSAGES_PATH if self.kind.speaks_messages else CHAT_PATH
            answer = await self.gateway.post(raw, headers, hang_up_after, path=path)
        except ConnectionLost:
            return None
        finally:
            CURRENT.reset(token)
        self.known |= find_markers(answer.text)
        message, fields = (read_message if self.kind.speaks_messages else read_answer)(answer)
        if message is not None:
            self.known |= find_markers(json.dumps(message, ensure_ascii=False))
        self.has_whole_answer = answer.is_whole
        if answer.is_whole:
            await self.world.check_answer(self, sent, told, answer.status, message, fields)
        return message if message is not None and (answer.is_whole or message["content"]) else None


def read_answer(answer: Answer) -> tuple[Message | None, dict[str, Any]]:
    """Returns the assistant message of an answer (of its last choice), as far as it came, and the gateway's fields.
    No message: it is an error."""
    if answer.status != 200:
        return None, {}
    if not answer.headers["content-type"].startswith("text/event-stream"):
        if not answer.is_whole:
            return None, {}
        body = answer.body
        message = body["choices"][-1]["message"]
        return {key: message[key] for key in ("role", "content", "tool_calls") if key in message}, body
    message, calls, fields = {"role": "assistant", "content": None}, dict[int, Any](), dict[str, Any]()
    for event in answer.events:
        if "error" in event:
            return (message, fields) if not answer.is_whole and message["content"] else (None, fields)
        fields |= {key: event[key] for key in ("conversation_id", "context_status", "context") if key in event}
        for choice in event["choices"]:
            if choice["index"] != 0:
                continue
            if (text := choice["delta"].get("content")) is not None:
                message["content"] = (message["content"] or "") + text
            for call in choice["delta"].get("tool_calls") or ():
                # A call's arguments may come after its name, as real clients join them.
                known = calls.setdefault(call["index"], {"function": {"arguments": ""}})
                said = call.get("function") or {}
                arguments = known["function"]["arguments"] + (said.get("arguments") or "")
                known |= {key: call[key] for key in ("id", "type") if call.get(key)}
                known["function"] = {**known["function"], **said, "arguments": arguments}
    if calls and answer.is_whole:
        message["tool_calls"] = list(calls.values())
    return message, fields


def list_user_markers(messages: list[Message]) -> list[str]:
    """Returns the markers of what the user said, in order."""
    texts = [json.dumps(one.get("content"), ensure_ascii=False) for one in messages if one.get("role") == "user"]
    return [match[0] for text in texts for match in MARKER.finditer(text) if match[2] == "u"]
