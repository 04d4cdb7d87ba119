"""An ordinary client: the official SDK, a list of messages that only grows, and the fields the gateway adds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

MODEL = "sim-8k"


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer with what it says of itself."""

    text: str
    prompt_tokens: int
    """As the model server reported them for this answer."""
    status: str
    conversation_id: str
    context: Mapping[str, Any]
    events: tuple[str, ...] = ()

    @property
    def compacted(self) -> bool:
        return bool(self.context["compaction"]["ran"])


@dataclass(slots=True)
class Client:
    """Knows a base URL and nothing else of the gateway; resends its whole history with every turn."""

    openai: OpenAI
    messages: list[ChatCompletionMessageParam] = field(default_factory=list)

    def ask(self, text: str, *, stream: bool, on_event: Callable[[Mapping[str, Any]], None]) -> Answer:
        """Say something and keep both sides of it.

        Args:
            on_event: is told of a compaction under way, while the stream waits for it.
        """
        self.messages.append({"role": "user", "content": text})
        answer = self._streamed(on_event) if stream else self._whole()
        self.messages.append({"role": "assistant", "content": answer.text})
        return answer

    def show_view(self, conversation_id: str) -> Mapping[str, Any]:
        """What would be sent if the conversation went on now: `GET …/context`."""
        path = f"/conversations/{conversation_id}/context?order=asc&limit=1000"
        view: Mapping[str, Any] = self.openai.get(path, cast_to=dict[str, Any])
        return view

    def _whole(self) -> Answer:
        completion = self.openai.chat.completions.create(model=MODEL, messages=self.messages)
        told = completion.model_extra or {}
        assert completion.usage is not None
        text = completion.choices[0].message.content or ""
        return _answer(text, completion.usage.prompt_tokens, told, ())

    def _streamed(self, on_event: Callable[[Mapping[str, Any]], None]) -> Answer:
        pieces: list[str] = []
        events: list[str] = []
        told: dict[str, Any] = {}
        prompt_tokens = 0
        stream = self.openai.chat.completions.create(
            model=MODEL,
            messages=self.messages,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            told.update(chunk.model_extra or {})
            event = (chunk.model_extra or {}).get("context_event")
            if event is not None:
                events.append(event["type"])
                on_event(event)
            pieces += [choice.delta.content or "" for choice in chunk.choices]
            prompt_tokens = chunk.usage.prompt_tokens if chunk.usage else prompt_tokens
        return _answer("".join(pieces), prompt_tokens, told, tuple(events))


def _answer(text: str, prompt_tokens: int, told: Mapping[str, Any], events: tuple[str, ...]) -> Answer:
    return Answer(text, prompt_tokens, told["context_status"], told["conversation_id"], told["context"], events)
