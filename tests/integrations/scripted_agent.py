"""A model that works through a list of commands, and writes down what it was shown: behind a chat API, or behind the
Messages API.

It stands where a coding agent's provider stands. Its answers depend on nothing but its script, so a test knows which
calls must reach the agent and which outputs must come back.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.live import DONE, Reply, chunk, completion, usage_chunk
from tests.support.gateway import SUMMARIZER_WORDS, is_summary, material
from tests.support.messages_world import Block, text, thinking, tool_use

CHECKPOINTS: Final = (
    "You are performing a CONTEXT CHECKPOINT COMPACTION",
    "Your task is to create a detailed summary of the conversation so far",
)
"""How Codex and Claude Code ask the model for a summary of their own."""
_FACT = re.compile(r"FACT-\d+ is [a-z]+-\d+")


class ScriptedAgent:
    """Answers each request with the call of the next command, then with `final`.

    Args:
        commands: what is to be run, in order.
        build_call: makes the function's name and arguments from a command.
        final: what is said when all commands are done; `{}` in it is the number of the request.
    """

    FINAL: Final = "All commands are done."

    def __init__(
        self,
        commands: Sequence[str],
        build_call: Callable[[str], tuple[str, Mapping[str, Any]]],
        final: str = FINAL,
    ) -> None:
        self._final = final
        self._commands = list(commands)
        self._build_call = build_call
        self.made_calls = 0
        self.views: list[list[dict[str, Any]]] = []
        """The messages of each request that asked for an answer, oldest first."""
        self.checkpoints: list[list[dict[str, Any]]] = []
        """The messages of each request in which the agent asked for a summary of its own."""
        self.summarized: list[str] = []
        """What the gateway asked to be summarized."""

    def __call__(self, body: dict[str, Any]) -> Reply:
        step = self._choose_step(body, material(body) if is_summary(body) else None)
        if isinstance(step, str):
            return self._say(body, step)
        name, arguments = step
        function = {"name": name, "arguments": json.dumps(arguments)}
        return self._call(body, {"id": f"call_{self.made_calls}", "type": "function", "function": function})

    def _choose_step(self, body: dict[str, Any], summarized: str | None) -> str | tuple[str, Mapping[str, Any]]:
        """Returns what the model says, or which tool it calls.

        Args:
            summarized: what the gateway wants to be summarized; None if the request asks for an answer.
        """
        messages: list[dict[str, Any]] = body["messages"]
        if summarized is not None:
            self.summarized.append(summarized)
            return "Known: " + "; ".join(find_facts(summarized)) + "."
        if any(words in json.dumps(messages[-1]) for words in CHECKPOINTS):
            self.checkpoints.append(messages)
            known = "Known: " + "; ".join(find_facts(json.dumps(messages))) + "."
            has_tags = "<summary>" in json.dumps(messages[-1])
            return f"<analysis>\nThere are facts.\n</analysis>\n\n<summary>\n{known}\n</summary>" if has_tags else known
        self.views.append(messages)
        if self.made_calls == len(self._commands):
            return self._final.format(len(self.views))
        self.made_calls += 1
        return self._build_call(self._commands[self.made_calls - 1])

    def _say(self, body: dict[str, Any], text: str) -> Reply:
        if not body.get("stream"):
            return completion(text, prompt_tokens=estimate_tokens(body))
        return self._stream(body, {"role": "assistant", "content": text}, "stop")

    def _call(self, body: dict[str, Any], call: dict[str, Any]) -> Reply:
        if not body.get("stream"):
            return completion(None, prompt_tokens=estimate_tokens(body), tool_calls=[call])
        return self._stream(
            body, {"role": "assistant", "content": None, "tool_calls": [{"index": 0, **call}]}, "tool_calls"
        )

    def _stream(self, body: dict[str, Any], delta: dict[str, Any], finish_reason: str) -> Reply:
        usage = usage_chunk(estimate_tokens(body))
        return Reply(pieces=[chunk(delta), chunk({}, finish_reason), usage, DONE])


class ScriptedMessagesAgent(ScriptedAgent):
    """The same behind the Messages API: makes the blocks of each answer. They begin with thinking."""

    def __call__(self, body: dict[str, Any]) -> list[Block]:  # type: ignore[override]  # another protocol
        asked = json.dumps(body["messages"])
        is_summarizer = any(words in json.dumps(body["messages"][-1]) for words in SUMMARIZER_WORDS)
        step = self._choose_step(body, asked if is_summarizer else None)
        if isinstance(step, str):
            return [text(step)]
        name, arguments = step
        return [thinking(f"Call {self.made_calls}."), tool_use(f"toolu_{self.made_calls}", name, **arguments)]


def estimate_tokens(value: Any) -> int:
    """Returns about how many tokens a JSON value has: four characters are one."""
    return len(json.dumps(value)) // 4


def find_facts(text: str) -> list[str]:
    """Returns each planted fact that stands in a text, once, in order."""
    return list(dict.fromkeys(_FACT.findall(text)))


def plant_facts(folder: Path, *, count: int, words: int) -> list[str]:
    """Writes a file for each fact, with that many words around it. Returns the facts."""
    facts = []
    for number in range(1, count + 1):
        draw = random.Random(number)
        facts.append(f"FACT-{number} is {draw.choice(('red', 'green', 'blue'))}-{draw.randrange(10_000)}")
        text = " ".join(f"{draw.choice(('alpha', 'beta', 'gamma'))}{draw.randrange(1000)}" for _ in range(words))
        (folder / f"file-{number}.txt").write_text(f"{facts[-1]}\n{text}\n")
    return facts
