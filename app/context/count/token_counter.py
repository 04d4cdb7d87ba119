"""How many tokens messages, tool schemas and a whole request take. The tokenizer is passed in.

A request is the sum of its parts, exactly, so that a part is counted once and ranges are told apart by subtraction.
Sources: OpenAI's cookbook "How to count tokens with tiktoken" for messages; for tool calls and schemas, which it leaves
open, prompt token counts that the API reported. What is off is brought in line by calibration.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from typing import Any, Final

from app.context.count.image_rules import DEFAULT_RULE, ImageRule, image_rule, image_rule_for
from app.context.count.image_tokens import ASSUMED_PIXELS, decoded_start, image_tokens
from app.context.count.tokenizers import Tokenizer, tokenizer_for
from app.context.count.tool_schemas import as_json, render_custom_tool, render_functions, render_response_format
from app.context.count.vocabulary import encoding_for
from app.conversation.messages import RULE_MARK

__all__ = ["TokenCounter", "Tokenizer", "counter_for", "counter_name", "encoding_for", "is_long", "tokenizer_for"]

PER_MESSAGE: Final = 3
PER_NAME: Final = 1
PLAIN_FIELDS: Final = frozenset({"role", "content"})
"""A message with no more fields than these has nothing else to be counted."""
PRIMING: Final = 3
"""Every answer is primed with the start of an assistant message."""
PER_TOOL_CALL: Final = 4
"""Beside its arguments and twice its name: a call names its function, and so does the result that follows."""
PARALLEL_CALLS: Final = 13
"""Wrapped around several calls in one message, and their results."""
TEXT_BESIDE_CALLS: Final = 4
"""Text and calls in one message are two messages to the model."""
TOOLS: Final = 5
"""Around the tools' namespace, which joins the system message (one more message where there is none)."""
PER_CUSTOM_TOOL: Final = 4
RESPONSE_FORMAT: Final = 4
ROLES_REMEMBERED: Final = 64
ROLE_CHARS: Final = 16
"""Longer ones are none that come again."""
ATTACHED: Final = frozenset({"image_url", "input_audio", "file"})
"""Fields of the parts of a message that are no text."""
BINARY_SAMPLE_CHARS: Final = 1_000
MAX_PART_DEPTH: Final = 20

LONG_BYTES: Final = 16 * 1024
"""Up to a millisecond of counting with tiktoken, up to four with text of its least favourable kind."""


def counter_name(model: str, encoding: str | None = None) -> str:
    """The name of the counter for a model: its encoding, and the rule for its images where that is not the default.
    A conversation keeps the name, since the counts of its messages are stored.

    Args:
        encoding: from configuration, in place of the model's own.
    """
    name, rule = encoding or encoding_for(model), image_rule_for(model)
    return name if rule is DEFAULT_RULE else f"{name}{RULE_MARK}{rule.name}"


@cache
def counter_for(name: str) -> TokenCounter:
    """The counter of a name that `counter_name` gave.

    Raises:
        ValueError: it names no encoding.
    """
    encoding, _, rule = name.partition(RULE_MARK)
    return TokenCounter(tokenizer_for(encoding), image_rule(rule))


def is_long(size: int) -> bool:
    """Whether text of this many bytes or characters must be counted off the event loop."""
    return size > LONG_BYTES


class TokenCounter:
    """Counts in one encoding, and images by one rule.

    Any decodable JSON is accepted: a value of an unexpected type counts by its JSON, one nested beyond 250 levels not.
    """

    def __init__(self, tokenizer: Tokenizer, images: ImageRule = DEFAULT_RULE) -> None:
        self._count = tokenizer.count
        self._role = lru_cache(maxsize=ROLES_REMEMBERED)(tokenizer.count)
        self._images = images

    def count(self, text: str) -> int:
        """Tokens of a text by itself."""
        return self._count(text) if text else 0

    def request(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        tools: object = None,
        functions: object = None,
        response_format: object = None,
    ) -> int:
        """Tokens of a whole prompt: priming, schemas and messages."""
        schemas = self.tools(tools, functions=functions) + self.response_format(response_format)
        return PRIMING + schemas + sum(self.message(message) for message in messages)

    def message(self, body: Mapping[str, Any]) -> int:
        """Tokens that a message adds to a prompt."""
        role = body.get("role", "")
        known = isinstance(role, str) and len(role) <= ROLE_CHARS
        tokens = PER_MESSAGE + (self._role(role) if known else self._count(_name(role)))
        content = body.get("content")
        text = self.count(content) if isinstance(content, str) else self._content(content)
        if body.keys() <= PLAIN_FIELDS:
            return tokens + text
        refusal, name = body.get("refusal"), body.get("name")
        if isinstance(refusal, str):
            text += self.count(refusal)
        if isinstance(name, str) and name:
            tokens += PER_NAME + self._count(name)
        if isinstance(body.get("audio"), dict):
            tokens += ANSWER_AUDIO_TOKENS
        if "tool_calls" not in body and "function_call" not in body:
            return tokens + text
        return tokens + text + self._calls(body, beside_text=text > 0)

    def attachments(self, body: Mapping[str, Any]) -> int:
        """Tokens of the images, audio and files in a message; a file of text is text."""
        content = body.get("content")
        parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
        attached = [part for part in parts if not ATTACHED.isdisjoint(part) and "text" not in part]
        return sum(self._part(part) for part in attached if not _is_text_file(part))

    def tools(self, tools: object, *, functions: object = None) -> int:
        """Tokens of tool schemas and of deprecated functions."""
        rendered: list[Any] = list(functions) if isinstance(functions, list) else []
        tokens = 0
        for tool in tools if isinstance(tools, list) else ():
            match tool:
                case {"custom": custom}:
                    tokens += PER_CUSTOM_TOOL + self._count(render_custom_tool(custom))
                case {"function": function}:
                    rendered.append(function)
                case _:
                    tokens += self.count(as_json(tool))
        return tokens + (TOOLS + self._count(render_functions(rendered)) if rendered else 0)

    def response_format(self, response_format: object) -> int:
        """Tokens of a `json_schema`; other formats have none."""
        match response_format:
            case {"type": "json_schema", "json_schema": {} as schema}:
                return RESPONSE_FORMAT + self._count(render_response_format(schema))
        return 0

    def _calls(self, body: Mapping[str, Any], *, beside_text: bool) -> int:
        calls = body.get("tool_calls")
        if not isinstance(calls, list) or not calls:
            legacy = body.get("function_call")
            calls = [{"function": legacy}] if isinstance(legacy, dict) else []
        if not calls:
            return 0
        wrapping = (PARALLEL_CALLS if len(calls) > 1 else 0) + (TEXT_BESIDE_CALLS if beside_text else 0)
        return wrapping + sum(self._call(call) for call in calls)

    def _call(self, call: object) -> int:
        match call:
            case {"function": {} as called} | {"custom": {} as called}:
                arguments = called.get("arguments", called.get("input"))
                written = arguments if isinstance(arguments, str) else as_json(arguments)
                return PER_TOOL_CALL + 2 * self._count(_name(called.get("name", ""))) + self.count(written)
        return PER_TOOL_CALL + self.count(as_json(call))

    def _content(self, content: object) -> int:
        if isinstance(content, list):
            return sum(self._part(part) for part in content)
        return self._unknown(content) if content else 0

    def _part(self, part: object) -> int:
        match part:
            case str(text) | {"text": str(text)} | {"refusal": str(text)}:
                return self.count(text)
            case {"image_url": {"url": str(url)} as image}:
                return image_tokens(url, image.get("detail"), self._images)
            case {"image_url": str(url)}:
                return image_tokens(url, rule=self._images)
            case {"input_audio": {} as audio}:
                return audio_tokens(audio)
            case {"file": {} as file}:
                return file_tokens(file, self.count)
        return self._unknown(part)

    def _unknown(self, part: object) -> int:
        """A part of another protocol: its JSON, except what looks like base64, which counts as an image does."""
        plain, binaries = _without_binaries(part)
        return self.count(as_json(plain)) + binaries * self._images.cost(*ASSUMED_PIXELS, False)


def _is_text_file(part: Mapping[str, Any]) -> bool:
    file = part.get("file")
    return isinstance(file, dict) and is_text_file(file)


def _name(value: object) -> str:
    return value if isinstance(value, str) else as_json(value)


def _without_binaries(value: object, depth: int = 0) -> tuple[object, int]:
    """A value with its binary strings blanked, and how many there were."""
    if isinstance(value, str):
        sample = value[:BINARY_SAMPLE_CHARS]
        binary = len(sample) == BINARY_SAMPLE_CHARS and sample.isascii() and len(sample.split(None, 1)) == 1
        return ("", 1) if binary else (value, 0)
    if depth >= MAX_PART_DEPTH:
        return value, 0
    if isinstance(value, list):
        items = [_without_binaries(item, depth + 1) for item in value]
        return [item for item, _ in items], sum(count for _, count in items)
    if isinstance(value, dict):
        members = {key: _without_binaries(item, depth + 1) for key, item in value.items()}
        return {key: item for key, (item, _) in members.items()}, sum(count for _, count in members.values())
    return value, 0


AUDIO_TOKENS_PER_SECOND: Final = 10
"""Of a user: one token per 100 ms (OpenAI, "Managing costs", Realtime API)."""
COMPRESSED_BYTES_PER_SECOND: Final = 8_000
"""Assumed for anything but WAV: speech at 64 kbit/s."""
ANSWER_AUDIO_TOKENS: Final = 200
"""An earlier spoken answer named by its id: ten seconds, at one token per 50 ms (same source)."""

PAGE_TOKENS: Final = 1_500
"""A PDF page goes to the model as its text and as an image (OpenAI, "File inputs"): some 500 words and four tiles."""
PAGE_BYTES: Final = 50_000
MAX_PAGES: Final = 100
ASSUMED_FILE_TOKENS: Final = 5 * PAGE_TOKENS
"""A file named by its id, of unknown size."""

_TEXT_TYPES: Final = ("text/", "application/json", "application/xml", "application/yaml")


def audio_tokens(audio: dict[str, Any]) -> int:
    """Tokens of `input_audio`: its duration by the WAV header, otherwise by its length."""
    data = audio.get("data")
    if not isinstance(data, str):
        return ANSWER_AUDIO_TOKENS
    seconds = _decoded_bytes(len(data)) / _bytes_per_second(data)
    return max(1, math.ceil(seconds * AUDIO_TOKENS_PER_SECOND))


def file_tokens(file: dict[str, Any], count: Callable[[str], int]) -> int:
    """Tokens of a `file` part: a text file by its text, any other by the pages it may have."""
    data = file.get("file_data")
    if not isinstance(data, str):
        return ASSUMED_FILE_TOKENS
    head, comma, _ = data[:200].partition(",")
    start = len(head) + 1 if comma else 0
    if is_text_file(file):
        return count(decoded_start(data, start, len(data)).decode("utf-8", "replace"))
    pages = math.ceil(_decoded_bytes(len(data) - start) / PAGE_BYTES)
    return PAGE_TOKENS * min(max(1, pages), MAX_PAGES)


def is_text_file(file: dict[str, Any]) -> bool:
    """Whether a `file` part brings text, which is counted as such."""
    data = file.get("file_data")
    return isinstance(data, str) and data[:200].lower().startswith(tuple(f"data:{kind}" for kind in _TEXT_TYPES))


def _decoded_bytes(base64_chars: int) -> int:
    return base64_chars * 3 // 4


def _bytes_per_second(data: str) -> int:
    header = decoded_start(data, 0, 64)
    if header.startswith(b"RIFF") and header[8:16] == b"WAVEfmt " and len(header) >= 32:
        (rate,) = struct.unpack_from("<I", header, 28)
        return rate or COMPRESSED_BYTES_PER_SECOND
    return COMPRESSED_BYTES_PER_SECOND
