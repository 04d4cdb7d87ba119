"""Request bodies as clients write them: single questions, and conversations that grow turn by turn and are re-sent."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache

import orjson

KEY = "sk-benchmark-0123456789abcdef"
"""What clients send as their key."""
VOCABULARY = (
    "the gateway keeps every message of a conversation and folds what is old when the window of the model gets narrow "
    "so that a client may send its whole history again on each turn without thinking of limits tokens latency cache "
    "prefix summary budget request answer stream chunk worker thread socket buffer index table page commit branch "
    "deploy metric error retry timeout naïve café über señor 数据 上下文 モデル"
)
SYSTEM_CHARS, QUESTION_CHARS, ANSWER_CHARS, RESULT_CHARS = 300, 420, 900, 1500
TURN_QUESTION_CHARS = 250
TOOL_TURN_EVERY = 10
QUOTED, BROKEN = 0.02, 0.03
"""Shares of words."""
PLACEHOLDER = "@" * 8
"""Stands where a number of eight digits makes a body unlike any other."""


def words(chars: int, *, seed: int) -> str:
    """Prose of about so many characters, quoted and broken into lines now and then, which JSON has to escape."""
    draw = random.Random(seed)
    vocabulary = VOCABULARY.split()
    text: list[str] = []
    size = 0
    while size < chars:
        word = draw.choice(vocabulary)
        chance = draw.random()
        text.append(f'"{word}"' if chance < QUOTED else f"{word}\n" if chance < QUOTED + BROKEN else word)
        size += len(word) + 1
    return " ".join(text)


def question(*, model: str, stream: bool) -> tuple[bytes, bytes]:
    """A request of about 1 KB (one system, one user message), in two halves: eight digits go between them."""
    fields: dict[str, object] = {
        "model": model,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant. " + words(SYSTEM_CHARS, seed=1)},
            {"role": "user", "content": f"Request {PLACEHOLDER}: {words(QUESTION_CHARS, seed=2)}"},
        ],
        "temperature": 0.2,
        "max_tokens": 512,
    }
    if stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    before, _, after = orjson.dumps(fields).partition(PLACEHOLDER.encode())
    return before, after


class History:
    """A conversation in its client's hands: it sends everything on each turn and appends what it was answered.

    Args:
        model: the model that is asked for.
        size_bytes: of the request body with which it begins.
        salt: makes its first message, and with it the conversation, unlike any other.
    """

    def __init__(self, *, model: str, size_bytes: int, salt: int) -> None:
        opening = f"Conversation {salt:08d}: {words(TURN_QUESTION_CHARS, seed=3)}"
        self._salt = salt
        self._turns = 0
        self._head = b'{"model":%b,"messages":[' % orjson.dumps(model)
        self._tail = b'],"temperature":0.2,"max_tokens":512}'
        system = {"role": "system", "content": "You are a helpful assistant. " + words(SYSTEM_CHARS, seed=1)}
        self._messages = orjson.dumps(system) + b"," + orjson.dumps({"role": "user", "content": opening})
        fixed = len(self._head) + len(self._messages) + len(self._tail)
        self._messages += past(max(0, size_bytes - fixed))

    def body(self) -> bytes:
        """The request of the turn that is due."""
        return b"".join([self._head, self._messages, self._tail])

    def answered(self, body: bytes) -> None:
        """Take an answer, its message as it came, and go on with another question.

        Raises:
            ValueError: it is not a chat completion.
        """
        try:
            message = orjson.loads(body)["choices"][0]["message"]
        except (orjson.JSONDecodeError, LookupError, TypeError) as error:
            raise ValueError(f"no chat completion: {body[:200]!r}") from error
        self._turns += 1
        text = f"Turn {self._turns} of {self._salt:08d}: {words(TURN_QUESTION_CHARS, seed=self._turns)}"
        following = orjson.dumps({"role": "user", "content": text})
        self._messages = b",".join([self._messages, orjson.dumps(message), following])


@cache
def past(size_bytes: int) -> bytes:
    """About so many bytes of earlier messages, each after a comma; the last one is the user's."""
    pieces: list[bytes] = []
    size = number = 0
    while True:
        turn = b"".join(b"," + orjson.dumps(message) for message in _past_turn(number))
        if size + len(turn) > size_bytes:
            return b"".join(pieces)
        pieces.append(turn)
        size += len(turn)
        number += 1


def _past_turn(number: int) -> Sequence[Mapping[str, object]]:
    """What follows a question: the answer, now and then after a tool call, and the next question."""
    answer = {"role": "assistant", "content": words(ANSWER_CHARS, seed=1000 + number)}
    following = {"role": "user", "content": words(TURN_QUESTION_CHARS, seed=5000 + number)}
    if number % TOOL_TURN_EVERY != TOOL_TURN_EVERY - 1:
        return (answer, following)
    name = f"call_{number:08d}"
    called = {"name": "read_file", "arguments": f'{{"path": "/src/module{number}.py"}}'}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": name, "type": "function", "function": called}]}
    result = {"role": "tool", "tool_call_id": name, "content": words(RESULT_CHARS, seed=9000 + number)}
    return (call, result, answer, following)
