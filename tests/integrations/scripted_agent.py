"""A model behind a chat API that works through a list of commands, and writes down what it was shown.

It stands where a coding agent's provider stands. Its answers depend on nothing but its script, so a test knows which
calls must reach the agent and which outputs must come back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tests.live import DONE, Reply, chunk, completion, usage_chunk
from tests.support.gateway import is_summary, material

CHECKPOINT: Final = "You are performing a CONTEXT CHECKPOINT COMPACTION"
"""How Codex begins the message that asks the model for a summary."""
_FACT = re.compile(r"FACT-\d+ is [a-z]+-\d+")


class ScriptedAgent:
    """Answers each request with the call of the next command, then with `FINAL`.

    Args:
        commands: what is to be run, in order.
        build_call: makes the function's name and arguments from a command.
    """

    FINAL: Final = "All commands are done."

    def __init__(
        self,
        commands: Sequence[str],
        build_call: Callable[[str], tuple[str, Mapping[str, Any]]],
    ) -> None:
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
        messages: list[dict[str, Any]] = body["messages"]
        if is_summary(body):
            self.summarized.append(material(body))
            return self._say(body, "Known: " + "; ".join(find_facts(self.summarized[-1])) + ".")
        if CHECKPOINT in json.dumps(messages[-1]):
            self.checkpoints.append(messages)
            return self._say(body, "Known: " + "; ".join(find_facts(json.dumps(messages))) + ".")
        self.views.append(messages)
        if self.made_calls == len(self._commands):
            return self._say(body, self.FINAL)
        name, arguments = self._build_call(self._commands[self.made_calls])
        self.made_calls += 1
        function = {"name": name, "arguments": json.dumps(arguments)}
        return self._call(body, {"id": f"call_{self.made_calls}", "type": "function", "function": function})

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


def estimate_tokens(value: Any) -> int:
    """Returns about how many tokens a JSON value has: four characters are one."""
    return len(json.dumps(value)) // 4


def find_facts(text: str) -> list[str]:
    """Returns each planted fact that stands in a text, once, in order."""
    return list(dict.fromkeys(_FACT.findall(text)))
