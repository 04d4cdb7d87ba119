"""Counts tokens of messages, tool schemas and whole requests. The tokenizer is an argument; a message's dialect says
which texts, images and calls it has.

A request is exactly the sum of its parts. So each part is counted once, and a range's tokens are a difference of
totals. Sources: OpenAI's cookbook "How to count tokens with tiktoken" for messages; for tool calls and schemas, which
it does not describe, prompt tokens that the API reported. Calibration corrects the rest.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Final

from app.context.count.image_rules import DEFAULT_IMAGE_RULE, ImageRule, choose_image_rule, find_named_image_rule
from app.context.count.image_tokens import ASSUMED_IMAGE_SIZE, count_image_tokens, decode_base64_start
from app.context.count.tokenizers import Tokenizer, load_tokenizer
from app.context.count.tool_schema_rendering import (
    render_custom_tool,
    render_functions_as_typescript,
    render_response_format,
)
from app.context.count.vocabulary import find_encoding_name
from app.conversation.conversation_types import COUNTER_NAME_SEPARATOR
from app.conversation.item import NO_SCHEMAS, Audio, ContentPart, CountedSchemas, File, Image, Item
from app.conversation.json_text import encode_compact_json

MESSAGE_TOKENS: Final = 3
NAME_TOKENS: Final = 1
PRIMING_TOKENS: Final = 3
"""Every answer is primed with the start of an assistant message."""
TOOL_CALL_TOKENS: Final = 4
"""Each call costs this, its arguments, and its name twice: the call and the result that follows both name the
function."""
PARALLEL_CALLS_TOKENS: Final = 13
"""The frame around several calls in one message, and their results."""
TEXT_BESIDE_CALLS_TOKENS: Final = 4
"""To the model, text and calls in one message are two messages."""
TOOL_NAMESPACE_TOKENS: Final = 5
"""The frame of the tools' namespace, which joins the system message (or is a message itself if there is none)."""
CUSTOM_TOOL_TOKENS: Final = 4
RESPONSE_FORMAT_TOKENS: Final = 4
BINARY_SAMPLE_CHARS: Final = 1_000
MAX_PART_DEPTH: Final = 20

MAX_EVENT_LOOP_BYTES: Final = 16 * 1024
"""Counting this much takes up to a millisecond with tiktoken, up to four for its worst kind of text."""


def choose_token_counter_name(model: str, encoding: str | None = None) -> str:
    """Returns the name of the counter for a model: its encoding, and its image rule if that is not the default.

    A conversation stores the name, since the counts of its messages are stored.

    Args:
        model: the model's name at the provider.
        encoding: from configuration, in place of the model's own.
    """
    name, rule = encoding or find_encoding_name(model), choose_image_rule(model)
    return name if rule is DEFAULT_IMAGE_RULE else f"{name}{COUNTER_NAME_SEPARATOR}{rule.name}"


@cache
def load_token_counter(name: str) -> TokenCounter:
    """Returns the counter for a name from `choose_token_counter_name`.

    Raises:
        ValueError: the name has an unknown encoding.
    """
    encoding, _, rule = name.partition(COUNTER_NAME_SEPARATOR)
    return TokenCounter(load_tokenizer(encoding), find_named_image_rule(rule))


def must_count_off_event_loop(size: int) -> bool:
    """Says whether text of this many bytes or characters must be counted off the event loop."""
    return size > MAX_EVENT_LOOP_BYTES


class TokenCounter:
    """Counts text in one encoding, and images by one rule.

    A part of an unknown kind counts as its JSON text; one nested beyond 250 levels counts nothing.

    Attributes:
        count: returns the tokens of a text by itself.
    """

    def __init__(self, tokenizer: Tokenizer, images: ImageRule = DEFAULT_IMAGE_RULE) -> None:
        self.count = tokenizer.count
        self._image_rule = images

    def count_request(self, messages: Iterable[Item], schemas: CountedSchemas = NO_SCHEMAS) -> int:
        """Returns the tokens of a whole prompt: priming, schemas and messages."""
        return PRIMING_TOKENS + self.count_schemas(schemas) + sum(map(self.count_message, messages))

    def count_message(self, message: Item) -> int:
        """Returns the tokens that a message adds to a prompt."""
        content = message.counted_content
        text = sum(map(self._count_part, content.parts))
        tokens = MESSAGE_TOKENS + self.count(content.role) + text
        if content.name:
            tokens += NAME_TOKENS + self.count(content.name)
        if content.has_spoken_answer:
            tokens += ANSWER_AUDIO_TOKENS
        if content.calls:
            tokens += self._count_calls(content.calls, beside_text=text > 0)
        return tokens

    def count_attachments(self, message: Item) -> int:
        """Returns the tokens of the images, audio and files in a message. A file of text counts as text, not here."""
        return sum(
            self._count_part(part)
            for part in message.attachments
            if not (isinstance(part, File) and is_text_file(part))
        )

    def count_schemas(self, schemas: CountedSchemas) -> int:
        """Returns the tokens of tool schemas and of the schema of the answer."""
        tokens = sum(CUSTOM_TOOL_TOKENS + self.count(render_custom_tool(tool)) for tool in schemas.custom_tools)
        tokens += sum(self.count(encode_compact_json(tool)) for tool in schemas.other_tools)
        if schemas.functions:
            tokens += TOOL_NAMESPACE_TOKENS + self.count(render_functions_as_typescript(schemas.functions))
        if schemas.answer_format is not None:
            tokens += RESPONSE_FORMAT_TOKENS + self.count(render_response_format(schemas.answer_format))
        return tokens

    def _count_calls(self, calls: Sequence[tuple[str, str]], *, beside_text: bool) -> int:
        frame = (PARALLEL_CALLS_TOKENS if len(calls) > 1 else 0) + (TEXT_BESIDE_CALLS_TOKENS if beside_text else 0)
        return frame + sum(
            [TOOL_CALL_TOKENS + 2 * self.count(name) + self.count(arguments) for name, arguments in calls]
        )

    def _count_part(self, part: ContentPart) -> int:
        match part:
            case str():
                return self.count(part)
            case Image():
                return count_image_tokens(part.url, part.detail, self._image_rule)
            case Audio():
                return count_audio_tokens(part)
            case File():
                return count_file_tokens(part, self.count)
        return self._count_unknown_part(part.value)

    def _count_unknown_part(self, part: object) -> int:
        """Counts a part of another protocol by its JSON text. A string that looks like base64 counts as an image."""
        plain, binaries = _blank_binaries(part)
        return self.count(encode_compact_json(plain)) + binaries * self._image_rule.cost(*ASSUMED_IMAGE_SIZE, False)


def _blank_binaries(value: object, depth: int = 0) -> tuple[object, int]:
    """Returns a value with its binary strings blanked, and how many there were."""
    if isinstance(value, str):
        sample = value[:BINARY_SAMPLE_CHARS]
        # A thousand ASCII characters without white space are taken for base64.
        binary = len(sample) == BINARY_SAMPLE_CHARS and sample.isascii() and len(sample.split(None, 1)) == 1
        return ("", 1) if binary else (value, 0)
    if depth >= MAX_PART_DEPTH:
        return value, 0
    if isinstance(value, list):
        items = [_blank_binaries(item, depth + 1) for item in value]
        return [item for item, _ in items], sum(count for _, count in items)
    if isinstance(value, dict):
        members = {key: _blank_binaries(item, depth + 1) for key, item in value.items()}
        return {key: item for key, (item, _) in members.items()}, sum(count for _, count in members.values())
    return value, 0


AUDIO_TOKENS_PER_SECOND: Final = 10
"""A user's audio: one token per 100 ms (OpenAI, "Managing costs", Realtime API)."""
COMPRESSED_BYTES_PER_SECOND: Final = 8_000
"""Assumed for everything but WAV: speech at 64 kbit/s."""
ANSWER_AUDIO_TOKENS: Final = 200
"""An earlier spoken answer, given by its id: ten seconds, at one token per 50 ms (same source)."""

PAGE_TOKENS: Final = 1_500
"""A PDF page goes to the model as text and as an image (OpenAI, "File inputs"): some 500 words and four tiles."""
PAGE_BYTES: Final = 50_000
MAX_PAGES: Final = 100
ASSUMED_FILE_TOKENS: Final = 5 * PAGE_TOKENS
"""A file of unknown size, given by its id."""

_TEXT_TYPES: Final = ("text/", "application/json", "application/xml", "application/yaml")


def count_audio_tokens(audio: Audio) -> int:
    """Returns the tokens of audio: by the duration in its WAV header, else by its length."""
    data = audio.data
    if data is None:
        return ANSWER_AUDIO_TOKENS
    seconds = _compute_decoded_size(len(data)) / _read_wav_byte_rate(data)
    return max(1, math.ceil(seconds * AUDIO_TOKENS_PER_SECOND))


def count_file_tokens(file: File, count: Callable[[str], int]) -> int:
    """Returns the tokens of a file: of a text file by its text, of any other by the number of pages that it may
    have.
    """
    data = file.data
    if data is None:
        return ASSUMED_FILE_TOKENS
    head, comma, _ = data[:200].partition(",")
    start = len(head) + 1 if comma else 0
    if is_text_file(file):
        return count(decode_base64_start(data, start, len(data)).decode("utf-8", "replace"))
    pages = math.ceil(_compute_decoded_size(len(data) - start) / PAGE_BYTES)
    return PAGE_TOKENS * min(max(1, pages), MAX_PAGES)


def is_text_file(file: File) -> bool:
    """Says whether a file holds text, which is counted as text."""
    data = file.data
    return data is not None and data[:200].lower().startswith(tuple(f"data:{kind}" for kind in _TEXT_TYPES))


def _compute_decoded_size(base64_chars: int) -> int:
    return base64_chars * 3 // 4


def _read_wav_byte_rate(data: str) -> int:
    header = decode_base64_start(data, 0, 64)
    if header.startswith(b"RIFF") and header[8:16] == b"WAVEfmt " and len(header) >= 32:
        (rate,) = struct.unpack_from("<I", header, 28)
        return rate or COMPRESSED_BYTES_PER_SECOND
    return COMPRESSED_BYTES_PER_SECOND
